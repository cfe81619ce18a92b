"""`nearfield data`: add, list, check and picture the data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import nearfield as nf
from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json
from nearfield.errors import NearfieldError

if TYPE_CHECKING:
    from nearfield.data import Dataset
    from nearfield.data.leaks import Leak

SHOWN = 20  # lines of a list on a terminal; --json has all


def add_parser(commands: Commands) -> None:
    """The grammar."""
    example = "nearfield data add cub CUB_200_2011.tgz"
    parser = add_command(commands, "data", None, "add, list, check and picture the data", example)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    summary = "read, check and remember data under a name"
    add = add_command(actions, "add", data_add, summary, "nearfield data add mine photos/")
    listing = add_command(actions, "list", data_list, "every known dataset", "nearfield data list")
    summary = "counts, splits and fingerprint of a dataset"
    one = add_command(actions, "show", data_show, summary, "nearfield data show glyphs")
    summary = "look at every picture again: is it there and whole?"
    verify = add_command(actions, "verify", data_verify, summary, "nearfield data verify cub")
    summary = "images that are in training and in test, or nearly"
    leaks = add_command(actions, "leaks", data_leaks, summary, "nearfield data leaks cub")
    summary = "write a contact sheet of a dataset"
    sheet = add_command(actions, "sheet", data_sheet, summary, "nearfield data sheet glyphs -o glyphs.png")
    help = "cub, cars196, sop, inshop, vehicleid or imagenet for an official dataset, or any name for data of your own"
    add.add_argument("name", help=help)
    add.add_argument("path", type=Path, help="archive or folder; folder of class folders, .csv, .parquet, .npz or .npy")
    add.add_argument("--quick", action="store_true", help="do not decode every picture")
    for each in (one, verify, leaks, sheet):
        each.add_argument("name", help="a dataset (see `nearfield data list`) or a path")
    leaks.add_argument("--distance", type=int, default=12, metavar="BITS", help="of 128 that may differ (default: 12)")
    sheet.add_argument("-o", "--out", type=Path, help="PNG file to write (default: NAME.png)")
    sheet.add_argument("--classes", type=int, default=12, help="rows of the sheet")
    for each in (add, listing, one, verify, leaks):
        add_json(each)


def data_add(arguments: argparse.Namespace) -> None:
    """Read, check and remember."""
    dataset = nf.data.add(arguments.name, arguments.path, quick=arguments.quick)
    if arguments.json:
        show.results().print_json(json.dumps(dataset.summary()))
        return
    _print_summary(dataset)
    show.results().print(f"Added: {arguments.name}", soft_wrap=True, markup=False)


def data_list(arguments: argparse.Namespace) -> None:
    """Every dataset with its counts, and what else could be added."""
    from rich.table import Table

    from nearfield.data.official import KINDS

    summaries, broken = [], {}
    for name in nf.data.names():
        try:
            summaries.append({**nf.data.load(name).summary(), "name": name})
        except NearfieldError as error:  # one that has moved must not hide the others
            broken[name] = str(error)
    if arguments.json:
        show.results().print_json(json.dumps([*summaries, *({"name": n, "error": e} for n, e in broken.items())]))
        return
    table = Table("name", "images", "size", "classes", "categories", "train classes", "test classes")
    for s in summaries:
        keys = ("name", "images", "image_size", "classes", "categories", "train_classes", "test_classes")
        table.add_row(*(str(s[key]) for key in keys))
    show.results().print(table)
    for text in broken.values():
        show.results().print(text, soft_wrap=True, markup=False)
    for name, kind in KINDS.items():
        if name not in nf.data.names():
            text = f"{name} can be added with `nearfield data add {name} PATH`: {kind.title}, {kind.address}"
            show.results().print(text, soft_wrap=True, markup=False)


def data_show(arguments: argparse.Namespace) -> None:
    """One dataset's description, counts and categories."""
    dataset = nf.data.load(arguments.name)
    if arguments.json:
        show.results().print_json(json.dumps({**dataset.summary(), "category_classes": _categories(dataset)}))
        return
    show.results().print(dataset.description, soft_wrap=True, markup=False)
    _print_summary(dataset)


def data_verify(arguments: argparse.Namespace) -> int:
    """Look at every picture again."""
    dataset = nf.data.load(arguments.name)
    problems = nf.data.verify(dataset)
    if arguments.json:
        show.results().print_json(
            json.dumps({"name": arguments.name, "images": len(dataset.images), "problems": problems})
        )
    else:
        _print_some(problems)
        found = f"{len(problems):,} of them wrong" if problems else "all there, unchanged and whole"
        show.results().print(
            f"{len(dataset.images):,} images of {arguments.name}: {found}", soft_wrap=True, markup=False
        )
    return 1 if problems else 0


def data_leaks(arguments: argparse.Namespace) -> None:
    """List the images that are in training and in test."""
    from nearfield.data.leaks import find_leaks

    dataset = nf.data.load(arguments.name)
    rows = [_leak(dataset, leak) for leak in find_leaks(dataset, arguments.distance)]
    if arguments.json:
        show.results().print_json(json.dumps(rows))
        return
    _print_some([f"{row['kind']}: {row['train']}  {row['test']}" for row in rows])
    text = f"{arguments.name}: pairs of a training and a test image that are the same, or nearly: {len(rows):,}"
    show.results().print(text, soft_wrap=True, markup=False)


def data_sheet(arguments: argparse.Namespace) -> None:
    """Write a contact sheet."""
    out = arguments.out or Path(f"{Path(arguments.name).name}.png")
    nf.data.contact_sheet(nf.data.load(arguments.name), out, classes=arguments.classes)
    show.results().print(f"Sheet: {out}", soft_wrap=True, markup=False)


def _categories(dataset: Dataset) -> dict[str, int]:
    import numpy as np

    counts = np.bincount(dataset.class_category, minlength=len(dataset.category_names))
    return {name: int(count) for name, count in zip(dataset.category_names, counts, strict=True)}


def _print_summary(dataset: Dataset) -> None:
    from rich.table import Table

    table = Table(show_header=False)
    for key, value in dataset.summary().items():
        table.add_row(key.replace("_", " "), str(value))
    table.add_row("classes by category", ", ".join(f"{name} {count}" for name, count in _categories(dataset).items()))
    show.results().print(table)


def _print_some(lines: list[str]) -> None:
    for line in lines[:SHOWN]:
        show.results().print(line, soft_wrap=True, markup=False)
    if len(lines) > SHOWN:
        show.results().print(f"and {len(lines) - SHOWN:,} more; --json lists all", markup=False)


def _leak(dataset: Dataset, leak: Leak) -> dict[str, object]:
    from nearfield.data.pictures import Pictures

    def name(row: int) -> str:
        files = dataset.images.files if isinstance(dataset.images, Pictures) else None
        return files.name(row) if files is not None else f"image {row} ({dataset.class_names[dataset.labels[row]]})"

    kind = "identical" if leak.distance is None else f"{leak.distance} bits differ"
    rows = {"train_row": leak.train_row, "test_row": leak.test_row, "distance": leak.distance}
    return {"kind": kind, "train": name(leak.train_row), "test": name(leak.test_row), **rows}
