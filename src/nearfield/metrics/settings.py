"""The options of `retrieval_metrics`, and the groups of metrics that it knows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor
from typing_extensions import TypedDict

from nearfield.errors import InputError, nearest, require_one_of
from nearfield.metrics.checks import Array, Distance, require_distance, whole_number
from nearfield.metrics.clustering import KMeans
from nearfield.metrics.ranking.matches import RankingTask
from nearfield.metrics.ranking.vectors import VectorSet

RETRIEVAL = ("recall", "precision", "r_precision", "map_at_r", "map", "mrr")
CLUSTERING = ("nmi", "ami", "f1")
VERIFICATION = ("roc_auc", "eer", "fnmr", "tar", "opis")
DIAGNOSTICS = ("distance_ratio", "effective_rank", "uniformity")
METRICS = (*RETRIEVAL, *CLUSTERING, *VERIFICATION, *DIAGNOSTICS, "counts")
DEFAULT_METRICS = ("recall", "r_precision", "map_at_r", "nmi")
DEFAULT_KS = (1, 2, 4, 8)
LARGEST_EXACT = 2**53  # whole numbers up to here are exact in float64

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
    """What to compute and how: the arguments of `retrieval_metrics` other than embeddings and labels."""

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

    def signature(self) -> str:
        """What must be the same on all ranks of a distributed evaluation."""
        return f"{replace(self, categories=None)}, categories {'not ' if self.categories is None else ''}given"

    def wants(self, *names: str) -> bool:
        """Whether any of these metrics was asked for."""
        return not set(names).isdisjoint(self.metrics)

    @property
    def precision_ks(self) -> tuple[int, ...]:
        """The K of precision@K that need more than the best match."""
        return tuple(k for k in self.ks if k > 1) if self.wants("precision") else ()

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
            best_only=not (self.wants("r_precision", "map_at_r", "map") or self.precision_ks),
            best_depth=None if self.wants("map", "mrr") else max([1, *self.ks]),
            rest_exact=self.wants("map"),
            rest_depth=max([1, *self.precision_ks]),
            memory=int(min(self.max_memory_mb, 2**40) * 2**20),
        )


def read_settings(
    ks: Sequence[int], metrics: Sequence[str], distance: Distance, ties: Ties, options: Options
) -> EvalSettings:
    """The arguments of `retrieval_metrics`, checked: InputError names the first that breaks its rule."""
    unknown = next((name for name in options if name not in Options.__annotations__), None)
    if unknown is not None:
        raise InputError(f"unknown option {unknown!r}: {nearest(unknown, Options.__annotations__)}")
    names = _sequence("metrics", metrics)
    if not names:
        raise InputError(f"metrics must name at least one of {', '.join(METRICS)}; got none.")
    for name in names:
        require_one_of("metrics", name, METRICS)
    depths = tuple(whole_number("ks", k, 1, LARGEST_EXACT) for k in _sequence("ks", ks))
    if "recall" in names and not depths:
        raise InputError("ks must hold at least one number for recall; got none.")
    found = EvalSettings(depths, names, distance, ties, **options)
    for argument, value, valid in (
        ("ties", found.ties, Ties),
        ("denominator", found.denominator, Denominator),
        ("protocol", found.protocol, GalleryProtocol),
    ):
        require_one_of(argument, value, get_args(valid))
    require_distance(found.distance)
    seed = whole_number("seed", found.seed, -(2**63), 2**63 - 1)
    repeats = whole_number("repeats", found.repeats, 1, LARGEST_EXACT)
    if not isinstance(found.distributed, bool):
        raise InputError(f"distributed must be True or False; got {found.distributed!r}.")
    if not isinstance(found.kmeans, KMeans):
        raise InputError(f"kmeans must be a nearfield.metrics.KMeans; got {found.kmeans!r}.")
    if not isinstance(found.max_memory_mb, int | float | np.number) or not 0 < found.max_memory_mb < math.inf:
        raise InputError(f"max_memory_mb must be a number above 0; got {found.max_memory_mb!r}.")
    rates = tuple(_rate(rate) for rate in _sequence("fmr", found.fmr))
    return replace(found, seed=seed, repeats=repeats, fmr=rates)


def _sequence(argument: str, value: Sequence[Any]) -> tuple[Any, ...]:
    try:
        if isinstance(value, str | bytes | Mapping):
            raise TypeError
        return tuple(value)
    except TypeError:
        raise InputError(
            f"{argument} must be a sequence; got {value!r}. For a single value write ({value!r},)."
        ) from None


def _rate(value: object) -> float:
    if not isinstance(value, int | float | np.number) or not 0 <= value < 1:
        raise InputError(f"fmr must be a number from 0 up to, not including, 1; got {value!r}.")
    return float(value)
