"""When is a query new? Calibrated on classes that the model was not trained on, at the size of the gallery.

    FPIR(t)  share of queries of new classes whose best score is at least t (false positive identification rate)
    FNIR(t)  share of queries of known classes whose best match is below t or of a wrong class
             (Grother & Ngan, *Face Recognition Vendor Test: Identification*, NIST IR 8271)
A query is new if its best score is below the threshold, the lowest t with FPIR(t) <= the false-accept rate that was
named. Intervals are bootstraps over classes: queries of one class are not independent.

The conformal p-value of a query is (1 + #{known calibration queries with a score <= its own}) / (1 + Q): of queries of
known classes at most a share p has a p-value <= p, whatever the distribution (Vovk, Gammerman & Shafer, 2005).

Axes: Q queries, S sub-galleries, B bootstrap samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from nearfield.errors import InputError
from nearfield.index.open_set import BestScores, Floats
from nearfield.index.reliability import Reliability, expected_calibration_error, fit

BOOTSTRAPS = 500
FOLDS = 5
CURVE = tuple(np.geomspace(1e-3, 1, 40).tolist())  # FPIR of the points of the curve
FEWEST_QUERIES, FEWEST_CLASSES = 20, 5
FEWEST_OF_CLASS = 5  # queries, for a threshold of its own
KNOWN_SHARE = 0.5  # of queries that are of a known class, assumed for probabilities


@dataclass(frozen=True)
class Calibration:
    """The rule that decides, and what it was measured to be worth."""

    false_accept: float  # the rate that was asked for
    threshold: float  # a query whose best score is below is new
    interval: tuple[float, float]  # of the threshold, 95 %, over classes
    fpir: tuple[float, float, float]  # at the threshold: rate, and interval over classes
    fnir: tuple[float, float, float]
    curve: tuple[tuple[float, float, float], ...]  # (FPIR, FNIR, threshold)
    auroc: float  # P(score of a known query > score of an unknown one), ties half
    accuracy: float  # share of known queries whose best match is of their class, at any score
    reliability: Reliability
    known_share: float  # of the queries that the probabilities hold for
    ece: float  # expected calibration error on classes that the reliability was not fitted on
    bins: tuple[tuple[float, float, float], ...]  # (mean probability, share right, share of queries)
    trend: tuple[tuple[int, float], ...]  # (gallery size, threshold) of sub-galleries
    growth: float  # of the threshold when the gallery doubles
    gallery_size: int  # items that the threshold is for
    class_thresholds: tuple[float, float, float] | None  # 5 %, 50 %, 95 % over classes; None: classes are too small
    queries: int
    classes: int
    known: tuple[float, ...]  # best scores of known queries, ascending
    held_out: bool = True  # whether the model was not trained on these classes

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Calibration:
        """From what `facts` gave."""
        values = {key: _tuples(value) for key, value in facts.items()}
        return cls(**{**values, "reliability": Reliability(**{k: _tuples(v) for k, v in facts["reliability"].items()})})

    def facts(self) -> dict[str, Any]:
        """All values, as JSON takes them."""
        return asdict(self)

    def is_new(self, score: float) -> bool:
        """Whether a query with this best score is of a class that is not in the gallery."""
        return bool(score < self.threshold)

    def probability(self, score: float) -> float:
        """That the class of the best match, which has this score, is right."""
        return float(self.reliability(score))

    def p_value(self, score: float) -> float:
        """How usual this best score is for a known class: the share of known queries that score at most this."""
        return (1 + int(np.searchsorted(self.known, score, side="right"))) / (1 + len(self.known))


def calibrate(
    best: BestScores,
    false_accept: float,
    gallery_size: int | None = None,
    *,
    known_share: float = KNOWN_SHARE,
    held_out: bool = True,
    seed: int = 0,
) -> Calibration:
    """Calibrate on the best scores of queries; `gallery_size` extrapolates the threshold to a larger gallery."""
    if not 0 < false_accept < 1:
        raise InputError(f"false_accept must be above 0 and below 1; got {false_accept}.")
    classes = np.unique(best.classes)
    if len(best.classes) < FEWEST_QUERIES or len(classes) < FEWEST_CLASSES:
        raise InputError(
            f"calibration needs {FEWEST_QUERIES} queries of {FEWEST_CLASSES} classes with two images each; "
            f"got {len(best.classes)} of {len(classes)}."
        )
    size = int(best.sizes[-1])
    trend = [(int(n), threshold_at(best.other[:, s], false_accept)) for s, n in enumerate(best.sizes)]
    trend = [(n, t) for n, t in trend if n >= FEWEST_QUERIES and t > -2] or trend[-1:]
    growth = _growth(trend)
    shift = growth * math.log2(max(1.0, (gallery_size or size) / size))
    draws = class_weights(best, BOOTSTRAPS, seed)  # (B, Q)
    threshold = threshold_at(best.unknown, false_accept)
    accepted = (best.unknown >= threshold).astype(np.float64)
    missed = (~(best.right & (best.same >= threshold + shift))).astype(np.float64)
    curve = []
    for rate in CURVE:
        t = threshold_at(best.unknown, rate)
        curve.append((float((best.unknown >= t).mean()), float((~(best.right & (best.same >= t))).mean()), t))
    rule, ece, bins = _reliability(best, known_share, seed)
    return Calibration(
        false_accept=false_accept,
        threshold=threshold + shift,
        interval=_interval(thresholds_at(best.unknown, draws, false_accept) + shift),
        fpir=(float(accepted.mean()), *_interval(_means(accepted, draws))),
        fnir=(float(missed.mean()), *_interval(_means(missed, draws))),
        curve=tuple(dict.fromkeys(curve)),
        auroc=auroc(best.known, best.unknown),
        accuracy=float(best.right.mean()),
        reliability=rule,
        known_share=known_share,
        ece=ece,
        bins=tuple(bins),
        trend=tuple(trend),
        growth=growth,
        gallery_size=max(gallery_size or size, size),
        class_thresholds=_class_thresholds(best, false_accept),
        queries=len(best.classes),
        classes=len(classes),
        known=tuple(np.sort(best.known).tolist()),
        held_out=held_out,
    )


def threshold_at(scores: Floats, rate: float) -> float:
    """The lowest threshold that at most `rate` of the scores reach."""
    return float(thresholds_at(scores, np.ones((1, len(scores))), rate)[0])


def thresholds_at(scores: Floats, weights: Floats, rate: float) -> Floats:
    """The same for weighted scores: one threshold for each row of weights (B, Q)."""
    order = np.argsort(-scores, kind="stable")
    ranked, counts = scores[order], weights[:, order]
    reach = np.cumsum(counts, 1)  # the weight of the scores down to this one
    too_many = (reach > rate * counts.sum(1, keepdims=True) + 1e-9) & (counts > 0)
    first = np.argmax(too_many, 1)  # the highest score that must not be accepted, as rate < 1
    found = np.nextafter(ranked[first], np.inf)
    return np.asarray(np.where(too_many.any(1), found, -np.inf))


def auroc(known: Floats, unknown: Floats) -> float:
    """P(known > unknown) + P(known = unknown) / 2 over all pairs: Mann and Whitney's U by ranks."""
    ranks = rankdata(np.concatenate([known, unknown]))[: len(known)]
    return float((ranks.sum() - len(known) * (len(known) + 1) / 2) / (len(known) * len(unknown)))


