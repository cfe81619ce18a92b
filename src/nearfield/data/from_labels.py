"""Anybody's labels made into a dataset: classes numbered, split, checked.

Labels may be words or numbers. Without a split the first half of the classes, in order, is for training.

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

MIN_CLASSES = 6  # training classes are split once more, and both parts need two
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
    """The dataset of `images` with any labels; `split` says "train" or "test" for each image.

    Where the two share classes the dataset is a closed set. `categories` and `class_names` are by label, as text.
    """
    if len(labels) != len(images):
        raise InputError(f"{name} must have one label for each image: found {len(labels)} for {len(images)}.")
    words = [str(label) for label in labels]
    classes = in_order(set(words))
    if len(classes) < MIN_CLASSES:
        raise InputError(f"{name} must hold at least {MIN_CLASSES} classes; found {len(classes)}.")
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


def in_order(words: set[str]) -> list[str]:
    """Class labels sorted: as numbers if all are, as text otherwise."""
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
        raise InputError(f"{name}: split must be train or test for every image; found {unknown[0]!r}.")
    is_test: Flags = np.asarray(split) == "test"
    train, test = np.unique(rows[~is_test]), np.unique(rows[is_test])
    for part, found in zip(SPLITS, (train, test), strict=True):
        if len(found) < 2:
            raise InputError(f"{name}: split must leave at least two classes for {part}; found {len(found)}.")
    return train, test, is_test if len(np.intersect1d(train, test)) else None
