"""Metrics of embeddings in files; `embedding_files.py` lists the formats."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from nearfield.errors import InputError
from nearfield.files import atomic_write
from nearfield.metrics import PerQuery, retrieval_metrics
from nearfield.metrics.checks import Distance
from nearfield.metrics.embedding_files import Table, read_table, require_pyarrow
from nearfield.metrics.prefixes import prefix_metrics
from nearfield.metrics.settings import DEFAULT_KS, DEFAULT_METRICS, Ties


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
    fmr: Sequence[float] = (1e-3,),
) -> dict[str, float]:
    """`retrieval_metrics` of files; `per_query` names a .csv or .parquet file to write the scores of each query to."""
    if per_query is not None and per_query.suffix not in (".csv", ".parquet"):
        raise InputError(f"per_query must end in .csv or .parquet; got {per_query}.")
    if per_query is not None and per_query.suffix == ".parquet":
        require_pyarrow(per_query)
    queries, items = _opened(embeddings, labels, gallery, gallery_labels)
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
        fmr=fmr,
    )
    if per_query is not None:
        _write(per_query, queries, found)
    return scores


def evaluate_prefixes(
    embeddings: Path,
    labels: Path | None = None,
    *,
    dims: Sequence[int],
    gallery: Path | None = None,
    gallery_labels: Path | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    metrics: Sequence[str] = DEFAULT_METRICS,
    ties: Ties = "expected",
) -> dict[int, dict[str, float]]:
    """`prefix_metrics` of files: scores by number of dims."""
    queries, items = _opened(embeddings, labels, gallery, gallery_labels)
    others = (None, None) if items is None else (items.matrix, items.labels)
    matrix, known = cast(NDArray[Any], queries.matrix), cast(NDArray[Any], queries.labels)
    return prefix_metrics(matrix, known, dims, *others, ks=ks, metrics=metrics, ties=ties)


def _opened(
    embeddings: Path, labels: Path | None, gallery: Path | None, gallery_labels: Path | None
) -> tuple[Table, Table | None]:
    """Queries and gallery, if there is one; InputError if they do not go together."""
    if gallery is None and gallery_labels is not None:
        raise InputError("gallery_labels requires gallery, which is missing; give the gallery's embeddings too.")
    if gallery is not None:
        _require_comparable(embeddings, gallery)
    queries = _labelled(embeddings, labels, "labels")
    return queries, None if gallery is None else _labelled(gallery, gallery_labels, "gallery_labels")


def holds_training(path: Path) -> bool:
    """Whether a file says that it holds training images: `nearfield embed` writes into `info` what it embedded."""
    info = read_info(path)
    return bool(info.get("train_images", info.get("split") in ("all", "train")))


def read_info(path: Path) -> dict[str, Any]:
    """What `nearfield embed` recorded in the array `info` of an .npz file; nothing for any other file."""
    if path.suffix != ".npz" or not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = json.loads(str(archive["info"]))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):  # another program's file, or a damaged one
        return {}
    return found if isinstance(found, dict) else {}


def _require_comparable(queries: Path, gallery: Path) -> None:
    """InputError if `nearfield embed` recorded that two files were made by different models, or at different scales."""
    here, there = read_info(queries), read_info(gallery)
    for what, a, b in (
        ("normalized (all vectors of length 1)", here.get("normalized"), there.get("normalized")),
        ("made by model", *((each.get("model") or {}).get("sha256") for each in (here, there))),
    ):
        if None not in (a, b) and a != b:
            raise InputError(
                f"queries and gallery cannot be compared: {what} is {a} in {queries}, {b} in {gallery}. "
                "Embed both with the same model and the same options."
            )


def _labelled(path: Path, labels: Path | None, argument: str) -> Table:
    """The embeddings of one file with labels from another, or from the same."""
    table = read_table(path)
    if table.matrix is None:
        raise InputError(f"{path} must hold a matrix of embeddings; got none. See `nearfield eval --help` for formats.")
    if labels is None:
        if table.labels is None:
            raise InputError(f"{argument} must be given, because {path} holds no labels.")
        return table
    found = read_table(labels, labels_only=True)
    if found.labels is None:
        raise InputError(f"{labels} must hold one label per item, as a vector or in a column `label`; got none.")
    return Table(table.matrix, found.labels, table.ids)


def _write(path: Path, queries: Table, found: PerQuery) -> None:
    """Write a row per query: index, id if known, label, number of matches, and scores (empty without a match)."""
    labels = cast(NDArray[Any], queries.labels)
    columns: dict[str, list[Any]] = {"index": list(range(len(labels)))}
    if queries.ids is not None:
        columns["id"] = queries.ids.tolist()
    columns |= {"label": labels.tolist(), "matches": found.relevant.tolist()}
    for name, score in found.scores.items():
        columns[name] = [value if value == value else None for value in score.tolist()]
    with atomic_write(path) as temporary:
        if path.suffix == ".parquet":
            pyarrow, parquet = require_pyarrow(path)
            parquet.write_table(pyarrow.table(columns), temporary)
            return
        with temporary.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
