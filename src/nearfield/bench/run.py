"""The main job: train every method under equal conditions, in parallel, restartably.

`run_bench` writes down what the bench is, starts workers (`bench.worker`), and watches the database until they have
nothing left to do. Stopped at any time, the same call goes on.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfield.bench.database import FILE, Store
from nearfield.bench.estimate import seconds_left
from nearfield.bench.plan import Bench, as_tried, check_labels, label
from nearfield.bench.protocols import protocol
from nearfield.bench.read_results import read_results, remember_storage
from nearfield.bench.results import BenchResults
from nearfield.bench.search import distributions, frozen_trial, quiet_optuna
from nearfield.bench.worker import Worker, bench_data
from nearfield.config import BenchConfig
from nearfield.data import Dataset
from nearfield.errors import RunError

LOOK_EVERY = 1.0  # seconds
RESTARTS = 5  # of workers that die


@dataclass(frozen=True)
class Watched:
    """How far a bench is."""

    done: int  # tasks
    total: int
    running: tuple[tuple[str, float], ...]  # names of tasks and the share of each that is done
    seconds_left: float | None  # None before the first task is finished
    results: Callable[[], BenchResults]


Watch = Callable[[Watched], None]


def prepare(config: BenchConfig) -> tuple[Bench, Dataset]:
    """The bench and its data; InputError if a method, a parameter, the protocol or the data does not fit."""
    from nearfield.training.build import check_method

    check_labels(config)
    rules = protocol(config.protocol)
    for method in config.methods:
        check_method(config.run.model_copy(update={"method": method}))
    dataset = bench_data(config)
    rules.check(dataset)
    return Bench(config, rules, dataset.fingerprint), dataset


def run_bench(
    config: BenchConfig,
    folder: Path,
    jobs: int,
    watch: Watch,
    storage: str | None = None,
    patience: float | None = None,
) -> BenchResults:
    """Do what is not finished yet with `jobs` workers here, beside those elsewhere; the results, maybe incomplete.

    `storage` is the URL of the database, by default a file in `folder`. With no jobs this only watches. A task that
    fails twice is left out; `BenchResults.missing` says so.
    """
    bench, dataset = prepare(config)
    store = Store(storage or folder / FILE)
    try:
        store.open_bench(bench, facts_of(bench, dataset, store))
        remember_storage(folder, storage, bench.digest)
        observer = Worker(store, bench.digest, folder, lambda: False, lambda text: None)
        crew = Crew(folder, storage, bench.digest, jobs, patience)
        try:
            _watch(observer, crew, watch)
        finally:
            crew.stop()
            observer.look()
            watch(_watched(observer, crew))
            mirror(observer)
        return read_results(store, bench.digest, folder)
    finally:
        store.close()


def _watch(observer: Worker, crew: Crew, watch: Watch) -> None:
    """Look at the database until nothing is left to do."""
    mirrored = time.monotonic()
    while observer.look():
        crew.keep()
        watch(_watched(observer, crew))
        if time.monotonic() - mirrored > 30:
            mirror(observer)
            mirrored = time.monotonic()
        time.sleep(LOOK_EVERY)


def _watched(observer: Worker, crew: Crew) -> Watched:
    bench, store = observer.bench, observer.store
    running = tuple(store.taken().values())
    done = sum(outcome is not None for course in observer.courses for _, outcome in course)
    left = seconds_left(bench, store.entries_seconds(bench.digest), running, max(1, len(running), crew.size))
    return Watched(done, bench.total, running, left, lambda: read_results(store, bench.digest, observer.folder))


# ---------------------------------------------------------------------------------------------------------------
# What the bench is


def facts_of(bench: Bench, dataset: Dataset, store: Store) -> dict[str, Any]:
    """What is written down once: configuration, data, split, environment, and scores without any training."""
    from nearfield.bench.baselines import baselines, unequal
    from nearfield.training.batches import split
    from nearfield.training.run_folder import environment

    if bench.digest in store.benches():
        return store.facts(bench.digest)
    config, rules = bench.config, bench.protocol
    parts = [split(dataset, run.data) for run in rules.runs(config.run)]
    return {
        "config": config.model_dump(mode="json"),
        "protocol": {**rules.model_dump(mode="json"), "description": rules.description, "digest": rules.digest()},
        "data": dataset.summary(),
        "environment": environment(),
        "split": parts[0].fingerprint if len(parts) == 1 else "-".join(part.fingerprint[:12] for part in parts),
        "floors": baselines(config, dataset),
        "unequal": {
            label(run.method.name, run.method.params): unequal(run, parts[0].fit_classes) for _, run, _ in bench.starts
        },
    }


def mirror(observer: Worker) -> None:
    """Show the finished trials to Optuna's own tools, as one study for each method in the same database."""
    bench, store = observer.bench, observer.store
    if bench.config.trials == 1:
        return
    optuna = quiet_optuna()
    url = store.url.render_as_string(hide_password=False)
    with contextlib.suppress(Exception):  # a convenience, made up for next time: nothing else waits for it
        extra = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
        storage = optuna.storages.RDBStorage(url, engine_kwargs=extra)
        for index, (_, _, space) in enumerate(bench.starts):
            course = observer.courses[index]
            found = [(task, outcome) for task, outcome in course.trials if outcome is not None]
            name = f"{course.label} {bench.digest}"
            study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
            known = {trial.user_attrs.get("key") for trial in study.get_trials(deepcopy=False)}
            for task, outcome in found:
                if task.key not in known:
                    tried = as_tried(task.setting, outcome, bench.protocol)
                    study.add_trial(frozen_trial(tried, distributions(space), key=task.key, number=task.number))
        storage.engine.dispose()


# ---------------------------------------------------------------------------------------------------------------
# Processes: workers with one thread each, which stop when this one ends


class Crew:
    """Workers on this machine; one that dies is started again, a few times."""

    def __init__(self, folder: Path, storage: str | None, digest: str, jobs: int, patience: float | None) -> None:
        self.folder = folder
        self._command = [sys.executable, "-m", "nearfield", "worker", "--out", str(folder), "--bench", digest, "--tied"]
        self._command += [] if patience is None else ["--patience", str(patience)]
        self._environment = {**worker_environment(), "NEARFIELD_STORAGE": storage or str(folder / FILE)}
        self._restarts = RESTARTS
        self._logs = [folder / f"worker-{number}.log" for number in range(jobs)]
        self._children = [self._start(log) for log in self._logs]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._children)

    def keep(self) -> None:
        """Start those again that died; RunError with the last one's words if that does not help."""
        for index, child in enumerate(self._children):
            if child.poll() in (None, 0):
                continue
            if self._restarts == 0:
                lines = self._logs[index].read_text(encoding="utf-8", errors="replace").splitlines()
                raise RunError(
                    f"workers keep dying, the last with exit code {child.returncode}: {' | '.join(lines[-3:])} "
                    f"See {self._logs[index]}."
                )
            self._restarts -= 1
            self._children[index] = self._start(self._logs[index])

    def _start(self, log: Path) -> subprocess.Popen[bytes]:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for this process, which tells them
            )

    def stop(self, patience: float = 30.0) -> None:
        """Ask each to finish its step and save, then insist."""
        for child in self._children:
            child.terminate()
        deadline = time.monotonic() + patience
        for child in self._children:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def worker_environment() -> dict[str, str]:
    """The environment of a worker: threads that sleep while they wait, large arrays that stay with the process."""
    kept = {"GOMP_SPINCOUNT": "0", "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
    return {**kept, **os.environ}
