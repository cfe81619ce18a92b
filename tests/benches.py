"""Invented results of a bench whose truth is known: what `standings` and `ledger` must find again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.bench.results import BenchResults, Floats, Fold, MethodResult, Part, Scores, Seed, Trial
from nearfield.errors import RunError

STEPS = tuple(range(100, 1100, 100))
CHOSEN = 500  # the step that validation chooses everywhere
CONCATENATED = 0.05  # what it adds to a score


@dataclass(frozen=True)
class Noise:
    """Standard deviations of what a score is made of besides the truth."""

    seed: float = 0.004
    fold: float = 0.002  # of a fold within its seed
    query: float = 0.05  # how hard a query is, the same for every method, seed and fold
    rest: float = 0.02


def fake_results(
    methods: Mapping[str, float],
    seeds: int | Mapping[str, Iterable[int]] = 5,
    folds: int = 4,
    trials: int = 3,
    queries: int = 40,
    noise: Noise | None = None,
    variants: Mapping[str, Mapping[str, float]] | None = None,
    peaks: Mapping[str, float] | None = None,
    recall: Mapping[str, float] | None = None,
    rng: int | np.random.Generator = 0,
) -> BenchResults:
    """Results around true scores `methods` (label -> MAP@R).

    `variants` are true scores by variant and label, over the same seeds. `peaks` are what the best test step adds to
    the chosen one (label -> gain): half at step 300 in all networks, the rest at a step of each network's own. `recall`
    is R@1 without noise, by default MAP@R + 0.3.
    """
    rng = np.random.default_rng(rng)
    spread = noise or Noise()
    difficulty = rng.normal(size=queries) * spread.query
    kept: dict[tuple[str, str], list[NDArray[np.float64]]] = {}

    def seed_of(label: str, number: int, truth: float, peak: float | None, keep: bool) -> Seed:
        levels = truth + rng.normal() * spread.seed + rng.normal(size=folds) * spread.fold
        cells = levels[:, None] + difficulty + rng.normal(size=(folds, queries)) * spread.rest  # (F, Q)
        found = [_scores(float(row.mean()), label, recall) for row in cells]
        mean = _scores(float(cells.mean()), label, recall)
        joined = {key: value + CONCATENATED for key, value in mean.items()}
        if keep:
            kept.setdefault((label, "separated"), []).append(cells.mean(axis=0))
            kept.setdefault((label, "concatenated"), []).append(cells.mean(axis=0) + CONCATENATED)
        networks = tuple(_fold(i, found[i], peak, rng) for i in range(folds))
        return Seed(number, networks, mean, joined if folds > 1 else None)

    def method(label: str, truth: float) -> MethodResult:
        numbers = tuple(range(seeds) if isinstance(seeds, int) else seeds.get(label, ()))
        peak = (peaks or {}).get(label)
        tried = tuple(_trial(i, truth, folds, trials) for i in range(trials))
        repeated = tuple(seed_of(label, number, truth, peak, True) for number in numbers)
        sinful = {
            name: tuple(seed_of(label, number, truths[label], None, False) for number in numbers)
            for name, truths in (variants or {}).items()
            if label in truths
        }
        return MethodResult(label, label, {"optimizer.lr": 1e-3} if trials else {}, tried, repeated, sinful, ())

    found = tuple(method(label, truth) for label, truth in methods.items())

    def per_query(label: str, metric: str, part: Part) -> Floats:
        if metric != "map@r":
            raise RunError(f"no {metric} of single queries")
        return np.stack(kept[label, part])

    return BenchResults(
        config={"trials": trials},
        digest="invented",
        protocol={"name": "reality-check"},
        data={"name": "invented", "difficulty": float(difficulty.mean())},  # of these queries, on average
        environment={},
        split="invented",
        baselines={"untrained network": {"map@r": 0.05, "recall@1": 0.2}, "raw pixels": {"map@r": 0.02}},
        methods=found,
        missing=(),
        queries=per_query,
        embeddings=lambda label: None,
    )


def _scores(value: float, label: str, recall: Mapping[str, float] | None) -> Scores:
    return {
        "map@r": value,
        "r_precision": value + 0.1,
        "recall@1": recall[label] if recall else value + 0.3,
        "nmi": 0.6,
    }


def _fold(number: int, test: Scores, peak: float | None, rng: np.random.Generator) -> Fold:
    own = int(rng.choice([step for step in STEPS if step not in (300, CHOSEN)]))

    def at(step: int) -> Scores:
        lift = 0.0 if peak is None or step == CHOSEN else peak if step == own else peak / 2 if step == 300 else -0.01
        return {key: value + lift for key, value in test.items()}

    curve = tuple((step, {"map@r": 0.5 - abs(step - CHOSEN) / 1e4}) for step in STEPS)
    oracle = tuple((step, at(step)) for step in STEPS) if peak is not None else ()
    return Fold(number, 75, 25, CHOSEN, 2.0, curve, oracle, test)


def _trial(number: int, truth: float, folds: int, trials: int) -> Trial:
    """The second trial is the best, the last of three or more is pruned after one fold."""
    pruned = trials > 2 and number == trials - 1
    value = None if pruned else truth - 0.01 * abs(number - 1)
    networks = tuple(Fold(i, 75, 25, CHOSEN, 1.0, (), (), None) for i in range(1 if pruned else folds))
    params: dict[str, Any] = {"optimizer.lr": 1e-3 * (1 + number)}
    return Trial(number, params, networks, value, "pruned" if pruned else "complete")
