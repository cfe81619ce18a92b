"""Training: learns, resumes to the bit after a stop at any step, and leaves nothing half-written."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nearfield import runs, training
from nearfield.config import RunConfig, load_config
from nearfield.data import load
from nearfield.errors import InputError, RunError
from nearfield.metrics import retrieval_metrics
from nearfield.runs import RunFolder
from nearfield.training import Interrupted, learning_rate_factor, train

SMALL = ["data.name=digits", "data.val_fraction=0.4", "sampler.batch_size=12", "model.width=4", "model.dim=8"]
METHODS = ["multi_similarity", "fastap", "proxy_softmax", "margin"]


def config_of(*overrides: str) -> RunConfig:
    return load_config(RunConfig, None, [*SMALL, "steps=9", "eval_every=3", *overrides])


def outcome(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, torch.Tensor], list[Any]]:
    result = {k: v for k, v in json.loads((folder / "result.json").read_text()).items() if k != "train_seconds"}
    return (
        result,
        load_file(folder / "model.safetensors"),
        load_file(folder / "test.safetensors"),
        RunFolder(folder).records(),
    )


def assert_same(a: Path, b: Path) -> None:
    (result_a, model_a, test_a, log_a), (result_b, model_b, test_b, log_b) = outcome(a), outcome(b)
    assert result_a == result_b
    assert log_a == log_b
    for one, other in ((model_a, model_b), (test_a, test_b)):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("method", METHODS)
def test_resuming_after_any_step_changes_nothing(method: str, tmp_path: Path) -> None:
    config = config_of(f"method.name={method}")
    train(config, tmp_path / "whole")
    stops = iter([1, 2, 3, 5, 6, 8])
    at = {"step": 0, "stop": next(stops)}

    def progress(step: int, steps: int, latest: dict[str, float]) -> None:
        at["step"] = step

    def stop() -> bool:
        if at["step"] >= at["stop"]:
            at["stop"] = next(stops, 10**9)
            return True
        return False

    for _ in range(6):
        with pytest.raises(Interrupted):
            train(config, tmp_path / "stopped", progress, stop)
    train(config, tmp_path / "stopped", progress, stop)
    assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_a_crash_between_checkpoints_changes_nothing(tmp_path: Path) -> None:
    config = config_of()
    train(config, tmp_path / "whole")

    def crash_at(fatal: int):  # type: ignore[no-untyped-def]
        def progress(step: int, steps: int, latest: dict[str, float]) -> None:
            if step == fatal:
                raise MemoryError  # like a kill: nothing gets saved

        return progress

    for fatal in (2, 4, 8):
        with pytest.raises(MemoryError):
            train(config, tmp_path / "crashed", crash_at(fatal))
    train(config, tmp_path / "crashed")
    assert_same(tmp_path / "whole", tmp_path / "crashed")


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    config = config_of()
    first = train(config, tmp_path)
    before = (tmp_path / "result.json").stat().st_mtime_ns
    assert train(config, tmp_path) == first
    assert (tmp_path / "result.json").stat().st_mtime_ns == before
    assert not list(tmp_path.glob("checkpoint-*"))


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(config_of(), tmp_path, stop=lambda: True)
    with pytest.raises(RunError, match="another configuration"):
        train(config_of("seed=1"), tmp_path)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path).locked(),
        pytest.raises(RunError, match="in use by another process"),
        RunFolder(tmp_path).locked(0.1),
    ):
        pass


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of()
    train(config, tmp_path / "whole")
    real, calls = runs.save_file, []

    def full(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*args, **kwargs)

    monkeypatch.setattr(runs, "save_file", full)
    with pytest.raises(RunError, match=r"No space left on device.*The last one is intact"):
        train(config, tmp_path / "full")
    assert len(list((tmp_path / "full").glob("checkpoint-*"))) == 1
    assert not list((tmp_path / "full").glob(".*part*"))
    monkeypatch.undo()
    train(config, tmp_path / "full")
    assert_same(tmp_path / "whole", tmp_path / "full")


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the run folder"):
        train(config_of(), tmp_path / "file" / "run")


def test_a_diverged_loss_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Diverges(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum() * torch.inf

    monkeypatch.setattr(training, "build_loss", lambda *_, **__: Diverges())
    with pytest.raises(RunError, match=r"the loss became (inf|-inf|nan) at step 1; lower optimizer.lr"):
        train(config_of(), tmp_path)


def test_unknown_names_fail_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'fastpa'; did you mean 'fastap'"):
        train(config_of("method.name=fastpa"), tmp_path / "a")
    with pytest.raises(InputError, match="unknown"):
        train(config_of("data.name=digit"), tmp_path / "b")


@pytest.mark.filterwarnings("ignore:step 6. validation is flat")  # six steps are no time
def test_it_learns(tmp_path: Path) -> None:
    config = config_of("steps=60", "eval_every=1", "model.width=8", "optimizer.warmup_steps=5", "method.name=fastap")
    train(config, tmp_path)
    losses = [record["loss"] for record in RunFolder(tmp_path).records() if "loss" in record]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_the_schedule_warms_up_and_ends_low() -> None:
    config = config_of("steps=100", "optimizer.warmup_steps=10")
    factors = [learning_rate_factor(step, config) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[10] == 1.0
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[-1] < 0.01


def test_every_method_and_seed_sees_the_same_split() -> None:
    from nearfield.data import load

    dataset = load("digits")
    parts = [training.split(dataset, config_of(f"seed={s}", f"method.name={m}")) for s in (0, 1) for m in METHODS]
    assert len({p.fingerprint for p in parts}) == 1
    fit, val, test = (set(dataset.labels[p.numpy()].tolist()) for p in parts[0][:3])
    assert not (fit & val)
    assert not (fit & test)
    assert not (val & test)
    assert len(fit | val | test) == 10


def test_chunks_change_memory_and_not_the_run(tmp_path: Path) -> None:
    """With frozen batch norm, which a chunk cannot see otherwise than the batch, the same steps to rounding."""
    whole = train(config_of("model.freeze_bn=true"), tmp_path / "whole")
    parts = train(config_of("model.freeze_bn=true", "chunk=5"), tmp_path / "parts")
    assert whole["test"] == pytest.approx(parts["test"], abs=0.02)
    a, b = (RunFolder(tmp_path / name).weights() for name in ("whole", "parts"))
    for name, value in a.items():
        torch.testing.assert_close(value.float(), b[name].float(), rtol=1e-3, atol=1e-4)


def test_the_doctor_warns_once_and_writes_it_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LOOK_EVERY", 1)
    method = ("method.name=proxy_softmax", "method.params.temperature=1000.0")
    config = config_of(*method, "steps=12", "eval_every=12")
    with pytest.warns(training.TrainingWarning, match="stuck at"):
        train(config, tmp_path)
    found = [record for record in RunFolder(tmp_path).records() if "finding" in record]
    assert [record["finding"] for record in found] == ["log_n"]


def test_the_binary_variant_is_ranked_by_hamming_distance(tmp_path: Path) -> None:
    method = ("method.name=proxy_softmax", "model.norm=layer", "model.dim=16")
    result = train(config_of(*method, "distance=hamming"), tmp_path)
    dataset = load("digits")
    rows = dataset.test_rows()
    codes = load_file(tmp_path / "test.safetensors")["embeddings"].float()
    expected = retrieval_metrics(codes > 0, dataset.labels[rows], distance="hamming")
    assert result["test"]["map@r"] == pytest.approx(expected["map@r"], abs=0.01)  # they are stored in half precision
    by_angle = retrieval_metrics(codes, dataset.labels[rows])
    assert abs(result["test"]["map@r"] - by_angle["map@r"]) > 0.001
