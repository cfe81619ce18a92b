"""`nearfield weights`: what the pair weights of a loss respond to."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, add_set
from nearfield.errors import InputError


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "which similarities each loss's pair weights use, measured; or one loss's weights, drawn"
    example = "nearfield weights multi_similarity --plot weights.svg"
    parser = add_command(commands, "weights", weights, summary, example)
    parser.add_argument(
        "name", nargs="?", help="a pair loss; without it, Table 1 of the Multi-Similarity paper is measured"
    )
    parser.add_argument("--plot", type=Path, metavar="SVG", help="draw the weight curves and the weights over a batch")
    parser.add_argument("--data", default="digits", help="where the batch comes from (default: digits)")
    add_set(parser, "beta=40")
    add_json(parser)


def weights(arguments: argparse.Namespace) -> None:
    """General Pair Weighting by measurement; see `nearfield.inspection.pair_weighting`."""
    from rich.table import Table

    from nearfield import losses
    from nearfield.config import merge
    from nearfield.inspection.pair_weighting import BY_CLUSTER, DISAGREEMENTS, TABLE_PARAMS, similarity_types
    from nearfield.pairs import PairLoss

    params = merge({}, arguments.overrides)
    names = [arguments.name] if arguments.name else losses.names()
    rows = []
    for name in names:
        method = losses.method(name)
        if not issubclass(method.build, PairLoss) or "dim" in method.parameters or name in BY_CLUSTER:
            continue
        loss = losses.create(name, **{**TABLE_PARAMS.get(name, {}), **params}).eval()
        assert isinstance(loss, PairLoss)
        if arguments.plot:
            return _plot(loss, name, arguments)
        claim = method.similarities
        note = DISAGREEMENTS.get(name, "")
        rows.append({"loss": name, "measured": similarity_types(loss), "paper": claim, "note": note})
    if not rows:
        raise InputError(f"{arguments.name} is not a loss over pairs of a batch; see `nearfield methods`.")
    if arguments.json:
        show.results().print_json(json.dumps(rows))
        return None
    table = Table(
        "loss", "measured", "paper", "note", title="similarities that the weight of a negative pair responds to"
    )
    for row in rows:
        table.add_row(row["loss"], *(" ".join(row[k]) for k in ("measured", "paper")), row["note"])
    show.results().print(table)
    show.results().print("S: its own, all moving together. P: the positives'. N: the other negatives'.")
    return None


def _plot(loss: Any, name: str, arguments: argparse.Namespace) -> None:
    """Draw a loss's weights over a batch of raw pixels."""
    import torch

    from nearfield import data
    from nearfield.inspection.pair_weighting import plot_weights
    from nearfield.samplers import MPerClassSampler

    dataset = data.load(arguments.data)
    classes = min(8, len(dataset.class_names))
    rows = next(iter(MPerClassSampler(dataset.labels, 6 * classes, 6, seed=0)))
    pixels = torch.from_numpy(dataset.images[rows]).flatten(1).double()
    out = plot_weights(loss, name, pixels - pixels.mean(0), torch.from_numpy(dataset.labels[rows]), arguments.plot)
    show.results().print(f"Plot: {out}", soft_wrap=True)
