"""Evaluation over several processes: each rank brings a shard, scores its queries against all, and gets all results.

Axes: n rows of this rank, N rows of all ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from nearfield.errors import InputError


def require_group() -> None:
    """Refuse to run distributed without an initialised process group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError(
            "distributed must be False unless torch.distributed is initialised; call init_process_group first, "
            "or start the script with torchrun."
        )


def gather_rows(rows: Tensor) -> tuple[Tensor, int]:
    """The rows of all ranks in rank order, (N, ...), and where this rank's rows begin; shards may differ in length."""
    count = torch.tensor([rows.shape[0]], device=rows.device)
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    sizes = [int(size) for size in counts]
    padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
    return whole, sum(sizes[: dist.get_rank()])


def gather_array(values: NDArray[Any]) -> NDArray[Any]:
    """The arrays of all ranks joined in rank order."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values)
    return np.concatenate(parts)


def from_first(values: dict[str, float]) -> dict[str, float]:
    """Rank 0's values on every rank."""
    box = [values]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def is_first() -> bool:
    """Whether this process is rank 0."""
    return bool(dist.get_rank() == 0)
