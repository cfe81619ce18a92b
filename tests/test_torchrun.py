"""`torchrun -m nearfield train`: what several processes train is what one would have trained."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

COMMON = ["data.name=digits", "data.val_fraction=0.4", "sampler.batch_size=12", "model.width=4", "model.dim=8",
          "model.freeze_bn=true", "steps=6", "eval_every=3"]  # fmt: skip


def command(out: Path, processes: int, *overrides: str) -> list[str]:
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    changes = [part for override in (*COMMON, *overrides) for part in ("--set", override)]
    return [sys.executable, *start, "-m", "nearfield", "train", "--out", str(out), "--progress", "none", *changes]


def run(out: Path, processes: int, *overrides: str) -> dict[str, Any]:
    done = subprocess.run(command(out, processes, *overrides), capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}


def assert_alike(one: Path, other: Path) -> None:
    a, b = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(value.float(), b[name].float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["multi_similarity", "proxy_anchor"])
def test_two_processes_train_what_one_would(method: str, tmp_path: Path) -> None:
    overrides = [f"method.name={method}", "memory=24"] if method == "multi_similarity" else [f"method.name={method}"]
    alone, together = run(tmp_path / "one", 1, *overrides), run(tmp_path / "two", 2, *overrides)
    assert_alike(tmp_path / "one", tmp_path / "two")
    assert together["test"] == pytest.approx(alone["test"], abs=0.02)
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2


def test_a_stopped_group_saves_and_resumes(tmp_path: Path) -> None:
    longer = ["steps=4000", "eval_every=2000"]
    child = subprocess.Popen(command(tmp_path / "run", 2, *longer), env=environment(), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1.0)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode != 0
    assert list((tmp_path / "run").glob("checkpoint-*"))


def launch(processes: int, shell: str) -> subprocess.CompletedProcess[str]:
    """Each process runs a shell command, which knows its $RANK."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    call = [*start, "--no-python", "sh", "-c", shell]
    return subprocess.run(call, capture_output=True, text=True, env=environment(), timeout=120)


def test_processes_with_different_configurations_refuse_to_start(tmp_path: Path) -> None:
    one = shlex.join(command(tmp_path / "run", 1))
    done = launch(2, f"exec {one} --set seed=$RANK 2>{tmp_path}/$RANK.txt")
    assert done.returncode != 0
    for rank in ("0", "1"):
        said = (tmp_path / f"{rank}.txt").read_text()
        assert "nearfield: all processes of a run must have the same configuration and data" in said
        assert "\n  seed: 0 on rank 0, 1 on rank 1\n" in said
        assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_what_the_first_process_refuses_all_refuse(tmp_path: Path) -> None:
    run(tmp_path / "run", 1)
    one = shlex.join(command(tmp_path / "run", 1, "seed=1"))
    launch(2, f"exec {one} 2>{tmp_path}/$RANK.txt")
    for rank in ("0", "1"):
        said = (tmp_path / f"{rank}.txt").read_text()
        assert "holds another run:\n  seed: 0 there, 1 here\n" in said
        assert "Traceback" not in said


@pytest.mark.slow
def test_fifty_launches_end_well(tmp_path: Path) -> None:
    results = [run(tmp_path / f"{launch}", 2) for launch in range(50)]
    assert all(result["test"] == results[0]["test"] for result in results)
