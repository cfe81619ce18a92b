"""Layout: what is compared with what, in label order, in which the positives of a query are neighbours in memory.

A small batch costs as much as its number of operations, so the label arithmetic is done in numpy, at a fraction of what
an operation of torch on few labels costs.

Axes: M queries, N references, D dims.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nearfield.errors import InputError
from nearfield.pairs.checks import check_input, poison
from nearfield.pairs.shards import Shard

if TYPE_CHECKING:
    from nearfield.pairs.contract import Held, Pairing, PairLoss

REMEMBERED = 512  # rows of a batch up to which what follows from the sizes of its classes is remembered
MIN_NORM = 1e-12  # vectors shorter than this are divided by it when they are normalised
Integers = NDArray[np.int64]


class Layout(NamedTuple):
    """Which references are positives of which query, for queries and references both sorted by label."""

    labels: Integers  # (M,) of the queries
    rows: Integers  # (M,) index of each query in the caller's order
    columns: Integers  # (N,) index of each reference in the caller's order
    start: Integers  # (M,) first reference with the query's label
    stop: Integers  # (M,) one past the last
    num_pos: Integers  # (M,)
    num_neg: Integers  # (M,)
    own: bool  # whether queries and references are the same items
    present: int  # how many queries of all processes have positives
    shard: Shard | None = None  # of the vectors that the loss holds, if other processes have the rest of them
    split: Literal["", "rows", "columns", "gathered"] = ""  # what is split over processes; see shards.py
    pattern: bytes | None = None  # of a small batch compared with itself: where its classes begin


class Compared(NamedTuple):
    """The input of a loss, checked: what is compared with what."""

    layout: Layout
    queries: Tensor  # (M, D)
    references: Tensor | None  # (N, D); None when the queries are the references
    raw: Callable[[], tuple[Tensor, Tensor]]  # the vectors for the loss's `penalty`
    pairing: Pairing | None  # from the loss's `pairing`; if given, the vectors are prepared already
    as_rows: bool  # whether the queries are vectors of the loss and the references the batch
    poison: Tensor | None  # () of a batch with a pairing: 0, or NaN if any row is not finite


def arrange(
    loss: PairLoss,
    queries: Tensor,
    labels: Tensor,
    references: Tensor | None,
    reference_labels: Tensor | None,
    swapped: bool = False,
    held: Held | None = None,
) -> Compared:
    """Check the input and lay it out.

    With `swapped`, queries and references of the loss's pairing change places; `held` takes the place of the vectors
    that belong to the loss.
    """
    labels, reference_labels, held = check_input(loss, queries, labels, references, reference_labels, held)
    batch, joined = len(queries), held is not None and held.joined
    if held is not None and joined:
        queries, labels, reference_labels = torch.cat([queries, held.vectors]), torch.cat([labels, held.labels]), None
    elif held is not None:
        references = held.vectors
    layout = None if held is None or joined else _layout_of_held(loss, labels, held)
    as_rows = held is not None and held.as_rows
    if as_rows:
        queries, references = cast(Tensor, references), queries
    with no_autocast(queries):
        queries, references = loss.lift(queries, references)
    given = queries, queries if references is None else references
    pairing, bad = loss.pairing(labels) if references is None else None, None
    if pairing is not None:
        pairing = pairing._replace(rows=pairing.columns, columns=pairing.rows) if swapped else pairing
        rows, columns, *_ = pairing
        wide = queries.to(compared_dtype(queries))
        combined, references = loss.combine(_normalized(loss, wide)[0], pairing)
        bad, queries = poison(queries), combined  # of the batch: a row that is in no pair counts too
        reference_labels = None if references is None else pick(labels, columns)
        labels = pick(labels, rows)
    layout = layout or _layout(_sorted(labels), None if reference_labels is None else _sorted(reference_labels))
    usable = ~unusable(loss.needs, layout.num_pos, layout.num_neg)
    anchors, used = len(usable), int(np.count_nonzero(usable))
    found = (batch, 0) if as_rows or joined else (anchors, anchors - used)  # each has its proxy
    loss.last = {"anchors": found[0], "unusable_anchors": found[1]}

    def raw() -> tuple[Tensor, Tensor]:
        """The vectors as they were given, of those queries that have what the loss needs."""
        queries, references = given
        if pairing is not None:
            queries, references = pick(queries, pairing.rows), pick(references, pairing.columns)
        return queries if used == anchors else pick(queries, torch.from_numpy(layout.rows[usable])), references

    return Compared(layout, queries, references, raw, pairing, as_rows, bad)


Sorted = tuple[Integers, Integers]  # labels in ascending order, and the index of each in the given order


def _layout(of_queries: Sorted, of_references: Sorted | None) -> Layout:
    sorted_labels, rows = of_queries
    if of_references is None:
        return _own_layout(sorted_labels, rows)
    known, columns = of_references
    start, stop = known.searchsorted(sorted_labels), known.searchsorted(sorted_labels, "right")
    num_pos = stop - start
    present = int(np.count_nonzero(num_pos))
    return Layout(sorted_labels, rows, columns, start, stop, num_pos, len(columns) - num_pos, False, present)


def _own_layout(sorted_labels: Integers, rows: Integers) -> Layout:
    """The layout of a batch that is compared with itself.

    All but labels and rows follows from the sizes of its classes, its pattern, which most samplers repeat.
    """
    first = np.flatnonzero(sorted_labels[1:] != sorted_labels[:-1]) + 1  # (C - 1,) rows where another class begins
    pattern, count = first.tobytes(), len(rows)
    found = layout_of_pattern(pattern, count) if count <= REMEMBERED else _layout_by_class(first, count)
    return found._replace(labels=sorted_labels, rows=rows, columns=rows)


@functools.lru_cache(maxsize=8)
def layout_of_pattern(pattern: bytes, count: int) -> Layout:
    """The layout of `count` rows in label order; the pattern is the bytes of `first`."""
    first = np.array(struct.unpack(f"{len(pattern) // 8}q", pattern), np.int64)  # torch.compile trips over frombuffer
    return _layout_by_class(first, count)._replace(pattern=pattern)


def _layout_by_class(first: Integers, count: int) -> Layout:
    """The layout of `count` rows in label order, of which classes but the first begin at `first`, (C - 1,)."""
    sizes = np.diff(first, prepend=0, append=count)  # (C,)
    rows, labels = np.arange(count), np.repeat(np.arange(len(sizes)), sizes)
    same, stop = sizes[labels], np.cumsum(sizes)[labels]
    present = int(np.count_nonzero(same > 1))
    return Layout(labels, rows, rows, stop - same, stop, same - 1, count - same, True, present)


def _layout_of_held(loss: PairLoss, labels: Tensor, held: Held) -> Layout:
    """The layout of a batch and the vectors that belong to the loss, of which other processes may have some."""
    shard, of_batch, of_held = held.shard, _sorted(labels), _ascending(held.labels)
    if shard is None:
        return _layout(of_held, of_batch) if held.as_rows else _layout(of_batch, of_held)
    if held.as_rows:
        if loss.surveys:
            name = type(loss).__name__
            raise InputError(f"shard must be False for {name}, which surveys all rows at once; got True.")
        present = shard.each * len(np.unique(of_batch[0]))
        return _layout(of_held, of_batch)._replace(present=present, shard=shard, split="rows")
    if not loss.combines_columns or loss.miner is not None:
        whole = shard.gather(F.pad(held.labels, (0, 1))[None])[0, :-1]
        return _layout(of_batch, _ascending(whole))._replace(shard=shard, split="gathered")
    layout = _layout(of_batch, of_held)
    num_pos = np.full_like(layout.num_pos, shard.each)  # every label has its vectors somewhere
    return layout._replace(
        num_pos=num_pos, num_neg=shard.whole - num_pos, present=len(labels), shard=shard, split="columns"
    )


def integers(labels: Tensor) -> Integers:
    """Integers on the CPU as numpy's."""
    try:
        return labels.numpy()
    except RuntimeError:  # functional transforms hide a tensor's memory
        return np.array(labels.tolist(), np.int64)


