"""Trackers: what is logged can be read back, once for each step, however often the run was interrupted."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nearfield.config import RunConfig, load_config
from nearfield.errors import InputError, RunError
from nearfield.training.trackers import Trackers, TrackerWarning, tracker

CONFIG = load_config(RunConfig, None, ["method.name=fastap", "method.params.bins=20", "seed=3"])
Points = list[tuple[int, float]]


def read_tensorboard(folder: Path, name: str) -> Points:
    events: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    found = events.EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]


def mlflow_client(folder: Path) -> tuple[Any, str]:
    client = importlib.import_module("mlflow").MlflowClient()
    return client, json.loads((folder / "tracking.json").read_text())["mlflow"]["run"]


def read_mlflow(folder: Path, name: str) -> Points:
    client, run = mlflow_client(folder)
    return [(point.step, point.value) for point in client.get_metric_history(run, name.replace("@", "_at_"))]


@pytest.fixture
def file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def attempts(name: str, folder: Path) -> None:
    """Three attempts: killed after step 5, going on after step 2; interrupted at 6; then to the end."""
    killed = tracker([name], folder, CONFIG)
    for step in range(1, 6):
        killed.log(step, {"loss": 1 / step, "val_map@r": step / 8, "finding": "not a number"})
    if name == "tensorboard":
        killed._trackers[name]._writer.flush()  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        interrupted(tracker([name], folder, CONFIG))
    with tracker([name], folder, CONFIG) as third:
        for step in range(7, 9):
            third.log(step, {"loss": 1 / step, "val_map@r": step / 8})


def interrupted(opened: Trackers) -> None:
    with opened:
        for step in range(3, 7):
            opened.log(step, {"loss": 1 / step, "val_map@r": step / 8})
        raise KeyboardInterrupt


WANTED = [(step, step / 8) for step in range(1, 9)]


def test_tensorboard_has_every_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    attempts("tensorboard", tmp_path)
    assert read_tensorboard(tmp_path, "val_map@r") == WANTED
    assert [step for step, _ in read_tensorboard(tmp_path, "loss")] == list(range(1, 9))


@pytest.mark.usefixtures("file_store")
def test_mlflow_has_every_step_once_in_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    attempts("mlflow", folder)
    assert read_mlflow(folder, "val_map@r") == WANTED
    client, run = mlflow_client(folder)
    found = client.get_run(run)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "fastap on glyphs, seed 3"
    assert found.data.params["method.params.bins"] == "20"
    assert found.data.params["optimizer.lr"] == "0.002"
    (experiment,) = {found.info.experiment_id}
    assert len(client.search_runs([experiment])) == 1


@pytest.mark.usefixtures("file_store")
def test_an_interrupted_mlflow_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), tracker(["mlflow"], tmp_path, CONFIG):
        raise KeyboardInterrupt
    client, run = mlflow_client(tmp_path)
    assert client.get_run(run).info.status == "KILLED"


def test_wandb_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an object in place of the package, which keeps what it is called with."""
    calls: list[dict[str, Any]] = []
    points: Points = []
    ends: list[int] = []

    def init(**given: Any) -> Any:
        calls.append(given)
        return SimpleNamespace(
            log=lambda numbers, step: points.append((step, numbers["val_map@r"])),
            finish=lambda exit_code: ends.append(exit_code),
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    attempts("wandb", tmp_path)
    assert points == WANTED
    assert ends == [1, 0]  # the first attempt was killed
    assert len({call["id"] for call in calls}) == 1
    assert {call["resume"] for call in calls} == {"allow"}
    assert calls[0]["config"]["method"] == {"name": "fastap", "params": {"bins": 20}}
    assert calls[0]["dir"] == str(tmp_path)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_what_is_missing_is_named_and_only_when_asked_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tensorboard", "torch.utils.tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with tracker([], tmp_path, CONFIG) as none:
        none.log(1, {"loss": 1.0})
    with pytest.raises(InputError, match=rf'{name} needs .* not installed: pip install "nearfield\[{name}\]"'):
        tracker([name], tmp_path, CONFIG)
    assert not list(tmp_path.iterdir())


def test_unknown_trackers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tracker must be one of .*; got 'tensorbord', did you mean 'tensorboard'"):
        tracker(["tensorbord"], tmp_path, CONFIG)


def failing(monkeypatch: pytest.MonkeyPatch, log: Callable[..., None]) -> list[int]:
    ends: list[int] = []
    run = SimpleNamespace(log=log, finish=lambda exit_code: ends.append(exit_code))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: run))
    return ends


def test_a_tracker_that_fails_is_dropped_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("the server is away")

    ends = failing(monkeypatch, away)
    with tracker(["wandb", "tensorboard"], tmp_path, CONFIG) as both:
        with pytest.warns(TrackerWarning, match=r"wandb failed.*the server is away.*metrics.jsonl has all"):
            both.log(1, {"loss": 0.5})
        both.log(2, {"loss": 0.25})
    assert ends == []
    assert read_tensorboard(tmp_path, "loss") == [(1, 0.5), (2, 0.25)]


def test_a_tracker_that_cannot_be_opened_ends_the_run_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    with pytest.raises(RunError, match="cannot open the tracker wandb: no route to host"):
        tracker(["wandb"], tmp_path, CONFIG)
