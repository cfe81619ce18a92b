"""Images listed in a table: `path`, `label` and, optionally, `split`, `is_query`, `is_gallery`, `category`.

The table is a CSV file with a header (UTF-8) or a Parquet file (needs the extra `parquet`). Paths are absolute or
relative to the folder of the table. `split` is train or test; `is_query` and `is_gallery` are 1 or 0, true or false;
all images of a label have the same `category`.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nearfield.data.dataset import Dataset, Flags
from nearfield.data.from_labels import assemble
from nearfield.data.pictures import Paths, Pictures, digests_of
from nearfield.errors import InputError, missing_package, nearest

SUFFIXES = (".csv", ".parquet")
NEEDED = ("path", "label")
COLUMNS = (*NEEDED, "split", "is_query", "is_gallery", "category")
FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
Columns = dict[str, list[str]]


def load(path: Path) -> Dataset:
    """The dataset that a table lists; InputError names the row or the file that is wrong."""
    if not path.is_file():
        raise InputError(f"the table {path} does not exist. Check the path.")
    columns = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
    _check(path, columns)
    files = Paths(path.resolve().parent, tuple(columns["path"]))
    missing = files.missing()
    if missing:
        raise InputError(f"{path}: missing images: {len(missing):,} of {len(files):,}, the first is {missing[0]}.")
    return assemble(
        str(path),
        Pictures(files, digests_of(files)),
        columns["label"],
        f"Images of the table {path}.",
        split=columns.get("split"),
        is_query=_flags(path, "is_query", columns),
        is_gallery=_flags(path, "is_gallery", columns),
        categories=_categories(path, columns),
    )


def _read_csv(path: Path) -> Columns:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            header = [name.strip() for name in next(reader, [])]
            rows = [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}.") from error
    _refuse_repeated(path, header)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {number}: expected {len(header)} columns; found {len(row)}.")
    return {name: [row[place].strip() for row in rows] for place, name in enumerate(header)}


def _read_parquet(path: Path) -> Columns:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise missing_package(str(path), "pyarrow", "parquet") from error
    try:
        _refuse_repeated(path, parquet.read_schema(path).names)
        content = parquet.read_table(path).to_pydict()
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}.") from error
    return {name: ["" if value is None else str(value) for value in values] for name, values in content.items()}


def _refuse_repeated(path: Path, header: Sequence[str]) -> None:
    """InputError if two columns have the same name: it is not clear which is meant."""
    repeated = next((name for name, count in Counter(header).items() if count > 1), None)
    if repeated is not None:
        raise InputError(f"{path} has the column {repeated!r} {header.count(repeated)} times; keep one of them.")


def _check(path: Path, columns: Columns) -> None:
    for name in NEEDED:
        if name not in columns:
            raise InputError(f"{path} must have the columns {', '.join(NEEDED)}; found {', '.join(columns) or 'none'}.")
    for name in columns:
        if name not in COLUMNS:
            raise InputError(f"{path} has an unknown column {name!r}; {nearest(name, COLUMNS)}")
    if not columns["path"]:
        raise InputError(f"{path} must list at least one image; found none.")
    for name in NEEDED:
        if "" in columns[name]:
            raise InputError(f"{path}, row {columns[name].index('') + 1}: {name} must not be empty.")
    (first, times), *_ = Counter(columns["path"]).most_common(1)
    if times > 1:
        raise InputError(f"{path} must list each image once; found {first} {times} times.")


def _flags(path: Path, name: str, columns: Columns) -> Flags | None:
    if name not in columns:
        return None
    words = [word.lower() for word in columns[name]]
    unknown = sorted(set(words) - FLAGS.keys())
    if unknown:
        raise InputError(f"{path}: {name} must be 1 or 0, true or false; got {unknown[0]!r}.")
    return np.asarray([FLAGS[word] for word in words], dtype=np.bool_)


def _categories(path: Path, columns: Columns) -> dict[str, str]:
    return one_each(path, "category", columns["label"], columns.get("category", []))


def one_each(path: Path, what: str, labels: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """The value of each label; InputError if the images of a label have different ones."""
    found: dict[str, str] = {}
    for label, value in zip(labels, values, strict=False):
        if found.setdefault(label, value) != value:
            raise InputError(f"{path}: label {label!r} must have one {what}; found {found[label]!r} and {value!r}.")
    return found
