"""An engine for tests that runs every job in this process, at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from nearfield.bench import job as jobs
from nearfield.bench.engine import Answer, Engine, Job
from nearfield.bench.plan import Task
from nearfield.errors import RunError


class Inline(Engine):
    """One worker called "here"; `do` is what it does with a job, and `done` names what it was given."""

    def __init__(self, scratch: Path, do: Callable[[Job], Answer] | None = None) -> None:
        super().__init__()
        self.scratch, self.do, self.done = scratch, do or self.work, list[str]()

    def start(self, log: Path) -> None:
        pass

    def slots(self) -> int:
        if self._refused:
            raise RunError(f"no worker is left: {self._refused}")
        return 1

    def submit(self, job: Job) -> Future[Answer]:
        future: Future[Answer] = Future()
        self.done.append(Task.from_json(job["task"]).name)
        try:
            answer = self.do(json.loads(json.dumps(job)))  # what travels are plain values
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result({"worker": "here", **answer})
        return future

    def work(self, job: Job) -> Answer:
        return jobs.work(job, lambda: False, lambda share: None, str(self.scratch))
