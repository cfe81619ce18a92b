"""Retrieval scores of one query from the place of each of its matches, exact when scores tie.

Axes: B queries, P matches (relevant items) of a query.

A match stands in a tie group: `above` items score higher, of which `matches_above` are matches; `tied` items share its
score, itself included, of which `matches_tied` are matches. Items of a group come in random order, each order equally
likely, and a score is its expected value. "optimistic" puts the matches of a group first, "pessimistic" last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Ties = Literal["expected", "optimistic", "pessimistic"]
TIES: tuple[str, ...] = get_args(Ties)
STEPS = 1024  # places of a tie group summed at once


@dataclass(frozen=True)
class Places:
    """Where the listed matches of B queries stand, from the best to the worst; float64 tensors of shape (B, P)."""

    above: Tensor
    matches_above: Tensor
    tied: Tensor
    matches_tied: Tensor
    relevant: Tensor  # (B,) number of matches that exist; all of them are listed, or only the best

    def settled(self, ties: Ties) -> Places:
        """The same places with every tie broken in favour of, or against, the matches."""
        if ties == "expected":
            return self
        column = torch.arange(self.above.shape[1], device=self.above.device)
        within = column - self.matches_above  # matches of the same group that come first
        late = self.tied - self.matches_tied if ties == "pessimistic" else torch.zeros_like(self.tied)
        one = torch.ones_like(self.tied)
        return Places(self.above + within + late, self.matches_above + within, one, one, self.relevant)


def recall_at(places: Places, k: int) -> Tensor:
    """Probability that the first k items hold a match: 1 - C(t-r, m) / C(t, m), with m = k - above places left."""
    above, t, r = places.above[:, 0], places.tied[:, 0], places.matches_tied[:, 0]
    slots = (k - above).clamp(min=0).minimum(t)
    misses = t - r
    drawn = slots.minimum(misses)  # keeps the logarithms finite; more slots than misses always hit
    log_miss = _log_choose(misses, drawn) - _log_choose(t, drawn)
    return torch.where(slots > misses, torch.ones_like(t), -torch.expm1(log_miss))


def reciprocal_rank(places: Places) -> Tensor:
    """Expected 1 / (rank of the first match)."""
    above, t, r = places.above[:, 0], places.tied[:, 0], places.matches_tied[:, 0]
    score = 1.0 / (above + 1.0)
    open_ = t > r
    if bool(open_.any()):
        groups, where = torch.unique(torch.stack([above, t, r], dim=1)[open_], dim=0, return_inverse=True)
        score[open_] = torch.cat([_expected_reciprocal(*part.T) for part in groups.split(STEPS)])[where]
    return score


def r_precision(places: Places) -> Tensor:
    """(1/R) sum over k <= R of rel(k): a match lands in the first R with probability (slots left) / (group size)."""
    slots = (places.relevant[:, None] - places.above).clamp(min=0).minimum(places.tied)
    return _per_relevant(slots / places.tied, places)


def map_at_r(places: Places) -> Tensor:
    """(1/R) sum over k <= R of rel(k) P(k), P(k) the precision of the first k items."""
    slots = (places.relevant[:, None] - places.above).clamp(min=0).minimum(places.tied)
    return _per_relevant(_precision_sum(places, slots), places)


def average_precision(places: Places) -> Tensor:
    """(1/R) sum over all k of rel(k) P(k)."""
    return _per_relevant(_precision_sum(places, places.tied), places)


def _precision_sum(places: Places, slots: Tensor) -> Tensor:
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
    survive = torch.ones_like(t)  # P(J > j), up to the last j looked at
    for start in range(1, int((t - r).max()) + 1, STEPS):
        j = torch.arange(start, start + STEPS, dtype=t.dtype, device=t.device)  # (steps,)
        still = (t - r + 1)[:, None] - j
        chances = survive[:, None] * (still.clamp(min=0) / (still + r[:, None]).clamp(min=1)).cumprod(1)
        score = score - (chances / ((above[:, None] + j) * (above[:, None] + j + 1))).sum(1)
        survive = chances[:, -1]
        if not bool((survive > 1e-15).any()):
            break
    return torch.where(r == 1, _harmonic_step(above, t) / t, score)


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


def _per_relevant(shares: Tensor, places: Places) -> Tensor:
    return shares.sum(1) / places.relevant  # (B,)
