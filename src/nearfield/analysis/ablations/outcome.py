"""The outcome of an ablation: a curve for each method over the values of the axis. Scores lie in [0, 1]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearfield.analysis.statistics import Interval, mean_interval
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

    def interval(self, value: str, metric: str = METRIC) -> Interval:
        """Mean and 95 % t-interval over seeds."""
        return mean_interval([scores[metric] for scores in self.scores[value].values()])

    def table(self, metric: str = METRIC) -> dict[str, list[float]]:
        """Value -> scores of the seeds that all values share."""
        shared = set.intersection(*(set(seeds) for seeds in self.scores.values()))
        return {v: [seeds[seed][metric] for seed in sorted(shared)] for v, seeds in self.scores.items()}


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
    for value, results in found.items():
        method = benches[value].methods[index]
        wanted = label(method.name, method.params)
        seeds = next((each.seeds for each in results.methods if each.label == wanted), ())
        if seeds:
            scores[value] = {seed.seed: seed.separated for seed in seeds}
            seconds[value] = float(np.mean([fold.train_seconds for seed in seeds for fold in seed.folds]))
    return Curve(name, scores, seconds)
