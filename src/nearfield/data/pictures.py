"""Pictures in files: what they are called, how they are decoded, and whether all of them can be.

Axes: N pictures, H and W pixels, S the side asked for.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from nearfield.data.dataset import Pixels
from nearfield.errors import InputError, require_one_of
from nearfield.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
RULES = ("square", "short", "crop")
SIZE = 256  # S unless the caller says otherwise: what the papers resize to before they crop
DIGEST = 16  # bytes that stand for a file's content
BLOCK = 64  # pictures decoded ahead of the one being used
Result = TypeVar("Result")


class Files(Protocol):
    """Where the bytes of pictures come from."""

    def __len__(self) -> int: ...
    def name(self, row: int) -> str: ...
    def read(self, row: int) -> bytes: ...


@dataclass(frozen=True)
class Paths:
    """Pictures in a folder, by their paths below it."""

    root: Path
    paths: tuple[str, ...]  # N, with forward slashes

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, row: int) -> str:
        """The whole path."""
        return str(self.root / self.paths[row])

    def read(self, row: int) -> bytes:
        """The content; InputError if there is none."""
        try:
            return (self.root / self.paths[row]).read_bytes()
        except OSError as error:
            raise InputError(f"cannot read the image {self.name(row)}: {error.strerror or error}.") from error

    def missing(self) -> list[str]:
        """The paths at which there is no file."""
        return [path for path in self.paths if not (self.root / path).is_file()]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures that are decoded when they are asked for, in RGB or grey, and resized.

    square: to S x S, whatever the shape was. short: the shorter side to S, the other in proportion. crop: short, then
    the S x S in the middle. Without a size they stay as they are. The pixels are those of torchvision's `Resize` and
    `CenterCrop` on a Pillow image (bilinear with antialiasing); EXIF rotation is ignored, as it is there.
    """

    files: Files
    digests: Pixels  # (N, DIGEST) what each file held when the dataset was read
    size: int | None = SIZE
    resize: str = "square"
    colour: bool = True

    def __post_init__(self) -> None:
        require_one_of("resize", self.resize, RULES)
        if self.size is not None and self.size < 1:
            raise InputError(f"size must be at least 1 pixel; got {self.size}.")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: Any, /) -> Pixels:
        """One picture (H, W[, 3]) for a number; (B, S, S[, 3]) for several rows, if they have one shape."""
        if isinstance(rows, int | np.integer):
            return self.read(int(rows))
        if not self.uniform:
            raise InputError(f"pictures must be square or crop to be stacked; these are {self.looks}.")
        chosen = np.arange(len(self))[rows]
        return np.stack([self.read(int(row)) for row in chosen])

    @property
    def uniform(self) -> bool:
        """Whether all pictures have one shape."""
        return self.size is not None and self.resize != "short"

    @property
    def looks(self) -> str:
        """Size and colours, in words."""
        colours = "RGB" if self.colour else "grey"
        if self.size is None:
            return f"as they are, {colours}"
        shape = f"short side {self.size}" if self.resize == "short" else f"{self.size}x{self.size}"
        return f"{shape}{' of the middle' if self.resize == 'crop' else ''} {colours}"

    def at(self, size: int | None = SIZE, resize: str = "square", colour: bool = True) -> Pictures:
        """The same pictures in another size or colour."""
        return replace(self, size=size, resize=resize, colour=colour)

    def read(self, row: int) -> Pixels:
        """One picture, decoded now: (H, W, 3) or, in grey, (H, W)."""
        picture = decode(self.files.read(row), self.files.name(row), self.colour)
        return np.array(resized(picture, self.size, self.resize), dtype=np.uint8)


def decode(content: bytes, name: str, colour: bool) -> Image:
    """The picture in `content`; InputError if it is damaged, cut short or no picture at all."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            if picture.mode == "P" and "transparency" in picture.info:
                return picture.convert("RGBA").convert("RGB" if colour else "L")
            if picture.mode.startswith("I;16"):  # Pillow would cut off everything above 255
                bytes_of_grey = (np.asarray(picture) >> 8).astype(np.uint8)
                return Image.fromarray(bytes_of_grey).convert("RGB" if colour else "L")
            return picture.convert("RGB" if colour else "L")
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, struct.error, zlib.error) as error:
        raise InputError(f"cannot read the image {name}: {error}. Repair or remove it.") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"cannot read the image {name}: {error} Shrink or remove it.") from error


def resized(picture: Image, size: int | None, rule: str) -> Image:
    """`picture` under a rule of `Pictures`."""
    from PIL.Image import Resampling

    if size is None:
        return picture
    if rule == "square":
        return picture.resize((size, size), Resampling.BILINEAR)
    width, height = picture.size
    short = min(width, height)
    shape = (size, int(size * height / short)) if width <= height else (int(size * width / short), size)
    picture = picture.resize(shape, Resampling.BILINEAR)
    if rule == "short":
        return picture
    left, top = round((shape[0] - size) / 2), round((shape[1] - size) / 2)
    return picture.crop((left, top, left + size, top + size))


def digest_of(content: bytes) -> Pixels:
    """A short hash (DIGEST,) of a file's content."""
    return np.frombuffer(hashlib.blake2b(content, digest_size=DIGEST).digest(), dtype=np.uint8)


def digests_of(files: Files, progress: Progress | None = None) -> Pixels:
    """The hashes (N, DIGEST) of all files."""
    found = in_order(lambda row: digest_of(files.read(row)), len(files), progress)
    return np.stack(list(found)) if len(files) else np.zeros((0, DIGEST), dtype=np.uint8)


def examine(files: Files, digests: Pixels | None = None, progress: Progress | None = None) -> tuple[Pixels, list[str]]:
    """Read and decode every picture: its hash, and what is wrong with it, changed content included."""

    def look(row: int) -> tuple[Pixels, str]:
        try:
            content = files.read(row)
            decode(content, files.name(row), colour=True)
        except InputError as error:
            return np.zeros(DIGEST, dtype=np.uint8), str(error)
        found = digest_of(content)
        same = digests is None or np.array_equal(found, digests[row])
        return found, "" if same else f"the image {files.name(row)} is not the one that was added: its content differs."

    results = list(in_order(look, len(files), progress))
    return np.stack([found for found, _ in results]), [problem for _, problem in results if problem]


def in_order(work: Callable[[int], Result], count: int, progress: Progress | None = None) -> Iterator[Result]:
    """`work(0)`, `work(1)`, ... in order, on all cores (Pillow lets go of the interpreter), a block ahead at most."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            yield from pool.map(work, range(start, stop))
            if progress is not None:
                progress(stop, count)
