"""Datasets: built in, from the papers, or your own.

`load("glyphs")` is drawn on this machine and `load("digits")` comes with scikit-learn; `load("cub")` and the other
datasets of the papers need `nearfield data add cub PATH` once; `load("path/to/data")` reads folders, tables and arrays.
"""

from __future__ import annotations

from nearfield.data.catalog import add, load, names, verify
from nearfield.data.contact_sheet import contact_sheet
from nearfield.data.dataset import Dataset, DataWarning, cache_dir, split_fingerprint
from nearfield.data.pictures import Pictures
from nearfield.data.pixel_cache import Stored, decoded, pixels
from nearfield.data.splits import gallery_of_one, halves, k_folds, resplit, split_classes

__all__ = [
    "DataWarning",
    "Dataset",
    "Pictures",
    "Stored",
    "add",
    "cache_dir",
    "contact_sheet",
    "decoded",
    "gallery_of_one",
    "halves",
    "k_folds",
    "load",
    "names",
    "pixels",
    "resplit",
    "split_classes",
    "split_fingerprint",
    "verify",
]
