"""The main job: train every method under equal conditions, in parallel, restartably, and rank the results."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfield.config import BenchConfig, RunConfig
from nearfield.data import Dataset
from nearfield.errors import RunError
from nearfield.runs import RunFolder, environment
from nearfield.store import Store

COLUMNS = ("recall@1", "recall@2", "recall@4", "recall@8", "r_precision", "map@r", "nmi")
Watch = Callable[["Job", int, dict[str, float]], None]  # (job, step, latest numbers)


@dataclass(frozen=True)
class Job:
    """One run of a bench and where it lives."""

    config: RunConfig
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.config.method.name} seed {self.config.seed}"

    @property
    def done(self) -> bool:
        return RunFolder(self.folder).result is not None


@dataclass(frozen=True)
class Standing:
    """A method's place on the leaderboard: mean over seeds and half-width of the 95 % t-interval, per metric."""

    method: str
    seeds: int
    mean: dict[str, float]
    half_width: dict[str, float | None]  # None for a single seed
    train_seconds: float


def plan(config: BenchConfig, folder: Path) -> list[Job]:
    """Every run and its folder; the folder's name carries the hash, so that a changed configuration is a new run."""
    return [Job(run, folder / "runs" / f"{run.method.name}-{run.seed}-{run.digest()}") for run in config.runs()]


def run_bench(config: BenchConfig, folder: Path, jobs: int, watch: Watch) -> list[Standing]:
    """Run what is not finished yet, `jobs` processes at a time, collect everything, and rank."""
    dataset = check_bench(config)  # rendered once here, not in every process
    pending = [job for job in plan(config, folder) if not job.done]
    store = Store(folder / "results.sqlite")
    store.set_meta(
        config=config.model_dump(mode="json"),
        digest=config.digest(),
        data=dataset.summary(),
        environment=environment(),
        pixels=pixel_baseline(dataset),
        untrained=untrained_baseline(config, dataset),
    )
    for job in plan(config, folder):
        if job.done:
            collect(store, job)
    run_jobs(pending, jobs, watch, lambda job: collect(store, job))
    return leaderboard(store, config)


def check_bench(config: BenchConfig) -> Dataset:
    """The dataset of the bench; InputError if a method, a parameter or the data does not exist."""
    from nearfield.training import check

    for method in config.methods:
        dataset = check(config.run.model_copy(update={"method": method}))
    return dataset


def pixel_baseline(dataset: Dataset) -> dict[str, float]:
    """Test scores of the raw pixels: what any method must beat."""
    import torch

    from nearfield.metrics import retrieval_metrics

    rows = dataset.test_rows()
    pixels = torch.from_numpy(dataset.images[rows]).flatten(1).float()
    return retrieval_metrics(pixels, dataset.labels[rows], metrics=("recall", "r_precision", "map_at_r"))


def untrained_baseline(config: BenchConfig, dataset: Dataset) -> dict[str, float]:
    """Test scores of the network as it is before training, mean over the seeds: what training must add to."""
    import torch

    from nearfield.models import build_model
    from nearfield.training import evaluate

    rows = dataset.test_rows()
    images, labels = torch.from_numpy(dataset.images[rows]), torch.from_numpy(dataset.labels[rows])
    models = [build_model(config.run.model, seed) for seed in config.seeds]
    found = [evaluate(model, images, labels, config.run.distance) for model in models]
    return {key: sum(scores[key] for scores in found) / len(found) for key in found[0]}


def collect(store: Store, job: Job) -> None:
    """Bring a finished run into the results file."""
    from safetensors.numpy import load_file

    run = RunFolder(job.folder)
    test = load_file(job.folder / "test.safetensors")
    queries = {name.removeprefix("score."): values for name, values in test.items() if name.startswith("score.")}
    facts = json.loads((job.folder / "environment.json").read_text(encoding="utf-8"))
    where = os.path.relpath(job.folder, store.path.parent)
    assert run.result is not None
    store.add_run(run.result, where, job.config.model_dump(mode="json"), facts, run.records(), queries)


