"""What losses against learned proxies share: the proxies themselves, sampling and splitting of classes, cross-entropy.

Axes: B queries of a block, C classes, D dims. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.errors import InputError
from nearfield.losses.parameters import Classes, Count, Dim, Params
from nearfield.pairs import (
    WHOLE,
    Columns,
    EngineOptions,
    Held,
    PairLoss,
    Shard,
    check_classes,
    finite,
    integers,
    is_real,
    log_sum_exp,
)
from nearfield.pairs.mining import uniforms

DRAWN = 1 << 20  # numbers drawn at a time to start proxies of which this process holds a part
Smoothed = Literal["all", "others"]  # classes over which label smoothing spreads its share


class ProxyOptions(EngineOptions, total=False):
    """Options that every proxy loss takes in addition to its own parameters."""

    sample: Count | None
    sparse: bool
    shard: bool


class ProxyLoss(PairLoss):
    """A pair loss that compares a batch with learned `proxies` (C, D), one row (or several centers) for each class.

    For very many classes: with `sample`, a training step compares with that many classes, those of the batch and random
    others (Partial FC, An et al., CVPR 2022); with `sparse`, the gradient of the proxies is a sparse tensor of the rows
    in use, and an optimiser for sparse gradients (SGD, SparseAdam) updates only those. With `shard`, each process of
    torch.distributed's group holds the proxies of its share of the classes, `classes`, and only their gradient and
    optimiser state: value and gradients are those of one process with all of them. Every process must call the loss
    with the embeddings of all, as `nearfield.training.distributed.of_all_ranks` does; `split_parameters` says what is
    split. With `sample` the classes drawn are fetched, one synchronisation with an accelerator in each step.
    """

    own_batch = True
    splits: ClassVar[bool] = True  # whether the method can do with a share of the proxies in each process

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        centers: Count = 1,
        *,
        sample: Count | None = None,
        sparse: bool = False,
        shard: bool = False,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.num_classes, self.centers, self.sample, self.sparse = num_classes, centers, sample, sparse
        if shard and not type(self).splits:
            raise InputError(f"shard must be False for {type(self).__name__}, which needs all proxies; got True.")
        together = shard and dist.is_available() and dist.is_initialized()
        self.rank, ranks = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        self.bounds = [num_classes * rank // ranks for rank in range(ranks + 1)]  # first class of each process
        self.classes = range(self.bounds[self.rank], self.bounds[self.rank + 1])  # of this process
        try:
            self.proxies = nn.Parameter(
                torch.empty(len(self.classes) * centers, dim)
            )  # the centers of a class are neighbours
        except RuntimeError as error:
            size = f"{len(self.classes) * centers:,} x {dim:,}"
            raise InputError(f"proxies must fit into memory; got {size} numbers. Lower num_classes or dim.") from error
        if self.is_split:
            _start_part(self.proxies, self.classes.start * centers, num_classes * centers)
        else:
            nn.init.kaiming_normal_(self.proxies, mode="fan_out")

    @property
    def is_split(self) -> bool:
        """Whether other processes hold some of the proxies."""
        return len(self.bounds) > 2

    @staticmethod
    def check_together(params: Params) -> None:
        sample, num_classes = params.get("sample"), params["num_classes"]
        if sample is not None and sample > num_classes:
            raise InputError(f"sample must be at most num_classes = {num_classes}, or None for all; got {sample}.")
        if params.get("shard") and params.get("compile"):
            raise InputError(
                "compile must be False with shard: compiled code does not talk to other processes; got True."
            )

    @staticmethod
    def learned_numbers(params: Params) -> int:
        return int(params["num_classes"] * params.get("centers", 1) * params["dim"])

    def held(self, labels: Tensor) -> Held:
        check_classes(labels, self.num_classes)
        if self.sample is None or not self.training:
            every = torch.arange(len(self.proxies), device=self.proxies.device) if self.sparse else None
            vectors = self.proxies if every is None else F.embedding(every, self.proxies, sparse=True)
            known = torch.arange(self.classes.start, self.classes.stop)
            return Held(vectors, known.repeat_interleave(self.centers), shard=self._shard(self.bounds))
        chosen = self._choose(labels)  # (S,)
        first = np.searchsorted(integers(chosen), self.bounds).tolist()  # of each process
        mine = chosen[first[self.rank] : first[self.rank + 1]]
        rows = ((mine - self.classes.start)[:, None] * self.centers + torch.arange(self.centers)).flatten()
        vectors = F.embedding(rows.to(self.proxies.device, non_blocking=True), self.proxies, sparse=self.sparse)
        return Held(vectors, mine.repeat_interleave(self.centers), shard=self._shard(first))

    def _shard(self, first: list[int]) -> Shard | None:
        """What each process holds, from the first class of each; None if this one holds all."""
        sizes = (self.centers * (stop - start) for start, stop in pairwise(first))
        return Shard(self.rank, tuple(sizes), self.centers) if self.is_split else None

    def over_processes(self, part: Tensor) -> Tensor:
        """The sum over processes of a term on their own proxies, differentiable: for `penalty`."""
        return _Total.apply(part) if self.is_split else part  # type: ignore[no-untyped-call]

    def choices(self, labels: Tensor) -> int:
        """How many classes a batch with these labels is compared with in training."""
        return max(self.sample or self.num_classes, len(labels.unique()))

    def _choose(self, labels: Tensor) -> Tensor:
        """The classes of the batch and random others, ascending, on the CPU."""
        device = self.proxies.device
        every = torch.arange(self.num_classes, device=device)
        luck = uniforms(0, self.turn, every, 1)[:, 0]  # (C,)
        luck[labels.to(device, non_blocking=True)] = 2.0
        count = max(self.sample or 0, len(labels.unique()))
        return luck.topk(count).indices.sort().values.cpu()


class _Total(torch.autograd.Function):
    """Sum over processes; the gradient of the sum with respect to the own part is that of the value."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        whole = part.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@torch.no_grad()
