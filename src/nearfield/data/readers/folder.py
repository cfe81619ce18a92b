"""Images in class folders: a folder with one folder of images for each class.

The first half of the classes, sorted by name, is for training and the second half for testing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from nearfield.data.dataset import Dataset, fingerprint
from nearfield.data.from_labels import MIN_CLASSES
from nearfield.data.pictures import SUFFIXES, Paths, Pictures, digests_of
from nearfield.data.splits import halves
from nearfield.errors import InputError

SIDE = 32  # pixels on a side of grey images in memory


def load(path: Path) -> Dataset:
    """The dataset of image files, which are decoded on access; every file is read once, for its hash.

    InputError names the file or folder that is missing or cannot be read.
    """
    if not path.is_dir():
        raise InputError(
            f"the data folder {path} does not exist. Give a folder that has one folder of images for each class."
        )
    found = {folder: _image_names(folder) for folder in sorted(path.iterdir()) if folder.is_dir()}
    found = {folder: names for folder, names in found.items() if names}
    if len(found) < MIN_CLASSES:
        raise InputError(f"{path} must have at least {MIN_CLASSES} class folders with images; found {len(found)}.")
    root = path.resolve()
    files = Paths(root, tuple(f"{folder.name}/{name}" for folder, names in found.items() for name in names))
    digests = digests_of(files)
    labels = np.repeat(np.arange(len(found)), [len(names) for names in found.values()]).astype(np.int64)
    train, test = halves(len(found))
    return Dataset(
        name=str(path),
        images=Pictures(files, digests),
        labels=labels,
        class_names=tuple(folder.name for folder in found),
        class_category=np.zeros(len(found), dtype=np.int64),
        category_names=("all",),
        train_classes=train,
        test_classes=test,
        fingerprint=fingerprint(digests, labels, train, test),
        description=f"Images of {path}, a folder for each class.",
    )


def load_small(path: Path) -> Dataset:
    """The images in memory, grey and SIDE x SIDE: the input of the small convolutional network."""
    dataset = load(path)
    assert isinstance(dataset.images, Pictures)
    images = dataset.images.at(SIDE, "square", colour=False)[:]
    return replace(
        dataset,
        images=images,
        fingerprint=fingerprint(images, dataset.labels, dataset.train_classes, dataset.test_classes),
        description=f"Images of {path}, a folder for each class, grey and {SIDE}x{SIDE}.",
    )


def _image_names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
