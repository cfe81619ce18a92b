"""Embeddings and labels of any common kind, checked and turned into tensors.

Axes: N items, D dimensions (bits of a binary code count as dimensions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfield.errors import InputError, nearest

Distance = Literal["cosine", "euclidean", "hamming"]
DISTANCES: tuple[str, ...] = get_args(Distance)
Array = Tensor | NDArray[Any] | Sequence[Any]


def one_of(argument: str, value: str, valid: Sequence[str]) -> None:
    """Refuse a word that is not among the valid ones, naming the closest."""
    if value not in valid:
        raise InputError(f"{argument} must be one of {', '.join(valid)}; found {value!r}: {nearest(value, valid)}")


def embedding_matrix(value: Array, argument: str, distance: str) -> Tensor:
    """`value` as an (N, D) tensor on its own device, finite; uint8 (packed bits) and bool only for Hamming ranking."""
    matrix = value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise InputError(f"{argument} must be a matrix (items, dimensions); found shape {tuple(matrix.shape)}.")
    if matrix.shape[0] == 0:
        raise InputError(f"{argument} must hold at least one row; found shape {tuple(matrix.shape)}.")
    if matrix.dtype in (torch.uint8, torch.bool) and distance != "hamming":
        raise InputError(
            f'{argument} holds {matrix.dtype} codes, which only distance="hamming" can rank; found {distance!r}.'
        )
    if not matrix.is_floating_point() and distance != "hamming":
        matrix = matrix.double()
    if matrix.is_floating_point():
        _refuse_not_finite(matrix, argument)
    return matrix


def label_codes(
    labels: Array, gallery_labels: Array | None, device: torch.device, argument: str = "labels"
) -> tuple[Tensor, Tensor | None]:
    """Labels of queries and gallery as shared int64 codes 0..C-1; integers of any size and strings stay distinct."""
    own = label_array(labels, argument)
    if gallery_labels is None:
        return torch.as_tensor(np.unique(own, return_inverse=True)[1], device=device), None
    other = label_array(gallery_labels, f"gallery_{argument}")
    if (own.dtype.kind in "US") != (other.dtype.kind in "US"):
        raise InputError(f"{argument} and gallery_{argument} must be of one kind; found {own.dtype} and {other.dtype}.")
    codes = torch.as_tensor(np.unique(np.concatenate([own, other]), return_inverse=True)[1], device=device)
    return codes[: len(own)], codes[len(own) :]


def label_array(labels: Array, argument: str = "labels") -> NDArray[Any]:
    """Labels as a one-dimensional numpy array of integers or strings."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1:
        raise InputError(f"{argument} must be one value per item; found shape {array.shape}.")
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array):
        array = array.astype(str)
    if array.dtype.kind not in "iubUS":
        raise InputError(
            f"{argument} must be integers or strings; found {array.dtype}. Convert them with .astype(int) if they are class ids."
        )
    return array


def same_length(matrix: Tensor, labels: Tensor, argument: str, label_argument: str) -> None:
    """Refuse embeddings and labels of different lengths."""
    if matrix.shape[0] != labels.shape[0]:
        raise InputError(
            f"{argument} and {label_argument} must have the same length; found {matrix.shape[0]} rows and {labels.shape[0]} labels."
        )


def _refuse_not_finite(matrix: Tensor, argument: str) -> None:
    if bool(torch.isfinite(matrix.sum())):  # one cheap pass; a sum may overflow, hence the second look
        return
    bad = (~torch.isfinite(matrix).all(dim=1)).nonzero()[:, 0]
    if len(bad):
        raise InputError(
            f"{argument} must be finite; {len(bad)} of {matrix.shape[0]} rows hold NaN or infinity, the first is row {int(bad[0])}. "
            "Drop those rows or look for a diverged model."
        )
