"""Batches of images, cropped and flipped: from memory, from the cache, or decoded on the fly by worker processes.

Batches are uint8 (B, C, S, S), a quarter of the memory traffic of floats; the network converts the pixel values it
needs. A batch depends only on the seed, its number and its rows, not on the number of workers.

Axes: N images, B images of a batch, C channels, H and W pixels, S the side of a crop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from nearfield.data import crops
from nearfield.data.augment import Augmentation
from nearfield.data.dataset import Dataset, Images, Integers
from nearfield.errors import InputError

Request = tuple[int, Sequence[int]]  # number of the batch, its rows


class Cropped(TorchDataset[Tensor]):
    """A map-style dataset for torch's DataLoader: the index is a numbered list of rows, the item is the batch."""

    def __init__(self, images: Images, chosen: Augmentation, train: bool, seed: int) -> None:
        self.images, self.augmentation, self.train, self.seed = images, chosen, train, seed

    def __getitem__(self, request: Request) -> Tensor:
        number, rows = request
        generator = np.random.default_rng([self.seed, number])
        images = [_tensor(self.images[int(row)]) for row in rows]
        shapes = np.asarray([image.shape[1:] for image in images], dtype=np.int64)  # (B, 2)
        side = self.augmentation.side
        if not self.train:
            return _cut(images, crops.centre(shapes, side), side)
        if self.augmentation.crop == "random":
            batch = _cut(images, crops.uniform(shapes, side, generator), side)
        else:
            batch = _cut(images, crops.random_resized(shapes, self.augmentation.scale, generator), side)
        mirrored = torch.from_numpy(generator.random(len(rows)) < 0.5)
        batch[mirrored] = batch[mirrored].flip(-1)
        return batch


def loader(
    dataset: Dataset,
    batches: Iterable[Sequence[int]],
    chosen: Augmentation,
    *,
    train: bool,
    seed: int = 0,
    first: int = 0,
    workers: int = 0,
) -> Iterator[Tensor]:
    """The images of each batch of rows, uint8 (B, C, S, S), in order.

    `first` is the number of the first batch: to resume after k batches, pass k.
    """
    if dataset.are_features:
        raise InputError(f"images must have pixels to be cropped; {dataset.name} holds features.")
    if workers < 0:
        raise InputError(f"workers must be at least 0; got {workers}.")
    requests: Any = enumerate(batches, start=first)
    images = Cropped(dataset.images, chosen, train, seed)
    yield from DataLoader(images, sampler=requests, batch_size=None, num_workers=workers)


def _cut(images: list[Tensor], where: Integers, side: int) -> Tensor:
    """The windows (B, 4) of the images, resized to (B, C, S, S)."""
    batch = torch.empty(len(images), len(images[0]), side, side, dtype=torch.uint8)
    for place, (image, (top, left, height, width)) in enumerate(zip(images, where.tolist(), strict=True)):
        part = image[None, :, top : top + height, left : left + width]
        if (height, width) != (side, side):
            part = part.contiguous(memory_format=torch.channels_last)  # what torch resizes fastest
            part = functional.interpolate(part, size=(side, side), mode="bilinear", antialias=True)
        batch[place] = part[0]
    return batch


def _tensor(image: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """An image (H, W) or (H, W, 3) as (C, H, W), without copying."""
    pixels = torch.from_numpy(image)
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
