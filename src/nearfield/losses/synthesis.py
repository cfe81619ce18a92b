"""Wrappers of losses against proxies: classes made of two others, and proxies that must not collapse.

Axes: M items of a batch, V virtual ones, C classes, D dims.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError
from nearfield.losses.bases import LOGITS, base_params_of, build_base, check_base, learned_by_base
from nearfield.losses.parameters import Classes, Dim, Params, Scale, Weight
from nearfield.losses.proxy_loss import ProxyLoss, ProxyOptions
from nearfield.losses.registry import Claim, Real, method, register
from nearfield.pairs import Held, check_labels, check_vectors
from nearfield.pairs.mining import uniforms

Portion = Annotated[float, Field(ge=0, le=1)]


class ProxyWrapper(nn.Module):
    """A loss around a `base` loss against proxies, whose proxies it shares."""

    def __init__(self, num_classes: int, dim: int, base: str, base_params: Params | None, options: Params) -> None:
        super().__init__()
        given = {"num_classes": num_classes, "dim": dim, "base": base, "base_params": base_params, **options}
        self.base = cast(ProxyLoss, build_base(base, self._base_params(given)))

    @staticmethod
    def check_together(params: Params) -> None:
        if params.get("shard"):
            raise InputError("shard must be False for a loss around another, which needs all proxies; got True.")
        check_base(params["base"], ProxyWrapper._base_params(params))

    @staticmethod
    def learned_numbers(params: Params) -> int:
        return learned_by_base(params["base"], ProxyWrapper._base_params(params))

    @staticmethod
    def _base_params(params: Params) -> dict[str, Any]:
        own = {key: params[key] for key in ("sample", "sparse") if key in params} | dict(params["base_params"] or {})
        return base_params_of(params["base"], params["num_classes"], params["dim"], own, params)

    @property
    def proxies(self) -> nn.Parameter:
        """Those of the base loss, (C, D)."""
        return self.base.proxies

    @property
    def last(self) -> dict[str, int]:
        """What the base loss counted."""
        return self.base.last


class Mixture(NamedTuple):
    """Which two items make each virtual one, and how."""

    first: Tensor  # (V,)
    second: Tensor  # (V,)
    share: float  # of the first


@register(
    "proxy_synthesis",
    "Gu et al., Proxy Synthesis: Learning with Synthetic Classes for Deep Metric Learning, AAAI 2021",
    year=2021,
    claims=(Claim("cars196", "BN-Inception-512", 84.25), Claim("cars196", "BN-Inception-512, Proxy-NCA", 84.21)),
    space={"alpha": Real(0.1, 4.0, log=True), "mu": Real(0.0, 1.0)},
    presets={
        "paper": {"base": "proxy_softmax", "base_params": {"temperature": 1 / 23}},
        "paper_proxy_nca": {"base": "proxy_nca", "base_params": {"scale": 12**0.5, "form": "probabilistic"}},
    },
    plain={"method.params.mu": 0.0},
    sampler="shuffle",
    recipe=OptimizerConfig(name="adam", lr=1e-4, loss_lr=1e-2, weight_decay=1e-4, eps=0.01, loss_eps=0.01),
    compared=(
        (
            "navervision/proxy-synthesis",
            "both presets, on mixtures given to both: value 4e-16, gradient 2e-15, that of the proxies too",
            "b80b62b",
        ),
    ),
)
class ProxySynthesis(ProxyWrapper):
    """A softmax over proxies with synthetic classes, each a mixture of two of the batch, that stand for unseen ones.

        x~_i = norm(l x_i + (1 - l) x_j),   p~_i = norm(l p_{y_i} + (1 - l) p_{y_j}),   l ~ Beta(alpha, alpha)
        L = base([x ; x~] against [p ; p~])

    One l a batch; j is an item of another class, and at most mu M mixtures are made. Synthetic proxies are also
    negatives of real embeddings, and both parents have their share of the gradient. The released code takes the item
    before i for j: in batches of m images a class, in sequence, that is mostly of i's own class, and makes one class
    with two labels. Here the classes of the batch are put in random order and j comes from another one; mixtures of the
    same two classes are one synthetic class. Draws depend on the number of the training step alone, which is read from
    the device: one synchronisation with an accelerator. With one class in the batch, or mu = 0, this is the base loss.
    """

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        base: Literal["proxy_softmax", "proxy_nca", "cosface", "arcface"] = "proxy_softmax",
        alpha: Scale = 0.4,
        mu: Portion = 1.0,
        base_params: Mapping[str, Any] | None = None,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, base, base_params, options)
        self.alpha, self.mu, self.num_classes = alpha, mu, num_classes

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch (M, D); a 0-dim tensor."""
        if not self.mu:
            return cast(Tensor, self.base(embeddings, labels))
        check_vectors("embeddings", embeddings, self.base.check_finite)
        x, y = embeddings, check_labels("labels", labels, embeddings)
        held, mixture = self.base.held(y), self._mixture(y)
        first, second = y[mixture.first], y[mixture.second]
        if not len(first):
            return cast(Tensor, self.base(embeddings, labels))
        pairs, label = torch.unique(first * self.num_classes + second, return_inverse=True)
        with torch.autocast(x.device.type, enabled=False):
            wide = torch.promote_types(x.dtype, held.vectors.dtype)
            items = _mixed(x.to(wide), mixture)
            parents = (pairs // self.num_classes, pairs % self.num_classes)
            rows = [torch.searchsorted(held.labels, each) for each in parents]
            proxies = _mixed(held.vectors.to(wide), Mixture(rows[0], rows[1], mixture.share))
            every = Held(
                torch.cat([held.vectors.to(wide), proxies]),
                torch.cat([held.labels, self.num_classes + torch.arange(len(pairs), device=y.device)]),
            )
            both = torch.cat([x.to(wide), items]), torch.cat([y, self.num_classes + label])
        return self.base.against(*both, every)

    def _mixture(self, labels: Tensor) -> Mixture:
        """Items by class, classes in random order; each with the item as far on as the largest class is long."""
        classes, of_item, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
        turn = self.base.turn.cpu()
        place = uniforms(1, turn, classes, 1)[:, 0].argsort().argsort()  # (K,) of each class of the batch
        order = place[of_item].argsort(stable=True)
        other = order.roll(-int(sizes.max()))
        usable = labels[order] != labels[other]
        kept = usable.nonzero()[: int(self.mu * len(labels)), 0]
        return Mixture(order[kept], other[kept], self._share(int(turn)))

    def _share(self, turn: int) -> float:
        """One draw from Beta(alpha, alpha)."""
        return float(np.random.default_rng([turn, 11]).beta(self.alpha, self.alpha))


def _mixed(x: Tensor, mixture: Mixture) -> Tensor:
    """Mixtures of the directions of rows of x, of length 1, (V, D)."""
    a, b = (F.normalize(x[rows], dim=1, eps=1e-12) for rows in (mixture.first, mixture.second))
    return F.normalize(mixture.share * a + (1 - mixture.share) * b, dim=1, eps=1e-12)


@register(
    "anti_collapse",
    "Jiang et al., Anti-Collapse Loss for Deep Metric Learning, IEEE Transactions on Multimedia 2024",
    year=2024,
    space={"weight": Real(0.01, 10.0, log=True)},
    presets={"coding_rate": {"form": "coding_rate"}},
    plain={"method.params.weight": 0.0},
    sampler="shuffle",
    recipe=OptimizerConfig(lr=1e-4, loss_lr=1e-2, weight_decay=1e-4),
    compared=(
        (
            "NUST-Machine-Intelligence-Laboratory/Anti-Collapse-Loss",
            (
                "classes of one size: value 3e-16, gradient 2e-15, that of the proxies too; with others its Proxy- "
                "Anchor counts a class once for each item, and the term alone agrees: 1e-15 and 3e-15"
            ),
            "ec1e0bc",
        ),
    ),
)
class AntiCollapse(ProxyWrapper):
    """A loss against proxies, plus a term that is small when the proxies of the batch's classes span many directions.

        L = base + weight exp(-1/2 logdet(I + f P P^T)),   f = n / (D eps)

    P (n, D): the unit proxies of the classes in the batch, which are looked up: one synchronisation with an
    accelerator. "released" has this f; the coding rate of the literature has f = D / (n eps^2), form "coding_rate". The
    base is any loss against proxies; the term has no part in W.
    """

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        base: str = "proxy_anchor",
        weight: Weight = 1.0,
        eps: Scale = 0.5,
        form: Literal["released", "coding_rate"] = "released",
        base_params: Mapping[str, Any] | None = None,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, base, base_params, options)
        self.weight, self.eps, self.form = weight, eps, form

    @staticmethod
    def check_together(params: Params) -> None:
        base = params["base"]
        if base == LOGITS or not issubclass(method(base).build, ProxyLoss):
            raise InputError(f"base must be a loss against proxies, such as proxy_anchor; got {base!r}.")
        ProxyWrapper.check_together(params)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch (M, D); a 0-dim tensor."""
        value: Tensor = self.base(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            present = labels.to(self.proxies.device, torch.int64).unique()
            rows = self.proxies.unflatten(0, (self.base.num_classes, -1))[present].flatten(0, 1)
            return value + self.weight * self._volume(rows.to(value.dtype)).to(value.dtype)

    def _volume(self, proxies: Tensor) -> Tensor:
        """exp(-1/2 logdet(I + f P P^T)) of proxies (n, D), by the smaller of P P^T and P^T P: both have the same."""
        p = F.normalize(proxies, dim=1, eps=1e-12)
        n, d = p.shape
        factor = n / (d * self.eps) if self.form == "released" else d / (n * self.eps**2)
        gram = p @ p.T if n < d else p.T @ p
        whole = torch.eye(len(gram), dtype=p.dtype, device=p.device) + factor * gram
        root: Tensor = torch.linalg.cholesky(whole)
        return (-root.diagonal().log().sum()).exp()
