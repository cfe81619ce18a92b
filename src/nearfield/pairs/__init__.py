"""The one idea of this library: a loss is a weighting of the similarity matrix, streamed by blocks of rows.

Rows are queries, columns are references. For one block of rows a loss sees, for every query, the measure to its
positives and to its negatives, and answers with its value and the derivative of that value with respect to each of
them. The engine does the rest: it makes the blocks, turns the derivatives into the signed pair weights W = dL/dS,
accumulates the embedding gradient W R and W^T Q at once, and forgets the block. Nothing of size N x N exists.

Two conventions keep every formula free of masks:

* whatever is not a negative of a query (itself, its positives, pairs that mining left out) is *infinitely far* in
  `Block.neg`, so that exp, hinge and softplus of it are exactly 0;
* a query with fewer positives than its neighbours has the rest of its `Block.pos` row *infinitely near*.

Where a loss needs to know which entries are above something it compares in place, `x.gt_(0)`, and gets ones and zeros
of x's own type: selecting by a boolean mask costs ten times as much on a CPU.

A small batch costs as much as the number of operations: so numpy works out who is whose positive, at a fraction of what
an operation of torch on few labels costs, and autograd sees one operation, from the vectors given to the loss.

Axes: M queries, N references, B queries of a block, P most positives of a query in the block, D dims.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import TypedDict

from nearfield.errors import InputError, NearfieldError

BLOCK_ENTRIES = 1 << 20  # entries of a block: the few arrays of this size that a loss needs stay in the cache
MIN_BLOCK_ROWS = 16  # fewer rows starve the matrix product
MIN_VARIANCE = 1e-8  # of a query's components, in the signal-to-noise distance
MIN_NORM = 1e-12  # a vector shorter than this is divided by it when it is normalised
MIN_DISTANCE = 1e-4  # 1/d is singular at 0: below this d the division uses it instead, and d = 0 has no gradient
CLOSE = 2e-3  # squared distances below this share of the squared norm are recomputed without cancellation
Integers = NDArray[np.int64]

# ---------------------------------------------------------------------------------------------------------------
# What a loss sees and what it answers


@dataclass(frozen=True)
class Block:
    """Some queries against all references."""

    pos: Tensor  # (B, P) measure to the positives; padding is infinitely near
    neg: Tensor  # (B, N + 1) measure to the negatives; all else, and the last column, is infinitely far
    num_pos: Tensor  # (B,) how many entries of a `pos` row are real, in the block's dtype
    num_neg: Tensor  # (B,)
    labels: Tensor  # (B,) of the queries
    rows: Tensor  # (B,) which of the caller's queries each row is
    order: Tensor  # (B,) which row of the label order, in which columns also stand
    pos_index: Tensor  # (B, P) which column each positive is; padding points at column N
    present: Tensor  # () how many of all queries, not only of this block, have positives
    survey: Tensor  # what the first sweep found, for losses that `survey`
    dim: int  # D, the embedding size
    turn: Tensor  # () how often the loss was called in training: seeds what is drawn
    far: float  # +inf for distances, -inf for similarities
    measure: str  # what `pos` and `neg` hold

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


def exp_(x: Tensor) -> Tensor:
    """exp x in place for x <= 0, exactly 0 where it would be less than 1e-34 (1e-299 in float64).

    The hardware takes a hundred times as long for results near the smallest number, and ten times for exp(-inf).
    """
    floor = -80.0 if x.dtype == torch.float32 else -690.0
    return F.threshold(x.clamp_(min=floor).exp_(), math.exp(floor + 1), 0.0, inplace=True)


def log_sum_exp(*sides: Tensor, one: bool = False) -> tuple[Tensor, ...]:
    """log(sum exp v) of each row over all `sides`, (B,), and the share exp v / sum exp v of each entry, per side.

    With `one`, log(1 + sum exp v). A row with nothing in it (all -inf) has value 0 and shares 0: its term is dropped.
    """
    tops = [v.amax(1, keepdim=True) for v in sides if v.shape[1]] or [sides[0].new_zeros(len(sides[0]), 1)]
    top = functools.reduce(torch.maximum, tops)  # (B, 1)
    top = top.clamp_(min=0.0 if one else torch.finfo(top.dtype).min)  # of a row with nothing in it, finite
    terms = [exp_(v - top) for v in sides]
    totals = [t.sum(1, keepdim=True) for t in terms] + ([top.neg().exp_()] if one else [])
    total = functools.reduce(torch.add, totals)  # (B, 1)
    if one:
        return (total.log() + top)[:, 0], *(t.div_(total) for t in terms)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    return (total.log() + top).masked_fill_(empty, 0.0)[:, 0], *(t.div_(total) for t in terms)


class Held(NamedTuple):
    """Vectors that a loss holds itself, in ascending order of their labels."""

    vectors: Tensor  # (C, D)
    labels: Tensor  # (C,)
    as_rows: bool = False  # whether they are the queries and the batch the references


class Pairing(NamedTuple):
    """Which rows of a batch are queries and which are references, or stand for references made of several rows."""

    rows: Tensor  # (M,)
    columns: Tensor  # (N,)
    member: Tensor | None = None  # of each row of the batch, the reference that it is part of, or -1


Miner = Callable[[Block], Block]
Reduction = Literal["sum", "batch", "usable", "terms"]


class EngineOptions(TypedDict, total=False):
    """Options that every pair loss takes beside its own parameters."""

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
    options: ClassVar[type] = EngineOptions  # what every loss of the family takes beside its own parameters
    constant_weights: ClassVar[bool] = False  # whether some weights are constants by definition: W is no derivative
    own_batch: ClassVar[bool] = False  # whether the method has no meaning for other references
    measure: Literal["dot", "sqeuclidean", "euclidean", "snr"] = "dot"
    surveys: bool = False  # whether a first sweep must `survey` all rows
    reduction: Reduction = "batch"
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
        self.last: dict[str, int] = {}
        self.register_buffer("turn", torch.zeros((), dtype=torch.int64))  # calls in training: seeds what is drawn
        self.compiled = compile

    def weigh(self, block: Block) -> Weighted:
        """Value and derivatives of one block: the method itself."""
        raise NotImplementedError

    def survey(self, block: Block) -> Tensor:
        """What must be known of all rows before any can be weighed, one row each; for losses with `surveys`."""
        raise NotImplementedError

    def gather_survey(self, parts: list[Tensor]) -> Tensor:
        """Join the surveys of all blocks; rows stay in label order, one more at the end stands for padding."""
        return torch.cat([*parts, parts[0].new_zeros(1, *parts[0].shape[1:])])

    def held(self, labels: Tensor) -> Held | None:
        """Vectors that the loss holds itself, such as proxies, to compare a batch with these labels with."""
        return None

    def pairing(self, labels: Tensor) -> Pairing | None:
        """Which rows of a batch are queries and which are references; None (the default) if all are both."""
        return None

    def combine(self, x: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
        """Query and reference vectors of a batch with a `pairing`."""
        return x[pairing.rows], x[pairing.columns]

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
        """The loss of `queries` (M, D) against `references` (N, D), or against each other; a 0-dim tensor."""
        scene = arrange(self, queries, labels, references, reference_labels)
        parameters = self.pair_parameters()
        inputs = (scene.queries, scene.references, *parameters)
        wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
        plan = Plan(self, scene.layout, scene.pairing is not None, wanted)
        value = _Stream.apply(plan, *inputs)[0]  # type: ignore[no-untyped-call]
        penalty = self.penalty(*scene.raw)
        return cast(Tensor, value if penalty is None else value + penalty)


# ---------------------------------------------------------------------------------------------------------------
# Measures: from the dot product to what a loss compares, and back


class Measure(NamedTuple):
    """A function x(u) of u = s, the dot product, or of u = |q|^2 + |r|^2 - 2 s; `a` is |q|^2, (B, 1)."""

    squared: bool  # whether u is the squared distance
    far: float
    forward: Callable[[Tensor, Tensor], Tensor]  # (u, a) -> x
    to_dot: Callable[[Tensor, Tensor, Tensor], Tensor]  # (dL/dx, x, a) -> dL/ds
    to_norm: Callable[[Tensor, Tensor, Tensor], Tensor]  # (dL/ds, x, a is at its floor) -> 2 dL/da over a row, (B, 1)


def over_distance(grad: Tensor, d: Tensor) -> Tensor:
    """Through d = sqrt(d^2): grad / d, bounded near d = 0 and exactly 0 at it."""
    return (grad / d.clamp(min=MIN_DISTANCE)).mul_(d.sign())


def log_mask(mask: Tensor) -> Tensor:
    """The logarithm of ones and zeros: 0 and -inf, without the cost of a logarithm of 0."""
    return mask.reciprocal().neg_().add_(1)


def is_real(x: Tensor) -> Tensor:
    """1 where there is a pair, 0 where it is infinitely far or near, in the type of x."""
    return x.abs().lt_(math.inf)


def finite(x: Tensor) -> Tensor:
    """x with the infinite brought back, so that 0 times it is 0."""
    largest = torch.finfo(x.dtype).max / 4
    return x.clamp(-largest, largest)


def _row_sum(w: Tensor, x: Tensor, held: Tensor) -> Tensor:
    return -w.sum(1, keepdim=True)


def _snr_row_sum(w: Tensor, x: Tensor, held: Tensor) -> Tensor:
    return (finite(x).mul_(~held).sub_(1).mul_(w)).sum(1, keepdim=True)


MEASURES: dict[str, Measure] = {
    "dot": Measure(False, -math.inf, lambda u, a: u, lambda g, x, a: g, _row_sum),
    "sqeuclidean": Measure(True, math.inf, lambda u, a: u, lambda g, x, a: -2 * g, _row_sum),
    "euclidean": Measure(True, math.inf, lambda u, a: u.sqrt(), lambda g, x, a: over_distance(g, x).neg_(), _row_sum),
    # var(r - q) / var(q): on centred vectors |q - r|^2 / |q|^2, so the query's norm also moves through 1/a
    "snr": Measure(True, math.inf, lambda u, a: u / a, lambda g, x, a: -2 * g / a, _snr_row_sum),
}


# ---------------------------------------------------------------------------------------------------------------
# The scene: what is compared, and its label order, in which the positives of a query are neighbours in memory


class Layout(NamedTuple):
    """Who is whose positive, for queries and references both sorted by label."""

    labels: Integers  # (M,) of the queries
    rows: Integers  # (M,) where each query stood in the caller's order
    columns: Integers  # (N,) where each reference stood
    start: Integers  # (M,) first reference with the query's label
    stop: Integers  # (M,) one past the last
    num_pos: Integers  # (M,)
    num_neg: Integers  # (M,)
    own: bool  # whether queries and references are the same items


class Scene(NamedTuple):
    """A loss's input, checked."""

    layout: Layout
    queries: Tensor  # (M, D)
    references: Tensor | None  # (N, D); None when the queries are the references
    raw: tuple[Tensor, Tensor]  # what the penalty sees
    pairing: Pairing | None  # what the loss's `pairing` answered; then the vectors are as the loss compares them


