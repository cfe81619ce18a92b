"""Embeddings and labels of any common kind, checked and turned into tensors.

Axes: N items, D dimensions (bits of a binary code count as dimensions).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfield.errors import InputError, require_one_of
from nearfield.metrics.ball import HYPERBOLIC, ball_of

DISTANCES = ("cosine", "euclidean", "hamming", HYPERBOLIC)
Distance = str  # one of these, or hyperbolic:C:CLIP for another ball
Array = Tensor | NDArray[Any] | Sequence[Any]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def require_distance(value: str) -> None:
    """InputError unless `value` names a distance."""
    if ball_of(value) is None:
        require_one_of("distance", value, DISTANCES)


def whole_number(argument: str, value: object, low: int, high: int) -> int:
    """`value` as an int between low and high; InputError otherwise, for booleans and fractions too."""
    try:
        number = low - 1 if isinstance(value, bool | np.bool_) else operator.index(cast(SupportsIndex, value))
    except (TypeError, ValueError):  # the latter: an array of several
        number = low - 1
    if not low <= number <= high:
        raise InputError(f"{argument} must be a whole number from {low} to {high}; got {value!r}.")
    return number


def embedding_matrix(value: Array, argument: str, distance: str, may_be_empty: bool = False) -> Tensor:
    """`value` as an (N, D) tensor on its own device, finite; uint8 (packed bits) and bool only for Hamming ranking."""
    matrix = _dense(value, argument).detach() if isinstance(value, Tensor) else _from_numpy(value, argument)
    if may_be_empty and matrix.ndim in (1, 2) and not len(matrix):
        return matrix if matrix.ndim == 2 else matrix.new_zeros((0, 0))
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(
            f"{argument} must be a matrix of at least one item and one dimension; got shape {tuple(matrix.shape)}."
        )
    if matrix.dtype in (torch.uint8, torch.bool) and distance != "hamming":
        raise InputError(
            f'{argument} holds {matrix.dtype} codes, which only distance="hamming" ranks; got distance={distance!r}.'
        )
    if matrix.is_complex():
        raise InputError(f"{argument} must be real numbers; got {matrix.dtype}.")
    if matrix.is_floating_point() and matrix.dtype not in FLOATS:
        raise InputError(f"{argument} must be float16, bfloat16, float32 or float64; got {matrix.dtype}. Use .float().")
    if not matrix.is_floating_point() and matrix.dtype not in (torch.uint8, torch.bool):
        matrix = matrix.double()
    if matrix.is_floating_point():
        _require_finite(matrix, argument)
        if distance != "hamming":
            matrix = _of_common_size(matrix, argument)
    return matrix.cpu() if matrix.device.type == "mps" else matrix  # that device has no float64


def _dense(tensor: Tensor, argument: str) -> Tensor:
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise InputError(f"{argument} must be a dense tensor that holds data; got {tensor.layout} on {tensor.device}.")
    return tensor


def _as_array(value: Array, argument: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"{argument} must be rectangular, all rows equally long; {error}.") from error


def _from_numpy(value: Array, argument: str) -> Tensor:
    """A tensor that shares the memory of `value` where torch can."""
    array = _as_array(value, argument)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{argument} must be numbers; got an array of {array.dtype}.")
    if array.dtype.kind in "fiu" and array.dtype not in _SHARED:
        array = array.astype(np.float64)
    if not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


_SHARED = tuple(np.dtype(name) for name in ("float16", "float32", "float64", "uint8"))


def label_codes(
    labels: NDArray[Any], gallery_labels: NDArray[Any] | None, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Labels of queries and gallery as shared int64 codes; integers of any size and strings stay distinct."""
    if gallery_labels is None:
        return torch.from_numpy(np.unique(labels, return_inverse=True)[1]).to(device), None
    if (labels.dtype.kind == "U") != (gallery_labels.dtype.kind == "U"):
        raise InputError(
            f"labels and gallery_labels must be of one kind; got {labels.dtype} and {gallery_labels.dtype}."
        )
    together = np.unique(np.concatenate([labels, gallery_labels]), return_inverse=True)[1]
    codes = torch.from_numpy(together).to(device)
    return codes[: len(labels)], codes[len(labels) :]


def label_array(labels: Array, argument: str = "labels") -> NDArray[Any]:
    """Labels as a one-dimensional numpy array of int64 (uint64 where they need it) or of strings."""
    if isinstance(labels, Tensor) and labels.is_floating_point():
        raise InputError(f"{argument} must be integers or strings; got {labels.dtype}. Convert class ids with .long().")
    if isinstance(labels, Tensor):
        array = _dense(labels, argument).detach().cpu().numpy()
    else:
        array = _as_array(labels, argument)
    if array.ndim != 1:
        raise InputError(f"{argument} must be one value per item; got shape {array.shape}.")
    if not len(array):
        return array.astype(np.int64)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array):
        array = array.astype(str)
    if array.dtype.kind not in "iubU":
        raise InputError(
            f"{argument} must be integers or strings; got {array.dtype}. Convert class ids with .astype(int)."
        )
    return array if array.dtype.kind == "U" or array.dtype == np.uint64 else array.astype(np.int64)


def same_length(matrix: Tensor, labels: NDArray[Any], argument: str, label_argument: str) -> None:
    """Refuse embeddings and labels of different lengths."""
    if len(matrix) != len(labels):
        raise InputError(
            f"{argument} and {label_argument} must have the same length; "
            f"got {len(matrix)} rows and {len(labels)} labels."
        )


def same_width(queries: Tensor, gallery: Tensor) -> None:
    """Refuse a gallery that cannot be compared with the queries."""
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(f"gallery must have the {queries.shape[1]} dimensions of the queries; got {gallery.shape[1]}.")
    if queries.device != gallery.device:
        raise InputError(f"gallery must be on the device of the queries, {queries.device}; got {gallery.device}.")
    if (queries.dtype == torch.uint8) != (gallery.dtype == torch.uint8):
        raise InputError(f"gallery must hold packed bits if the queries do; got {gallery.dtype} and {queries.dtype}.")


def _require_finite(matrix: Tensor, argument: str) -> None:
    if bool(torch.isfinite(matrix.sum())):  # one cheap pass; a sum may overflow, hence the second look
        return
    bad = (~torch.isfinite(matrix).all(dim=1)).nonzero()[:, 0]
    if len(bad):
        raise InputError(
            f"{argument} must be finite; {len(bad)} of {len(matrix)} rows hold NaN or infinity, first {int(bad[0])}."
            " Remove those rows, or check whether the model diverged."
        )


def _of_common_size(matrix: Tensor, argument: str) -> Tensor:
    """The matrix in a type in which lengths and their squares neither overflow nor underflow."""
    size = matrix.abs().amax(dim=1)  # (N,)
    least = float(torch.where(size > 0, size, 1.0).min())
    if float(size.max()) > 1e100 or least < 1e-100:
        raise InputError(
            f"{argument} must have rows of zeros or with a largest magnitude from 1e-100 to 1e100; got "
            f"{float(size.max()):g} and {least:g}. Rescale the vectors."
        )
    return matrix.double() if least < 1e-30 else matrix
