"""`nearfield ablate`: repeat an ablation of the papers."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, add_set
from nearfield.cli.show import time_text
from nearfield.errors import InputError, RunError

if TYPE_CHECKING:
    from nearfield.analysis.ablations.outcome import Outcome
    from nearfield.bench.ablations import Ablation
    from nearfield.bench.run import Watched
    from nearfield.config import BenchConfig

LINE_EVERY = 30.0  # seconds between two lines of progress
SIZES = ("batch-size", "batch-size-equal-steps", "embedding-size")
NAMES = (*SIZES, "bins", "similarity-types", "sampling", "backbone")


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "repeat an ablation of the papers: one thing varied, all else equal; table, figure and verdicts"
    example = "nearfield ablate bins --data omniglot --seeds 5 --set run.steps=400"
    parser = add_command(commands, "ablate", ablate, summary, example)
    parser.add_argument("name", choices=NAMES, help="what is varied")
    parser.add_argument("--values", nargs="+", metavar="VALUE", help="values of the axis (default: the ablation's own)")
    parser.add_argument(
        "--data", default="glyphs", metavar="NAME", help="train and test on this data (default: glyphs)"
    )
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="vary these methods (default: the ablation's own)")
    parser.add_argument("--seeds", type=int, metavar="N", help="run every value with seeds 0 to N-1 (default: 3)")
    help = "workers on this machine, one thread each (default: the cores)"
    parser.add_argument("--jobs", type=int, metavar="N", help=help)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write (default: runs/ablate-NAME-DATA)")
    add_set(parser, "run.steps=800")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and an estimate of the time, run nothing"
    )
    add_json(parser, "print all numbers as JSON")


def ablate(arguments: argparse.Namespace) -> None:
    """Run one ablation, writing what came out after each of its benches; see `nearfield.bench.ablations`."""
    from nearfield.analysis.ablations.outcome import collect
    from nearfield.analysis.ablations.text import write_outcome
    from nearfield.bench.ablations import ablation, run_ablation

    study = ablation(arguments.name)
    if arguments.seeds is not None and arguments.seeds < 1:
        raise InputError(f"--seeds must be at least 1; got {arguments.seeds}.")
    jobs = (os.cpu_count() or 1) if arguments.jobs is None else arguments.jobs
    if jobs < 1:
        raise InputError(f"--jobs must be at least 1; got {jobs}.")
    config = study.config(arguments.data, arguments.methods or (), arguments.seeds, arguments.overrides)
    benches = study.benches(config, arguments.values or ())
    if arguments.dry_run:
        _print_plan(study, benches, jobs, arguments.json)
        return
    folder = arguments.out or Path("runs") / f"ablate-{study.name}-{arguments.data}"
    for found in run_ablation(benches, folder, jobs, _lines(study, len(benches))):
        outcome = collect(study, benches, found)
        write_outcome(outcome, folder)
    _print_outcome(outcome, folder, arguments.json)
    if outcome.missing:
        raise RunError("not everything could be done:\n  " + "\n  ".join(outcome.missing))


def _lines(study: Ablation, count: int) -> Callable[[str, Watched], None]:
    """A line now and then."""
    at = -LINE_EVERY
    seen: list[str] = []

    def line(value: str, watched: Watched) -> None:
        nonlocal at
        if value not in seen:
            seen.append(value)
        if time.monotonic() - at >= LINE_EVERY or watched.done == watched.total:
            at = time.monotonic()
            left = time_text(watched.seconds_left)
            text = f"{study.name} {value} ({len(seen)} of {count}): {watched.done}/{watched.total} tasks, {left}"
            show.notes().print(text, soft_wrap=True, markup=False)

    return line


def _print_plan(study: Ablation, benches: dict[str, BenchConfig], jobs: int, as_json: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    from nearfield.bench.run import estimate_seconds, prepare

    rows = []
    for value, config in benches.items():
        bench, dataset = prepare(config)
        run = config.run
        rows.append(
            {
                "value": value,
                "methods": bench.labels,
                "seeds": len(config.seeds),
                "batch": run.sampler.batch_size,
                "chunk": run.chunk,
                "steps": run.steps,
                "networks": bench.total * bench.protocol.folds,
                "seconds": round(estimate_seconds(bench, dataset, jobs)),
            }
        )
    if as_json:
        show.results().print_json(
            json.dumps({"ablation": study.name, "question": study.question, "values": rows, "jobs": jobs})
        )
        return
    table = Table(study.axis, "methods", "seeds", "batch", "steps", "networks", "time")
    for row in rows:
        when = time_text(row["seconds"]).removesuffix(" left")  # type: ignore[arg-type]
        cells = [str(row[key]) for key in ("seeds", "batch", "steps", "networks")]
        table.add_row(escape(str(row["value"])), escape(", ".join(row["methods"])), *cells, when)  # type: ignore[arg-type]
    show.results().print(study.question, soft_wrap=True)
    show.results().print(table)
    total = time_text(sum(row["seconds"] for row in rows)).removesuffix(" left")  # type: ignore[misc]
    show.results().print(f"About {total} with {jobs} at a time. {study.note}".rstrip(), soft_wrap=True)


def _print_outcome(outcome: Outcome, folder: Path, as_json: bool) -> None:
    from nearfield.analysis.ablations.text import outcome_json, table_markdown, words

    if as_json:
        show.results().print_json(json.dumps(outcome_json(outcome)))
        return
    show.results().print(outcome.ablation.question, soft_wrap=True)
    show.results().print(table_markdown(outcome), soft_wrap=True, markup=False)
    for line in words(outcome):
        show.results().print(line, soft_wrap=True, markup=False)
    for paper in outcome.ablation.papers:
        show.results().print(f"{paper.where}: {paper.found}", soft_wrap=True, markup=False)
    show.results().print(f"Figure: {folder / 'ablation.svg'}", soft_wrap=True)
