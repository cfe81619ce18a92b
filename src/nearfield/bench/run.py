"""The main job: train every method under equal conditions, in parallel, restartably.

`run_bench` is the driver. It plans, submits what can be done to an engine, and records each result as it arrives; it
alone writes the database. Killed at any time, the same call resumes: from the database, and within a task from its
checkpoints.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nearfield.bench.database import FILE, Store
from nearfield.bench.engine import Engine, Sign, WorkerDied
from nearfield.bench.estimate import Pace, seconds_left, typical_seconds
from nearfield.bench.fit import check_batch, fit_batch
from nearfield.bench.interrupts import heard
from nearfield.bench.job import MARK, Answer, bench_data, file_digest, job_of, receive
from nearfield.bench.plan import Bench, Course, Outcome, Task, check_labels, label, start_of, to_do
from nearfield.bench.protocols import Protocol, protocol
from nearfield.bench.read_results import read_results
from nearfield.bench.results import BenchResults
from nearfield.config import BenchConfig
from nearfield.data import Dataset
from nearfield.errors import InputError, RunError
from nearfield.files import write_text
from nearfield.training.run_folder import RunFolder

LOOK_EVERY = 1.0  # seconds
TRIES = 2  # of a task that fails, before the bench continues without it
HANGS = 3600.0  # seconds of silence after which a task counts as hung, unless such tasks take long
LOG = "workers.log"
TRAINING = "training"  # the phase in which tasks run


@dataclass(frozen=True)
class Watched:
    """The progress of a bench."""

    done: int  # tasks
    total: int
    running: tuple[tuple[str, float], ...]  # names of tasks and the share of each that is done
    seconds_left: float | None  # None before there is anything to judge by
    results: Callable[[], BenchResults]
    phase: str = TRAINING


Watch = Callable[[Watched], None]
Say = Callable[[str], None]


def prepare(config: BenchConfig, fit: bool = False, say: Say | None = None) -> tuple[Bench, Dataset]:
    """The bench and its data; InputError if a method, a parameter, the protocol, the data or the batch does not fit.

    With `fit` a batch that is too large for the classes is made smaller, and `say` told so.
    """
    return _open_data(config, _check_config(config), fit, say or _quiet)


def _check_config(config: BenchConfig) -> Protocol:
    """The protocol; InputError if it does not exist, or a method or one of its parameters."""
    from nearfield.training.build import check_method

    check_labels(config)
    if config.trial_steps and config.trial_steps > config.run.steps:
        most = f"at most run.steps, {config.run.steps}"
        raise InputError(f"trial_steps must be {most}; got {config.trial_steps}. Leave it out for as many steps.")
    rules = protocol(config.protocol)
    for method in config.methods:
        check_method(start_of(config, method))
    return rules


def _open_data(config: BenchConfig, rules: Protocol, fit: bool, say: Say) -> tuple[Bench, Dataset]:
    dataset = bench_data(config.run.data)
    rules.check(dataset)
    if fit:
        config, said = fit_batch(config, rules, dataset)
        if said:
            say(said)
    else:
        check_batch(config, rules, dataset)
    return Bench(config, rules, dataset.fingerprint, file_digest(config.run.model.weights)), dataset


def run_bench(
    config: BenchConfig, folder: Path, engine: Engine, watch: Watch, say: Say | None = None, fit: bool = False
) -> BenchResults:
    """Do what is not finished yet on the engine, which is started when it is needed; the results, maybe incomplete.

    A task that fails twice, kills its worker repeatedly or hangs is left out; `BenchResults.missing` says so.
    """
    say = say or _quiet
    rules = _check_config(config)
    total = Bench(config, rules, "").total
    watch(Watched(0, total, (), None, _nothing, "reading the data"))
    bench, dataset = _open_data(config, rules, fit, say)
    with RunFolder(folder).locked(timeout=1.0):
        store = Store(folder / FILE)
        if bench.digest not in store.benches():
            watch(Watched(0, total, (), None, _nothing, "scoring the baselines"))
        store.open_bench(bench, facts_of(bench, dataset, store))
        driver = Driver(bench, store, folder, engine, watch, say)
        if driver.waiting:
            driver.work()
        return read_results(store, bench.digest, folder)


def _quiet(line: str) -> None:
    pass


def _nothing() -> BenchResults:
    raise RunError("there are no results yet.")


@dataclass
class Running:
    """A task that was submitted."""

    task: Task
    first: Sign | None = None  # of its first steps: before, a worker reads data and builds a network
    last: Sign | None = None  # of progress

    def hear(self, sign: Sign | None) -> None:
        """Take notice of a sign of life."""
        if sign is None or sign == self.last:
            return
        if sign.share > 0 and (self.first is None or sign.worker != self.first.worker):
            self.first = sign
        moved = self.last is None or sign.share != self.last.share or sign.worker != self.last.worker
        self.last = sign if moved else self.last

    @property
    def pace(self) -> Pace:
        """How far it is and how fast."""
        if self.first is None or self.last is None:
            return Pace(self.task.label, 0.0, None)
        gained = self.last.share - self.first.share
        seconds = (self.last.at - self.first.at) / gained if gained > 0 else None
        return Pace(self.task.label, self.last.share, seconds)


@dataclass
class Driver:
    """Submits what can be done and records what comes back; the only writer of the results."""

    bench: Bench
    store: Store
    folder: Path
    engine: Engine
    watch: Watch
    say: Say
    running: dict[Future[Answer], Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.finished: dict[str, Outcome] = self.store.finished()
        self.failures: Counter[str] = Counter()
        self.mark = uuid.uuid4().hex
        self._entered: set[tuple[str, str]] = set()
        self.courses = [Course(name) for name in self.bench.labels]
        self._look()

    def work(self) -> None:
        """Run everything that is waiting, and what it leads to."""
        self._show("starting the workers" if self.engine.cluster is None else f"connecting to {self.engine.cluster}")
        write_text(self.folder / MARK, self.mark)
        self.engine.start(self.folder / LOG)
        if self.engine.dashboard:
            self.say(f"Dashboard: {self.engine.dashboard}")
        try:
            with heard() as interrupted:
                while self.waiting or self.running:
                    if interrupted():
                        raise KeyboardInterrupt
                    self._work_on()
        except KeyboardInterrupt:
            self._show("stopping")
            raise
        finally:
            self.engine.cancel(self.running)
            (self.folder / MARK).unlink(missing_ok=True)

    def _work_on(self) -> None:
        """Submit what can be submitted, and take what has come back."""
        free = self._submit()
        for future in self.engine.wait(self.running, LOOK_EVERY):
            self._take(future)
        if not free:
            time.sleep(LOOK_EVERY)
        self._end_hung()
        self._show(TRAINING if free or self.running else "waiting for workers")

    def _look(self, key: str | None = None) -> None:
        """Plan again, all methods or those that the task `key` is of; finished tasks are entered into the bench."""
        for index, course in enumerate(self.courses):
            if key is None or any(task.key == key for task, _ in course):
                self.courses[index] = self.bench.course(index, self.finished)
        new = [task for course in self.courses for task, outcome in course if outcome is not None]
        self.store.enter(self.bench.digest, [task for task in new if (task.name, task.key) not in self._entered])
        self._entered |= {(task.name, task.key) for task in new}
        busy = {each.task.key for each in self.running.values()}
        self.waiting = [task for task in to_do(self.courses) if task.key not in busy]

    def _submit(self) -> bool:
        """Keep every thread of the cluster busy; whether there is any."""
        slots = self.engine.slots()
        while self.waiting and len(self.running) < slots:
            task = self.waiting.pop(0)
            job = job_of(task, self.bench, self.folder, self.mark)
            self.running[self.engine.submit(job)] = Running(task)
        return slots > 0

    def _take(self, future: Future[Answer]) -> None:
        """Record what came back: the outcome of a task, that it failed, or that it has to be submitted again."""
        task = self.running.pop(future).task
        try:
            answer = self.engine.answer(future, task.key) or {"stopped": True}
        except WorkerDied as error:
            self._fail(task, str(error), tries=1)
        except Exception as error:  # it could not be sent, or its answer could not
            self._fail(task, f"{type(error).__name__}: {error}")
        else:
            if "outcome" in answer:
                self._record(task, answer)
            elif "error" in answer:
                self._fail(task, answer["error"])
            elif "refused" in answer:
                self.engine.exclude(answer["worker"], answer["refused"])
                self.say(f"worker {answer['worker']} refused: {answer['refused']}")
        self._look(task.key)

    def _record(self, task: Task, answer: Answer) -> None:
        outcome, size = answer["outcome"], receive(answer, self.folder)
        if size:
            self.say(f"{task.name}: {size / 1e6:.1f} MB of files received")
        if task.kind == "seed":
            outcome["folder"] = answer["folder"]
        self.store.record(task, outcome, answer["queries"], answer["seconds"], answer["made_by"])
        self.finished[task.key] = outcome
        if task.kind != "seed":
            shutil.rmtree(self.folder / answer["folder"], ignore_errors=True)

    def _fail(self, task: Task, error: str, tries: int = TRIES) -> None:
        """Give a task up after its last try; it is tried again when the bench is run again."""
        self.failures[task.key] += 1
        if self.failures[task.key] >= tries:
            self.store.fail(task, error)
            self.finished[task.key] = {"state": "failed", "error": error}
            self.say(f"{task.name} failed: {error}")

    def _end_hung(self) -> None:
        """Give up tasks without progress for an hour, and for ten times as long as such a task takes altogether."""
        spent = self.store.seconds_spent(self.bench.digest)
        for future, each in list(self.running.items()):
            each.hear(self.engine.signs.get(each.task.key))
            limit = max(HANGS, 10 * typical_seconds(each.task.label, spent), 10 * (each.pace.seconds or 0.0))
            if each.last is not None and time.monotonic() - each.last.at > limit:
                del self.running[future]
                future.cancel()
                self.engine.restart(each.last.worker)
                self._fail(each.task, f"no progress for {limit / 60:.0f} minutes at {each.last.worker}", tries=1)
                self._look(each.task.key)

    def _show(self, phase: str) -> None:
        paces = [each.pace for each in self.running.values()]
        running = tuple((each.task.name, pace.share) for each, pace in zip(self.running.values(), paces, strict=True))
        done = sum(outcome is not None for course in self.courses for _, outcome in course)
        spent = self.store.seconds_spent(self.bench.digest)
        left = seconds_left(self.bench, spent, paces, max(1, len(running)))
        results = partial(read_results, self.store, self.bench.digest, self.folder)
        self.watch(Watched(done, self.bench.total, running, left, results, phase))


def facts_of(bench: Bench, dataset: Dataset, store: Store) -> dict[str, Any]:
    """What is written down once: configuration, data, split, environment, and the baselines."""
    from nearfield.bench.baselines import baselines, unequal
    from nearfield.metrics.dataset_scores import query_labels
    from nearfield.training.batches import split
    from nearfield.training.run_folder import environment

    if bench.digest in store.benches():
        return {"query_classes": query_labels(dataset).tolist(), **store.facts(bench.digest)}
    config, rules = bench.config, bench.protocol
    parts = [split(dataset, run.data) for run in rules.runs(config.run)]
    return {
        "config": config.model_dump(mode="json"),
        "protocol": {**rules.model_dump(mode="json"), "description": rules.description, "digest": rules.digest()},
        "data": dataset.summary(),
        "query_classes": query_labels(dataset).tolist(),
        "environment": environment(),
        "split": parts[0].fingerprint if len(parts) == 1 else "-".join(part.fingerprint[:12] for part in parts),
        "floors": baselines(config, dataset),
        "unequal": {
            label(run.method.name, run.method.params): unequal(run, parts[0].fit_classes, config.published)
            for _, run, _ in bench.starts
        },
    }
