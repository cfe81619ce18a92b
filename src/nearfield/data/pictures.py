"""Images in files: where they are, how they are decoded and resized, and whether all of them can be decoded.

Axes: N images, B images asked for, H and W pixels, S pixels of the side asked for.
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
SIZE = 256  # default of S: what the papers resize to before they crop
DIGEST = 16  # bytes of the hash of a file
BLOCK = 64  # images decoded ahead of the one in use
Result = TypeVar("Result")


class Files(Protocol):
    """Encoded images, by row."""

    def __len__(self) -> int: ...
    def name(self, row: int) -> str: ...
    def read(self, row: int) -> bytes: ...


@dataclass(frozen=True)
class Paths:
    """Image files, by their paths below a folder."""

    root: Path
    paths: tuple[str, ...]  # N, with forward slashes

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, row: int) -> str:
        """The full path."""
        return str(self.root / self.paths[row])

    def read(self, row: int) -> bytes:
        """The content of the file; InputError if it cannot be read."""
        try:
            return (self.root / self.paths[row]).read_bytes()
        except OSError as error:
            raise InputError(f"cannot read the image {self.name(row)}: {error.strerror or error}.") from error

    def missing(self) -> list[str]:
        """The paths where there is no file."""
        return [path for path in self.paths if not (self.root / path).is_file()]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images that are decoded on access, in RGB or grey, and resized.

    `resize` is a rule: "square" resizes to S x S and ignores the aspect ratio; "short" resizes the shorter side to S
    and keeps the aspect ratio; "crop" does the same and then takes the S x S at the centre. Without a `size`, images
    keep their own. The pixels equal those of torchvision's `Resize` and `CenterCrop` on a Pillow image (bilinear,
    antialiased); like torchvision, EXIF orientation is ignored.
    """

    files: Files
    digests: Pixels  # (N, DIGEST) hash of each file when the dataset was read
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
        """One image (H, W[, 3]) for an integer; (B, S, S[, 3]) for several rows, if all have the same shape."""
        if isinstance(rows, int | np.integer):
            return self.read(int(rows))
        if not self.uniform:
            raise InputError(f"resize must be square or crop to stack images, with a size; these are {self.looks}.")
        chosen = np.arange(len(self))[rows]
        return np.stack([self.read(int(row)) for row in chosen])

    @property
    def uniform(self) -> bool:
        """Whether all images have the same shape."""
        return self.size is not None and self.resize != "short"

    @property
    def looks(self) -> str:
        """Size and colours, human-readable."""
        colours = "RGB" if self.colour else "grey"
        if self.size is None:
            return f"as they are, {colours}"
        shape = f"short side {self.size}" if self.resize == "short" else f"{self.size}x{self.size}"
        return f"{shape}{' of the middle' if self.resize == 'crop' else ''} {colours}"

    def at(self, size: int | None = SIZE, resize: str = "square", colour: bool = True) -> Pictures:
        """The same images at another size or in other colours."""
        return replace(self, size=size, resize=resize, colour=colour)

    def read(self, row: int) -> Pixels:
        """One image, decoded: (H, W, 3) or, in grey, (H, W)."""
        image = decode(self.files.read(row), self.files.name(row), self.colour)
        return np.array(resized(image, self.size, self.resize), dtype=np.uint8)


def decode(content: bytes, name: str, colour: bool) -> Image:
    """The image in `content`, in RGB or grey; InputError if it is damaged, truncated or not an image."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return converted(image, colour)
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, struct.error, zlib.error) as error:
        raise InputError(f"cannot read the image {name}: {error}. Repair or remove it.") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"cannot read the image {name}: {error} Shrink or remove it.") from error


def converted(image: Image, colour: bool) -> Image:
    """`image` in RGB or grey, of whatever mode it is."""
    from PIL import Image

    if image.mode.startswith("I;16"):  # 16 bits; Pillow would clamp everything above 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB" if colour else "L")


def resized(image: Image, size: int | None, rule: str) -> Image:
    """`image` resized by a rule of `Pictures`."""
    from PIL.Image import Resampling

    if size is None:
        return image
    if rule == "square":
        return image.resize((size, size), Resampling.BILINEAR)
    width, height = image.size
    short = min(width, height)
    shape = (size, int(size * height / short)) if width <= height else (int(size * width / short), size)
    image = image.resize(shape, Resampling.BILINEAR)
    if rule == "short":
        return image
    left, top = round((shape[0] - size) / 2), round((shape[1] - size) / 2)
    return image.crop((left, top, left + size, top + size))


def digest_of(content: bytes) -> Pixels:
    """A hash (DIGEST,) of the content of a file."""
    return np.frombuffer(hashlib.blake2b(content, digest_size=DIGEST).digest(), dtype=np.uint8)


def digests_of(files: Files, progress: Progress | None = None) -> Pixels:
    """The hashes (N, DIGEST) of all files."""
    found = map_in_order(lambda row: digest_of(files.read(row)), len(files), progress)
    return np.stack(list(found)) if len(files) else np.zeros((0, DIGEST), dtype=np.uint8)


def examine(files: Files, digests: Pixels | None = None, progress: Progress | None = None) -> tuple[Pixels, list[str]]:
    """Read and decode every image: the hashes (N, DIGEST), and a list of all problems, changed files included."""

    def look(row: int) -> tuple[Pixels, str]:
        try:
            content = files.read(row)
            decode(content, files.name(row), colour=True)
        except InputError as error:
            return np.zeros(DIGEST, dtype=np.uint8), str(error)
        found = digest_of(content)
        same = digests is None or np.array_equal(found, digests[row])
        return (
            found,
            "" if same else f"the image {files.name(row)} has changed since it was added: its content differs.",
        )

    results = list(map_in_order(look, len(files), progress))
    return np.stack([found for found, _ in results]), [problem for _, problem in results if problem]


def map_in_order(work: Callable[[int], Result], count: int, progress: Progress | None = None) -> Iterator[Result]:
    """`work(0)`, `work(1)`, ... in order, in threads (Pillow releases the GIL), at most a block ahead."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            yield from pool.map(work, range(start, stop))
            if progress is not None:
                progress(stop, count)
