"""`nearfield embed`: embed a dataset into a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, whole

if TYPE_CHECKING:
    from nearfield.export.embed_dataset import Split

DETAILS = """
Writes an .npz file with the arrays embeddings (N, D), labels (N,), paths (N,) where the images are files, and info.
Single images, glob patterns and folders with fewer than six class folders are embedded without labels.
Interrupt it at any time: the same command resumes.
"""
EXAMPLES = """
nearfield embed runs/train digits -o digits.npz && nearfield eval digits.npz
nearfield embed efficientnet_lite0 photos/ --part all -o photos.npz
nearfield embed runs/train new/ more/cat.jpg -o new.npz
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "embed a dataset into a file; resumes after an interruption"
    parser = add_command(commands, "embed", embed, summary, details=DETAILS, examples=EXAMPLES)
    model = "an exported model, the folder of a finished run, or a backbone: efficientnet_lite0, timm:NAME, ..."
    parser.add_argument("model", help=model)
    images = "a dataset (see `nearfield data list`) or its path; or images without labels: files, folders, patterns"
    parser.add_argument("data", nargs="+", help=images)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="NPZ", help="file to write")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="pretrained weights of the backbone")
    part = "images to embed (default: test, the classes a run does not train on; all if the dataset has no split)"
    parser.add_argument("--part", "--split", choices=("train", "test", "all"), help=part)
    parser.add_argument("--size", type=whole(1), metavar="PIXELS", help="resize images to this side length")
    resize = "crop: keep the central square; square: keep all of the image, distorted to a square (default: crop)"
    parser.add_argument("--resize", choices=("crop", "square"), default="crop", help=resize)
    parser.add_argument("--batch-size", type=whole(1), default=64, metavar="N", help="images per batch (default: 64)")
    raw = "do not scale embeddings to length 1 (default: scaled if the model compares them by cosine)"
    parser.add_argument("--raw", action="store_true", help=raw)
    add_json(parser, "what was written")


def embed(arguments: argparse.Namespace) -> None:
    """Embed a dataset into a file; see `nearfield.export.embed_dataset`."""
    from nearfield.export.embed_dataset import (
        as_trained,
        at_size,
        default_split,
        embed_to_file,
        open_images,
        open_model,
    )

    dataset = open_images(*arguments.data)
    model = open_model(arguments.model, arguments.weights, dataset, False if arguments.raw else None)
    dataset = at_size(dataset, arguments.size, arguments.resize) if arguments.size else as_trained(dataset, model)
    part: Split = arguments.part or default_split(dataset)
    with show.bar("Embedding images") as bar:
        images, dim = embed_to_file(model, dataset, arguments.out, part, arguments.batch_size, bar)
    if arguments.json:
        show.say_json({"out": str(arguments.out), "part": part, "images": images, "dim": dim})
        return
    which = " ".join(["all" if part == "all" else f"the {part} part of", *arguments.data])
    show.say(f"Embeddings: {arguments.out}, {show.count(images, 'image')} ({which}), {dim} dimensions")
    if arguments.part is None and part == "test":
        show.note("Only the test part was embedded; --part all embeds every image.")
