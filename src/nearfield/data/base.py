"""What a dataset is: images, labels, class names, and a class-disjoint split that no run can change.

Axes: N images, H and W pixels, C classes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nearfield.errors import InputError

Pixels = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class DataWarning(UserWarning):
    """The data in hand is not the data that published numbers were measured on."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled grey images whose classes are split once, disjointly, into a training and a test half."""

    name: str
    images: Pixels  # (N, H, W)
    labels: Integers  # (N,) values 0..C-1
    class_names: tuple[str, ...]  # C
    class_category: Integers  # (C,) index into category_names
    category_names: tuple[str, ...]
    train_classes: Integers
    test_classes: Integers
    fingerprint: str  # sha256 of pixels, labels and split
    description: str

    def __post_init__(self) -> None:
        _check_images(self.images)
        classes, categories = len(self.class_names), len(self.category_names)
        _check_index("labels", self.labels, len(self.images), classes)
        _check_index("class_category", self.class_category, classes, categories)
        _check_index("train_classes", self.train_classes, None, classes)
        _check_index("test_classes", self.test_classes, None, classes)
        _check_split(self.train_classes, self.test_classes, classes)

    def indices_of(self, classes: npt.ArrayLike) -> Integers:
        """Rows whose label is in `classes`, in ascending order."""
        wanted = np.asarray(classes, dtype=np.int64).reshape(-1)
        _check_index("classes", wanted, None, len(self.class_names))
        return np.flatnonzero(np.isin(self.labels, wanted)).astype(np.int64, copy=False)

    def summary(self) -> dict[str, object]:
        """The counts that describe the dataset, ready for printing."""
        per_class = np.bincount(self.labels, minlength=len(self.class_names))  # (C,)
        return {
            "name": self.name,
            "images": len(self.images),
            "image_size": f"{self.images.shape[1]}x{self.images.shape[2]}",
            "classes": len(self.class_names),
            "categories": len(self.category_names),
            "images_per_class_min": int(per_class.min()),
            "images_per_class_median": float(np.median(per_class)),
            "images_per_class_max": int(per_class.max()),
            "train_classes": len(self.train_classes),
            "train_images": int(per_class[self.train_classes].sum()),
            "test_classes": len(self.test_classes),
            "test_images": int(per_class[self.test_classes].sum()),
            "fingerprint": self.fingerprint,
        }


def split_classes(classes: npt.ArrayLike, fraction: float, seed: int) -> tuple[Integers, Integers]:
    """Split `classes` into (kept, held_out), sorted: round(fraction * C) are held out, but two stay on either side.

    A single class has no negatives: nothing could be learned from it, and every score on it would be perfect.
    """
    unique = np.unique(np.asarray(classes, dtype=np.int64))
    if len(unique) < 4:
        raise InputError(f"classes must hold at least 4 different classes to be split, got {len(unique)}.")
    if not 0.0 < fraction < 1.0:
        raise InputError(f"fraction must lie strictly between 0 and 1, got {fraction}.")
    count = min(max(round(fraction * len(unique)), 2), len(unique) - 2)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(unique)
    return np.sort(order[count:]), np.sort(order[:count])


def split_fingerprint(*class_arrays: npt.ArrayLike) -> str:
    """The sha256 of the class lists, in the order given: equal fingerprints mean the same split."""
    digest = hashlib.sha256()
    for array in class_arrays:
        values = np.asarray(array, dtype="<i8").reshape(-1)
        digest.update(f"{len(values)}:".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def fingerprint(images: Pixels, labels: Integers, train_classes: Integers, test_classes: Integers) -> str:
    """The sha256 of pixels, labels and split, the same on every platform."""
    digest = hashlib.sha256(str(images.shape).encode())
    digest.update(np.ascontiguousarray(images).data)
    digest.update(split_fingerprint(labels, train_classes, test_classes).encode())
    return digest.hexdigest()


def cache_dir() -> Path:
    """`$NEARFIELD_CACHE`, or the folder `nearfield` in the place where the platform keeps a user's caches."""
    chosen = os.environ.get("NEARFIELD_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "nearfield"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nearfield"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nearfield"


def _check_images(images: Pixels) -> None:
    if images.dtype != np.uint8 or images.ndim != 3 or 0 in images.shape:
        raise InputError(f"images must be a non-empty uint8 array (N, H, W), got {images.dtype} {images.shape}.")


def _check_index(name: str, values: Integers, length: int | None, bound: int) -> None:
    if values.dtype != np.int64 or values.ndim != 1:
        raise InputError(f"{name} must be a one-dimensional int64 array, got {values.dtype} of shape {values.shape}.")
    if length is not None and len(values) != length:
        raise InputError(f"{name} must have {length} entries, got {len(values)}.")
    if len(values) and not 0 <= values.min() <= values.max() < bound:
        raise InputError(f"{name} must lie in 0..{bound - 1}, got values from {values.min()} to {values.max()}.")


def _check_split(train: Integers, test: Integers, classes: int) -> None:
    both = np.concatenate([train, test])
    repeated = _first_repeated(both)
    if repeated is not None:
        raise InputError(f"train_classes and test_classes must be disjoint, got class {repeated} twice.")
    if len(both) != classes:
        raise InputError(f"train_classes and test_classes must hold all {classes} classes together, got {len(both)}.")


def _first_repeated(values: Integers) -> int | None:
    unique, counts = np.unique(values, return_counts=True)
    repeated: Sequence[int] = unique[counts > 1].tolist()
    return repeated[0] if repeated else None
