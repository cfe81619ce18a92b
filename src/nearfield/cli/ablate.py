"""`nearfield ablate`: repeat an ablation of the papers."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_cluster, add_command, add_json, add_set, whole
from nearfield.cli.pace import duration
from nearfield.errors import RunError

if TYPE_CHECKING:
    from nearfield.analysis.ablations.outcome import Outcome
    from nearfield.bench.ablations import Ablation
    from nearfield.config import BenchConfig

LINE_EVERY = 30.0  # seconds between two lines of progress
SIZES = ("batch-size", "batch-size-equal-steps", "embedding-size")
NAMES = (*SIZES, "bins", "similarity-types", "sampling", "backbone", "budget")
DETAILS = """
One setting is varied and everything else is equal; every value is a bench of its own in --out. The result is a table,
a figure and paired significance tests between the values. On the papers' own data (sop, cub, cars196, inshop,
vehicleid, imagenet) everything else is the paper's recipe: network, pretrained weights, images, batches, optimiser,
protocol. Interrupt it at any time: the same command resumes.
"""
EXAMPLES = """
nearfield ablate bins --data omniglot --seeds 5 --set run.steps=400
nearfield ablate batch-size --values 32 64 128 --dry-run
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "repeat an ablation of the papers: one setting varied, everything else equal"
    parser = add_command(commands, "ablate", ablate, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=f"the setting to vary: {', '.join(NAMES)}")
    parser.add_argument("--values", nargs="+", metavar="VALUE", help="its values (default: the ablation's own)")
    help = "train and test on this dataset (default: glyphs)"
    parser.add_argument("--data", default="glyphs", metavar="NAME", help=help)
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="methods to train (default: the ablation's own)")
    parser.add_argument("--seeds", type=whole(1), metavar="N", help="run every value with seeds 0 to N-1 (default: 3)")
    add_cluster(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write (default: runs/ablate-NAME-DATA)")
    add_set(parser, "run.steps=800")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the estimated time, run nothing")
    add_json(parser, "all numbers")


def ablate(arguments: argparse.Namespace) -> None:
    """Run one ablation, writing what came out after each of its benches; see `nearfield.bench.ablations`."""
    from nearfield.analysis.ablations.outcome import collect
    from nearfield.analysis.ablations.text import write_outcome
    from nearfield.bench.ablations import ablation, run_ablation
    from nearfield.bench.engine import Engine

    study = ablation(arguments.name)
    jobs = arguments.jobs or os.cpu_count() or 1
    config = study.config(arguments.data, arguments.methods or (), arguments.seeds, arguments.overrides)
    benches = study.benches(config, arguments.values or ())
    if arguments.dry_run:
        _say_plan(study, benches, jobs, arguments.json)
        return
    folder = arguments.out or Path("runs") / f"ablate-{study.name}-{arguments.data}"
    with show.bar(study.name, transient=True, line_every=LINE_EVERY) as bar, Engine(jobs, arguments.cluster) as engine:
        for found in run_ablation(benches, folder, engine, show.watch_several(bar, list(benches))):
            outcome = collect(study, benches, found)
            write_outcome(outcome, folder)
    _say_outcome(outcome, folder, arguments.json)
    if outcome.missing:
        raise RunError("some tasks failed:\n  " + "\n  ".join(outcome.missing))


def _say_plan(study: Ablation, benches: dict[str, BenchConfig], jobs: int, as_json: bool) -> None:
    from nearfield.bench.estimate import estimate_seconds
    from nearfield.bench.run import prepare

    rows: list[dict[str, Any]] = []
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
                "networks": bench.networks,
                "seconds": round(estimate_seconds(bench, dataset, jobs)),
            }
        )
    if as_json:
        show.say_json({"ablation": study.name, "question": study.question, "values": rows, "jobs": jobs})
        return
    keys = ("seeds", "batch", "steps", "networks")
    cells = [
        (str(row["value"]), ", ".join(row["methods"]), *(str(row[key]) for key in keys), duration(row["seconds"]))
        for row in rows
    ]
    show.say(study.question, show.table((study.axis, "methods", *keys, "time"), cells))
    about = duration(sum(row["seconds"] for row in rows))
    show.say(f"About {about} with {show.count(jobs, 'job')}. {study.note}".rstrip())


def _say_outcome(outcome: Outcome, folder: Path, as_json: bool) -> None:
    from nearfield.analysis.ablations.text import outcome_json, table_markdown, words

    if as_json:
        show.say_json(outcome_json(outcome))
        return
    show.say(outcome.ablation.question, table_markdown(outcome), *words(outcome))
    show.say(*(f"{paper.where}: {paper.found}" for paper in outcome.ablation.papers))
    show.say(f"Figure: {folder / 'ablation.svg'}")
