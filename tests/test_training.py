"""Training: learns, resumes to the bit after a stop at any step, and leaves nothing half-written."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from nearfield.config import OptimizerConfig, RunConfig, load_config
from nearfield.data import load
from nearfield.errors import InputError, RunError
from nearfield.metrics import retrieval_metrics
from nearfield.metrics.dataset_scores import score_test
from nearfield.training import build, loop, run_folder
from nearfield.training import run as run_module
from nearfield.training.batches import Supply, split
from nearfield.training.loop import Interrupted, train
from nearfield.training.optimizers import build_optimizer, clip_gradients
from nearfield.training.run_folder import CheckpointWarning, RunFolder
from nearfield.training.sharding import Split, gradient_norm

SMALL = ["data.name=digits", "data.val_fraction=0.4", "sampler.batch_size=12", "model.width=4", "model.dim=8"]
METHODS = ["multi_similarity", "fastap", "proxy_softmax", "margin"]
EVERYTHING = [  # that a checkpoint must hold, at once
    "memory=30", "ema=0.9", "precision=bf16", "model.dropout=0.3", "chunk=5", "model.freeze_bn=true",
    "optimizer.clip=1.0", "optimizer.frozen_steps=4", "optimizer.decay_biases=false",
    "optimizer.schedule=step", "optimizer.decay_every=3", "oracle=true", "accumulate=2", "optimizer.clip_by=part",
]  # fmt: skip


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


@pytest.mark.parametrize("overrides", [*([f"method.name={m}"] for m in METHODS), EVERYTHING])
def test_resuming_after_any_step_changes_nothing(overrides: list[str], tmp_path: Path) -> None:
    config = config_of(*overrides)
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


def test_another_run_is_refused_key_by_key(tmp_path: Path) -> None:
    """In an unfinished folder and in a finished one."""
    with pytest.raises(Interrupted):
        train(config_of(), tmp_path, stop=lambda: True)
    other = config_of("seed=1", "method.name=fastap", "method.params.bins=20", "ema=0.5")
    for _ in range(2):
        with pytest.raises(RunError, match="holds another run") as refused:
            train(other, tmp_path)
        lines = str(refused.value).splitlines()
        assert lines[-1] == "Choose another --out, or delete the folder."
        assert {line.strip() for line in lines[1:-1]} == {
            "seed: 0 there, 1 here",
            "method.name: multi_similarity there, fastap here",
            "method.params.bins: unset there, 20 here",
            "ema: unset there, 0.5 here",
        }
        train(config_of(), tmp_path)


def test_an_ensembles_folder_is_refused_too(tmp_path: Path) -> None:
    dreml = ("method.name=dreml", "method.params.members=2")
    train(config_of(*dreml), tmp_path / "ensemble")
    for overrides in ((*dreml, "seed=1"), ()):
        with pytest.raises(RunError, match=r"ensemble holds another run"):
            train(config_of(*overrides), tmp_path / "ensemble")
    shutil.rmtree(tmp_path / "ensemble" / "member-01")  # an unfinished one
    for name in ("result.json", "config.toml", "environment.json"):
        (tmp_path / "ensemble" / name).unlink()
    with pytest.raises(RunError, match=r"member-00 holds another run:\n  seed: 0 there, 1 here"):
        train(config_of(*dreml, "seed=1"), tmp_path / "ensemble")


def npz(path: Path, seed: int, features: int = 12) -> str:
    draw = np.random.default_rng(seed)
    np.savez(path, features=draw.standard_normal((60, features), np.float32), labels=np.repeat(np.arange(10), 6))
    return str(path)


@pytest.mark.parametrize("finished", [True, False])
def test_changed_data_are_refused(finished: bool, tmp_path: Path) -> None:
    data = (f"data.name={npz(tmp_path / 'data.npz', 0)}", "model.backbone=features", "sampler.batch_size=8")
    with nullcontext() if finished else pytest.raises(Interrupted):
        train(config_of(*data), tmp_path / "run", stop=lambda: not finished)
    known = (tmp_path / "run" / "environment.json").read_text()
    npz(tmp_path / "data.npz", 1)
    with pytest.raises(RunError, match=r"holds another run:\n  data fingerprint: \w{64} there, \w{64} here\nChoose"):
        train(config_of(*data), tmp_path / "run")
    assert (tmp_path / "run" / "environment.json").read_text() == known
    npz(tmp_path / "data.npz", 0)
    train(config_of(*data), tmp_path / "run")


def test_changed_pretrained_weights_are_refused(tmp_path: Path) -> None:
    weights = tmp_path / "backbone.safetensors"
    config = config_of(f"model.weights={weights}")
    backbone = build.build_learner(config_of(), 3).model.backbone
    save_file({name: value.contiguous() for name, value in backbone.state_dict().items()}, weights)
    first = train(config, tmp_path / "run")
    save_file({name: value.contiguous() * 2 for name, value in backbone.state_dict().items()}, weights)
    with pytest.raises(RunError, match=r"pretrained fingerprint: \w{64} there, \w{64} here"):
        train(config, tmp_path / "run")
    weights.unlink()  # a finished run needs it no longer
    assert train(config, tmp_path / "run") == first


def test_the_facts_of_a_begun_run_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Interrupted):
        train(config_of(), tmp_path, stop=lambda: True)
    known = json.loads((tmp_path / "environment.json").read_text())
    monkeypatch.setattr(run_folder, "commit", lambda: "another")
    for _ in range(2):
        with pytest.raises(Interrupted):
            train(config_of(), tmp_path, stop=lambda: True)
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found == {**known, "resumed": [{"commit": "another"}]}


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
    calls: list[Any] = []

    def full(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(*args, **kwargs)

    monkeypatch.setattr(run_folder, "save_file", full)
    with pytest.raises(RunError, match=r"No space left on device.*resume from checkpoint-00000003"):
        train(config, tmp_path / "full")
    assert len(list((tmp_path / "full").glob("checkpoint-*"))) == 1
    assert not list((tmp_path / "full").glob(".*part*"))
    monkeypatch.undo()
    train(config, tmp_path / "full")
    assert_same(tmp_path / "whole", tmp_path / "full")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes: a real error of the system, as on a full disk, wherever one is written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [5_000, 30_000])  # too little for the weights; for the optimizer's state only
def test_a_disk_that_is_really_full(size: int, tmp_path: Path) -> None:
    with largest_file(size), pytest.raises(RunError, match=r"cannot write .*checkpoint-00000003: .* MB free\)\. Free"):
        train(config_of(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.toml", "environment.json", "lock", "metrics.jsonl"}
    with largest_file(5_000), pytest.raises(RunError, match=r"cannot write .*/model.safetensors: .* MB free\)"):
        RunFolder(tmp_path).finish({"weight": torch.zeros(9_000)}, {}, {})
    assert not list(tmp_path.glob(".*"))
    train(config_of(), tmp_path)


def test_two_checkpoints_are_kept_and_what_a_kill_left_goes(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.part").mkdir()
    (tmp_path / ".model.safetensors.abc.part").touch()
    with pytest.raises(Interrupted):
        train(config_of(), tmp_path, stop=lambda: len(list(tmp_path.glob("checkpoint-*"))) == 2)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-00000003", "checkpoint-00000006"]
    assert not list(tmp_path.glob(".*"))


def damage(path: Path, how: str) -> None:
    for name in [how.split()[1]] if " " in how else [file.name for file in path.iterdir()]:
        content = (path / name).read_bytes()
        (path / name).unlink()
        if how.startswith("cut"):
            (path / name).write_bytes(content[: len(content) // 2])


FILES = ("state.pt", "model.safetensors", "best.safetensors")


@pytest.mark.parametrize("how", ["empty", *(f"{verb} {name}" for verb in ("cut", "delete") for name in FILES)])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(how: str, tmp_path: Path) -> None:
    config = config_of()
    train(config, tmp_path / "whole")
    stop = iter([False] * 6 + [True])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop=lambda: next(stop))
    damage(tmp_path / "run" / "checkpoint-00000007", how)
    with pytest.warns(
        CheckpointWarning, match=r"checkpoint-00000007 is damaged \(.+\); resuming from checkpoint-00000006"
    ):
        train(config, tmp_path / "run")
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_without_any_whole_checkpoint_a_run_starts_again(tmp_path: Path) -> None:
    config = config_of()
    train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop=lambda: True)
    damage(tmp_path / "run" / "checkpoint-00000001", "cut state.pt")
    with pytest.warns(CheckpointWarning, match="starting again from the first step"):
        train(config, tmp_path / "run")
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_a_checkpoint_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    real, rename = os.fsync, os.rename

    def flush(handle: int) -> None:
        flushed.append(os.fstat(handle).st_ino)
        real(handle)

    def watch(source: Path, target: Path) -> None:
        inside = {path.stat().st_ino for path in (source, *source.iterdir())}
        assert len(inside) == 4
        assert inside <= set(flushed)
        flushed.clear()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "rename", watch)
    RunFolder(tmp_path).save(1, {"a": torch.zeros(2)}, {"b": torch.zeros(2)}, {"step": 1})
    assert flushed == [tmp_path.stat().st_ino]  # the new name itself


@pytest.mark.parametrize("content", ["", '{"method": "mul', "[1]"])
def test_a_damaged_result_is_named(content: str, tmp_path: Path) -> None:
    train(config_of(), tmp_path)
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(RunError, match=r"result.json is damaged: .* or delete its folder"):
        train(config_of(), tmp_path)


def test_a_log_may_end_in_half_a_line_and_nothing_else(tmp_path: Path) -> None:
    config = config_of()
    train(config, tmp_path / "whole")
    stop = iter([False] * 6 + [True])
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop=lambda: next(stop))
    log = tmp_path / "run" / "metrics.jsonl"
    known = log.read_bytes()
    for line, message in (
        (b'{"step": 3, "lo', "line 1 is not JSON"),
        (b"\xff\xfe", "line 1 is not JSON"),
        (b"7", "line 1 must be an object with a step; got 7. Delete the line"),
        (b'{"loss": 0.5}', "line 1 must be an object with a step"),
        (b'{"step": "3"}', "line 1 must be an object with a step"),
    ):
        log.write_bytes(line + b"\n" + known)
        with pytest.raises(RunError, match=message):
            train(config, tmp_path / "run")
    log.write_bytes(known + b'{"step": 7, "lo')
    train(config, tmp_path / "run")
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the run folder"):
        train(config_of(), tmp_path / "file" / "run")


def test_a_diverged_loss_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Diverges(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum() * torch.inf

    monkeypatch.setattr(build, "build_loss", lambda *_, **__: Diverges())
    with pytest.raises(RunError, match=r"the loss became (inf|-inf|nan) at step 1; lower optimizer.lr"):
        train(config_of(), tmp_path)


class Poisoned(torch.nn.Module):
    """A finite loss whose gradient is NaN from call number `start` on, for `calls` calls."""

    def __init__(self, start: int, calls: int = 10**9) -> None:
        super().__init__()
        self.bad, self.calls = range(start, start + calls), 0

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        value = x.square().mean()
        if self.calls in self.bad:
            x.register_hook(lambda grad: grad * torch.nan)
        return value


@pytest.mark.parametrize("overrides", [[], ["optimizer.clip=1.0"], ["precision=bf16"], ["chunk=5"]])
def test_a_gradient_that_is_not_finite_stops_the_run(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "build_loss", lambda *_, **__: Poisoned(5))
    with pytest.raises(loop.Diverged, match=r"the loss is [\d.e-]+ but its gradient became nan at step 5; lower"):
        train(config_of(*overrides), tmp_path)
    assert RunFolder(tmp_path).load().state["step"] == 3  # type: ignore[union-attr]


def test_half_precision_skips_overflows_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Poisoned(3, calls=2)
    monkeypatch.setattr(build, "build_loss", lambda *_, **__: loss)
    train(config_of("precision=fp16"), tmp_path / "some")
    assert all(value.isfinite().all() for value in RunFolder(tmp_path / "some").weights().values())
    monkeypatch.setattr(build, "build_loss", lambda *_, **__: Poisoned(3))
    with pytest.raises(loop.Diverged, match=r"gradient became nan at step 1\d;"):  # 2**16 halved down to 1
        train(config_of("precision=fp16", "steps=30", "eval_every=30"), tmp_path / "all")


def test_unknown_names_fail_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'fastpa'; did you mean 'fastap'"):
        train(config_of("method.name=fastpa"), tmp_path / "a")
    with pytest.raises(InputError, match="unknown"):
        train(config_of("data.name=digit"), tmp_path / "b")


@pytest.mark.filterwarnings("ignore:step 25. validation is flat")  # so few steps are no time
def test_it_learns(tmp_path: Path) -> None:
    config = config_of("steps=60", "eval_every=5", "model.width=8", "optimizer.warmup_steps=5", "method.name=supcon")
    train(config, tmp_path)
    losses = [record["loss"] for record in RunFolder(tmp_path).records() if "loss" in record]
    assert losses[-1] < 0.5 * losses[0]


def test_every_method_and_seed_sees_the_same_split() -> None:
    dataset = load("digits")
    parts = [split(dataset, config_of(f"seed={s}", f"method.name={m}").data) for s in (0, 1) for m in METHODS]
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
    monkeypatch.setattr(loop, "LOOK_EVERY", 1)
    method = ("method.name=proxy_softmax", "method.params.temperature=1000.0")
    config = config_of(*method, "steps=12", "eval_every=12")
    with pytest.warns(loop.TrainingWarning, match="stuck at"):
        train(config, tmp_path)
    found = [record for record in RunFolder(tmp_path).records() if "finding" in record]
    assert [record["finding"] for record in found if record["finding"] != "no_gain"] == ["log_n"]


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


def test_folds_are_those_of_the_reality_check() -> None:
    dataset = load("glyphs")
    parts = [split(dataset, config_of("data.folds=4", f"data.fold={fold}").data) for fold in range(4)]
    held = [set(dataset.labels[p.val.numpy()].tolist()) for p in parts]
    assert set.union(*held) == set(dataset.train_classes.tolist())
    assert sum(map(len, held)) == len(dataset.train_classes)
    assert all(not held[f] & set(dataset.labels[p.fit.numpy()].tolist()) for f, p in enumerate(parts))
    with pytest.raises(InputError, match=r"fold must be in 0\.\.3, below folds; got 4"):
        config_of("data.folds=4", "data.fold=4")


def choose_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation that rises with every look, for tests of what training makes of the weights."""
    looks = itertools.count()
    validate_by(monkeypatch, lambda: next(looks) / 1e6)


