"""Images decoded once into a memory-mapped file, so that later runs need not decode them again.

An entry of the cache is a folder `pixels/FINGERPRINT-SIZE-COLOUR` with `pixels.bin`, all images concatenated, and
`shapes.npy`, their heights and widths. It is written under a temporary name and renamed when it is complete: a reader
never sees an incomplete entry, and if two processes build the same one, that of the slower is discarded.

Axes: N images, B images asked for, H and W pixels.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfield.data.dataset import Dataset, Integers, Pixels, cache_dir
from nearfield.data.pictures import Pictures, map_in_order
from nearfield.errors import InputError, RunError
from nearfield.files import whole_folder
from nearfield.progress import Progress, reported

VERSION = 1  # of the layout of an entry


class Stored:
    """Decoded images in a cache folder, memory-mapped: only what is accessed is read from disk."""

    def __init__(self, folder: Path, shapes: Integers, colour: bool, looks: str, rule: str) -> None:
        self.folder = folder
        self.shapes = shapes  # (N, 2) heights and widths
        self.colour = colour
        self.looks = looks
        self.rule = rule  # of resizing, see `Pictures`
        self.ends = np.cumsum(
            shapes.prod(axis=1) * (3 if colour else 1)
        )  # (N,) offset in bytes at which each image ends

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, rows: Any, /) -> Pixels:
        """One image (H, W[, 3]) for an integer; (B, H, W[, 3]) for several rows; InputError if the shapes differ."""
        if not isinstance(rows, int | np.integer):
            several: Pixels = self.array[rows]
            return several
        row = range(len(self))[int(rows)]
        begin = int(self.ends[row - 1]) if row else 0
        return self.bytes[begin : self.ends[row]].reshape(*self.shapes[row], *((3,) if self.colour else ()))

    def __getstate__(self) -> dict[str, Any]:
        return {
            key: value for key, value in self.__dict__.items() if key not in ("bytes", "array")
        }  # mapped again on access

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.array, dtype=dtype) if copy else np.asarray(self.array, dtype=dtype)

    @cached_property
    def bytes(self) -> Pixels:
        """All images, concatenated. Copy-on-write: changing it does not change the file."""
        return np.asarray(np.memmap(self.folder / "pixels.bin", dtype=np.uint8, mode="c"))

    @cached_property
    def array(self) -> Pixels:
        """All images as one array (N, H, W[, 3]), memory-mapped; InputError if their shapes differ."""
        if (self.shapes != self.shapes[0]).any():
            raise InputError(f"resize must be square or crop to make one array; these images are {self.looks}.")
        return self.bytes.reshape(len(self), *self.shapes[0], *((3,) if self.colour else ()))


def decoded(dataset: Dataset, progress: Progress | None = None) -> Dataset:
    """The dataset with its images decoded, read from the cache or written to it; arrays and features are unchanged."""
    images = dataset.images
    if not isinstance(images, Pictures):
        return dataset
    rule = f"{images.resize}{images.size}" if images.size else "whole"
    name = f"{dataset.fingerprint[:16]}-{rule}-{'rgb' if images.colour else 'grey'}-{VERSION}"
    folder = cache_dir() / "pixels" / name
    stored = _open(folder, images)
    if stored is None:
        shutil.rmtree(folder, ignore_errors=True)  # a damaged entry would prevent the rename
        with reported(f"Decoding {dataset.name}, once", progress) as report:
            _build(folder, images, report)
        stored = _open(folder, images)
    if stored is None:
        raise RunError(f"the cache {folder} cannot be read back. Free space, or set NEARFIELD_CACHE to another folder.")
    return replace(dataset, images=stored)


def pixels(dataset: Dataset) -> npt.NDArray[Any]:
    """All images as one array, (N, H, W) or (N, H, W, 3), or all features (N, F); files are decoded once and mapped."""
    return np.asarray(decoded(dataset).images)


def _open(folder: Path, images: Pictures) -> Stored | None:
    """The entry, or None if it does not exist or is damaged."""
    try:
        shapes = np.load(folder / "shapes.npy", allow_pickle=False)
        size = (folder / "pixels.bin").stat().st_size
    except (OSError, ValueError, EOFError):
        return None
    if shapes.shape != (len(images), 2) or shapes.dtype != np.int64:
        return None
    stored = Stored(folder, shapes, images.colour, images.looks, images.resize)
    return stored if stored.ends[-1] == size else None


def _build(folder: Path, images: Pictures, progress: Progress) -> None:
    with whole_folder(folder) as temporary:
        shapes = np.zeros((len(images), 2), dtype=np.int64)
        with (temporary / "pixels.bin").open("wb") as stream:
            for row, image in enumerate(map_in_order(images.read, len(images), progress)):
                stream.write(np.ascontiguousarray(image).data)
                shapes[row] = image.shape[:2]
        np.save(temporary / "shapes.npy", shapes)
