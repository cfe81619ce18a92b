"""The level of datasets: what the differences of two methods on some datasets say of a dataset that was not seen.

On dataset j they differ by d_j, in units of the spread of all methods there, with the standard error s_j of its classes
and seeds:

    d_j ~ N(theta_j, s_j^2),  theta_j ~ N(mu, tau^2)          and the theta of a new dataset ~ N(mu, tau^2)
    mu ~ Cauchy(0, g),  tau^2 ~ scaled inverse chi-square(k, h^2)

the hierarchical model of Corani, Benavoli et al. (Machine Learning 2017) with normal errors. Three to ten datasets say
little of tau: that three differences agree by chance is what a prior must judge. So g, h and k are learned from all
pairs of the suite, as moderated variances are from all genes (Smyth 2004): how far methods differ on average, and how
much of a difference is the dataset's own. Both priors have heavy tails, so that a method that is far worse than all
others is believed, or that one is far less steady.

Axes: P pairs of methods, J datasets, H settings of (g, h, k), V and T points of the grids of mu's variance and of tau.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from nearfield.analysis.statistics import Floats
from nearfield.errors import InputError

FEWEST_DATASETS = 3  # from which the level can speak at all
ROPE = 0.1  # region of practical equivalence: a tenth of the spread of the methods on a dataset
SURE = 0.95  # probability from which a verdict is a statement
SCALES = np.geomspace(0.03, 3.0, 13)  # of g and of h, in spreads
STEADINESS = (2.0, 4.0, 8.0)  # of k: how alike the tau of all pairs are
_VARIANCES = np.geomspace(1e-3, 1e6, 30)  # of mu
_TAUS = np.geomspace(1e-2, 1e2, 46)
_NEGLIGIBLE = 1e-6  # of the weight of a grid's point beside the largest one


@dataclass(frozen=True)
class Prior:
    """What is believed of two methods before they are compared: weights of mu's variance and tau, (V, T)."""

    weights: Floats


@dataclass(frozen=True)
class NewDataset:
    """What is known of the difference a - b on a dataset that was not seen; the three probabilities sum to 1."""

    mean: float  # of the difference over datasets
    spread: float  # of the true difference between datasets, tau: the posterior mean
    better: float  # probability that a is better by more than the region of practical equivalence
    equal: float  # that the difference lies inside
    worse: float
    positive: float  # probability that a is better at all
    low: float  # 95 % interval of the difference on a new dataset
    high: float
    datasets: int

    @property
    def decided(self) -> Literal["better", "equal", "worse", ""]:
        """What has a probability of `SURE` or more; nothing if nothing has."""
        if self.better >= SURE:
            return "better"
        if self.worse >= SURE:
            return "worse"
        return "equal" if self.equal >= SURE else ""


def spread_of_methods(scores: ArrayLike) -> float:
    """How far methods (K,) lie apart on one dataset: the interquartile range, as a standard deviation (/ 1.349).

    Differences are measured in it, so that a dataset on which all methods score low or high counts as any other.
    """
    values = np.asarray(scores, dtype=np.float64)
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) / 1.349 or float(values.std()) or 1.0


# ---------------------------------------------------------------------------------------------------------------
# The prior


def prior_of(g: float, h: float, k: float) -> Prior:
    """mu ~ Cauchy(0, g), as a mixture of normals, and tau^2 ~ scaled inverse chi-square(k, h^2)."""
    of_mu = -0.5 * np.log(_VARIANCES) - 0.5 * g**2 / _VARIANCES  # of the logarithm, on which both grids are even
    of_tau = -k * np.log(_TAUS) - 0.5 * k * h**2 / _TAUS**2
    return Prior(np.outer(_shares(of_mu), _shares(of_tau)))


@cache
def _settings() -> Floats:
    """Every setting's prior, (H, V T)."""
    return np.stack([prior_of(g, h, k).weights.ravel() for g, h, k in product(SCALES, SCALES, STEADINESS)])


def unknown() -> Prior:
    """That of two methods of which no suite is known: every setting alike."""
    return Prior(_settings().mean(0).reshape(len(_VARIANCES), len(_TAUS)))


