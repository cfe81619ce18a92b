"""The options of `retrieval_metrics`, and the groups of metrics that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from torch import Tensor
from typing_extensions import TypedDict

from nearfield.errors import InputError, require_one_of
from nearfield.metrics.checks import Array, Distance
from nearfield.metrics.clustering import KMeans
from nearfield.metrics.ranking.matches import RankingTask
from nearfield.metrics.ranking.vectors import VectorSet

RETRIEVAL = ("recall", "precision", "r_precision", "map_at_r", "map", "mrr")
CLUSTERING = ("nmi", "ami", "f1")
VERIFICATION = ("roc_auc", "fnmr")
DIAGNOSTICS = ("distance_ratio", "effective_rank", "uniformity")
METRICS = (*RETRIEVAL, *CLUSTERING, *VERIFICATION, *DIAGNOSTICS, "counts")
DEFAULT_METRICS = ("recall", "r_precision", "map_at_r", "nmi")
DEFAULT_KS = (1, 2, 4, 8)

Ties = Literal["expected", "optimistic", "pessimistic"]
Denominator = Literal["matched", "all"]
GalleryProtocol = Literal["loo", "gallery1"]


class Options(TypedDict, total=False):
    """The less common arguments of `retrieval_metrics`, explained there."""

    denominator: Denominator
    protocol: GalleryProtocol
    repeats: int
    seed: int
    categories: Array | None
    kmeans: KMeans
    fmr: Sequence[float]
    max_memory_mb: float
    distributed: bool


@dataclass(frozen=True)
class EvalSettings:
    """What to compute and how: the arguments of `retrieval_metrics` other than embeddings and labels, checked."""

    ks: tuple[int, ...]
    metrics: tuple[str, ...]
    distance: Distance
    ties: Ties
    denominator: Denominator = "matched"
    protocol: GalleryProtocol = "loo"
    repeats: int = 10
    seed: int = 0
    categories: Array | None = None
    kmeans: KMeans = field(default_factory=KMeans)
    fmr: Sequence[float] = (1e-3,)
    max_memory_mb: float = 512
    distributed: bool = False

    def __post_init__(self) -> None:
        if not self.metrics:
            raise InputError(f"metrics must name at least one of {', '.join(METRICS)}; got none.")
        for name in self.metrics:
            require_one_of("metrics", name, METRICS)
        require_one_of("distance", self.distance, get_args(Distance))
        require_one_of("ties", self.ties, get_args(Ties))
        require_one_of("denominator", self.denominator, get_args(Denominator))
        require_one_of("protocol", self.protocol, get_args(GalleryProtocol))
        if "recall" in self.metrics and (not self.ks or any(k < 1 or k != int(k) for k in self.ks)):
            raise InputError(f"ks must be whole numbers from 1; got {self.ks}.")
        if self.repeats < 1:
            raise InputError(f"repeats must be at least 1; got {self.repeats}.")
        if not self.max_memory_mb > 0:
            raise InputError(f"max_memory_mb must be above 0; got {self.max_memory_mb}.")
        if any(not 0 <= rate < 1 for rate in self.fmr):
            raise InputError(f"fmr must be rates from 0 up to, not including, 1; got {tuple(self.fmr)}.")

    def wants(self, *names: str) -> bool:
        """Whether any of these metrics was asked for."""
        return not set(names).isdisjoint(self.metrics)

    def ranking(
        self, queries: VectorSet, gallery: VectorSet, labels: Tensor, gallery_labels: Tensor, self_index: Tensor | None
    ) -> RankingTask:
        """The ranking that the metrics need, and no more of it."""
        return RankingTask(
            queries,
            gallery,
            labels,
            gallery_labels,
            self_index,
            best_only=not self.wants("r_precision", "map_at_r", "map"),
            best_depth=None if self.wants("map", "mrr") else max([1, *self.ks]),
            rest_exact=self.wants("map"),
            memory=int(self.max_memory_mb * 2**20),
        )
