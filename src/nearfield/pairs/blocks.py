"""Blocks: some queries against all references, shown to the loss; its derivatives become pair weights W = dL/dS.

Columns are the references in label order, and one more, the padding column N, a zero vector: indices that stand for no
pair point at it, and its weights are 0.

Axes: M queries, N references, B queries of a block, P most positives of a query in the block, D dims.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfield.pairs.layout import Integers, Layout, layout_of_pattern, to_tensor, unusable
from nearfield.pairs.measures import BLOCK_ENTRIES, MEASURES, MIN_VARIANCE, squared_distances
from nearfield.pairs.shards import SPLIT, WHOLE

if TYPE_CHECKING:
    from nearfield.pairs.contract import Block, PairLoss

MIN_BLOCK_ROWS = 16  # fewer rows starve the matrix product


class BlockIndex(NamedTuple):
    """Which columns of a block are positives of its queries, and which are not negatives."""

    pos_index: Tensor  # (B, P) columns of the positives; padding points at column N
    own_index: Tensor  # (B, P + 2) columns that are not negatives: the positives, the query itself, column N
    padding: Tensor | None  # (B, P) where `pos_index` is padding, if any is
    itself: Tensor | None  # (B, P) where `pos_index` is the query itself, for losses that show it
    unusable: Tensor | None  # (B,) queries that lack what the loss needs, if any does
    num_pos: Tensor  # (B,)
    num_neg: Tensor  # (B,)
    labels: Tensor  # (B,)
    rows: Tensor  # (B,)
    order: Tensor  # (B,)
    present: Tensor  # ()
    split: bool  # whether the columns are split over processes: then `padding` marks positives of others


class Places(NamedTuple):
    """The part of a `BlockIndex` that follows from the sizes of the classes alone; shared by calls, never changed."""

    pos_index: Integers
    own_index: Integers
    padding: NDArray[np.bool_] | None
    itself: NDArray[np.bool_] | None
    unusable: NDArray[np.bool_] | None
    order: Integers


class Lengths(NamedTuple):
    """Norms of the vectors of a block; those that its loss does not need are empty."""

    rows: Tensor  # (B, 1) |q|^2 of the queries as compared, for measures that are squared distances
    columns: Tensor  # (N + 1,) |r|^2
    given: Tensor  # (B,) |q| of the queries as they were given, for losses with `row_norms`


class BlockResult(NamedTuple):
    """One weighed block: sums and weights, before division by the divisor."""

    value: Tensor  # ()
    terms: Tensor | int  # () what the block adds to the divisor, which is at least 1
    weights: Tensor  # (B, N + 1) dL/dS
    row_grad: Tensor  # (B, 1) 2 dL/d|q|^2, for measures that are squared distances
    column_grad: Tensor | None  # (N + 1,) 2 dL/d|r|^2 where that is not minus the sum of the weights of a column
    norms: Tensor | None  # (B,) dL/d|q| of the queries as they were given
    params: tuple[Tensor, ...]


def sweep(
    loss: PairLoss, layout: Layout, q: Tensor, r: Tensor, norms: Tensor
) -> Iterator[tuple[slice, Tensor, Lengths]]:
    """For each block of rows: its slice, u (B, N + 1) as its measure needs it, `Lengths`.

    `norms` (M,) are those of the queries as they were given, for losses with `row_norms`.
    """
    squared, shard = MEASURES[loss.measure].squared, layout.shard
    width = len(r)
    if shard is not None and layout.split != "rows":  # the same on every rank
        width = 1 + (shard.whole if layout.split == "gathered" else math.ceil(shard.whole / len(shard.sizes)))
    blocks = max(1, round(len(q) * width / BLOCK_ENTRIES))  # of equal height: a last one of few rows costs as much
    step = loss.block_rows or max(MIN_BLOCK_ROWS, math.ceil(len(q) / blocks))
    column_sq = r.square().sum(1) if squared else None  # (N + 1,)
    nothing = q.new_empty(0)
    for begin in range(0, len(q), step):
        at = slice(begin, min(begin + step, len(q)))
        if column_sq is None:
            u, lengths = q[at] @ r.T, Lengths(nothing, nothing, norms[at] if loss.row_norms else nothing)
        else:
            row_sq = q[at].square().sum(1, keepdim=True)
            u = squared_distances(q[at], r, row_sq, column_sq, at if layout.own else None)
            if loss.measure == "snr":
                row_sq = row_sq.clamp_(min=MIN_VARIANCE * q.shape[1])
            lengths = Lengths(row_sq, column_sq, norms[at])
        if shard is not None and layout.split == "gathered":
            u = shard.gather(u)
        yield at, u, lengths


def index_of(loss: PairLoss, layout: Layout, at: slice, like: Tensor) -> BlockIndex:
    """Which columns the loss sees as positives of the queries of a block."""
    if layout.pattern is None:
        places = _places(layout, at, loss.needs, loss.shows_self)
    else:
        count = len(layout.rows)
        places = _known_places(layout.pattern, count, at.start, at.stop, loss.needs, loss.shows_self)
    pos_index, own_index, padding, itself, lacking, order = places
    real = np.float64 if like.dtype == torch.float64 else np.float32
    return BlockIndex(
        to_tensor(pos_index, like),
        to_tensor(own_index, like),
        None if padding is None else to_tensor(padding, like),
        None if itself is None else to_tensor(itself, like),
        None if lacking is None else to_tensor(lacking, like),
        to_tensor(layout.num_pos[at].astype(real), like),
        to_tensor(layout.num_neg[at].astype(real), like),
        to_tensor(layout.labels[at], like),
        to_tensor(layout.rows[at], like),
        to_tensor(order, like),
        like.new_full((), layout.present),
        layout.split == "columns",
    )


@functools.lru_cache(maxsize=8)
def _known_places(pattern: bytes, count: int, first: int, last: int, needs: str, shows_self: bool) -> Places:
    return _places(layout_of_pattern(pattern, count), slice(first, last), needs, shows_self)


def _places(layout: Layout, at: slice, needs: str, shows_self: bool) -> Places:
    start, stop = layout.start[at, None], layout.stop[at, None]  # (B, 1)
    split = layout.split == "columns"
    longest = layout.shard.each if layout.shard and split else int((stop - start).max())
    padding_column, order = len(layout.columns), np.arange(at.start, at.stop)
    own_index = start + np.arange(longest + 1)
    pos_index = own_index[:, :longest]
    if layout.own and not shows_self:  # step over the query itself
        pos_index = pos_index[:, :-1] + (pos_index[:, :-1] >= order[:, None])
    padding = pos_index >= stop
    lacking = unusable(needs, layout.num_pos[at], layout.num_neg[at])
    return Places(
        np.where(padding, padding_column, pos_index),
        np.where(own_index >= stop, padding_column, own_index),
        padding if split or padding.any() else None,
        pos_index == order[:, None] if layout.own and shows_self else None,
        lacking if lacking.any() else None,
        order,
    )


def show(loss: PairLoss, dim: int, u: Tensor, lengths: Lengths, index: BlockIndex, survey: Tensor) -> Block:
    """The block as the loss sees it; `u` is overwritten."""
    measure = MEASURES[loss.measure]
    x = measure.forward(u, lengths.rows, lengths.columns)
    pos = x.gather(1, index.pos_index)
    if index.padding is not None:
        pos.masked_fill_(index.padding, 0.0 if index.split else -measure.far)
    pos = SPLIT.total(pos) if index.split else pos  # each from the process that has it
    neg = x.scatter_(1, index.own_index, measure.far)
    block = loss.block_type(
        pos,
        neg,
        index.num_pos,
        index.num_neg,
        index.labels,
        index.rows,
        index.order,
        index.pos_index,
        index.present,
        survey,
        dim,
        loss.turn,
        measure.far,
        loss.measure,
        lengths.given,
        columns=SPLIT if index.split else WHOLE,
        itself=index.itself,
    )
    return block if loss.miner is None else loss.miner(block)


def weigh(loss: PairLoss, block: Block, lengths: Lengths, index: BlockIndex) -> BlockResult:
    """Weigh one block and turn the derivatives with respect to the measure into those with respect to S."""
    measure, (a, b, _) = MEASURES[loss.measure], lengths
    value, pos, neg, terms, params, norms = loss.weigh(block)
    if index.split and index.padding is not None:
        pos = pos.masked_fill(index.padding, 0.0)  # the process that has the positive has its weight
    b_pos = b if measure.stretch is None else b[index.pos_index]
    pos, neg = measure.to_dot(pos, block.pos, a, b_pos), measure.to_dot(neg, block.neg, a, b)
    lacking = index.unusable
    if loss.miner is not None and loss.needs != "nothing":  # the miner may have removed what it needs
        lacking = unusable(loss.needs, block.num_pos, block.num_neg)  # (B,)
        if lacking.device.type == "cpu" and not torch.compiler.is_compiling() and not lacking.any():
            lacking = None  # elsewhere it costs less to fill than to wait for the answer
    if lacking is not None:
        pos.masked_fill_(lacking[:, None], 0.0)
        neg.masked_fill_(lacking[:, None], 0.0)
        value = value.masked_fill(lacking, 0.0)
        norms = None if norms is None else norms.masked_fill(lacking, 0.0)
    row_grad, column_grad = a, None
    if measure.squared and measure.stretch is None:
        clamped = a <= MIN_VARIANCE * block.dim
        row_grad = measure.to_norm(pos, block.pos, clamped) + measure.to_norm(neg, block.neg, clamped)
    weights = neg.scatter_(1, index.own_index, 0.0).scatter_(1, index.pos_index, pos)
    if index.padding is not None:
        weights[:, -1] = 0.0
    if measure.stretch is not None:
        near, far = (x.masked_fill(x.isinf(), 0.0) for x in (block.pos, block.neg))  # their weights are 0
        rows, columns = measure.stretch(far.scatter_(1, index.pos_index, near), a, b)
        row_grad, column_grad = -(rows * weights).sum(1, keepdim=True), -(columns * weights).sum(0)
    divisor = divisor_of(loss, value, terms, lacking)
    return BlockResult(value.sum(), divisor, weights, row_grad, column_grad, norms, params)


def divisor_of(loss: PairLoss, value: Tensor, terms: Tensor | None, lacking: Tensor | None) -> Tensor | int:
    """What the rows of a block (B,) add to the divisor of the sum of their values."""
    if loss.reduction in ("sum", "batch"):
        return len(value) if loss.reduction == "batch" else 0
    if terms is None or loss.reduction == "usable":
        if lacking is None:
            return len(value)
        terms = torch.ones_like(value)
    return (terms if lacking is None else terms.masked_fill(lacking, 0.0)).sum()


def show_and_weigh(
    loss: PairLoss, dim: int, u: Tensor, lengths: Lengths, index: BlockIndex, survey: Tensor
) -> BlockResult:
    """Both steps together: what `compile=True` compiles."""
    return weigh(loss, show(loss, dim, u, lengths, index, survey), lengths, index)
