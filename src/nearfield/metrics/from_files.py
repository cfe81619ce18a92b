"""Metrics of embeddings on disk, whoever made them.

A file of embeddings is one of
    .npy           a matrix (items, dimensions)
    .npz           arrays `embeddings` (or `features`, or the only matrix) and, if there, `labels` and `ids`
    .safetensors   tensors of the same names
    .csv           a row per item: columns `label` and `id` if there, every other column a dimension; a header is needed
                   unless all columns are dimensions
    .parquet       the same columns, or one column `embedding` of lists; needs the extra `parquet`
Labels may come in a file of their own: a vector in one of these formats, or .txt with one label a line.
"""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from nearfield.errors import InputError
from nearfield.files import atomic_write
from nearfield.metrics import PerQuery, retrieval_metrics
from nearfield.metrics.checks import Distance
from nearfield.metrics.settings import DEFAULT_KS, DEFAULT_METRICS, Ties

MATRIX_NAMES = ("embeddings", "features", "embedding")
LABEL_NAMES = ("labels", "label")
ID_NAMES = ("ids", "id")


@dataclass(frozen=True)
class Table:
    """What a file holds."""

    matrix: NDArray[Any] | None  # (N, D)
    labels: NDArray[Any] | None  # (N,)
    ids: NDArray[Any] | None  # (N,)


def evaluate_files(
    embeddings: Path,
    labels: Path | None = None,
    *,
    gallery: Path | None = None,
    gallery_labels: Path | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    metrics: Sequence[str] = DEFAULT_METRICS,
    distance: Distance = "cosine",
    ties: Ties = "expected",
    per_query: Path | None = None,
) -> dict[str, float]:
    """`retrieval_metrics` of files; the scores of every query go to `per_query`, a .csv or .parquet file, if given."""
    if per_query is not None and per_query.suffix not in (".csv", ".parquet"):
        raise InputError(f"per_query must end in .csv or .parquet; got {per_query}.")
    if per_query is not None and per_query.suffix == ".parquet":
        _pyarrow(per_query)
    if gallery is None and gallery_labels is not None:
        raise InputError("gallery_labels needs gallery, which is missing.")
    queries = _labelled(embeddings, labels, "labels")
    items = None if gallery is None else _labelled(gallery, gallery_labels, "gallery_labels")
    scores, found = retrieval_metrics(
        cast(NDArray[Any], queries.matrix),
        cast(NDArray[Any], queries.labels),
        ks,
        None if items is None else items.matrix,
        None if items is None else items.labels,
        metrics,
        distance,
        ties,
        per_query=True,
    )
    if per_query is not None:
        _write(per_query, queries, found)
    return scores


def holds_training(path: Path) -> bool:
    """Whether a file says that it holds training images: `nearfield embed` writes into `info` what it embedded."""
    if path.suffix != ".npz":
        return False
    with np.load(path, allow_pickle=False) as archive:
        try:
            info = json.loads(str(archive["info"]))
            return bool(info.get("train_images", info.get("split") in ("all", "train")))
        except (KeyError, ValueError, AttributeError):  # a file of somebody else
            return False


def read_table(path: Path) -> Table:
    """Read embeddings, labels and ids, whichever of them the file holds."""
    if path.suffix not in READERS:
        raise InputError(f"{path} must end in one of {', '.join(READERS)}; got {path.suffix or 'no ending'!r}.")
    if not path.is_file():
        raise InputError(f"{path} is not a file; check the path.")
    with _readable(path):
        table = READERS[path.suffix](path)
    if table.ids is not None:
        names, counts = np.unique(table.ids, return_counts=True)
        if counts.max() > 1:
            first, times = names[counts.argmax()].item(), counts.max()
            raise InputError(f"{path} must hold each id once; got {first!r} {times} times. Drop the copies.")
    return table


def _labelled(path: Path, labels: Path | None, argument: str) -> Table:
    """The embeddings of one file with labels from another, or from the same."""
    table = read_table(path)
    if table.matrix is None:
        raise InputError(f"{path} must hold a matrix of embeddings; got none. See `nearfield eval --help` for formats.")
    if labels is None:
        if table.labels is None:
            raise InputError(f"{argument} must be given, because {path} holds no labels.")
        return table
    found = read_table(labels)
    if found.labels is None:
        raise InputError(f"{labels} must hold one label per item, as a vector or in a column `label`; got none.")
    return Table(table.matrix, found.labels, table.ids)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as {path.suffix}: {error}.") from error


