"""`nearfield reproduce`: the tables and figures of the papers, each by one command."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_cluster, add_command, add_json, add_set, whole
from nearfield.cli.pace import duration
from nearfield.errors import InputError, RunError

if TYPE_CHECKING:
    from nearfield.analysis.reproduction import Reproduced
    from nearfield.recipes.tables import Table

LINE_EVERY = 30.0  # seconds between two lines of progress
DETAILS = """
Every row of a table, and every point of a figure, is a bench with the paper's network, preprocessing, batch size,
optimiser, recall@K and protocol. The page sets our numbers beside the paper's. The official data and pretrained weights
are not included: --list says what each table needs and whether it is here. --small runs the same experiment on data and
networks for a laptop, and says what was scaled down. Interrupt it at any time: the same command resumes.
"""
EXAMPLES = """
nearfield reproduce --list
nearfield reproduce fastap/table1 --dry-run
nearfield reproduce fastap-supp/table2 ms/table2 --small
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "reproduce tables and figures of the papers, our numbers beside theirs"
    parser = add_command(commands, "reproduce", reproduce, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables and figures, such as fastap/table1")
    parser.add_argument("--list", action="store_true", help="list all of them with the data and weights they need")
    parser.add_argument("--small", action="store_true", help="the same experiments, scaled down to a laptop")
    parser.add_argument("--seeds", type=whole(1), metavar="N", help="repetitions (default: the table's own)")
    add_cluster(parser)
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="folder to write")
    add_set(parser, "run.model.weights=weights/resnet18.pth")
    dry = "check configurations, data and networks, print the plan and the estimated time, train nothing"
    parser.add_argument("--dry-run", action="store_true", help=dry)
    add_json(parser, "all numbers")


def reproduce(arguments: argparse.Namespace) -> None:
    """List, plan or run tables; see `nearfield.recipes.tables`."""
    from nearfield.recipes.tables import TABLES, table

    if not arguments.names and not arguments.list:
        raise InputError("name a table or figure, such as fastap/table1; `nearfield reproduce --list` has them all.")
    chosen = [table(name) for name in arguments.names] or list(TABLES.values())
    chosen = [_changed(each, arguments) for each in chosen]
    if arguments.list:
        _say_list(chosen, arguments.json)
        return
    jobs = arguments.jobs or os.cpu_count() or 1
    if arguments.dry_run:
        _say_plans(chosen, jobs, arguments.json, arguments.small)
        return
    made = [_run(each, arguments, jobs) for each in chosen]
    if arguments.json:
        from nearfield.analysis.reproduction import as_json

        show.say_json([as_json(each) for each in made])
    missing = [f"{each.table.name}: {line}" for each in made for line in each.missing]
    if missing:
        raise RunError("some tasks failed:\n  " + "\n  ".join(missing))


def _changed(table: Table, arguments: argparse.Namespace) -> Table:
    """The table, scaled down if asked for, with the command line's seeds and settings."""
    from dataclasses import replace

    from nearfield.config import BenchConfig, build_config, merge

    table = table.small() if arguments.small else table
    entries = []
    for entry in table.entries:
        values = entry.bench.model_dump(mode="json")
        if arguments.seeds is not None:
            values["seeds"] = list(range(arguments.seeds))
        entries.append(replace(entry, bench=build_config(BenchConfig, merge(values, arguments.overrides))))
    return replace(table, entries=tuple(entries))


def _say_list(tables: list[Table], as_json: bool) -> None:
    from nearfield.bench.reproduce import needs

    found: list[dict[str, Any]] = [
        {"name": each.name, "title": each.title, "rows": len(each.entries), "needs": [n._asdict() for n in needs(each)]}
        for each in tables
    ]
    if as_json:
        show.say_json(found)
        return
    rows = []
    for row in found:
        words = [f"{need['name']} {'✓' if need['here'] else '✗'}" for need in row["needs"]]
        rows.append((row["name"], row["title"], str(row["rows"]), ", ".join(words)))
    show.say(show.table(("name", "what it shows", "rows", "needs (✓ here, ✗ missing)"), rows, right=(2,)))
    missing = {need["name"]: need["remedy"] for row in found for need in row["needs"] if not need["here"]}
    show.say(*(f"{name}: {remedy}." for name, remedy in missing.items()))
    show.say("`nearfield reproduce NAME --small` runs a table on data and networks for a laptop.")


