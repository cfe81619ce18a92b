"""Training: steps a second beside an ordinary PyTorch loop, the price of chunks, and what batched heads would gain.

    python -m benchmarks.speed_training [--threads N] [--only NAME ...] [--tables NAME ...] [--rounds N]

Heads: a linear head of 128 dims on frozen features (those of CUB-200-2011 if NEARFIELD_DATA holds them, else random
ones of the same shape), by `nearfield.train` and by a plain loop over a DataLoader with the loss, miner and
sampler of pytorch-metric-learning. Chunks: steps of a network on random pictures of 64 px, whole and by `chunk`.
Several heads: those of four folds, one after the other, and as one batched product with one optimiser.
Seed tasks: one seed of a method as a bench does it (four folds, all scorings, the result written), beside its training
steps alone and beside a plain loop that scores as often with the accuracy calculator of pytorch-metric-learning.

What is compared runs in processes of its own that take turns, a few steps each; ratios are of neighbouring turns. With
one thread, which never waits, time is that of the processor, so that other work on the machine counts less.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import print_table

DIM, SIDE = 128, 64
BATCHES = (32, 128, 1024)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "multi_similarity": ("multi_similarity", {}),
    "contrastive": ("contrastive", {"form": "hinge"}),  # the form that pytorch-metric-learning has
    "proxy_anchor": ("proxy_anchor", {}),
}
NETWORKS: dict[str, dict[str, Any]] = {
    "conv": {"backbone": "conv", "channels": 3, "width": 32},
    "lite0": {"backbone": "timm:tf_efficientnet_lite0", "freeze_bn": True},
}
CHUNKED = ((64, None), (64, 16), (256, 16), (256, 64), (1024, 16), (1024, 64))  # batch, chunk
FORGET_PEAK = Path("/proc/self/clear_refs")  # writing 5 to it sets the high-water mark of memory back
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}  # as the Makefile says
FOLDS = 4  # heads of a task of the reality check
SECONDS = 0.3  # of a turn, in which as many steps are taken as fit


# ---------------------------------------------------------------------------------------------------------------
# The processes that take turns


class Turns:
    """In a process that trains: called after every step, waits to be asked for more and says how long those took."""

    def __init__(self, threads: int) -> None:
        self.clock = time.process_time if threads == 1 else time.perf_counter
        self.left, self.begun, self.before = 0, 0.0, 0.0

    def __call__(self, *_: Any) -> None:
        self.left -= 1
        if self.left > 0:
            return
        if self.begun:
            found = {"seconds": self.clock() - self.begun, "mb": _megabytes("VmHWM") - self.before}
            print(json.dumps(found), flush=True)
        line = sys.stdin.readline()
        if not line:
            raise SystemExit
        if not self.begun:
            _give_back()
        if FORGET_PEAK.exists():
            FORGET_PEAK.write_text("5")
        self.left, self.before = int(line), _megabytes("VmRSS")
        self.begun = self.clock()


def _give_back() -> None:
    """Return memory that is free but kept for later, so that it does not count as what a step starts from."""
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def _megabytes(key: str) -> float:
    """What Linux says of this process's memory; NaN elsewhere."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(key)), math.nan)


