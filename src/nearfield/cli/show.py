"""How a run in the foreground is watched and stopped.

A report is called after every step as `report(step, steps, latest)`; `latest` holds loss and scores as far as they are
known, and may hold "images_per_second". On a terminal it moves a bar; in a log file it writes a line now and then; for
the process that started the run it writes JSON lines.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from nearfield.errors import require_one_of

if TYPE_CHECKING:
    from rich.console import Console

KINDS = ("bar", "json", "none")
RATE = "images_per_second"
LINE_EVERY = 10.0  # seconds between lines in a log file
JSON_EVERY = 0.2
MEMORY = 15.0  # seconds over which speed is averaged
Report = Callable[[int, int, Mapping[str, float]], None]  # (step, steps, latest numbers)
Clock = Callable[[], float]  # seconds


@cache
def results() -> Console:
    """What a command found: standard output."""
    return _console(stderr=False)


@cache
def notes() -> Console:
    """What is said along the way: standard error."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


class StopFlag:
    """Set by SIGINT or SIGTERM: the loop finishes its step and saves. A second signal stops at once."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> StopFlag:
        """Take the signals over from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __call__(self) -> bool:
        return self.asked


class Pace:
    """Steps a second and images a second, averaged over the last moments, and so the time left.

    What was done before the first call, by an interrupted attempt, does not count as speed.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._at: tuple[float, int] | None = None  # time and step of the last call
        self._steps = _Average()
        self._images = _Average()

    def update(self, step: int, latest: Mapping[str, float]) -> None:
        """Take notice of a finished step."""
        now = self._clock()
        if self._at is not None and now > self._at[0]:
            elapsed = now - self._at[0]
            self._steps.add((step - self._at[1]) / elapsed, elapsed)
            if RATE in latest:
                self._images.add(latest[RATE], elapsed)
        self._at = (now, step)

    @property
    def images_per_second(self) -> float | None:
        """None as long as nobody has said."""
        return self._images.value

    def seconds_left(self, steps: int) -> float | None:
        """Until step `steps`; None before there is a speed."""
        speed = self._steps.value
        if self._at is None or not speed:
            return None
        return (steps - self._at[1]) / speed


class _Average:
    """The average of a speed over time, in which the past fades."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, speed: float, elapsed: float) -> None:
        fade = 2.0 ** (-elapsed / MEMORY)
        self._sum = fade * self._sum + (1 - fade) * speed
        self._weight = fade * self._weight + (1 - fade)

    @property
    def value(self) -> float | None:
        return self._sum / self._weight if self._weight else None


@contextmanager
def report_progress(
    kind: str, title: str, stopping: StopFlag, console: Console | None = None, clock: Clock = time.monotonic
) -> Iterator[Report]:
    """Show the progress of a run called `title` on standard error ("bar"), or as JSON lines on standard output.

    Whoever reads the JSON lines may go away: then `stopping` is set, as if a signal had come.
    """
    require_one_of("progress", kind, KINDS)
    if kind == "none":
        yield lambda step, steps, latest: None
    elif kind == "json":
        yield _json_lines(stopping, clock)
    else:
        console = console or notes()
        if not console.is_terminal:
            yield _plain_lines(title, console, clock)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        pace = Pace(clock)
        texts = [TextColumn("{task.fields[" + name + "]}", markup=False) for name in ("left", "numbers")]
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), *texts, console=console) as bar:
            task = bar.add_task(title, total=None, left=time_text(None), numbers="")

            def move(step: int, steps: int, latest: Mapping[str, float]) -> None:
                pace.update(step, latest)
                left = time_text(pace.seconds_left(steps))
                bar.update(task, completed=step, total=steps, left=left, numbers=numbers_text(latest, pace))

            yield move


def numbers_text(latest: Mapping[str, float], pace: Pace) -> str:
    """Loss, scores and throughput in words."""
    parts = [f"{name} {value:.4g}" for name, value in latest.items() if name not in ("step", RATE)]
    rate = pace.images_per_second
    return "  ".join(parts if rate is None else [*parts, f"{rate:.0f} images/s"])


def time_text(seconds: float | None) -> str:
    """Hours, minutes and seconds left."""
    if seconds is None:
        return "-:--:-- left"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} left"


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


def _plain_lines(title: str, console: Console, clock: Clock) -> Report:
    pace, last = Pace(clock), clock()

    def line(step: int, steps: int, latest: Mapping[str, float]) -> None:
        nonlocal last
        pace.update(step, latest)
        if clock() - last >= LINE_EVERY or step == steps:
            last = clock()
            parts = [title, f"{step}/{steps}", numbers_text(latest, pace), time_text(pace.seconds_left(steps))]
            console.print("  ".join(filter(None, parts)), soft_wrap=True, markup=False)

    return line
