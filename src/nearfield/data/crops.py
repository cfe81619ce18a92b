"""Crop windows of a whole batch at once, distributed as those of torchvision's crops.

Axes: B images, T tries. A window is (top, left, height, width).
"""

from __future__ import annotations

import math

import numpy as np

from nearfield.data.dataset import Integers
from nearfield.errors import InputError

TRIES = 10  # T, as in torchvision
RATIO = (3 / 4, 4 / 3)  # smallest and largest width / height


def centre(shapes: Integers, side: int) -> Integers:
    """The centre windows (B, 4) of `side` x `side` pixels in images of `shapes` (B, 2): `CenterCrop`."""
    _check(shapes, side)
    corners = np.rint((shapes - side) / 2).astype(np.int64)
    return np.concatenate([corners, np.full_like(corners, side)], axis=1)


def uniform(shapes: Integers, side: int, generator: np.random.Generator) -> Integers:
    """Windows (B, 4) of `side` x `side` pixels, uniform over all places: `RandomCrop`."""
    _check(shapes, side)
    corners = generator.integers(0, shapes - side + 1)
    return np.concatenate([corners, np.full_like(corners, side)], axis=1)


def random_resized(shapes: Integers, scale: float, generator: np.random.Generator) -> Integers:
    """Windows (B, 4) of random area and aspect ratio: `RandomResizedCrop`.

    The area is uniform between `scale` and 1 of the image, the logarithm of the aspect ratio is uniform over RATIO, and
    the place is uniform. The first of T draws that fits is used; if none fits, the largest centre window within RATIO.
    """
    heights, widths = shapes[:, :1], shapes[:, 1:]  # (B, 1)
    area = heights * widths * generator.uniform(scale, 1.0, (len(shapes), TRIES))  # (B, T)
    ratio = np.exp(generator.uniform(math.log(RATIO[0]), math.log(RATIO[1]), (len(shapes), TRIES)))
    w = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    h = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (w > 0) & (w <= widths) & (h > 0) & (h <= heights)
    rows, first = np.arange(len(shapes)), fits.argmax(axis=1)
    sizes = np.stack([h[rows, first], w[rows, first]], axis=1)  # (B, 2)
    place = generator.random((len(shapes), 2))
    corners = np.floor(place * (shapes - sizes + 1)).astype(np.int64)
    none = ~fits.any(axis=1)
    sizes[none] = _largest(shapes[none])
    corners[none] = (shapes[none] - sizes[none]) // 2
    return np.concatenate([corners, sizes], axis=1)


def _largest(shapes: Integers) -> Integers:
    heights, widths = shapes[:, 0], shapes[:, 1]
    return np.stack(
        [
            np.minimum(heights, np.rint(widths / RATIO[0])).astype(np.int64),
            np.minimum(widths, np.rint(heights * RATIO[1])).astype(np.int64),
        ],
        axis=1,
    )


def _check(shapes: Integers, side: int) -> None:
    if shapes.min() < side:
        raise InputError(f"images must be at least {side} pixels on each side to be cropped; got {shapes.min()}.")
