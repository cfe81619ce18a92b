"""Datasets that the user has added by name: a record of each in the cache.

The record of image files holds all paths and hashes, so that loading reads no list again; the record of anything else
holds the path of the file and the fingerprint of the data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfield.data.dataset import Dataset, cache_dir
from nearfield.data.npz import read_npz
from nearfield.data.pictures import Paths, Pictures
from nearfield.errors import InputError, RunError
from nearfield.files import atomic_write

VERSION = 1  # of the layout of a record
ARRAYS = ("labels", "class_category", "train_classes", "test_classes", "is_test", "is_query", "is_gallery")


def names() -> list[str]:
    """The names of all added datasets, sorted."""
    return sorted(path.stem for path in _folder().glob("*.npz") if not path.name.startswith("."))


def add(name: str, dataset: Dataset, source: Path) -> None:
    """Record `dataset` as `name`; replaces an earlier dataset of that name."""
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise InputError(f"name must consist of letters, digits, '-', '_' and '.'; got {name!r}.")
    facts: dict[str, Any] = {"version": VERSION, "source": str(source.resolve()), "fingerprint": dataset.fingerprint}
    arrays: dict[str, npt.NDArray[Any]] = {}
    if isinstance(dataset.images, Pictures) and isinstance(dataset.images.files, Paths):
        files = dataset.images.files
        facts |= {"root": str(files.root), "paths": files.paths, "description": dataset.description}
        facts |= {"class_names": dataset.class_names, "category_names": dataset.category_names}
        arrays = {key: getattr(dataset, key) for key in ARRAYS if getattr(dataset, key) is not None}
        arrays |= {f"list {key}": rows for key, rows in dataset.test_lists.items()}
        arrays["digests"] = dataset.images.digests
    facts["summary"] = {**dataset.summary(), "name": name}
    text = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    with atomic_write(_folder() / f"{name}.npz") as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, facts=text, **arrays)  # type: ignore[arg-type]  # numpy's stubs


def source(name: str) -> Path | None:
    """The path from which `name` was added; None if it was not."""
    return Path(_read(name)[0]["source"]) if name in names() else None


def summary(name: str) -> dict[str, object] | None:
    """The counts recorded when `name` was added; None if it was added before they were. InputError if it is gone."""
    facts, _ = _read(name)
    _check_there(name, facts)
    found: dict[str, object] | None = facts.get("summary")
    return found


def load(name: str, reread: Callable[[Path], Dataset]) -> Dataset:
    """The dataset added as `name`; `reread` loads data other than image files from the path it was added from."""
    facts, arrays = _read(name)
    _check_there(name, facts)
    if "paths" not in facts:
        dataset = reread(Path(facts["source"]))
        if dataset.fingerprint != facts["fingerprint"]:
            raise InputError(f"{facts['source']} has changed since it was added as {name}; add it again.")
        return replace(dataset, name=name)
    return Dataset(
        name=name,
        images=Pictures(Paths(Path(facts["root"]), tuple(facts["paths"])), arrays.pop("digests")),
        class_names=tuple(facts["class_names"]),
        category_names=tuple(facts["category_names"]),
        fingerprint=facts["fingerprint"],
        description=facts["description"],
        test_lists={key.removeprefix("list "): arrays.pop(key) for key in list(arrays) if key.startswith("list ")},
        **arrays,
    )


def _check_there(name: str, facts: dict[str, Any]) -> None:
    where = Path(facts.get("root", facts["source"]))
    if not where.exists():
        raise InputError(f"the images of {name} are no longer in {where}; put them back, or add {name} again.")


def _read(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    path = _folder() / f"{name}.npz"
    try:
        arrays = read_npz(path)
        facts: dict[str, Any] = json.loads(arrays.pop("facts").tobytes())
    except (ValueError, KeyError) as error:  # an InputError is a ValueError
        raise RunError(f"the record of the dataset {name} is damaged: {error} Add it again.") from error
    if facts["version"] != VERSION:
        raise RunError(f"{name} was added by another version of Nearfield; add it again.")
    return facts, arrays


def _folder() -> Path:
    return cache_dir() / "datasets"
