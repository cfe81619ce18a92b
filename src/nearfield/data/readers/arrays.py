"""Data in NumPy files: features, for training without a backbone, or decoded images.

    .npz   `features` or `embeddings` (N, F), or `images` (N, H, W[, 3]) uint8; `labels` (N,); optionally `split`
           (N,) of "train" and "test", `is_query`, `is_gallery` (N,) and `category` (N,)
    .npy   features (N, F); labels (N,) are in NAME_labels.npy or labels.npy in the same folder

Axes: N images, F features.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearfield.data.dataset import Dataset, Flags
from nearfield.data.from_labels import assemble
from nearfield.data.npz import Arrays, read_npy, read_npz
from nearfield.data.readers.table import one_each
from nearfield.errors import InputError

SUFFIXES = (".npz", ".npy")
CONTENT = ("features", "embeddings", "images")


def load(path: Path) -> Dataset:
    """The dataset in an .npz or .npy file; the dtype of features is kept."""
    if not path.is_file():
        raise InputError(f"the data file {path} does not exist. Check the path.")
    arrays = _read(path)
    found = [name for name in CONTENT if name in arrays]
    if len(found) != 1 or "labels" not in arrays:
        raise InputError(
            f"{path} must hold labels and exactly one of {', '.join(CONTENT)}; found {', '.join(arrays) or 'nothing'}."
        )
    content, labels = arrays[found[0]], arrays["labels"].reshape(-1)
    if found[0] != "images" and (content.ndim != 2 or not np.issubdtype(content.dtype, np.floating)):
        raise InputError(f"{path}: {found[0]} must be a float matrix (N, F); got {content.dtype} {content.shape}.")
    words = [str(label) for label in labels.tolist()]
    return assemble(
        str(path),
        content,
        words,
        f"{found[0].capitalize()} of {path}.",
        split=_words(path, arrays, "split", len(words)),
        is_query=_flags(arrays, "is_query"),
        is_gallery=_flags(arrays, "is_gallery"),
        categories=one_each(path, "category", words, _words(path, arrays, "category", len(words)) or []),
    )


def _read(path: Path) -> Arrays:
    if path.suffix == ".npz":
        return read_npz(path, skip=("paths", "ids"))
    beside = [path.with_name(f"{path.stem}_labels.npy"), path.with_name("labels.npy")]
    labels = next((each for each in beside if each.is_file()), None)
    if labels is None:
        raise InputError(f"{path} has no labels: put {beside[0].name} or {beside[1].name} into the same folder.")
    return {"features": read_npy(path), "labels": read_npy(labels)}


def _words(path: Path, arrays: Arrays, name: str, rows: int) -> list[str] | None:
    if name not in arrays:
        return None
    words = [str(word) for word in arrays[name].reshape(-1).tolist()]
    if len(words) != rows:
        raise InputError(f"{path}: {name} must have {rows} entries; got {len(words)}.")
    return words


def _flags(arrays: Arrays, name: str) -> Flags | None:
    return arrays[name].astype(np.bool_) if name in arrays else None
