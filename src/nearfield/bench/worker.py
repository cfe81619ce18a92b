"""A worker: plans, takes a task, does it, records it, until nothing is left. Any number of them, on any machines.

A claim on a task expires unless a thread of its worker renews it, so that another worker takes over from a dead one. A
worker that lost its task, because it was thought dead, finds out when it renews the claim or records, and discards.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nearfield.bench.database import Store
from nearfield.bench.plan import Bench, Course, Outcome, Task, to_do
from nearfield.bench.protocols import Protocol
from nearfield.config import BenchConfig, build_config
from nearfield.data import Dataset, decoded
from nearfield.errors import InputError, RunError
from nearfield.training.run_folder import Busy

PATIENCE = 60.0  # seconds after which a silent worker is thought dead
WAIT = 0.5  # seconds between two looks at the queue
Say = Callable[[str], None]


class Claim:
    """A task that is held: a thread renews the claim until the block ends, or it is lost."""

    def __init__(self, store: Store, key: str, owner: str, patience: float) -> None:
        self.lost = False
        self.share = 0.0
        self._store, self._key, self._owner, self._patience = store, key, owner, patience
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Claim:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def progress(self, share: float) -> None:
        """Remember how much is done; the next renewal tells it."""
        self.share = share

    def _renew(self) -> None:
        while not self._ended.wait(self._patience / 6):
            try:
                held = self._store.beat(self._key, self._owner, self._patience, self.share)
            except RunError:  # the database is away: it may come back before the claim expires
                continue
            if not held:
                self.lost = True
                return


class Worker:
    """Does the tasks of one bench."""

    def __init__(
        self, store: Store, digest: str, folder: Path, stop: Callable[[], bool], say: Say, patience: float = PATIENCE,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        self.store, self.folder, self.stop, self.say = store, folder, stop, say
        self.patience, self.threads = patience, threads
        self.owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.bench, self.dataset = open_bench(store, digest)
        self.finished: dict[str, Outcome] = {}
        self.courses: list[Course] = []  # as they were at the last look
        self._entered: set[tuple[str, str, int, str]] = set()

    def work(self, once: bool = False) -> int:
        """Do tasks until none is left, or just one; how many were done."""
        done = 0
        while not self.stop():
            waiting = self.look()
            if not waiting:
                break
            task = self._take(waiting)
            if task is None:
                time.sleep(WAIT)
                continue
            self.do(task)
            done += 1
            if once:
                break
        return done

    def look(self) -> list[Task]:
        """What is to be done now; on the way, finished tasks are entered into the bench."""
        if self.store.update(self.finished) or not self.courses:
            self.courses = [self.bench.course(index, self.finished) for index in range(len(self.bench.config.methods))]
            self._enter([task for course in self.courses for task, outcome in course if outcome is not None])
        return to_do(self.courses)

    def _enter(self, tasks: list[Task]) -> None:
        new = [task for task in tasks if (*_place(task), task.key) not in self._entered]
        self.store.enter(self.bench.digest, new)
        self._entered |= {(*_place(task), task.key) for task in new}

    def _take(self, waiting: list[Task]) -> Task | None:
        taken = self.store.taken()
        free = (task for task in waiting if task.key not in taken)
        return next((task for task in free if self.store.claim(task, self.owner, self.patience)), None)

    def do(self, task: Task) -> None:
        """Do a task that is claimed, and record, release or fail it."""
        from nearfield.bench.run_task import run_task
        from nearfield.training.loop import Interrupted

        self._enter([task])
        folder, begun = self.folder / "runs" / folder_name(task), time.monotonic()
        with Claim(self.store, task.key, self.owner, self.patience) as claim:

            def stop() -> bool:
                return claim.lost or self.stop()

            def run(where: Path) -> Any:
                return run_task(task, self.bench, self.dataset, where, stop, claim.progress, self.threads)

            try:
                try:
                    outcome, queries = run(folder)
                except Busy:  # a worker that was thought dead still holds it
                    folder = folder.with_name(f"{folder.name}-{self.owner}")
                    outcome, queries = run(folder)
            except (Interrupted, KeyboardInterrupt):
                if not claim.lost:
                    self.store.release(task.key, self.owner)
                self.say(f"{task.name}: {'lost to another worker' if claim.lost else 'stopped'}")
                return
            except Exception as error:  # whatever it is, the others go on
                shutil.rmtree(folder, ignore_errors=True)
                self.store.fail(task.key, self.owner, f"{type(error).__name__}: {error}")
                self.say(f"{task.name} failed: {error}")
                return
            if task.kind == "seed":
                outcome["folder"] = str(folder.relative_to(self.folder))
            seconds = time.monotonic() - begun
            mine = self.store.record(task.key, self.owner, outcome, queries, seconds)
        if task.kind != "seed":
            shutil.rmtree(folder, ignore_errors=True)
        self.say(f"{task.name}: {outcome['state']} in {seconds:.1f} s" if mine else f"{task.name}: lost, discarded")


def open_bench(store: Store, digest: str) -> tuple[Bench, Dataset]:
    """A bench in the database and its data; InputError if the data here are not those of the bench."""
    facts = store.facts(digest)
    config = build_config(BenchConfig, facts["config"])
    dataset = bench_data(config)
    wanted = facts["data"]["fingerprint"]
    if dataset.fingerprint != wanted:
        raise InputError(
            f"{config.run.data.name} differs here from the data of the bench: its fingerprint is "
            f"{dataset.fingerprint[:12]}, that of the bench {wanted[:12]}. Bring the same data."
        )
    rules = {key: value for key, value in facts["protocol"].items() if key != "digest"}
    return Bench(config, build_config(Protocol, rules), wanted), dataset


def bench_data(config: BenchConfig) -> Dataset:
    """The data of a bench, opened once for all of its runs."""
    from nearfield.training.batches import open_data

    dataset = open_data(config.run.data)
    return decoded(dataset) if config.run.data.augment is None else dataset  # what is cropped has a cache of its own


def folder_name(task: Task) -> str:
    """A name for the task's folder that tells what it is; the key makes it unique."""
    what = f"{task.variant}-seed" if task.variant else task.kind
    return f"{re.sub(r'[^A-Za-z0-9_.=-]+', '-', task.label).strip('-')}-{what}{task.number}-{task.key}"


def _place(task: Task) -> tuple[str, str, int]:
    return task.label, task.variant or task.kind, task.number
