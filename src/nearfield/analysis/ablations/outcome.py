"""The outcome of an ablation: a curve for each method over the values of the axis. Scores lie in [0, 1].

Axes: S seeds that all values share, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearfield.analysis.leaderboard import class_tables
from nearfield.analysis.statistics import Floats, Interval, mean_interval
from nearfield.bench.ablations import Ablation
from nearfield.bench.plan import label
from nearfield.bench.results import BenchResults, Scores
from nearfield.config import BenchConfig

METRIC = "recall@1"  # as in the papers' figures


@dataclass(frozen=True)
class Curve:
    """One method: value of the axis -> seed -> scores; only values with a finished seed."""

    method: str  # "" where the axis is the method
    scores: Mapping[str, Mapping[int, Scores]]
    seconds: Mapping[str, float]  # mean training time of one network
    classes: Mapping[str, Mapping[int, Floats]] = field(default_factory=dict)  # by METRIC: value -> seed -> (C,)
    shares: Floats = field(default_factory=lambda: np.zeros(0))  # (C,) of the queries

    def interval(self, value: str, metric: str = METRIC) -> Interval:
        """Mean and 95 % t-interval over seeds."""
        return mean_interval([scores[metric] for scores in self.scores[value].values()])

    @property
    def shared_seeds(self) -> list[int]:
        """The seeds that all values have finished."""
        return sorted(set.intersection(*(set(seeds) for seeds in self.scores.values())))

    def table(self, metric: str = METRIC) -> dict[str, list[float]]:
        """Value -> scores of the shared seeds."""
        return {v: [seeds[seed][metric] for seed in self.shared_seeds] for v, seeds in self.scores.items()}

    def class_table(self) -> dict[str, Floats]:
        """Value -> scores of every class by `METRIC`, (S, C); nothing where they are not known for all values."""
        if self.classes.keys() != self.scores.keys() or len(self.shared_seeds) < 2:
            return {}
        return {v: np.stack([seeds[seed] for seed in self.shared_seeds]) for v, seeds in self.classes.items()}


@dataclass(frozen=True)
class Outcome:
    """An ablation with its results so far."""

    ablation: Ablation
    benches: Mapping[str, BenchConfig]
    curves: tuple[Curve, ...]  # in the order of the methods
    missing: tuple[str, ...]
    data: str
    environment: Mapping[str, Any]


def collect(ablation: Ablation, benches: Mapping[str, BenchConfig], found: Mapping[str, BenchResults]) -> Outcome:
    """The results of the finished benches, by method."""
    first = next(iter(found.values()))
    count = len(first_of(benches).methods)
    names = [_shared_name(benches, index) for index in range(count)] if ablation.methods else [""]
    curves = tuple(_curve(index, name, benches, found) for index, name in enumerate(names))
    missing = [f"{value}: {line}" for value, results in found.items() for line in results.missing]
    missing += [f"{value}: not run yet" for value in benches if value not in found]
    return Outcome(ablation, benches, curves, tuple(missing), first.data["name"], first.environment)


def first_of(benches: Mapping[str, BenchConfig]) -> BenchConfig:
    """The bench of the first value."""
    return next(iter(benches.values()))


def _shared_name(benches: Mapping[str, BenchConfig], index: int) -> str:
    """A method's name with the parameters that are equal for all values of the axis."""
    methods = [bench.methods[index] for bench in benches.values()]
    same = {k: v for k, v in methods[0].params.items() if all(m.params.get(k) == v for m in methods)}
    return label(methods[0].name, same)


def _curve(index: int, name: str, benches: Mapping[str, BenchConfig], found: Mapping[str, BenchResults]) -> Curve:
    scores, seconds = {}, {}
    classes: dict[str, dict[int, Floats]] = {}
    shares: Floats = np.zeros(0)
    for value, results in found.items():
        method = benches[value].methods[index]
        wanted = label(method.name, method.params)
        seeds = next((each.seeds for each in results.methods if each.label == wanted), ())
        if not seeds:
            continue
        scores[value] = {seed.seed: seed.separated for seed in seeds}
        seconds[value] = float(np.mean([fold.train_seconds for seed in seeds for fold in seed.folds]))
        tables, own = class_tables(results, {wanted: list(range(len(seeds)))}, "separated", METRIC)
        if tables and (not classes or np.array_equal(own, shares)):  # other data have other classes
            classes[value], shares = dict(zip(scores[value], tables[wanted], strict=True)), own
    return Curve(name, scores, seconds, classes, shares)
