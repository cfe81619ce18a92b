"""What all pairs of items say: verification (same class or not?) and diagnostics of the embedding.

Axes: Q queries, N gallery items, r x w entries of a tile, D dimensions, C classes, H bins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from nearfield.errors import InputError
from nearfield.metrics.ranking.matches import RankingTask
from nearfield.metrics.ranking.vectors import TINY, VectorSet

BINS = 1 << 20
SIDE = 1024
EXACT = "donot_use_mm_for_euclid_dist"  # the fast formula loses small distances


def verification(task: RankingTask, names: Sequence[str], rates: Sequence[float]) -> dict[str, float]:
    """ROC AUC and FNMR at given FMR over all pairs; a pair of equal labels should score above a pair of different ones.

    Scores are counted in 2^20 bins (one per distance for binary codes); pairs in one bin count as ties, half right.
    """
    match, other = _histograms(task)
    if not int(match.sum()) or not int(other.sum()):
        raise InputError(
            "labels must give pairs that match and pairs that do not for roc_auc and fnmr; one kind is missing."
        )
    scores = {}
    if "roc_auc" in names:
        below = other.cumsum(0) - other
        wins = (match.double() * (below.double() + other.double() / 2)).sum()
        scores["roc_auc"] = float(wins / match.sum() / other.sum())
    if "fnmr" in names:
        scores |= {f"fnmr@fmr={rate:g}": _fnmr(match, other, rate) for rate in rates}
    return scores


def _fnmr(match: Tensor, other: Tensor, rate: float) -> float:
    """Share of matching pairs below the lowest threshold that at most `rate` of the other pairs reach."""
    reach = other.flip(0).cumsum(0).flip(0)  # other pairs at or above each bin
    threshold = int((reach > rate * int(other.sum())).sum())  # bins too low to be the threshold
    return float(match[:threshold].sum() / match.sum())


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
    if task.queries.distance == "cosine":
        return -1.0, 1.0
    return -2.0, 0.0


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


def distance_ratio(items: VectorSet, codes: Tensor) -> float:
    """Mean distance of two items of a class over that of two class centres (Roth et al., 2020); lower is tighter."""
    order = torch.argsort(codes, stable=True)
    inside, pairs, centres = 0.0, 0, []
    for members in order.split(torch.bincount(codes).tolist()):
        rows = items.plain(members)  # (n, D)
        centres.append(rows.mean(0))
        inside += sum(float(torch.cdist(part, rows, compute_mode=EXACT).sum()) for part in rows.split(SIDE))
        pairs += len(rows) * (len(rows) - 1)
    between, count = _mean_distance(torch.stack(centres))
    if not pairs or not count:
        raise InputError("labels must hold a class of two items and a second class for distance_ratio.")
    return inside / pairs / between if between else math.inf


def _mean_distance(points: Tensor) -> tuple[float, int]:
    """Mean Euclidean distance of two different rows, and the number of ordered pairs."""
    count = len(points) * (len(points) - 1)
    total = sum(float(torch.cdist(part, points, compute_mode=EXACT).sum()) for part in points.split(SIDE))
    return total / max(count, 1), count


def effective_rank(items: VectorSet) -> float:
    """exp of the entropy of the singular values divided by their sum (Roy and Vetterli, 2007): from 1 to D."""
    parts = (items.uncentred(index) for index in _blocks(items))
    gram = reduce(torch.add, (rows.T @ rows for rows in parts))  # (D, D)
    values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    share = values / values.sum().clamp(min=TINY)
    return float(torch.special.entr(share).sum().exp())


def uniformity(items: VectorSet) -> float:
    """log of the mean of exp(-2 |x - y|^2) over pairs of unit vectors (Wang and Isola, 2020); 0 means collapsed.

    A vector of zeros has no direction and stays where it is, at distance 1 from every unit vector.
    """
    count = len(items.norm)
    if count < 2:
        raise InputError(f"embeddings must hold at least two rows for uniformity; got {count}.")
    blocks = _blocks(items)
    total = 0.0
    for i, first in enumerate(blocks):
        left = _unit_rows(items, first)
        for j, second in enumerate(blocks[i:], start=i):
            right = _unit_rows(items, second)
            lengths = left.square().sum(1)[:, None] + right.square().sum(1)
            near = (4 * (left @ right.T) - 2 * lengths).clamp_(max=0).exp_().double()  # (r, w)
            total += float(near.fill_diagonal_(0).sum()) if j == i else 2 * float(near.sum())
    return math.log(total / (count * (count - 1)))


def _unit_rows(items: VectorSet, index: Tensor) -> Tensor:
    """Rows of unit length, or of zeros, in float32."""
    return torch.nn.functional.normalize(items.uncentred(index), eps=TINY).float()


def _blocks(items: VectorSet) -> Sequence[Tensor]:
    index: tuple[Tensor, ...] = torch.arange(len(items.norm), device=items.norm.device).split(SIDE)
    return index
