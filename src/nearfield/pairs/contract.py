"""The contract between a loss and the engine: what a loss sees and what it returns. Authors of losses read this file.

For a block of queries a loss sees the measure between each query and its positives and negatives (`Block`), and returns
the value of each query with its derivative with respect to each of these entries (`Weighted`). The engine turns the
derivatives into the signed pair weights W = dL/dS and these into the gradients W R of the queries and W^T Q of the
references.

Two conventions keep every formula free of masks:

* whatever is not a negative of a query (itself, its positives, pairs removed by mining) is *infinitely far* in
  `Block.neg`, so that exp, hinge and softplus of it are exactly 0;
* a query with fewer positives than others of its block has the rest of its `Block.pos` row *infinitely near*.

Where a loss needs to know which entries are above something it compares in place, `x.gt_(0)`, and gets ones and zeros
in the dtype of x: selecting by a boolean mask costs ten times as much on a CPU.

Axes: M queries, N references, B queries of a block, P most positives of a query in the block, D dims, C classes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import TypedDict

from nearfield.errors import InputError
from nearfield.pairs.checks import poison
from nearfield.pairs.layout import Compared, arrange, pick_both
from nearfield.pairs.shards import WHOLE, Columns, Shard
from nearfield.pairs.stream import stream


@dataclass(frozen=True)
class Block:
    """Some queries against all references."""

    pos: Tensor  # (B, P) measure to the positives; padding is infinitely near
    neg: Tensor  # (B, N + 1) measure to the negatives; all else, and the padding column N, is infinitely far
    num_pos: Tensor  # (B,) how many entries of a `pos` row are real, in the block's dtype
    num_neg: Tensor  # (B,)
    labels: Tensor  # (B,) of the queries
    rows: Tensor  # (B,) index of each query in the caller's batch
    order: Tensor  # (B,) index of each query in label order, which is also the order of the columns
    pos_index: Tensor  # (B, P) column of each positive; padding points at column N
    present: Tensor  # () how many of all queries, not only of this block, have positives
    survey: Tensor  # result of the first sweep, for losses that `survey`
    dim: int  # D, the embedding size
    turn: Tensor  # () number of training calls so far: seeds random draws
    far: float  # +inf for distances, -inf for similarities
    measure: str  # what `pos` and `neg` hold
    norms: Tensor  # (B,) of the queries as they were given, before they were normalised; for losses with `row_norms`
    columns: Columns = WHOLE  # combines sums and maxima over `neg` where its columns are split over processes
    itself: Tensor | None = None  # (B, P) where `pos` is the query itself, for losses with `shows_self`

    @property
    def pos_mask(self) -> Tensor:
        """True where `pos` is a real positive, (B, P)."""
        return self.pos != -self.far

    @property
    def neg_mask(self) -> Tensor:
        """True where `neg` is a real negative, (B, N + 1)."""
        return self.neg != self.far


class Weighted(NamedTuple):
    """The value per query, and its derivative with respect to the measure of every pair."""

    value: Tensor  # (B,)
    pos: Tensor  # (B, P)
    neg: Tensor  # (B, N + 1)
    terms: Tensor | None = None  # (B,) what the sum is divided by under reduction "terms"
    params: tuple[Tensor, ...] = ()  # derivative with respect to each of the loss's `pair_parameters`
    norms: Tensor | None = None  # (B,) derivative with respect to `Block.norms`; None if they are constants


class Held(NamedTuple):
    """Vectors that belong to the loss, such as proxies, in ascending order of their labels."""

    vectors: Tensor  # (C, D)
    labels: Tensor  # (C,) on the CPU
    as_rows: bool = False  # whether they are the queries and the batch the references
    shard: Shard | None = None  # if other processes hold more of them
    joined: bool = False  # whether they and the batch together are the queries and the references


class Pairing(NamedTuple):
    """Which rows of a batch are queries and which are references, or stand for vectors made of several rows.

    All indices are on the CPU, as the labels are.
    """

    rows: Tensor  # (M,)
    columns: Tensor  # (N,)
    member: Tensor | None = None  # of each row of the batch, the reference that it is part of, or -1
    partner: Tensor | None = None  # (M,) of queries that are sums of two rows, the second: see `mixing`
    share: Tensor | None = None  # (M,) what the first row contributes to the sum, in float64


Miner = Callable[[Block], Block]
Reduction = Literal["sum", "batch", "usable", "terms"]


class EngineOptions(TypedDict, total=False):
    """Options that every pair loss takes in addition to its own parameters."""

    normalize: bool
    miner: Miner | None
    block_rows: int | None
    compile: bool
    check_finite: bool


class PairLoss(nn.Module):
    """A loss over the pairs of a batch: subclasses say what they compare (`measure`) and how they `weigh` it.

    The sum of `Weighted.value` over the queries is divided by 1 (`reduction` "sum"), by the number of queries
    ("batch"), of queries that have what the loss `needs` ("usable"), or by the sum of `Weighted.terms` ("terms").
    """

    normalized: ClassVar[bool] = True  # whether the method compares unit vectors
    needs: ClassVar[Literal["both", "positive", "nothing"]] = "both"  # what a query must have to count
    constant_weights: ClassVar[bool] = False  # whether some weights are constants by definition: W is no derivative
    own_batch: bool = False  # whether the method has no meaning for other references
    shows_self: bool = False  # whether a query of a batch is among its own positives, uncounted in `num_pos`
    combines_columns: ClassVar[bool] = False  # whether `weigh` reduces over `neg` by `block.columns` and not else
    row_norms: ClassVar[bool] = False  # whether it also depends on the norms of the queries, `Block.norms`
    block_type: ClassVar[type[Block]] = Block  # what the engine makes for `weigh` and `survey`
    measure: Literal["dot", "sqeuclidean", "euclidean", "snr", "hyperbolic"] = "dot"
    surveys: bool = False  # whether a first sweep must `survey` all rows
    reduction: Reduction = "batch"
    symmetric: bool = False  # whether queries and references of its `pairing` also swap roles: the mean of both
    turn: Tensor

    def __init__(
        self,
        *,
        normalize: bool | None = None,
        miner: Miner | None = None,
        block_rows: int | None = None,
        compile: bool = False,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        if block_rows is not None and block_rows < 1:
            raise InputError(f"block_rows must be at least 1, or None to let the engine choose; got {block_rows}.")
        self.normalize = type(self).normalized if normalize is None else normalize
        self.miner = miner
        self.block_rows = block_rows
        self.check_finite = check_finite
        self.last: dict[str, int] = {}  # how many anchors the last call had, and how many it could not use
        self.register_buffer("turn", torch.zeros((), dtype=torch.int64))  # training calls: seeds random draws
        self.compiled = compile

    def weigh(self, block: Block) -> Weighted:
        """Value and derivatives of one block: the method itself."""
        raise NotImplementedError

    def survey(self, block: Block) -> Tensor:
        """What must be known of all rows before any can be weighed, one row each; for losses with `surveys`."""
        raise NotImplementedError

    def gather_survey(self, parts: list[Tensor]) -> Tensor:
        """Join the surveys of all blocks; rows stay in label order, followed by one row for padding."""
        return torch.cat([*parts, parts[0].new_zeros(1, *parts[0].shape[1:])])

    def held(self, labels: Tensor) -> Held | None:
        """Vectors that belong to the loss, such as proxies, to compare a batch with these labels with."""
        return None

    def lift(self, queries: Tensor, references: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The vectors that are compared, as a differentiable function of those given, which they are by default."""
        return queries, references

    def observe(self, norms: Tensor) -> None:
        """Update what the loss knows of norms (M,), once per training call, for losses with `row_norms`."""

    def pairing(self, labels: Tensor) -> Pairing | None:
        """Which rows of a batch are queries and which are references; None (the default) if all are both."""
        return None

    def parts(self) -> tuple[PairLoss, ...]:
        """The losses that this one is the sum of: those that compare alike share a sweep over the blocks."""
        return (self,)

    def combine(self, x: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor | None]:
        """Query and reference vectors of a batch with a `pairing`; None if the queries are the references."""
        return pick_both(x, pairing.rows, pairing.columns)

    def unfold(self, weights: Tensor, pairing: Pairing, full: Tensor) -> Tensor:
        """Put the `weights` between the combined vectors where they belong in the batch's `full` (N, N) zeros."""
        full[pairing.rows[:, None], pairing.columns] = weights
        return full

    def penalty(self, queries: Tensor, references: Tensor) -> Tensor | None:
        """A term on the raw vectors outside the pairs, such as a norm penalty."""
        return None

    def pair_parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters whose derivatives `weigh` returns in `Weighted.params`."""
        return ()

    def forward(
        self,
        queries: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of `queries` (M, D) against `references` (N, D), or against each other; a 0-dim tensor.

        NaN if any vector contains NaN or infinity. Leave labels on the CPU, even if embeddings are on an accelerator:
        then no loss waits for it, except those whose description names a synchronisation.
        """
        parts = self.parts()
        if len(parts) > 1 and not _compare_alike(parts):
            each: list[Tensor] = [part(queries, labels, references, reference_labels) for part in parts]
            self.last = min((part.last for part in parts), key=lambda last: last["unusable_anchors"])
            return functools.reduce(torch.add, each)
        swaps = (False, True) if self.symmetric and references is None else (False,)
        given = (queries, labels, references, reference_labels)
        values = [self._value(queries, arrange(self, *given, swapped)) for swapped in swaps]
        return values[0] if len(values) == 1 else (values[0] + values[1]) / 2

    def against(self, queries: Tensor, labels: Tensor, held: Held) -> Tensor:
        """The loss of `queries` (M, D) against `held` in place of the vectors that belong to the loss."""
        return self._value(queries, arrange(self, queries, labels, None, None, held=held))

    def _value(self, given: Tensor, compared: Compared) -> Tensor:
        value = stream(self, compared)
        if not len(compared.queries):  # no row is in a pair, but one may not be finite
            value = value + poison(given)
        if type(self).penalty is PairLoss.penalty:
            return value
        penalty = self.penalty(*compared.raw())
        return value if penalty is None else value + penalty