def learn(differences: ArrayLike, errors: ArrayLike) -> Prior:
    """The prior of a suite from the differences of all its pairs (P, J) and their errors (P, J).

    Settings are weighted by their likelihood and averaged. Pairs of K methods share them: each counts 2 / K, so that
    together they count as K - 1.
    """
    d, s = _checked(differences, errors, 2)
    log_likelihood, _, _ = _evidence(d, s)  # (P, V, T)
    flat = log_likelihood.reshape(len(d), -1)
    top = flat.max(1, keepdims=True)
    of_pairs = np.log(np.exp(flat - top) @ _settings().T + 1e-300)  # (P, H)
    methods = (1 + sqrt(1 + 8 * len(d))) / 2
    weights = _shares(of_pairs.sum(0) * 2 / methods)
    return Prior((weights @ _settings()).reshape(len(_VARIANCES), len(_TAUS)))


# ---------------------------------------------------------------------------------------------------------------
# The posterior


def new_dataset(
    differences: ArrayLike, errors: ArrayLike, rope: float = ROPE, prior: Prior | None = None, error: float = 0.0
) -> NewDataset:
    """The difference on a new dataset, from those of J datasets (J,) and their standard errors (J,).

    The true one, unless `error` is given: the standard error with which it will be measured there. Without `prior`,
    that of methods of which nothing else is known. mu is integrated exactly, its variance and tau on a grid.
    """
    d, s = _checked(differences, errors, 1)
    weights, centre, width, tau = _posterior(d, s, prior or unknown())
    width = np.hypot(width, error)

    def below(x: float) -> float:
        return float(weights @ ndtr((x - centre) / width))

    return NewDataset(
        mean=float(weights @ centre),
        spread=float(weights @ tau),
        better=1 - below(rope),
        equal=below(rope) - below(-rope),
        worse=below(-rope),
        positive=1 - below(0.0),
        low=_solve(below, 0.025, centre, width),
        high=_solve(below, 0.975, centre, width),
        datasets=len(d),
    )


def _checked(differences: ArrayLike, errors: ArrayLike, ndim: int) -> tuple[Floats, Floats]:
    d, s = (np.asarray(each, dtype=np.float64) for each in (differences, errors))
    enough = d.ndim == ndim and d.shape[-1] >= FEWEST_DATASETS and d.size > 0
    if not enough or d.shape != s.shape or not np.isfinite([d, s]).all() or (s < 0).any():
        raise InputError(
            f"differences and errors must be finite, of at least {FEWEST_DATASETS} datasets, errors at least 0; got "
            f"{d.tolist()} and {s.tolist()}."
        )
    return d, s


def _evidence(d: Floats, s: Floats) -> tuple[Floats, Floats, Floats]:
    """Log-likelihood of the differences (P, J), (P, V, T); precision and weighted sum of the data, (P, 1, T)."""
    total = s[:, None] ** 2 + _TAUS[:, None] ** 2  # (P, T, J)
    known, pulled = (1 / total).sum(-1)[:, None], (d[:, None] / total).sum(-1)[:, None]  # (P, 1, T)
    alone = -0.5 * (np.log(total) + d[:, None] ** 2 / total).sum(-1)[:, None]
    more = 1 + _VARIANCES[:, None] * known  # (P, V, T)
    return alone - 0.5 * np.log(more) + 0.5 * _VARIANCES[:, None] * pulled**2 / more, known, pulled


def _posterior(d: Floats, s: Floats, prior: Prior) -> tuple[Floats, Floats, Floats, Floats]:
    """Weights of the grid's points that matter; given each, mean and standard deviation of the new theta, and tau."""
    log_likelihood, known, pulled = (part[0] for part in _evidence(d[None], s[None]))
    weights = prior.weights * np.exp(log_likelihood - log_likelihood.max())
    kept = weights > _NEGLIGIBLE * weights.max()
    precision = known + 1 / _VARIANCES[:, None]  # (V, T) of mu
    width = np.sqrt(1 / precision + _TAUS**2)
    shown = np.broadcast_to(_TAUS, weights.shape)
    return weights[kept] / weights[kept].sum(), (pulled / precision)[kept], width[kept], shown[kept]


def _shares(log_weights: Floats) -> Floats:
    weights = np.exp(log_weights - log_weights.max())
    shares: Floats = weights / weights.sum()
    return shares


def _solve(below: Callable[[float], float], target: float, centre: Floats, width: Floats) -> float:
    """The quantile of a mixture of normals, which lies between those of its parts."""
    from scipy.optimize import brentq  # takes long to import

    parts = centre + width * float(ndtri(target))
    low, high = float(parts.min()), float(parts.max())
    return float(brentq(lambda x: below(x) - target, low - 1e-9, high + 1e-9, xtol=1e-6 * (high - low) + 1e-12))
