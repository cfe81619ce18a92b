"""Batch samplers: which images stand together in a batch. Seeded, restartable in the middle of an epoch.

A batch depends only on (seed, epoch, position), so that a sampler's whole state is two numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nearfield.errors import InputError

Indices = NDArray[np.int64]


class BatchSampler(ABC):
    """An endless supply of epochs of batches; iterating goes on from where the state says, to the epoch's end."""

    def __init__(self, labels: Indices, batch_size: int, seed: int) -> None:
        self.labels = np.asarray(labels)
        if self.labels.ndim != 1 or not np.issubdtype(self.labels.dtype, np.integer) or len(self.labels) == 0:
            raise InputError(
                f"labels must be a non-empty vector of integers; got {self.labels.dtype} {self.labels.shape}."
            )
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1; got {batch_size}.")
        self.batch_size, self.seed = batch_size, seed
        self.epoch, self.position = 0, 0

    @abstractmethod
    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        """All batches of one epoch, as indices into `labels`."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches in an epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.epoch, self.position = epoch, 0

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.draw_epoch(np.random.default_rng([self.seed, self.epoch]))
        while self.position < len(batches):
            self.position += 1
            yield batches[self.position - 1].tolist()
        self.set_epoch(self.epoch + 1)

    def state_dict(self) -> dict[str, int]:
        """Where the sampler is."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to where another sampler was."""
        self.seed, self.epoch, self.position = state["seed"], state["epoch"], state["position"]


class MPerClassSampler(BatchSampler):
    """`per_class` images of each of batch_size / per_class distinct classes.

    An epoch has floor(images / batch_size) batches, at least one. Images of a class are drawn without replacement
    inside a batch, with replacement only from classes that have fewer than `per_class`.
    """

    def __init__(self, labels: Indices, batch_size: int, per_class: int, seed: int) -> None:
        super().__init__(labels, batch_size, seed)
        if per_class < 1 or batch_size % per_class:
            raise InputError(f"batch_size must be a multiple of per_class; got {batch_size} and {per_class}.")
        order = np.argsort(self.labels, kind="stable")
        _, starts = np.unique(self.labels[order], return_index=True)
        self.members = np.split(order, starts[1:])
        self.per_class, self.classes_per_batch = per_class, batch_size // per_class
        if self.classes_per_batch > len(self.members):
            raise InputError(
                f"a batch of {batch_size} with {per_class} a class needs {self.classes_per_batch} classes; there are "
                f"{len(self.members)}. Lower batch_size or raise per_class."
            )

    def __len__(self) -> int:
        return max(1, len(self.labels) // self.batch_size)

    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        return [self._draw_batch(rng) for _ in range(len(self))]

    def _draw_batch(self, rng: np.random.Generator) -> Indices:
        classes = rng.choice(len(self.members), self.classes_per_batch, replace=False)
        rows = [self.members[c] for c in classes]
        return np.concatenate([rng.choice(r, self.per_class, replace=len(r) < self.per_class) for r in rows])


class ShuffleSampler(BatchSampler):
    """Every image once an epoch in random order; the last, incomplete batch is left out."""

    def __init__(self, labels: Indices, batch_size: int, seed: int) -> None:
        super().__init__(labels, batch_size, seed)
        if batch_size > len(self.labels):
            raise InputError(f"batch_size must be at most the number of images, {len(self.labels)}; got {batch_size}.")

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        order = rng.permutation(len(self.labels))[: len(self) * self.batch_size]
        return list(order.reshape(len(self), self.batch_size))
