"""Look at every image before anything is learned from it.

What would make scores wrong is left out: files that cannot be decoded, images that are identical to one of another
class (one of the two labels is wrong), further copies of an image inside its class (a copy always finds its copy), and
classes of which a single image is left. Near-duplicates, by difference hash, are counted; between classes they are
kept apart from the test (`nearfield.fit.split`).

Axes: N images.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from nearfield.data import Dataset, Pictures
from nearfield.data.dataset import Flags, Integers
from nearfield.data.leaks import DISTANCE, difference_hash, near_pairs
from nearfield.data.pictures import Paths, decode, map_in_order
from nearfield.errors import InputError
from nearfield.progress import Progress, reported

SMALL = 64  # pixels of the shorter side, below which images are drawings or symbols rather than photographs
MOST_COMPARED = 10_000  # images among which near-duplicates are looked for
NAMED = 20  # images and classes that are named; all are counted


@dataclass(frozen=True)
class Checked:
    """What was found; rows are those of the dataset that was looked at."""

    rows: Integers  # of the images that can be used, ascending
    alike: tuple[tuple[int, int], ...]  # near-duplicates in different classes, both usable
    side: int  # median of the shorter sides, in pixels
    colour: bool  # whether any image has a colour
    facts: dict[str, Any]  # counts and names, for the report

    def values(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {**asdict(self), "rows": self.rows.tolist()}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Checked:
        """From what `values` gave."""
        alike = tuple((int(a), int(b)) for a, b in values["alike"])
        return cls(**{**values, "rows": np.array(values["rows"], np.int64), "alike": alike})


class _Look(NamedTuple):
    content: bytes  # hash of the pixels
    bits: Flags  # difference hash
    side: int
    colour: bool


def check_data(dataset: Dataset, progress: Progress | None = None) -> Checked:
    """Decode every image, and find what must be left out; InputError if nothing is left."""
    with reported(f"Checking {dataset.name}", progress) as report:
        looks = list(map_in_order(lambda row: _look(dataset, row), len(dataset.images), report))
    problems = [look for look in looks if isinstance(look, str)]
    good = {row: look for row, look in enumerate(looks) if not isinstance(look, str)}
    if not good:
        raise InputError(f"no image of {dataset.name} can be read; the first problem: {problems[0]}")
    torn, copies = _identical(good, dataset.labels)
    rows = [row for row in good if row not in torn and row not in copies]
    counts = np.bincount(dataset.labels[rows], minlength=len(dataset.class_names))
    alone = np.flatnonzero(counts == 1)
    empty = np.flatnonzero(counts == 0)
    rows = [row for row in rows if counts[dataset.labels[row]] > 1]
    side = int(np.median([look.side for look in good.values()]))
    compared = rows[:MOST_COMPARED] if side >= SMALL else []
    across, within = _alike(compared, good, dataset.labels)
    names = dataset.class_names
    facts = {
        "images": len(looks),
        "classes": len(names),
        "usable_images": len(rows),
        "usable_classes": int((counts > 1).sum()),
        "images_per_class": _spread(counts[counts > 1]),
        "shorter_side": side,
        "unreadable": _some(problems),
        "classes_with_one_image": _some([names[label] for label in alone.tolist()]),
        "classes_without_images": _some([names[label] for label in empty.tolist()]),
        "identical_across_classes": _some([image_name(dataset, row) for row in sorted(torn)]),
        "copies_within_classes": _some([image_name(dataset, row) for row in sorted(copies)]),
        "near_duplicates_compared": len(compared),
        "near_duplicates_within_classes": within,
        "near_duplicates_across_classes": _some(
            [f"{image_name(dataset, a)} and {image_name(dataset, b)}" for a, b in across]
        ),
    }
    colour = any(look.colour for look in good.values())
    return Checked(np.array(rows, np.int64), tuple(across), side, colour, facts)


def image_name(dataset: Dataset, row: int) -> str:
    """The path of an image, or its number and class."""
    images = dataset.images
    if isinstance(images, Pictures):
        return images.files.paths[row] if isinstance(images.files, Paths) else images.files.name(row)
    return f"image {row} of {dataset.class_names[dataset.labels[row]]}"


def _look(dataset: Dataset, row: int) -> _Look | str:
    """One image, or why it cannot be read."""
    images = dataset.images
    try:
        if isinstance(images, Pictures):
            pixels = np.asarray(decode(images.files.read(row), images.files.name(row), colour=True))
        else:
            pixels = np.asarray(images[row])
    except InputError as error:
        return str(error)
    content = hashlib.sha256(str(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes()).digest()
    colour = pixels.ndim == 3 and bool((np.ptp(pixels[::4, ::4].astype(np.int16), axis=2) > 16).any())
    return _Look(content, difference_hash(pixels), min(pixels.shape[:2]), colour)


def _identical(good: dict[int, _Look], labels: Integers) -> tuple[set[int], set[int]]:
    """Rows of identical images: those that are in several classes; and, inside a class, all but the first."""
    same = defaultdict(list)
    for row, look in good.items():
        same[look.content].append(row)
    torn, copies = set[int](), set[int]()
    for rows in same.values():
        if len({int(labels[row]) for row in rows}) > 1:
            torn.update(rows)
        else:
            copies.update(rows[1:])
    return torn, copies


def _alike(rows: Sequence[int], good: dict[int, _Look], labels: Integers) -> tuple[list[tuple[int, int]], int]:
    """Pairs of near-duplicates across classes, and the number of those inside classes."""
    if not rows:
        return [], 0
    bits = np.stack([good[row].bits for row in rows])
    pairs = [(rows[a], rows[b]) for a, b, _ in near_pairs(bits, bits, DISTANCE) if a < b]
    across = sorted((a, b) for a, b in pairs if labels[a] != labels[b])
    return across, len(pairs) - len(across)


def _some(names: list[str]) -> dict[str, Any]:
    return {"count": len(names), "first": names[:NAMED]}


def _spread(counts: Integers) -> list[int]:
    return [int(counts.min()), int(np.median(counts)), int(counts.max())] if len(counts) else [0, 0, 0]