def leaderboard(store: Store, config: BenchConfig) -> list[Standing]:
    """Methods of this bench by mean MAP@R, best first; what is not finished is not counted."""
    import numpy as np
    from scipy.special import stdtrit

    wanted = {run.digest() for run in config.runs()}
    finished = [row for row in store.runs() if row["run"] in wanted]
    standings = []
    for method in config.methods:
        digests = {r.digest() for r in config.runs() if r.method == method}
        rows = [row for row in finished if row["run"] in digests]
        if not rows:
            continue
        values = {c: np.array([row["test"][c] for row in rows]) for c in COLUMNS}
        n = len(rows)
        quantile = float(stdtrit(n - 1, 0.975)) if n > 1 else 0.0
        half = {c: quantile * float(v.std(ddof=1)) / n**0.5 if n > 1 else None for c, v in values.items()}
        mean = {c: float(v.mean()) for c, v in values.items()}
        seconds = float(np.mean([row["train_seconds"] for row in rows]))
        standings.append(Standing(label(method.name, method.params), n, mean, half, seconds))
    return sorted(standings, key=lambda s: -s.mean["map@r"])


def label(name: str, params: dict[str, Any]) -> str:
    """A method's name with the parameters that differ from its defaults."""
    return name + (f"({', '.join(f'{k}={v}' for k, v in params.items())})" if params else "")


# ---------------------------------------------------------------------------------------------------------------
# Processes: one for each run, one thread each, ended when this one ends


def run_jobs(pending: Iterable[Job], jobs: int, watch: Watch, finished: Callable[[Job], None]) -> None:
    """Run jobs in `jobs` processes at a time; the first failure or Ctrl-C stops the rest, which save and can resume."""
    waiting = list(pending)
    messages: queue.Queue[tuple[Job, Any]] = queue.Queue()
    running: dict[Path, subprocess.Popen[str]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                job = waiting.pop(0)
                running[job.folder] = _start(job, messages)
            job, message = messages.get()
            if isinstance(message, dict):
                watch(job, message["step"], message)
                continue
            running.pop(job.folder)
            code, errors = message
            if code != 0:
                raise RunError(f"{job.name} failed: {errors.strip() or f'exit code {code}'}")
            finished(job)
    finally:
        _stop(list(running.values()))


def _start(job: Job, messages: queue.Queue[tuple[Job, Any]]) -> subprocess.Popen[str]:
    from nearfield.files import write_text

    config = job.folder / "config.toml"
    if not config.exists():
        write_text(config, job.config.to_toml())
    command = [sys.executable, "-m", "nearfield", "train", str(config), "--out", str(job.folder), "--progress", "json"]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=worker_environment(),
        start_new_session=True,
    )
    threading.Thread(target=_listen, args=(job, child, messages), daemon=True).start()
    return child


def _listen(job: Job, child: subprocess.Popen[str], messages: queue.Queue[tuple[Job, Any]]) -> None:
    errors: list[str] = []
    assert child.stdout is not None
    assert child.stderr is not None
    drain = threading.Thread(target=lambda: errors.extend(child.stderr or ()), daemon=True)
    drain.start()
    with child.stdout, child.stderr:
        for line in child.stdout:
            messages.put((job, json.loads(line)))
        drain.join()
    messages.put((job, (child.wait(), "".join(errors))))


def _stop(children: list[subprocess.Popen[str]], patience: float = 30.0) -> None:
    """Ask each child to finish its step and save, then insist."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + patience
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def worker_environment() -> dict[str, str]:
    """The environment of a worker: threads that sleep while they wait, large arrays that stay with the process."""
    kept = {"GOMP_SPINCOUNT": "0", "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
    return {**kept, **os.environ}


def estimate_seconds(config: BenchConfig, dataset: Dataset, jobs: int, pending: list[Job]) -> float:
    """Time that the runs will take, from a few training steps of the first one made now."""
    import torch

    from nearfield.training import time_steps

    if not pending:
        return 0.0
    torch.set_num_threads(config.run.threads)
    per_step = time_steps(config.run, dataset)
    return per_step * config.run.steps * -(-len(pending) // jobs) * 1.15  # evaluation and start-up take some
