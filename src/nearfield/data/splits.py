"""Splits over classes: halves, held-out fractions, folds, fixed lists. A split is two sorted arrays of classes.

Axes: C classes, N images.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from nearfield.config import DataConfig
from nearfield.data.dataset import Dataset, Integers, split_fingerprint
from nearfield.errors import InputError


def halves(classes: int) -> tuple[Integers, Integers]:
    """The first half of 0..classes-1, rounded up, for training, and the second half for testing."""
    every = np.arange(classes, dtype=np.int64)
    return every[: (classes + 1) // 2], every[(classes + 1) // 2 :]


def split_classes(classes: npt.ArrayLike, fraction: float, seed: int) -> tuple[Integers, Integers]:
    """Split `classes` into (kept, held_out), sorted: round(fraction * C) are held out, at least two on either side.

    A single class would have no negatives: nothing to learn, and every score perfect.
    """
    unique = np.unique(np.asarray(classes, dtype=np.int64))
    if len(unique) < 4:
        raise InputError(f"classes must have at least 4 different classes to be split; got {len(unique)}.")
    if not 0.0 < fraction < 1.0:
        raise InputError(f"fraction must be above 0 and below 1; got {fraction}.")
    count = min(max(round(fraction * len(unique)), 2), len(unique) - 2)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(unique)
    return np.sort(order[count:]), np.sort(order[:count])


def k_folds(classes: npt.ArrayLike, k: int, seed: int | None = None) -> list[tuple[Integers, Integers]]:
    """The k pairs (train, validation) of k-fold cross-validation over classes.

    Without a seed the validation classes of a fold are consecutive, as in the reality check of Musgrave et al. (2020);
    with one they are drawn at random. The first C mod k folds have one class more. Each side has at least two classes.
    """
    unique = np.unique(np.asarray(classes, dtype=np.int64))
    if not 2 <= k <= len(unique) // 2:
        raise InputError(f"k must be in 2..{len(unique) // 2}, half the number of classes; got {k}.")
    order = unique if seed is None else np.random.Generator(np.random.PCG64(seed)).permutation(unique)
    folds = np.array_split(order, k)
    return [(np.setdiff1d(unique, fold), np.sort(fold)) for fold in folds]


def held_out(dataset: Dataset, config: DataConfig) -> tuple[Integers, Integers]:
    """Rows (fit, val) of the training part: different classes or, in a closed set, different images of each class."""
    if dataset.is_test is not None:
        return _hold_out_images(dataset, config.val_fraction, config.split_seed)
    if config.folds > 1:
        fit, val = k_folds(dataset.train_classes, config.folds)[config.fold]
    else:
        fit, val = split_classes(dataset.train_classes, config.val_fraction, config.split_seed)
    return dataset.train_rows(fit), dataset.train_rows(val)


def _hold_out_images(dataset: Dataset, fraction: float, seed: int) -> tuple[Integers, Integers]:
    """Hold out round(fraction * n) of the n images of each class, at least two; none of a class of fewer than four.

    Either side of a class needs two images: a single one has no positive.
    """
    rows = dataset.train_rows()
    shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(rows)
    order = shuffled[np.argsort(dataset.labels[shuffled], kind="stable")]
    classes = np.split(order, np.flatnonzero(np.diff(dataset.labels[order])) + 1)
    held = [own[: max(2, round(fraction * len(own))) if len(own) >= 4 else 0] for own in classes]
    val = np.sort(np.concatenate(held))
    if not len(val):
        raise InputError(
            f"{dataset.name} has no training class of at least 4 images, of which 2 could be held out for validation."
        )
    return np.setdiff1d(rows, val), val


def resplit(dataset: Dataset, train: npt.ArrayLike, test: npt.ArrayLike) -> Dataset:
    """The same images with another split: the lists of training and test classes, which cover all classes."""
    first, second = (np.unique(np.asarray(classes, dtype=np.int64)) for classes in (train, test))
    if dataset.is_query is not None or dataset.test_lists:
        raise InputError(f"{dataset.name} cannot be split again: its test part has a fixed gallery or test lists.")
    digest = split_fingerprint(list(bytes.fromhex(dataset.fingerprint)), first, second)
    return replace(dataset, train_classes=first, test_classes=second, is_test=None, fingerprint=digest)


def gallery_of_one(labels: npt.ArrayLike, generator: np.random.Generator) -> tuple[Integers, Integers]:
    """Positions (queries, gallery): the gallery is one random image of each class, all others are queries.

    The re-identification protocol of VehicleID; results are averaged over ten draws.
    """
    values = np.asarray(labels)
    order = generator.permutation(len(values))
    _, first = np.unique(values[order], return_index=True)
    gallery = np.sort(order[first])
    return np.setdiff1d(np.arange(len(values)), gallery), gallery
