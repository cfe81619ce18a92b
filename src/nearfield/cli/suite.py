"""`nearfield suite`: compare methods on several datasets."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_cluster, add_command, add_json, add_out, add_set
from nearfield.cli.pace import duration
from nearfield.errors import InputError, RunError

if TYPE_CHECKING:
    from nearfield.analysis.calibration_text import Calibration
    from nearfield.bench.results import BenchResults
    from nearfield.config import BenchConfig

LINE_EVERY = 30.0  # seconds between two lines of progress
DETAILS = """
A suite is a bench on several datasets: the same methods, trials, seeds and protocol on each. Its TOML file is that of a
bench, with a list of [[datasets]], each with a `name` and, where its data need another network, its own keys of `run`.
--out receives report.html and report.md across datasets, and a folder for each dataset with its own page. Every verdict
says how far it carries: to new seeds, to new classes, or to a new dataset. Interrupt it at any time: the same command
resumes; --report writes the report of what is finished so far.
"""
EXAMPLES = """
nearfield suite docs/suites/features.toml --dry-run
nearfield suite docs/suites/features.toml --out runs/features --jobs 2
nearfield suite docs/suites/features.toml --out runs/features --report --calibration docs/calibration.md
nearfield suite --calibration calibration.md
"""
QUICK, THOROUGH = 100, 1000  # simulated comparisons for the report, and for the page of the calibration


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "compare methods on several datasets; how far each verdict carries"
    parser = add_command(commands, "suite", suite, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("config", nargs="?", type=Path, help="TOML file of a suite; only --calibration needs none")
    add_cluster(parser)
    add_out(parser, "runs/suite")
    add_set(parser, "run.steps=800")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the estimated time, run nothing")
    parser.add_argument("--report", action="store_true", help="run nothing; report what is finished")
    help = "also write whether verdicts hold as often as they say: a Markdown page, its figure beside it"
    parser.add_argument("--calibration", type=Path, metavar="FILE", help=help)
    add_json(parser, "all numbers")


def suite(arguments: argparse.Namespace) -> None:
    """Run a bench on each dataset, then report across them; see `nearfield.bench.suite` and `analysis.suite`."""
    from nearfield.bench.suite import read_suite

    if arguments.config is None:
        _simulate(arguments)
        return
    benches = read_suite(arguments.config, arguments.overrides)
    jobs = arguments.jobs or os.cpu_count() or 1
    if arguments.dry_run:
        _say_plan(benches, jobs, arguments.json)
        return
    results = _finished(benches, arguments.out) if arguments.report else _run(benches, jobs, arguments)
    _say_suite(results, arguments)
    missing = [f"{name}: {line}" for name, each in results.items() for line in each.missing]
    if missing and not arguments.report:
        raise RunError("some tasks failed:\n  " + "\n  ".join(missing))


def _run(benches: dict[str, BenchConfig], jobs: int, arguments: argparse.Namespace) -> dict[str, BenchResults]:
    from nearfield.bench.engine import Engine
    from nearfield.bench.run import prepare
    from nearfield.bench.suite import run_suite

    for config in benches.values():
        prepare(config, fit=True)  # what is wrong with the last dataset is said before the first is run
    found: dict[str, BenchResults] = {}
    title = str(arguments.out)
    with show.bar(title, transient=True, line_every=LINE_EVERY) as bar, Engine(jobs, arguments.cluster) as engine:
        for found in run_suite(benches, arguments.out, engine, show.watch_several(bar, list(benches)), show.note):
            show.note(f"{list(found)[-1]} is done")
    return found


def _finished(benches: dict[str, BenchConfig], folder: Path) -> dict[str, BenchResults]:
    """The results so far of the datasets that have begun."""
    from nearfield.bench.read_results import open_results
    from nearfield.bench.suite import bench_folder

    begun = {name: bench_folder(folder, name) for name in benches if bench_folder(folder, name).is_dir()}
    found = {name: open_results(own) for name, own in begun.items()}
    with_seeds = {name: each for name, each in found.items() if any(method.seeds for method in each.methods)}
    if not with_seeds:
        raise RunError(f"no dataset of the suite in {folder} has a finished seed yet; run it without --report.")
    return with_seeds


def _say_suite(results: dict[str, BenchResults], arguments: argparse.Namespace) -> None:
    """The board over all datasets, the verdicts, and the report."""
    from dataclasses import asdict

    from nearfield.analysis.calibration_text import calibrate, calibration_lines
    from nearfield.analysis.suite import collect
    from nearfield.analysis.suite_text import leaderboard, lines
    from nearfield.bench.suite import bench_folder
    from nearfield.report.suite import write_suite

    found = collect(results)
    with show.status("Comparing verdicts with what came true") as status:
        calibration = calibrate(found, repetitions=THOROUGH if arguments.calibration else QUICK)
        pages = {name: bench_folder(arguments.out, name) for name in results}
        written = write_suite(found, calibration, arguments.out, pages, status)
    if arguments.calibration:
        written = [*written, *_write_calibration(calibration, arguments)]
    said = [*lines(found), *calibration_lines(calibration.said)]
    if arguments.json:
        pairs = [{"first": pair.first, "second": pair.second, **asdict(pair.found)} for pair in found.pairs]
        means = {each.name: each.means for each in found.datasets}
        facts = {"level": found.level, "ranks": found.ranks, "scores": means, "pairs": pairs, "lines": said}
        show.say_json({**facts, "written": [str(path) for path in written]})
        return
    table = leaderboard(found)
    show.say(show.table(table.head, table.rows, right=tuple(range(table.left, len(table.head)))), table.note, *said)
    show.say(f"Report: {written[0]}")


def _simulate(arguments: argparse.Namespace) -> None:
    """The calibration by simulations alone, which need no suite."""
    from nearfield.analysis.calibration_text import calibrate

    if arguments.calibration is None:
        raise InputError("name the TOML file of a suite, such as docs/suites/features.toml, or --calibration FILE.")
    with show.status("Simulating"):
        written = _write_calibration(calibrate(None, repetitions=THOROUGH), arguments)
    show.say(*(f"Written: {path}" for path in written))


def _write_calibration(calibration: Calibration, arguments: argparse.Namespace) -> list[Path]:
    from nearfield.analysis.calibration_text import calibration_page
    from nearfield.analysis.figures.suites import reliability_figure
    from nearfield.analysis.figures.svg import svg
    from nearfield.files import write_text

    page: Path = arguments.calibration
    figure = page.with_suffix(".svg")
    of = f"{arguments.config} --out {arguments.out} --report " if arguments.config else ""
    command = f"nearfield suite {of}--calibration {page}"
    write_text(figure, svg(reliability_figure(calibration.curves)))
    write_text(page, calibration_page(calibration, figure.name, command))
    return [page, figure]


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
                "networks": bench.networks,
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