def arrange(
    loss: PairLoss, queries: Tensor, labels: Tensor, references: Tensor | None, reference_labels: Tensor | None
) -> Scene:
    """Check the input, and find out who is whose positive."""
    held = _check(loss, queries, labels, references, reference_labels)
    labels = labels.to(queries.device, torch.int64)
    if held is not None:
        references, reference_labels = held.vectors, held.labels
        if held.as_rows:
            queries, labels, references, reference_labels = references, reference_labels, queries, labels
    raw_queries, raw_references = queries, queries if references is None else references
    pairing = loss.pairing(labels) if references is None else None
    if pairing is not None:
        rows, columns, _ = pairing
        at_least_float32 = queries.to(torch.promote_types(queries.dtype, torch.float32))
        raw_queries, raw_references = queries[rows], queries[columns]
        queries, references = loss.combine(_compared(loss, at_least_float32)[0], pairing)
        labels, reference_labels = labels[rows], labels[columns]
    layout = _layout(labels, reference_labels)
    usable = ~_unusable(loss, layout.num_pos, layout.num_neg)
    anchors, used = len(usable), int(np.count_nonzero(usable))
    each_has_its_proxy = held is not None and held.as_rows
    found = (len(layout.columns), 0) if each_has_its_proxy else (anchors, anchors - used)
    loss.last = {"anchors": found[0], "unusable_anchors": found[1]}
    raw = raw_queries if used == anchors else raw_queries[_tensor(layout.rows[usable], queries)]
    return Scene(layout, queries, references, (raw, raw_references), pairing)


