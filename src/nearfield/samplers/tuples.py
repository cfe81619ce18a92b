"""Batches for losses that need a fixed shape: pairs and episodes. Images are distinct, so small classes are left out.

Axes: T batches of an epoch, P classes of a batch, m images of a class in a batch.
"""

from __future__ import annotations

import numpy as np

from nearfield.errors import InputError
from nearfield.samplers.base import BatchSampler, Classes, Indices
from nearfield.samplers.m_per_class import distinct_classes


class NPairsSampler(BatchSampler):
    """Two images of each of batch_size / 2 distinct classes, side by side: anchor, positive, anchor, positive, ...

    The two are distinct, but with probability `p_same` one image appears twice, to be augmented in two ways
    (DMLPlayground: 0.1). Classes with one image are left out. An epoch has floor(usable images / batch_size) batches,
    at least one.
    """

    def __init__(self, labels: Indices, batch_size: int, seed: int, *, p_same: float = 0.0) -> None:
        super().__init__(labels, batch_size, seed)
        if batch_size % 2:
            raise InputError(f"batch_size must be even, for pairs; got {batch_size}.")
        if not 0 <= p_same <= 1:
            raise InputError(f"p_same must lie in 0..1; got {p_same}.")
        self.p_same = p_same
        self._leave_out(self.classes.sizes < 2, "fewer than 2 images", batch_size // 2, "Lower batch_size.")

    def __len__(self) -> int:
        return max(1, len(self.classes.rows) // self.batch_size)

    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        chosen = distinct_classes(len(self.classes), len(self), self.batch_size // 2, rng)  # (T, P)
        pairs = distinct_images(self.classes, chosen, 2, rng)  # (T, P, 2)
        same = rng.random(chosen.shape) < self.p_same
        pairs[same, 1] = pairs[same, 0]
        return list(pairs.reshape(len(self), self.batch_size))


class EpisodicSampler(BatchSampler):
    """Episodes: `per_class` distinct images of each of batch_size / per_class distinct classes, in ascending order.

    Class by class: the first `support` images of each (half of them, rounded down, if not given) make its prototype,
    the other `query` ones are classified (Unbiased Evaluation: 12 classes, 5 + 5). Classes with fewer than `per_class`
    images are left out. An epoch has floor(usable images / batch_size) episodes, at least one.
    """

    def __init__(
        self, labels: Indices, batch_size: int, per_class: int, seed: int, *, support: int | None = None
    ) -> None:
        super().__init__(labels, batch_size, seed)
        if per_class < 2 or batch_size % per_class:
            raise InputError(
                f"batch_size must be a multiple of per_class, which is at least 2; got {batch_size} and {per_class}."
            )
        self.per_class, self.classes_per_batch = per_class, batch_size // per_class
        self.support = per_class // 2 if support is None else support
        self.query = per_class - self.support
        if self.support < 1 or self.query < 1:
            raise InputError(f"support must lie in 1..{per_class - 1}, leaving a query image; got {support}.")
        too_small, why = self.classes.sizes < per_class, f"fewer than {per_class} images"
        self._leave_out(too_small, why, self.classes_per_batch, "Lower batch_size or per_class.")

    def __len__(self) -> int:
        return max(1, len(self.classes.rows) // self.batch_size)

    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        chosen = distinct_classes(len(self.classes), len(self), self.classes_per_batch, rng)  # (T, P)
        images = distinct_images(self.classes, np.sort(chosen, axis=1), self.per_class, rng)  # (T, P, m)
        return list(images.reshape(len(self), self.batch_size))


def distinct_images(classes: Classes, chosen: Indices, m: int, rng: np.random.Generator) -> Indices:
    """`m` distinct images of each of the classes `chosen` (T, P), in random order, (T, P, m).

    Floyd's algorithm, vectorised: the j-th draw is from the first size - m + j + 1 places, and takes the last of them
    if it hits a place that is taken.
    """
    sizes, places = classes.sizes[chosen], np.empty((*chosen.shape, m), dtype=np.int64)
    for j in range(m):
        last = sizes - m + j
        drawn = rng.integers(0, last + 1)
        taken = (places[..., :j] == drawn[..., None]).any(-1)
        places[..., j] = np.where(taken, last, drawn)
    rows: Indices = classes.rows[classes.starts[chosen][..., None] + rng.permuted(places, axis=-1)]
    return rows
