"""Was the budget enough? Of the search: how the best score grows with trials. Of training: what twice the steps bring.

A run whose rates fall towards 0 is nearly always best at its last step, however long it is, so that its last step says
nothing about its budget: only longer runs do (the variant "longer" of a bench). At a constant rate the last step does.

Axes: N trials.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearfield.bench.results import BenchResults, Fold, MethodResult, Seed
from nearfield.config import OptimizerConfig, leaves
from nearfield.errors import InputError

NOISE = 0.005  # of a validation score where there are no two seeds to measure it by
LEAST = 0.001  # a rise that matters, however small the noise: a tenth of a point
NOT_EXHAUSTED = "search not exhausted"
STILL_LEARNING = "still learning"
NOT_MEASURED = 'Whether more steps would help was not measured; `variants = ["longer"]` measures it'


@dataclass(frozen=True)
class Effort:
    """What a method's budget bought."""

    label: str
    expected: tuple[float, ...]  # best validation score to expect of 1, 2, ... trials; empty without a search
    rise: float  # of it between half of the trials and all of them
    noise: float  # standard deviation of the validation score between seeds
    last_steps: float  # share of the networks whose chosen step is the last one
    seconds: float  # of training one network of the chosen setting, on average
    longer: float | None  # what twice the steps add to the validation score of the same seeds; None: not run
    annealed: bool  # whether the rates fall during a run

    @property
    def still_learning(self) -> bool | None:
        """Whether more steps would help; None if nothing tells."""
        if self.longer is not None:
            return self.longer > max(self.noise, LEAST)
        return None if self.annealed else self.last_steps > 0.5

    @property
    def flags(self) -> tuple[str, ...]:
        """What a verdict against this method must mention."""
        found = [NOT_EXHAUSTED] if self.rise > max(self.noise, LEAST) else []
        return tuple([*found, STILL_LEARNING] if self.still_learning else found)


def expected_best(values: ArrayLike) -> NDArray[np.float64]:
    """E[max] of 1, ..., N values drawn from these N with replacement (Dodge et al., EMNLP 2019, Eq. 7).

    sum_i v_(i) ((i / N)^n - ((i - 1) / N)^n). It is exact for a random search; one that learns from earlier trials
    does better than its own curve says.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if ordered.ndim != 1 or not len(ordered) or not np.isfinite(ordered).all():
        raise InputError(f"values must be a non-empty list of finite scores; got {ordered.tolist()}.")
    size = len(ordered)
    shares = (np.arange(size + 1) / size)[None, :] ** np.arange(1, size + 1)[:, None]  # (N, N + 1)
    return np.asarray(np.diff(shares, axis=1) @ ordered)


def effort(method: MethodResult, select_by: str, annealed: bool = True) -> Effort:
    """What the budget of a method bought; a pruned trial counts as the worst complete one."""
    complete = [trial.value for trial in method.trials if trial.value is not None]
    values = complete + [min(complete)] * (len(method.trials) - len(complete)) if complete else []
    expected = expected_best(values) if len(values) > 1 else np.zeros(0)
    rise = float(expected[-1] - expected[(len(expected) - 1) // 2]) if len(expected) else 0.0
    folds = [fold for seed in method.seeds for fold in seed.folds]
    means, longer = (_by_seed(seeds, select_by) for seeds in (method.seeds, method.variants.get("longer", ())))
    gains = [longer[seed] - means[seed] for seed in longer if seed in means]
    return Effort(
        label=method.label,
        expected=tuple(expected.tolist()),
        rise=rise,
        noise=stdev(means.values()) if len(means) > 1 else NOISE,
        last_steps=fmean(fold.best_step == fold.val[-1][0] for fold in folds) if folds else 0.0,
        seconds=fmean(fold.train_seconds for fold in folds) if folds else 0.0,
        longer=fmean(gains) if gains else None,
        annealed=annealed,
    )


def efforts(results: BenchResults) -> dict[str, Effort]:
    """By method, of those with a finished seed."""
    select_by = str(results.protocol.get("select_by", "map@r"))
    schedule = leaves(results.config).get("run.optimizer.schedule", OptimizerConfig().schedule)
    annealed = schedule != "constant"
    return {method.label: effort(method, select_by, annealed) for method in results.methods if method.seeds}


def budget_lines(results: BenchResults) -> list[str]:
    """Which methods would be better with a larger budget, for all that is known; a verdict against them is weak."""
    found = efforts(results)
    words = {
        NOT_EXHAUSTED: "the best validation score to expect still rises with trials at the end of the search",
        STILL_LEARNING: "twice the steps score higher by more than seeds differ"
        if any(one.longer is not None for one in found.values())
        else "at a constant rate, the last step is the chosen one in most networks",
    }
    lines = []
    for flag, why in words.items():
        names = [label for label, one in found.items() if flag in one.flags]
        if names:
            lines.append(
                f"{flag.capitalize()} ({why}), so verdicts against it hold at this budget only: {', '.join(names)}."
            )
    return [*lines, *([f"{NOT_MEASURED}."] if unmeasured(found.values()) else [])]


def unmeasured(found: Iterable[Effort]) -> bool:
    """Whether of some method nothing tells if more steps would help."""
    return any(one.still_learning is None for one in found)


def _by_seed(seeds: Iterable[Seed], select_by: str) -> dict[int, float]:
    """The best validation score of every seed, mean over folds."""
    return {seed.seed: fmean(_best(fold, select_by) for fold in seed.folds) for seed in seeds}


def _best(fold: Fold, select_by: str) -> float:
    return max(scores[select_by] for _, scores in fold.val)


def weakened(sentence: str, loser: Effort | None) -> str:
    """A verdict against a method, with what its budget leaves open."""
    if loser is None or not loser.flags:
        return sentence
    return f"{sentence} (at this budget only; {loser.label}: {' and '.join(loser.flags)})"
