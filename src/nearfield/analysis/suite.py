"""One leaderboard over several datasets: ranks, and the probability that one method beats another on a new dataset.

Axes: J datasets, K methods, S seeds, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import numpy as np

from nearfield.analysis.budgets import Effort, efforts
from nearfield.analysis.leaderboard import Board, seed_scores, standings
from nearfield.analysis.levels import Level, compare_classes
from nearfield.analysis.new_dataset import FEWEST_DATASETS, NewDataset, learn, new_dataset, spread_of_methods
from nearfield.analysis.statistics import (
    Comparison,
    CriticalDifference,
    Floats,
    Verdicts,
    compare,
    critical_difference,
    kendall_tau,
)
from nearfield.bench.results import BenchResults
from nearfield.errors import RunError


@dataclass(frozen=True)
class OneDataset:
    """What one dataset contributes."""

    name: str
    board: Board  # level: seeds
    means: dict[str, float]  # of every method with a finished seed
    spread: float  # of the methods' means
    seeds: dict[str, Floats]  # (S,) scores of the compared methods over the seeds that all share
    verdicts: Verdicts | None  # level: classes
    efforts: dict[str, Effort]

    def over_classes(self, a: str, b: str) -> Comparison | None:
        """a - b over new classes and new seeds; None where the classes of the queries are not known."""
        if not self.board.classes:
            return None
        return compare_classes(self.board.classes[a], self.board.classes[b], self.board.shares)

    def over_seeds(self, a: str, b: str) -> Comparison:
        """a - b over new seeds on the same test images."""
        return compare(self.seeds[a], self.seeds[b])

    def difference(self, a: str, b: str) -> tuple[float, float]:
        """a - b and its standard error, in spreads: over new classes and seeds, or seeds if classes are unknown."""
        if (found := self.over_classes(a, b)) is not None:
            return found.difference.mean / self.spread, found.spread / self.spread
        found = self.over_seeds(a, b)
        return found.difference.mean / self.spread, found.spread / sqrt(found.seeds) / self.spread


@dataclass(frozen=True)
class Pair:
    """Two methods across datasets; `first` has the higher mean difference, or is equal."""

    first: str
    second: str
    found: NewDataset  # first - second, in spreads of the methods


@dataclass(frozen=True)
class Suite:
    """All datasets together. Methods are ordered by their mean rank."""

    metric: str
    datasets: tuple[OneDataset, ...]
    methods: tuple[str, ...]  # finished on every dataset
    ranks: dict[str, float]  # mean over datasets
    critical: CriticalDifference | None  # level: datasets; columns: `methods`
    pairs: tuple[Pair, ...]  # level: datasets; empty with fewer than three of them
    missing: tuple[str, ...]

    @property
    def level(self) -> Level:
        """The most general level that the data allow."""
        if self.pairs:
            return "datasets"
        return "classes" if all(each.verdicts for each in self.datasets) else "seeds"

    def pair(self, a: str, b: str) -> NewDataset:
        """a - b on a new dataset."""
        for each in self.pairs:
            if (each.first, each.second) == (a, b):
                return each.found
            if (each.first, each.second) == (b, a):
                return reversed_sides(each.found)
        raise RunError(f"{a} and {b} are not compared across datasets.")

    def efforts(self, label: str) -> list[Effort]:
        """What the budget of a method bought, dataset by dataset."""
        return [each.efforts[label] for each in self.datasets]


def reversed_sides(found: NewDataset) -> NewDataset:
    """b - a from a - b."""
    return NewDataset(
        mean=-found.mean, spread=found.spread, better=found.worse, equal=found.equal, worse=found.better,
        positive=1 - found.positive, low=-found.high, high=-found.low, datasets=found.datasets,
    )  # fmt: skip


def collect(results: Mapping[str, BenchResults], metric: str = "map@r") -> Suite:
    """The suite of the benches' results so far, by the mean of `metric`, networks scored one by one."""
    datasets = tuple(one_dataset(name, each, metric) for name, each in results.items())
    return assemble(
        datasets, metric, tuple(f"{name}: {line}" for name, each in results.items() for line in each.missing)
    )


def assemble(datasets: Sequence[OneDataset], metric: str, missing: tuple[str, ...] = ()) -> Suite:
    """The suite of these datasets: methods that all have, their ranks, and every pair of them on a new dataset."""
    shared = [label for label in datasets[0].seeds if all(label in each.seeds for each in datasets)]
    if not shared:
        raise RunError("no method has two finished seeds on every dataset yet; resume the suite.")
    scores = np.array([[each.means[label] for label in shared] for each in datasets])  # (J, K)
    critical = critical_difference(scores) if len(datasets) > 1 and len(shared) > 1 else None
    places = critical.ranks if critical else tuple(float(1 + (scores[0] > s).sum()) for s in scores[0])
    ranks = dict(zip(shared, places, strict=True))
    order = tuple(sorted(shared, key=lambda label: (ranks[label], label)))
    if critical:
        critical = critical_difference(scores[:, [shared.index(label) for label in order]])
    pairs = []
    if len(datasets) >= FEWEST_DATASETS and len(order) > 1:
        gaps, errors = differences(datasets, order)
        prior = learn(gaps, errors)
        for (a, b), gap, error in zip(combinations(order, 2), gaps, errors, strict=True):
            found = new_dataset(gap, error, prior=prior)
            pairs.append(Pair(a, b, found) if found.mean >= 0 else Pair(b, a, reversed_sides(found)))
    return Suite(metric, tuple(datasets), order, ranks, critical, tuple(pairs), missing)


def differences(datasets: Sequence[OneDataset], methods: Sequence[str]) -> tuple[Floats, Floats]:
    """Of every pair of methods on every dataset, and their standard errors, (P, J) each, in spreads."""
    found = [[each.difference(a, b) for each in datasets] for a, b in combinations(methods, 2)]
    return np.array(found)[:, :, 0], np.array(found)[:, :, 1]


def one_dataset(name: str, results: BenchResults, metric: str) -> OneDataset:
    """What a bench says at the levels of seeds and of classes."""
    board = standings(results, "separated", metric)
    means = {one.label: one.scores[metric].mean for one in board.standings}
    table = {method.label: seed_scores(method.seeds, metric, board.part) for method in results.methods}
    return OneDataset(
        name=name,
        board=board,
        means=means,
        spread=spread_of_methods(list(means.values())) if means else 1.0,
        seeds={label: np.array([table[label][seed] for seed in board.compared_seeds]) for label in board.compared},
        verdicts=board.class_verdicts,
        efforts=efforts(results),
    )


def agreement(suite: Suite) -> dict[tuple[str, str], float | None]:
    """Kendall's tau between the orders of the methods on every two datasets."""
    found = {}
    for one, other in combinations(suite.datasets, 2):
        scores = [[each.means[label] for label in suite.methods] for each in (one, other)]
        found[one.name, other.name] = kendall_tau(*scores)
    return found
