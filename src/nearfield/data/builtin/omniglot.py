"""Omniglot (Lake et al., 2015): 1,623 handwritten characters of 50 alphabets, 20 drawers each.

The 30 background alphabets are for training, the 20 evaluation alphabets for testing; a category is an alphabet. The
file holds packed bits, 1 for ink: `bits` (C, K, bytes), `shape`, `class_alphabet`, `class_character`,
`alphabet_names` and `alphabet_is_background`.

Axes: C classes, K drawers, S pixels of a side.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from nearfield.data.dataset import Dataset, Pixels, fingerprint
from nearfield.data.npz import read_npz
from nearfield.errors import InputError

FILE = "omniglot.npz"
MEMBERS = ("bits", "shape", "class_alphabet", "class_character", "alphabet_names", "alphabet_is_background")
SIDE = 28  # as in few-shot papers; at 35 a pixel is the mean of exactly 3 x 3
ADDRESS = "https://github.com/brendenlake/omniglot"


def find() -> Path | None:
    """The file in the folder $NEARFIELD_DATA, or None."""
    folder = os.environ.get("NEARFIELD_DATA")
    path = Path(folder) / FILE if folder else None
    return path if path is not None and path.is_file() else None


def load(path: Path, size: int = SIDE) -> Dataset:
    """The characters in black on white, `size` pixels on a side."""
    arrays = read_npz(path)
    missing = [name for name in MEMBERS if name not in arrays]
    if missing:
        raise InputError(f"{path} is not the packed Omniglot: {', '.join(missing)} missing.")
    bits, side = arrays["bits"], int(arrays["shape"][0])
    alphabet, character = arrays["class_alphabet"].astype(np.int64), arrays["class_character"]
    names, background = arrays["alphabet_names"].tolist(), arrays["alphabet_is_background"]
    if not 1 <= size <= side:
        raise InputError(f"size must be in 1..{side} for omniglot; got {size}.")
    ink = np.unpackbits(bits.reshape(-1, bits.shape[-1]), axis=1, count=side * side)
    images = _shrink(ink.reshape(-1, side, side), size)
    labels = np.repeat(np.arange(len(alphabet), dtype=np.int64), bits.shape[1])
    train, test = (np.flatnonzero(background[alphabet] == part).astype(np.int64) for part in (True, False))
    readable = [name.replace("_", " ") for name in names]
    return Dataset(
        name="omniglot",
        images=images,
        labels=labels,
        class_names=tuple(f"{readable[a]} {c}" for a, c in zip(alphabet, character, strict=True)),
        class_category=alphabet,
        category_names=tuple(readable),
        train_classes=train,
        test_classes=test,
        fingerprint=fingerprint(images, labels, train, test),
        description=f"Omniglot: handwritten characters, {size}x{size} pixels. {ADDRESS}",
    )


def _shrink(ink: Pixels, size: int) -> Pixels:
    """Area interpolation to (N, S, S): an output pixel is the mean of the pixels it covers, weighted by the overlap.

    With a = side, s = size, the overlaps in units of 1 / (a s) are integers that sum to a, so float32 is exact.
    """
    side = ink.shape[1]
    edges_in, edges_out = np.arange(side + 1) * size, np.arange(size + 1) * side
    low = np.maximum(edges_in[None, :-1], edges_out[:-1, None])
    high = np.minimum(edges_in[None, 1:], edges_out[1:, None])
    weights = np.maximum(high - low, 0).astype(np.float32)  # (S, side)
    shrunk = np.empty((len(ink), size, size), dtype=np.uint8)
    for start in range(0, len(ink), 1024):
        covered = weights @ ink[start : start + 1024].astype(np.float32) @ weights.T  # 0..side^2
        shrunk[start : start + 1024] = 255 - (covered.astype(np.int64) * 255 + side**2 // 2) // side**2
    return shrunk
