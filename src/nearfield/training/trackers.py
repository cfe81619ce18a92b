"""Send a run's numbers to TensorBoard, MLflow and Weights & Biases: all optional, none required.

The run folder's `metrics.jsonl` has the numbers anyway; a tracker that fails is dropped with a warning and training
continues. A resumed run is the same run there, and no step is sent twice:

    tensorboard/     in the run folder; `tensorboard --logdir` on it, or on a folder of runs
    tracking.json    in the run folder; the run's name at MLflow and Weights & Biases, and the last step sent there

Where MLflow and Weights & Biases write is set their own way: MLFLOW_TRACKING_URI, WANDB_MODE and so on.
"""

from __future__ import annotations

import importlib
import json
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from nearfield.config import RunConfig, leaves
from nearfield.errors import InputError, RunError, require_one_of
from nearfield.files import write_json

PROJECT = "nearfield"  # the experiment of MLflow, the project of Weights & Biases


class TrackerWarning(UserWarning):
    """A tracker failed and is no longer written to."""


class Tracker(Protocol):
    """A destination for a run's numbers."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def close(self, finished: bool) -> None: ...


class Trackers:
    """Several trackers as one; as a context manager it reports at the end whether the run finished."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)

    def log(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Send the numbers of a step; other values, such as messages, are left out."""
        wanted = {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.log(step, wanted)
            except Exception as error:  # of any library: an unreachable server must not end the training
                self._drop(name, error)

    def close(self, finished: bool = True) -> None:
        """Send what is left and mark the run as finished or interrupted."""
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.close(finished)
            except Exception as error:
                self._drop(name, error)
        self._trackers.clear()

    def _drop(self, name: str, error: Exception) -> None:
        del self._trackers[name]
        message = f"{name} failed and receives nothing more: {error}. metrics.jsonl has all numbers."
        warnings.warn(message, TrackerWarning, stacklevel=3)

    def __enter__(self) -> Trackers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(finished=kind is None)


def tracker(names: Sequence[str], folder: Path, config: RunConfig) -> Trackers:
    """The trackers called `names` ("tensorboard", "mlflow", "wandb") for the run in `folder`; may be empty.

    InputError says what to install for a missing one, RunError what is wrong with its server.
    """
    for name in names:
        require_one_of("tracker", name, tuple(_KINDS))
    opened: dict[str, Tracker] = {}
    for name in dict.fromkeys(names):
        try:
            opened[name] = _KINDS[name](folder, config)
        except (InputError, RunError):
            raise
        except Exception as error:  # of any library
            raise RunError(f"cannot open the tracker {name}: {error}") from error
    return Trackers(opened)


class _TensorBoard:
    """Event files in the run folder. What an interrupted attempt wrote beyond the first step of this one is deleted."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._module = _need("torch.utils.tensorboard", "tensorboard")
        self._folder, self._config = folder / "tensorboard", config
        self._writer: Any = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._writer is None:
            again = self._folder.exists()
            self._writer = self._module.SummaryWriter(str(self._folder), purge_step=step)
            if not again:
                self._writer.add_text("config", f"```\n{self._config.to_toml()}```")
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self, finished: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class _MLflow:
    """A run of the experiment "nearfield" on the server that MLflow is set up for."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._client = _need("mlflow", "mlflow").MlflowClient()
        known = _read(folder).get("mlflow")
        if known is None:
            experiment = self._client.get_experiment_by_name(PROJECT)
            place = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
            self._run = self._client.create_run(place, run_name=_title(config)).info.run_id
            _remember(folder, "mlflow", {"run": self._run})
            for name, value in leaves(config.model_dump(mode="json")).items():
                self._client.log_param(self._run, name, value)
        else:
            self._run = known["run"]
            self._client.update_run(self._run, status="RUNNING")
        self._sent = self._last_step()

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if step > self._sent:
            for name, value in numbers.items():
                self._client.log_metric(self._run, _mlflow_name(name), value, step=step)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, status="FINISHED" if finished else "KILLED")

    def _last_step(self) -> int:
        names = self._client.get_run(self._run).data.metrics
        histories = [self._client.get_metric_history(self._run, name) for name in names]
        return max((point.step for history in histories for point in history), default=-1)


class _Wandb:
    """A run of the project "nearfield"; without a network, WANDB_MODE=offline keeps it in the run folder."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        wandb = _need("wandb", "wandb")
        known = _read(folder).get("wandb")
        self._folder, self._known = folder, known or {"run": uuid.uuid4().hex[:12], "step": -1}
        self._sent = self._known["step"]
        self._run = wandb.init(
            project=PROJECT,
            name=_title(config),
            id=self._known["run"],
            resume="allow",
            dir=str(folder),
            config=config.model_dump(mode="json"),
        )
        _remember(folder, "wandb", self._known)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if step > self._sent:
            self._run.log(dict(numbers), step=step)
            self._known["step"] = step
            _remember(self._folder, "wandb", self._known)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


_KINDS: dict[str, type[_TensorBoard | _MLflow | _Wandb]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
    "wandb": _Wandb,
}


def _need(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f'the tracker {extra} needs a package that is not installed: pip install "nearfield[{extra}]".'
        ) from error


def _title(config: RunConfig) -> str:
    return f"{config.method.name} on {config.data.name}, seed {config.seed}"


def _mlflow_name(name: str) -> str:
    return name.replace("@", "_at_")  # MLflow does not allow @


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "tracking.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _remember(folder: Path, name: str, known: Mapping[str, Any]) -> None:
    write_json(folder / "tracking.json", {**_read(folder), name: known})
