"""Thumbnails on a few large sheets: a browser handles a dozen images where thousands would be slow."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from nearfield.data import Pictures
from nearfield.data.dataset import Images, Integers
from nearfield.data.pictures import map_in_order, resized
from nearfield.report.cache import Arrays, Cache, digest

SIDES = (96, 80, 64, 48, 32)  # pixels of a thumbnail: the largest that keeps all sheets within BYTES
COLUMNS, PER_SHEET = 16, 384
BYTES = 5_500_000  # of all sheets, before base64 adds a third
QUALITY = 50


@dataclass(frozen=True)
class Sheets:
    """Thumbnails in reading order, `COLUMNS` per row, `PER_SHEET` per sheet."""

    side: int
    sheets: tuple[bytes, ...]  # WebP

    def facts(self) -> dict[str, Any]:
        return {"side": self.side, "columns": COLUMNS, "per_sheet": PER_SHEET, "sheets": len(self.sheets)}

    def arrays(self) -> Arrays:
        """As stored in a cache."""
        parts = {str(number): np.frombuffer(sheet, dtype=np.uint8) for number, sheet in enumerate(self.sheets)}
        return {"side": np.array(self.side), **parts}

    @classmethod
    def of(cls, arrays: Arrays) -> Sheets:
        """The sheets that `arrays` was made from."""
        return cls(int(arrays["side"]), tuple(arrays[str(number)].tobytes() for number in range(len(arrays) - 1)))

    def base64(self) -> list[str]:
        return [base64.b64encode(sheet).decode() for sheet in self.sheets]


def cached_sheets(images: Images, rows: Integers, fingerprint: str, cache: Cache) -> Sheets:
    """`make_sheets`, cached by the fingerprint of the images' dataset."""
    key = digest(rows, f"{fingerprint} {SIDES} {COLUMNS} {PER_SHEET} {BYTES} {QUALITY}")
    return Sheets.of(cache.get("thumbnails", key, lambda: make_sheets(images, rows).arrays()))


def make_sheets(images: Images, rows: Integers, limit: int = BYTES) -> Sheets:
    """Sheets of the images in `rows`, as large as `limit` bytes allow, estimated from the first sheet."""
    count = -(-len(rows) // PER_SHEET)
    read = _reader(images)
    thumbs: list[Image.Image] = list(map_in_order(lambda i: read(int(rows[i])), len(rows)))  # at the largest side
    for side in SIDES:
        first = _sheet(thumbs[:PER_SHEET], side)
        if len(first) * count <= limit or side == SIDES[-1]:
            break
    later = (thumbs[start : start + PER_SHEET] for start in range(PER_SHEET, len(thumbs), PER_SHEET))
    return Sheets(side, (first, *(_sheet(part, side) for part in later)))


def _reader(images: Images) -> Callable[[int], Image.Image]:
    """Reads an image by row: its middle square, not larger than the largest side."""
    source = images.at(size=SIDES[0], resize="crop") if isinstance(images, Pictures) else images

    def read(row: int) -> Image.Image:
        image = Image.fromarray(np.ascontiguousarray(source[row])).convert("RGB")
        return resized(image, min(SIDES[0], *image.size), "crop")

    return read


def _sheet(thumbs: Sequence[Image.Image], side: int) -> bytes:
    rows = -(-len(thumbs) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * side, rows * side))
    for number, thumb in enumerate(thumbs):
        small = thumb.width < side  # enlarge pixels as squares: what the network saw
        how = Image.Resampling.NEAREST if small else Image.Resampling.BOX
        sheet.paste(thumb.resize((side, side), how), (number % COLUMNS * side, number // COLUMNS * side))
    buffer = io.BytesIO()
    sheet.save(buffer, format="WEBP", quality=QUALITY, method=4)
    return buffer.getvalue()
