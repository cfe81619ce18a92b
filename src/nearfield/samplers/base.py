"""The base of batch samplers, which decide which images form a batch. Seeded; can resume within an epoch.

A batch depends only on (seed, epoch, position), so that a sampler's whole state is three numbers.
Axes: N images, C classes.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearfield.errors import InputError

Indices = NDArray[np.int64]


class SamplerWarning(UserWarning):
    """A sampler cannot use all of the data: classes are left out, or images repeat in a batch."""


@dataclass(frozen=True, eq=False)
class Classes:
    """Images grouped by class: the rows of the first class, then the rows of the second, and so on."""

    labels: Indices  # (C,)
    sizes: Indices  # (C,) images of each class
    rows: Indices  # (N,)

    @classmethod
    def of(cls, labels: Indices) -> Classes:
        """The classes in ascending order of their labels, their rows ascending too."""
        values, sizes = np.unique(labels, return_counts=True)
        return cls(values, sizes, np.argsort(labels, kind="stable"))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def starts(self) -> Indices:
        """Where each class begins in `rows`, (C,)."""
        starts: Indices = np.cumsum(self.sizes) - self.sizes
        return starts

    def take(self, chosen: Indices) -> Classes:
        """The classes at the places `chosen`, in that order."""
        sizes = self.sizes[chosen]
        shift = self.starts[chosen] - (np.cumsum(sizes) - sizes)  # (C,) from a new place to an old one
        return Classes(self.labels[chosen], sizes, self.rows[np.repeat(shift, sizes) + np.arange(sizes.sum())])

    def shuffled(self, rng: np.random.Generator) -> Classes:
        """The same classes in the same order, the images inside each in random order."""
        owner = np.repeat(np.arange(len(self)), self.sizes)  # (N,)
        return Classes(self.labels, self.sizes, self.rows[np.lexsort((rng.random(len(self.rows)), owner))])


class BatchSampler(ABC):
    """Batches, epoch after epoch; iterating continues from the current position to the end of the epoch.

    Pass one as `batch_sampler` of a `torch.utils.data.DataLoader`. The workers of a loader fetch ahead, and the
    position counts the batches fetched: to resume exactly, count the batches used and call `set_epoch(epoch, used)`.

    `classes` are those that batches are drawn from, `left_out` the labels of those that the sampler's rule cannot use;
    `full_batches` tells whether every batch has exactly `batch_size` images.
    """

    full_batches = True

    def __init__(self, labels: Indices, batch_size: int, seed: int) -> None:
        self.labels = np.asarray(labels)
        if self.labels.ndim != 1 or not np.issubdtype(self.labels.dtype, np.integer) or len(self.labels) == 0:
            raise InputError(
                f"labels must be a non-empty vector of integers; got {self.labels.dtype} {self.labels.shape}."
            )
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1; got {batch_size}.")
        if seed < 0:
            raise InputError(f"seed must be at least 0; got {seed}.")
        self.batch_size, self.seed = batch_size, seed
        self.epoch, self.position = 0, 0
        self.classes = Classes.of(self.labels)
        self.left_out = self.classes.labels[:0]

    @abstractmethod
    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        """All batches of one epoch, as indices into `labels`."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches in the epoch."""

    def set_epoch(self, epoch: int, position: int = 0) -> None:
        """Go to an epoch: to its start, or past its first `position` batches."""
        if epoch < 0:
            raise InputError(f"epoch must be at least 0; got {epoch}.")
        self.epoch, self.position = epoch, position
        if not 0 <= position <= len(self):
            raise InputError(f"position must lie in 0..{len(self)}, the batches of an epoch; got {position}.")

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.draw_epoch(self._rng())
        if self.position >= len(batches):  # the last batch was taken and nobody asked for another: Lightning does not
            self.set_epoch(self.epoch + 1)
            batches = self.draw_epoch(self._rng())
        while self.position < len(batches):
            self.position += 1
            yield batches[self.position - 1].tolist()
        self.set_epoch(self.epoch + 1)

    def state_dict(self) -> dict[str, int]:
        """The position of the sampler."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the position of another sampler of the same data."""
        if missing := {"seed", "epoch", "position"} - state.keys():
            raise InputError(f"state must hold seed, epoch and position; it lacks {', '.join(sorted(missing))}.")
        self.seed = state["seed"]
        self.set_epoch(state["epoch"], state["position"])

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch])

    def _leave_out(self, unusable: NDArray[np.bool_], why: str, needed: int, remedy: str) -> None:
        """Leave out the classes of the mask `unusable` (C,) and warn; InputError if fewer than `needed` remain."""
        self.left_out = self.classes.labels[unusable]
        self.classes = self.classes.take(np.flatnonzero(~unusable))
        lost = f"{len(self.left_out)} of {len(unusable)} classes are left out: they have {why}"
        self._require_classes(needed, f"{lost}. {remedy}" if len(self.left_out) else remedy)
        if len(self.left_out):
            warnings.warn(f"{lost}; `left_out` lists them.", SamplerWarning, stacklevel=3)

    def _require_classes(self, needed: int, remedy: str) -> None:
        if len(self.classes) < needed:
            raise InputError(f"a batch of {self.batch_size} needs {needed} classes; got {len(self.classes)}. {remedy}")
