"""The images that enter an index: files below folders, of tables, of datasets by name.

The class of a file is the name of the folder that holds it, if that is below the folder given; files directly in the
folder given, and single files, have no class. A dataset (by name, or a table) brings its own classes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearfield import data
from nearfield.data.dataset import Dataset
from nearfield.data.pictures import SUFFIXES, Paths, Pictures
from nearfield.errors import InputError
from nearfield.export.unlabelled import images_of

TABLES = (".csv", ".parquet")


@dataclass(frozen=True)
class Source:
    """An image that can be read."""

    root: str | None  # the absolute folder that `path` is below; None: it is not a file
    path: str
    label: str | None
    read: Callable[[], bytes]  # the encoded image; InputError if it cannot be read


def find_sources(names: Sequence[str], labelled: bool = True) -> list[Source]:
    """All images that files, folders, patterns, tables and names of datasets mean, each once."""
    found: dict[tuple[str | None, str], Source] = {}
    for name in names:
        for source in _sources(name, labelled):
            found.setdefault((source.root, source.path), source)
    if not found:
        raise InputError(f"there is no image in {', '.join(names)}; images end in {', '.join(SUFFIXES)}.")
    return list(found.values())


def _sources(name: str, labelled: bool) -> list[Source]:
    path = Path(name)
    if not path.exists() and name in data.names():
        return _of_dataset(data.load(name), labelled)
    if path.suffix.lower() in TABLES and path.is_file():
        return _of_dataset(data.load(name, colour=True), labelled)
    found = []
    for each in images_of(name):
        root = (path if path.is_dir() else each.parent).resolve()
        below = each.relative_to(path) if path.is_dir() else Path(each.name)
        folder = below.parent.name if path.is_dir() and labelled else ""
        found.append(_of_file(root, below.as_posix(), folder or None))
    return found


def _of_file(root: Path, path: str, label: str | None) -> Source:
    files = Paths(root, (path,))
    return Source(str(root), path, label, lambda: files.read(0))


def _of_dataset(dataset: Dataset, labelled: bool) -> list[Source]:
    labels = [dataset.class_names[label] if labelled else None for label in dataset.labels.tolist()]
    images = dataset.images
    if dataset.are_features:
        raise InputError(f"an index needs images; {dataset.name} holds features.")
    if isinstance(images, Pictures) and isinstance(images.files, Paths):
        root = images.files.root.resolve()
        return [_of_file(root, path, label) for path, label in zip(images.files.paths, labels, strict=True)]
    read = _reader(images)
    return [Source(None, f"{dataset.name}/{row}", label, read(row)) for row, label in enumerate(labels)]


def _reader(images: Any) -> Callable[[int], Callable[[], bytes]]:
    """Reads an image of an array as PNG, or of an archive as it is."""

    def read(row: int) -> bytes:
        if isinstance(images, Pictures):
            return images.files.read(row)
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(images[row])).save(buffer, format="PNG")
        return buffer.getvalue()

    return lambda row: lambda: read(row)
