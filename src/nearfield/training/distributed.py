"""Training with several processes, each with its share of the batch, as if one process had all of it.

Losses compare items with each other, so the loss of a batch is not the mean of the losses of its shares: every rank
gathers all embeddings, computes the loss of the whole batch, and backpropagates the gradient of its own rows.

    with process_group() as here:                            # started by torchrun, or the only process
        broadcast(model), broadcast(loss)
        value = of_all_ranks(loss)(model(images), labels)    # this rank's share; see `ShardedSampler`
        value.backward()
        sum_gradients(model.parameters(), besides=loss.parameters())
        optimizer.step()                                     # the same step on every rank

The caller applies no factor. The value is that of the whole batch, on every rank; `backward` through `gather` averages
the ranks' gradients, which are equal, so that each rank has dL/d(own rows); a network's gradient is the sum over rows,
hence the sum over ranks. The loss's parameters see all rows on every rank, so their gradient is complete already.
A loss created with `shard=True` holds its share of the proxies on each rank, which `broadcast` must leave as they are:
`broadcast(loss, besides=...)`; see `nearfield.training.sharding`.
Each rank draws its own dropout masks if seeded by rank; batch norm in training mode uses the statistics of its share.

Axes: n rows of this rank, N rows of all ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfield.errors import InputError, NearfieldError
from nearfield.metrics.sharded import gather_rows

T = TypeVar("T")
NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets beside WORLD_SIZE


class Place(NamedTuple):
    """The rank and device of this process."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")


@contextmanager
def process_group() -> Iterator[Place]:
    """Join the processes that torchrun started, over nccl if each has its own GPU and gloo otherwise; then leave.

    All leave together, so that none loses its connection; a process that fails leaves at once.
    """
    if "WORLD_SIZE" not in os.environ:
        yield Place(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        return
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise InputError(f"WORLD_SIZE is set but not {', '.join(missing)}; start with torchrun, or unset it.")
    # Its functions have the group of the moment of import as a default argument, and the first optimiser imports it. A
    # group that is held so outlives `destroy_process_group`, and gloo's threads then abort the exit of the interpreter.
    import_module("torch.distributed.nn.functional")

    local = int(os.environ["LOCAL_RANK"])
    if dist.is_nccl_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", local + 1)):
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)  # labels and flags never leave the CPU
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    try:
        yield Place(dist.get_rank(), dist.get_world_size(), device)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def is_distributed() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        whole, begin = gather_rows(x)
        ctx.own = slice(begin, begin + len(x))
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[ctx.own] / dist.get_world_size()


def gather(x: Tensor) -> Tensor:
    """The rows (n, ...) of all ranks in rank order, (N, ...); ranks may have different numbers of them.

    Differentiable: the gradient is that of the mean over ranks, so every rank must call backward.
    """
    return _Gather.apply(x) if is_distributed() else x  # type: ignore[no-untyped-call]


def gathered(rows: Tensor) -> Tensor:
    """The rows of all ranks in rank order, (N, ...), without a gradient: for labels, or embeddings to score."""
    return gather_rows(rows)[0] if is_distributed() else rows


def share_of(rows: int, place: Place) -> slice:
    """This rank's slice of that many rows; the slices of all ranks cover them in order."""
    first, last = (rows * rank // place.world_size for rank in (place.rank, place.rank + 1))
    return slice(first, last)


def require_equal(values: Mapping[str, Any]) -> None:
    """InputError on every rank, naming what differs, unless all ranks have the same values."""
    if not is_distributed():
        return
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, dict(values))
    wrong = [
        f"  {key}: {found[0].get(key)} on rank 0, {other.get(key)} on rank {rank}"
        for rank, other in enumerate(found)
        for key in {**found[0], **other}
        if other.get(key) != found[0].get(key)
    ]
    if wrong:
        head = "all processes of a run must have the same configuration and data, but they differ:"
        raise InputError("\n".join([head, *wrong[:20], "Start all of them with the same command and the same data."]))


def on_first_rank(work: Callable[[], T]) -> T:
    """What `work` returns on rank 0, on every rank; an error of Nearfield's that it raises is raised on every rank."""
    if not is_distributed():
        return work()
    box: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            box[0] = work()
        except NearfieldError as error:
            box[1] = error
    dist.broadcast_object_list(box, src=0)
    if box[1] is not None:
        raise box[1]
    found: T = box[0]
    return found


def any_rank(flag: bool) -> bool:
    """Whether `flag` is set on any rank; the same answer on every rank."""
    if not is_distributed():
        return flag
    said = torch.tensor(int(flag))
    dist.all_reduce(said, dist.ReduceOp.MAX)
    return bool(said)


def of_all_ranks(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The `loss` of the whole batch as a function of this rank's embeddings (n, D) and labels (n,)."""
    return lambda x, labels: loss(gather(x), gathered(labels))


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter], besides: Iterable[nn.Parameter] = ()) -> None:
    """Sum the gradients of `parameters` over all ranks, except those in `besides`: the loss's, which are complete.

    A gradient that is missing on some ranks counts as 0 there; one that is missing on all stays missing.
    """
    left_out = {id(p) for p in besides}
    mine = [p for p in parameters if p.requires_grad and id(p) not in left_out]
    if not is_distributed() or not mine:
        return
    if any(p.grad is not None and p.grad.layout != torch.strided for p in mine):
        raise InputError("parameters must have dense gradients to be summed; create their layers with sparse=False.")
    used = torch.tensor([p.grad is not None for p in mine], dtype=torch.int32)  # on the CPU: nobody waits for a device
    dist.all_reduce(used, dist.ReduceOp.MAX)
    learning = [p for p, any_rank in zip(mine, used.tolist(), strict=True) if any_rank]
    for _, group in groupby(sorted(learning, key=_kind), key=_kind):  # one message per dtype
        alike = list(group)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in alike]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        for p, grad, part in zip(alike, grads, flat.split([p.numel() for p in alike]), strict=True):
            p.grad = grad.copy_(part.view_as(grad))


def _kind(parameter: nn.Parameter) -> str:
    return f"{parameter.dtype} {parameter.device}"


@torch.no_grad()
def broadcast(module: nn.Module, besides: Iterable[nn.Parameter] = ()) -> None:
    """Give every rank the parameters and buffers of rank 0, except those parameters of which each has its own rows."""
    if not is_distributed():
        return
    left_out = {id(p) for p in besides}
    for tensor in (t for t in chain(module.parameters(), module.buffers()) if id(t) not in left_out):
        whole = tensor.contiguous()
        dist.broadcast(whole, 0)
        tensor.copy_(whole)
