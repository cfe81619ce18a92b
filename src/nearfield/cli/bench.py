"""The commands that compare methods: `bench` and `worker`."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from nearfield.cli.show import StopFlag, time_text
from nearfield.config import BenchConfig, build_config, merge, read_toml
from nearfield.errors import InputError, RunError

if TYPE_CHECKING:
    from nearfield.analysis.leaderboard import Board
    from nearfield.bench.results import BenchResults
    from nearfield.bench.run import Watched

console = Console(highlight=False)
notes = Console(stderr=True, highlight=False)
TABLE_EVERY = 10.0  # seconds between two live tables
LINE_EVERY = 30.0  # seconds between two lines where there is no terminal


def bench(arguments: argparse.Namespace) -> None:
    """Compare methods; see `nearfield.bench.run`."""
    from nearfield.bench.database import STORAGE
    from nearfield.bench.run import run_bench

    config = bench_config(arguments)
    jobs = (os.cpu_count() or 1) if arguments.jobs is None else arguments.jobs
    if jobs < 0:
        raise InputError(f"--jobs must be at least 0, to only watch; got {jobs}.")
    if arguments.dry_run:
        _print_plan(config, jobs, arguments.json)
        return
    last: list[Watched] = []
    try:
        with _watching(arguments.out) as watch:

            def remember(watched: Watched) -> None:
                last[:] = [watched]
                watch(watched)

            results = run_bench(
                config, arguments.out, jobs, remember, arguments.storage or os.environ.get(STORAGE), arguments.patience
            )
    except KeyboardInterrupt:
        if last and not arguments.json:
            _print_so_far(last[0])
        raise
    _print_results(results, arguments)
    if results.missing:
        raise RunError("not everything could be done:\n  " + "\n  ".join(results.missing))


def worker(arguments: argparse.Namespace) -> None:
    """Do tasks of benches; see `nearfield.bench.worker`."""
    from nearfield.bench.database import FILE, STORAGE, Store
    from nearfield.bench.worker import PATIENCE, Worker

    storage = arguments.storage or os.environ.get(STORAGE) or str(arguments.out / FILE)
    if "://" not in storage and not Path(storage).is_file():
        raise InputError(f"there is no bench in {storage}; start one with `nearfield bench`, or give its --storage.")
    parent, stopping = os.getppid(), StopFlag().listen()

    def stop() -> bool:
        return stopping() or (arguments.tied and os.getppid() != parent)

    store = Store(storage)
    done = 0
    for digest in [arguments.bench] if arguments.bench else store.benches():
        one = Worker(store, digest, arguments.out, stop, _line, arguments.patience or PATIENCE, arguments.threads)
        done += one.work(arguments.once)
        if stop() or (arguments.once and done):
            break
    store.close()
    _line(f"{done} tasks")
    if stop():
        raise KeyboardInterrupt


def _line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def bench_config(arguments: argparse.Namespace) -> BenchConfig:
    """The configuration file, then the shortcuts, then `--set`."""
    values = read_toml(arguments.config) if arguments.config else {}
    if arguments.methods:
        values["methods"] = [{"name": name} for name in _method_names(arguments.methods)]
    if arguments.seeds is not None:
        values["seeds"] = list(range(arguments.seeds))
    if arguments.data:
        values.setdefault("run", {}).setdefault("data", {})["name"] = arguments.data
    if arguments.protocol:
        values["protocol"] = arguments.protocol
    if arguments.trials is not None:
        values["trials"] = arguments.trials
    return build_config(BenchConfig, merge(values, arguments.overrides))


def _method_names(given: list[str]) -> list[str]:
    if given != ["all"]:
        return given
    from nearfield import losses

    return losses.names()


def _print_plan(config: BenchConfig, jobs: int, as_json: bool) -> None:
    from nearfield.bench.run import estimate_seconds, prepare

    found, dataset = prepare(config)
    seconds = estimate_seconds(found, dataset, jobs)
    trials = len(config.methods) * config.trials if config.trials > 1 else 0
    seeds = len(config.methods) * len(config.seeds)
    counts = {"trials": trials, "seeds": seeds, "variants": found.total - trials - seeds}
    networks = found.total * found.protocol.folds
    facts = {"data": dataset.summary(), "protocol": found.protocol.name, "methods": found.labels, **counts}
    if as_json:
        facts |= {"folds": found.protocol.folds, "networks": networks, "seconds": round(seconds), "jobs": jobs}
        console.print_json(json.dumps(facts))
        return
    spaces = {label: ", ".join(space) for label, (_, _, space) in zip(found.labels, found.starts, strict=True)}
    table = Table("method", "searched") if trials else Table("method")
    for label in found.labels:
        table.add_row(escape(label), escape(spaces[label])) if trials else table.add_row(escape(label))
    console.print(table)
    words = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    console.print(
        f"{config.run.data.name} by the protocol {found.protocol.name}: {words}; {found.protocol.folds} networks each, "
        f"{networks} of {config.run.steps} steps in all. About {time_text(seconds).removesuffix(' left')} with {jobs} "
        "at a time.",
        soft_wrap=True,
    )


# ---------------------------------------------------------------------------------------------------------------
# Showing


@contextmanager
def _watching(folder: Path) -> Iterator[Callable[[Watched], None]]:
    """How progress is shown: a bar and the table so far on a terminal, a line now and then elsewhere."""
    if not notes.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.fields[info]}"), console=notes)
    task = bar.add_task(str(folder), total=None, info="")
    shown: dict[str, float] = {"at": 0.0, "done": -1}
    with Live(bar, console=notes, refresh_per_second=2, transient=True) as live:

        def show(watched: Watched) -> None:
            bar.update(task, completed=watched.done, total=watched.total, info=time_text(watched.seconds_left))
            if watched.done != shown["done"] and time.monotonic() - shown["at"] > TABLE_EVERY:
                shown.update(at=time.monotonic(), done=watched.done)
                results = watched.results()
                board = _board(results, repeats=20)
                live.update(Group(leaderboard_table(board, results), bar) if board else bar)

        yield show


def _lines() -> Callable[[Watched], None]:
    at = -LINE_EVERY

    def line(watched: Watched) -> None:
        nonlocal at
        if time.monotonic() - at >= LINE_EVERY or watched.done == watched.total:
            at = time.monotonic()
            left = time_text(watched.seconds_left)
            notes.print(f"{watched.done}/{watched.total} tasks, {left}", soft_wrap=True, markup=False)

    return line


def _board(results: BenchResults, repeats: int = 1000) -> Board | None:
    from nearfield.analysis.leaderboard import standings

    return standings(results, repeats=repeats) if any(method.seeds for method in results.methods) else None


def leaderboard_table(board: Board, results: BenchResults) -> Table:
    """The board as a terminal table, in percent, with the scores without training below."""
    from nearfield.analysis.leaderboard import percent, title

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


def _print_results(results: BenchResults, arguments: argparse.Namespace) -> None:
    """The leaderboard and what it shows; then the report, which may take a while."""
    from nearfield.analysis.leaderboard import verdict_lines
    from nearfield.report import write_report

    board = _board(results)
    if board and not arguments.json:
        _wide().print(leaderboard_table(board, results))
        unequal = [f"† {one.label}: {'; '.join(one.unequal)}." for one in board.standings if one.unequal]
        for line in [*unequal, *verdict_lines(board)]:
            console.print(line, soft_wrap=True, markup=False)
    report = write_report(arguments.out, arguments.out / "report.html") if board else None
    if arguments.json:
        standings = [asdict(one) for one in board.standings] if board else []
        facts = {"leaderboard": standings, "missing": results.missing, "report": str(report) if report else None}
        console.print_json(json.dumps(facts))
    elif report:
        console.print(f"Report: {report}", soft_wrap=True)


def _wide() -> Console:
    """As wide as the terminal; wide enough for the table where there is none."""
    return console if console.is_terminal else Console(highlight=False, width=160)


def _print_so_far(watched: Watched) -> None:
    """The table as it is when somebody stops the bench."""
    results = watched.results()
    board = _board(results)
    if board:
        _wide().print(leaderboard_table(board, results))
    notes.print(f"{watched.done} of {watched.total} tasks are done. Missing:", soft_wrap=True)
    for line in results.missing[:20]:
        notes.print(f"  {line}", soft_wrap=True, markup=False)
    if len(results.missing) > 20:
        notes.print(f"  and {len(results.missing) - 20} more", soft_wrap=True)
