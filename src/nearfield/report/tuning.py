"""Learning curves and hyper-parameter searches, as data for the page.

Axes: S seeds, T steps, N trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nearfield.bench.results import BenchResults, Fold, MethodResult, Scores, Trial
from nearfield.errors import NearfieldError
from nearfield.losses.registry import Real, Whole, method

FEWEST = 4  # complete trials needed for an importance
Curve = tuple[tuple[int, Scores], ...]


def curves(results: BenchResults) -> list[dict[str, Any]]:
    """For each method: steps, and by metric the mean over seeds with the lowest and the highest seed."""
    found = []
    for number, each in enumerate(results.methods):
        val = _bands([[fold.val for fold in seed.folds] for seed in each.seeds])
        if not val["steps"]:
            continue
        oracle = _bands([[fold.oracle for fold in seed.folds] for seed in each.seeds])
        chosen = [fold.best_step for seed in each.seeds for fold in seed.folds]
        found.append({"method": number, "val": val, "oracle": oracle, "chosen": float(np.median(chosen))})
    return found


def _bands(seeds: Sequence[Sequence[Curve]]) -> dict[str, Any]:
    """Mean, lowest and highest seed at the steps that all networks share; folds are averaged within their seed."""
    tables = [[dict(curve) for curve in folds] for folds in seeds]
    every = [table for folds in tables for table in folds]
    steps = sorted(set.intersection(*(set(table) for table in every))) if every else []
    metrics = sorted(set.intersection(*(set(table[step]) for table in every for step in steps))) if steps else []
    bands = {}
    for metric in metrics:
        values = np.array([np.mean([[t[step][metric] for step in steps] for t in folds], axis=0) for folds in tables])
        bands[metric] = [
            column.round(5).tolist() for column in (values.mean(0), values.min(0), values.max(0))
        ]  # T each
    return {"steps": steps, "bands": bands}


def searches(results: BenchResults) -> list[dict[str, Any]]:
    """For each method with a search: its trials, and the importance of each parameter."""
    return [_search(number, each) for number, each in enumerate(results.methods) if len(each.trials) > 1]


def _search(number: int, each: MethodResult) -> dict[str, Any]:
    keys = sorted({key for trial in each.trials for key in trial.params})
    complete = [trial for trial in each.trials if trial.value is not None]
    best = max(complete, key=lambda trial: (trial.value, -trial.number)).number if complete else None
    return {
        "method": number,
        "trials": [_trial(trial) for trial in each.trials],
        "params": [{"key": key, "log": _is_log(each, key), "importance": importance(complete, key)} for key in keys],
        "best": best,
        "complete": len(complete),
        "chance": chance_level(len(complete)),
    }


def _trial(trial: Trial) -> dict[str, Any]:
    seconds = sum(fold.train_seconds for fold in trial.folds)
    facts = {"number": trial.number, "params": trial.params, "value": trial.value, "state": trial.state}
    return {**facts, "folds": len(trial.folds), "seconds": round(seconds, 1), "reached": _reached(trial.folds)}


def _reached(folds: Iterable[Fold]) -> float | None:
    """Mean best MAP@R of the finished folds of a pruned trial, its place in the plot."""
    best = [max(s["map@r"] for _, s in fold.val) for fold in folds if fold.val and "map@r" in fold.val[0][1]]
    return float(np.mean(best)) if best else None


def _is_log(each: MethodResult, key: str) -> bool:
    """Whether a parameter is searched on a log scale: as its method declares; learning rates always."""
    if key.startswith("optimizer."):
        return True
    try:
        base = {k: v for k, v in each.params.items() if k == "method.params.base"}
        searched = method(each.name).searched({k.rpartition(".")[2]: v for k, v in base.items()})
    except NearfieldError:  # a user's method that is not registered here
        return False
    space, _ = searched.get(key.removeprefix("method.params."), (None, None))
    return isinstance(space, Real | Whole) and space.log


def importance(trials: Sequence[Trial], key: str) -> float | None:
    """|Spearman's rho| between a parameter and the validation score over complete trials; None if undefined."""
    from scipy import stats

    pairs = [(trial.params.get(key), trial.value) for trial in trials if trial.value is not None]
    numbers = [(float(a), b) for a, b in pairs if isinstance(a, int | float) and not isinstance(a, bool)]
    if len(numbers) < FEWEST:
        return None
    columns = list(zip(*numbers, strict=True))
    if any(np.ptp(column) == 0 for column in columns):
        return None
    return abs(float(stats.spearmanr(*columns).statistic))


def chance_level(n: int) -> float | None:
    """The 95 % quantile of |rho| over n trials if the parameter has no influence (t approximation)."""
    from scipy import stats

    if n < FEWEST:
        return None
    t = float(stats.t.ppf(0.975, n - 2))
    return t / math.sqrt(n - 2 + t * t)