def _start_part(proxies: Tensor, first: int, rows: int) -> None:
    """Start a part, from row `first` on, of a matrix of `rows` as `kaiming_normal_` starts all of it: draw everything,
    some at a time, and keep the part. (torch draws normal numbers by 16 at least.)
    """
    size, begin, part = rows * proxies.shape[1], first * proxies.shape[1], proxies.view(-1)
    std = math.sqrt(2 / rows)
    starts = [start for start in range(0, size, DRAWN) if start == 0 or size - start >= 16]
    for start, stop in zip(starts, [*starts[1:], size], strict=True):
        drawn = torch.empty(stop - start).normal_(0, std)
        low, high = max(start, begin), min(stop, begin + part.numel())
        if low < high:
            part[low - begin : high - begin] = drawn[low - start : high - start]


def split_parameters(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """The parameters of a module of which each process holds some rows: how many each of them holds."""
    found = {}
    for name, part in module.named_modules():
        if isinstance(part, ProxyLoss) and part.is_split:
            shard = part._shard(part.bounds)
            found[f"{name}.proxies".lstrip(".")] = shard.sizes if shard else ()
    return found


def within_batch(build: type[nn.Module]) -> bool:
    """Whether a class of losses compares the items of a batch with each other, and with nothing that it holds."""
    return issubclass(build, PairLoss) and not issubclass(build, ProxyLoss)


def cross_entropy(
    pos: Tensor,
    neg: Tensor,
    smoothing: float = 0.0,
    with_positive: bool = True,
    over: Smoothed = "all",
    columns: Columns = WHOLE,
) -> tuple[Tensor, Tensor, Tensor]:
    """-log softmax at the one positive of each row, (B,), and its derivatives; `pos` (B, 1) and `neg` are logits.

    With `smoothing` e the target is 1 - e + e/C at the positive and e/C elsewhere, or 1 - e and e/(C - 1) if it is over
    the others only. Without `with_positive` the softmax is over the negatives alone. `columns` are the block's.
    """
    if with_positive:
        whole, pos_share, neg_share = log_sum_exp(pos, neg, columns=columns)
    else:
        whole, neg_share = log_sum_exp(neg, columns=columns)
        pos_share = torch.zeros_like(pos)
    if not smoothing:
        return whole - pos[:, 0], pos_share - 1, neg_share
    real = is_real(neg)
    others = columns.total(real.sum(1, keepdim=True))  # (B, 1)
    aside = smoothing / (others + 1 if over == "all" else others.clamp(min=1))  # (B, 1) target of each other class
    target = 1 - aside * others
    value = whole - target[:, 0] * pos[:, 0] - aside[:, 0] * columns.total((finite(neg) * real).sum(1))
    return value, pos_share - target, neg_share - aside * real
