"""Losses against learned proxies, under the names, parameters and defaults of pytorch-metric-learning 2.9.

The proxies are `loss.proxies` (C K, D), and keep their precision whatever that of a batch. `W` and `fc` show them as
PML names them, (D, C K); its checkpoints are read. Axes: C classes, K centers of a class, D dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearfield.compat.pml.base import BridgeLoss, Regularizer
from nearfield.compat.pml.distances import CosineSimilarity, DotProductSimilarity, LpDistance
from nearfield.compat.pml.items import WeightedBridge, WeightedRows, own_labels
from nearfield.compat.pml.tuples import Batch, Indices
from nearfield.losses.classifiers import ArcFace, CosFace, SoftTriple, SubCenterArcFace
from nearfield.losses.proxies import ProxyAnchor, ProxySoftmax
from nearfield.losses.proxy_loss import ProxyLoss

Init = Callable[[Tensor], Any]


class ProxyBridge(BridgeLoss):
    """A loss against proxies: of a batch with labels, without references."""

    parameter: ClassVar[str] = "W"  # PML's name of the proxies
    transposed: ClassVar[bool] = True  # whether PML holds them as (D, C K)
    default_init: ClassVar[Init] = nn.init.normal_

    def __init__(
        self,
        weight_init_func: Init | None = None,
        weight_regularizer: Regularizer | None = None,
        weight_reg_weight: float = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        measure, given = type(self).default_distance().measure, self.distance
        if given.measure != measure or not given.normalize_embeddings:
            raise self.refuse(f"distance={type(given).__name__}", "its proxies are compared as in its paper.")
        self.weight_regularizer, self.weight_reg_weight = weight_regularizer, weight_reg_weight
        self.init = weight_init_func or type(self).default_init

    def hold(self, loss: ProxyLoss) -> None:
        """Take the loss of this library, its proxies started as PML starts them."""
        self.loss = loss
        start = torch.empty_like(self.held.detach())
        self.init(start)
        with torch.no_grad():
            loss.proxies.copy_(start.T if self.transposed else start)

    @property
    def held(self) -> Tensor:
        """The proxies in the shape that PML gives them."""
        proxies: Tensor = self.loss.proxies  # type: ignore[assignment]
        return proxies.T if self.transposed else proxies

    def __getattr__(self, name: str) -> Any:
        return self.held if name == type(self).parameter else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == type(self).parameter:
            shared = isinstance(value, nn.Parameter) and not self.transposed
            value = value if shared else nn.Parameter((value.T if self.transposed else value).detach().clone())
            self.loss.proxies = value
        else:
            super().__setattr__(name, value)

    def compute(self, batch: Batch, given: Indices | None) -> Tensor:
        labels = own_labels(self, batch)
        value: Tensor = self.loss(batch.embeddings, labels)
        if self.weight_regularizer is not None:
            value = value + self.weight_reg_weight * self.weight_regularizer(
                self.held.T if self.transposed else self.held
            )
        return value

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        theirs = state_dict.pop(f"{prefix}{type(self).parameter}", None)
        if theirs is not None:
            state_dict[f"{prefix}loss.proxies"] = theirs.T.contiguous() if self.transposed else theirs
            state_dict.setdefault(f"{prefix}loss.turn", torch.zeros((), dtype=torch.int64))
        super()._load_from_state_dict(state_dict, prefix, *args)


class WeightedProxies(WeightedBridge, ProxyBridge):
    """A classification loss, for which a tuple is read as weights of items."""

    def compute(self, batch: Batch, given: Indices | None) -> Tensor:
        with self.weighted(batch, given):
            return super().compute(batch, given)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """The logits of each class, without a margin, (M, C)."""
        raise NotImplementedError


class ProxyAnchorLoss(ProxyBridge):
    """Proxy-Anchor, of cosines; takes no tuple, which PML adds inside its exponentials."""

    default_reducer = "divisor"
    parameter, transposed = "proxies", False
    default_init = partial(nn.init.kaiming_normal_, mode="fan_out")

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float = 0.1, alpha: float = 32, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.margin, self.alpha = num_classes, margin, alpha
        self.hold(ProxyAnchor(num_classes=num_classes, dim=embedding_size, alpha=alpha, delta=margin))

    def compute(self, batch: Batch, given: Indices | None) -> Tensor:
        own_labels(self, batch)
        if given is not None:
            raise self.refuse(
                "indices_tuple", "PML adds how often an item is mined to its exponent, which no paper does."
            )
        return super().compute(batch, given)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Cosines with the proxies, (M, C)."""
        return _cosines(embeddings, self.held)


