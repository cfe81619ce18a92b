"""What each retrieval metric means: the score of a query from the places of its matches, and the mean over queries.

Axes: Q queries, B queries of a block, P matches (relevant items) of a query.

A match stands in a tie group: `above` items score higher, of which `matches_above` are matches; `tied` items share its
score, itself included, of which `matches_tied` are matches. Items of a group come in random order, each order equally
likely, and a score is its expected value. `ties` may put the matches of a group first or last instead. Where the places
come from: `ranking/places.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearfield.errors import InputError, RunError
from nearfield.metrics.checks import Array, label_array
from nearfield.metrics.ranking.matches import MatchPlaces, RankingTask, relevant_counts
from nearfield.metrics.ranking.places import match_places
from nearfield.metrics.settings import EvalSettings, Ties

TIE_STEPS = 1024  # places of a tie group summed at once
Formula = Callable[[MatchPlaces], Tensor]


@dataclass(frozen=True)
class PerQuery:
    """Scores of every query; NaN where a query has no match (or, with gallery1, was always in the gallery)."""

    scores: dict[str, Tensor]  # name -> (Q,) float32
    relevant: Tensor  # (Q,) int64, number of matches that exist

    def by(self, groups: Array) -> dict[Any, dict[str, float]]:
        """Mean scores per group of queries, such as their labels or categories; NaN where no query has a match."""
        names, codes = np.unique(label_array(groups, "groups"), return_inverse=True)
        if len(codes) != len(self.relevant):
            raise InputError(
                f"groups must hold one value for each of the {len(self.relevant)} queries; got {len(codes)}."
            )
        parts = [torch.from_numpy(np.flatnonzero(codes == code)).to(self.relevant.device) for code in range(len(names))]
        return {
            name.item(): {key: float(score[part].double().nanmean()) for key, score in self.scores.items()}
            for name, part in zip(names, parts, strict=True)
        }


def score_queries(task: RankingTask, settings: EvalSettings) -> PerQuery:
    """Rank the gallery for every query and apply the formulas, in float64."""
    formulas = formulas_for(settings)
    if not len(task.labels):  # an empty shard
        return PerQuery({name: task.labels.double() for name in formulas}, task.labels)
    nothing = torch.full((len(task.labels),), torch.nan, dtype=torch.float64, device=task.labels.device)
    scores = {name: nothing.clone() for name in formulas}
    if formulas:
        for rows, places in match_places(task):
            settled = break_ties(places, settings.ties)
            for name, formula in formulas.items():
                scores[name][rows] = formula(settled)
    return PerQuery(scores, relevant_counts(task))


def formulas_for(settings: EvalSettings) -> dict[str, Formula]:
    """Keys of the requested retrieval metrics in the result, and the formula of each."""
    found: dict[str, Formula] = {}
    if settings.wants("recall"):
        found |= {f"recall@{k}": partial(recall_at, k=k) for k in settings.ks}
    if settings.wants("recall", "precision"):
        found["precision@1"] = partial(recall_at, k=1)
    found |= {f"precision@{k}": partial(precision_at, k=k) for k in settings.precision_ks}
    if settings.wants("r_precision"):
        found["r_precision"] = r_precision
    if settings.wants("map_at_r"):
        found["map@r"] = map_at_r
    if settings.wants("map"):
        found["map"] = average_precision
    if settings.wants("mrr"):
        found["mrr"] = reciprocal_rank
    return found


def mean_scores(found: PerQuery, settings: EvalSettings) -> dict[str, float]:
    """Means over the queries that have matches or, with denominator="all", over all, those without scoring 0."""
    matched = found.relevant > 0
    if settings.denominator == "all":
        return {name: float(score.nan_to_num(0.0).mean()) for name, score in found.scores.items()}
    if found.scores and not bool(matched.any()):
        raise InputError(
            "labels must give at least one query a match; no query has any: every class has a single item, or no "
            'query label is in the gallery. denominator="all" scores such queries 0.'
        )
    return {name: float(score[matched].mean()) for name, score in found.scores.items()}


def break_ties(places: MatchPlaces, ties: Ties) -> MatchPlaces:
    """The same places with every tie broken in favour of, or against, the matches; unchanged for expected values."""
    if ties == "expected":
        return places
    column = torch.arange(places.above.shape[1], device=places.above.device)
    within = column - places.matches_above  # matches of the same group that come first
    late = places.tied - places.matches_tied if ties == "pessimistic" else torch.zeros_like(places.tied)
    one = torch.ones_like(places.tied)
    return MatchPlaces(places.above + within + late, places.matches_above + within, one, one, places.relevant)


def recall_at(places: MatchPlaces, k: int) -> Tensor:
    """Probability that the first k items hold a match: 1 - C(t-r, m) / C(t, m), with m = k - above places left."""
    above, t, r = places.above[:, 0], places.tied[:, 0], places.matches_tied[:, 0]
    if bool((t == r).all()):  # no other item ties with the best match
        return (above < k).double()
    slots = (k - above).clamp(min=0).minimum(t)
    misses = t - r
    drawn = slots.minimum(misses)  # keeps the logarithms finite; more slots than misses always hit
    log_miss = _log_choose(misses, drawn) - _log_choose(t, drawn)
    return torch.where(slots > misses, torch.ones_like(t), -torch.expm1(log_miss))


def precision_at(places: MatchPlaces, k: int) -> Tensor:
    """(1/k) sum over j <= k of rel(j): a match lands in the first k with probability (slots left) / (group size)."""
    slots = (k - places.above).clamp(min=0).minimum(places.tied)
    return (slots / places.tied).sum(1) / k


def reciprocal_rank(places: MatchPlaces) -> Tensor:
    """Expected 1 / (rank of the first match)."""
    above, t, r = places.above[:, 0], places.tied[:, 0], places.matches_tied[:, 0]
    score = 1.0 / (above + 1.0)
    open_ = t > r
    if bool(open_.any()):
        groups, where = torch.unique(torch.stack([above, t, r], dim=1)[open_], dim=0, return_inverse=True)
        score[open_] = torch.cat([_expected_reciprocal(*part.T) for part in groups.split(TIE_STEPS)])[where]
    return score


def r_precision(places: MatchPlaces) -> Tensor:
    """(1/R) sum over k <= R of rel(k): a match lands in the first R with probability (slots left) / (group size)."""
    slots = (places.relevant[:, None] - places.above).clamp(min=0).minimum(places.tied)
    return _per_relevant(slots / places.tied, places)


def map_at_r(places: MatchPlaces) -> Tensor:
    """(1/R) sum over k <= R of rel(k) P(k), P(k) the precision of the first k items; at most R-precision."""
    slots = (places.relevant[:, None] - places.above).clamp(min=0).minimum(places.tied)
    score = _per_relevant(_precision_sum(places, slots), places)
    if bool((score > r_precision(places) + 1e-9).any()):
        raise RunError("MAP@R came out above R-precision, which is impossible; please report this with the data.")
    return score


def average_precision(places: MatchPlaces) -> Tensor:
    """(1/R) sum over all k of rel(k) P(k)."""
    return _per_relevant(_precision_sum(places, places.tied), places)


def _precision_sum(places: MatchPlaces, slots: Tensor) -> Tensor:
    """Share of one match in E[sum of rel(k) P(k)] over the first `slots` places of its group, (B, P).

    With a items above holding c matches, and t tied items holding r, the j-th place of the group holds a match with
    probability r/t, and then the j-1 places before it hold (j-1)(r-1)/(t-1) more. Summed over j <= m, per match:
    (1/t) [ q m + (c + 1 - q (a+1)) (H(a+m) - H(a)) ],  q = (r-1)/(t-1),  H the harmonic numbers.
    """
    a, c, t, r = places.above, places.matches_above, places.tied, places.matches_tied
    q = (r - 1) / (t - 1).clamp(min=1)
    return (q * slots + (c + 1 - q * (a + 1)) * _harmonic_step(a, slots)) / t


def _harmonic_step(a: Tensor, m: Tensor) -> Tensor:
    """H(a+m) - H(a); m = 1, by far the most common, without any cancellation."""
    if bool((m <= 1).all()):
        return m / (a + 1)
    top = int((a + m).max()) + 1
    harmonic = torch.arange(top, dtype=a.dtype, device=a.device).clamp(min=1).reciprocal()
    harmonic[0] = 0
    harmonic = harmonic.cumsum(0)  # (top,) H(0), H(1), ...
    return torch.where(m == 1, 1 / (a + 1), harmonic[(a + m).long()] - harmonic[a.long()])


def _expected_reciprocal(above: Tensor, t: Tensor, r: Tensor) -> Tensor:
    """E[1 / (a + J)], J the first of r matches among t items in random order, t > r.

    Summed by parts: 1/(a+1) - sum over j >= 1 of P(J > j) / ((a+j)(a+j+1)); a single match has a closed form.
    """
    score = 1 / (above + 1)
    survive = torch.ones_like(t)  # P(J > j) for the last j summed
    for start in range(1, int((t - r).max()) + 1, TIE_STEPS):
        j = torch.arange(start, start + TIE_STEPS, dtype=t.dtype, device=t.device)  # (steps,)
        still = (t - r + 1)[:, None] - j
        chances = survive[:, None] * (still.clamp(min=0) / (still + r[:, None]).clamp(min=1)).cumprod(1)
        score = score - (chances / ((above[:, None] + j) * (above[:, None] + j + 1))).sum(1)
        survive = chances[:, -1]
        if not bool((survive > 1e-15).any()):
            break
    return torch.where(r == 1, _harmonic_step(above, t) / t, score)


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


def _per_relevant(shares: Tensor, places: MatchPlaces) -> Tensor:
    return shares.sum(1) / places.relevant  # (B,)
