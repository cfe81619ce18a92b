"""How well k-means recovers the classes: NMI, AMI and pairwise F1.

Axes: N items, D dimensions, C classes and as many clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from nearfield.errors import RunError, require_one_of
from nearfield.metrics.checks import whole_number
from nearfield.metrics.ranking.vectors import VectorSet

Average = Literal["arithmetic", "geometric"]
INT32_MAX = 2**31 - 1  # faiss counts in 32 bits


@dataclass(frozen=True)
class KMeans:
    """Settings of the clustering, enough to reproduce it; `average` normalises mutual information.

    The values published for lifted structure use the arithmetic mean 2 I / (H + H), those of "Unbiased Evaluation" the
    geometric one.
    """

    seed: int = 0
    restarts: int = 1
    iterations: int = 20
    average: Average = "arithmetic"

    def __post_init__(self) -> None:
        require_one_of("average", self.average, get_args(Average))
        for name, least in (("seed", 0), ("restarts", 1), ("iterations", 1)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least, INT32_MAX))


def clustering_scores(
    items: VectorSet, codes: torch.Tensor, names: Sequence[str], settings: KMeans
) -> dict[str, float]:
    """Cluster the vectors into as many clusters as there are classes and compare; `codes` are labels 0..C-1."""
    from sklearn import metrics as sk

    truth = codes.cpu().numpy()
    found = kmeans(items, len(np.unique(truth)), settings)
    scores = {}
    if "nmi" in names:
        scores["nmi"] = float(sk.normalized_mutual_info_score(truth, found, average_method=settings.average))
    if "ami" in names:
        scores["ami"] = float(sk.adjusted_mutual_info_score(truth, found, average_method=settings.average))
    if "f1" in names:
        scores["f1"] = pairwise_f1(truth, found)
    return scores


def kmeans(items: VectorSet, clusters: int, settings: KMeans) -> NDArray[np.int64]:
    """Cluster of each item, (N,), by faiss k-means with Euclidean distance on the vectors that are compared."""
    faiss = _faiss()
    index = torch.arange(len(items.norm), device=items.norm.device)
    data = items.plain(index, torch.float32).cpu().numpy()  # (N, D)
    if clusters == 1:
        return np.zeros(len(data), dtype=np.int64)
    model = faiss.Kmeans(
        data.shape[1],
        clusters,
        niter=settings.iterations,
        nredo=settings.restarts,
        seed=settings.seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(data),
    )
    model.train(data)
    found: NDArray[np.int64] = model.index.search(data, 1)[1][:, 0]
    return found


def pairwise_f1(truth: NDArray[Any], found: NDArray[Any]) -> float:
    """F1 of "these two items belong together" over all pairs; 1 when neither side puts any two together."""
    classes, clusters = (np.unique(side, return_inverse=True)[1] for side in (truth, found))
    joint = np.unique(classes.astype(np.int64) * (clusters.max() + 1) + clusters, return_counts=True)[1]
    hit, own, put = (_pairs(sizes) for sizes in (joint, np.bincount(classes), np.bincount(clusters)))
    return 2 * hit / (own + put) if own + put else 1.0


def _pairs(sizes: NDArray[np.int64]) -> int:
    return int((sizes.astype(np.int64) * (sizes - 1) // 2).sum())


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise RunError(
            "nmi, ami and f1 require faiss, which is not installed; run `pip install faiss-cpu`, "
            "or leave those metrics out."
        ) from error
    return faiss
