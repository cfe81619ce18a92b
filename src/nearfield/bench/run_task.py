"""One task of a bench: a network for every fold, then what the database keeps of them.

Axes: Q queries, D embedding dims.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.bench.database import Queries
from nearfield.bench.plan import Outcome, Task
from nearfield.bench.protocols import Protocol
from nearfield.config import RunConfig, load_config
from nearfield.data import Dataset
from nearfield.errors import InputError, RunError
from nearfield.metrics.dataset_scores import score_test
from nearfield.training.build import distance_of
from nearfield.training.loop import Diverged, TrainingWarning, train
from nearfield.training.run_folder import RunFolder

Stop = Callable[[], bool]
Share = Callable[[float], None]  # is told the share of the task that is done


def run_task(
    task: Task, protocol: Protocol, dataset: Dataset, folder: Path, stop: Stop, share: Share
) -> tuple[Outcome, Queries]:
    """Train every fold in a folder of its own, resuming one that was interrupted; the outcome and the queries' scores.

    A trial is never tested. It ends early when its first folds are below the task's bounds, or it cannot be trained.
    """
    tested = task.kind != "trial"
    runs = protocol.runs(task.run)[: None if tested else protocol.trial_folds]
    folds: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        try:
            folds.append(_train_fold(number, len(runs), run, dataset, fold_folder(folder, number), stop, share, tested))
        except (InputError, RunError) as error:
            if tested or not _is_the_settings_fault(error):
                raise
            return {"state": "pruned", "folds": folds, "error": str(error)}, {}
        if number < len(task.bounds) and _value(folds, protocol) < task.bounds[number]:
            return {"state": "pruned", "folds": folds}, {}
    outcome: Outcome = {"state": "complete", "folds": folds}
    if not tested:
        return outcome, {}
    queries = {
        (f"fold {number}", metric): values
        for number in range(len(runs))
        for metric, values in query_scores(fold_folder(folder, number)).items()
    }
    outcome["separated"] = {metric: fmean(fold["test"][metric] for fold in folds) for metric in folds[0]["test"]}
    outcome["concatenated"] = None
    if protocol.concatenate and len(runs) > 1:
        joined = joined_embeddings(folder, len(runs))
        outcome["concatenated"], scores = score_test(
            dataset, joined, distance=distance_of(task.run), metrics=task.run.metrics, ks=task.run.ks
        )
        queries |= {("concatenated", metric): values for metric, values in scores.items()}
    return outcome, queries


def _train_fold(
    number: int, of: int, run: RunConfig, dataset: Dataset, folder: Path, stop: Stop, share: Share, tested: bool
) -> dict[str, Any]:
    """Train one network; what is kept of it."""
    _clear_another(run, folder)

    def report(step: int, steps: int, latest: dict[str, float]) -> None:
        share((number + step / steps) / of)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)  # they are in the folder's log
        result = train(run, folder, report, stop, dataset=dataset, test=tested)
    records = RunFolder(folder).records()
    return {
        "fold": number,
        **{key: result[key] for key in ("fit_classes", "val_classes", "best_step", "train_seconds")},
        "best_val": result["val"],
        "val": _curve(records, "val_"),
        "oracle": _curve(records, "test_"),
        "test": result.get("test"),
    }


def _curve(records: list[dict[str, Any]], prefix: str) -> list[tuple[int, dict[str, float]]]:
    found = (
        (record["step"], {key.removeprefix(prefix): value for key, value in record.items() if key.startswith(prefix)})
        for record in records
    )
    return [(step, scores) for step, scores in found if scores]


def _value(folds: list[dict[str, Any]], protocol: Protocol) -> float:
    return fmean(fold["best_val"][protocol.select_by] for fold in folds)


def _is_the_settings_fault(error: Exception) -> bool:
    """Whether the same setting would fail again: the loss diverged, or a parameter is out of its range."""
    return isinstance(error, InputError | Diverged)


def _clear_another(run: RunConfig, folder: Path) -> None:
    """Delete the folder if it holds a run with another configuration."""
    known = folder / "config.toml"
    if not known.exists():
        return
    known.read_bytes()  # a disk that cannot be read is no reason to delete anything: OSError
    try:
        same = load_config(RunConfig, known).digest() == run.digest()
    except InputError:
        same = False
    if not same:
        shutil.rmtree(folder, ignore_errors=True)


def fold_folder(folder: Path, number: int) -> Path:
    """The run folder of a fold inside a task's folder."""
    return folder / f"fold-{number}"


def query_scores(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Test scores of every query in a run folder, by metric."""
    from safetensors.numpy import load_file

    found = load_file(folder / "test.safetensors")
    return {name.removeprefix("score."): values for name, values in found.items() if name.startswith("score.")}


def joined_embeddings(folder: Path, folds: int) -> NDArray[np.float32]:
    """Test embeddings (Q, D) of a task: of its one network as they are; of several at length 1, side by side."""
    from safetensors.numpy import load_file

    found = [load_file(fold_folder(folder, number) / "test.safetensors")["embeddings"] for number in range(folds)]
    parts = [embeddings.astype(np.float32) for embeddings in found]
    return parts[0] if folds == 1 else _unit(np.concatenate([_unit(part) for part in parts], axis=1))


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.asarray(vectors / lengths, dtype=np.float32)
