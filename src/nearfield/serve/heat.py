"""Where an image resembles an item of the index, by occlusion.

Each of G x G cells is covered with the image's mean colour; how far the similarity falls is the heat of the cell
(Zeiler and Fergus 2014, Visualizing and understanding convolutional networks, section 4.2). It needs nothing but the
forward pass, so it works for every model, ONNX included.

Axes: G cells of a side, H and W pixels of a prepared image.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nearfield.data.input_spec import PictureInput
from nearfield.serve.uploads import Box

CELLS = 7  # G
Pixels = npt.NDArray[np.uint8]


def occluded(image: Pixels, cells: int = CELLS) -> Iterator[Pixels]:
    """Copies of an image (H, W[, 3]), each with one cell covered, row by row."""
    height, width = image.shape[:2]
    mean = image.reshape(height * width, -1).mean(axis=0).round().astype(np.uint8)
    rows, columns = (np.linspace(0, side, cells + 1).round().astype(int) for side in (height, width))
    for top, bottom in pairwise(rows):
        for left, right in pairwise(columns):
            copy = image.copy()
            copy[top:bottom, left:right] = mean if image.ndim == 3 else mean[0]
            yield copy


def seen(input: PictureInput, width: int, height: int) -> Box:
    """The part of an image of this size that the network sees, in fractions of width and height."""
    if input.rule == "exact":
        scaled = (input.resize[1], input.resize[0])
    else:
        short, side = min(width, height), input.resize[0]
        scaled = (side, int(side * height / short)) if width <= height else (int(side * width / short), side)
    left, top = (round((whole - part) / 2) for whole, part in zip(scaled, (input.crop[1], input.crop[0]), strict=True))
    return (
        left / scaled[0],
        top / scaled[1],
        (left + input.crop[1]) / scaled[0],
        (top + input.crop[0]) / scaled[1],
    )
