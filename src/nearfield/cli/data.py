"""`nearfield data`: add, list, check and show datasets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import nearfield as nf
from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, whole
from nearfield.errors import NearfieldError

if TYPE_CHECKING:
    from rich.table import Table

    from nearfield.data import Dataset
    from nearfield.data.leaks import Leak

LISTED = 20  # lines of a list; --json prints all
DETAILS = """
Built-in datasets need no files. Your own are a folder with one folder of images per class, a table (.csv, .parquet)
with paths and labels, or arrays (.npz, .npy). Everywhere a dataset is expected, its name or its path will do.
"""
EXAMPLES = """
nearfield data add cub CUB_200_2011.tgz
nearfield data add mine photos/
nearfield data list
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    parser = add_command(
        commands, "data", None, "add, list, check and show datasets", details=DETAILS, examples=EXAMPLES
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_add(actions)
    listing = add_command(actions, "list", data_list, "list every known dataset", examples="nearfield data list")
    add_json(listing)
    summary = "print the counts, the split and the fingerprint of a dataset"
    one = add_command(actions, "show", data_show, summary, examples="nearfield data show glyphs")
    _add_name(one)
    add_json(one)
    summary = "decode every image again: is it there, unchanged and readable?"
    verify = add_command(actions, "verify", data_verify, summary, examples="nearfield data verify cub")
    _add_name(verify)
    add_json(verify)
    _add_leaks(actions)
    summary = "write a contact sheet of a dataset"
    sheet = add_command(actions, "sheet", data_sheet, summary, examples="nearfield data sheet glyphs -o glyphs.png")
    _add_name(sheet)
    sheet.add_argument("-o", "--out", type=Path, metavar="PNG", help="file to write (default: NAME.png)")
    help = "classes to show, one per row (default: 12)"
    sheet.add_argument("--classes", type=whole(1), default=12, metavar="N", help=help)


def _add_add(actions: Commands) -> None:
    summary = "read and check a dataset, and register it under a name"
    parser = add_command(actions, "add", data_add, summary, examples="nearfield data add mine photos/")
    help = "cub, cars196, sop, inshop, vehicleid or imagenet for an official dataset; any other name for your own data"
    parser.add_argument("name", help=help)
    parser.add_argument(
        "path", type=Path, help="archive or folder; folder of class folders, .csv, .parquet, .npz, .npy"
    )
    parser.add_argument("--quick", action="store_true", help="do not decode the images")
    add_json(parser)


def _add_leaks(actions: Commands) -> None:
    summary = "list images that are in the training part and, identical or nearly so, in the test part"
    parser = add_command(actions, "leaks", data_leaks, summary, examples="nearfield data leaks cub")
    _add_name(parser)
    help = "bits of the 128-bit perceptual hash that may differ (default: 12)"
    parser.add_argument("--distance", type=whole(0), default=12, metavar="BITS", help=help)
    add_json(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a dataset (see `nearfield data list`) or the path to one")


def data_add(arguments: argparse.Namespace) -> None:
    """Read, check and register."""
    dataset = nf.data.add(arguments.name, arguments.path, quick=arguments.quick)
    if arguments.json:
        show.say_json(dataset.summary())
    else:
        show.say(_summary_table(dataset), f"Added: {arguments.name}")


def data_list(arguments: argparse.Namespace) -> None:
    """Every dataset with its counts, and what else could be added."""
    from nearfield.data.catalog import summary
    from nearfield.data.official import KINDS

    summaries: list[dict[str, object]] = []
    broken = {}
    for name in nf.data.names():
        try:
            summaries.append(summary(name) or {"name": name})
        except NearfieldError as error:  # one that has moved must not hide the others
            broken[name] = str(error)
    if arguments.json:
        show.say_json([*summaries, *({"name": n, "error": e} for n, e in broken.items())])
        return
    keys = ("name", "images", "image_size", "classes", "categories", "train_classes", "test_classes")
    head = ("name", "images", "size", "classes", "categories", "train classes", "test classes")
    show.say(show.table(head, [[str(s[key]) for key in keys] for s in summaries if "images" in s]))
    unknown = [s["name"] for s in summaries if "images" not in s]
    show.say(*(f"{name}: not loaded yet; `nearfield data show {name}` loads it" for name in unknown), *broken.values())
    for name, kind in KINDS.items():
        if name not in nf.data.names():
            show.say(f"{name} can be added with `nearfield data add {name} PATH`: {kind.title}, {kind.address}")


def data_show(arguments: argparse.Namespace) -> None:
    """One dataset's description, counts and categories."""
    dataset = nf.data.load(arguments.name)
    if arguments.json:
        show.say_json({**dataset.summary(), "category_classes": _categories(dataset)})
    else:
        show.say(dataset.description, _summary_table(dataset))


def data_verify(arguments: argparse.Namespace) -> int:
    """Decode every image again."""
    dataset = nf.data.load(arguments.name)
    problems = nf.data.verify(dataset)
    if arguments.json:
        show.say_json({"name": arguments.name, "images": len(dataset.images), "problems": problems})
    else:
        _say_some(problems)
        found = show.count(len(problems), "problem") if problems else "all present, unchanged and readable"
        show.say(f"{arguments.name}, {show.count(len(dataset.images), 'image')}: {found}")
    return 1 if problems else 0


def data_leaks(arguments: argparse.Namespace) -> None:
    """List the images that are in training and in test."""
    from nearfield.data.leaks import find_leaks

    dataset = nf.data.load(arguments.name)
    rows = [_leak(dataset, leak) for leak in find_leaks(dataset, arguments.distance)]
    if arguments.json:
        show.say_json(rows)
        return
    _say_some([f"{row['kind']}: {row['train']}  {row['test']}" for row in rows])
    show.say(
        f"{arguments.name}: {show.count(len(rows), 'pair')} of identical or nearly identical train and test images"
    )


def data_sheet(arguments: argparse.Namespace) -> None:
    """Write a contact sheet."""
    out = arguments.out or Path(f"{Path(arguments.name).name}.png")
    nf.data.contact_sheet(nf.data.load(arguments.name), out, classes=arguments.classes)
    show.say(f"Sheet: {out}")


def _categories(dataset: Dataset) -> dict[str, int]:
    import numpy as np

    counts = np.bincount(dataset.class_category, minlength=len(dataset.category_names))
    return {name: int(count) for name, count in zip(dataset.category_names, counts, strict=True)}


def _summary_table(dataset: Dataset) -> Table:
    rows = [(key.replace("_", " "), str(value)) for key, value in dataset.summary().items()]
    categories = ", ".join(f"{name} {count}" for name, count in _categories(dataset).items())
    return show.table(("", ""), [*rows, ("classes by category", categories)])


def _say_some(lines: list[str]) -> None:
    show.say(*lines[:LISTED])
    if len(lines) > LISTED:
        show.say(f"and {len(lines) - LISTED:,} more; --json lists all")


def _leak(dataset: Dataset, leak: Leak) -> dict[str, object]:
    from nearfield.data.pictures import Pictures

    def name(row: int) -> str:
        files = dataset.images.files if isinstance(dataset.images, Pictures) else None
        return files.name(row) if files is not None else f"image {row} ({dataset.class_names[dataset.labels[row]]})"

    kind = "identical" if leak.distance is None else f"{leak.distance} bits differ"
    rows = {"train_row": leak.train_row, "test_row": leak.test_row, "distance": leak.distance}
    return {"kind": kind, "train": name(leak.train_row), "test": name(leak.test_row), **rows}
