"""How well k-means recovers the classes: NMI, AMI and pairwise F1.

Axes: N items, D dimensions, C classes and as many clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfield.errors import require_one_of
from nearfield.metrics.checks import whole_number
from nearfield.metrics.mutual_information import normalized_mutual_information
from nearfield.metrics.ranking.vectors import VectorSet

Average = Literal["arithmetic", "geometric"]
STARTS = 3  # of k-means
HEAT = 4  # iterations of all starts, after which the best alone goes on
SEEN = 20  # points for each cluster, drawn at random, among which first centres are chosen
MANY = 1000  # clusters from which one start is enough: with thousands of them luck evens out
ENTRIES = 2**24  # of a block of distances
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class KMeans:
    """Settings of the clustering, enough to reproduce it; `average` normalises mutual information.

    k-means runs until no item changes its cluster, at most `iterations`, from the best of `restarts` starts after a few
    iterations: None is 3, or 1 if there are more than 1,000 classes. On an embedding of CUB-200-2011 this is within 0.3
    points of scikit-learn's k-means. The values published for lifted structure use the arithmetic mean 2 I / (H + H),
    those of "Unbiased Evaluation" the geometric one.
    """

    seed: int = 0
    restarts: int | None = None
    iterations: int = 300
    average: Average = "arithmetic"

    def __post_init__(self) -> None:
        require_one_of("average", self.average, get_args(Average))
        for name, least in (("seed", 0), ("restarts", 1), ("iterations", 1)):
            value = getattr(self, name)
            if name != "restarts" or value is not None:
                object.__setattr__(self, name, whole_number(name, value, least, LARGEST))


def clustering_scores(
    items: VectorSet, codes: torch.Tensor, names: Sequence[str], settings: KMeans
) -> dict[str, float]:
    """Cluster the vectors into as many clusters as there are classes and compare; `codes` are labels 0..C-1."""
    truth = codes.cpu().numpy()
    found = kmeans(items, len(np.unique(truth)), settings)
    scores = {}
    if "nmi" in names:
        scores["nmi"] = normalized_mutual_information(truth, found, settings.average)
    if "ami" in names:
        from sklearn import metrics as sk  # a second to import

        scores["ami"] = float(sk.adjusted_mutual_info_score(truth, found, average_method=settings.average))
    if "f1" in names:
        scores["f1"] = pairwise_f1(truth, found)
    return scores


def kmeans(items: VectorSet, clusters: int, settings: KMeans) -> NDArray[np.int64]:
    """Cluster of each item, (N,), by k-means with Euclidean distance on the vectors that are compared.

    Lloyd's iterations from centres drawn by k-means++ among some of the points. All starts take a few iterations; the
    one that leads then goes on until no item moves.
    """
    index = torch.arange(len(items.norm), device=items.norm.device)
    points = items.plain(index, torch.float32)  # (N, D)
    if clusters == 1:
        return np.zeros(len(points), dtype=np.int64)
    generator = torch.Generator().manual_seed(settings.seed)
    starts = settings.restarts or (STARTS if clusters <= MANY else 1)
    seen = points[torch.randperm(len(points), generator=generator)[: SEEN * clusters].to(points.device)]
    centres = _first_centres(seen, clusters, starts, generator)  # (S, C, D)
    heat = min(HEAT, settings.iterations)
    found, _, leading = min((_lloyd(points, each, heat) for each in centres), key=lambda tried: tried[1])
    if settings.iterations > heat:
        found, _, _ = _lloyd(points, leading, settings.iterations - heat)
    return found.cpu().numpy()


def _lloyd(points: Tensor, centres: Tensor, iterations: int) -> tuple[Tensor, float, Tensor]:
    """Cluster of each point, (N,), the sum of squared distances to the centres (C, D), and the next centres."""
    before, squares = None, points.square().sum(1)
    for _ in range(iterations):
        found, best = _nearest(points, centres)
        if before is not None and torch.equal(found, before):
            break
        before = found
        sizes = torch.bincount(found, minlength=len(centres))  # (C,)
        centres = torch.zeros_like(centres).index_add_(0, found, points) / sizes.clamp(min=1)[:, None]
        empty = torch.nonzero(sizes == 0)[:, 0]
        centres[empty] = points[(squares - 2 * best).topk(len(empty)).indices]  # start again, far from all centres
    return found, float((squares - 2 * best).double().sum()), centres


def _nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre c of each point x, (N,), and x c - |c|^2 / 2, (N,)."""
    half = centres.square().sum(1) / 2
    scores = [
        torch.addmm(half, block, centres.T, beta=-1).max(1) for block in points.split(max(1, ENTRIES // len(centres)))
    ]
    return torch.cat([each.indices for each in scores]), torch.cat([each.values for each in scores])


def _first_centres(points: Tensor, clusters: int, starts: int, generator: torch.Generator) -> Tensor:
    """Centres (S, C, D) among the points for each start, by greedy k-means++ (Arthur and Vassilvitskii, 2007).

    Each is drawn with a probability proportional to the squared distance to the nearest centre so far: of a few draws
    the one that leaves the smallest sum of them. Of more than MANY clusters, several are drawn at once and all kept.
    """
    at_once, draws = -(-clusters // MANY), 2 + int(math.log(clusters))
    squares, rows = points.square().sum(1), torch.arange(starts)  # (N,), (S,)
    chosen = torch.randint(len(points), (starts, 1), generator=generator)
    left = _squared(points, squares, chosen)[:, 0]  # (S, N) squared distance to the nearest centre
    while (held := chosen.shape[1]) < clusters:
        count = draws if at_once == 1 else min(at_once, clusters - held)
        weights = torch.where(left.any(1, keepdim=True), left, 1)  # fewer different points than clusters
        drawn = torch.multinomial(weights.cpu(), count, replacement=True, generator=generator)  # (S, n)
        further = torch.minimum(left[:, None], _squared(points, squares, drawn))  # (S, n, N)
        if at_once == 1:
            best = further.sum(2).argmin(1)
            left, drawn = further[rows, best], drawn[rows, best.cpu(), None]
        else:
            left = further.amin(1)
        chosen = torch.cat([chosen, drawn], 1)
    return points[chosen.to(points.device)]


def _squared(points: Tensor, squares: Tensor, index: Tensor) -> Tensor:
    """Squared distances of those of `index` (S, n) to all points, (S, n, N)."""
    flat = index.to(points.device).flatten()
    products = torch.addmm(squares, points[flat], points.T, alpha=-2)
    return (products + squares[flat, None]).clamp_(min=0).view(*index.shape, -1)


def pairwise_f1(truth: NDArray[Any], found: NDArray[Any]) -> float:
    """F1 of "these two items belong together" over all pairs; 1 when neither side puts any two together."""
    classes, clusters = (np.unique(side, return_inverse=True)[1] for side in (truth, found))
    joint = np.unique(classes.astype(np.int64) * (clusters.max() + 1) + clusters, return_counts=True)[1]
    hit, own, put = (_pairs(sizes) for sizes in (joint, np.bincount(classes), np.bincount(clusters)))
    return 2 * hit / (own + put) if own + put else 1.0


def _pairs(sizes: NDArray[np.int64]) -> int:
    return int((sizes.astype(np.int64) * (sizes - 1) // 2).sum())
