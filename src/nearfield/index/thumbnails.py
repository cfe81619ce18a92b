"""The small copy of an image that an index keeps."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 160  # pixels of the longer side
QUALITY = 70


def thumbnail(image: Image) -> bytes:
    """The whole image as a WebP file, its longer side at most SIDE; smaller images keep their size."""
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    small.save(buffer, format="WEBP", quality=QUALITY, method=3)
    return buffer.getvalue()
