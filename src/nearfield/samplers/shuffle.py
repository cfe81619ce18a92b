"""Batches that contain every image once an epoch: a plain shuffle, and FastAP's, class by class."""

from __future__ import annotations

import numpy as np

from nearfield.errors import InputError
from nearfield.samplers.base import BatchSampler, Indices


class ShuffleSampler(BatchSampler):
    """Every image once an epoch in random order; the last, incomplete batch is left out unless `drop_last` is False."""

    def __init__(self, labels: Indices, batch_size: int, seed: int, *, drop_last: bool = True) -> None:
        super().__init__(labels, batch_size, seed)
        self.drop_last = drop_last
        self.full_batches = check_slices(len(self.labels), batch_size, drop_last)

    def __len__(self) -> int:
        return count_slices(len(self.labels), self.batch_size, self.drop_last)

    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        return slices(rng.permutation(len(self.labels)), len(self), self.batch_size)


class FastAPSampler(BatchSampler):
    """Shuffled classes, shuffled images inside each, all in one sequence that is cut every `batch_size` images.

    The random batches of Cakir et al., Deep Metric Learning to Rank, CVPR 2019. The released code splits classes at the
    borders of batches, so that an image there may lack positives, though the supplement says that classes are complete.
    `keep_class_whole` makes them so: a class that does not fit into the rest of a batch begins the next one. Batches
    then have at most `batch_size` images, their number varies (`len` is exact for the current epoch), classes with more
    than `batch_size` images are left out, and `drop_last` is ignored: every other image appears once an epoch.
    """

    def __init__(
        self, labels: Indices, batch_size: int, seed: int, *, keep_class_whole: bool = False, drop_last: bool = True
    ) -> None:
        super().__init__(labels, batch_size, seed)
        self.keep_class_whole, self.drop_last = keep_class_whole, drop_last
        if keep_class_whole:
            self.full_batches = False
            too_big, why = self.classes.sizes > batch_size, f"more than {batch_size} images"
            self._leave_out(too_big, why, 1, "Raise batch_size.")
        else:
            self.full_batches = check_slices(len(self.labels), batch_size, drop_last)

    def __len__(self) -> int:
        if self.keep_class_whole:
            order = self._rng().permutation(len(self.classes))  # the first draw of an epoch
            return len(self._borders(self.classes.sizes[order])) - 1
        return count_slices(len(self.labels), self.batch_size, self.drop_last)

    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        row = self.classes.take(rng.permutation(len(self.classes))).shuffled(rng)
        if self.keep_class_whole:
            return np.split(row.rows, self._borders(row.sizes)[1:-1])
        return slices(row.rows, len(self), self.batch_size)

    def _borders(self, sizes: Indices) -> list[int]:
        """Where batches begin and end in a sequence of classes of these sizes, (C,), none of them split."""
        ends, borders = np.cumsum(sizes), [0]
        while borders[-1] < ends[-1]:
            fits = np.searchsorted(ends, borders[-1] + self.batch_size, side="right")
            borders.append(int(ends[fits - 1]))
        return borders


def check_slices(images: int, batch_size: int, drop_last: bool) -> bool:
    """Whether all batches cut from a sequence of images are full; InputError if there would be none."""
    if drop_last and batch_size > images:
        raise InputError(f"batch_size must be at most the number of images, {images}; got {batch_size}.")
    return drop_last or images % batch_size == 0


def count_slices(images: int, batch_size: int, drop_last: bool) -> int:
    """The number of batches that a sequence of images is cut into."""
    return images // batch_size if drop_last else -(-images // batch_size)


def slices(row: Indices, count: int, batch_size: int) -> list[Indices]:
    """The first `count` batches of a sequence of images."""
    return [row[i * batch_size : (i + 1) * batch_size] for i in range(count)]
