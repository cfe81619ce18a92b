"""Shards: vectors of a loss, such as proxies, split over the processes of a group, and what is combined over them.

Every process has all embeddings of the batch and its own part of the vectors. If these are the rows (`as_rows`), every
row is whole, and only sums over rows are combined. If they are the columns, each process sees a part of every row: a
loss that combines its sums and maxima by `Block.columns` is weighed where the columns are, and only numbers per row
travel; for any other loss the similarities of a block are gathered first.

Axes: B queries of a block, n columns of this process, N columns of all processes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Columns:
    """All columns of a block are in this process."""

    def total(self, x: Tensor) -> Tensor:
        """The sum over processes of what each has summed over its own columns; may overwrite `x`."""
        return x

    def top(self, x: Tensor) -> Tensor:
        """The maximum over processes of the maxima over their own columns; may overwrite `x`."""
        return x


class SplitColumns(Columns):
    """Each process of the group has some columns of a block, and all have the same rows."""

    def total(self, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    def top(self, x: Tensor) -> Tensor:
        dist.all_reduce(x, dist.ReduceOp.MAX)
        return x


WHOLE, SPLIT = Columns(), SplitColumns()


class Shard(NamedTuple):
    """Which of the vectors that a loss holds are in this process."""

    rank: int
    sizes: tuple[int, ...]  # number of vectors in each process, in the order of their labels
    each: int  # number of vectors with the same label

    @property
    def whole(self) -> int:
        """Number of vectors in all processes."""
        return sum(self.sizes)

    @property
    def own(self) -> slice:
        """The place of this process's vectors among all."""
        first = sum(self.sizes[: self.rank])
        return slice(first, first + self.sizes[self.rank])

    def gather(self, u: Tensor) -> Tensor:
        """The columns of all processes, (B, N + 1), from those of each, (B, n + 1); the last one is padding."""
        widest = max(self.sizes)
        padded = u.new_zeros(widest, len(u))
        padded[: u.shape[1] - 1] = u[:, :-1].T
        parts = [torch.empty_like(padded) for _ in self.sizes]
        dist.all_gather(parts, padded)
        return torch.cat([*(part[:n] for part, n in zip(parts, self.sizes, strict=True)), u[:, -1:].T]).T.contiguous()

    def keep(self, weights: Tensor) -> Tensor:
        """The columns of this process and one for padding, (B, n + 1), from all, (B, N + 1)."""
        return torch.cat([weights[:, self.own], weights[:, -1:]], 1)
