"""A contact sheet of a dataset: one row of images per class, grouped by category, beside the name of the class."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from nearfield.data.dataset import Dataset, Images, Integers
from nearfield.data.pictures import Pictures
from nearfield.errors import InputError
from nearfield.files import atomic_write

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

CELL = 64  # pixels of one image on the sheet
GAP = 6
TEXT = 260  # pixels for the names
MARGIN = 16
PAPER, INK, FAINT = "#ffffff", "#1f2328", "#6e7781"


def contact_sheet(
    dataset: Dataset, path: str | os.PathLike[str], classes: int = 12, per_class: int = 8, seed: int = 0
) -> None:
    """Write a PNG with `classes` random classes, spread over the categories, and up to `per_class` images of each."""
    if classes < 1 or per_class < 1:
        raise InputError(f"classes and per_class must be at least 1; got {classes} and {per_class}.")
    if dataset.are_features:
        raise InputError(f"a contact sheet needs images; {dataset.name} holds features.")
    generator = np.random.Generator(np.random.PCG64(seed))
    sheet = _paint(dataset, _spread(dataset, classes, generator), per_class, generator)
    with atomic_write(path) as temporary:
        sheet.save(temporary, format="PNG", optimize=True)


def _spread(dataset: Dataset, count: int, generator: np.random.Generator) -> list[int]:
    """Random classes, taken from all categories in turn, sorted by category."""
    shuffled = generator.permutation(len(dataset.class_names))
    taken = np.zeros(len(dataset.category_names), dtype=np.int64)
    turn = np.zeros(len(shuffled), dtype=np.int64)  # number of classes of the same category before this one
    for position, label in enumerate(shuffled):
        category = dataset.class_category[label]
        turn[position] = taken[category]
        taken[category] += 1
    chosen = shuffled[np.argsort(turn, kind="stable")[:count]]
    return sorted(chosen.tolist(), key=lambda label: (int(dataset.class_category[label]), label))


def _paint(dataset: Dataset, classes: list[int], per_class: int, generator: np.random.Generator) -> Image:
    from PIL import Image, ImageDraw

    rows, columns = len(classes), per_class
    size = (2 * MARGIN + TEXT + columns * (CELL + GAP) - GAP, 2 * MARGIN + rows * (CELL + GAP) - GAP)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, label in enumerate(classes):
        top = MARGIN + row * (CELL + GAP)
        _write_name(draw, dataset, label, top)
        for column, index in enumerate(_some(dataset, label, per_class, generator)):
            left = MARGIN + TEXT + column * (CELL + GAP)
            sheet.paste(_tile(dataset.images, int(index)), (left, top))
    return sheet


def _tile(images: Images, row: int) -> Image:
    """One image, CELL pixels on a side: the centre of a file; small arrays are enlarged without smoothing."""
    from PIL import Image

    if isinstance(images, Pictures):
        return Image.fromarray(images.at(CELL, "crop")[row])
    tile = Image.fromarray(np.ascontiguousarray(images[row]))
    small = max(tile.size) <= CELL
    return tile.resize((CELL, CELL), Image.Resampling.NEAREST if small else Image.Resampling.BILINEAR)


def _some(dataset: Dataset, label: int, count: int, generator: np.random.Generator) -> Integers:
    rows = dataset.indices_of([label])
    return np.sort(generator.permutation(rows)[:count])


def _write_name(draw: ImageDraw, dataset: Dataset, label: int, top: int) -> None:
    """The name of the class on one or two lines, and its category below."""
    from PIL import ImageFont

    name, small = ImageFont.load_default(size=14), ImageFont.load_default(size=11)
    lines: list[str] = [""]
    for word in dataset.class_names[label].lower().split():
        longer = f"{lines[-1]} {word}".strip()
        if draw.textlength(longer, font=name) > TEXT - MARGIN and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    if len(lines) > 2:
        lines = [lines[0], f"{lines[1]} ..."]
    text_top = top + (CELL - 18 * len(lines) - 14) // 2
    for number, line in enumerate(lines):
        draw.text((MARGIN, text_top + 18 * number), line, fill=INK, font=name)
    category = dataset.category_names[int(dataset.class_category[label])]
    draw.text((MARGIN, text_top + 18 * len(lines)), category, fill=FAINT, font=small)
