"""Invented results of a bench on real images, complete enough for every part of a report.

Axes: S seeds, Q test images, D dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield import losses
from nearfield.bench.protocols import protocol
from nearfield.bench.results import BenchResults, Fold, MethodResult, Part, Scores, Seed, Trial
from nearfield.config import BenchConfig, build_config
from nearfield.data import Dataset
from nearfield.losses.registry import Whole
from nearfield.metrics import retrieval_metrics

STEPS = tuple(range(0, 1001, 100))
CHOSEN = 700
CONCATENATED = 0.04  # what it adds to a score


@dataclass(frozen=True)
class Shape:
    """How large the bench is."""

    seeds: int = 5
    folds: int = 4
    trials: int = 8
    dims: int = 32
    variants: tuple[str, ...] = ("untuned", "dim64", "dim512")


def invent(
    dataset: Dataset, names: Sequence[str], shape: Shape | None = None, base: NDArray[Any] | None = None, seed: int = 0
) -> BenchResults:
    """Results of the methods `names`, each worse than the last; embeddings are `base` (Q, D) or classes, and noise."""
    shape = shape or Shape()
    rng = np.random.default_rng(seed)
    rows = dataset.test_rows()
    labels = dataset.labels[rows]
    if base is None:
        base = rng.normal(size=(len(dataset.class_names), shape.dims))[labels] + rng.normal(
            size=(len(rows), shape.dims)
        )
    base = base / np.linalg.norm(base, axis=1, keepdims=True)
    embeddings, queries, methods = {}, {}, []
    for number, name in enumerate(names):
        noise = rng.normal(size=base.shape) / np.sqrt(base.shape[1])
        found = (base + (0.15 + 0.9 * number / len(names)) * noise).astype(np.float16)
        scores, each = retrieval_metrics(found, labels, metrics=("recall", "r_precision", "map_at_r"), per_query=True)
        scores["nmi"] = 0.3 + 0.6 * scores["r_precision"]  # k-means would take longer than all of the rest
        embeddings[name], queries[name] = found, each.scores["map@r"].numpy()
        methods.append(_method(name, scores, shape, rng))

    def per_query(label: str, metric: str, part: Part) -> NDArray[Any]:
        shifts = [s.separated["map@r"] for m in methods if m.label == label for s in m.seeds]
        shifts = [value - shifts[0] for value in shifts]
        return np.clip(np.stack([queries[label] + shift for shift in shifts]), 0, 1)

    kind = protocol("reality-check" if shape.folds == 4 else "classic")
    config = build_config(BenchConfig, {
        "protocol": kind.name, "trials": max(1, shape.trials), "seeds": list(range(shape.seeds)),
        "variants": list(shape.variants),
        "methods": [{"name": name} for name in names if name in losses.names()] or [{"name": "triplet"}],
        "run": {"data": {"name": dataset.name}, "model": {"dim": shape.dims}},
    })  # fmt: skip
    return BenchResults(
        config=config.model_dump(mode="json"),
        digest=config.digest(),
        protocol={"digest": kind.digest(), **kind.model_dump(mode="json"), "description": kind.description},
        data=dataset.summary(),
        environment={"nearfield": "0.1.0", "commit": "0123456789ab", "python": "3.11.7", "torch": "2.13.0", "cores": 2},
        split="f" * 64,
        baselines={
            "untrained network": {"map@r": 0.05, "recall@1": 0.3},
            "raw pixels": {"map@r": 0.03, "recall@1": 0.25},
        },
        methods=tuple(methods),
        missing=(f"{names[0]} dim512 seed 1", f"{names[0]} dim512 seed 2"),
        queries=per_query,
        embeddings=embeddings.get,
    )


def _method(name: str, truth: Scores, shape: Shape, rng: np.random.Generator) -> MethodResult:
    trials = tuple(_trial(name, number, truth, shape, rng) for number in range(shape.trials))
    complete = [trial for trial in trials if trial.value is not None]
    best = max(complete, key=lambda trial: trial.value or 0.0) if complete else None
    variants = {
        key: tuple(_seed(s, _shifted(truth, rng.normal() * 0.02), shape, rng) for s in range(2))
        for key in shape.variants
    }
    unequal = ("trained in float32 alone",) if name == "histogram" else ()
    seeds = tuple(_seed(number, truth, shape, rng) for number in range(shape.seeds))
    return MethodResult(name, name, best.params if best and best.number else {}, trials, seeds, variants, unequal)


def _shifted(scores: Scores, by: float) -> Scores:
    return {key: min(1.0, max(0.0, value + by)) for key, value in scores.items()}


def _seed(number: int, truth: Scores, shape: Shape, rng: np.random.Generator) -> Seed:
    own = _shifted(truth, rng.normal() * 0.004)
    folds = tuple(_fold(i, _shifted(own, rng.normal() * 0.002), rng) for i in range(shape.folds))
    tests = [fold.test or {} for fold in folds]
    mean = {key: float(np.mean([test[key] for test in tests])) for key in truth}
    return Seed(number, folds, mean, _shifted(mean, CONCATENATED) if shape.folds > 1 else None)


def _fold(number: int, test: Scores, rng: np.random.Generator) -> Fold:
    rise = [1 - np.exp(-step / 250) - 0.00012 * max(0, step - CHOSEN) for step in STEPS]
    val = tuple(
        (step, _shifted(_scaled(test, 0.35 + 0.8 * r), rng.normal() * 0.004))
        for step, r in zip(STEPS, rise, strict=True)
    )
    oracle = tuple(
        (step, _shifted(_scaled(test, 0.4 + 0.6 * r), rng.normal() * 0.003))
        for step, r in zip(STEPS, rise, strict=True)
    )
    return Fold(number, 75, 25, CHOSEN, 30 + 10 * float(rng.random()), val, oracle, test)


def _scaled(scores: Scores, by: float) -> Scores:
    return {key: value * by for key, value in scores.items()}


def _trial(name: str, number: int, truth: Scores, shape: Shape, rng: np.random.Generator) -> Trial:
    space = losses.method(name).space if name in losses.names() else {}
    pruned = number > 3 and number % 3 == 0
    params: dict[str, Any] = {"optimizer.lr": float(f"{2e-3 * 30 ** rng.uniform(-1, 1):.3g}")}
    for key, one in space.items():
        value = rng.integers(one.low, one.high) if isinstance(one, Whole) else rng.uniform(one.low, one.high)
        params[f"method.params.{key}"] = int(value) if isinstance(one, Whole) else float(f"{value:.4g}")
    value = truth["map@r"] * (1.1 - 0.1 * abs(np.log10(params["optimizer.lr"] / 3e-3))) + rng.normal() * 0.005
    count = 1 if pruned else shape.folds
    folds = tuple(Fold(i, 75, 25, CHOSEN, 30.0, ((CHOSEN, {"map@r": float(value)}),), (), None) for i in range(count))
    return Trial(number, params, folds, None if pruned else float(value), "pruned" if pruned else "complete")