def validate_by(monkeypatch: pytest.MonkeyPatch, score: Callable[[], float]) -> None:
    """Every look at the validation classes finds this score, the first one at the start too."""
    for module in (loop, run_module):
        monkeypatch.setattr(module, "validate", lambda run, model, supply: {"map@r": score()})
    monkeypatch.setattr(run_module, "_starts", {})


def test_training_that_loses_to_its_start_returns_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    validate_by(monkeypatch, lambda: 0.5 - next(looks) / 1e3)
    config = config_of()
    with pytest.warns(loop.TrainingWarning, match="did not improve on its start"):
        result = train(config, tmp_path)
    assert result["best_step"] == 0
    assert result["start"]["val"] == result["val"] == {"map@r": 0.5}
    assert result["start"]["test"]["map@r"] == pytest.approx(result["test"]["map@r"])
    first = build.build_learner(config, 3).model.state_dict()
    assert all(torch.equal(value, first[name]) for name, value in RunFolder(tmp_path).weights().items())


def test_a_run_that_is_stopped_before_its_first_checkpoint_scores_its_start_once(tmp_path: Path) -> None:
    whole = train(config_of(), tmp_path / "whole")
    RunFolder(tmp_path / "cut").path.mkdir()
    with pytest.raises(Interrupted):
        train(config_of(), tmp_path / "cut", stop=lambda: True)
    shutil.rmtree(next((tmp_path / "cut").glob("checkpoint-*")))
    again = train(config_of(), tmp_path / "cut")
    assert [r["step"] for r in RunFolder(tmp_path / "cut").records() if "val_map@r" in r] == [0, 3, 6, 9]
    assert {**whole, "train_seconds": 0} == {**again, "train_seconds": 0}


