"""Verification over all pairs of items, same class or not: ROC AUC, equal error rate, error rates at a threshold.

    FMR(t), FAR(t)    share of pairs of different classes that score at least t (false match, false accept)
    FNMR(t)           share of pairs of the same class that score below t (false non-match); TAR(t) = 1 - FNMR(t)
    EER               where FMR = FNMR, on the line between the two thresholds around it
    OPIS              how differently one threshold suits different classes: `_opis`

Axes: Q queries, N gallery items, C classes, r x w entries of a tile, H bins, T thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nearfield.errors import InputError
from nearfield.metrics.ranking.matches import RankingTask

BINS = 1 << 20
SIDE = 1024
RATES = (0.1, 0.01)  # overall false match rates at the ends of the range of thresholds of OPIS
THRESHOLDS = 21


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
    if "opis" in names:
        scores["opis"] = _opis(task, other)
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
    return float(match[: _threshold(other, rate)].sum().double() / match.sum())


def _threshold(other: Tensor, rate: float) -> int:
    """The lowest bin that at most `rate` of the other pairs reach."""
    reach = other.flip(0).cumsum(0).flip(0)  # other pairs at or above each bin
    return int((reach > rate * int(other.sum())).sum())  # bins too low to be the threshold


def _opis(task: RankingTask, other: Tensor) -> float:
    """Operating-point inconsistency (Zhang et al., ICLR 2024): how differently one threshold suits different classes.

        U_c(t) = 2 TPR_c TNR_c / (TPR_c + TNR_c),    OPIS = mean over t of the variance over classes of U_c(t)

    TPR_c is the share of matching pairs of class c at t or above, TNR_c that of its other pairs below; 0 is the best.
    The thresholds are 21, evenly spaced, from an overall false match rate of 10 % to one of 1 %. Only classes with both
    kinds of pairs count.
    """
    low, high = (_threshold(other, rate) for rate in RATES)
    thresholds = torch.linspace(low, high, THRESHOLDS, dtype=torch.float64, device=other.device).round_().long()
    classes = 1 + int(max(task.labels.max(), task.gallery_labels.max()))
    counts = torch.zeros(2, classes, THRESHOLDS + 1, dtype=torch.int64, device=other.device)  # other pairs, matching
    for rows, cols, scores, same, valid in _tiles(task):
        reached = torch.searchsorted(thresholds, _places(task, scores, len(other)), right=True)  # thresholds not above
        ends = [task.labels[rows, None], *([task.gallery_labels[cols]] if task.one_set else [])]
        for labels, taken in zip(ends, (valid, valid & ~same), strict=False):  # a matching pair is of one class
            place = (same * classes + labels) * (THRESHOLDS + 1) + reached
            counts += torch.bincount(place[taken], minlength=counts.numel()).view_as(counts)
    total = counts.sum(2, keepdim=True)
    both = (total > 0).all(0)[:, 0]  # (C,)
    if not bool(both.any()):
        raise InputError("labels must hold a class with matching and other pairs for opis; no class has both.")
    share = (counts.flip(2).cumsum(2).flip(2).double() / total.clamp(min=1))[
        :, :, 1:
    ]  # (2, C, T) at or above each threshold
    right, rejected = share[1], 1 - share[0]
    utility = 2 * right * rejected / (right + rejected).clamp(min=1e-12)
    return float(utility[both].var(0, correction=0).mean())


def _histograms(task: RankingTask) -> tuple[Tensor, Tensor]:
    """Numbers of matching and of other pairs in each bin of scores, lowest first; (H,) int64 each."""
    bins = task.queries.width + 1 if task.queries.exact else BINS
    match = torch.zeros(bins, dtype=torch.int64, device=task.labels.device)
    total = torch.zeros_like(match)
    for _, _, scores, same, valid in _tiles(task):
        place = _places(task, scores, bins)
        total += torch.bincount(place[valid], minlength=bins)
        match += torch.bincount(place[valid & same], minlength=bins)
    return match, total - match


def _places(task: RankingTask, scores: Tensor, bins: int) -> Tensor:
    """The bin of each score."""
    low, high = _range(task)
    return ((scores.double() - low) * ((bins - 1) / (high - low))).round_().long().clamp_(0, bins - 1)


def _range(task: RankingTask) -> tuple[float, float]:
    if task.queries.exact:
        return -float(task.queries.width), float(task.queries.width)
    return (-1.0, 1.0) if task.queries.distance == "cosine" else (-2.0, 0.0)


def _tiles(task: RankingTask) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Tiles: rows, columns, scores, whether labels agree, whether the pair counts.

    Of one set each pair counts once, and no item with itself.
    """
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
            yield rows, cols, scores, same, valid