def _sorted(labels: Tensor) -> Sorted:
    found = integers(labels)
    order = found.argsort(kind="stable")
    return found[order], order


def _ascending(labels: Tensor) -> Sorted:
    """The same of labels that are in order."""
    return integers(labels), np.arange(len(labels))


def unusable(needs: str, num_pos: Any, num_neg: Any) -> Any:
    """Which queries lack what a loss needs; the counts may be numpy's or torch's."""
    if needs == "nothing":
        return num_pos < 0
    return num_pos * num_neg == 0 if needs == "both" else num_pos == 0


def to_tensor(array: NDArray[Any], like: Tensor) -> Tensor:
    """The array on the device of `like`, without waiting for it."""
    found = torch.from_numpy(array)
    return found if like.device.type == "cpu" else found.to(like.device, non_blocking=True)


def pick(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows] for rows on the CPU, without waiting for the device of x."""
    return x.index_select(0, rows if x.device.type == "cpu" else rows.to(x.device, non_blocking=True))


def pick_both(x: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """x[rows] and x[columns] in one operation, whose gradient is one too."""
    first, second = pick(x, torch.cat([rows, columns])).split([len(rows), len(columns)])
    return first, second


def no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Whatever happens inside has the dtype of its operands, even where autocast is enabled for the device of x."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


# ---------------------------------------------------------------------------------------------------------------
# Vectors prepared for comparison: normalised or centred, in label order; and the gradient of that step


class Vectors(NamedTuple):
    """Vectors in label order."""

    x: Tensor  # (N, D) float32 or wider, as they are compared
    unmoved: Tensor  # (N, D) the same before the origin was moved, or the vectors were centred
    norms: Tensor | None  # (N, 1) the norms they were divided by, if they were normalised
    given: Tensor  # (N,) the norms of queries before that, for losses with `row_norms`; else empty


def compared_dtype(*vectors: Tensor | None) -> torch.dtype:
    """The widest dtype of the vectors, at least float32."""
    return functools.reduce(torch.promote_types, [x.dtype for x in vectors if x is not None], torch.float32)


def prepare(
    loss: PairLoss, layout: Layout, prepared: bool, queries: Tensor, references: Tensor | None
) -> tuple[Vectors, Vectors | None]:
    """Queries and references in label order, normalised unless they are `prepared`, and moved as the measure asks."""
    given = [(queries, layout.rows)] + ([] if references is None else [(references, layout.columns)])
    wide = compared_dtype(queries, references)
    ordered = [_in_order(x.to(wide), order) for x, order in given]
    found = [(x, None) if prepared else _normalized(loss, x) for x in ordered]
    given_norms = torch.linalg.vector_norm(ordered[0], dim=1) if loss.row_norms else ordered[0].new_empty(0)
    if loss.measure == "snr":
        sides = [Vectors(x - x.mean(1, keepdim=True), x, norms, given_norms) for x, norms in found]
    elif loss.measure not in ("euclidean", "sqeuclidean"):
        sides = [Vectors(x, x, norms, given_norms) for x, norms in found]
    else:  # distances do not depend on the origin, but their rounding does
        origin = found[0 if layout.split else -1][0].mean(0)
        sides = [Vectors(x - origin, x, norms, given_norms) for x, norms in found]
    return sides[0], None if references is None else sides[1]


def prepare_backward(loss: PairLoss, grad: Tensor, norm_grad: Tensor, vectors: Vectors, order: Integers) -> Tensor:
    """The gradient with respect to the vectors given to `prepare`, from that of its results; overwrites `grad`.

    `norm_grad` (N,) is the gradient with respect to their norms as given, or empty.
    """
    _, unit, norms, given = vectors
    if loss.measure == "snr":
        grad = grad.sub_(grad.mean(1, keepdim=True))
    if norms is not None:
        along = (grad * unit).sum(1, keepdim=True).mul_(norms > MIN_NORM)  # shorter ones are not unit vectors
        grad = grad.addcmul_(unit, along, value=-1).div_(norms)
    if len(norm_grad):
        length = given if norms is None else given / norms[:, 0]  # of `unit`, which is 1 or for tiny vectors less
        grad = grad.addcmul_(unit, (norm_grad / length.clamp(min=MIN_NORM))[:, None])
    if _is_ascending(order):
        return grad
    return torch.empty_like(grad).index_copy_(0, to_tensor(order, grad), grad)


def _normalized(loss: PairLoss, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Vectors normalised, if the loss compares unit vectors, and the norms they were divided by."""
    if not loss.normalize:
        return x, None
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=MIN_NORM)
    return x / norms, norms


def _in_order(x: Tensor, order: Integers) -> Tensor:
    """x[order], or x itself where that is the same: proxies may be many, and they come in order."""
    return x if _is_ascending(order) else x.index_select(0, to_tensor(order, x))


def _is_ascending(order: Integers) -> bool:
    return not (order[1:] < order[:-1]).any()
