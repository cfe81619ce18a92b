"""`nearfield train`: train one method and test it."""

from __future__ import annotations

import argparse
import json
import os

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, add_out, add_set
from nearfield.cli.show import StopFlag, report_progress


def add_parser(commands: Commands) -> None:
    """The grammar."""
    example = "nearfield train --set method.name=fastap --set method.params.bins=20 --out runs/fastap20"
    summary = "train one method and test it; goes on where it was interrupted"
    parser = add_command(commands, "train", train, summary, example)
    parser.add_argument("config", nargs="?", help="a recipe (see `nearfield recipes`) or the TOML file of a run")
    add_out(parser, "runs/train")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images of a batch (sampler.batch_size)")
    parser.add_argument(
        "--chunk", type=int, metavar="N", help="embed the batch in chunks of N: same gradient, memory of one chunk"
    )
    trackers = "send the numbers there too, where it is installed; may be repeated"
    choices = ("tensorboard", "mlflow", "wandb")
    parser.add_argument("--track", action="append", default=[], choices=choices, help=trackers)
    add_set(parser, "optimizer.lr=1e-3")
    parser.add_argument("--progress", choices=("bar", "json", "none"), default="bar", help="how progress is shown")
    add_json(parser, "print the result as JSON")


def train(arguments: argparse.Namespace) -> None:
    """Train one run; see `nearfield.training.loop`."""
    from nearfield.config import RunConfig, build_config, merge
    from nearfield.recipes import config_values
    from nearfield.training.loop import Interrupted, check
    from nearfield.training.loop import train as run_training
    from nearfield.training.trackers import tracker

    values = config_values(arguments.config) if arguments.config else {}
    if arguments.batch_size is not None:
        values.setdefault("sampler", {})["batch_size"] = arguments.batch_size
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
        show.results().print_json(json.dumps(result))
    elif first and arguments.progress == "bar":
        scores = ", ".join(f"{k} {100 * v:.2f}" for k, v in result["test"].items())
        show.results().print(
            f"{result['method']} seed {result['seed']}, step {result['best_step']}: test {scores}", soft_wrap=True
        )
        show.results().print(f"Folder: {arguments.out}", soft_wrap=True)