def _check(
    loss: PairLoss, queries: Tensor, labels: Tensor, references: Tensor | None, reference_labels: Tensor | None
) -> Held | None:
    """What the loss holds; InputError if what is to be compared is not fit for it."""
    name = type(loss).__name__
    check_vectors("embeddings", queries, loss.check_finite)
    labels = check_labels("labels", labels, queries)
    if loss.measure == "snr" and queries.shape[1] < 2:
        raise InputError(f"embeddings must have at least 2 dims: {name} compares variances over them; got 1.")
    held = loss.held(labels)
    if held is not None:
        if references is not None:
            raise InputError(f"{name} compares with the vectors it holds; call it without references.")
        if held.vectors.shape[1] != queries.shape[1]:
            raise InputError(f"embeddings must have the proxies' {held.vectors.shape[1]} dims; got {queries.shape[1]}.")
        return held
    if references is None:
        if reference_labels is not None:
            raise InputError("reference_labels were given without references; give both or neither.")
        if len(queries) < 2:
            raise InputError(f"embeddings must have at least 2 rows to form a pair; got {len(queries)}.")
        return None
    if loss.own_batch:
        raise InputError(f"{name} compares a batch with itself; call it without references.")
    if reference_labels is None:
        raise InputError("references were given without reference_labels; give one label for each reference.")
    check_vectors("references", references, loss.check_finite)
    if references.shape[1] != queries.shape[1]:
        raise InputError(f"references must have the queries' {queries.shape[1]} dims; got {references.shape[1]}.")
    check_labels("reference_labels", reference_labels, references)
    return None


