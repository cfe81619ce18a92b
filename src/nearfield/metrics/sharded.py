"""Evaluation over several processes: each rank brings a shard, scores its queries against all, and gets all results.

A shard may be empty. An error of one rank is raised on all of them, so that none waits for the others for ever.

Axes: n rows of this rank, N rows of all ranks, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from nearfield.errors import InputError, NearfieldError

T = TypeVar("T")


def require_group() -> None:
    """Refuse to run distributed without an initialised process group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError(
            "distributed must be False unless torch.distributed is initialised; call init_process_group first, "
            "or start the script with torchrun."
        )


def on_all_ranks(check: Callable[[], T], call: object) -> T:
    """The result of `check` on this rank; InputError on every rank if any fails, or if their `call`s differ."""
    try:
        result, problem = [check()], None
    except InputError as error:
        result, problem = [], str(error)
    calls, problems = zip(*_gather_objects((call, problem)), strict=True)
    for rank, other in enumerate(calls):
        if other != calls[0]:
            raise InputError(f"rank {rank} was called with other arguments than rank 0; got {other} and {calls[0]}.")
    for rank, other in enumerate(problems):
        if other is not None:
            raise InputError(f"rank {rank}: {other}")
    return result[0]


def gather_rows(rows: Tensor) -> tuple[Tensor, int]:
    """The rows of all ranks in rank order, (N, ...), and where this rank's rows begin; shards may differ in length."""
    by_cpu = "cpu:" in dist.get_backend_config()  # where the group can, so that nobody waits for an accelerator
    count = torch.tensor([rows.shape[0]], device="cpu" if by_cpu else rows.device)
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    sizes = [int(size) for size in counts]
    padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
    return whole, sum(sizes[: dist.get_rank()])


def gather_matrix(rows: Tensor, argument: str) -> tuple[Tensor, int]:
    """`gather_rows` of matrices (n, D), of which those without rows may have any width, type and device."""
    kinds = [kind for kind in _gather_objects((len(rows), rows.shape[1], rows.dtype, rows.device.type)) if kind[0]]
    if not kinds:
        raise InputError(f"{argument} must hold at least one row; the shards of all ranks are empty.")
    _, widths, dtypes, devices = (list(dict.fromkeys(values)) for values in zip(*kinds, strict=True))
    if len(widths) > 1:
        listed = ", ".join(str(width) for width in sorted(widths))
        raise InputError(f"{argument} must have as many dimensions on every rank; got {listed}.")
    if torch.uint8 in dtypes and len(dtypes) > 1:
        raise InputError(f"{argument} must hold packed bits on every rank or on none; got {dtypes}.")
    if not len(rows):
        rows = rows.new_zeros((0, widths[0]), device=devices[0])
    return gather_rows(rows.to(reduce(torch.promote_types, dtypes)))


def gather_labels(labels: NDArray[Any], argument: str) -> NDArray[Any]:
    """The labels of all ranks in rank order."""
    parts = [part for part in _gather_objects(labels) if len(part)]
    if len({part.dtype.kind == "U" for part in parts}) > 1:
        raise InputError(f"{argument} must be of one kind on all ranks; got integers on some and strings on others.")
    return np.concatenate(parts) if parts else labels


def from_first_rank(compute: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What rank 0 computes, on every rank; its errors too."""
    box: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            box = [compute()]
        except NearfieldError as error:
            box = [error]
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], NearfieldError):
        raise box[0]
    found: dict[str, float] = box[0]
    return found


def _gather_objects(value: T) -> list[T]:
    """The values of all ranks in rank order."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, value)
    return parts
