"""What `nearfield bench` shows: the leaderboard, while it grows and at the end."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.cells import cell_len
from rich.table import Table

from nearfield.analysis.budgets import budget_lines
from nearfield.analysis.leaderboard import Board, standings
from nearfield.analysis.lint.catalogue import HEADING
from nearfield.analysis.lint.rules import lint_results
from nearfield.analysis.tables import legend, mark, percent, title, verdict_lines
from nearfield.bench.job import code_digest
from nearfield.bench.plan import digest
from nearfield.bench.results import BenchResults
from nearfield.bench.run import TRAINING, Watched
from nearfield.cli import show
from nearfield.files import write_text
from nearfield.report import write_report
from nearfield.report.page import CACHE

TABLE_EVERY = 10.0  # seconds between two live tables
LISTED = 20  # missing tasks
TIME = "s/net"  # seconds of training per network
METRICS = ("map@r", "r_precision", "recall@1", "recall@2", "recall@4", "recall@8", "nmi")
LEAVE_OUT = ("recall@4", "recall@2", "recall@8", TIME, "nmi", "r_precision", "recall@1", "map@r")
Row = tuple[str, str, dict[str, str]]  # mark, name, text by column
LINE_EVERY = 30.0  # seconds between two lines where there is no terminal


@contextmanager
def watching(folder: Path) -> Iterator[Callable[[Watched], None]]:
    """How progress is shown: a bar below the table so far on a terminal, a line now and then elsewhere."""
    shown: dict[str, float] = {"at": 0.0, "done": -1}
    phases = [TRAINING]
    with show.bar(str(folder), transient=True, line_every=LINE_EVERY) as bar:

        def update(watched: Watched) -> None:
            training = watched.phase == TRAINING
            if watched.phase not in (TRAINING, phases[-1]) and not show.notes().is_terminal:
                show.note(watched.phase)
            phases.append(watched.phase)
            bar(watched.done, watched.total, "tasks" if training else watched.phase, watched.seconds_left)
            due = watched.done != shown["done"] and time.monotonic() - shown["at"] > TABLE_EVERY
            if due and show.notes().is_terminal:
                shown.update(at=time.monotonic(), done=watched.done)
                results = watched.results()
                board = _board(results)
                if board:
                    bar.above(leaderboard_table(board, results, show.notes().width))

        yield update


def _board(results: BenchResults) -> Board | None:
    return standings(results) if any(method.seeds for method in results.methods) else None


def leaderboard_table(board: Board, results: BenchResults, width: int) -> Table:
    """The board as a terminal table, in percent, with the untrained baselines first.

    Where `width` is too small for all columns, metrics are left out; the names of the methods and the board's own
    metric never are.
    """
    rows = _rows(board)
    every = [key for key in (*METRICS, TIME) if any(key in cells for _, _, cells in rows)]
    keys = _fitting(every, board.metric, rows, width)
    seeds = show.count(max(len(one.seeds) for one in board.standings), "seed")
    words = f"{results.data['name']}, {results.protocol['name']}, {seeds}: percent, mean ± 95 % interval"
    table = Table(title=words, title_justify="left", caption_justify="left")
    table.add_column("")
    table.add_column("method", overflow="fold")
    for key in keys:
        table.add_column(_title(key), justify="right", no_wrap=True)
    for number, (sign, name, cells) in enumerate(rows):
        last = number == len(board.baselines) - 1
        table.add_row(sign, name, *(cells.get(key, "") for key in keys), end_section=last)
    table.caption = legend(board)
    if len(keys) < len(every):
        hidden = ", ".join(_title(key) for key in every if key not in keys)
        table.caption += f"\nNot shown at this width: {hidden}."
    return table


def _rows(board: Board) -> list[Row]:
    """The untrained baselines, then the methods."""
    rows: list[Row] = []
    for name, scores in board.baselines.items():
        rows.append(("", name, {key: f"{100 * score:.2f}" for key, score in scores.items()}))
    for one in board.standings:
        cells = {key: percent(score) for key, score in one.scores.items()} | {TIME: f"{one.train_seconds:.1f}"}
        rows.append((mark(board, one.label), one.label + " †" * bool(one.unequal), cells))
    return rows


def _fitting(keys: list[str], metric: str, rows: list[Row], width: int) -> list[str]:
    """The columns that fit beside mark and name; those of LEAVE_OUT go first, in that order."""
    widths = {key: max(len(_title(key)), *(len(cells.get(key, "")) for _, _, cells in rows)) for key in keys}
    room = width - len("│   ┃ ") - max(len("method"), *(cell_len(name) for _, name, _ in rows)) - len(" │")
    kept = list(keys)
    for key in LEAVE_OUT:
        if sum(widths[one] + len("  │") for one in kept) > room and key in kept and key != metric:
            kept.remove(key)
    return kept


def _title(key: str) -> str:
    return key if key == TIME else title(key)


def notes_below(board: Board, results: BenchResults) -> list[str]:
    """What stands below the table: unequal conditions, verdicts, and what `nearfield lint` finds in the bench."""
    unequal = [f"† {one.label}: {'; '.join(one.unequal)}." for one in board.standings if one.unequal]
    sins = [f"  {sin.text}" for sin in lint_results(results)]
    return [*unequal, *verdict_lines(board), *budget_lines(results), *([f"{HEADING}:", *sins] if sins else [])]


def say_results(results: BenchResults, arguments: argparse.Namespace) -> None:
    """The leaderboard and what it shows; then the report, which may take a while."""
    board = _board(results)
    if board and not arguments.json:
        show.say(leaderboard_table(board, results, show.results().width))
        show.say(*notes_below(board, results))
    report = _report(results, arguments.out) if board else None
    if arguments.json:
        rows = [asdict(one) for one in board.standings] if board else []
        facts = {"leaderboard": rows, "missing": results.missing, "report": str(report) if report else None}
        show.say_json(facts)
    elif report:
        show.say(f"Report: {report}")


def _report(results: BenchResults, folder: Path) -> Path:
    """The page, written again only if the results or this package changed since it was."""
    page, stamp = folder / "report.html", folder / CACHE / "stamp"
    found = [asdict(method) for method in results.methods]
    now = digest(results.digest, code_digest(), results.environment, found, results.missing)
    if page.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == now:
        return page
    if not show.notes().is_terminal:
        show.note("writing the report")
    with show.status("Writing the report") as status:
        write_report(folder, page, say=status, digest=results.digest)
    write_text(stamp, now)
    return page


def say_so_far(watched: Watched) -> None:
    """The table so far, when the bench is interrupted."""
    results = watched.results()
    board = _board(results)
    if board:
        show.say(leaderboard_table(board, results, show.results().width))
    show.note(f"{watched.done} of {watched.total} tasks are done. Missing:")
    show.note(*(f"  {line}" for line in results.missing[:LISTED]))
    if len(results.missing) > LISTED:
        show.note(f"  and {len(results.missing) - LISTED} more")
