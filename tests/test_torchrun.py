"""`torchrun -m nearfield train`: what several processes train is what one would have trained."""

from __future__ import annotations

import json
import os
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


def test_a_stopped_group_saves_and_goes_on(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_fifty_launches_end_well(tmp_path: Path) -> None:
    results = [run(tmp_path / f"{launch}", 2) for launch in range(50)]
    assert all(result["test"] == results[0]["test"] for result in results)
