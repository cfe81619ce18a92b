"""Splits of classes: halves, held-out fractions, folds, fixed lists. A split is two sorted arrays of classes.

Axes: C classes, N images.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from nearfield.data.base import Dataset, Integers, split_fingerprint
from nearfield.errors import InputError


def halves(classes: int) -> tuple[Integers, Integers]:
    """The first half of 0..classes-1 for training, one more if odd, and the second half for testing."""
    every = np.arange(classes, dtype=np.int64)
    return every[: (classes + 1) // 2], every[(classes + 1) // 2 :]


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


def k_folds(classes: npt.ArrayLike, k: int, seed: int | None = None) -> list[tuple[Integers, Integers]]:
    """The k pairs (train, validation) of k-fold cross-validation over classes.

    Without a seed the validation classes of a fold are consecutive, as in the reality check of Musgrave et al. (2020);
    with one they are drawn at random. The first C mod k folds hold one class more. Each side keeps two classes.
    """
    unique = np.unique(np.asarray(classes, dtype=np.int64))
    if not 2 <= k <= len(unique) // 2:
        raise InputError(f"k must lie in 2..{len(unique) // 2}, half the number of classes; got {k}.")
    order = unique if seed is None else np.random.Generator(np.random.PCG64(seed)).permutation(unique)
    folds = np.array_split(order, k)
    return [(np.setdiff1d(unique, fold), np.sort(fold)) for fold in folds]


def resplit(dataset: Dataset, train: npt.ArrayLike, test: npt.ArrayLike) -> Dataset:
    """The same images under a fixed list of classes for training and another for testing, all classes together."""
    first, second = (np.unique(np.asarray(classes, dtype=np.int64)) for classes in (train, test))
    if dataset.is_query is not None or dataset.test_lists:
        raise InputError(f"{dataset.name} cannot be split anew: its test part has queries, a gallery or lists.")
    digest = split_fingerprint(list(bytes.fromhex(dataset.fingerprint)), first, second)
    return replace(dataset, train_classes=first, test_classes=second, is_test=None, fingerprint=digest)


def gallery_of_one(labels: npt.ArrayLike, generator: np.random.Generator) -> tuple[Integers, Integers]:
    """Positions (queries, gallery): one random image of each class is the gallery, all others search it.

    The re-identification protocol of VehicleID; results are averaged over ten draws.
    """
    values = np.asarray(labels)
    order = generator.permutation(len(values))
    _, first = np.unique(values[order], return_index=True)
    gallery = np.sort(order[first])
    return np.setdiff1d(np.arange(len(values)), gallery), gallery
