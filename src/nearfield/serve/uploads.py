"""Bodies and images from strangers: limits before anything is decoded; nothing is written to disk.

413 too large (bytes or pixels), 415 not an image or not a type that the route takes, 422 damaged or malformed,
408 too slow, 503 too many at once.
"""

from __future__ import annotations

import io
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from nearfield.data.pictures import converted
from nearfield.serve.errors import ApiError, overloaded
from nearfield.serve.settings import Settings

if TYPE_CHECKING:
    from PIL.Image import Image
    from starlette.requests import Request

FORMATS = ("BMP", "GIF", "JPEG", "MPO", "PNG", "TIFF", "WEBP")  # MPO: what some cameras write as .jpg
PARTS = 64  # of a form
FIELD = 4096  # bytes of a field that is not an image
Box = tuple[float, float, float, float]  # left, top, right, bottom, as fractions of width and height


class Gate:
    """Lets a bounded number of requests, and of bytes, in at a time; refuses the others at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.inside = 0
        self.bytes = 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        """A place among the requests at work; ApiError 503 if there is none."""
        if self.inside >= self.settings.queue:
            raise overloaded(f"{self.inside} requests are waiting")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    @asynccontextmanager
    async def body(self, request: Request, limit: int | None = None) -> AsyncIterator[bytes]:
        """The body of a request, which counts as memory in use while the block runs."""
        limit = limit or self.settings.max_bytes
        said = request.headers.get("content-length", "0")
        if not (said.isascii() and said.isdigit() and len(said) < 16) or int(said) > limit:
            raise ApiError(413, f"The request must have at most {limit:,} bytes; got {said[:20]}.")
        taken, parts = 0, []
        try:
            try:
                with anyio.fail_after(self.settings.patience):
                    async for part in request.stream():
                        self.bytes += len(part)
                        taken += len(part)
                        if taken > limit:
                            raise ApiError(413, f"The request must have at most {limit:,} bytes; got more.")
                        if self.bytes > self.settings.memory:
                            raise overloaded("the bodies that wait fill its memory")
                        parts.append(part)
            except TimeoutError:
                raise ApiError(408, f"The request must arrive within {self.settings.patience:g} s.") from None
            yield b"".join(parts)
        finally:
            self.bytes -= taken


@dataclass
class Form:
    """A multipart form: images, and the text of all other fields."""

    images: list[bytes] = field(default_factory=list)
    fields: dict[str, list[str]] = field(default_factory=dict)

    def one(self, name: str) -> str | None:
        """The text of a field; None without one, ApiError 422 with several."""
        found = self.fields.get(name, [])
        if len(found) > 1:
            raise ApiError(422, f"{name} must be given once; got {len(found)} of them.")
        return found[0] if found else None


def parse_form(body: bytes, content_type: str) -> Form:
    """The form in a body; the field `image` may be repeated."""
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise ApiError(422, "A multipart request must name its boundary.")
    reader = _Parts()
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise ApiError(422, f"The form is malformed: {error}") from error
    if not reader.complete:
        raise ApiError(422, "The form is malformed: it ends before its last boundary.")
    return reader.form


class _Parts:
    """Collects the parts of a form as the parser finds them."""

    def __init__(self) -> None:
        self.form, self.complete, self._count = Form(), False, 0
        self._begin()

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._add,
            "on_part_end": self._end,
            "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._field, self._value, self._content = bytearray(), bytearray(), bytearray()
        self._name = ""

    def _header(self) -> None:
        from python_multipart.multipart import parse_options_header

        if bytes(self._field).lower() == b"content-disposition":
            self._name = parse_options_header(bytes(self._value))[1].get(b"name", b"").decode("utf-8", "replace")
        self._field, self._value = bytearray(), bytearray()

    def _add(self, data: bytes, start: int, end: int) -> None:
        self._content.extend(data[start:end])

    def _end(self) -> None:
        self._count += 1
        if self._count > PARTS:
            raise ApiError(422, f"A form must have at most {PARTS} parts.")
        if self._name == "image":
            self.form.images.append(bytes(self._content))
        elif len(self._content) > FIELD:
            raise ApiError(422, f"The field {self._name[:40]!r} must have at most {FIELD} bytes; got more.")
        else:
            try:
                self.form.fields.setdefault(self._name, []).append(self._content.decode())
            except UnicodeDecodeError as error:
                raise ApiError(422, f"The field {self._name[:40]!r} must be UTF-8.") from error

    def _finish(self) -> None:
        self.complete = True


def open_image(content: bytes, max_pixels: int, colour: bool) -> Image:
    """The image in `content`, in RGB or grey; its size is checked before its pixels are decoded."""
    from PIL import Image, UnidentifiedImageError

    large = f"An image must have at most {max_pixels:,} pixels"
    try:
        image = Image.open(io.BytesIO(content))
    except UnidentifiedImageError as error:
        raise ApiError(415, f"An image must be one of {', '.join(FORMATS)}; got something else.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ApiError(413, f"{large}; got more.") from error
    except Exception as error:  # decoders raise whatever they like on hostile bytes
        raise ApiError(422, "The image is damaged: its header cannot be read.") from error
    with image:
        if image.format not in FORMATS:
            raise ApiError(415, f"An image must be one of {', '.join(FORMATS)}; got {image.format}.")
        if image.width * image.height > max_pixels:
            raise ApiError(413, f"{large}; got {image.width} x {image.height}.")
        if not image.width or not image.height:
            raise ApiError(422, "An image must have pixels; got none.")
        try:
            return converted(image, colour)
        except Exception as error:
            raise ApiError(422, "The image is damaged: it cannot be decoded.") from error


def parse_box(text: str | None) -> Box | None:
    """A crop `left,top,right,bottom` in fractions; None without one."""
    if not text:
        return None
    try:
        left, top, right, bottom = (float(part) for part in text.split(","))
    except ValueError:
        left = top = right = bottom = math.nan
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise ApiError(422, f"crop must be left,top,right,bottom, fractions in 0..1; got {text[:80]!r}.")
    return left, top, right, bottom


def cropped(image: Image, box: Box | None) -> Image:
    """The part of an image in a box, at least one pixel."""
    if box is None:
        return image
    left, top = (min(int(box[axis] * size), size - 1) for axis, size in enumerate(image.size))
    right, bottom = (math.ceil(box[axis + 2] * size) for axis, size in enumerate(image.size))
    return image.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