def _compare_alike(parts: tuple[PairLoss, ...]) -> bool:
    """Whether losses compare the same vectors by one measure, and nothing of their own, so that a sweep serves all."""
    kinds = {(part.measure, part.normalize) for part in parts}
    own = [getattr(type(part), name) for part in parts for name in ("held", "pairing", "penalty")]
    return len(kinds) == 1 and {*own} <= {PairLoss.held, PairLoss.pairing, PairLoss.penalty}


# ---------------------------------------------------------------------------------------------------------------
# Arithmetic for `weigh`; `finite` and `over_distance` are in measures.py


def exp_(x: Tensor) -> Tensor:
    """exp x in place for x <= 0, exactly 0 where it would be less than 1e-34 (1e-299 in float64).

    The hardware takes a hundred times as long for results near the smallest number, and ten times for exp(-inf).
    """
    lowest = -80.0 if x.dtype == torch.float32 else -690.0
    return F.threshold(x.clamp_(min=lowest).exp_(), math.exp(lowest + 1), 0.0, inplace=True)


def log_sum_exp(*sides: Tensor, one: bool = False, columns: Columns = WHOLE) -> tuple[Tensor, ...]:
    """log(sum exp v) of each row over all `sides`, (B,), and the share exp v / sum exp v of each entry, per side.

    With `one`, log(1 + sum exp v). An empty row (all -inf) has value 0 and shares 0: its term is dropped. `columns` are
    those of the last side (`block.columns` for negatives).
    """
    tops = [v.amax(1, keepdim=True) for v in sides if v.shape[1]] or [sides[0].new_zeros(len(sides[0]), 1)]
    top = columns.top(functools.reduce(torch.maximum, tops))  # (B, 1)
    top = top.clamp_(min=0.0 if one else torch.finfo(top.dtype).min)  # finite for an empty row
    terms = [exp_(v - top) for v in sides]
    totals = [t.sum(1, keepdim=True) for t in terms] + ([top.neg().exp_()] if one else [])
    totals[len(sides) - 1] = columns.total(totals[len(sides) - 1])
    total = functools.reduce(torch.add, totals)  # (B, 1)
    if one:
        return (total.log() + top)[:, 0], *(t.div_(total) for t in terms)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    return (total.log() + top).masked_fill_(empty, 0.0)[:, 0], *(t.div_(total) for t in terms)


def barrier(mask: Tensor) -> Tensor:
    """0 where a mask of ones and zeros is 1, infinity where it is 0."""
    return mask.reciprocal().sub_(1)


def log_mask(mask: Tensor) -> Tensor:
    """The logarithm of ones and zeros: 0 and -inf, without the cost of a logarithm of 0."""
    return barrier(mask).neg_()


def rounding(s: Tensor) -> Tensor:
    """By how much equal similarities may differ: comparisons that decide something discrete treat this as a tie."""
    return s.abs().clamp_(min=1.0).mul_(64 * torch.finfo(s.dtype).eps)


def is_real(x: Tensor) -> Tensor:
    """1 where there is a pair, 0 where it is infinitely far or near, in the dtype of x."""
    return x.abs().lt_(math.inf)
