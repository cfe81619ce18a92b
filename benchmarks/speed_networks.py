"""Ways to train a whole EfficientNet-Lite0 on a CPU, and what a step costs in each.

    python -m benchmarks.speed_networks

CPU milliseconds of a training step for an image, one thread, the fastest of a few: forward, loss, backward, optimiser.
Dask calls a task in a thread; where that has an arena of its own, glibc gives large arrays back at every step.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from threading import Thread
from typing import Any

import torch

from benchmarks.measure import print_table
from benchmarks.speed_frozen import IMAGES, cost
from nearfield import losses
from nearfield.bench.engine import worker_environment
from nearfield.config import ModelConfig
from nearfield.models import build_model

WAYS: dict[str, dict[str, Any]] = {
    "whole, float32": {},
    "bfloat16": {"bf16": True},
    "torch.compile": {"compile": True},
    "in a thread (a bench's workers)": {"thread": True},
    "in a thread with its own arena": {"thread": True, "arenas": True},
    "two stages frozen, stored": {"frozen": 2},
    "four stages frozen, stored": {"frozen": 4},
    "six stages frozen, stored": {"frozen": 6},
    "112 pixels": {"side": 112},
    "96 pixels": {"side": 96},
}


def step_of(case: dict[str, Any]) -> Callable[[], object]:
    """A training step as `case` says."""
    side, frozen = case.get("side", 128), case.get("frozen", 0)
    config = ModelConfig(backbone="timm:tf_efficientnet_lite0", freeze_bn=True, dim=128, frozen_stages=frozen)
    model = build_model(config, seed=0)
    images = torch.randint(0, 256, (IMAGES, side, side, 3), dtype=torch.uint8)
    batch = model.activations(images) if frozen else images
    model.takes_activations = frozen > 0
    forward = torch.compile(model) if case.get("compile") else model
    loss, labels = losses.create("multi_similarity"), torch.arange(IMAGES) // 4
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if case.get("bf16") else nullcontext():
            embeddings = forward(batch)
        loss(embeddings.float(), labels).backward()
        optimizer.step()

    return step


def measured_here(case: dict[str, Any]) -> float:
    """Milliseconds for an image, in this process."""
    torch.set_num_threads(1)
    found: list[float] = []

    def work() -> None:
        found.append(cost(step_of(case)))

    if case.get("thread"):
        thread = Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    return found[0]


def measured(way: str) -> float:
    """Milliseconds for an image, in a process of its own with the environment of a worker."""
    environment = {**os.environ, **worker_environment()}
    if WAYS[way].get("arenas"):
        del environment["MALLOC_ARENA_MAX"]
    command = [sys.executable, "-m", "benchmarks.speed_networks", "--here", way]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help="; ".join(WAYS))
    parser.add_argument("--here", choices=WAYS, help=argparse.SUPPRESS)  # of a process of its own
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)  # of `make speed`; one is used
    given = parser.parse_args()
    if given.here:
        print(measured_here(WAYS[given.here]))
        return
    rows: list[list[str]] = []
    spent: list[float] = []
    for way in given.only:
        spent.append(measured(way))
        rows.append([way, f"{spent[-1]:.2f}", f"{spent[-1] / spent[0]:.2f}"])
        print(f"  {' '.join(rows[-1])}", flush=True)
    print()
    print_table(["way", "ms for an image", "of the first"], rows)


if __name__ == "__main__":
    main()
