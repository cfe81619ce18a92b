"""How a training run in the foreground is watched and stopped.

A report is called after every step as `report(step, steps, latest)`; `latest` holds loss and scores as far as they are
known, and may hold "images_per_second". It moves the progress bar, or writes JSON lines for another program.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nearfield.cli import show
from nearfield.cli.pace import RATE, Clock, Pace
from nearfield.errors import require_one_of

if TYPE_CHECKING:
    from rich.console import Console

KINDS = ("bar", "json", "none")
JSON_EVERY = 0.2  # seconds between two lines
Report = Callable[[int, int, Mapping[str, float]], None]  # (step, steps, latest numbers)


class StopFlag:
    """Set by SIGINT or SIGTERM: the loop finishes its step and saves. A second signal stops at once."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> StopFlag:
        """Handle the signals from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def report_progress(
    kind: str, title: str, stopping: StopFlag, console: Console | None = None, clock: Clock = time.monotonic
) -> Iterator[Report]:
    """Show the progress of a run called `title` on standard error ("bar"), or as JSON lines on standard output.

    If the reader of the JSON lines goes away, `stopping` is set as if a signal had arrived.
    """
    require_one_of("progress", kind, KINDS)
    if kind == "none":
        yield lambda step, steps, latest: None
    elif kind == "json":
        yield _json_lines(stopping, clock)
    else:
        pace = Pace(clock)
        with show.bar(title, console=console, clock=clock) as bar:

            def move(step: int, steps: int, latest: Mapping[str, float]) -> None:
                pace.update(step, latest)
                bar(step, steps, numbers_text(latest, pace), pace.seconds_left(steps))

            yield move


def numbers_text(latest: Mapping[str, float], pace: Pace) -> str:
    """Loss, scores and throughput, human-readable."""
    parts = [f"{name} {value:.4g}" for name, value in latest.items() if name not in ("step", RATE)]
    rate = pace.images_per_second
    return "  ".join(parts if rate is None else [*parts, f"{rate:.0f} images/s"])


def _json_lines(stopping: StopFlag, clock: Clock) -> Report:
    last = -JSON_EVERY

    def line(step: int, steps: int, latest: Mapping[str, float]) -> None:
        nonlocal last
        if clock() - last >= JSON_EVERY or step == steps:
            last = clock()
            try:
                print(json.dumps({"step": step, **latest}), file=sys.stdout, flush=True)
            except BrokenPipeError:  # whoever started us is gone: save and stop
                stopping.asked = True

    return line
