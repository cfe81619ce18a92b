"""The dataset of glyphs: drawn once, then read from the cache; compared with the published fingerprint.

Axes: N images, C classes, K images of a class, S pixels of an image's side.
"""

from __future__ import annotations

import hashlib
import unicodedata
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np

from nearfield.data.builtin.glyphs.characters import CATEGORIES, category_of
from nearfield.data.builtin.glyphs.drawing import IMAGES_PER_CLASS, SIDE, VERSION, render_class
from nearfield.data.builtin.glyphs.fonts import font_files, open_faces
from nearfield.data.builtin.glyphs.random_integers import RandomIntegers
from nearfield.data.builtin.glyphs.selection import select
from nearfield.data.dataset import Dataset, DataWarning, Integers, Pixels, cache_dir, fingerprint
from nearfield.data.npz import read_npz
from nearfield.errors import RunError
from nearfield.files import atomic_write
from nearfield.progress import reported

PINNED = ("3.11.2", "13.0.0", "2.14.3")  # the matplotlib, Pillow and FreeType that give PINNED_FINGERPRINT
PINNED_FINGERPRINT = "8bc06f0e746ff449ad784280cece74d3a3567c7bb40ddc98b51bc10890241ccd"


def load() -> Dataset:
    """The dataset, from the cache or else drawn (in less than a minute) and cached; a damaged cache is drawn again."""
    found, key = _provenance()
    expected = PINNED_FINGERPRINT if found == PINNED else None
    path = cache_dir() / f"glyphs-{VERSION}-{key}.npz"
    dataset = _read(path, expected)
    if dataset is None:
        images, codepoints = _draw()
        dataset = _dataset(images, codepoints)
        _check_drawn(dataset.fingerprint, expected)
        with atomic_write(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, images=images, codepoints=codepoints, fingerprint=dataset.fingerprint)
    if dataset.fingerprint != PINNED_FINGERPRINT:
        _warn_unpublished(found)
    return dataset


def versions() -> tuple[str, str, str]:
    """The versions of matplotlib, Pillow and FreeType that are installed."""
    import PIL
    from PIL import features

    return metadata.version("matplotlib"), PIL.__version__, str(features.version("freetype2"))


def _draw() -> tuple[Pixels, list[int]]:
    faces = open_faces()
    with reported("Drawing the glyphs, once") as report:
        codepoints = select(faces)
        images = np.empty((len(codepoints), IMAGES_PER_CLASS, SIDE, SIDE), dtype=np.uint8)
        for index, codepoint in enumerate(codepoints):
            images[index] = render_class(codepoint, faces)
            report(index + 1, len(codepoints))
    return images.reshape(-1, SIDE, SIDE), codepoints


def _dataset(images: Pixels, codepoints: list[int]) -> Dataset:
    labels = np.repeat(np.arange(len(codepoints), dtype=np.int64), IMAGES_PER_CLASS)  # (N,)
    category = np.asarray([category_of(codepoint) for codepoint in codepoints], dtype=np.int64)  # (C,)
    train, test = _halves(category)
    return Dataset(
        name="glyphs",
        images=images,
        labels=labels,
        class_names=tuple(unicodedata.name(chr(codepoint)) for codepoint in codepoints),
        class_category=category,
        category_names=tuple(CATEGORIES),
        train_classes=train,
        test_classes=test,
        fingerprint=fingerprint(images, labels, train, test),
        description="Characters of many scripts drawn with the fonts that matplotlib ships; a class is a character.",
    )


def _halves(category: Integers) -> tuple[Integers, Integers]:
    """Training and test classes: alternate classes of each category, in a fixed random order within the category."""
    shuffled = []
    for index in range(len(CATEGORIES)):
        members = np.flatnonzero(category == index)
        shuffled.append(members[RandomIntegers(VERSION, index).order(len(members))])
    order = np.concatenate(shuffled)
    return np.sort(order[0::2]).astype(np.int64), np.sort(order[1::2]).astype(np.int64)


def _read(path: Path, expected: str | None) -> Dataset | None:
    """The cached dataset, or None if the file is missing, damaged or not as expected."""
    try:
        arrays = read_npz(path)
        written = str(arrays["fingerprint"])
        dataset = _dataset(arrays["images"], arrays["codepoints"].tolist())
    except (ValueError, KeyError):  # an InputError is a ValueError
        return None
    return dataset if dataset.fingerprint == written and expected in (None, written) else None


def _provenance() -> tuple[tuple[str, str, str], str]:
    """The versions of matplotlib, Pillow and FreeType, and a hash of everything that determines the pixels."""
    found = versions()
    digest = hashlib.sha256(" ".join(found[1:]).encode())
    for path in font_files().values():
        digest.update(path.read_bytes())
    return found, digest.hexdigest()[:16]


def _check_drawn(found: str, expected: str | None) -> None:
    if expected not in (None, found):
        raise RunError(
            f"the glyphs have fingerprint {found[:16]}, but matplotlib, Pillow and FreeType {', '.join(PINNED)} "
            f"must give {str(expected)[:16]}. Reinstall matplotlib and Pillow, and please report it."
        )


def _warn_unpublished(versions: tuple[str, str, str]) -> None:
    warnings.warn(
        f"the glyphs drawn with matplotlib, Pillow and FreeType {', '.join(versions)} differ from the published ones "
        f"({', '.join(PINNED)}): results are not comparable with published numbers.",
        DataWarning,
        stacklevel=4,
    )
