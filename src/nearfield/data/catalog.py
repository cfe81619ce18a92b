"""Datasets by name: `load` finds one by name or path, `add` gives a path a name, `verify` checks the images again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearfield.data import official, user_datasets
from nearfield.data.builtin import digits, features, glyphs, omniglot, summaries
from nearfield.data.dataset import Dataset
from nearfield.data.pictures import Pictures, examine
from nearfield.data.readers import arrays, folder, hub, table
from nearfield.errors import InputError, nearest
from nearfield.progress import reported

BUILT_IN: dict[str, Callable[[], Dataset]] = {"digits": digits.load, "glyphs": glyphs.load}


@contextmanager
def _readable() -> Iterator[None]:
    """Turn a file or folder that cannot be read into an InputError that names it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot read {error.filename}: {reason}. Check the path and its permissions.") from error


def names() -> list[str]:
    """The names that `load` knows, sorted: built-in, added, and what is in $NEARFIELD_DATA: Omniglot, features."""
    found = {*BUILT_IN, *user_datasets.names(), *filter(features.find, features.FEATURES)}
    return sorted(found | {"omniglot"} if omniglot.find() else found)


@_readable()
def load(name: str, size: int | None = None, resize: str | None = None, colour: bool | None = None) -> Dataset:
    """The dataset called `name`, or the one at the path `name`.

    A path is a folder of class folders, a table (.csv, .parquet), arrays (.npz, .npy), or a folder that Hugging Face
    `datasets` saved. `size`, `resize` (square, short or crop; see `Pictures`) and `colour` apply to image files, which
    are RGB at 256 x 256 by default; but class folders given by their path are read into memory, grey at 32 x 32,
    unless one of the three options is given.
    """
    wanted: dict[str, Any] = {"size": size, "resize": resize, "colour": colour}
    given = {key: value for key, value in wanted.items() if value is not None}
    if is_path(name):
        dataset = from_path(Path(name), lazy=bool(given))
    elif name == "omniglot" and (path := user_datasets.source(name) or omniglot.find()) is not None:
        dataset = omniglot.load(path, given.pop("size", omniglot.SIDE))
    elif name in user_datasets.names():
        dataset = user_datasets.load(name, from_path)
    elif (found := features.find(name)) is not None:
        dataset = features.load(name, found)
    elif name in BUILT_IN:
        dataset = BUILT_IN[name]()
    elif name not in official.KINDS and Path(name).is_dir():
        dataset = from_path(Path(name), lazy=bool(given))
    else:
        raise InputError(_unknown(name))
    if isinstance(dataset.images, Pictures):
        return replace(dataset, images=dataset.images.at(**given))
    if given:
        raise InputError(f"{', '.join(given)} cannot be set for {name}: its images are arrays, not files.")
    return dataset


@_readable()
def summary(name: str) -> dict[str, object] | None:
    """What `load(name).summary()` would say, without loading; None if that is not known yet."""
    return user_datasets.summary(name) if name in user_datasets.names() else summaries.known(name)


def from_path(path: Path, lazy: bool = True) -> Dataset:
    """The dataset in a folder or file; class folders are decoded at once, grey and small, unless `lazy`."""
    if path.suffix in table.SUFFIXES:
        return table.load(path)
    if path.suffix in arrays.SUFFIXES:
        return arrays.load(path)
    if hub.is_one(path):
        return hub.load(path)
    return folder.load(path) if lazy else folder.load_small(path)


@_readable()
def add(name: str, path: Path, kind: official.Kind | None = None, quick: bool = False) -> Dataset:
    """Read and check the data at `path` and register it as `name`; nothing is registered if anything is wrong.

    If `name` is that of an official dataset, or with `kind`, the data must be exactly as published. `quick` skips
    decoding every image.
    """
    if name in BUILT_IN or is_path(name):
        raise InputError(f"name must not be that of a built-in dataset or a path; got {name!r}. Choose another name.")
    kind = kind or official.KINDS.get(name)
    if kind is not None:
        dataset = official.read(name, path, kind, quick)
    elif name == "omniglot":
        dataset = omniglot.load(path)
    else:
        dataset = from_path(path)
        problems = _alone(dataset) + ([] if quick else verify(dataset))
        if problems:
            more = f"\n  and {len(problems) - 20:,} more" if len(problems) > 20 else ""
            raise InputError(f"{path} cannot be added:\n  " + "\n  ".join(problems[:20]) + more)
    user_datasets.add(name, dataset, path)
    return load(name)


def verify(dataset: Dataset) -> list[str]:
    """Check that every image file is there, unchanged since it was added and can be decoded; the list of problems."""
    if not isinstance(dataset.images, Pictures):
        return []  # arrays are compared with their fingerprint when they are loaded
    with reported(f"Decoding {dataset.name}") as progress:
        return examine(dataset.images.files, dataset.images.digests, progress)[1]


def is_path(name: str) -> bool:
    """Whether `name` can only be a path. A folder in the current directory may also be given by its bare name."""
    return "/" in name or "\\" in name or Path(name).suffix in (*table.SUFFIXES, *arrays.SUFFIXES)


def _unknown(name: str) -> str:
    if name in official.KINDS:
        kind = official.KINDS[name]
        return (
            f"{name} has not been added yet: get {', '.join([*kind.archives, *kind.beside])} from {kind.address} "
            f"and run `nearfield data add {name} PATH`."
        )
    if name == "omniglot":
        return (
            f"omniglot was not found: set NEARFIELD_DATA to the folder that has {omniglot.FILE}, "
            f"or run `nearfield data add omniglot {omniglot.FILE}`."
        )
    if name in features.FEATURES:
        source = features.FEATURES[name]
        return (
            f"{name} was not found: set NEARFIELD_DATA to the folder that has {source.file}, EfficientNet-Lite0 "
            f"features of {source.title}, or run `nearfield data add {name} FEATURES.npz`."
        )
    known = [*names(), *official.KINDS, *features.FEATURES, "omniglot"]
    return f"unknown dataset {name!r}; {nearest(name, known)}"


def _alone(dataset: Dataset) -> list[str]:
    """The classes of a single image, which has no positive: it can neither be retrieved nor learned from."""
    counts = np.bincount(dataset.labels, minlength=len(dataset.class_names))
    return [
        f"class {dataset.class_names[label]!r} has a single image; every class needs at least two"
        for label in np.flatnonzero(counts == 1)
    ]
