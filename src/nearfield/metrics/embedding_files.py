"""Read embeddings, labels and ids from files, whatever program wrote them.

A file of embeddings is one of
    .npy           a matrix (items, dimensions)
    .npz           arrays `embeddings` (or `features`, or the only matrix) and optionally `labels` and `ids`
    .safetensors   tensors of the same names
    .csv           a row per item: optional columns `label` and `id`, every other column a dimension; the header may be
                   missing if all columns are dimensions
    .parquet       the same columns, or one column `embedding` of lists; needs the extra `parquet`
Labels may come from a separate file: a vector in one of these formats, a column `label`, or .txt with one label a line.

Axes: N items, D dimensions.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.data.npz import read_npy, read_npz
from nearfield.errors import InputError

MATRIX_NAMES = ("embeddings", "features", "embedding")
LABEL_NAMES = ("labels", "label")
ID_NAMES = ("ids", "id")
NOT_DIMENSIONS = {
    "label", "labels", "class", "classes", "category", "categories", "target", "targets", "id", "ids", "index", "idx",
    "row", "name", "path", "paths", "file", "files", "filename", "image", "images", "split", "fold", "unnamed",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """The contents of a file."""

    matrix: NDArray[Any] | None  # (N, D)
    labels: NDArray[Any] | None  # (N,)
    ids: NDArray[Any] | None  # (N,)


def read_table(path: Path, labels_only: bool = False) -> Table:
    """Read the embeddings, labels and ids that the file holds; `labels_only` ignores other columns of a table."""
    if path.suffix not in READERS:
        raise InputError(f"{path} must end in one of {', '.join(READERS)}; got {path.suffix or 'no suffix'!r}.")
    if not path.is_file():
        raise InputError(f"{path} is not a file; check the path.")
    with _readable(path):
        table = READERS[path.suffix](path, labels_only)
    if table.ids is not None:
        names, counts = np.unique(table.ids, return_counts=True)
        if counts.max() > 1:
            first, times = names[counts.argmax()].item(), counts.max()
            raise InputError(f"{path} must hold each id once; got {first!r} {times} times. Remove the duplicates.")
    return table


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as {path.suffix}: {error}.") from error


def _from_arrays(arrays: dict[str, NDArray[Any]]) -> Table:
    """Embeddings, labels and ids among named arrays; the only matrix or vector may have any name."""
    matrix, labels, ids = (
        next((arrays[name] for name in names if name in arrays), None)
        for names in (MATRIX_NAMES, LABEL_NAMES, ID_NAMES)
    )
    matrices = [array for array in arrays.values() if array.ndim == 2]
    if matrix is None and len(matrices) == 1:
        matrix = matrices[0]
    if matrix is None and labels is None and len(arrays) == 1 and not matrices:
        labels = next(iter(arrays.values()))
    return Table(matrix, labels, ids)


def _read_npy(path: Path, labels_only: bool) -> Table:
    array = read_npy(path)
    return Table(array, None, None) if array.ndim == 2 else Table(None, array, None)


def _read_npz(path: Path, labels_only: bool) -> Table:
    return _from_arrays(read_npz(path))


def _read_safetensors(path: Path, labels_only: bool) -> Table:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read as .safetensors: {error}.") from error
    wide = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    return _from_arrays({name: tensor.numpy() for name, tensor in wide.items()})


def _read_txt(path: Path, labels_only: bool) -> Table:
    lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    return Table(None, _numbers_or_words([line for line in lines if line]), None)


def _read_csv(path: Path, labels_only: bool) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as stream:  # spreadsheets write a byte-order mark
        head = next(csv.reader(stream), [])
    if not head:
        raise InputError(f"{path} must hold at least one row; it is empty.")
    named = not all(_is_number(cell) for cell in head)
    names = [cell.strip() for cell in head] if named else [str(column) for column in range(len(head))]

    def column(place: int | None) -> NDArray[Any] | None:
        return None if place is None else _numbers_or_words(_load_csv(path, named, [place], str)[:, 0].tolist())

    label, item, rest = _roles(path, names)
    if label is None and len(names) == 1:
        return Table(None, column(0), None)
    if labels_only or not rest:
        return Table(None, column(label), None)
    _require_dimensions(path, [names[place] for place in rest])
    return Table(_load_csv(path, named, rest, np.float64), column(label), column(item))


def _roles(path: Path, names: Sequence[str]) -> tuple[int | None, int | None, list[int]]:
    """Positions of the column of labels, of the column of ids, and of all others."""
    found: list[int | None] = []
    for known in (LABEL_NAMES, ID_NAMES):
        places = [place for place, name in enumerate(names) if name.strip().lower() in known]
        if len(places) > 1:
            several = ", ".join(repr(names[place]) for place in places)
            raise InputError(f"{path} must have one column `{known[1]}`; got {several}. Remove the others.")
        found.append(places[0] if places else None)
    return found[0], found[1], [place for place in range(len(names)) if place not in found]


def _require_dimensions(path: Path, names: Sequence[str]) -> None:
    """Refuse columns whose names say that they are not dimensions of an embedding, such as `class` or `path`."""
    for name in names:
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
        if not name or words & NOT_DIMENSIONS:
            raise InputError(
                f"every column of {path} but label and id is read as a dimension; {name!r} looks like something else. "
                "Rename it to `label` or `id` if that is what it holds, or remove it."
            )


def _load_csv(path: Path, named: bool, columns: list[int], kind: Any) -> NDArray[Any]:
    return np.loadtxt(
        path, dtype=kind, delimiter=",", skiprows=int(named), usecols=columns, ndmin=2, quotechar='"',
        comments=None, encoding="utf-8-sig",
    )  # fmt: skip


def _read_parquet(path: Path, labels_only: bool) -> Table:
    _, parquet = require_pyarrow(path)
    table = parquet.read_table(path)
    names = table.column_names
    label, item, rest = _roles(path, names)
    labels, ids = (
        None if place is None else _numbers_or_words(table.column(place).to_pylist()) for place in (label, item)
    )
    if labels_only or not rest:
        return Table(None, labels, None)
    lists = next((name for name in MATRIX_NAMES if name in names), None)
    if lists is not None:
        return Table(np.asarray(table.column(lists).to_pylist(), dtype=np.float64), labels, ids)
    _require_dimensions(path, [names[place] for place in rest])
    return Table(np.stack([table.column(place).to_numpy() for place in rest], 1), labels, ids)


READERS: dict[str, Callable[[Path, bool], Table]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
    ".txt": _read_txt,
}


def _numbers_or_words(cells: Sequence[Any]) -> NDArray[Any]:
    """Labels as integers when all of them are, as strings otherwise."""
    words = [str(cell) for cell in cells]
    try:
        return np.array([int(word) for word in words], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(words, dtype=str)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def require_pyarrow(path: Path) -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet; InputError naming the extra if they are missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            f"{path} requires pyarrow, which is not installed; run `pip install 'nearfield[parquet]'`, or use .csv."
        ) from error
    return pyarrow, pyarrow.parquet