def test_a_search_never_looks_at_the_test_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = Supply.rows

    def rows(supply: Supply, part: torch.Tensor) -> Any:
        seen.extend(part.tolist())
        return real(supply, part)

    monkeypatch.setattr(Supply, "rows", rows)
    result = train(config_of("oracle=true"), tmp_path, test=False)
    assert "test" not in result
    assert result["val"]["map@r"] == max(r.get("val_map@r", 0.0) for r in RunFolder(tmp_path).records())
    assert not (tmp_path / "test.safetensors").exists()
    assert not set(seen) & set(load("digits").test_rows().tolist())
    with pytest.raises(RunError, match="was not tested"):
        train(config_of("oracle=true"), tmp_path)


def test_the_oracle_is_written_down_and_chooses_nothing(tmp_path: Path) -> None:
    blind, told = train(config_of(), tmp_path / "a"), train(config_of("oracle=true"), tmp_path / "b")
    assert blind["test"] == told["test"]
    records = RunFolder(tmp_path / "b").records()
    assert [r["step"] for r in records if "test_map@r" in r] == [0, 3, 6, 9]
    at_best = next(r for r in records if r["step"] == told["best_step"])
    assert at_best["test_map@r"] == pytest.approx(told["test"]["map@r"])


def test_the_average_of_the_weights_is_what_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With decay 0.5 after one update: the mean of the first weights and those after the step."""
    choose_the_last_step(monkeypatch)
    plain = config_of("steps=1", "eval_every=1", "optimizer.warmup_steps=0")
    train(plain, tmp_path / "plain")
    train(plain.model_copy(update={"ema": 0.5, "steps": 2, "eval_every": 2}), tmp_path / "average")
    train(plain.model_copy(update={"steps": 2, "eval_every": 2}), tmp_path / "last")
    a, b, c = (RunFolder(tmp_path / name).weights()["head.weight"] for name in ("plain", "last", "average"))
    first = build.build_learner(plain, 3).model.get_parameter("head.weight").detach()
    assert not torch.equal(b, c)
    assert not torch.equal(first, a)


def test_warm_up_freezes_the_backbone(tmp_path: Path) -> None:
    config = config_of("steps=3", "eval_every=3", "optimizer.frozen_steps=3")
    before = build.build_learner(config, 3).model.state_dict()
    train(config, tmp_path)
    after = RunFolder(tmp_path).weights()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_clipping_limits_the_step(tmp_path: Path) -> None:
    sgd = ["optimizer.name=sgd", "optimizer.momentum=0.0", "optimizer.lr=1.0", "optimizer.weight_decay=0.0",
           "optimizer.warmup_steps=0", "steps=1", "eval_every=1", "model.freeze_bn=true"]  # fmt: skip
    config = config_of(*sgd, "optimizer.clip=1e-3")
    before = build.build_learner(config, 3).model
    train(config, tmp_path)
    after = RunFolder(tmp_path).weights()
    moved = torch.stack([(after[name] - p.detach()).norm() for name, p in before.named_parameters()]).norm()
    assert 0 < float(moved) <= 1e-3 * 1.01


def test_the_parts_of_network_and_loss_are_clipped_each(tmp_path: Path) -> None:
    """DRML's code clips backbone, head and proxies apart; elsewhere only the network is clipped, as a whole."""
    config = config_of("method.name=proxy_anchor", "model.freeze_bn=true")
    model, loss, forward = build.build_learner(config, 3)

    def norms(clip_by: str) -> dict[str, float]:
        recipe = OptimizerConfig(clip=1e-3, clip_by=clip_by)  # type: ignore[arg-type]
        optimizer = build_optimizer(model, loss, recipe)
        optimizer.zero_grad()
        images = torch.randint(256, (12, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        loss(forward(images), torch.arange(12) % 3).backward()
        clip_gradients(optimizer, recipe, partial(gradient_norm, split=Split({}, {}, ())))
        return {
            group["name"]: float(torch.stack([p.grad.norm() for p in group["params"]]).norm())
            for group in optimizer.param_groups
        }

    assert norms("part") == pytest.approx({"backbone": 1e-3, "head": 1e-3, "loss": 1e-3}, rel=1e-3)
    whole = norms("network")
    assert math.hypot(whole["backbone"], whole["head"]) == pytest.approx(1e-3, rel=1e-3)
    assert whole["loss"] > 0.1


def test_gradients_of_several_batches_are_averaged_into_one_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update of three episodes is a step along the mean of their gradients, by hand."""
    choose_the_last_step(monkeypatch)
    sgd = ["optimizer.name=sgd", "optimizer.momentum=0.0", "optimizer.lr=0.1", "optimizer.weight_decay=0.0",
           "optimizer.warmup_steps=0", "optimizer.schedule=constant", "model.freeze_bn=true", "steps=2", "eval_every=2",
           "method.name=prototypical", "sampler.per_class=4", "accumulate=3"]  # fmt: skip
    config = config_of(*sgd)
    train(config, tmp_path)
    supply = Supply(load("digits"), config.data)
    model, loss, forward = build.build_learner(config, supply.parts.fit_classes)
    batches = supply.batches(build.build_sampler(config, supply.fit_labels, supply.categories), 0, config.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        torch.stack([loss(forward(b.images), b.labels) for b in itertools.islice(batches, 3)]).mean().backward()
        optimizer.step()
    for name, found in RunFolder(tmp_path).weights().items():
        torch.testing.assert_close(found, model.state_dict()[name], rtol=1e-5, atol=1e-6)
    assert RunFolder(tmp_path).records()[-1]["step"] == 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_comes_out_nearly_the_same(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_the_last_step(monkeypatch)
    full = train(config_of("model.width=8"), tmp_path / "full")
    low = train(config_of("model.width=8", f"precision={precision}"), tmp_path / "low")
    a, b = (RunFolder(tmp_path / name).weights()["head.weight"] for name in ("full", "low"))
    assert not torch.equal(a, b)
    torch.testing.assert_close(a, b, rtol=0.1, atol=0.02)
    assert low["test"]["map@r"] == pytest.approx(full["test"]["map@r"], abs=0.1)


def test_augmented_training_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    """Crops come from the seed and the step; a resumed run with another number of workers ends the same."""
    rng = np.random.default_rng(0)
    for kind in range(10):
        (tmp_path / "photos" / f"class{kind}").mkdir(parents=True)
        for number in range(4):
            noise = rng.integers(0, 256, (130 + kind, 150 - number, 3), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / "photos" / f"class{kind}" / f"{number}.png")
    base = config_of(
        f"data.name={tmp_path / 'photos'}", "data.augment=small", "sampler.batch_size=8", "steps=4", "eval_every=2"
    )
    train(base, tmp_path / "none")
    fetched = base.model_copy(update={"data": base.data.model_copy(update={"workers": 1})})
    train(fetched, tmp_path / "fetched")
    a, b = (RunFolder(tmp_path / name).weights() for name in ("none", "fetched"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    at = {"step": 0}

    def progress(step: int, steps: int, latest: dict[str, float]) -> None:
        at["step"] = step

    with pytest.raises(Interrupted):
        train(fetched, tmp_path / "stopped", progress, lambda: at["step"] == 3)
    train(fetched, tmp_path / "stopped")
    assert_same(tmp_path / "fetched", tmp_path / "stopped")


def test_a_head_on_images_may_start_from_principal_components() -> None:
    config = config_of("model.init=pca")
    images = torch.randint(0, 256, (40, 8, 8), dtype=torch.uint8)
    model = build.build_learner(config, 3).model
    build.start_from_images(model, images, "noise")
    found = model.eval()(images).detach()
    torch.testing.assert_close(found.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    spread = found.T @ found
    torch.testing.assert_close(spread, torch.diag(spread.diagonal()), atol=1e-4, rtol=0)  # uncorrelated
    assert spread.diagonal().diff().le(1e-6).all()  # by falling variance


def test_a_start_that_runs_share_is_scored_once_and_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[str] = []

    def counted(*given: Any, **options: Any) -> Any:
        tested.append("test")
        return score_test(*given, **options)

    monkeypatch.setattr(run_module, "score_test", counted)
    monkeypatch.setattr(run_module, "_starts", {})
    config = config_of("steps=2", "eval_every=2")

    def starts(name: str, *overrides: str) -> tuple[dict[str, Any], int]:
        before = len(tested)
        found = train(config_of("steps=2", "eval_every=2", *overrides), tmp_path / name)["start"]
        return found, len(tested) - before

    assert config.oracle is False
    first, others = starts("first"), starts("same", "optimizer.lr=0.1", "method.name=contrastive")
    assert (first[1], others[1]) == (2, 1)  # at the start and the end; at the end
    assert others[0] == first[0]
    again = starts("another", "seed=1")
    assert again[1] == 2
    assert again[0] != first[0]
    assert starts("metric", "distance=euclidean")[1] == 2
    for seed in range(2, 8):
        starts(f"seed{seed}", f"seed={seed}")
    assert len(run_module._starts) <= run_module.MOST_STARTS


def test_features_to_start_from_are_computed_once_for_each_network_and_data() -> None:
    config, images = config_of("model.init=pca"), torch.randint(0, 256, (40, 8, 8), dtype=torch.uint8)
    seen: list[int] = []

    def start(seed: int, data: str) -> torch.Tensor:
        model = build.build_learner(config.model_copy(update={"seed": seed}), 3).model
        model.backbone.register_forward_hook(lambda *_: seen.append(seed))
        build.start_from_images(model, images, data)
        weight: torch.Tensor = model.head.state_dict()["weight"]
        return weight.clone()

    first = start(0, "some")
    assert seen == [0]
    assert torch.equal(start(0, "some"), first)
    assert seen == [0]  # read, not computed
    assert not torch.equal(start(1, "some"), first)  # another network
    start(0, "other")  # other data
    assert seen == [0, 1, 0]
    for number in range(10):
        start(number, "more")
    assert len(build._starts) <= build.MOST_STARTS
