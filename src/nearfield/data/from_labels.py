"""A dataset from images and arbitrary labels: classes are numbered, split and checked.

Labels may be text or numbers. Without a split, the first half of the classes, in order, is for training.

Axes: N images, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nearfield.data.dataset import Dataset, Flags, Images, Integers, fingerprint
from nearfield.data.pictures import Pictures
from nearfield.data.splits import halves
from nearfield.errors import InputError

MIN_CLASSES = 6  # the training half is split again for validation, and every part needs two classes
SPLITS = ("train", "test")


def assemble(
    name: str,
    images: Images,
    labels: Sequence[Any],
    description: str,
    *,
    split: Sequence[str] | None = None,
    is_query: Flags | None = None,
    is_gallery: Flags | None = None,
    categories: Mapping[str, str] | None = None,
    class_names: Mapping[str, str] | None = None,
) -> Dataset:
    """The dataset of `images` and their labels; `split` is "train" or "test" for each image.

    If the two parts share classes, the dataset is a closed set. `categories` and `class_names` map a label, as text.
    """
    if len(labels) != len(images):
        raise InputError(
            f"{name} must have one label for each image; got {len(labels)} labels for {len(images)} images."
        )
    words = [str(label) for label in labels]
    classes = _sorted(set(words))
    if len(classes) < MIN_CLASSES:
        raise InputError(f"{name} must have at least {MIN_CLASSES} classes; got {len(classes)}.")
    number = {word: i for i, word in enumerate(classes)}
    rows = np.asarray([number[word] for word in words], dtype=np.int64)  # (N,)
    train, test, is_test = _split(name, rows, len(classes), split)
    of_class = [(categories or {}).get(word, "all") for word in classes]
    category_names = tuple(sorted(set(of_class)))
    content = images.digests if isinstance(images, Pictures) else np.asarray(images)
    more = [flags for flags in (is_test, is_query, is_gallery) if flags is not None]
    return Dataset(
        name=name,
        images=images,
        labels=rows,
        class_names=tuple((class_names or {}).get(word, word) for word in classes),
        class_category=np.asarray([category_names.index(c) for c in of_class], dtype=np.int64),
        category_names=category_names,
        train_classes=train,
        test_classes=test,
        fingerprint=fingerprint(content, rows, train, test, *more),
        description=description,
        is_test=is_test,
        is_query=is_query,
        is_gallery=is_gallery,
    )


def _sorted(words: set[str]) -> list[str]:
    """Class labels, sorted as numbers if all are numbers, else as text."""
    if all(word.lstrip("-").isdecimal() for word in words):
        return sorted(words, key=int)
    return sorted(words)


def _split(
    name: str, rows: Integers, classes: int, split: Sequence[str] | None
) -> tuple[Integers, Integers, Flags | None]:
    if split is None:
        return *halves(classes), None
    unknown = sorted(set(split) - set(SPLITS))
    if unknown:
        raise InputError(f"{name}: split must be train or test for every image; got {unknown[0]!r}.")
    is_test: Flags = np.asarray(split) == "test"
    train, test = np.unique(rows[~is_test]), np.unique(rows[is_test])
    for part, found in zip(SPLITS, (train, test), strict=True):
        if len(found) < 2:
            raise InputError(f"{name}: split must have at least two classes for {part}; got {len(found)}.")
    return train, test, is_test if len(np.intersect1d(train, test)) else None
