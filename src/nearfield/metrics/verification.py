"""Verification over all pairs of items, same class or not: ROC AUC, equal error rate, error rates at a threshold.

    FMR(t), FAR(t)    share of pairs of different classes that score at least t (false match, false accept)
    FNMR(t)           share of pairs of the same class that score below t (false non-match); TAR(t) = 1 - FNMR(t)
    EER               where FMR = FNMR, on the line between the two thresholds around it

Axes: Q queries, N gallery items, r x w entries of a tile, H bins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nearfield.errors import InputError
from nearfield.metrics.ranking.matches import RankingTask

BINS = 1 << 20
SIDE = 1024


def verification_scores(task: RankingTask, names: Sequence[str], rates: Sequence[float]) -> dict[str, float]:
    """ROC AUC, EER, and FNMR and TAR at given FMR over all pairs; a pair of equal labels should score above others.

    Scores are counted in 2^20 bins (one per distance for binary codes); pairs in one bin count as ties, half right.
    """
    match, other = _histograms(task)
    if not int(match.sum()) or not int(other.sum()):
        raise InputError(
            "labels must give pairs that match and pairs that do not for verification; one kind is missing."
        )
    scores = {}
    if "roc_auc" in names:
        below = other.cumsum(0) - other
        wins = (match.double() * (below.double() + other.double() / 2)).sum()
        scores["roc_auc"] = float(wins / match.sum() / other.sum())
    if "fnmr" in names:
        scores |= {f"fnmr@fmr={rate:g}": _fnmr(match, other, rate) for rate in rates}
    if "tar" in names:
        scores |= {f"tar@far={rate:g}": 1 - _fnmr(match, other, rate) for rate in rates}
    if "eer" in names:
        scores["eer"] = _equal_error_rate(match, other)
    return scores


def _equal_error_rate(match: Tensor, other: Tensor) -> float:
    """The rate at which FMR, which falls with the threshold, meets FNMR, which rises."""
    fmr = torch.cat([other.flip(0).cumsum(0).flip(0), other.new_zeros(1)]).double() / other.sum()
    fnmr = torch.cat([match.new_zeros(1), match.cumsum(0)]).double() / match.sum()
    gap = fmr - fnmr  # from 1 at the lowest threshold to -1 above the highest score
    after = int((gap > 0).sum())
    share = gap[after - 1] / (gap[after - 1] - gap[after])
    return float(fmr[after - 1] + share * (fmr[after] - fmr[after - 1]))


def _fnmr(match: Tensor, other: Tensor, rate: float) -> float:
    """Share of matching pairs below the lowest threshold that at most `rate` of the other pairs reach."""
    reach = other.flip(0).cumsum(0).flip(0)  # other pairs at or above each bin
    threshold = int((reach > rate * int(other.sum())).sum())  # bins too low to be the threshold
    return float(match[:threshold].sum().double() / match.sum())


def _histograms(task: RankingTask) -> tuple[Tensor, Tensor]:
    """Numbers of matching and of other pairs in each bin of scores, lowest first; (H,) int64 each."""
    low, high = _range(task)
    bins = task.queries.width + 1 if task.queries.exact else BINS
    match = torch.zeros(bins, dtype=torch.int64, device=task.labels.device)
    total = torch.zeros_like(match)
    for scores, same, valid in _tiles(task):
        place = ((scores.double() - low) * ((bins - 1) / (high - low))).round_().long().clamp_(0, bins - 1)
        total += torch.bincount(place[valid], minlength=bins)
        match += torch.bincount(place[valid & same], minlength=bins)
    return match, total - match


def _range(task: RankingTask) -> tuple[float, float]:
    if task.queries.exact:
        return -float(task.queries.width), float(task.queries.width)
    return (-1.0, 1.0) if task.queries.distance == "cosine" else (-2.0, 0.0)


def _tiles(task: RankingTask) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Tiles of scores, whether labels agree, whether the pair counts: of one set each pair once, none with itself."""
    device = task.labels.device
    columns = torch.arange(len(task.gallery_labels), device=device)
    for rows in torch.arange(len(task.labels), device=device).split(SIDE):
        left = task.queries.left(rows, torch.float32)
        for cols in columns.split(SIDE):
            if task.one_set and int(cols[-1]) < int(rows[0]):
                continue
            scores = left @ task.gallery.right(cols, torch.float32).T
            same = task.labels[rows, None] == task.gallery_labels[cols]
            if task.one_set:
                valid = cols > rows[:, None]
            elif task.self_index is not None:
                valid = cols != task.self_index[rows, None]
            else:
                valid = torch.ones_like(same)
            yield scores, same, valid
