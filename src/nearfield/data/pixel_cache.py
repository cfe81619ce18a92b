"""Pictures decoded once into a memory-mapped file, so that no later run decodes them again.

A cache is a folder `pixels/FINGERPRINT-LOOKS` with `pixels.bin`, the pictures one after the other, and `shapes.npy`,
their heights and widths. It is written under another name and renamed when it is whole: a reader never sees half of
one, and of two processes that build the same one the slower throws its own away.

Axes: N pictures, H and W pixels.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfield.data.atomic import whole_folder
from nearfield.data.dataset import Dataset, Integers, Pixels, cache_dir
from nearfield.data.pictures import Pictures, in_order
from nearfield.errors import InputError, RunError
from nearfield.progress import Progress, reported

VERSION = 1  # of the folder's layout


class Stored:
    """Decoded pictures in a cache folder; only the pages that are looked at are read."""

    def __init__(self, folder: Path, shapes: Integers, colour: bool, looks: str) -> None:
        self.folder = folder
        self.shapes = shapes  # (N, 2) heights and widths
        self.colour = colour
        self.looks = looks
        self.ends = np.cumsum(shapes.prod(axis=1) * (3 if colour else 1))  # (N,) where each picture ends, in bytes

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, rows: Any, /) -> Pixels:
        """One picture (H, W[, 3]) for a number; (B, H, W[, 3]) for several rows, if all have one shape."""
        if not isinstance(rows, int | np.integer):
            several: Pixels = self.array[rows]
            return several
        row = range(len(self))[int(rows)]
        begin = int(self.ends[row - 1]) if row else 0
        return self.bytes[begin : self.ends[row]].reshape(*self.shapes[row], *((3,) if self.colour else ()))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("bytes", "array")}  # mapped anew

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.array, dtype=dtype) if copy else np.asarray(self.array, dtype=dtype)

    @cached_property
    def bytes(self) -> Pixels:
        """All pictures, flat. Private to the process: writing to it changes nothing on disk."""
        return np.asarray(np.memmap(self.folder / "pixels.bin", dtype=np.uint8, mode="c"))

    @cached_property
    def array(self) -> Pixels:
        """All pictures as one array (N, H, W[, 3]), still on disk; InputError if their shapes differ."""
        if (self.shapes != self.shapes[0]).any():
            raise InputError(f"pictures must be square or crop to be one array; these are {self.looks}.")
        return self.bytes.reshape(len(self), *self.shapes[0], *((3,) if self.colour else ()))


def decoded(dataset: Dataset, progress: Progress | None = None) -> Dataset:
    """The same dataset with its pictures decoded, from the cache or into it; any other kind as it is."""
    pictures = dataset.images
    if not isinstance(pictures, Pictures):
        return dataset
    rule = f"{pictures.resize}{pictures.size}" if pictures.size else "whole"
    name = f"{dataset.fingerprint[:16]}-{rule}-{'rgb' if pictures.colour else 'grey'}-{VERSION}"
    folder = cache_dir() / "pixels" / name
    stored = _open(folder, pictures)
    if stored is None:
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one would stand in the way
        with reported(f"Decoding {dataset.name}, once", progress) as report:
            _build(folder, pictures, report)
        stored = _open(folder, pictures)
    if stored is None:
        raise RunError(f"the cache {folder} cannot be read back: free space, or choose a folder with NEARFIELD_CACHE.")
    return replace(dataset, images=stored)


def pixels(dataset: Dataset) -> npt.NDArray[Any]:
    """All images as one array, (N, H, W), (N, H, W, 3) or features (N, F); pictures are decoded once and mapped."""
    return np.asarray(decoded(dataset).images)


def _open(folder: Path, pictures: Pictures) -> Stored | None:
    """The cache, or None if there is none or it is not whole."""
    try:
        shapes = np.load(folder / "shapes.npy", allow_pickle=False)
        size = (folder / "pixels.bin").stat().st_size
    except (OSError, ValueError, EOFError):
        return None
    if shapes.shape != (len(pictures), 2) or shapes.dtype != np.int64:
        return None
    stored = Stored(folder, shapes, pictures.colour, pictures.looks)
    return stored if stored.ends[-1] == size else None


def _build(folder: Path, pictures: Pictures, progress: Progress) -> None:
    with whole_folder(folder) as temporary:
        shapes = np.zeros((len(pictures), 2), dtype=np.int64)
        with (temporary / "pixels.bin").open("wb") as stream:
            for row, picture in enumerate(in_order(pictures.read, len(pictures), progress)):
                stream.write(np.ascontiguousarray(picture).data)
                shapes[row] = picture.shape[:2]
        np.save(temporary / "shapes.npy", shapes)
