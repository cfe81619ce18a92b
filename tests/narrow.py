"""Values as the type that a test knows them to have, where the package promises a wider one: `mypy` checks the rest."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nearfield import losses
from nearfield.data import Dataset
from nearfield.pairs import PairLoss

T = TypeVar("T")


def narrow(kind: type[T], value: object) -> T:
    """`value`, which is a `kind`."""
    assert isinstance(value, kind), f"expected {kind.__name__}, got {type(value).__name__}"
    return value


def pair_loss(name: str, **params: Any) -> PairLoss:
    """`losses.create` of a method that is a pair loss."""
    return narrow(PairLoss, losses.create(name, **params))


def grad_of(x: object) -> Tensor:
    """The gradient of a tensor that has one."""
    return narrow(Tensor, narrow(Tensor, x).grad)


def pixels_of(dataset: Dataset) -> NDArray[Any]:
    """The images, or features, of a dataset that holds them in memory."""
    return narrow(np.ndarray, dataset.images)
