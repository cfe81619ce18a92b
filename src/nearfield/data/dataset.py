"""What a dataset is: images, labels, class names, and a fixed split into training and test classes.

Axes: N images, H and W pixels, F features, C classes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nearfield.errors import InputError

Pixels = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class LazyImages(Protocol):
    """Images that are not an array in memory: `Pictures` are decoded on access, `Stored` are memory-mapped."""

    @property
    def looks(self) -> str: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: Any, /) -> Pixels: ...


Images = npt.NDArray[Any] | LazyImages


class DataWarning(UserWarning):
    """The data differs from the data that the published numbers were measured on."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images, or features of images, with a fixed split of the classes into a training and a test part.

    The two parts have no class in common, unless `is_test` marks the test images of shared classes (a closed set).
    """

    name: str
    images: Images  # uint8 (N, H, W) grey or (N, H, W, 3) RGB; float (N, F) features; or lazy
    labels: Integers  # (N,) values 0..C-1
    class_names: tuple[str, ...]  # C
    class_category: Integers  # (C,) index into category_names
    category_names: tuple[str, ...]
    train_classes: Integers
    test_classes: Integers
    fingerprint: str  # sha256 of pixels, labels and split
    description: str
    is_test: Flags | None = None  # (N,) only if train and test share classes
    is_query: Flags | None = None  # (N,) only if the test part consists of queries and a gallery
    is_gallery: Flags | None = None  # (N,)
    test_lists: Mapping[str, Integers] = field(default_factory=dict)  # rows of each named test list
    ks: tuple[int, ...] = (1, 2, 4, 8)  # of the recall@K that its papers report

    def __post_init__(self) -> None:
        _check_images(self.images)
        rows, classes, categories = len(self.images), len(self.class_names), len(self.category_names)
        _check_index("labels", self.labels, rows, classes)
        _check_index("class_category", self.class_category, classes, categories)
        _check_index("train_classes", self.train_classes, None, classes)
        _check_index("test_classes", self.test_classes, None, classes)
        for name in ("is_test", "is_query", "is_gallery"):
            _check_flags(name, getattr(self, name), rows)
        for name, listed in self.test_lists.items():
            _check_index(f"test_lists[{name!r}]", listed, None, rows)
        _check_split(self)

    @property
    def are_features(self) -> bool:
        """Whether `images` is a matrix (N, F) of features."""
        return isinstance(self.images, np.ndarray) and self.images.ndim == 2

    def indices_of(self, classes: npt.ArrayLike) -> Integers:
        """Rows whose label is in `classes`, in ascending order."""
        wanted = np.asarray(classes, dtype=np.int64).reshape(-1)
        _check_index("classes", wanted, None, len(self.class_names))
        return np.flatnonzero(np.isin(self.labels, wanted)).astype(np.int64, copy=False)

    def train_rows(self, classes: npt.ArrayLike | None = None) -> Integers:
        """Rows of the training part, of all its classes or of some."""
        rows = self.indices_of(self.train_classes if classes is None else classes)
        return rows if self.is_test is None else rows[~self.is_test[rows]]

    def test_rows(self) -> Integers:
        """Rows of the test part."""
        rows = self.indices_of(self.test_classes)
        return rows if self.is_test is None else rows[self.is_test[rows]]

    def summary(self) -> dict[str, object]:
        """Counts of images and classes, and the fingerprint, for printing."""
        per_class = np.bincount(self.labels, minlength=len(self.class_names))  # (C,)
        counts: dict[str, object] = {
            "name": self.name,
            "images": len(self.images),
            "image_size": _looks(self.images),
            "classes": len(self.class_names),
            "categories": len(self.category_names),
            "images_per_class_min": int(per_class.min()),
            "images_per_class_median": float(np.median(per_class)),
            "images_per_class_max": int(per_class.max()),
            "train_classes": len(self.train_classes),
            "train_images": len(self.train_rows()),
            "test_classes": len(self.test_classes),
            "test_images": len(self.test_rows()),
        }
        if self.is_test is not None:
            counts["shared_classes"] = len(np.intersect1d(self.train_classes, self.test_classes))
        if self.is_query is not None and self.is_gallery is not None:
            counts |= {"query_images": int(self.is_query.sum()), "gallery_images": int(self.is_gallery.sum())}
        counts |= {f"{name}_images": len(rows) for name, rows in self.test_lists.items()}
        return {**counts, "fingerprint": self.fingerprint}


def split_fingerprint(*class_arrays: npt.ArrayLike) -> str:
    """The sha256 of the class lists, in the order given: equal fingerprints mean the same split."""
    digest = hashlib.sha256()
    for array in class_arrays:
        values = np.asarray(array, dtype="<i8").reshape(-1)
        digest.update(f"{len(values)}:".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def fingerprint(
    content: npt.NDArray[Any], labels: Integers, train_classes: Integers, test_classes: Integers, *more: npt.ArrayLike
) -> str:
    """The sha256 of content (pixels, features, or digests of files), labels and split, the same on every platform."""
    digest = hashlib.sha256(str(content.shape).encode())
    digest.update(np.ascontiguousarray(content).data)
    digest.update(split_fingerprint(labels, train_classes, test_classes, *more).encode())
    return digest.hexdigest()


def cache_dir() -> Path:
    """`$NEARFIELD_CACHE`, or the folder `nearfield` in the platform's cache folder of the user."""
    chosen = os.environ.get("NEARFIELD_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "nearfield"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nearfield"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nearfield"


def _looks(images: Images) -> str:
    """The size of the images, human-readable."""
    if not isinstance(images, np.ndarray):
        return images.looks
    if images.ndim == 2:
        return f"{images.shape[1]} features"
    return f"{images.shape[1]}x{images.shape[2]}" + (" RGB" if images.ndim == 4 else "")


def _check_images(images: Images) -> None:
    if len(images) == 0:
        raise InputError("images must not be empty; got none.")
    if not isinstance(images, np.ndarray):
        return
    shape = images.shape
    grey_or_rgb = images.dtype == np.uint8 and (images.ndim == 3 or (images.ndim == 4 and shape[3] == 3))
    features = np.issubdtype(images.dtype, np.floating) and images.ndim == 2
    if 0 in shape or not (grey_or_rgb or features):
        raise InputError(
            f"images must be a non-empty uint8 array (N, H, W) or (N, H, W, 3), or float features (N, F); "
            f"got {images.dtype} {shape}."
        )
    if features and not np.isfinite(images).all():
        row = int(np.flatnonzero(~np.isfinite(images).all(axis=1))[0])
        raise InputError(f"features must be finite; row {row} has a NaN or an infinity.")


def _check_index(name: str, values: Integers, length: int | None, bound: int) -> None:
    if values.dtype != np.int64 or values.ndim != 1:
        raise InputError(f"{name} must be a one-dimensional int64 array; got {values.dtype} of shape {values.shape}.")
    if length is not None and len(values) != length:
        raise InputError(f"{name} must have {length} entries; got {len(values)}.")
    if len(values) and not 0 <= values.min() <= values.max() < bound:
        raise InputError(f"{name} must be in 0..{bound - 1}; got values from {values.min()} to {values.max()}.")


def _check_flags(name: str, flags: Flags | None, rows: int) -> None:
    if flags is not None and (flags.dtype != np.bool_ or flags.shape != (rows,)):
        raise InputError(f"{name} must be a bool array of shape ({rows},); got {flags.dtype} of shape {flags.shape}.")


def _check_split(dataset: Dataset) -> None:
    train, test, classes = dataset.train_classes, dataset.test_classes, len(dataset.class_names)
    both = np.concatenate([train, test])
    repeated = _first_repeated(both)
    if dataset.is_test is not None:
        _check_closed_split(dataset, dataset.is_test)
    elif repeated is not None:
        raise InputError(f"train_classes and test_classes must be disjoint; got class {repeated} twice.")
    if len(np.unique(both)) != classes:
        raise InputError(
            f"train_classes and test_classes must cover all {classes} classes; got {len(np.unique(both))}."
        )
    if (dataset.is_query is None) != (dataset.is_gallery is None):
        raise InputError("is_query and is_gallery must be given together; got only one of them.")
    if dataset.is_query is not None and dataset.is_gallery is not None:
        _check_query_gallery(dataset, dataset.is_query, dataset.is_gallery)


def _check_closed_split(dataset: Dataset, is_test: Flags) -> None:
    for name, part, classes in (("train", ~is_test, dataset.train_classes), ("test", is_test, dataset.test_classes)):
        if not np.array_equal(np.unique(dataset.labels[part]), np.unique(classes)):
            raise InputError(
                f"the classes of the {name} images by is_test must be exactly {name}_classes; they differ."
            )


def _check_query_gallery(dataset: Dataset, is_query: Flags, is_gallery: Flags) -> None:
    outside = np.setdiff1d(np.flatnonzero(is_query | is_gallery), dataset.test_rows())
    if len(outside):
        raise InputError(f"is_query and is_gallery must mark test images only; row {outside[0]} is not one.")
    if not is_query.any() or not is_gallery.any():
        raise InputError("is_query and is_gallery must each mark at least one image; got none.")


def _first_repeated(values: Integers) -> int | None:
    unique, counts = np.unique(values, return_counts=True)
    repeated: Sequence[int] = unique[counts > 1].tolist()
    return repeated[0] if repeated else None
