"""From a score to the probability that a suggested class is right.

Platt scaling for few queries, isotonic regression for many (Niculescu-Mizil & Caruana, *Predicting Good Probabilities
With Supervised Learning*, 2005: isotonic regression overfits below about a thousand).

Axes: n samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
ISOTONIC_FROM = 1000  # samples
BINS = 10


@dataclass(frozen=True)
class Reliability:
    """p(score): 1 / (1 + exp(-(a score + b))) by Platt, or a line through knots by isotonic regression."""

    kind: Literal["platt", "isotonic"]
    x: tuple[float, ...]  # knots; for Platt (a, b)
    y: tuple[float, ...] = ()

    def __call__(self, scores: Any) -> Floats:
        """Probabilities of scores."""
        values = np.asarray(scores, np.float64)
        if self.kind == "isotonic":
            return np.asarray(np.interp(values, self.x, self.y))
        return _sigmoid(self.x[0] * values + self.x[1])


def fit(scores: Floats, right: Floats, weights: Floats) -> Reliability:
    """The reliability of samples (n,), right or not (1 or 0), by Platt below ISOTONIC_FROM samples."""
    return platt(scores, right, weights) if len(scores) < ISOTONIC_FROM else isotonic(scores, right, weights)


def isotonic(scores: Floats, right: Floats, weights: Floats) -> Reliability:
    """The non-decreasing function with the least weighted squared error."""
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores, right, sample_weight=weights)
    return Reliability("isotonic", tuple(model.X_thresholds_.tolist()), tuple(model.y_thresholds_.tolist()))


def platt(scores: Floats, right: Floats, weights: Floats) -> Reliability:
    """The logistic function with the largest weighted likelihood of Platt's targets (N+ + 1)/(N+ + 2), 1/(N- + 2).

    Newton's method with step halving; N+ and N- are sums of weights, scaled so that weights have mean 1.
    """
    weights = weights / weights.mean()
    positive, negative = float(weights[right > 0].sum()), float(weights[right == 0].sum())
    target = np.where(right > 0, (positive + 1) / (positive + 2), 1 / (negative + 2))
    x = np.stack([scores - scores.mean(), np.ones_like(scores)], 1)  # centred, for a well-conditioned Hessian
    theta = np.array([0.0, np.log((positive + 1) / (negative + 1))])
    for _ in range(100):
        p = _sigmoid(x @ theta)
        gradient = x.T @ (weights * (p - target))
        hessian = (x * (weights * p * (1 - p))[:, None]).T @ x + 1e-12 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        before, scale = _loss(x @ theta, target, weights), 1.0
        while _loss(x @ (theta - scale * step), target, weights) > before and scale > 1e-10:
            scale /= 2
        theta = theta - scale * step
        if np.abs(scale * step).max() < 1e-12:
            break
    a, b = float(theta[0]), float(theta[1] - theta[0] * scores.mean())
    return Reliability("platt", (a, b))


def expected_calibration_error(
    p: Floats, right: Floats, weights: Floats
) -> tuple[float, list[tuple[float, float, float]]]:
    """ECE = sum over bins of share |mean p - mean right|, and each bin's (mean p, mean right, share).

    Bins hold equal shares of the weight, in order of p; samples of equal p stay in one bin.
    """
    order = np.argsort(p, kind="stable")
    p, right, weights = p[order], right[order], weights[order]
    below = np.cumsum(weights) - weights
    first = np.concatenate([[True], np.diff(p) > 0])
    start = below[first][np.cumsum(first) - 1]  # the weight below all samples of the same p
    bins = np.minimum((BINS * start / weights.sum()).astype(int), BINS - 1)
    total, found = weights.sum(), []
    for number in np.unique(bins):
        here, share = bins == number, weights[bins == number].sum()
        mean, truth = (float((weights[here] * values[here]).sum() / share) for values in (p, right))
        found.append((mean, truth, float(share / total)))
    return float(sum(share * abs(mean - truth) for mean, truth, share in found)), found


def _sigmoid(z: Floats) -> Floats:
    return np.asarray(np.exp(-np.logaddexp(0, -z)))


def _loss(z: Floats, target: Floats, weights: Floats) -> float:
    return float((weights * (np.logaddexp(0, z) - target * z)).sum())
