"""Scores of every query from the places of its matches, and their means.

Axes: Q queries, N gallery items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nearfield.errors import InputError, RunError
from nearfield.metrics import formulas as tie
from nearfield.metrics.checks import DISTANCES, Array, Distance, label_array, one_of
from nearfield.metrics.clustering import KMeans
from nearfield.metrics.formulas import TIES, Places, Ties
from nearfield.metrics.ranking.matches import Task, relevant_counts
from nearfield.metrics.ranking.places import match_places
from nearfield.metrics.ranking.vectors import Vectors

RETRIEVAL = ("recall", "precision", "r_precision", "map_at_r", "map", "mrr")
CLUSTERING = ("nmi", "ami", "f1")
VERIFICATION = ("roc_auc", "fnmr")
DIAGNOSTICS = ("distance_ratio", "effective_rank", "uniformity")
METRICS = (*RETRIEVAL, *CLUSTERING, *VERIFICATION, *DIAGNOSTICS, "counts")
DENOMINATORS = ("matched", "all")
PROTOCOLS = ("loo", "gallery1")


@dataclass(frozen=True)
class Settings:
    """What to compute and how; the arguments of `retrieval_metrics`, checked."""

    ks: tuple[int, ...]
    metrics: tuple[str, ...]
    distance: Distance
    ties: Ties
    denominator: Literal["matched", "all"] = "matched"
    protocol: Literal["loo", "gallery1"] = "loo"
    repeats: int = 10
    seed: int = 0
    categories: Array | None = None
    kmeans: KMeans = field(default_factory=KMeans)
    fmr: Sequence[float] = (1e-3,)
    max_memory_mb: float = 512
    distributed: bool = False

    def __post_init__(self) -> None:
        if not self.metrics:
            raise InputError(f"metrics must name at least one of {', '.join(METRICS)}; found none.")
        for name in self.metrics:
            one_of("metrics", name, METRICS)
        one_of("distance", self.distance, DISTANCES)
        one_of("ties", self.ties, TIES)
        one_of("denominator", self.denominator, DENOMINATORS)
        one_of("protocol", self.protocol, PROTOCOLS)
        if "recall" in self.metrics and (not self.ks or any(k < 1 or k != int(k) for k in self.ks)):
            raise InputError(f"ks must be whole numbers from 1; found {self.ks}.")
        if self.repeats < 1:
            raise InputError(f"repeats must be at least 1; found {self.repeats}.")
        if not self.max_memory_mb > 0:
            raise InputError(f"max_memory_mb must be above 0; found {self.max_memory_mb}.")
        if any(not 0 <= rate < 1 for rate in self.fmr):
            raise InputError(f"fmr must be rates from 0 up to, not including, 1; found {tuple(self.fmr)}.")

    def wants(self, *names: str) -> bool:
        """Whether any of these metrics was asked for."""
        return not set(names).isdisjoint(self.metrics)

    def task(
        self, queries: Vectors, gallery: Vectors, labels: Tensor, gallery_labels: Tensor, self_index: Tensor | None
    ) -> Task:
        """The ranking that the metrics need, and no more of it."""
        return Task(
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


@dataclass(frozen=True)
class PerQuery:
    """Scores of every query; NaN where a query has no match (or, with gallery1, never was a probe)."""

    scores: dict[str, Tensor]  # name -> (Q,) float32
    relevant: Tensor  # (Q,) int64, number of matches that exist

    def by(self, groups: Array) -> dict[Any, dict[str, float]]:
        """Mean scores per group of queries, such as their labels or categories; NaN where no query has a match."""
        names, codes = np.unique(label_array(groups, "groups"), return_inverse=True)
        if len(codes) != len(self.relevant):
            raise InputError(
                f"groups must hold one value for each of the {len(self.relevant)} queries; found {len(codes)}."
            )
        parts = [torch.from_numpy(np.flatnonzero(codes == code)).to(self.relevant.device) for code in range(len(names))]
        return {
            name.item(): {key: float(score[part].double().nanmean()) for key, score in self.scores.items()}
            for name, part in zip(names, parts, strict=True)
        }


def query_scores(task: Task, settings: Settings) -> PerQuery:
    """Score every query, in float64."""
    count, device = len(task.labels), task.labels.device
    nothing = torch.full((count,), torch.nan, dtype=torch.float64, device=device)
    scores = {name: nothing.clone() for name in score_names(settings)}
    if scores:
        for rows, places in match_places(task):
            for name, score in _scores(places.settled(settings.ties), settings).items():
                scores[name][rows] = score
    return PerQuery(scores, relevant_counts(task))


def score_names(settings: Settings) -> list[str]:
    """Keys of the retrieval metrics that were asked for."""
    names = [f"recall@{k}" for k in settings.ks] if settings.wants("recall") else []
    keys = {"r_precision": "r_precision", "map_at_r": "map@r", "map": "map", "mrr": "mrr"}
    names += ["precision@1"] if settings.wants("recall", "precision") else []
    return names + [key for metric, key in keys.items() if settings.wants(metric)]


def _scores(places: Places, settings: Settings) -> dict[str, Tensor]:
    scores: dict[str, Tensor] = {}
    if settings.wants("recall"):
        scores |= {f"recall@{k}": tie.recall_at(places, k) for k in settings.ks}
    if settings.wants("recall", "precision"):
        scores["precision@1"] = tie.recall_at(places, 1)
    if settings.wants("r_precision", "map_at_r"):
        precision = tie.r_precision(places)
        scores |= {"r_precision": precision} if settings.wants("r_precision") else {}
    if settings.wants("map_at_r"):
        scores["map@r"] = tie.map_at_r(places)
        if bool((scores["map@r"] > precision + 1e-9).any()):
            raise RunError("MAP@R came out above R-precision, which cannot be: please report this with the data.")
    if settings.wants("map"):
        scores["map"] = tie.average_precision(places)
    if settings.wants("mrr"):
        scores["mrr"] = tie.reciprocal_rank(places)
    return scores


def mean_scores(found: PerQuery, settings: Settings) -> dict[str, float]:
    """Means over the queries that have matches or, with denominator="all", over all, those without scoring 0."""
    matched = found.relevant > 0
    if settings.denominator == "all":
        return {name: float(score.nan_to_num(0.0).mean()) for name, score in found.scores.items()}
    if found.scores and not bool(matched.any()):
        raise InputError(
            "labels must give at least one query a relevant item; none has any: every class has a single item, or no "
            'query label is in the gallery. denominator="all" scores such queries 0.'
        )
    return {name: float(score[matched].mean()) for name, score in found.scores.items()}


def grouped_scores(found: PerQuery, categories: Array) -> dict[str, float]:
    """Flat means per category, over its queries that have matches: `recall@1/birds`."""
    groups = found.by(categories)
    return {f"{name}/{group}": value for group, scores in groups.items() for name, value in scores.items()}
