"""What the terminal shows: one console for results, one for notes, one kind of table, one progress bar.

Text is printed as it is: the consoles read neither markup such as [bold] nor emoji names, so that no file name, class
name or error message can change or break the output. rich is imported on first use, to keep `nearfield --help` fast.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from nearfield.cli.pace import Clock, Pace, time_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from nearfield.bench.run import Watched

WIDE = 160  # columns of a table in a file or a pipe
LINE_EVERY = 10.0  # seconds between two lines of progress in a log file
Draw = Callable[[int, int, str, str], None]  # (done, total, info, time left)


@cache
def results() -> Console:
    """Standard output: what a command found."""
    return _console(stderr=False)


@cache
def notes() -> Console:
    """Standard error: progress and remarks."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


def say(*parts: RenderableType) -> None:
    """Print lines and tables of the result; the terminal wraps long lines."""
    for part in parts:
        results().print(part, soft_wrap=isinstance(part, str))


def note(*lines: str) -> None:
    """Print remarks on standard error."""
    for line in lines:
        notes().print(line, soft_wrap=True)


def say_json(value: Any) -> None:
    """Print a result for programs."""
    results().print_json(json.dumps(value))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    right: Collection[int] = (),
    lines: bool = False,
) -> Table:
    """A table whose first column, the name, is never wrapped; the columns `right` are right-aligned."""
    from rich.table import Table

    made = Table(title=title, title_justify="left", show_header=any(head), show_lines=lines)
    for place, text in enumerate(head):
        made.add_column(text, justify="right" if place in right else "left", no_wrap=place == 0)
    for row in rows:
        made.add_row(*row)
    return made


def count(number: int, noun: str) -> str:
    """`1 seed`, `2 seeds`, `1,797 images`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


class Bar:
    """Moves a progress bar: `bar(done, total)`. Without `seconds_left` it derives the time left from its own speed."""

    def __init__(self, draw: Draw, above: Callable[[RenderableType], None], clock: Clock) -> None:
        self._draw = draw
        self._pace = Pace(clock)
        self.above = above  # show something above the bar; nothing where there is no terminal

    def __call__(self, done: int, total: int, info: str = "", seconds_left: float | None = None) -> None:
        self._pace.update(done)
        left = self._pace.seconds_left(total) if seconds_left is None else seconds_left
        self._draw(done, total, info, time_text(left))


@contextmanager
def bar(
    title: str,
    transient: bool = False,
    line_every: float = LINE_EVERY,
    console: Console | None = None,
    clock: Clock = time.monotonic,
) -> Iterator[Bar]:
    """A progress bar on standard error; where that is not a terminal, a line now and then and one at the end.

    A `transient` bar leaves nothing behind: it vanishes at the end, and there is no last line.
    """
    console = console or notes()
    if not console.is_terminal:
        yield Bar(_lines(title, transient, line_every, console, clock), lambda content: None, clock)
        return
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    parts = ("{task.description}", "{task.fields[left]}", "{task.fields[info]}")
    name, left, info = (TextColumn(part, markup=False) for part in parts)
    progress = Progress(name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), left, info)
    task = progress.add_task(title, total=None, left=time_text(None), info="")

    def draw(done: int, total: int, info: str, left: str) -> None:
        progress.update(task, completed=done, total=total, left=left, info=info)

    with Live(progress, console=console, transient=transient) as live:
        yield Bar(draw, lambda content: live.update(Group(content, progress)), clock)


def passing_bar(title: str) -> AbstractContextManager[Bar]:
    """A bar for long work inside the library: only on a terminal, and removed when the work is done."""
    return bar(title, transient=True, line_every=math.inf)


def watch_several(bar: Bar, names: Sequence[str]) -> Callable[[str, Watched], None]:
    """The progress of the bench of one of several values, rows or points."""
    from nearfield.bench.run import TRAINING

    def watch(name: str, watched: Watched) -> None:
        place = f"of {name} ({names.index(name) + 1} of {len(names)})"
        what = "tasks" if watched.phase == TRAINING else f"{watched.phase},"
        bar(watched.done, watched.total, f"{what} {place}", watched.seconds_left)

    return watch


def _lines(title: str, transient: bool, every: float, console: Console, clock: Clock) -> Draw:
    last = clock()

    def draw(done: int, total: int, info: str, left: str) -> None:
        nonlocal last
        if clock() - last >= every or (done == total and not transient):
            last = clock()
            console.print("  ".join(filter(None, (title, f"{done}/{total}", info, left))), soft_wrap=True)

    return draw


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner with what is being done, for work without a count; call with the next text. Only on a terminal."""
    from rich.text import Text

    with notes().status(Text(text)) as shown:
        yield lambda line: shown.update(Text(line))
