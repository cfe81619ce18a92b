"""Anybody's images: a folder with one folder of pictures for each class.

The first half of the classes, in the order of their names, is for training and the second half for testing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearfield.data.base import Dataset, Integers, Pixels, fingerprint
from nearfield.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
SIZE = 32  # pixels on a side; pictures are made grey and resized to it
MIN_CLASSES = 6  # training classes are split once more, and both parts need two


def load(path: Path) -> Dataset:
    """Read a folder of class folders; InputError names what is missing or cannot be read."""
    if not path.is_dir():
        raise InputError(
            f"the data folder {path} does not exist; give a folder with one folder of images for each class."
        )
    found = {folder: _pictures(folder) for folder in sorted(path.iterdir()) if folder.is_dir()}
    found = {folder: pictures for folder, pictures in found.items() if pictures}
    if len(found) < MIN_CLASSES:
        raise InputError(f"{path} must hold at least {MIN_CLASSES} class folders with images; found {len(found)}.")
    images = np.stack([_read(picture) for pictures in found.values() for picture in pictures])
    labels = np.repeat(np.arange(len(found)), [len(pictures) for pictures in found.values()]).astype(np.int64)
    train, test = _halves(len(found))
    return Dataset(
        name=str(path),
        images=images,
        labels=labels,
        class_names=tuple(folder.name for folder in found),
        class_category=np.zeros(len(found), dtype=np.int64),
        category_names=("all",),
        train_classes=train,
        test_classes=test,
        fingerprint=fingerprint(images, labels, train, test),
        description=f"Images of {path}, a folder for each class, grey and {SIZE}x{SIZE}.",
    )


def _pictures(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))


def _read(path: Path) -> Pixels:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("L").resize((SIZE, SIZE), Image.Resampling.BILINEAR), dtype=np.uint8)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"cannot read the image {path}: {error}. Repair or remove it.") from error


def _halves(classes: int) -> tuple[Integers, Integers]:
    every = np.arange(classes, dtype=np.int64)
    return every[: (classes + 1) // 2], every[(classes + 1) // 2 :]
