"""One run: what it works with, how its model is scored, and what it writes when it is finished.

Axes: D embedding dims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nearfield.config import RunConfig
from nearfield.data import Dataset
from nearfield.data.input_spec import input_of
from nearfield.errors import InputError, RunError
from nearfield.metrics.dataset_scores import score_test
from nearfield.metrics.remembered import remembered_metrics
from nearfield.models import EmbeddingModel, embed
from nearfield.models.activations import digest_of
from nearfield.models.build import weights_file
from nearfield.models.pretrained import sha256_of
from nearfield.training.batches import Parts, Supply, split
from nearfield.training.build import distance_of
from nearfield.training.checkpoint import copy_weights
from nearfield.training.distributed import Place, gathered, share_of
from nearfield.training.run_folder import ANOTHER_FOLDER, RunFolder

METRICS = ("recall", "r_precision", "map_at_r")
START = "start_test_"  # prefix of the test scores before the first step, in the first record
MOST_STARTS = 4
_starts: dict[
    str, tuple[dict[str, float], dict[str, float]]
] = {}  # scores of this process's starts, by what they are of
Progress = Callable[[int, int, dict[str, float]], None]  # (step, steps, latest numbers)
Identity = Mapping[str, str | None]  # fingerprints of data, split and pretrained weights
Track = Callable[[int, Mapping[str, Any]], None]  # (step, its record)


class Interrupted(BaseException):
    """The run was asked to stop; its checkpoint is written."""


class Run(NamedTuple):
    """Everything that a run works with."""

    config: RunConfig
    folder: RunFolder
    dataset: Dataset
    place: Place
    progress: Progress
    stop: Callable[[], bool]
    test: bool
    track: Track
    identity: Identity

    @property
    def ks(self) -> tuple[int, ...]:
        """K of the recall@K that are scored."""
        return self.config.ks or self.dataset.ks

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes."""
        return self.place.rank == 0

    def locked(self, timeout: float = 10.0) -> AbstractContextManager[None]:
        """Lock the folder for all processes of this run."""
        return self.folder.locked(timeout) if self.writes else nullcontext()


def identity_of(config: RunConfig, dataset: Dataset) -> Identity:
    """Fingerprints of what must not change while a run is unfinished; None for pretrained weights that are not here."""
    try:
        path = weights_file(config.model)
        pretrained = None if path is None else sha256_of(path)
    except (OSError, InputError):
        pretrained = None  # a finished run needs the file no longer; an unfinished one fails where it loads it
    return {"data": dataset.fingerprint, "split": split(dataset, config.data).fingerprint, "pretrained": pretrained}


def result_of(run: Run) -> dict[str, Any] | None:
    """The result in the run's folder, None while it is not finished; RunError if the folder holds another run."""
    run.folder.require_same(run.config, run.identity)
    found = run.folder.result
    if found is not None and run.test and "test" not in found:
        raise RunError(f"{run.folder.path} holds a run that was not tested. {ANOTHER_FOLDER}")
    return found


def facts_of(run: Run, parts: Parts, model: EmbeddingModel | None = None) -> dict[str, Any]:
    """What the result depends on besides the configuration and the versions."""
    return {
        "data": run.dataset.fingerprint,
        "split": parts.fingerprint,
        "input": input_of(run.dataset, run.config.data).model_dump(mode="json"),
        "pretrained": model.pretrained._asdict() if model and model.pretrained else None,
        "processes": run.place.world_size,
        "device": run.place.device.type,
    }


def validate(run: Run, model: nn.Module, supply: Supply) -> dict[str, float]:
    """Retrieval scores on the validation classes, each image a query against all others."""
    part = supply.parts.val
    embeddings, labels = _embed(run, model, supply, part), supply.labels[part]
    return remembered_metrics(embeddings, labels, METRICS, ks=run.ks, distance=distance_of(run.config))[0]


def score_start(run: Run, model: nn.Module, supply: Supply) -> tuple[dict[str, float], dict[str, float]]:
    """Validation scores before the first step, and test scores for comparison with the end, if the run is tested.

    Trials and seeds that start from one network have them in common: a process computes them once. Of several processes
    each embeds its share, so that they must do it together.
    """
    alone = run.place.world_size == 1
    told = f"{supply.name_of_fit} {distance_of(run.config)} {run.ks} {run.test}"
    found = _starts.get(key := digest_of([model], told)) if alone else None
    if found is None:
        found = validate(run, model, supply), score_on_test(run, model, supply, METRICS)[1] if run.test else {}
        while len(_starts) >= MOST_STARTS:
            del _starts[next(iter(_starts))]
        if alone:
            _starts[key] = found
    return dict(found[0]), dict(found[1])


def score_on_test(
    run: Run, model: nn.Module, supply: Supply, metrics: tuple[str, ...] | None = None
) -> tuple[Tensor, dict[str, float], dict[str, NDArray[np.float32]]]:
    """Embeddings (N, D) of the test images, their scores under the dataset's protocol, and the scores per query."""
    embeddings = _embed(run, model, supply, supply.parts.test).cpu()
    wanted = metrics or run.config.metrics
    return embeddings, *score_test(run.dataset, embeddings, distance_of(run.config), metrics=wanted, ks=run.ks)


def finish(
    run: Run, supply: Supply, model: nn.Module, best_step: int, val: dict[str, float], seconds: float
) -> dict[str, Any]:
    """Test the chosen weights and write the result."""
    config, parts = run.config, supply.parts
    result: dict[str, Any] = {
        "method": config.method.name,
        "seed": config.seed,
        "config": config.digest(),
        "split": parts.fingerprint,
        "fit_classes": parts.fit_classes,
        "val_classes": parts.val_classes,
        "best_step": best_step,
        "steps": config.steps,
        "train_seconds": round(seconds, 3),
        "val": val,
    }
    if run.writes and (start := _start_of(run)):
        result["start"] = start
    arrays: dict[str, Tensor] = {}
    if run.test:
        embeddings, result["test"], queries = score_on_test(run, model, supply)
        arrays = {f"score.{name}": torch.from_numpy(values) for name, values in queries.items()}
        arrays["embeddings"] = embeddings.half()
    if run.writes:
        run.folder.finish(copy_weights(model), arrays, result)
    return result


def _start_of(run: Run) -> dict[str, dict[str, float]]:
    """Validation and test scores before the first step; none for an ensemble, whose members have their own."""
    first = next((record for record in run.folder.records() if record["step"] == 0 and "finding" not in record), {})
    parts = {"val": "val_", "test": START}
    found = {
        part: {key.removeprefix(prefix): value for key, value in first.items() if key.startswith(prefix)}
        for part, prefix in parts.items()
    }
    return {part: scores for part, scores in found.items() if scores}


def _embed(run: Run, model: nn.Module, supply: Supply, part: Tensor) -> Tensor:
    """Embeddings of a part, each process having computed its share."""
    return gathered(embed(model, supply.rows(part[share_of(len(part), run.place)]), batch_size=256))
