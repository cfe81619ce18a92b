"""The base loss of a method that is made of other losses: any method by name, or plain "logits".

Axes: M items of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from nearfield.errors import InputError
from nearfield.losses.parameters import Classes, Dim, Params, check_values, validated
from nearfield.losses.registry import Method, check_params, create, method
from nearfield.pairs import EngineOptions

LOGITS = "logits"


@validated(LOGITS)
class Logits(nn.Module):
    """Cross-entropy with the embedding itself as logits: proxies that are the axes and do not learn."""

    def __init__(self, num_classes: Classes, dim: Dim) -> None:
        super().__init__()
        self.last: dict[str, int] = {}

    @staticmethod
    def check_together(params: Params) -> None:
        """InputError unless there is one dim for each class."""
        if params["dim"] != params["num_classes"]:
            raise InputError(
                f"logits need one dim for each meta-class, dim = members x meta_classes; got {params['dim']} dims and "
                f"{params['num_classes']} meta-classes a member."
            )

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of `embeddings` (M, C); a 0-dim tensor."""
        self.last = {"anchors": len(labels), "unusable_anchors": 0}
        return F.cross_entropy(embeddings, labels)


def base_params_of(
    base: str, num_classes: int | None, dim: int | None, own: Params | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Parameters for `base`: its `own`, the engine's among `options`, and sizes, if known, where it asks for them."""
    sizes = {"num_classes": num_classes, "dim": dim}
    params = {**{name: size for name, size in sizes.items() if size is not None}, **(own or {})}
    if base == LOGITS:
        return params
    params |= {name: value for name, value in options.items() if name in EngineOptions.__optional_keys__}
    asked = method(base).parameters
    return {k: v for k, v in params.items() if k in asked or k not in ("num_classes", "dim")}


def check_base(base: str, params: Params) -> dict[str, Any]:
    """All parameters of the base loss; InputError unless they are valid."""
    return check_values(LOGITS, Logits, params) if base == LOGITS else check_params(base, params)


def build_base(base: str, params: Params) -> nn.Module:
    """The base loss."""
    return Logits(**params) if base == LOGITS else create(base, **params)


def forms_pairs(base: str) -> bool:
    """Whether the base loss compares items with each other, so that it needs two of them."""
    return base != LOGITS and "dim" not in method(base).parameters


def learned_by_base(base: str, params: Params) -> int:
    """How many numbers the base loss learns."""
    return 0 if base == LOGITS else method(base).learned_numbers(check_params(base, params))


def inner_params(params: Params) -> dict[str, Any]:
    """Parameters of the base of a wrapper, which takes `base`, `base_params`, `num_classes`, `dim` and the engine's."""
    return base_params_of(params["base"], params["num_classes"], params["dim"], params["base_params"], params)


def base_method(owner: str, base: str) -> Method:
    """The method that `owner` wraps; InputError if it is unknown."""
    try:
        return method(base)
    except InputError as error:
        raise InputError(f"{owner}: base must be a method by name; {error}") from None


class Wraps:
    """What the record of a method that wraps another, its `base`, can only learn from that one."""

    @staticmethod
    def learned_numbers(params: Params) -> int:
        """How many numbers the base learns."""
        return learned_by_base(params["base"], inner_params(params))

    @staticmethod
    def compares_references(params: Params) -> bool:
        """Whether the base can compare a batch with other references."""
        return method(params["base"]).takes_references(check_params(params["base"], inner_params(params)))
