"""Datasets: `load("glyphs")` is drawn on this machine, `load("digits")` comes with scikit-learn."""

from __future__ import annotations

from pathlib import Path

from nearfield.data import digits, folder, glyphs
from nearfield.data.base import Dataset, DataWarning, cache_dir, split_classes, split_fingerprint
from nearfield.data.sheet import contact_sheet
from nearfield.errors import InputError, nearest

__all__ = [
    "DataWarning",
    "Dataset",
    "cache_dir",
    "contact_sheet",
    "load",
    "names",
    "split_classes",
    "split_fingerprint",
]

_LOADERS = {"digits": digits.load, "glyphs": glyphs.load}


def names() -> list[str]:
    """The names that `load` knows, sorted."""
    return sorted(_LOADERS)


def load(name: str) -> Dataset:
    """The built-in dataset called `name`, or the folder of class folders at the path `name`."""
    if "/" in name or "\\" in name or Path(name).is_dir():
        return folder.load(Path(name))
    if name not in _LOADERS:
        raise InputError(f"dataset {name!r} is unknown; {nearest(name, names())}")
    return _LOADERS[name]()