def check_vectors(name: str, x: Tensor, finite: bool = False) -> None:
    """Raise InputError unless `x` is a floating (rows, dims) matrix with at least one of each."""
    if not isinstance(x, Tensor) or x.ndim != 2 or 0 in x.shape:
        found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} must be a tensor of shape (rows, dims), neither of them 0; got {found}.")
    if not x.is_floating_point():
        raise InputError(f"{name} must be floating point; got {x.dtype}. Convert with .float().")
    if finite and not bool(x.isfinite().all()):
        bad = int((~x.isfinite()).any(1).sum())
        raise InputError(
            f"{name} must be finite; {bad} of {len(x)} rows hold NaN or infinity. Check the learning rate."
        )


def check_labels(name: str, labels: Tensor, x: Tensor) -> Tensor:
    """`labels` on the device of `x`, or InputError unless they are one integer below 2^31 for each row of `x`."""
    if (
        not isinstance(labels, Tensor)
        or labels.is_floating_point()
        or labels.is_complex()
        or labels.dtype == torch.bool
    ):
        found = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"{name} must be a tensor of integers; got {found}. Convert with .long().")
    if labels.shape != (len(x),):
        raise InputError(f"{name} must have shape ({len(x)},), one for each row; got {tuple(labels.shape)}.")
    labels = labels.to(x.device, torch.int64)
    low, high = labels.aminmax()
    if (size := max(-int(low), int(high))) >= 2**31:
        raise InputError(f"{name} must be below 2^31 in size; got {size}. Renumber them from 0.")
    return labels


def check_classes(labels: Tensor, num_classes: int) -> None:
    """Raise InputError unless all `labels` are classes that a loss for `num_classes` knows."""
    low, high = map(int, labels.aminmax())
    if low < 0 or high >= num_classes:
        bad = low if low < 0 else high
        raise InputError(f"labels must be from 0 to num_classes - 1 = {num_classes - 1}; got {bad}.")


def _layout(labels: Tensor, reference_labels: Tensor | None) -> Layout:
    sorted_labels, rows = _sorted(labels)
    known, columns = (sorted_labels, rows) if reference_labels is None else _sorted(reference_labels)
    start, stop = known.searchsorted(sorted_labels), known.searchsorted(sorted_labels, "right")
    own, same = reference_labels is None, stop - start
    return Layout(sorted_labels, rows, columns, start, stop, same - own, len(columns) - same, own)