def class_weights(best: BestScores, draws: int, seed: int) -> Floats:
    """How often each query counts (B, Q) when classes are drawn with replacement."""
    _, codes = np.unique(best.classes, return_inverse=True)
    count = int(codes.max()) + 1
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws)  # (B, C)
    return np.asarray(times[:, codes], np.float64)


def _means(values: Floats, weights: Floats) -> Floats:
    return np.asarray((weights @ values) / weights.sum(1))


def _interval(samples: Floats) -> tuple[float, float]:
    low, high = np.quantile(samples[np.isfinite(samples)], (0.025, 0.975))
    return float(low), float(high)


def _growth(trend: Sequence[tuple[int, float]]) -> float:
    """The slope of the threshold over log2 of the gallery's size by least squares; it cannot fall."""
    sizes, thresholds = np.log2([n for n, _ in trend]), np.array([t for _, t in trend])
    if len(np.unique(sizes)) < 2:
        return 0.0
    centred = sizes - sizes.mean()
    return max(0.0, float((centred * thresholds).sum() / (centred**2).sum()))


def _reliability(best: BestScores, known_share: float, seed: int) -> tuple[Reliability, float, list[Any]]:
    """Fitted on all queries, as known and as unknown ones; its error is that of fits on other classes."""
    count = len(best.classes)
    scores = np.concatenate([best.known, best.unknown])
    right = np.concatenate([best.right, np.zeros(count)]).astype(np.float64)
    weights = np.repeat([known_share, 1 - known_share], count)
    names = np.unique(best.classes)
    fold_of = dict(zip(names.tolist(), np.random.default_rng(seed).permutation(len(names)) % FOLDS, strict=True))
    folds = np.tile([fold_of[name] for name in best.classes.tolist()], 2)
    p = np.zeros(2 * count)
    for fold in np.unique(folds):
        inside = folds != fold
        p[~inside] = fit(scores[inside], right[inside], weights[inside])(scores[~inside])
    return fit(scores, right, weights), *expected_calibration_error(p, right, weights)


def _class_thresholds(best: BestScores, rate: float) -> tuple[float, float, float] | None:
    found = []
    for name in np.unique(best.classes):
        scores = best.unknown[best.classes == name]
        if len(scores) >= FEWEST_OF_CLASS:
            found.append(threshold_at(scores, rate))
    if not found:
        return None
    low, middle, high = np.quantile(found, (0.05, 0.5, 0.95)).tolist()
    return low, middle, high


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list | tuple) else value