def _from_arrays(arrays: dict[str, NDArray[Any]]) -> Table:
    """Sort named arrays into embeddings, labels and ids; a lone matrix or vector needs no particular name."""
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


def _read_npy(path: Path) -> Table:
    array = np.load(path, allow_pickle=False)
    return Table(array, None, None) if array.ndim == 2 else Table(None, array, None)


def _read_npz(path: Path) -> Table:
    with np.load(path, allow_pickle=False) as archive:
        return _from_arrays({name: archive[name] for name in archive.files})


def _read_safetensors(path: Path) -> Table:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read as .safetensors: {error}.") from error
    wide = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    return _from_arrays({name: tensor.numpy() for name, tensor in wide.items()})


def _read_txt(path: Path) -> Table:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return Table(None, _numbers_or_words([line for line in lines if line]), None)


def _read_csv(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8") as stream:
        head = next(csv.reader(stream), [])
    if not head:
        raise InputError(f"{path} must hold at least one row; it is empty.")
    named = not all(_is_number(cell) for cell in head)
    names = [cell.strip() for cell in head] if named else [str(column) for column in range(len(head))]

    def column(wanted: Sequence[str]) -> NDArray[Any] | None:
        place = next((names.index(name) for name in wanted if name in names), None)
        return None if place is None else _numbers_or_words(_load_csv(path, named, [place], str)[:, 0].tolist())

    labels, ids = column(LABEL_NAMES), column(ID_NAMES)
    rest = [place for place, name in enumerate(names) if name not in (*LABEL_NAMES, *ID_NAMES)]
    if labels is None and len(names) == 1:
        return Table(None, _numbers_or_words(_load_csv(path, named, [0], str)[:, 0].tolist()), None)
    return Table(_load_csv(path, named, rest, np.float64) if rest else None, labels, ids)


def _load_csv(path: Path, named: bool, columns: list[int], kind: Any) -> NDArray[Any]:
    return np.loadtxt(
        path, dtype=kind, delimiter=",", skiprows=int(named), usecols=columns, ndmin=2, quotechar='"',
        comments=None, encoding="utf-8",
    )  # fmt: skip


def _read_parquet(path: Path) -> Table:
    _, parquet = _pyarrow(path)
    table = parquet.read_table(path)
    arrays = {name: table.column(name) for name in table.column_names}
    labels, ids = (
        next((_numbers_or_words(arrays[name].to_pylist()) for name in names if name in arrays), None)
        for names in (LABEL_NAMES, ID_NAMES)
    )
    lists = next((arrays[name] for name in MATRIX_NAMES if name in arrays), None)
    if lists is not None:
        return Table(np.asarray(lists.to_pylist(), dtype=np.float64), labels, ids)
    rest = [name for name in arrays if name not in (*LABEL_NAMES, *ID_NAMES)]
    return Table(np.stack([arrays[name].to_numpy() for name in rest], 1) if rest else None, labels, ids)


READERS: dict[str, Callable[[Path], Table]] = {
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


def _write(path: Path, queries: Table, found: PerQuery) -> None:
    """One row per query: its index, id if it has one, label, number of matches and scores (empty without a match)."""
    labels = cast(NDArray[Any], queries.labels)
    columns: dict[str, list[Any]] = {"index": list(range(len(labels)))}
    if queries.ids is not None:
        columns["id"] = queries.ids.tolist()
    columns |= {"label": labels.tolist(), "matches": found.relevant.tolist()}
    for name, score in found.scores.items():
        columns[name] = [value if value == value else None for value in score.tolist()]
    with atomic_write(path) as temporary:
        if path.suffix == ".parquet":
            pyarrow, parquet = _pyarrow(path)
            parquet.write_table(pyarrow.table(columns), temporary)
            return
        with temporary.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            f"{path} needs pyarrow, which is not installed: run `pip install 'nearfield[parquet]'`, or use .csv."
        ) from error
    return pyarrow, pyarrow.parquet
