"""The test items that a report shows: their classes, and their images if there are any.

Axes: Q test images, C test classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nearfield.data import Dataset, Pictures, load
from nearfield.data.dataset import Images, Integers
from nearfield.data.pictures import Paths
from nearfield.errors import InputError, NearfieldError, RunError


@dataclass(frozen=True, eq=False)
class Items:
    """Test items in the order of the embeddings."""

    rows: Integers  # (Q,) of the dataset
    labels: Integers  # (Q,) 0..C-1
    class_names: tuple[str, ...]  # C
    class_category: Integers  # (C,)
    category_names: tuple[str, ...]
    images: Images | None  # None for features without images
    files: tuple[str, ...]  # Q paths, or none
    fingerprint: str  # of the dataset with the images

    def __len__(self) -> int:
        return len(self.rows)


def open_items(data: dict[str, Any], images: str | None = None) -> Items:
    """The test items of the dataset described by `data`; RunError if it is missing or has changed.

    `images` names a dataset with the images of the same rows, for a bench on features.
    """
    try:
        dataset = load(str(data["name"]))
    except NearfieldError as error:
        raise RunError(f"the dataset cannot be read here: {error}") from error
    if dataset.fingerprint != data["fingerprint"]:
        raise RunError(
            f"dataset {dataset.name} on this machine ({dataset.fingerprint[:12]}) differs from the one that the bench "
            f"was run on ({str(data['fingerprint'])[:12]}); write the report where the bench was run."
        )
    return items_of(dataset, load(images) if images else None)


def items_of(dataset: Dataset, images: Dataset | None = None) -> Items:
    """The test items of `dataset`, with the images and names of another dataset of the same rows if given."""
    shown = _same_rows(dataset, images) if images else dataset
    rows = dataset.test_rows()
    classes, labels = np.unique(shown.labels[rows], return_inverse=True)
    categories, class_category = np.unique(shown.class_category[classes], return_inverse=True)
    pixels = shown.images
    lies_in_files = isinstance(pixels, Pictures) and isinstance(pixels.files, Paths)
    return Items(
        rows,
        labels.astype(np.int64),
        tuple(shown.class_names[c] for c in classes),
        class_category.astype(np.int64),
        tuple(shown.category_names[c] for c in categories),
        None if shown.are_features else pixels,
        tuple(pixels.files.paths[row] for row in rows) if lies_in_files else (),  # type: ignore[union-attr]
        shown.fingerprint,
    )


def _same_rows(dataset: Dataset, images: Dataset) -> Dataset:
    """`images`, or InputError if its rows do not match those of `dataset`."""
    if len(images.labels) != len(dataset.labels):
        raise InputError(
            f"images must name a dataset with the {len(dataset.labels):,} rows of {dataset.name}; "
            f"got {images.name}, which has {len(images.labels):,}."
        )
    pairs = np.unique(np.stack([dataset.labels, images.labels]), axis=1).shape[1]
    if not pairs == len(np.unique(dataset.labels)) == len(np.unique(images.labels)):
        raise InputError(
            f"images must name a dataset with the classes of {dataset.name} row by row; got {images.name}, whose "
            "classes differ."
        )
    if images.are_features:
        raise InputError(f"images must name a dataset of images; got {images.name}, which holds features.")
    return images