class _Softmax(WeightedRows, ProxySoftmax):
    pass


class NormalizedSoftmaxLoss(WeightedProxies):
    """Classification by the cosine with a proxy, over a temperature."""

    default_distance = DotProductSimilarity

    def __init__(self, num_classes: int, embedding_size: int, temperature: float = 0.05, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature = temperature
        self.hold(_Softmax(num_classes=num_classes, dim=embedding_size, temperature=temperature))

    def get_logits(self, embeddings: Tensor) -> Tensor:
        return _cosines(embeddings, self.held.T) / self.temperature


class ProxyNCALoss(WeightedProxies):
    """Proxy-NCA in PML's form, a softmax over all proxies of -softmax_scale d^2, the positive included."""

    default_distance = partial(LpDistance, power=2)
    parameter, transposed = "proxies", False
    anchors_only = True

    def __init__(self, num_classes: int, embedding_size: int, softmax_scale: float = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.softmax_scale = softmax_scale
        self.hold(_Softmax(num_classes=num_classes, dim=embedding_size, temperature=1 / (2 * softmax_scale)))

    def get_logits(self, embeddings: Tensor) -> Tensor:
        found: Tensor = self.distance(embeddings, self.held)
        return found


class _ArcFace(WeightedRows, ArcFace):
    pass


class ArcFaceLoss(WeightedProxies):
    """ArcFace; `margin` in degrees, as in PML."""

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float = 28.6, scale: float = 64, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.margin, self.scale = num_classes, math.radians(margin), scale
        self.hold(_ArcFace(num_classes=num_classes, dim=embedding_size, scale=scale, margin=self.margin))

    def get_logits(self, embeddings: Tensor) -> Tensor:
        return _cosines(embeddings, self.held.T) * self.scale


class _SubCenter(WeightedRows, SubCenterArcFace):
    pass


class SubCenterArcFaceLoss(WeightedProxies):
    """ArcFace with several centers for each class; `margin` in degrees."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 28.6,
        scale: float = 64,
        sub_centers: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.margin, self.scale, self.sub_centers = (
            num_classes,
            math.radians(margin),
            scale,
            sub_centers,
        )
        sizes: dict[str, Any] = {"num_classes": num_classes, "dim": embedding_size, "centers": sub_centers}
        self.hold(_SubCenter(scale=scale, margin=self.margin, **sizes))

    def get_logits(self, embeddings: Tensor) -> Tensor:
        centers = _cosines(embeddings, self.held.T).unflatten(1, (self.num_classes, self.sub_centers))
        nearest: Tensor = centers.amax(2)
        return nearest * self.scale


class _CosFace(WeightedRows, CosFace):
    pass


class CosFaceLoss(WeightedProxies):
    """CosFace."""

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float = 0.35, scale: float = 64, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.margin, self.scale = num_classes, margin, scale
        self.hold(_CosFace(num_classes=num_classes, dim=embedding_size, scale=scale, margin=margin))

    def get_logits(self, embeddings: Tensor) -> Tensor:
        return _cosines(embeddings, self.held.T) * self.scale


class _SoftTriple(WeightedRows, SoftTriple):
    pass


class SoftTripleLoss(WeightedProxies):
    """SoftTriple without its regulariser, which PML leaves to `weight_regularizer`."""

    parameter = "fc"
    default_init = partial(nn.init.kaiming_uniform_, a=math.sqrt(5))

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        la: float = 20,
        gamma: float = 0.1,
        margin: float = 0.01,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.centers_per_class = num_classes, centers_per_class
        self.la, self.gamma, self.margin = la, gamma, margin
        sizes: dict[str, Any] = {"num_classes": num_classes, "dim": embedding_size, "centers": centers_per_class}
        self.hold(_SoftTriple(scale=la, gamma=gamma, tau=0.0, delta=margin, **sizes))

    def get_logits(self, embeddings: Tensor) -> Tensor:
        s = _cosines(embeddings, self.held.T).unflatten(1, (self.num_classes, self.centers_per_class))
        whole: Tensor = ((s / self.gamma).softmax(2) * s).sum(2)
        return whole


def _cosines(embeddings: Tensor, proxies: Tensor) -> Tensor:
    found: Tensor = CosineSimilarity()(embeddings, proxies)
    return found
