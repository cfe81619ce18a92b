"""The test images that a report shows: their classes, and their pictures if there are any.

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
    """Test images in the order of the embeddings."""

    rows: Integers  # (Q,) of the dataset
    labels: Integers  # (Q,) 0..C-1
    class_names: tuple[str, ...]  # C
    class_category: Integers  # (C,)
    category_names: tuple[str, ...]
    images: Images | None  # None: features, of which there are no pictures
    files: tuple[str, ...]  # Q paths, or none
    fingerprint: str  # of the dataset with the images

    def __len__(self) -> int:
        return len(self.rows)


def open_items(data: dict[str, Any], pictures: str | None = None) -> Items:
    """The test images of the dataset described by `data`; RunError if it is not here, or not the same any more.

    `pictures` names a dataset with the pictures of the same rows, for a bench that was run on features.
    """
    try:
        dataset = load(str(data["name"]))
    except NearfieldError as error:
        raise RunError(f"the data cannot be read here: {error}") from error
    if dataset.fingerprint != data["fingerprint"]:
        raise RunError(
            f"the data {dataset.name} on this machine ({dataset.fingerprint[:12]}) is not what the bench was run on "
            f"({str(data['fingerprint'])[:12]}); write the report where it was run."
        )
    return items_of(dataset, load(pictures) if pictures else None)


def items_of(dataset: Dataset, pictures: Dataset | None = None) -> Items:
    """The test images of `dataset`, with the pictures and names of another dataset of the same rows if given."""
    shown = _same_rows(dataset, pictures) if pictures else dataset
    rows = dataset.test_rows()
    classes, labels = np.unique(shown.labels[rows], return_inverse=True)
    categories, class_category = np.unique(shown.class_category[classes], return_inverse=True)
    images = shown.images
    lies_in_files = isinstance(images, Pictures) and isinstance(images.files, Paths)
    return Items(
        rows,
        labels.astype(np.int64),
        tuple(shown.class_names[c] for c in classes),
        class_category.astype(np.int64),
        tuple(shown.category_names[c] for c in categories),
        None if shown.are_features else images,
        tuple(images.files.paths[row] for row in rows) if lies_in_files else (),  # type: ignore[union-attr]
        shown.fingerprint,
    )


def _same_rows(dataset: Dataset, pictures: Dataset) -> Dataset:
    """`pictures`, or InputError if its rows cannot be those of `dataset`."""
    if len(pictures.labels) != len(dataset.labels):
        raise InputError(
            f"pictures must name data with the {len(dataset.labels):,} rows of {dataset.name}; "
            f"{pictures.name} has {len(pictures.labels):,}."
        )
    pairs = np.unique(np.stack([dataset.labels, pictures.labels]), axis=1).shape[1]
    if not pairs == len(np.unique(dataset.labels)) == len(np.unique(pictures.labels)):
        raise InputError(
            f"pictures must name data with the classes of {dataset.name} row by row; {pictures.name} differs."
        )
    if pictures.are_features:
        raise InputError(f"pictures must name data with pictures; {pictures.name} holds features.")
    return pictures
