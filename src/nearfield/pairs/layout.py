"""Layout: what is compared with what, in label order, in which the positives of a query are neighbours in memory.

A small batch costs as much as its number of operations, so the label arithmetic is done in numpy, at a fraction of what
an operation of torch on few labels costs.

Axes: M queries, N references, D dims.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfield.pairs.checks import check_input, is_finite

if TYPE_CHECKING:
    from nearfield.pairs.contract import Pairing, PairLoss

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


class Compared(NamedTuple):
    """The input of a loss, checked: what is compared with what."""

    layout: Layout
    queries: Tensor  # (M, D)
    references: Tensor | None  # (N, D); None when the queries are the references
    raw: tuple[Tensor, Tensor]  # the vectors for the loss's `penalty`
    pairing: Pairing | None  # from the loss's `pairing`; if given, the vectors are prepared already
    finite: bool  # whether no vector contains NaN or infinity


def arrange(
    loss: PairLoss, queries: Tensor, labels: Tensor, references: Tensor | None, reference_labels: Tensor | None
) -> Compared:
    """Check the input and lay it out."""
    held = check_input(loss, queries, labels, references, reference_labels)
    labels = labels.to(queries.device, torch.int64)
    if held is not None:
        references, reference_labels = held.vectors, held.labels
        if held.as_rows:
            queries, labels, references, reference_labels = references, reference_labels, queries, labels
    raw_queries, raw_references = queries, queries if references is None else references
    finite = is_finite(queries) and (references is None or is_finite(references))
    pairing = loss.pairing(labels) if references is None else None
    if pairing is not None:
        rows, columns, _ = pairing
        wide = queries.to(compared_dtype(queries))
        raw_queries, raw_references = queries[rows], queries[columns]
        queries, references = loss.combine(_normalized(loss, wide)[0], pairing)
        labels, reference_labels = labels[rows], labels[columns]
    layout = _layout(labels, reference_labels)
    usable = ~unusable(loss, layout.num_pos, layout.num_neg)
    anchors, used = len(usable), int(np.count_nonzero(usable))
    each_has_its_proxy = held is not None and held.as_rows
    found = (len(layout.columns), 0) if each_has_its_proxy else (anchors, anchors - used)
    loss.last = {"anchors": found[0], "unusable_anchors": found[1]}
    raw = raw_queries if used == anchors else raw_queries[to_tensor(layout.rows[usable], queries)]
    return Compared(layout, queries, references, (raw, raw_references), pairing, finite)


def _layout(labels: Tensor, reference_labels: Tensor | None) -> Layout:
    sorted_labels, rows = _sorted(labels)
    known, columns = (sorted_labels, rows) if reference_labels is None else _sorted(reference_labels)
    start, stop = known.searchsorted(sorted_labels), known.searchsorted(sorted_labels, "right")
    own, same = reference_labels is None, stop - start
    return Layout(sorted_labels, rows, columns, start, stop, same - own, len(columns) - same, own)


def _sorted(labels: Tensor) -> tuple[Integers, Integers]:
    """Labels in ascending order, and the index of each in the given order."""
    found = np.array(labels.tolist(), np.int64)  # functional transforms hide a tensor's memory from numpy
    order = found.argsort(kind="stable")
    return found[order], order


def unusable(loss: PairLoss, num_pos: Any, num_neg: Any) -> Any:
    """Which queries lack what the loss needs; the counts may be numpy's or torch's."""
    if loss.needs == "nothing":
        return num_pos < 0
    return num_pos * num_neg == 0 if loss.needs == "both" else num_pos == 0


def to_tensor(array: NDArray[Any], like: Tensor) -> Tensor:
    """The array on the device of `like`."""
    return torch.from_numpy(array).to(like.device)


# ---------------------------------------------------------------------------------------------------------------
# Vectors prepared for comparison: normalised or centred, in label order; and the gradient of that step


class Vectors(NamedTuple):
    """Vectors in label order."""

    x: Tensor  # (N, D) float32 or wider, as they are compared
    unmoved: Tensor  # (N, D) the same before the origin was moved
    norms: Tensor | None  # (N, 1) the norms they were divided by, if they were normalised


def compared_dtype(*vectors: Tensor | None) -> torch.dtype:
    """The widest dtype of the vectors, at least float32."""
    return functools.reduce(torch.promote_types, [x.dtype for x in vectors if x is not None], torch.float32)


def prepare(
    loss: PairLoss, layout: Layout, prepared: bool, queries: Tensor, references: Tensor | None
) -> tuple[Vectors, Vectors | None]:
    """Queries and references in label order, normalised or centred unless they are `prepared` already."""
    given = [(queries, layout.rows)] + ([] if references is None else [(references, layout.columns)])
    wide = compared_dtype(queries, references)
    ordered = [_in_order(x.to(wide), order) for x, order in given]
    found = [(x, None) if prepared else _normalized(loss, x) for x in ordered]
    if loss.measure not in ("euclidean", "sqeuclidean"):
        sides = [Vectors(x, x, norms) for x, norms in found]
    else:  # distances do not depend on the origin, but their rounding does
        origin = found[-1][0].mean(0)
        sides = [Vectors(x - origin, x, norms) for x, norms in found]
    return sides[0], None if references is None else sides[1]


def prepare_backward(loss: PairLoss, prepared: bool, grad: Tensor, vectors: Vectors, order: Integers) -> Tensor:
    """The gradient with respect to the vectors given to `prepare`, from that of its results; overwrites `grad`."""
    _, unit, norms = vectors
    if norms is not None:
        along = (grad * unit).sum(1, keepdim=True).mul_(norms > MIN_NORM)  # shorter ones are not unit vectors
        grad = grad.addcmul_(unit, along, value=-1).div_(norms)
    elif loss.measure == "snr" and not prepared:
        grad = grad.sub_(grad.mean(1, keepdim=True))
    return _in_order(grad, order.argsort())


def _normalized(loss: PairLoss, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Vectors normalised or centred, as the loss compares them, and the norms they were divided by."""
    if loss.measure == "snr":
        return x - x.mean(1, keepdim=True), None
    if not loss.normalize:
        return x, None
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=MIN_NORM)
    return x / norms, norms


def _in_order(x: Tensor, order: Integers) -> Tensor:
    """x[order], or x itself where that is the same: proxies may be many, and they come in order."""
    return x.index_select(0, to_tensor(order, x)) if (order[1:] < order[:-1]).any() else x
