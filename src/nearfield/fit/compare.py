"""Train methods under equal conditions, and choose by validation classes; the test classes choose nothing.

Axes: N images, D dims.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nearfield.config import DataConfig, RunConfig
from nearfield.data import Dataset
from nearfield.data.splits import held_out
from nearfield.fit.approaches import METHODS, Approach, with_method
from nearfield.fit.work import Work
from nearfield.metrics import retrieval_metrics
from nearfield.progress import reported
from nearfield.samplers import SamplerWarning
from nearfield.training.loop import Diverged, Interrupted, TrainingWarning, train

PACE = 4  # steps of the training that measures how long one takes
Say = Callable[[str], None]


@dataclass(frozen=True)
class Final:
    """A method that an approach was trained with for the test."""

    approach: Approach
    method: str
    run: str  # name of its folder
    val: float  # MAP@R on the validation classes


def steps_for(work: Work, approach: Approach, runs: int) -> int:
    """Steps of each of `runs` trainings, so that they take the approach's share of the time left; 0: too few."""

    def choose() -> int:
        fewest, most = approach.steps
        count = min(most, int((approach.share * work.left - pace.around(approach, runs)) / runs / max(pace.step, 1e-9)))
        return count if count >= fewest else 0

    pace = pace_of(work, approach)
    return work.decide(f"{approach.name} steps", choose)


def minutes_for(work: Work, approach: Approach, runs: int) -> int:
    """The budget that would have allowed the fewest steps."""
    pace = pace_of(work, approach)
    seconds = pace.around(approach, runs) + runs * approach.steps[0] * pace.step
    return int((work.spent + 1.1 * seconds / approach.share) / 60) + 1


class Pace(NamedTuple):
    """How long a training takes, in seconds."""

    step: float
    first: float  # everything but the steps: the first training of a fold prepares its data
    later: float  # the same of later ones

    def around(self, approach: Approach, runs: int) -> float:
        """Everything but the steps, of `runs` trainings; each validates six times instead of twice."""
        return (approach.folds + 1) * self.first + 2 * runs * self.later


def pace_of(work: Work, approach: Approach) -> Pace:
    """Measured by two trainings of a few steps."""

    def measure() -> list[float]:
        found = [_timed(work, approach, seed) for seed in (0, 1)]
        return [found[1][0], found[0][1], found[1][1]]

    return Pace(*work.decide(f"{approach.name} pace", measure))


def _timed(work: Work, approach: Approach, seed: int) -> tuple[float, float]:
    """Seconds of a step, and of everything else."""
    begun = time.monotonic()
    config = with_method(approach, METHODS[0], PACE).model_copy(update={"seed": seed})
    found = train_in(work, f"{approach.name}-pace-{seed}", config, approach.dataset)
    spent = time.monotonic() - begun
    inside = min(found["train_seconds"], spent) if isinstance(found, dict) else spent
    return inside / PACE, spent - inside


def choose_method(work: Work, approach: Approach, steps: int, say: Say) -> tuple[str | None, list[dict[str, Any]]]:
    """The method with the highest mean MAP@R on the validation classes of all folds, and what was tried.

    Fold by fold, so that all methods have seen the same when time runs out; a method that failed is not chosen.
    """
    scores: dict[str, list[float]] = {method: [] for method in METHODS}
    notes, seconds = dict.fromkeys(METHODS, ""), dict.fromkeys(METHODS, 0.0)
    for fold in range(approach.folds):
        for method in METHODS:
            if notes[method]:
                continue
            config = with_method(approach, method, steps, fold)
            found = train_in(work, f"{approach.name}-{method}-{fold}", config, approach.dataset)
            if isinstance(found, str):
                notes[method] = found
                continue
            scores[method].append(found["val"]["map@r"])
            seconds[method] += found["train_seconds"]
            say(f"{approach.words}, {method}, fold {fold + 1} of {approach.folds}: MAP@R {scores[method][-1]:.3f}")
    tried: list[dict[str, Any]] = [
        {
            "approach": approach.words,
            "method": method,
            "steps": steps,
            "folds": len(scores[method]),
            "map@r": float(np.mean(scores[method])) if scores[method] else None,
            "seconds": round(seconds[method], 1),
            "note": notes[method],
        }
        for method in METHODS
    ]
    complete = [row for row in tried if not row["note"]]
    best = max(complete, key=lambda row: float(row["map@r"]), default=None)
    return (None if best is None else best["method"]), tried


def train_final(work: Work, approach: Approach, method: str, steps: int, say: Say) -> Final | str:
    """Train a method on the training classes but the validation classes, which choose its step; or why not."""
    name = f"{approach.name}-{method}-final"
    found = train_in(work, name, with_method(approach, method, steps), approach.dataset, test=True)
    if isinstance(found, str):
        return found
    score = float(found["val"]["map@r"])
    say(f"{approach.words}, {method}, final: validation MAP@R {score:.3f}")
    return Final(approach, method, name, score)


def train_in(work: Work, name: str, config: RunConfig, dataset: Dataset, test: bool = False) -> dict[str, Any] | str:
    """The result of a training, resumed or finished before; or why there is none."""
    with warnings.catch_warnings(), reported(f"Training {name}") as bar:
        warnings.simplefilter("ignore", TrainingWarning)  # the report says whether it was worth it
        warnings.simplefilter("ignore", SamplerWarning)
        try:
            return train(
                config,
                work.run(name),
                lambda step, steps, latest: bar(step, steps),
                work.is_late,
                dataset=dataset,
                test=test,
            )
        except Interrupted:
            return "stopped: out of time"
        except Diverged as error:
            return str(error)


def validation_score(dataset: Dataset, config: DataConfig, embeddings: npt.NDArray[Any]) -> float:
    """MAP@R of embeddings (N, D) on the validation classes of a run."""
    rows = held_out(dataset, config)[1]
    return retrieval_metrics(embeddings[rows], dataset.labels[rows], metrics=("map_at_r",))["map@r"]
