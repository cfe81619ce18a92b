"""What `nearfield bench` shows: the leaderboard, while it grows and at the end."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from nearfield.analysis.leaderboard import Board, percent, standings, title, verdict_lines
from nearfield.bench.results import BenchResults
from nearfield.bench.run import Watched
from nearfield.cli import show
from nearfield.cli.show import time_text
from nearfield.report import write_report

TABLE_EVERY = 10.0  # seconds between two live tables
LINE_EVERY = 30.0  # seconds between two lines where there is no terminal


@contextmanager
def watching(folder: Path) -> Iterator[Callable[[Watched], None]]:
    """How progress is shown: a bar and the table so far on a terminal, a line now and then elsewhere."""
    if not show.notes().is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.fields[info]}"), console=show.notes())
    task = bar.add_task(str(folder), total=None, info="")
    shown: dict[str, float] = {"at": 0.0, "done": -1}
    with Live(bar, console=show.notes(), refresh_per_second=2, transient=True) as live:

        def update(watched: Watched) -> None:
            bar.update(task, completed=watched.done, total=watched.total, info=time_text(watched.seconds_left))
            if watched.done != shown["done"] and time.monotonic() - shown["at"] > TABLE_EVERY:
                shown.update(at=time.monotonic(), done=watched.done)
                results = watched.results()
                board = _board(results, repeats=20)
                live.update(Group(leaderboard_table(board, results), bar) if board else bar)

        yield update


def _lines() -> Callable[[Watched], None]:
    at = -LINE_EVERY

    def line(watched: Watched) -> None:
        nonlocal at
        if time.monotonic() - at >= LINE_EVERY or watched.done == watched.total:
            at = time.monotonic()
            left = time_text(watched.seconds_left)
            show.notes().print(f"{watched.done}/{watched.total} tasks, {left}", soft_wrap=True, markup=False)

    return line


def _board(results: BenchResults, repeats: int = 1000) -> Board | None:
    return standings(results, repeats=repeats) if any(method.seeds for method in results.methods) else None


def leaderboard_table(board: Board, results: BenchResults) -> Table:
    """The board as a terminal table, in percent, with the scores without training below."""
    shown = ("map@r", "r_precision", "recall@1", "recall@2", "recall@4", "recall@8", "nmi")
    metrics = [key for key in shown if any(key in one.scores for one in board.standings)]
    seeds = max(len(one.seeds) for one in board.standings)
    words = f"{results.data['name']}, {results.protocol['name']}, {seeds} seeds: percent, mean ± 95 % interval"
    table = Table("", "method", *map(title, metrics), "s/net", title=words, title_justify="left")
    for column in table.columns[2:]:
        column.justify, column.no_wrap = "right", True
    for one in board.standings:
        mark = "★" if one.label == board.best else "≈" if one.label in board.like_best else ""
        cells = [percent(one.scores[key]) if key in one.scores else "" for key in metrics]
        table.add_row(mark, escape(one.label) + " †" * bool(one.unequal), *cells, f"{one.train_seconds:.1f}")
    table.add_section()
    for name, scores in board.floors.items():
        table.add_row("", name, *[f"{100 * scores[key]:.2f}" if key in scores else "" for key in metrics], "")
    return table


def print_results(results: BenchResults, arguments: argparse.Namespace) -> None:
    """The leaderboard and what it shows; then the report, which may take a while."""
    board = _board(results)
    if board and not arguments.json:
        _wide().print(leaderboard_table(board, results))
        unequal = [f"† {one.label}: {'; '.join(one.unequal)}." for one in board.standings if one.unequal]
        for line in [*unequal, *verdict_lines(board)]:
            show.results().print(line, soft_wrap=True, markup=False)
    report = write_report(arguments.out, arguments.out / "report.html") if board else None
    if arguments.json:
        standings = [asdict(one) for one in board.standings] if board else []
        facts = {"leaderboard": standings, "missing": results.missing, "report": str(report) if report else None}
        show.results().print_json(json.dumps(facts))
    elif report:
        show.results().print(f"Report: {report}", soft_wrap=True)


def _wide() -> Console:
    """As wide as the terminal; wide enough for the table where there is none."""
    return show.results() if show.results().is_terminal else Console(highlight=False, width=160)


def print_so_far(watched: Watched) -> None:
    """The table as it is when somebody stops the bench."""
    results = watched.results()
    board = _board(results)
    if board:
        _wide().print(leaderboard_table(board, results))
    show.notes().print(f"{watched.done} of {watched.total} tasks are done. Missing:", soft_wrap=True)
    for line in results.missing[:20]:
        show.notes().print(f"  {line}", soft_wrap=True, markup=False)
    if len(results.missing) > 20:
        show.notes().print(f"  and {len(results.missing) - 20} more", soft_wrap=True)