def _sorted(labels: Tensor) -> tuple[Integers, Integers]:
    """Labels in ascending order, and where each of them stood."""
    found = np.array(labels.tolist(), np.int64)  # functional transforms hide a tensor's memory from numpy
    order = found.argsort(kind="stable")
    return found[order], order


def _unusable(loss: PairLoss, num_pos: Any, num_neg: Any) -> Any:
    """Which queries lack what the loss needs; the counts may be numpy's or torch's."""
    if loss.needs == "nothing":
        return num_pos < 0
    return num_pos * num_neg == 0 if loss.needs == "both" else num_pos == 0


def _tensor(array: NDArray[Any], like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)


# ---------------------------------------------------------------------------------------------------------------
# Vectors: as they are given, as they are compared, and the way back


class Vectors(NamedTuple):
    """Vectors in label order."""

    x: Tensor  # (N, D) float32 or wider, as they are compared
    unmoved: Tensor  # (N, D) the same before the origin was moved
    norms: Tensor | None  # (N, 1) what they were divided by, if they were normalised


def _compared(loss: PairLoss, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Vectors normalised or centred, as the loss compares them, and what they were divided by to be normalised."""
    if loss.measure == "snr":
        return x - x.mean(1, keepdim=True), None
    if not loss.normalize:
        return x, None
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=MIN_NORM)
    return x / norms, norms


def _prepare(
    loss: PairLoss, layout: Layout, compared: bool, queries: Tensor, references: Tensor | None
) -> tuple[Vectors, Vectors | None]:
    """Queries and references in label order; `compared` if they are as the loss compares them already."""
    given = [(queries, layout.rows)] + ([] if references is None else [(references, layout.columns)])
    wide = functools.reduce(torch.promote_types, [x.dtype for x, _ in given], torch.float32)
    ordered = [_in_order(x.to(wide), order) for x, order in given]
    found = [(x, None) if compared else _compared(loss, x) for x in ordered]
    if loss.measure not in ("euclidean", "sqeuclidean"):
        sides = [Vectors(x, x, norms) for x, norms in found]
    else:  # distances do not move with the origin, but their rounding does
        origin = found[-1][0].mean(0)
        sides = [Vectors(x - origin, x, norms) for x, norms in found]
    return sides[0], None if references is None else sides[1]


def _in_order(x: Tensor, order: Integers) -> Tensor:
    """x[order], or x itself where that is the same: proxies may be many, and they come in order."""
    return x.index_select(0, _tensor(order, x)) if (order[1:] < order[:-1]).any() else x


def _pull_back(loss: PairLoss, compared: bool, grad: Tensor, vectors: Vectors, order: Integers) -> Tensor:
    """From the gradient with respect to prepared vectors to that with respect to the vectors given; overwrites it."""
    _, unit, norms = vectors
    if norms is not None:
        along = (grad * unit).sum(1, keepdim=True).mul_(norms > MIN_NORM)  # what is shorter is no unit vector
        grad = grad.addcmul_(unit, along, value=-1).div_(norms)
    elif loss.measure == "snr" and not compared:
        grad = grad.sub_(grad.mean(1, keepdim=True))
    return _in_order(grad, order.argsort())


# ---------------------------------------------------------------------------------------------------------------
# Blocks


class Places(NamedTuple):
    """Where the positives of a block's queries are."""

    pos_index: Tensor  # (B, P) columns of the positives; padding points at column N
    own_index: Tensor  # (B, P + 2) columns that are no negatives: the positives, the query itself, column N
    padding: Tensor | None  # (B, P) where `pos_index` is padding, if any is
    unusable: Tensor | None  # (B,) queries that lack what the loss needs, if any does
    num_pos: Tensor  # (B,)
    num_neg: Tensor  # (B,)
    labels: Tensor  # (B,)
    rows: Tensor  # (B,)
    order: Tensor  # (B,)
    present: Tensor  # ()


class Answer(NamedTuple):
    """One weighed block: sums and weights, nothing divided yet."""

    value: Tensor  # ()
    terms: Tensor | int  # () what the block adds to the divisor, which is at least 1
    weights: Tensor  # (B, N + 1) dL/dS
    norm_pull: Tensor  # (B, 1) 2 dL/d|q|^2, for measures that are squared distances
    params: tuple[Tensor, ...]


def _places(loss: PairLoss, layout: Layout, at: slice, like: Tensor) -> Places:
    start, stop = layout.start[at, None], layout.stop[at, None]  # (B, 1)
    nobody, longest, order = len(layout.columns), int((stop - start).max()), np.arange(at.start, at.stop)
    own_index = start + np.arange(longest + 1)
    pos_index = own_index[:, :longest]
    if layout.own:  # step over the query itself
        pos_index = pos_index[:, :-1] + (pos_index[:, :-1] >= order[:, None])
    padding = pos_index >= stop
    num_pos, num_neg = layout.num_pos[at], layout.num_neg[at]
    unusable = _unusable(loss, num_pos, num_neg)
    return Places(
        _tensor(np.where(padding, nobody, pos_index), like),
        _tensor(np.where(own_index >= stop, nobody, own_index), like),
        _tensor(padding, like) if padding.any() else None,
        _tensor(unusable, like) if unusable.any() else None,
        _tensor(num_pos, like).to(like.dtype),
        _tensor(num_neg, like).to(like.dtype),
        _tensor(layout.labels[at], like),
        _tensor(layout.rows[at], like),
        _tensor(order, like),
        like.new_tensor(np.count_nonzero(layout.num_pos)),
    )


def _sweep(loss: PairLoss, layout: Layout, q: Tensor, r: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Places]]:
    """For each block of rows: its place, u (B, N + 1) as its measure wants it, the queries' |q|^2 (B, 1), `Places`.

    Measures that are no squared distances do without |q|^2.
    """
    squared = MEASURES[loss.measure].squared
    blocks = max(1, round(len(q) * len(r) / BLOCK_ENTRIES))  # of equal height: a last one of few rows costs as much
    step = loss.block_rows or max(MIN_BLOCK_ROWS, math.ceil(len(q) / blocks))
    column_sq = r.square().sum(1) if squared else None  # (N + 1,)
    for begin in range(0, len(q), step):
        at = slice(begin, min(begin + step, len(q)))
        if column_sq is None:
            yield at, q[at] @ r.T, q.new_empty(0), _places(loss, layout, at, q)
            continue
        row_sq = q[at].square().sum(1, keepdim=True)
        u = _squared_distances(q[at], r, row_sq, column_sq, at if layout.own else None)
        yield at, u, row_sq.clamp_(min=MIN_VARIANCE * q.shape[1]), _places(loss, layout, at, q)


