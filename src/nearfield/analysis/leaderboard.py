"""The leaderboard of a bench: intervals, verdicts between methods, ranks. `tables` writes it as text.

Axes: S seeds, F folds, Q queries, K methods. Scores lie in [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from nearfield.analysis.levels import FEWEST_CLASSES, by_class, class_verdicts
from nearfield.analysis.statistics import (
    CriticalDifference,
    Floats,
    Interval,
    Verdict,
    Verdicts,
    critical_difference,
    mean_interval,
    two_way_interval,
    verdicts,
)
from nearfield.bench.results import BenchResults, MethodResult, Part, Scores, Seed
from nearfield.errors import InputError, RunError, nearest, require_one_of


@dataclass(frozen=True)
class Budget:
    """The compute that a method used."""

    complete: int  # trials
    pruned: int
    runs: int  # networks trained, in trials and in seeds of the chosen setting
    seconds: float  # of training, all networks together


@dataclass(frozen=True)
class Standing:
    """One method on the board."""

    label: str
    name: str
    seeds: tuple[int, ...]
    scores: dict[str, Interval]  # metric -> mean and 95 % t-interval over new seeds, on the same queries
    new_queries: Interval | None  # of the board's metric, over new seeds and new queries; None without query scores
    train_seconds: float  # of one network, on average
    budget: Budget
    params: dict[str, Any]  # the chosen setting
    trial: int | None  # the trial that found it: 0 is the published setting; None without a search
    unequal: tuple[str, ...]


@dataclass(frozen=True)
class Board:
    """All methods with a finished seed, highest mean first, and which differences are significant.

    Verdicts and ranks are about `compared`, the methods that all finished `compared_seeds`. Ranks are within a seed:
    its folds share training classes and all queries, so they are not independent blocks, and counting them as such
    would shrink the critical difference without more evidence.
    """

    metric: str
    part: Part
    standings: tuple[Standing, ...]
    compared: tuple[str, ...]  # in the order of the standings; empty if no two methods share two seeds
    compared_seeds: tuple[int, ...]
    verdicts: Verdicts | None
    critical: CriticalDifference | None  # columns: `compared`
    waiting: tuple[str, ...]  # methods without a finished seed
    baselines: dict[str, Scores]  # untrained: name -> scores
    classes: Mapping[str, Floats] = field(default_factory=dict)  # of `compared`: (S, C) means of each class, if known
    shares: Floats = field(default_factory=lambda: np.zeros(0))  # (C,) of the queries
    class_verdicts: Verdicts | None = None  # level: classes, crossed with the compared seeds

    @property
    def best(self) -> str | None:
        """The method with the highest mean over the compared seeds; without verdicts, over its own."""
        if self.verdicts:
            return self.verdicts.like_best[0]
        return self.standings[0].label if self.standings else None

    @property
    def like_best(self) -> tuple[str, ...]:
        """Methods not significantly different from the best, itself first; empty where no verdict is possible."""
        return self.verdicts.like_best if self.verdicts else ()

    @property
    def baseline(self) -> tuple[str, float] | None:
        """The best untrained baseline and its score; None where none was measured."""
        scored = [(name, scores[self.metric]) for name, scores in self.baselines.items() if self.metric in scores]
        return max(scored, key=lambda each: each[1], default=None)

    @property
    def below_baseline(self) -> tuple[str, ...]:
        """Methods whose mean does not exceed the best untrained baseline: none of them may be called best or better."""
        least = self.baseline[1] if self.baseline else -1.0
        return tuple(one.label for one in self.standings if one.scores[self.metric].mean <= least)

    def against_best(self, label: str) -> Verdict | None:
        """The verdict on the best method and this one; None for the best itself and for methods not compared."""
        pairs = self.verdicts.pairs if self.verdicts else ()
        return next((v for v in pairs if v.first == self.best and v.second == label), None)


def standings(results: BenchResults, part: Part = "separated", metric: str = "map@r") -> Board:
    """The board by the mean of `metric`; also of a bench in progress."""
    check_metric(results, metric, part)
    found = {method.label: seed_scores(method.seeds, metric, part) for method in results.methods}
    ranked = sorted((m for m in results.methods if found[m.label]), key=lambda m: -_mean(found[m.label].values()))
    rows = tuple(_standing(results, method, part, metric) for method in ranked)
    names, seeds = _full_table({method.label: found[method.label] for method in ranked})
    table = {name: [found[name][seed] for seed in seeds] for name in names}  # K x S
    rows_of = {name: [list(found[name]).index(seed) for seed in seeds] for name in names}
    classes, shares = class_tables(results, rows_of, part, metric)
    return Board(
        metric=metric,
        part=part,
        standings=rows,
        compared=names,
        compared_seeds=seeds,
        verdicts=verdicts(table) if names else None,
        critical=critical_difference(np.transpose(list(table.values()))) if names else None,
        waiting=tuple(method.label for method in results.methods if not found[method.label]),
        baselines=results.baselines,
        classes=classes,
        shares=shares,
        class_verdicts=class_verdicts(classes, shares) if len(classes) > 1 else None,
    )


def check_metric(results: BenchResults, metric: str, part: Part) -> None:
    """InputError unless the bench measured `metric`; before its first finished seed any metric passes."""
    require_one_of("part", part, ("separated", "concatenated"))
    known = {key for method in results.methods for seed in method.seeds for key in seed.separated}
    if known and metric not in known:
        raise InputError(f"metric must be one that the bench measured; got {metric!r}, {nearest(metric, known)}")


def seed_scores(seeds: Iterable[Seed], metric: str, part: Part) -> dict[int, float]:
    """Seed -> score, for the seeds that have it."""
    scores = ((seed.seed, _part(seed, part) or {}) for seed in seeds)
    return {seed: found[metric] for seed, found in scores if metric in found}


def _part(seed: Seed, part: Part) -> Scores | None:
    return seed.separated if part == "separated" else seed.concatenated


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _standing(results: BenchResults, method: MethodResult, part: Part, metric: str) -> Standing:
    values = {key: list(seed_scores(method.seeds, key, part).values()) for key in method.seeds[0].separated}
    complete = [trial for trial in method.trials if trial.value is not None]
    repeated = [fold for seed in method.seeds for fold in seed.folds]
    folds = [*(fold for trial in method.trials for fold in trial.folds), *repeated]
    return Standing(
        label=method.label,
        name=method.name,
        seeds=tuple(seed_scores(method.seeds, metric, part)),
        scores={key: mean_interval(found) for key, found in values.items() if found},
        new_queries=_over_queries(results, method.label, part, metric),
        train_seconds=_mean(fold.train_seconds for fold in repeated),
        budget=Budget(
            complete=len(complete),
            pruned=len(method.trials) - len(complete),
            runs=len(folds),
            seconds=sum(fold.train_seconds for fold in folds),
        ),
        params=method.params,
        trial=max(complete, key=lambda t: (t.value, -t.number)).number if complete else None,
        unequal=method.unequal,
    )


def _over_queries(results: BenchResults, label: str, part: Part, metric: str) -> Interval | None:
    try:
        queries = np.asarray(results.queries(label, metric, part), dtype=np.float64)  # (S, Q), the mean over folds
    except RunError:  # not stored, or not defined for one query: NMI is of a whole clustering
        return None
    return two_way_interval(queries[:, ~np.isnan(queries).any(axis=0)])  # a query without a match has no score


def class_tables(
    results: BenchResults, rows: Mapping[str, list[int]], part: Part, metric: str
) -> tuple[dict[str, Floats], Floats]:
    """Scores of each class by method, of the given rows of seeds; none where classes or queries are not known."""
    if results.query_classes is None or len(np.unique(results.query_classes)) < FEWEST_CLASSES:
        return {}, np.zeros(0)
    tables, shares = {}, np.zeros(0)
    for label, own in rows.items():
        try:
            queries = results.queries(label, metric, part)
        except RunError:  # not stored, or not defined for one query
            return {}, np.zeros(0)
        if queries.shape[1] != len(results.query_classes):  # a metric of another list of queries
            return {}, np.zeros(0)
        tables[label], shares = by_class(queries[own], results.query_classes)
    return tables, shares


def _full_table(found: Mapping[str, Mapping[int, float]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Methods and seeds of a table without gaps, at least two of each; both empty if there is none.

    It is the largest such table over the seeds that one method finished, or that two methods share.
    """
    own = [frozenset(scores) for scores in found.values()]
    best: tuple[tuple[str, ...], tuple[int, ...]] = (), ()
    for seeds in sorted({a & b for a, b in combinations_with_replacement(own, 2)}, key=sorted):
        names = tuple(name for name, scores in found.items() if seeds <= scores.keys())
        if min(len(names), len(seeds)) > 1 and len(names) * len(seeds) > len(best[0]) * len(best[1]):
            best = names, tuple(sorted(seeds))
    return best
