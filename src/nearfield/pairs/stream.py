"""The stream: value and gradient in one sweep over the blocks (two for losses that survey), and all pair weights.

Value and gradients are computed together, since the weights of a block exist only while it is being weighed: nothing of
size M x N exists. Autograd sees one operation, from the vectors given to the loss to its value.

Axes: M queries, N references, D dims.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from nearfield.errors import NearfieldError
from nearfield.pairs.blocks import BlockResult, index_of, show, show_and_weigh, sweep, weigh
from nearfield.pairs.checks import no_vmap, poison
from nearfield.pairs.layout import Compared, Layout, Vectors, arrange, no_autocast, prepare, prepare_backward, to_tensor
from nearfield.pairs.measures import MEASURES
from nearfield.pairs.shards import SPLIT

if TYPE_CHECKING:
    from nearfield.pairs.contract import PairLoss


def stream(loss: PairLoss, compared: Compared) -> Tensor:
    """The value of a loss, without its penalty, as one differentiable operation; a 0-dim tensor."""
    parameters = [p for part in loss.parts() for p in part.pair_parameters()]
    inputs = (compared.queries, compared.references, *parameters)
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    plan = Plan(loss, compared.layout, compared.poison, needs_grad)
    return cast(Tensor, _Stream.apply(plan, *inputs)[0])  # type: ignore[no-untyped-call]


@functools.cache
def _compiled(kind: str) -> Callable[..., BlockResult]:
    """`show_and_weigh` compiled for one class of losses: a copy of it, as torch keeps compiled variants by code."""
    copy = types.FunctionType(show_and_weigh.__code__.replace(), show_and_weigh.__globals__, f"show_and_weigh_{kind}")
    return torch.compile(copy, dynamic=True)


def _results(loss: PairLoss, layout: Layout, sides: Sides) -> Iterator[tuple[slice, list[BlockResult]]]:
    """For each block of rows what each part of the loss makes of it."""
    q, r, norms = sides.q, sides.r, sides.by_row.given
    parts, dim = loss.parts(), q.shape[1]
    surveys = [q.new_empty(0)] * len(parts)
    if any(part.surveys for part in parts):
        found = [Kept() for _ in parts]
        for at, u, lengths in sweep(loss, layout, q, r, norms):
            alone = at.stop - at.start == len(q)  # a single block need not be made again
            indices = [index_of(part, layout, at, q) for part in parts]
            blocks = [
                show(part, dim, _own(u, parts), lengths, index, surveys[0]) if part.surveys or alone else None
                for part, index in zip(parts, indices, strict=True)
            ]
            for part, block, seen in zip(parts, blocks, found, strict=True):
                if part.surveys and block is not None:
                    seen.add(part.survey(block), math.ceil(len(q) / (at.stop - at.start)))
        surveys = [
            part.gather_survey(seen.all()) if seen.shapes else q.new_empty(0)
            for part, seen in zip(parts, found, strict=True)
        ]
        if alone:
            shown = [replace(block, survey=survey) for block, survey in zip(blocks, surveys, strict=True) if block]
            given = zip(parts, shown, indices, strict=True)
            yield at, [weigh(part, block, lengths, index) for part, block, index in given]
            return
    for at, u, lengths in sweep(loss, layout, q, r, norms):
        results = []
        for part, survey in zip(parts, surveys, strict=True):
            result = _compiled(type(part).__qualname__) if part.compiled and not layout.split else show_and_weigh
            weighed = result(part, dim, _own(u, parts), lengths, index_of(part, layout, at, q), survey)
            if layout.shard is not None and layout.split == "gathered":  # every process has weighed all columns
                share = weighed.row_grad / len(layout.shard.sizes)
                weighed = weighed._replace(weights=layout.shard.keep(weighed.weights), row_grad=share)
            results.append(weighed)
        yield at, results


class Kept:
    """What is kept of every block until the last one, in one piece of memory, made with the first.

    Small arrays that outlive their block, one a block, tear holes into the memory of the blocks: at 16,384 rows a
    process grew by hundreds of megabytes for them.
    """

    def __init__(self) -> None:
        self.shapes: list[torch.Size] = []
        self._rows = torch.empty(0)

    def add(self, x: Tensor, blocks: int) -> None:
        """Keep `x` of one of so many blocks, of which the first is the largest."""
        if not self.shapes:
            self._rows = x.new_empty(blocks, x.numel())
        self._rows[len(self.shapes), : x.numel()] = x.flatten()
        self.shapes.append(x.shape)

    def all(self) -> list[Tensor]:
        """What was kept, in the order of the blocks."""
        return [row[: shape.numel()].view(shape) for row, shape in zip(self._rows, self.shapes, strict=False)]


def _own(u: Tensor, parts: Sequence[PairLoss]) -> Tensor:
    """Entries that a part may overwrite: a copy if there are other parts."""
    return u if len(parts) == 1 else u.clone()


class Sides(NamedTuple):
    """Queries and references as they are compared."""

    by_row: Vectors
    by_column: Vectors | None  # None when the queries are the references
    q: Tensor  # (M, D) finite
    r: Tensor  # (N + 1, D) finite; the last row, for the padding column, is 0
    poison: Tensor  # () 0, or NaN if any vector is not finite


def _sides(loss: PairLoss, layout: Layout, bad: Tensor | None, queries: Tensor, references: Tensor | None) -> Sides:
    """NaN must reach the result though comparisons with NaN are False, so that miners and hinges drop it: the divisor
    brings it there, and what is compared is finite. The gradients are NaN too: a gradient scaler skips the step.
    """
    by_row, by_column = prepare(loss, layout, bad is not None, queries, references)
    if bad is None:
        bad = poison(queries) if references is None else poison(queries) + poison(references)
    if layout.split:
        bad = SPLIT.total(bad)
    r = F.pad((by_column or by_row).x, (0, 0, 0, 1)).nan_to_num_(0.0, 0.0, 0.0)
    q = r[:-1] if by_column is None else torch.nan_to_num(by_row.x, 0.0, 0.0, 0.0)
    return Sides(by_row, by_column, q, r, bad)


class Plan(NamedTuple):
    """What `_Stream` does with the vectors and parameters it is given."""

    loss: PairLoss
    layout: Layout
    poison: (
        Tensor | None
    )  # () of the batch, if the vectors are prepared: normalised already, and combined from its rows
    needs_grad: bool


class _Stream(torch.autograd.Function):
    """Inputs are the queries, the references or None, and parameters."""

    @staticmethod
    def forward(plan: Plan, *inputs: Any) -> tuple[Tensor | None, ...]:
        loss, layout, bad, needs_grad = plan
        queries, references, *_ = inputs
        for part in loss.parts():
            if part.training:
                part.turn.add_(1)  # here and not in the module: functional transforms allow it below their level
        with no_autocast(queries):
            sides = _sides(loss, layout, bad, queries, references)
            if loss.training and loss.row_norms:
                loss.observe(sides.by_row.given)
            totals = _totals(loss, layout, sides, needs_grad)
            value = functools.reduce(torch.add, [total.value for total in totals])
            grads = [grad for total in totals for grad in total.params]
            if not needs_grad:
                return value, None, None, *grads
            grad_q, grad_r, norm_grad = (
                functools.reduce(torch.add, side) for side in zip(*(t[2:] for t in totals), strict=True)
            )
            by_row, by_column = sides.by_row, sides.by_column
            if by_column is None or references is None:
                grad_q = prepare_backward(loss, grad_q.add_(grad_r), norm_grad, by_row, layout.rows)
                return value, grad_q.to(queries.dtype), None, *grads
            grad_q = prepare_backward(loss, grad_q, norm_grad, by_row, layout.rows)
            grad_r = prepare_backward(loss, grad_r, norm_grad[:0], by_column, layout.columns)
            return value, grad_q.to(queries.dtype), grad_r.to(references.dtype), *grads

    @staticmethod
    def vmap(*_: Any) -> Any:
        raise no_vmap()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        grads = [g for g in output[1:] if g is not None]
        ctx.mark_non_differentiable(*grads)
        ctx.set_materialize_grads(False)
        needed = ctx.needs_input_grad[1:]  # tensors without gradient, such as a memory, may be changed before backward
        kept = (*inputs[1:], *output[1:])
        ctx.save_for_backward(*(x if need else None for x, need in zip(kept, needed * 2, strict=True)))

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        half = len(ctx.saved_tensors) // 2
        inputs, grads = ctx.saved_tensors[:half], ctx.saved_tensors[half:]
        if grad_value is None:
            return (None,) * (1 + half)
        scale = _Scale.apply if torch.is_grad_enabled() else _scale  # enabled: a second derivative is asked for
        pairs = zip(inputs, grads, strict=True)
        scaled = [None if x is None or g is None else scale(grad_value, g, x) for x, g in pairs]
        return None, *scaled


_Stream.forward.__signature__ = inspect.signature(_Stream.forward)  # type: ignore[attr-defined]  # else found in every call


class Total(NamedTuple):
    """Value and gradients of one part of a loss."""

    value: Tensor  # ()
    params: list[Tensor]
    grad_q: Tensor  # (M, D); nothing in it unless gradients are needed
    grad_r: Tensor  # (N, D)
    norm_grad: Tensor  # (M,) with respect to the norms of the queries as given; empty if the loss does not need them


class Sums:
    """What the blocks add up to for one part of a loss, which has its own divisor."""

    def __init__(self, part: PairLoss, sides: Sides) -> None:
        self.q, self.r, self.squared = sides.q, sides.r, MEASURES[part.measure].squared
        self.norms = torch.zeros_like(sides.by_row.given) if part.row_norms else sides.by_row.given
        self.params = [torch.zeros_like(p) for p in part.pair_parameters()]
        self.value: Tensor | None = None  # this and what follows are made by the first block
        self.terms: Tensor | int = 0
        self.grad_q = self.grad_r = self.by_column = sides.q[:0]

    def add(self, at: slice, result: BlockResult, needs_grad: bool) -> None:
        """Add a block."""
        first, q, weights = self.value is None, self.q[at], result.weights
        if self.value is None:
            self.value, self.terms = result.value, result.terms
        else:  # in place: what outlives a block would tear holes into the memory between blocks
            self.value += result.value
            self.terms += result.terms
        if not needs_grad:
            return
        if first:
            self.grad_q, self.grad_r = torch.empty_like(self.q), weights.T @ q
        else:
            self.grad_r.addmm_(weights.T, q)
        torch.mm(weights, self.r, out=self.grad_q[at])
        if self.squared:
            self.grad_q[at].addcmul_(result.row_grad, q)
            by_column = -weights.sum(0) if result.column_grad is None else result.column_grad
            self.by_column = by_column if first else self.by_column.add_(by_column)
        if result.norms is not None:
            self.norms[at] = result.norms
        for grad, part in zip(self.params, result.params, strict=True):
            grad += part

    def total(self, layout: Layout, poison: Tensor, needs_grad: bool) -> Total:
        """All blocks, of all processes if vectors of the loss are split over them, divided by the divisor."""
        value, params, grad_q, grad_r = self.value, self.params, self.grad_q, self.grad_r
        terms = self.terms if isinstance(self.terms, Tensor) else self.q.new_full((), self.terms)
        if value is None:  # there is nothing to compare
            value, grad_q, grad_r = self.q.new_zeros(()), torch.zeros_like(self.q), torch.zeros_like(self.r)
        elif needs_grad and self.squared:
            grad_r.addcmul_(self.by_column[:, None], self.r)
        grad_r = grad_r[:-1]
        if layout.split == "rows":  # every process had its own rows
            value, terms, *params = (SPLIT.total(x) for x in (value, terms, *params))
        if needs_grad and layout.split:  # the other side is the batch, which all processes share
            SPLIT.total(grad_r if layout.split == "rows" else grad_q)
        divisor = terms.clamp_(min=1) + poison
        if needs_grad:
            grad_q.div_(divisor)
            grad_r.div_(divisor)
        norms = self.norms / divisor if self.norms.numel() else self.norms
        return Total(value / divisor, [grad / divisor for grad in params], grad_q, grad_r, norms)


def _totals(loss: PairLoss, layout: Layout, sides: Sides, needs_grad: bool) -> list[Total]:
    """Sweep over the blocks: the result of each part of the loss."""
    sums = [Sums(part, sides) for part in loss.parts()]
    for at, results in _results(loss, layout, sides):
        for part, result in zip(sums, results, strict=True):
            part.add(at, result, needs_grad)
    return [part.total(layout, sides.poison, needs_grad) for part in sums]


def _scale(grad_value: Tensor, gradient: Tensor, _: Tensor) -> Tensor:
    return grad_value * gradient


class _Scale(torch.autograd.Function):
    """grad_value * gradient, with an error for a second derivative: that of the weights was never computed."""

    generate_vmap_rule = True  # jacrev and batched gradients apply it to several grad_values at once

    @staticmethod
    def forward(grad_value: Tensor, gradient: Tensor, _: Tensor) -> Tensor:
        return grad_value * gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NearfieldError(
            "pair losses are differentiable once: they compute W = dL/dS in closed form and not its derivative. "
            "For a gradient penalty use a differentiable formula of your own."
        )


def pair_weights(
    loss: PairLoss,
    embeddings: Tensor,
    labels: Tensor,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
) -> Tensor:
    """Signed pair weights dL/dS_ij (M, N), S_ij and S_ji as separate variables; the only full matrix in the engine.

    Rows are the embeddings; columns the references, the proxies of losses that have them (of proxies split over
    processes, those of this process), or the embeddings again. Of losses that compare embeddings and proxies with each
    other, both are rows and columns, the embeddings first.
    """
    parts = loss.parts()
    if len(parts) > 1:
        each = [pair_weights(part, embeddings, labels, references, reference_labels) for part in parts]
        return functools.reduce(torch.add, each)
    swaps = (False, True) if loss.symmetric and references is None else (False,)
    found = [_weights(loss, embeddings, labels, references, reference_labels, swapped) for swapped in swaps]
    return found[0] if len(found) == 1 else (found[0] + found[1]) / 2


def _weights(
    loss: PairLoss,
    embeddings: Tensor,
    labels: Tensor,
    references: Tensor | None,
    reference_labels: Tensor | None,
    swapped: bool,
) -> Tensor:
    """The pair weights of one pass over the batch."""
    with torch.no_grad(), torch.autocast(embeddings.device.type, enabled=False):
        layout, queries, references, _, pairing, as_rows, bad = arrange(
            loss, embeddings, labels, references, reference_labels, swapped
        )
        sides = _sides(loss, layout, bad, queries, references)
        q, r = sides.q, sides.r
        w, terms = q.new_zeros(len(q), len(r) - 1), q.new_zeros(())
        rows, columns = layout.rows, layout.columns[: w.shape[1]]
        for at, (result,) in _results(loss, layout, sides):
            w[to_tensor(rows[at, None], w), to_tensor(columns, w)] = result.weights[:, :-1]
            terms += result.terms
        terms = SPLIT.total(terms) if layout.split == "rows" else terms
        w /= terms.clamp(min=1) + sides.poison
        if as_rows:
            return w.T.contiguous()
        if pairing is None:
            return w
        return loss.unfold(w, pairing, w.new_zeros(len(embeddings), len(embeddings)))
