"""`nearfield suite`: compare methods on several datasets."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_cluster, add_command, add_json, add_out, add_set
from nearfield.cli.pace import duration
from nearfield.errors import RunError

if TYPE_CHECKING:
    from nearfield.config import BenchConfig

LINE_EVERY = 30.0  # seconds between two lines of progress
DETAILS = """
A suite is a bench on several datasets: the same methods, trials, seeds and protocol on each. Its TOML file is that of a
bench, with a list of [[datasets]], each with a `name` and, where its data need another network, its own keys of `run`.
--out receives a folder for each dataset with its report. Interrupt it at any time: the same command resumes.
"""
EXAMPLES = """
nearfield suite docs/suites/features.toml --dry-run
nearfield suite docs/suites/features.toml --out runs/features --jobs 2
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "compare methods on several datasets; how far each verdict carries"
    parser = add_command(commands, "suite", suite, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("config", type=Path, help="TOML file of a suite")
    add_cluster(parser)
    add_out(parser, "runs/suite")
    add_set(parser, "run.steps=800")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the estimated time, run nothing")
    add_json(parser, "all numbers")


def suite(arguments: argparse.Namespace) -> None:
    """Run a bench on each dataset; see `nearfield.bench.suite`."""
    from nearfield.bench.engine import Engine
    from nearfield.bench.run import prepare
    from nearfield.bench.suite import read_suite, run_suite

    benches = read_suite(arguments.config, arguments.overrides)
    jobs = arguments.jobs or os.cpu_count() or 1
    if arguments.dry_run:
        _say_plan(benches, jobs, arguments.json)
        return
    for config in benches.values():
        prepare(config, fit=True)  # what is wrong with the last dataset is said before the first is run
    title = str(arguments.out)
    with show.bar(title, transient=True, line_every=LINE_EVERY) as bar, Engine(jobs, arguments.cluster) as engine:
        watch = show.watch_several(bar, list(benches))
        for found in run_suite(benches, arguments.out, engine, watch, show.note):
            show.note(f"{list(found)[-1]} is done")
    missing = [f"{name}: {line}" for name, results in found.items() for line in results.missing]
    if missing:
        raise RunError("some tasks failed:\n  " + "\n  ".join(missing))


def _say_plan(benches: dict[str, BenchConfig], jobs: int, as_json: bool) -> None:
    from nearfield.bench.estimate import estimate_seconds
    from nearfield.bench.run import prepare

    rows: list[dict[str, Any]] = []
    for name, config in benches.items():
        bench, dataset = prepare(config, fit=True, say=show.note)
        rows.append(
            {
                "data": name,
                "classes": len(dataset.test_classes),
                "methods": len(bench.labels),
                "trials": sum(bench.trials),
                "seeds": len(bench.labels) * len(bench.config.seeds),
                "networks": bench.total * bench.protocol.folds,
                "steps": bench.config.run.steps,
                "seconds": round(estimate_seconds(bench, dataset, jobs)),
            }
        )
    if as_json:
        show.say_json({"datasets": rows, "jobs": jobs})
        return
    keys = ("classes", "methods", "trials", "seeds", "networks", "steps")
    cells = [(row["data"], *(str(row[key]) for key in keys), duration(row["seconds"])) for row in rows]
    head = ("dataset", "test classes", *keys[1:], "time")
    show.say(show.table(head, cells, right=tuple(range(1, len(head)))))
    total, networks = (sum(row[key] for row in rows) for key in ("seconds", "networks"))
    show.say(f"About {duration(total)} with {show.count(jobs, 'job')}, {networks:,} networks in all.")
