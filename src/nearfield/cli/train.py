"""`nearfield train`: train one method and score it on the test classes."""

from __future__ import annotations

import argparse
import os

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, add_out, add_set, whole
from nearfield.cli.progress import KINDS, StopFlag, report_progress

DETAILS = """
Without a configuration it trains Multi-Similarity on the built-in glyphs. The step is chosen by validation classes,
the scores are of test classes. --out receives the configuration, checkpoints, metrics and the result. Interrupt it at
any time: the same command resumes. Under torchrun the processes share each batch.
"""
EXAMPLES = """
nearfield train --set method.name=fastap --set method.params.bins=20 --out runs/fastap20
nearfield train cub_lite0_features --set steps=300
nearfield train mine.toml --chunk 32
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "train one method and score it on the test classes; resumes after an interruption"
    parser = add_command(commands, "train", train, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("config", nargs="?", help="a recipe (see `nearfield recipes`) or a run's TOML file")
    add_out(parser, "runs/train")
    parser.add_argument("--batch-size", type=whole(2), metavar="N", help="images per batch (sampler.batch_size)")
    chunk = "embed the batch in chunks of N images: the same gradient with the memory of one chunk"
    parser.add_argument("--chunk", type=whole(1), metavar="N", help=chunk)
    choices = ("tensorboard", "mlflow", "wandb")
    parser.add_argument(
        "--track", action="append", default=[], choices=choices, help="log metrics there too; may be repeated"
    )
    add_set(parser, "optimizer.lr=1e-3")
    progress = (
        "bar: a bar or log lines on standard error; json: JSON lines on standard output; none: only the result "
        "(default: bar)"
    )
    parser.add_argument("--progress", choices=KINDS, default="bar", help=progress)
    add_json(parser)


def train(arguments: argparse.Namespace) -> None:
    """Train one run; see `nearfield.training.loop`."""
    from nearfield.config import RunConfig, build_config, merge
    from nearfield.recipes import config_values
    from nearfield.training.loop import Interrupted, check
    from nearfield.training.loop import train as run_training
    from nearfield.training.trackers import tracker

    values = config_values(arguments.config) if arguments.config else {}
    if arguments.batch_size is not None:
        values = merge(values, [f"sampler.batch_size={arguments.batch_size}"])
    if arguments.chunk is not None:
        values["chunk"] = arguments.chunk
    config = build_config(RunConfig, merge(values, arguments.overrides))
    dataset = check(config)
    stopping = StopFlag().listen()
    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun started
    kind = arguments.progress if first else "none"
    try:
        with (
            report_progress(kind, config.method.name, stopping) as report,
            tracker(arguments.track if first else [], arguments.out, config) as trackers,
        ):
            result = run_training(config, arguments.out, report, stopping, dataset=dataset, track=trackers.log)
    except Interrupted:
        raise KeyboardInterrupt from None
    if first and arguments.json:
        show.say_json(result)
    elif first and arguments.progress != "json":  # which keeps standard output to JSON lines
        scores = ", ".join(f"{k} {100 * v:.2f}" for k, v in result["test"].items())
        show.say(f"{result['method']} seed {result['seed']}, step {result['best_step']}: test {scores}")
        if before := result.get("start", {}).get("test"):
            show.say("Before training: test " + ", ".join(f"{k} {100 * v:.2f}" for k, v in before.items()))
        show.say(f"Folder: {arguments.out}")
