"""`nearfield embed`: embed a dataset into a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json

if TYPE_CHECKING:
    from rich.progress import Progress


def add_parser(commands: Commands) -> None:
    """The grammar."""
    example = "nearfield embed efficientnet_lite0 photos/ --split test -o photos.npz && nearfield eval photos.npz"
    summary = "embed a dataset into a file; goes on where it was interrupted"
    parser = add_command(commands, "embed", embed, summary, example)
    parser.add_argument("model", help="exported model, finished run, or backbone: efficientnet_lite0, timm:NAME, ...")
    parser.add_argument("data", help="a dataset (see `nearfield data list`) or the path of one")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="NPZ", help="file to write")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="pretrained weights of the backbone")
    parser.add_argument("--split", choices=("all", "train", "test"), default="all", help="images (default: all)")
    parser.add_argument("--size", type=int, metavar="PIXELS", help="resize pictures to this side")
    resize = "crop: the middle square; square: all of it, squeezed (default: crop)"
    parser.add_argument("--resize", choices=("crop", "square"), default="crop", help=resize)
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="images at a time (default: 64)")
    add_json(parser, "print what was written as JSON")


def embed(arguments: argparse.Namespace) -> None:
    """Embed a dataset into a file; see `nearfield.export.embed_dataset`."""
    from nearfield.export.embed_dataset import as_trained, at_size, embed_to_file, open_images, open_model

    dataset = open_images(arguments.data)
    model = open_model(arguments.model, arguments.weights, dataset)
    dataset = at_size(dataset, arguments.size, arguments.resize) if arguments.size else as_trained(dataset, model)
    with _progress() as bar:
        task = bar.add_task("images", total=None, info="")
        images, dim = embed_to_file(
            model,
            dataset,
            arguments.out,
            arguments.split,
            arguments.batch_size,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    if arguments.json:
        show.results().print_json(json.dumps({"out": str(arguments.out), "images": images, "dim": dim}))
    else:
        show.results().print(f"Embeddings: {arguments.out}, {images} images, {dim} dims", soft_wrap=True)


def _progress() -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[info]}"), console=show.notes())
