"""Checks of what a loss is called with. Every error names the argument, the rule, the value and the remedy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearfield.errors import InputError, NearfieldError

if TYPE_CHECKING:
    from nearfield.pairs.contract import Held, PairLoss


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_input(
    loss: PairLoss,
    queries: Tensor,
    labels: Tensor,
    references: Tensor | None,
    reference_labels: Tensor | None,
    held: Held | None = None,
) -> tuple[Tensor, Tensor | None, Held | None]:
    """Both labels, on the CPU, and the vectors that belong to the loss, if any; InputError for input it cannot take.

    `held` takes the place of those that belong to it.
    """
    name = type(loss).__name__
    check_vectors("embeddings", queries, loss.check_finite)
    labels = check_labels("labels", labels, queries)
    if loss.measure == "snr" and queries.shape[1] < 2:
        raise InputError(f"embeddings must have at least 2 dims: {name} compares variances over them; got 1.")
    held = loss.held(labels) if held is None else held
    if held is not None:
        if references is not None or reference_labels is not None:
            raise InputError(f"{name} compares with its own proxies; call it without references and their labels.")
        if held.vectors.shape[1] != queries.shape[1]:
            raise InputError(f"embeddings must have the proxies' {held.vectors.shape[1]} dims; got {queries.shape[1]}.")
        return labels, held.labels, held
    if references is None:
        if reference_labels is not None:
            raise InputError("reference_labels were given without references; give both or neither.")
        if len(queries) < 2:
            raise InputError(f"embeddings must have at least 2 rows to form a pair; got {len(queries)}.")
        return labels, None, None
    if loss.own_batch:
        raise InputError(f"{name} compares a batch with itself; call it without references.")
    if reference_labels is None:
        raise InputError("references were given without reference_labels; give one label for each reference.")
    check_vectors("references", references, loss.check_finite)
    if references.shape[1] != queries.shape[1]:
        raise InputError(f"references must have the queries' {queries.shape[1]} dims; got {references.shape[1]}.")
    return labels, check_labels("reference_labels", reference_labels, references), None


def check_vectors(name: str, x: Tensor, finite: bool = False) -> None:
    """Raise InputError unless `x` is a dense floating-point (rows, dims) matrix with at least one of each."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a tensor of shape (rows, dims); got {type(x).__name__}.")
    _check_dense(name, x)
    if x.ndim != 2 or 0 in x.shape:
        raise InputError(f"{name} must have shape (rows, dims), neither of them 0; got {tuple(x.shape)}.")
    if x.dtype not in FLOATS:
        raise InputError(f"{name} must be floating point, 16 to 64 bits; got {x.dtype}. Convert with .float().")
    if finite and not math.isfinite(read(poison(x))):
        bad = int((~x.isfinite()).any(1).sum())
        raise InputError(
            f"{name} must be finite; {bad} of {len(x)} rows contain NaN or infinity. Check the learning rate."
        )


def _check_dense(name: str, x: Tensor) -> None:
    """Raise InputError for tensors without strides or without data, on which few operations are defined."""
    if x.layout != torch.strided or x.is_nested:
        found = "a nested tensor" if x.is_nested else x.layout
        raise InputError(f"{name} must be a dense tensor; got {found}. Convert it, for example with .to_dense().")
    if x.is_meta:
        raise InputError(f"{name} must have data; got a tensor on the meta device. Create it on a real device.")


def poison(x: Tensor) -> Tensor:
    """0 if all components are finite, else NaN; a 0-dim tensor, so that nobody waits for a device to know."""
    if not len(x):
        return x.new_zeros(())
    low, high = x.detach().aminmax()
    return (low * 0).add_(high * 0)


def read(x: Tensor) -> float:
    """The number in a 0-dim tensor; NearfieldError under vmap, where it holds one for each batch."""
    try:
        return x.item()
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        raise no_vmap() from error


def no_vmap() -> NearfieldError:
    """The error for a call under vmap."""
    return NearfieldError(
        "losses do not support torch.vmap: labels decide in Python what is compared. Call the loss once for each "
        "batch, for example torch.stack([loss(x, y) for x, y in zip(embeddings, labels)])."
    )


def check_labels(name: str, labels: Tensor, x: Tensor) -> Tensor:
    """`labels` on the CPU, or InputError unless they are one integer below 2^31 for each row of `x`.

    Labels decide in Python what is compared. Those that come on an accelerator are fetched, which waits for it: leave
    them on the CPU.
    """
    if (
        not isinstance(labels, Tensor)
        or labels.is_floating_point()
        or labels.is_complex()
        or labels.dtype == torch.bool
    ):
        found = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"{name} must be a tensor of integers; got {found}. Convert with .long().")
    _check_dense(name, labels)
    if labels.shape != (len(x),):
        raise InputError(f"{name} must have shape ({len(x)},), one for each row; got {tuple(labels.shape)}.")
    labels = labels.to("cpu", torch.int64)
    low, high = map(read, labels.aminmax())
    if (size := max(-low, high)) >= 2**31:
        raise InputError(f"{name} must be below 2^31 in size; got {size}. Renumber them from 0.")
    return labels


def check_classes(labels: Tensor, num_classes: int) -> None:
    """Raise InputError unless all `labels` are classes of a loss for `num_classes`."""
    low, high = map(int, labels.aminmax())
    if low < 0 or high >= num_classes:
        bad = low if low < 0 else high
        raise InputError(f"labels must be from 0 to num_classes - 1 = {num_classes - 1}; got {bad}.")
