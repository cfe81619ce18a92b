"""The folder of an unfinished fit: what was decided and done, so that the same command resumes.

model.work/   fit.json         the data's fingerprint, every decision that depends on time, the time spent
              features.npz     features of all images
              runs/            a run folder for each training
              model/           the model, until it is complete and becomes the folder `model`
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from nearfield.errors import InputError
from nearfield.files import read_json, write_json
from nearfield.training.run_folder import RunFolder

FORMAT = 1
LATE = 2.0  # times the budget after which a training is stopped
GRACE = 60.0  # seconds that it may always take longer
Value = TypeVar("Value")


class Work:
    """Decisions, each made once, and the clock of a fit."""

    def __init__(self, path: Path, fingerprint: str, minutes: float) -> None:
        self.path, self.budget = path, 60 * minutes
        self._begun = time.monotonic()
        self._file = path / "fit.json"
        facts: dict[str, Any] = {"format": FORMAT, "data": fingerprint, "seconds": 0.0, "decisions": {}}
        known = read_json(self._file) if self._file.exists() else facts
        if (known.get("format"), known.get("data")) != (FORMAT, fingerprint):
            raise InputError(f"{path} holds an unfinished fit of other data; delete it, or choose another --out.")
        self.resumed = self._file.exists()
        self._facts = known

    @property
    def spent(self) -> float:
        """Seconds, those of interrupted attempts included."""
        return float(self._facts["seconds"]) + time.monotonic() - self._begun

    @property
    def left(self) -> float:
        """Seconds of the budget that are left, at least 0."""
        return max(0.0, self.budget - self.spent)

    def is_late(self) -> bool:
        """Whether a training must be stopped."""
        return self.spent > LATE * self.budget + GRACE

    def decide(self, name: str, make: Callable[[], Value]) -> Value:
        """What `make` returns, a JSON value: asked once, then remembered, so that a second attempt does the same."""
        decisions = self._facts["decisions"]
        if name not in decisions:
            decisions[name] = make()
            self.save()
        found: Value = decisions[name]
        return found

    def save(self) -> None:
        """Write what is known, and the time spent so far."""
        write_json(self._file, {**self._facts, "seconds": self.spent})

    def run(self, name: str) -> Path:
        """The folder of a training."""
        return self.path / "runs" / name


@contextmanager
def working(out: Path, fingerprint: str, minutes: float) -> Iterator[Work]:
    """The work folder of the model `out`, for this process alone; deleted when the block succeeds."""
    path = work_folder(out)
    with RunFolder(path).locked(timeout=1.0):
        work = Work(path, fingerprint, minutes)
        work.save()
        try:
            yield work
        except BaseException:
            work.save()
            raise
    shutil.rmtree(path, ignore_errors=True)


def work_folder(out: Path) -> Path:
    """Beside the model, on the same disk."""
    return out.with_name(f"{out.name}.work")
