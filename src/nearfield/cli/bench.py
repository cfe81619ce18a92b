"""`nearfield bench`: compare methods under equal conditions."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_cluster, add_command, add_json, add_out, add_set, whole
from nearfield.cli.pace import duration
from nearfield.errors import RunError

if TYPE_CHECKING:
    from nearfield.bench.run import Watched
    from nearfield.config import BenchConfig

DETAILS = """
Trains every method with every seed on the same data, with the same network and budget, and scores it on test classes.
--out receives the results and report.html: leaderboard with confidence intervals, paired significance tests, learning
curves, retrieved images. Interrupt it at any time: the same command resumes. A batch that needs more classes than there
are is made smaller, and images get a pretrained network unless run.model.backbone names another; both are said.
"""
EXAMPLES = """
nearfield bench --dry-run
nearfield bench --methods multi_similarity fastap --seeds 3 --set run.steps=800
nearfield bench --data photos/ --methods all --trials 8
nearfield bench --cluster tcp://host:8786 --out /shared/runs/bench
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "compare methods under equal conditions; leaderboard and report"
    parser = add_command(commands, "bench", bench, summary, details=DETAILS, examples=EXAMPLES)
    config = "TOML file of a bench (default: three methods on the built-in glyphs, 8 trials and 5 seeds each)"
    parser.add_argument("config", nargs="?", type=Path, help=config)
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", help="compare these methods (see `nearfield methods`), or `all`"
    )
    parser.add_argument("--seeds", type=whole(1), metavar="N", help="run every method with seeds 0 to N-1")
    parser.add_argument("--data", metavar="NAME", help="train and test on this dataset (see `nearfield data list`)")
    parser.add_argument("--protocol", metavar="NAME", help="classic, reality-check, ... or your own as a TOML file")
    parser.add_argument("--trials", type=whole(1), metavar="N", help="settings to try for every method; 1: no search")
    own = "give every method its own published optimiser and sampler: conditions are then not equal, which is said"
    parser.add_argument("--published", action="store_true", help=own)
    add_cluster(parser)
    add_out(parser, "runs/bench")
    add_set(parser, "run.steps=800")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and the estimated time, run nothing")
    add_json(parser, "the leaderboard")


def bench(arguments: argparse.Namespace) -> None:
    """Compare methods; see `nearfield.bench.run`."""
    config = bench_config(arguments)
    jobs = arguments.jobs or os.cpu_count() or 1
    if arguments.dry_run:
        _say_plan(config, jobs, arguments.json)
        return
    from nearfield.bench.engine import Engine
    from nearfield.bench.run import run_bench
    from nearfield.cli.leaderboard import say_results, say_so_far, watching

    last: list[Watched] = []
    try:
        with watching(arguments.out) as watch, Engine(jobs, arguments.cluster) as engine:

            def remember(watched: Watched) -> None:
                last[:] = [watched]
                watch(watched)

            results = run_bench(config, arguments.out, engine, remember, show.note, fit=True)
    except KeyboardInterrupt:
        if last and last[0].done and not arguments.json:
            say_so_far(last[0])
        raise
    say_results(results, arguments)
    if results.missing:
        raise RunError("some tasks failed:\n  " + "\n  ".join(results.missing))


def bench_config(arguments: argparse.Namespace) -> BenchConfig:
    """The configuration file, then the shortcuts, then `--set`; images get a pretrained network."""
    from nearfield.bench.fit import for_photographs
    from nearfield.config import BenchConfig, build_config, merge, read_toml
    from nearfield.recipes.small import starter_bench

    starter = starter_bench().model_dump(mode="json", exclude_defaults=True)
    values = read_toml(arguments.config) if arguments.config else starter
    if arguments.methods:
        values["methods"] = [{"name": name} for name in _method_names(arguments.methods)]
    if arguments.seeds is not None:
        values["seeds"] = list(range(arguments.seeds))
    if arguments.data:
        values = merge(values, [f"run.data.name={json.dumps(arguments.data, ensure_ascii=False)}"])
    if arguments.protocol:
        values["protocol"] = arguments.protocol
    if arguments.trials is not None:
        values["trials"] = arguments.trials
    if arguments.published:
        values["published"] = True
    values, said = for_photographs(merge(values, arguments.overrides))
    if said:
        show.note(said)
    return build_config(BenchConfig, values)


def _method_names(given: list[str]) -> list[str]:
    if given != ["all"]:
        return given
    from nearfield import losses

    return losses.names()


def _say_plan(config: BenchConfig, jobs: int, as_json: bool) -> None:
    from nearfield.bench.estimate import estimate_seconds
    from nearfield.bench.run import prepare

    found, dataset = prepare(config, fit=True, say=show.note)
    config = found.config
    seconds = estimate_seconds(found, dataset, jobs)
    trials = sum(found.trials)
    seeds = len(config.methods) * len(config.seeds)
    counts = {"trials": trials, "seeds": seeds, "variants": found.total - trials - seeds}
    networks = found.networks
    facts = {"data": dataset.summary(), "protocol": found.protocol.name, "methods": found.labels, **counts}
    if as_json:
        facts |= {"folds": found.protocol.folds, "networks": networks, "seconds": round(seconds), "jobs": jobs}
        show.say_json(facts)
        return
    spaces = {label: ", ".join(space) for label, (_, _, space) in zip(found.labels, found.starts, strict=True)}
    head, columns = ["method"], [found.labels]
    if config.published:
        rates = [f"{run.optimizer.name} {run.optimizer.lr:g}" for _, run, _ in found.starts]
        head, columns = [*head, "published optimiser"], [*columns, rates]
    if trials:
        head, columns = [*head, "searched"], [*columns, [spaces[label] for label in found.labels]]
    show.say(show.table(head, list(zip(*columns, strict=True))))
    words = ", ".join(show.count(count, name.removesuffix("s")) for name, count in counts.items() if count)
    each, steps = show.count(networks, "network"), show.count(config.run.steps, "step")
    show.say(
        f"{config.run.data.name} by the protocol {found.protocol.name}: {words}; {each} "
        f"of {steps} in all. About {duration(seconds)} with {jobs} at a time."
    )
