"""Pairs given one by one instead of by labels: any list of positives and negatives, weighed by the same losses.

The lists of all queries become one block, which `weigh` sees as it sees any other: a pair listed twice counts twice. So
this is exact for every list, and takes memory for the lists; what labels or a miner can say is better streamed. Where
the measure of the pairs comes from is the caller's business: its gradient is left to autograd.

Axes: T listed pairs, B queries, P and K most positives and negatives of a query.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nearfield.errors import InputError
from nearfield.pairs.blocks import divisor_of
from nearfield.pairs.checks import poison
from nearfield.pairs.contract import Block, PairLoss
from nearfield.pairs.layout import unusable


class Side(NamedTuple):
    """The listed positives, or negatives, of all queries."""

    values: Tensor  # (T,) the measure of each pair
    rows: Tensor  # (T,) its query, 0 ... B - 1


class Slots(NamedTuple):
    """Where listed pairs stand in a block."""

    rows: Tensor  # (T,)
    columns: Tensor  # (T,) how many pairs of the same query are listed before it
    counts: Tensor  # (B,) pairs of each query


def listed_loss(loss: PairLoss, pos: Side, neg: Side, labels: Tensor, far: float, out_of: int | None = None) -> Tensor:
    """The value of `loss` over listed pairs, a 0-dim tensor, differentiable with respect to their measures.

    labels   (B,) of the queries, for losses with parameters of a class
    far      what is infinitely far in the sense of the loss: +inf if it sees distances, -inf if similarities
    out_of   what the sum is divided by, where that is not the loss's own divisor
    """
    if loss.own_batch or loss.shows_self or loss.row_norms or type(loss).weigh is PairLoss.weigh:
        raise InputError(f"{type(loss).__name__} needs the whole batch; it cannot be computed over listed pairs.")
    plan = Plan(loss, slots(pos.rows, len(labels)), slots(neg.rows, len(labels)), labels, far, out_of)
    found = _Listed.apply(plan, pos.values, neg.values, *loss.pair_parameters())  # type: ignore[no-untyped-call]
    return cast(Tensor, found)


def slots(rows: Tensor, queries: int) -> Slots:
    """The place of each listed pair, whose queries are `rows` (T,), in a block."""
    counts = torch.bincount(rows, minlength=queries)
    first = counts.cumsum(0) - counts
    columns = torch.empty_like(rows)
    order = rows.argsort(stable=True)
    columns[order] = torch.arange(len(rows), device=rows.device) - first.repeat_interleave(counts)
    return Slots(rows, columns, counts)


class Plan(NamedTuple):
    """What `_Listed` does with the measures that it is given."""

    loss: PairLoss
    pos: Slots
    neg: Slots
    labels: Tensor
    far: float
    out_of: int | None


def _block(plan: Plan, pos: Tensor, neg: Tensor) -> Block:
    """The one block of all queries; the last column of `neg` is padding, as everywhere."""
    queries, width = (
        len(plan.labels),
        [int(side.counts.max()) if len(side.rows) else 0 for side in (plan.pos, plan.neg)],
    )
    near = pos.new_full((queries, width[0]), -plan.far).index_put_((plan.pos.rows, plan.pos.columns), pos)
    away = neg.new_full((queries, width[1] + 1), plan.far).index_put_((plan.neg.rows, plan.neg.columns), neg)
    every = torch.arange(queries, device=pos.device)
    index = torch.full(near.shape, width[1], device=pos.device)
    measure = "euclidean" if plan.far > 0 else "dot"
    counts = plan.pos.counts.to(pos.dtype), plan.neg.counts.to(pos.dtype)
    present = (counts[0] > 0).sum()
    block = plan.loss.block_type(
        near, away, *counts, plan.labels, every, every, index, present, pos.new_empty(0), 1, plan.loss.turn, plan.far,
        measure, pos.new_empty(0),
    )  # fmt: skip
    if plan.loss.surveys:
        block = replace(block, survey=plan.loss.gather_survey([plan.loss.survey(block)]))
    return block


class _Listed(torch.autograd.Function):
    """Inputs are the measures of positives and negatives, and the loss's parameters."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, pos: Tensor, neg: Tensor, *parameters: Tensor) -> Tensor:
        loss = plan.loss
        block = _block(plan, pos, neg)
        value, to_pos, to_neg, terms, params, _ = loss.weigh(block)
        lacking = unusable(loss.needs, block.num_pos, block.num_neg)
        value = value.masked_fill(lacking, 0.0)
        whole = divisor_of(loss, value, terms, lacking) if plan.out_of is None else plan.out_of
        whole = torch.as_tensor(whole, dtype=value.dtype, device=value.device).clamp(min=1) + poison(pos) + poison(neg)
        grads = [
            (each[at.rows, at.columns].masked_fill_(lacking[at.rows], 0.0) / whole).to(given.dtype)
            for each, at, given in ((to_pos, plan.pos, pos), (to_neg, plan.neg, neg))
        ]
        ctx.save_for_backward(*grads, *((part / whole).to(p.dtype) for part, p in zip(params, parameters, strict=True)))
        return value.sum() / whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, *(grad * each for each in ctx.saved_tensors)