class Trainer:
    """A process that trains as `case` says whenever it is asked to."""

    def __init__(self, case: dict[str, Any], threads: int) -> None:
        command = [sys.executable, "-m", "benchmarks.speed_training", "--case", json.dumps(case | {"threads": threads})]
        env = {**os.environ, **KEEP_MEMORY, "GOMP_SPINCOUNT": "0", "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        second = self._take(1)  # the first one makes what stays
        self.mb, self.steps = second["mb"], max(1, round(SECONDS / second["seconds"]))

    def _take(self, steps: int) -> dict[str, float]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} failed")
        found: dict[str, float] = json.loads(line)
        return found

    def seconds(self) -> float:
        """Time of a step, over the steps of one turn."""
        return self._take(self.steps)["seconds"] / self.steps

    def close(self) -> None:
        """Tell the process that nothing more is asked of it."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def in_turns(cases: list[dict[str, Any]], threads: int, rounds: int) -> tuple[list[list[float]], list[float]]:
    """Seconds of a step of each case, turn by turn, and the peak of extra memory of a step of each."""
    trainers: list[Trainer] = []
    try:
        for case in cases:
            trainers.append(Trainer(case, threads))
        turns = [[trainer.seconds() for trainer in trainers] for _ in range(rounds)]
        return [list(times) for times in zip(*turns, strict=True)], [trainer.mb for trainer in trainers]
    finally:
        for trainer in trainers:
            trainer.close()


# ---------------------------------------------------------------------------------------------------------------
# What they do


def features() -> tuple[Any, str]:
    """A dataset of features, and what it is."""
    import numpy as np

    from nearfield import data

    real = Path(os.environ.get("NEARFIELD_DATA", "")) / "cub200_efficientnet_lite0_224.npz"
    if real.is_file():
        return data.load(str(real)), "features of CUB-200-2011"
    rng = np.random.default_rng(0)
    return of_random_labels(rng.normal(size=(11788, 1280)).astype(np.float32)), "random features"


def of_random_labels(images: Any) -> Any:
    """A dataset of these images, half of whose 200 classes are to train on."""
    import numpy as np

    from nearfield.data import Dataset

    labels, names = np.arange(len(images)) % 200, tuple(map(str, range(200)))
    alike, classes = np.zeros(200, np.int64), np.arange(200)
    return Dataset("random", images, labels, names, alike, ("all",), classes[:100], classes[100:], "random", "Random.")


def run_config(case: dict[str, Any]) -> Any:
    """A run of so many steps that its validation is never reached."""
    from nearfield.config import RunConfig, build_config

    name, params = METHODS[case["method"]]
    network = {"backbone": "features"} if case["network"] is None else NETWORKS[case["network"]]
    endless = {"steps": 10**9, "eval_every": 10**9, "threads": case["threads"], "chunk": case["chunk"]}
    values = {
        "method": {"name": name, "params": params},
        "model": {**network, "dim": DIM},
        "sampler": {"name": "m_per_class", "batch_size": case["batch"], "per_class": per_class(case["batch"])},
        "optimizer": {"lr": 1e-4},
        **endless,
    }
    return build_config(RunConfig, values)


def per_class(batch: int) -> int:
    """Images of a class in a batch: 4, or as many as 64 classes need."""
    return max(4, batch // 64)


def train_ours(case: dict[str, Any], after_step: Callable[..., None]) -> None:
    """The loop of this library."""
    import numpy as np

    from nearfield.training.loop import train

    if case["network"] is None:
        dataset, _ = features()
    else:
        dataset = of_random_labels(np.random.default_rng(0).integers(0, 256, (4000, SIDE, SIDE, 3), dtype=np.uint8))
    with tempfile.TemporaryDirectory() as folder:
        train(run_config(case), Path(folder), after_step, dataset=dataset)


def train_plainly(case: dict[str, Any], after_step: Callable[..., None]) -> None:
    """The loop that everybody writes."""
    import torch
    from pytorch_metric_learning import losses, miners, samplers
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from nearfield.training.batches import supply_of

    supply = supply_of(features()[0], run_config(case).data)
    assert supply.features is not None
    x, y = supply.features.float(), supply.fit_labels
    torch.set_num_threads(case["threads"])
    head = nn.Linear(x.shape[1], DIM)
    miner = miners.MultiSimilarityMiner() if case["method"] == "multi_similarity" else None
    criterion = {
        "multi_similarity": losses.MultiSimilarityLoss,
        "contrastive": losses.ContrastiveLoss,
        "proxy_anchor": lambda: losses.ProxyAnchorLoss(int(y.max()) + 1, DIM),
    }[case["method"]]()
    sampler = samplers.MPerClassSampler(y, per_class(case["batch"]), case["batch"], length_before_new_iter=len(y))
    loader = DataLoader(TensorDataset(x, y), case["batch"], sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW([*head.parameters(), *criterion.parameters()], lr=1e-4)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            embeddings = head(images)
            pairs = None if miner is None else miner(embeddings, labels)
            loss = criterion(embeddings, labels, pairs)
            loss.backward()
            optimizer.step()
            loss.item()
            after_step()


def train_folds(case: dict[str, Any], after_step: Callable[..., None]) -> None:
    """The steps of several heads with the loss of this library: one head after the other, or all of them at once."""
    import torch
    from torch import nn

    from nearfield import losses

    torch.set_num_threads(case["threads"])
    torch.manual_seed(0)
    features, labels = torch.randn(4000, 1280), torch.arange(case["batch"]) // 4
    name, params = METHODS[case["method"]]
    criteria = [losses.create(name, **params) for _ in range(FOLDS)]
    weights = nn.Parameter(torch.randn(FOLDS, 1280, DIM) / 36)
    heads = [weights] if case["who"] == "at once" else [nn.Parameter(w.detach().clone()) for w in weights]
    optimizers = [torch.optim.AdamW([head], lr=1e-4, fused=True) for head in heads]
    while True:
        rows = torch.randint(len(features), (FOLDS, case["batch"]))
        if case["who"] == "at once":
            embeddings = torch.bmm(features[rows], weights)
            torch.stack([loss(x, labels) for loss, x in zip(criteria, embeddings, strict=True)]).sum().backward()
        else:
            for head, loss, row in zip(heads, criteria, rows, strict=True):
                loss(features[row] @ head, labels).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        after_step()


def run_seeds(case: dict[str, Any], after_step: Callable[..., None]) -> None:
    """Seed tasks of the bench on features, one after the other; a step is a task."""
    from itertools import count

    from nearfield.bench.plan import Task
    from nearfield.bench.protocols import protocol
    from nearfield.bench.run_task import run_task
    from nearfield.config import RunConfig, build_config

    dataset, _ = features()
    for seed in count():
        run = build_config(RunConfig, _seed_run(case) | {"seed": seed})
        task = Task(case["method"], "seed", seed, run, f"seed-{seed}")
        with tempfile.TemporaryDirectory() as folder:
            run_task(task, protocol("reality-check"), dataset, Path(folder), lambda: False, lambda share: None)
        after_step()


def score_plainly(case: dict[str, Any], after_step: Callable[..., None]) -> None:
    """One scoring of test embeddings by the accuracy calculator of pytorch-metric-learning; a step is a scoring."""
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    torch.set_num_threads(case["threads"])
    dataset, _ = features()
    rows = dataset.test_rows()
    points, labels = torch.from_numpy(dataset.images[rows]).float()[:, :DIM], torch.from_numpy(dataset.labels[rows])
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
    while True:
        calculator.get_accuracy(points.contiguous(), labels)
        after_step()


def _seed_run(case: dict[str, Any]) -> dict[str, Any]:
    """The run of `docs/benches/cub-features.toml`."""
    import tomllib

    values = tomllib.loads((Path(__file__).parent.parent / "docs/benches/cub-features.toml").read_text())["run"]
    name, params = METHODS[case["method"]]
    return {**values, "method": {"name": name, "params": params}, "threads": case["threads"]}


LOOPS = {
    "ours": train_ours,
    "plain": train_plainly,
    "one by one": train_folds,
    "at once": train_folds,
    "task": run_seeds,
    "scoring": score_plainly,
}


# ---------------------------------------------------------------------------------------------------------------
# Tables


def heads(methods: list[str], threads: int, rounds: int) -> None:
    """Steps a second of both loops."""
    rows = []
    for method in methods:
        for batch in BATCHES:
            case = {"method": method, "network": None, "batch": batch, "chunk": None}
            (ours, plain), _ = in_turns([case | {"who": who} for who in ("ours", "plain")], threads, rounds)
            speeds = [f"{1 / statistics.median(times):,.0f}" for times in (ours, plain)]
            rows.append([method, str(batch), *speeds, f"{_ratio(plain, ours):.1f}"])
            print(".", end="", file=sys.stderr, flush=True)
    print(f"\nA head of {DIM} dims on {features()[1]}, {threads} thread(s); steps a second.\n")
    print_table(["loss", "batch", "ours", "plain loop with PML", "x plain loop"], rows)


def seed_tasks(methods: list[str], threads: int, rounds: int) -> None:
    """A seed task as a multiple of its training steps, and of a plain loop with as many steps and scorings."""
    rows = []
    for method in methods:
        case = {"method": method, "network": None, "batch": 128, "chunk": None}
        run = _seed_run(case | {"threads": threads})
        steps, scorings = FOLDS * run["steps"], FOLDS * (run["steps"] // run["eval_every"] + 2) + 1
        cases = [case | {"who": who} for who in ("task", "ours", "plain", "scoring")]
        (task, ours, plain, scoring), _ = in_turns(cases, threads, min(rounds, 5))
        own = [steps * step for step in ours]
        other = [steps * step + scorings * score for step, score in zip(plain, scoring, strict=True)]
        times = [f"{statistics.median(each):.1f}" for each in (task, own, other)]
        rows.append([method, *times, f"{_ratio(task, own):.1f}", f"{_ratio(task, other):.2f}"])
        print(".", end="", file=sys.stderr, flush=True)
    print(f"\nOne seed of a method on {features()[1]}: {FOLDS} folds, {scorings} scorings of the test, seconds.\n")
    print_table(["loss", "seed task", "its steps", "plain loop with PML", "x its steps", "x plain loop"], rows)


def several_heads(methods: list[str], threads: int, rounds: int) -> None:
    """What a batched product for the heads of all folds would gain."""
    rows = []
    for method in methods:
        for batch in BATCHES:
            case = {"method": method, "batch": batch}
            cases = [case | {"who": who} for who in ("one by one", "at once")]
            (apart, together), _ = in_turns(cases, threads, rounds)
            times = [f"{1e3 * statistics.median(times):.1f}" for times in (apart, together)]
            rows.append([method, str(batch), *times, f"{_ratio(apart, together):.2f}"])
            print(".", end="", file=sys.stderr, flush=True)
    print(f"\nSteps of {FOLDS} heads of {DIM} dims on 1,280 features, {threads} thread(s); milliseconds.\n")
    print_table(["loss", "batch", "one by one", "at once", "gain x"], rows)


def chunks(networks: list[str], threads: int, rounds: int) -> None:
    """Time of an image, and memory, in chunked steps beside a whole step of 64."""
    rows = []
    for network in networks:
        common = {"who": "ours", "method": "multi_similarity", "network": network}
        cases = [common | {"batch": batch, "chunk": chunk} for batch, chunk in CHUNKED]
        whole = cases[0]
        for case, (batch, chunk) in zip(cases, CHUNKED, strict=True):
            (base, times), (_, mb) = in_turns([whole, case], threads, rounds)
            share = batch / CHUNKED[0][0]
            name = "whole" if chunk is None else str(chunk)
            cost = f"{_ratio(times, base) / share:.2f}"
            rows.append([network, str(batch), name, f"{1e3 * statistics.median(times):,.0f}", cost, f"{mb:.0f}"])
            print(".", end="", file=sys.stderr, flush=True)
    print(f"\nSteps on random pictures of {SIDE} px, multi_similarity, {threads} thread(s).")
    print("x: time of an image as a multiple of that in a whole step of 64. MB: peak extra memory of a step.\n")
    print_table(["network", "batch", "chunk", "ms", "x", "MB"], rows)


def _ratio(a: list[float], b: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(a, b, strict=True))


TABLES = {"heads": heads, "seed_tasks": seed_tasks, "several_heads": several_heads, "chunks": chunks}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[*METHODS, *NETWORKS], help="losses or networks")
    parser.add_argument("--tables", nargs="+", choices=[*TABLES], default=[*TABLES], help="which tables (default: all)")
    parser.add_argument("--rounds", type=int, default=11, help="turns that each process takes")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        case = json.loads(arguments.case)
        LOOPS[case["who"]](case, Turns(case["threads"]))
        return
    methods, networks = ([name for name in group if name in arguments.only] for group in (METHODS, NETWORKS))
    unparametrized = [name for name in methods if name != "proxy_anchor"]  # which learns proxies beside the heads
    shown = {"heads": methods, "seed_tasks": methods, "several_heads": unparametrized, "chunks": networks}
    for table, names in shown.items():
        if names and table in arguments.tables:
            TABLES[table](names, arguments.threads, arguments.rounds)


if __name__ == "__main__":
    main()
