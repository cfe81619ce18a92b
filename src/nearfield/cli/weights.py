"""`nearfield weights`: which similarities the pair weights of a loss depend on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import nearfield as nf
from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, add_set
from nearfield.errors import InputError

if TYPE_CHECKING:
    from nearfield.pairs import PairLoss

DETAILS = """
Every pair loss weights the pairs of a batch (General Pair Weighting). Without a name this measures Table 1 of the
Multi-Similarity paper: which similarities the weight of a negative pair depends on, for every loss.
"""
EXAMPLES = """
nearfield weights
nearfield weights multi_similarity --plot weights.svg
"""
LEGEND = "S: the pair's own similarity. P: similarities of the positives. N: similarities of the other negatives."


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "measure or plot the pair weights of losses"
    parser = add_command(commands, "weights", weights, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("name", nargs="?", help="a pair loss (default: all of them)")
    plot = "plot its weight curves and its weights over a batch"
    parser.add_argument("--plot", type=Path, metavar="SVG", help=plot)
    parser.add_argument("--data", default="digits", metavar="NAME", help="data of that batch (default: digits)")
    add_set(parser, "beta=40", "parameter of the loss")
    add_json(parser)


def weights(arguments: argparse.Namespace) -> None:
    """General Pair Weighting by measurement; see `nearfield.inspection.pair_weighting`."""
    from nearfield.config import merge
    from nearfield.inspection.pair_weighting import similarity_types, table_loss

    params = merge({}, arguments.overrides)
    rows = []
    for name in [arguments.name] if arguments.name else nf.losses.names():
        method = nf.losses.method(name)
        loss = None if method.by_cluster else table_loss(name, params)
        if loss is None:
            continue
        if arguments.plot:
            return _plot(loss, name, arguments)
        facts = {"paper": method.similarities, "note": method.disagreement}
        rows.append({"loss": name, "measured": similarity_types(loss), **facts})
    if not rows:
        rule = "must be a loss whose weights follow from the similarities of a batch's pairs"
        raise InputError(f"the loss {rule}; got {arguments.name!r}. `nearfield weights` lists those.")
    if arguments.json:
        show.say_json(rows)
        return None
    title = "similarities that the weight of a negative pair depends on"
    cells = [(row["loss"], " ".join(row["measured"]), " ".join(row["paper"]), row["note"]) for row in rows]
    show.say(show.table(("loss", "measured", "paper", "note"), cells, title), LEGEND)
    return None


def _plot(loss: PairLoss, name: str, arguments: argparse.Namespace) -> None:
    """Plot a loss's weights over a batch of raw pixels."""
    import torch

    from nearfield.inspection.pair_weighting import plot_weights

    dataset = nf.data.load(arguments.data)
    classes = min(8, len(dataset.class_names))
    rows = next(iter(nf.samplers.MPerClassSampler(dataset.labels, 6 * classes, 6, seed=0)))
    pixels = torch.from_numpy(dataset.images[rows]).flatten(1).double()
    out = plot_weights(loss, name, pixels - pixels.mean(0), torch.from_numpy(dataset.labels[rows]), arguments.plot)
    show.say(f"Plot: {out}")
