"""What `nearfield bench` shows: the leaderboard, while it grows and at the end."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from nearfield.analysis.leaderboard import Board, percent, standings, title, verdict_lines
from nearfield.bench.results import BenchResults
from nearfield.bench.run import Watched
from nearfield.cli import show
from nearfield.report import write_report

TABLE_EVERY = 10.0  # seconds between two live tables
LISTED = 20  # missing tasks
LINE_EVERY = 30.0  # seconds between two lines where there is no terminal


@contextmanager
def watching(folder: Path) -> Iterator[Callable[[Watched], None]]:
    """How progress is shown: a bar below the table so far on a terminal, a line now and then elsewhere."""
    shown: dict[str, float] = {"at": 0.0, "done": -1}
    with show.bar(str(folder), transient=True, line_every=LINE_EVERY) as bar:

        def update(watched: Watched) -> None:
            bar(watched.done, watched.total, "tasks", watched.seconds_left)
            due = watched.done != shown["done"] and time.monotonic() - shown["at"] > TABLE_EVERY
            if due and show.notes().is_terminal:
                shown.update(at=time.monotonic(), done=watched.done)
                results = watched.results()
                board = _board(results, repeats=20)
                if board:
                    bar.above(leaderboard_table(board, results))

        yield update


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
        table.add_row(mark, one.label + " †" * bool(one.unequal), *cells, f"{one.train_seconds:.1f}")
    table.add_section()
    for name, scores in board.floors.items():
        table.add_row("", name, *[f"{100 * scores[key]:.2f}" if key in scores else "" for key in metrics], "")
    return table


def say_results(results: BenchResults, arguments: argparse.Namespace) -> None:
    """The leaderboard and what it shows; then the report, which may take a while."""
    board = _board(results)
    if board and not arguments.json:
        show.say(leaderboard_table(board, results))
        unequal = [f"† {one.label}: {'; '.join(one.unequal)}." for one in board.standings if one.unequal]
        show.say(*unequal, *verdict_lines(board))
    report = write_report(arguments.out, arguments.out / "report.html") if board else None
    if arguments.json:
        rows = [asdict(one) for one in board.standings] if board else []
        facts = {"leaderboard": rows, "missing": results.missing, "report": str(report) if report else None}
        show.say_json(facts)
    elif report:
        show.say(f"Report: {report}")


def say_so_far(watched: Watched) -> None:
    """The table as it is when somebody stops the bench."""
    results = watched.results()
    board = _board(results)
    if board:
        show.say(leaderboard_table(board, results))
    show.note(f"{watched.done} of {watched.total} tasks are done. Missing:")
    show.note(*(f"  {line}" for line in results.missing[:LISTED]))
    if len(results.missing) > LISTED:
        show.note(f"  and {len(results.missing) - LISTED} more")
