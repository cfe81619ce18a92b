"""What the `data` commands of the command line do: read the arguments, call `nearfield.data`, print."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from nearfield import data
from nearfield.data.leaks import Leak, find_leaks
from nearfield.data.official import KINDS
from nearfield.data.pictures import Pictures
from nearfield.errors import NearfieldError

console = Console(highlight=False)
SHOWN = 20  # lines of a list on a terminal; --json has all


def data_add(arguments: argparse.Namespace) -> None:
    """Read, check and remember."""
    dataset = data.add(arguments.name, arguments.path, quick=arguments.quick)
    if arguments.json:
        console.print_json(json.dumps(dataset.summary()))
        return
    _print_summary(dataset)
    console.print(f"Added: {arguments.name}", soft_wrap=True, markup=False)


def data_list(arguments: argparse.Namespace) -> None:
    """Every dataset with its counts, and what else could be added."""
    summaries, broken = [], {}
    for name in data.names():
        try:
            summaries.append({**data.load(name).summary(), "name": name})
        except NearfieldError as error:  # one that has moved must not hide the others
            broken[name] = str(error)
    if arguments.json:
        console.print_json(json.dumps([*summaries, *({"name": n, "error": e} for n, e in broken.items())]))
        return
    table = Table("name", "images", "size", "classes", "categories", "train classes", "test classes")
    for s in summaries:
        keys = ("name", "images", "image_size", "classes", "categories", "train_classes", "test_classes")
        table.add_row(*(str(s[key]) for key in keys))
    console.print(table)
    for text in broken.values():
        console.print(text, soft_wrap=True, markup=False)
    for name, kind in KINDS.items():
        if name not in data.names():
            text = f"{name} can be added with `nearfield data add {name} PATH`: {kind.title}, {kind.address}"
            console.print(text, soft_wrap=True, markup=False)


def data_show(arguments: argparse.Namespace) -> None:
    """One dataset's description, counts and categories."""
    dataset = data.load(arguments.name)
    if arguments.json:
        console.print_json(json.dumps({**dataset.summary(), "category_classes": _categories(dataset)}))
        return
    console.print(dataset.description, soft_wrap=True, markup=False)
    _print_summary(dataset)


def data_verify(arguments: argparse.Namespace) -> int:
    """Look at every picture again."""
    dataset = data.load(arguments.name)
    problems = data.verify(dataset)
    if arguments.json:
        console.print_json(json.dumps({"name": arguments.name, "images": len(dataset.images), "problems": problems}))
    else:
        _print_some(problems)
        found = f"{len(problems):,} of them wrong" if problems else "all there, unchanged and whole"
        console.print(f"{len(dataset.images):,} images of {arguments.name}: {found}", soft_wrap=True, markup=False)
    return 1 if problems else 0


def data_leaks(arguments: argparse.Namespace) -> None:
    """List the images that are in training and in test."""
    dataset = data.load(arguments.name)
    rows = [_leak(dataset, leak) for leak in find_leaks(dataset, arguments.distance)]
    if arguments.json:
        console.print_json(json.dumps(rows))
        return
    _print_some([f"{row['kind']}: {row['train']}  {row['test']}" for row in rows])
    text = f"{arguments.name}: pairs of a training and a test image that are the same, or nearly: {len(rows):,}"
    console.print(text, soft_wrap=True, markup=False)


def data_sheet(arguments: argparse.Namespace) -> None:
    """Write a contact sheet."""
    out = arguments.out or Path(f"{Path(arguments.name).name}.png")
    data.contact_sheet(data.load(arguments.name), out, classes=arguments.classes)
    console.print(f"Sheet: {out}", soft_wrap=True, markup=False)


def _categories(dataset: data.Dataset) -> dict[str, int]:
    counts = np.bincount(dataset.class_category, minlength=len(dataset.category_names))
    return {name: int(count) for name, count in zip(dataset.category_names, counts, strict=True)}


def _print_summary(dataset: data.Dataset) -> None:
    table = Table(show_header=False)
    for key, value in dataset.summary().items():
        table.add_row(key.replace("_", " "), str(value))
    table.add_row("classes by category", ", ".join(f"{name} {count}" for name, count in _categories(dataset).items()))
    console.print(table)


def _print_some(lines: list[str]) -> None:
    for line in lines[:SHOWN]:
        console.print(line, soft_wrap=True, markup=False)
    if len(lines) > SHOWN:
        console.print(f"and {len(lines) - SHOWN:,} more; --json lists all", markup=False)


def _leak(dataset: data.Dataset, leak: Leak) -> dict[str, object]:
    def name(row: int) -> str:
        files = dataset.images.files if isinstance(dataset.images, Pictures) else None
        return files.name(row) if files is not None else f"image {row} ({dataset.class_names[dataset.labels[row]]})"

    kind = "identical" if leak.distance is None else f"{leak.distance} bits differ"
    rows = {"train_row": leak.train_row, "test_row": leak.test_row, "distance": leak.distance}
    return {"kind": kind, "train": name(leak.train_row), "test": name(leak.test_row), **rows}
