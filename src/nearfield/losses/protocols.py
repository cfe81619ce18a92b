"""What a loss may tell about itself beside its value. Whoever asks checks for the protocol, never for a class.

Axes: M items of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Counted(Protocol):
    """A loss that counts the anchors of its last call, and those that it could not use."""

    @property
    def last(self) -> dict[str, int]:
        """`anchors`, `unusable_anchors` and whatever else the loss counts."""


class Idle(NamedTuple):
    """The value of a loss that has learned nothing: a training run that stays there is stuck."""

    cause: Literal["margin", "log_n"]  # all embeddings are equal, or all choices are equally likely
    value: float


@runtime_checkable
class Idles(Protocol):
    """A loss that knows its value when all pairs look alike."""

    def idle(self, labels: Tensor) -> Idle:
        """That value for a batch with these labels (M,)."""


@runtime_checkable
class Learns(Protocol):
    """A loss with parameters of its own that are trained, such as proxies."""

    @staticmethod
    def learned_numbers(params: Mapping[str, Any]) -> int:
        """How many numbers it learns with all these parameters."""


@runtime_checkable
class Compares(Protocol):
    """A loss whose parameters decide whether it compares a batch with other references."""

    @staticmethod
    def compares_references(params: Mapping[str, Any]) -> bool:
        """Whether it does with all these parameters."""


@runtime_checkable
class TakesReferences(Protocol):
    """A loss that can be called with references and their labels, unless it compares with its `own_batch` alone."""

    own_batch: bool


@runtime_checkable
class Ranked(Protocol):
    """A loss whose embeddings are compared by a distance of their own, not by cosine."""

    @staticmethod
    def ranked_by(params: Mapping[str, Any]) -> str:
        """The name of that distance for `retrieval_metrics`, with all these parameters."""


class Ensembled(Protocol):
    """The loss of an ensemble, whose members are trained one by one."""

    def member(self, index: int) -> nn.Module:
        """The loss of one member."""


class HoldsHead(Protocol):
    """A loss that takes the backbone's features and holds the head that embeds them."""

    embedder: nn.Module


def class_size(labels: Tensor) -> float:
    """How many items of a batch have an item's label, itself included, on average over the items."""
    return float(labels.unique(return_counts=True)[1].double().square().sum()) / len(labels)
