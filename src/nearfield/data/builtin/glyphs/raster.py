"""Integer operations on masks and images: sampling, blurring, and changing the weight of strokes.

Axes: H and W pixels of a mask, S pixels of an image's side.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nearfield.data.builtin.glyphs.fonts import EM
from nearfield.data.dataset import Pixels


def sample(
    glyph: Pixels, inverse: npt.NDArray[np.int32], side: int, shift: tuple[int, int] = (0, 0)
) -> npt.NDArray[np.int32]:
    """Draw a mask (H, W) into (side, side) levels 0..255: each the mean of 3x3 nearest pixels, in 16.16 fixed point.

    `inverse` (2, 2) takes (row, column) steps of a sixth of an image pixel to mask pixels; `shift` is such a step.
    """
    height, width = glyph.shape
    steps = 2 * np.arange(3 * side, dtype=np.int32) + 1 - 3 * side
    rows, columns = (steps - shift[0])[:, None], (steps - shift[1])[None, :]
    y = ((inverse[0, 0] * rows + (height << 15)) + inverse[0, 1] * columns) >> 16  # (3 side, 3 side)
    x = ((inverse[1, 0] * rows + (width << 15)) + inverse[1, 1] * columns) >> 16
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    fine = np.where(inside, glyph.ravel().take(y * width + x, mode="clip"), 0)
    sums: npt.NDArray[np.int32] = fine.reshape(side, 3, side, 3).sum(axis=(1, 3), dtype=np.int32)
    return sums // 9


def blur(image: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """One pass of the binomial kernel (1 2 1) x (1 2 1) / 16 over (S, S), empty outside."""
    p = np.pad(image, 1)
    p = p[:-2] + 2 * p[1:-1] + p[2:]
    return (p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]) // 16


def stroke(glyph: Pixels, level: int) -> Pixels:
    """Grow (level > 0) or shrink the ink on every side by about `level` hundredths of the glyph's extent."""
    radius = (abs(level) * max(glyph.shape) + EM // 2) // EM
    result = np.pad(glyph, radius)
    extreme = np.maximum if level > 0 else np.minimum
    for axis in (0, 1):
        result = extreme.reduce([np.roll(result, step, axis) for step in range(-radius, radius + 1)])
    # Thin parts that shrinking would erase may be the only difference between two shapes.
    has_hairlines = 4 * result.sum(dtype=np.int64) < 3 * glyph.sum(dtype=np.int64)
    return glyph if has_hairlines else result