def _squared_distances(q: Tensor, r: Tensor, row_sq: Tensor, column_sq: Tensor, own: slice | None) -> Tensor:
    """|q - r|^2 by the expanded square, (B, N + 1); the few close pairs, where that cancels, directly."""
    u = torch.addmm(column_sq, q, r.T, alpha=-2).add_(row_sq)
    if own is not None:
        u[:, own].fill_diagonal_(torch.inf)  # a query and itself: never looked at, and not to be looked for
    (crowded,) = (u.amin(1) < CLOSE * row_sq[:, 0]).nonzero(as_tuple=True)
    if not len(crowded):
        return u.clamp_(min=0)
    i, j = (u[crowded] < CLOSE * row_sq[crowded]).nonzero(as_tuple=True)
    step = max(1, BLOCK_ENTRIES // q.shape[1])
    for near, far in zip(crowded[i].split(step), j.split(step), strict=True):
        u[near, far] = (q[near] - r[far]).square().sum(1)
    return u.clamp_(min=0)


def _block(loss: PairLoss, dim: int, u: Tensor, row_sq: Tensor, places: Places, survey: Tensor) -> Block:
    """The block as the loss sees it; `u` is overwritten."""
    measure = MEASURES[loss.measure]
    x = measure.forward(u, row_sq)
    pos = x.gather(1, places.pos_index)
    if places.padding is not None:
        pos.masked_fill_(places.padding, -measure.far)
    neg = x.scatter_(1, places.own_index, measure.far)
    block = Block(
        pos,
        neg,
        places.num_pos,
        places.num_neg,
        places.labels,
        places.rows,
        places.order,
        places.pos_index,
        places.present,
        survey,
        dim,
        loss.turn,
        measure.far,
        loss.measure,
    )
    return block if loss.miner is None else loss.miner(block)


def _weigh(loss: PairLoss, block: Block, row_sq: Tensor, places: Places) -> Answer:
    """Weigh one block and turn the derivatives with respect to the measure into those with respect to S."""
    measure = MEASURES[loss.measure]
    value, pos, neg, terms, params = loss.weigh(block)
    pos, neg = measure.to_dot(pos, block.pos, row_sq), measure.to_dot(neg, block.neg, row_sq)
    unusable = places.unusable
    if loss.miner is not None and loss.needs != "nothing":  # what it needs may not have been mined
        unusable = _unusable(loss, block.num_pos, block.num_neg)  # (B,)
    if unusable is not None:
        pos[unusable] = 0.0
        neg[unusable] = 0.0
        value = value.masked_fill(unusable, 0.0)
    pull = row_sq
    if measure.squared:
        held = row_sq <= MIN_VARIANCE * block.dim
        pull = measure.to_norm(pos, block.pos, held) + measure.to_norm(neg, block.neg, held)
    weights = neg.scatter_(1, places.own_index, 0.0).scatter_(1, places.pos_index, pos)
    if places.padding is not None:
        weights[:, -1] = 0.0
    return Answer(value.sum(), _divisor(loss, value, terms, unusable), weights, pull, params)


def _divisor(loss: PairLoss, value: Tensor, terms: Tensor | None, unusable: Tensor | None) -> Tensor | int:
    """What the rows of a block (B,) add to the divisor of the sum of their values."""
    if loss.reduction in ("sum", "batch"):
        return len(value) if loss.reduction == "batch" else 0
    counts = torch.ones_like(value) if terms is None or loss.reduction == "usable" else terms
    return (counts if unusable is None else counts.masked_fill(unusable, 0.0)).sum()


def _answer(loss: PairLoss, dim: int, u: Tensor, row_sq: Tensor, places: Places, survey: Tensor) -> Answer:
    return _weigh(loss, _block(loss, dim, u, row_sq, places, survey), row_sq, places)


# ---------------------------------------------------------------------------------------------------------------
# The stream: value and gradient in one sweep (two for losses that survey)


@functools.cache
def _compiled_answer(kind: str) -> Callable[..., Answer]:
    """`_answer` compiled for one class of losses; a copy of its code, as compiled variants are kept with the code."""
    copy = types.FunctionType(_answer.__code__.replace(), _answer.__globals__, f"_answer_{kind}")
    return torch.compile(copy, dynamic=True)


def _answers(loss: PairLoss, layout: Layout, q: Tensor, r: Tensor) -> Iterator[tuple[slice, Answer]]:
    survey = q.new_empty(0)
    if loss.surveys:
        parts = []
        for looked in _sweep(loss, layout, q, r):
            at, u, row_sq, places = looked
            block = _block(loss, q.shape[1], u, row_sq, places, survey)
            parts.append(loss.survey(block))
        survey = loss.gather_survey(parts)
        if len(parts) == 1:  # the only block need not be made again
            yield at, _weigh(loss, replace(block, survey=survey), row_sq, places)
            return
    answer = _compiled_answer(type(loss).__qualname__) if loss.compiled else _answer
    for at, u, row_sq, places in _sweep(loss, layout, q, r):
        yield at, answer(loss, q.shape[1], u, row_sq, places, survey)


def _with_nobody(references: Tensor) -> Tensor:
    """The references and one zero row, the column that padding points at."""
    return torch.cat([references, references.new_zeros(1, references.shape[1])])


class Plan(NamedTuple):
    """What is done with the vectors and parameters that `_Stream` is given."""

    loss: PairLoss
    layout: Layout
    compared: bool  # whether the vectors are as the loss compares them already
    wanted: bool  # whether a gradient is


class _Stream(torch.autograd.Function):
    """Value and gradients together: the weights of a block live only while it is being weighed.

    Inputs are the queries, the references or None, and parameters. (Torch looks at the signature in every call, and the
    shorter it is the sooner it has read it.)
    """

    @staticmethod
    def forward(plan: Plan, *inputs: Any) -> tuple[Tensor | None, ...]:
        loss, layout, compared, wanted = plan
        queries, references, *parameters = inputs
        if loss.training:
            loss.turn.add_(1)  # here and not in the module: functional transforms allow it below their level
        squared = MEASURES[loss.measure].squared
        with torch.autocast(queries.device.type, enabled=False):
            by_row, by_column = _prepare(loss, layout, compared, queries, references)
            q, r = by_row.x, _with_nobody((by_row if by_column is None else by_column).x)
            value, terms, grads = q.new_zeros(()), q.new_zeros(()), [torch.zeros_like(p) for p in parameters]
            grad_q, grad_r, column_pull = torch.empty_like(q), torch.zeros_like(r), r.new_zeros(len(r), 1)
            for at, answer in _answers(loss, layout, q, r):
                value += answer.value
                terms += answer.terms
                if not wanted:
                    continue
                torch.mm(answer.weights, r, out=grad_q[at])
                grad_r.addmm_(answer.weights.T, q[at])
                if squared:
                    grad_q[at] += answer.norm_pull * q[at]
                    column_pull -= answer.weights.sum(0)[:, None]
                for grad, part in zip(grads, answer.params, strict=True):
                    grad += part
            divisor = terms.clamp_(min=1)
            value, grads = value / divisor, [grad / divisor for grad in grads]
            if not wanted:
                return value, None, None, *grads
            grad_r = (grad_r.addcmul_(column_pull, r) if squared else grad_r)[:-1]
            if by_column is None or references is None:
                grad_q = _pull_back(loss, compared, grad_q.add_(grad_r).div_(divisor), by_row, layout.rows)
                return value, grad_q.to(queries.dtype), None, *grads
            grad_q = _pull_back(loss, compared, grad_q.div_(divisor), by_row, layout.rows)
            grad_r = _pull_back(loss, compared, grad_r.div_(divisor), by_column, layout.columns)
            return value, grad_q.to(queries.dtype), grad_r.to(references.dtype), *grads

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        grads = [g for g in output[1:] if g is not None]
        ctx.mark_non_differentiable(*grads)
        ctx.set_materialize_grads(False)
        needed = ctx.needs_input_grad[1:]  # what needs no gradient, such as a memory, may change meanwhile
        kept = (*inputs[1:], *output[1:])
        ctx.save_for_backward(*(x if need else None for x, need in zip(kept, needed * 2, strict=True)))

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        half = len(ctx.saved_tensors) // 2
        inputs, grads = ctx.saved_tensors[:half], ctx.saved_tensors[half:]
        if grad_value is None:
            return (None,) * (1 + half)
        scale = _Scale.apply if torch.is_grad_enabled() else _scale  # a second derivative is asked for
        pairs = zip(inputs, grads, strict=True)
        scaled = [None if x is None or g is None else scale(grad_value, g, x) for x, g in pairs]
        return None, *scaled


def _scale(grad_value: Tensor, gradient: Tensor, _: Tensor) -> Tensor:
    return grad_value * gradient


class _Scale(torch.autograd.Function):
    """grad_value * gradient, refusing to be differentiated again: the weights' own derivative was never computed."""

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
    """Signed pair weights dL/dS_ij (M, N), S_ij and S_ji as separate variables; the one place where they all exist.

    Rows are the embeddings; columns the references, the proxies of losses that hold them, or the embeddings again.
    """
    with torch.no_grad(), torch.autocast(embeddings.device.type, enabled=False):
        layout, queries, references, _, pairing = arrange(loss, embeddings, labels, references, reference_labels)
        by_row, by_column = _prepare(loss, layout, pairing is not None, queries, references)
        q, r = by_row.x, (by_row if by_column is None else by_column).x
        w, terms = q.new_zeros(len(q), len(r)), q.new_zeros(())
        for at, answer in _answers(loss, layout, q, _with_nobody(r)):
            w[_tensor(layout.rows[at, None], w), _tensor(layout.columns, w)] = answer.weights[:, :-1]
            terms += answer.terms
        w /= terms.clamp(min=1)
        held = loss.held(labels)
        if held is not None and held.as_rows:
            return w.T.contiguous()
        if pairing is None:
            return w
        return loss.unfold(w, pairing, w.new_zeros(len(embeddings), len(embeddings)))