def _say_plans(tables: list[Table], jobs: int, as_json: bool, small: bool) -> None:
    from nearfield.bench.reproduce import checked, needs, networks, training_seconds

    plans = []
    for table in tables:
        ready = checked(table)
        rows = [
            {
                "label": entry.label,
                "data": entry.run.data.name,
                "network": entry.run.model.backbone,
                "dims": entry.run.model.dim,
                "batch": entry.run.sampler.batch_size,
                "steps": entry.run.steps,
                "networks": networks(entry),
                "protocol": entry.bench.protocol,
                "checked": ready[entry.label],
                "seconds": round(training_seconds(entry, jobs)),
            }
            for entry in table.entries
        ]
        scaled = {"scaled_down": table.scaling.words} if small else {}
        lacking = [need._asdict() for need in needs(table)]
        plans.append({"name": table.name, "rows": rows, "needs": lacking, **scaled})
    if as_json:
        show.say_json(plans)
        return
    for table, plan in zip(tables, plans, strict=True):
        _say_plan(table, plan, jobs, small)


def _say_plan(table: Table, plan: dict[str, Any], jobs: int, small: bool) -> None:
    keys = ("data", "network", "dims", "batch", "steps", "networks")
    rows = [(row["label"], *(str(row[key]) for key in keys), duration(row["seconds"])) for row in plan["rows"]]
    show.say(f"{table.name}: {table.paper}, {table.where}. {table.title}.", show.table(("", *keys, "training"), rows))
    total = duration(sum(row["seconds"] for row in plan["rows"]))
    about = f"About {total} of training with {show.count(jobs, 'job')}"
    show.say(f"{about}, measured on random images; reading and scoring come on top.")
    words = "; ".join(dict.fromkeys(row["checked"] for row in plan["rows"]))
    show.say(f"Built or checked without training: {words}.")
    if small:
        show.say(f"Scaled down: {table.scaling.words}")
    show.say(*(f"Missing: {need['name']}; {need['remedy']}." for need in plan["needs"] if not need["here"]))


def _command(table: Table, arguments: argparse.Namespace) -> str:
    """What was asked for, as far as numbers depend on it."""
    words = ["nearfield", "reproduce", table.name, *(["--small"] if arguments.small else [])]
    words += ["--seeds", str(arguments.seeds)] if arguments.seeds is not None else []
    words += [word for each in arguments.overrides for word in ("--set", each)]
    return shlex.join(words)


def _run(table: Table, arguments: argparse.Namespace, jobs: int) -> Reproduced:
    """Run a table, writing its page after each entry."""
    from nearfield.analysis.figures.svg import svg
    from nearfield.analysis.reproduction import Reproduced, as_json, figure, page
    from nearfield.bench.ablations import run_ablation
    from nearfield.bench.engine import Engine
    from nearfield.bench.reproduce import needs
    from nearfield.files import write_json, write_text

    lacking = [f"{need.name}: {need.remedy}" for need in needs(table) if not need.here]
    if lacking:
        raise InputError(f"{table.name} needs what is not here; use --small, or:\n  " + "\n  ".join(lacking))
    folder = arguments.out / (table.name.replace("/", "-") + ("-small" if arguments.small else ""))
    command = _command(table, arguments)
    benches = {entry.label: entry.bench for entry in table.entries}
    with show.bar(table.name, transient=True, line_every=LINE_EVERY) as bar, Engine(jobs, arguments.cluster) as engine:
        for found in run_ablation(benches, folder, engine, show.watch_several(bar, list(benches))):
            made = Reproduced(table, dict(found), arguments.small, command)
            drawn = figure(made)
            if drawn is not None:
                write_text(folder / "figure.svg", svg(drawn))
            write_text(folder / "page.md", page(made, None if drawn is None else "figure.svg"))
            write_json(folder / "numbers.json", as_json(made))
    if not arguments.json:
        show.say(page(made, None if drawn is None else "figure.svg"), f"Page: {folder / 'page.md'}")
    return made
