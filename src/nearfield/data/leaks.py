"""Duplicates and near-duplicates between the training and the test part.

Two images are near-duplicates if their difference hashes (dHash) differ in few bits. A hash has 128 bits: whether each
of 8 x 8 pixels of a small grey copy is brighter than its right neighbour, and than the one below. It is robust to
scaling, compression and small changes of brightness, and ignores colour. The search is exact: two hashes that differ in
at most d bits agree in at least one of d + 1 bands, so only images that share a band are compared.

Axes: N images, A training images, B test images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nearfield.data.dataset import Dataset, Flags, Integers, Pixels
from nearfield.data.pictures import Pictures, map_in_order
from nearfield.errors import InputError
from nearfield.progress import Progress, reported

BITS = 128
DISTANCE = 12  # bits; 99 % of rescaled or recompressed copies are within, unrelated photographs are at about 64
GRID = 9  # pixels of the small copy's side


@dataclass(frozen=True)
class Leak:
    """A training image and a test image that are duplicates or near-duplicates."""

    train_row: int
    test_row: int
    distance: int | None  # bits that differ; None if the pixels are identical


def find_leaks(dataset: Dataset, distance: int = DISTANCE, progress: Progress | None = None) -> list[Leak]:
    """Every pair of a training and a test image that are identical or whose hashes differ in at most `distance` bits.

    Of features, only identical rows are found.
    """
    if not 0 <= distance < BITS // 4:
        raise InputError(f"distance must be in 0..{BITS // 4 - 1} bits; got {distance}.")
    train, test = dataset.train_rows(), dataset.test_rows()
    with reported(f"Hashing {dataset.name}", progress) as report:
        exact, bits = _hashes(dataset, report)
    same = _identical(exact, train, test)
    found = [Leak(int(a), int(b), None) for a, b in sorted(same)]
    if bits is None:
        return found
    near = ((int(train[a]), int(test[b]), d) for a, b, d in near_pairs(bits[train], bits[test], distance))
    return found + sorted((Leak(a, b, d) for a, b, d in near if (a, b) not in same), key=_order)


def difference_hash(image: Pixels) -> Flags:
    """The difference hash (BITS,) of an image (H, W) or (H, W, 3)."""
    from PIL import Image

    grey = Image.fromarray(np.ascontiguousarray(image)).convert("L")
    small = np.asarray(grey.resize((GRID, GRID), Image.Resampling.BOX), dtype=np.int16)
    right = small[:-1, :-1] > small[:-1, 1:]
    below = small[:-1, :-1] > small[1:, :-1]
    return np.concatenate([right.reshape(-1), below.reshape(-1)])


def _hashes(dataset: Dataset, progress: Progress) -> tuple[list[bytes], Flags | None]:
    """A hash of the pixels of each image, and all difference hashes (N, BITS); files are hashed at their own size."""
    images = dataset.images
    if dataset.are_features:
        return [np.asarray(row).tobytes() for row in np.asarray(images)], None
    if isinstance(images, Pictures):
        images = images.at(size=None)
    source = images

    def look(row: int) -> tuple[bytes, Flags]:
        image = np.asarray(source[row])
        content = np.ascontiguousarray(image).tobytes()
        return hashlib.sha256(str(image.shape).encode() + content).digest(), difference_hash(image)

    results = list(map_in_order(look, len(images), progress))
    return [exact for exact, _ in results], np.stack([bits for _, bits in results])


def _identical(exact: list[bytes], train: Integers, test: Integers) -> set[tuple[int, int]]:
    places: dict[bytes, list[int]] = {}
    for row in train.tolist():
        places.setdefault(exact[row], []).append(row)
    return {(a, b) for b in test.tolist() for a in places.get(exact[b], [])}


def near_pairs(train: Flags, test: Flags, distance: int) -> Iterator[tuple[int, int, int]]:
    """Positions and distance of every pair of hashes (A, BITS) and (B, BITS) within `distance`, each once."""
    seen: set[tuple[int, int]] = set()
    for columns in np.array_split(np.arange(BITS), distance + 1):
        places: dict[bytes, list[int]] = {}
        for position, key in enumerate(np.packbits(train[:, columns], axis=1)):
            places.setdefault(key.tobytes(), []).append(position)
        for b, key in enumerate(np.packbits(test[:, columns], axis=1)):
            candidates = places.get(key.tobytes())
            if candidates is None:
                continue
            differing = (train[candidates] != test[b]).sum(axis=1)
            for a, d in zip(candidates, differing.tolist(), strict=True):
                if d <= distance and (a, b) not in seen:
                    seen.add((a, b))
                    yield a, b, d


def _order(leak: Leak) -> tuple[int, int, int]:
    return leak.distance or 0, leak.train_row, leak.test_row
