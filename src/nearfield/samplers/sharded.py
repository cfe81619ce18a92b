"""One batch for many processes: every rank draws the same global batch and takes its share."""

from __future__ import annotations

import numpy as np

from nearfield.errors import InputError
from nearfield.samplers.base import BatchSampler, Indices


class ShardedSampler(BatchSampler):
    """The share of one rank: of the b images of each global batch those from rank * b / world_size on.

    The shares of all ranks have equal size; gathered in the order of ranks they are exactly the global batch. The state
    starts as that of the given sampler and is the same on every rank.
    """

    def __init__(self, sampler: BatchSampler, rank: int, world_size: int) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise InputError(f"rank must lie in 0..world_size - 1; got rank {rank} of {world_size}.")
        if sampler.batch_size % world_size:
            found = f"got {sampler.batch_size} and {world_size}"
            raise InputError(f"batch_size must be a multiple of world_size, for equal shares; {found}.")
        if not sampler.full_batches:
            raise InputError(
                "sampler must have batches of one size, for equal shares; set drop_last, unset keep_class_whole."
            )
        super().__init__(sampler.labels, sampler.batch_size // world_size, sampler.seed)
        self.sampler, self.rank, self.world_size = sampler, rank, world_size
        self.classes, self.left_out = sampler.classes, sampler.left_out
        self.load_state_dict(sampler.state_dict())

    def __len__(self) -> int:
        return len(self.sampler)

    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        share = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        return [batch[share] for batch in self.sampler.draw_epoch(rng)]
