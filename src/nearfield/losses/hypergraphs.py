"""Hypergraph-induced semantic tuplets: classes as Gaussians, and a graph network over the batch.

Axes: M items of a batch, C classes, G classes in the batch, D dims, H hidden dims.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.losses.parameters import Classes, Dim, Params, Scale, Weight
from nearfield.losses.proxy_loss import ProxyLoss, cross_entropy
from nearfield.losses.registry import Claim, Real, register
from nearfield.pairs import Block, EngineOptions, Weighted

SLOPE = 0.1  # of the hidden layer below 0


class Gaussians(ProxyLoss):
    """Classification by Mahalanobis distance to the Gaussian of each class.

        D_ic = sum_d (x_id - m_cd)^2 / v_cd,   v = exp(relu6(n)),   L = 1/M sum_i -log softmax at y_i of -tau D_ic

    x and the means m are unit vectors. D is one dot product, of (x^2, x, 1) and (1/v, -2 m/v, sum m^2/v), which is what
    the engine computes: neither D nor anything else of size M x C exists. The log-variances n start like the means;
    relu6 has no gradient where they are negative.
    """

    splits = False  # the variances are not split

    def __init__(self, num_classes: Classes, dim: Dim, tau: Scale, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(num_classes, dim, **engine)
        self.tau, self.unit = tau, self.normalize
        self.normalize = False  # not the lifted vectors
        self.log_variances = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.kaiming_normal_(self.log_variances, mode="fan_out")

    def lift(self, queries: Tensor, references: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert references is not None
        wide = torch.promote_types(queries.dtype, references.dtype)
        x, precision = self.directions(queries.to(wide)), self.precisions().to(wide)
        m = self.directions(references.to(wide))
        right = torch.cat([precision, -2 * m * precision, (m.square() * precision).sum(1, keepdim=True)], 1)
        return torch.cat([x.square(), x, torch.ones_like(x[:, :1])], 1), -right

    def directions(self, x: Tensor) -> Tensor:
        """Vectors as they are compared: of unit length, unless `normalize` was turned off."""
        return F.normalize(x, dim=1, eps=1e-12) if self.unit else x

    def precisions(self) -> Tensor:
        """1/v, (C, D)."""
        return (-F.relu6(self.log_variances)).exp()

    def weigh(self, block: Block) -> Weighted:
        value, pos, neg = cross_entropy(self.tau * block.pos, self.tau * block.neg)
        return Weighted(value, self.tau * pos, neg.mul_(self.tau))


@register(
    "hist",
    "Lim et al., Hypergraph-Induced Semantic Tuplet Loss for Deep Metric Learning, CVPR 2022",
    year=2022,
    claims=(
        Claim("cub", "R50-512", 71.4),
        Claim("cars196", "R50-512", 89.6),
        Claim("sop", "R50-512", 81.4),
        Claim("cub", "BN-Inception-512", 69.7),
        Claim("cars196", "BN-Inception-512", 87.4),
        Claim("sop", "BN-Inception-512", 79.6),
    ),
    space={"tau": Real(4.0, 64.0, log=True), "alpha": Real(0.3, 3.0, log=True), "lam_s": Real(0.1, 10.0, log=True)},
    presets={"cars": {"alpha": 0.9}, "sop": {"tau": 16.0, "alpha": 2.0}},
    plain={"method.params.lam_s": 0.0},
    sampler="shuffle",
    recipe=OptimizerConfig(name="adam", lr=1.2e-4, loss_lr=0.1, weight_decay=5e-5),
    compared=(
        (
            "ljin0429/HIST",
            (
                "value 4e-16, gradient 5e-15, that of every learned number 3e-13, torch.linalg.multi_dot in place of "
                "chain_matmul"
            ),
            "99c1d6c",
        ),
    ),
)
class HIST(nn.Module):
    """Classification by class Gaussians, and by a network over the hypergraph of the batch that these span.

        L = L_D + lam_s CE(o, y)
        L_D   classification by Mahalanobis distance D_ic with scale tau, over all classes; see `Gaussians`
        H_ic  1 if y_i = c, else exp(-alpha D_ic), for the classes in the batch: one hyperedge for each
        G     = Dv^(-1/2) H De^(-1) H^T Dv^(-1/2),   Dv and De the sums of rows and columns of H
        o     = G (Theta2 LeakyReLU(BN(G (Theta1 x + b1))) + b2),   x as given, not normalised

    The gradient flows through H and G. L_D is streamed by the engine; the network is a composite on the batch, which
    applies G by its factors, and is not used after training. The log-softmax replaces the released softmax and log,
    which drops what underflows at tau = 32. Batch norm always takes the statistics of the batch; a batch of one item,
    where there are none, has L_D alone. Written from the equations: the released code has no licence.
    """

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        tau: Scale = 32.0,
        alpha: Scale = 1.1,
        lam_s: Weight = 1.0,
        hidden: Annotated[int, Field(ge=1, le=2**16)] = 512,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__()
        self.alpha, self.lam_s = alpha, lam_s
        self.gaussians = Gaussians(num_classes, dim, tau, **engine)
        self.inner, self.outer = nn.Linear(dim, hidden), nn.Linear(hidden, num_classes)
        self.scale, self.shift = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))

    @staticmethod
    def learned_numbers(params: Params) -> int:
        c, d, h = (params[key] for key in ("num_classes", "dim", "hidden"))
        return int(2 * c * d + (d + 1) * h + (h + 1) * c + 2 * h)

    @property
    def proxies(self) -> nn.Parameter:
        """The means of the classes, (C, D)."""
        return self.gaussians.proxies

    @property
    def last(self) -> dict[str, int]:
        """What the classification by Gaussians counted."""
        return self.gaussians.last

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch (M, D); a 0-dim tensor."""
        value: Tensor = self.gaussians(embeddings, labels)
        if len(embeddings) < 2 or not self.lam_s:
            return value
        with torch.autocast(embeddings.device.type, enabled=False):
            x, y, present = embeddings.to(value.dtype), labels.long(), labels.long().unique()
            y, present = (each.to(embeddings.device, non_blocking=True) for each in (y, present))
            return value + self.lam_s * F.cross_entropy(self._classify(x, y, present), y)

    def _classify(self, x: Tensor, labels: Tensor, present: Tensor) -> Tensor:
        """Logits (M, C) of the network over the batch."""
        weights = [p.to(x.dtype) for p in (*self.inner.parameters(), self.scale, self.shift, *self.outer.parameters())]
        left, right = self._graph(x, labels, present)
        h = left @ (right @ F.linear(x, weights[0], weights[1]))
        h = F.leaky_relu(F.batch_norm(h, None, None, weights[2], weights[3], training=True), SLOPE)
        return left @ (right @ F.linear(h, weights[4], weights[5]))

    def _graph(self, x: Tensor, labels: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Two factors, (M, G) and (G, M), of the graph that the Gaussians of the classes `present` (G,) span."""
        u, m = (self.gaussians.directions(v.to(x.dtype)) for v in (x, self.proxies[present]))
        precision = self.gaussians.precisions()[present].to(x.dtype)
        far = u.square() @ precision.T - 2 * u @ (m * precision).T + (m.square() * precision).sum(1)  # (M, G)
        edges = torch.where(labels[:, None] == present, 1.0, (-self.alpha * far.clamp(min=0)).exp())
        rows, columns = edges.sum(1, keepdim=True), edges.sum(0)
        half = edges / rows.sqrt()
        return half / columns, half.T
