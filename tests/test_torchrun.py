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
from programs import Program, as_ranks, ran
from safetensors.torch import load_file

pytestmark = pytest.mark.programs

COMMON = ["data.name=digits", "data.val_fraction=0.4", "sampler.batch_size=12", "model.width=4", "model.dim=8",
          "model.freeze_bn=true", "steps=6", "eval_every=3"]  # fmt: skip


def words(out: Path, *overrides: str) -> list[str]:
    changes = [part for override in (*COMMON, *overrides) for part in ("--set", override)]
    return ["nearfield", "train", "--out", str(out), "--progress", "none", *changes]


def run(out: Path, processes: int, *overrides: str) -> dict[str, Any]:
    """Without torchrun, which takes a second to start, but with the variables that it sets."""
    command = words(out, *overrides)

    def start(rank: int, variables: dict[str, str]) -> Program:
        return Program(command, out.with_suffix(f".{rank}.txt"), variables)

    programs = as_ranks(processes, start) if processes > 1 else [ran(command, out.with_suffix(".txt"))]
    assert [program.returncode for program in programs] == [0] * processes, [p.printed()[1] for p in programs]
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def torchrun(out: Path, *overrides: str) -> list[str]:
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    return [sys.executable, *start, *words(out, *overrides)]


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
    child = subprocess.Popen(torchrun(tmp_path / "run", *longer), env=environment(), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1.0)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode != 0
    assert list((tmp_path / "run").glob("checkpoint-*"))


def refused(folder: Path, *overrides: str) -> list[str]:
    """What each of two ranks says; {rank} in an override is its number."""

    def start(rank: int, variables: dict[str, str]) -> Program:
        own = [override.format(rank=rank) for override in overrides]
        return Program(words(folder / "run", *own), folder / f"{rank}.txt", variables)

    programs = as_ranks(2, start)
    assert all(program.returncode in (1, 2) for program in programs), [p.returncode for p in programs]
    return [program.printed()[1] for program in programs]


def test_processes_with_different_configurations_refuse_to_start(tmp_path: Path) -> None:
    for said in refused(tmp_path, "seed={rank}"):
        assert "nearfield: all processes of a run must have the same configuration and data" in said
        assert "\n  seed: 0 on rank 0, 1 on rank 1\n" in said
        assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_what_the_first_process_refuses_all_refuse(tmp_path: Path) -> None:
    run(tmp_path / "run", 1)
    for said in refused(tmp_path, "seed=1"):
        assert "holds another run:\n  seed: 0 there, 1 here\n" in said
        assert "Traceback" not in said


@pytest.mark.slow
def test_fifty_launches_end_well(tmp_path: Path) -> None:
    for launch in range(50):
        done = subprocess.run(torchrun(tmp_path / f"{launch}"), capture_output=True, text=True, env=environment())
        assert done.returncode == 0, done.stderr
    results = [json.loads((tmp_path / f"{launch}" / "result.json").read_text()) for launch in range(50)]
    assert all(result["test"] == results[0]["test"] for result in results)
