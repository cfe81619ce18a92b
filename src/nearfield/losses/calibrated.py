"""Bounds on similarities: average precision with an upper bound of its loss, and margins at one threshold for all.

Axes: B queries of a block, P positives, N references. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError
from nearfield.losses.bases import Wraps, base_method, inner_params
from nearfield.losses.parameters import Classes, Dim, Number, Params, Scale, Weight
from nearfield.losses.registry import Claim, Real, check_params, create, register
from nearfield.pairs import Block, EngineOptions, PairLoss, Weighted, rounding

SPACE = {"tau": Real(0.002, 0.1, log=True), "rho": Real(1.0, 1000.0, log=True), "delta": Real(0.0, 0.2)}
RECIPE = OptimizerConfig(name="adam", lr=1e-5, head=2.0, weight_decay=1e-4)


@register(
    "sup_ap",
    "Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021, SupAP",
    year=2021,
    space=SPACE,
    presets={
        "released": {"offset": 1.44, "count_query": True},
        "inaturalist": {"start": 0.0, "offset": 1.0},
    },
    similarities="PN",
    recipe=RECIPE,
    compared=(
        (
            "youngjaean/ROADMAP (a fork of elias-ramzi's)",
            (
                'preset "released", and the default with the query left out of its matrix: value 2e-15, gradient '
                "2e-14, torch.heaviside without a derivative in place of its own"
            ),
            "5b6f46f",
        ),
    ),
)
class SupAP(PairLoss):
    """SupAP: a smooth upper bound of the loss of average precision, by bounding the rank of each positive from above.

        h-(d) = sigmoid(d / tau) for d <= 0,  start + sigmoid(d / tau) up to delta,  rho (d - delta) + offset beyond it
        A_p = 1 + |{k in P_i, k != p: S_ik >= S_ip}|,    R_p = A_p + sum_{j in N_i} h-(S_ij - S_ip)
        L = 1 - mean over queries with a positive of 1/|P_i| sum_p A_p / R_p

    W_ij = A_p / R_p^2 h-'(d) / |P_i|, W_ip the negative of their sum; A has no derivative, so W+ <= 0 <= W-. For
    start >= 1/2 and offset >= 1 no batch has L below 1 - AP. Without `offset` h- is continuous at delta; the released
    value of 1.44 lets it fall by 0.053 there. The released code keeps the query among its own positives, ranked first
    (`count_query`), and calls torch.heaviside, which has no derivative in current torch.
    """

    needs = "positive"
    reduction = "usable"

    def __init__(
        self,
        tau: Scale = 0.01,
        rho: Weight = 100.0,
        delta: Weight = 0.05,
        start: Number = 0.5,
        offset: Number | None = None,
        count_query: bool = False,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.tau, self.rho, self.delta, self.start = tau, rho, delta, start
        reached = start + float(torch.sigmoid(torch.tensor(delta / tau, dtype=torch.float64)))
        self.offset = reached if offset is None else offset
        self.shows_self = count_query

    def weigh(self, block: Block) -> Weighted:
        real = block.pos_mask
        s = torch.where(real, block.pos, 0.0)
        each = 1 / real.sum(1).clamp(min=1).to(s.dtype)  # (B,)
        precision, pos, neg = torch.zeros_like(each), torch.zeros_like(s), torch.zeros_like(block.neg)
        for p in range(s.shape[1]):
            own = s[:, p : p + 1]
            tie = rounding(own)  # (B, 1)
            among = ((s >= own - tie) & real).sum(1)  # the positive itself is one of them
            above, slope = self._above(block.neg - own, tie)
            rank = (among + above.sum(1)).clamp_(min=1)
            share = each * real[:, p] * among / rank  # (B,)
            precision = precision + share
            slope.mul_((share / rank)[:, None])
            neg += slope
            pos[:, p] = -slope.sum(1)
        return Weighted(1 - precision, pos, neg)

    def _above(self, d: Tensor, tie: Tensor) -> tuple[Tensor, Tensor]:
        """h- and its derivative, (B, N + 1) each."""
        step = torch.sigmoid(d / self.tau)
        slope = torch.addcmul(step, step, step, value=-1).div_(self.tau)
        step.add_((d > tie).to(d.dtype), alpha=self.start)
        beyond = d > self.delta + tie
        line = torch.where(beyond, d - self.delta, 0.0).mul_(self.rho).add_(self.offset)
        return torch.where(beyond, line, step), slope.masked_fill_(beyond, self.rho)


class Calibration(PairLoss):
    """Positives above one threshold and negatives below another, whatever the query.

    L = pos_weight mean over positives with S < pos_margin of (pos_margin - S)
      + neg_weight mean over negatives with S > neg_margin of (S - neg_margin)

    The means are over the active pairs of the whole batch, so a first sweep counts them.
    """

    needs = "nothing"
    surveys = True
    reduction = "sum"

    def __init__(
        self,
        pos_margin: float,
        neg_margin: float,
        pos_weight: float = 1.0,
        neg_weight: float = 1.0,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.pos_margin, self.neg_margin = pos_margin, neg_margin
        self.pos_weight, self.neg_weight = pos_weight, neg_weight

    def survey(self, block: Block) -> Tensor:
        low, high = self.pos_margin - block.pos, block.neg - self.neg_margin
        return torch.stack([low.gt_(0).sum(1), high.gt_(0).sum(1)], 1)  # (B, 2)

    def weigh(self, block: Block) -> Weighted:
        each_pos, each_neg = 1 / block.survey.sum(0).clamp(min=1)  # ()
        low = (self.pos_margin - block.pos).clamp_(min=0)
        high = (block.neg - self.neg_margin).clamp_(min=0)
        pull, push = self.pos_weight * each_pos, self.neg_weight * each_neg
        return Weighted(low.sum(1) * pull + high.sum(1) * push, low.gt_(0).mul_(-pull), high.gt_(0).mul_(push))


@register(
    "roadmap",
    "Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021",
    year=2021,
    claims=(
        Claim("cub", "R50-512", 68.5),
        Claim("sop", "R50-512", 83.1),
        Claim("cub", "DeiT", 77.4),
        Claim("sop", "DeiT", 86.0),
        Claim("inaturalist", "R50-512", 69.1),
        Claim("inaturalist", "DeiT-S", 73.6),
    ),
    space={**SPACE, "pos_margin": Real(0.5, 1.0), "neg_margin": Real(0.0, 0.9)},
    presets={
        "released": {"offset": 1.44, "count_query": True},
        "inaturalist": {"start": 0.0, "offset": 1.0},
    },
    plain={"method.params.calibration": 0.0},
    similarities="SPN",
    recipe=RECIPE,
    compared=(
        (
            "youngjaean/ROADMAP (a fork of elias-ramzi's), and CalibrationLoss of elias-ramzi/ROADMAP at d525d4c",
            (
                'presets "released" and, with the query left out of its matrix, "inaturalist": value 2e-15, gradient '
                "4e-15, torch.heaviside without a derivative in place of its own"
            ),
            "5b6f46f",
        ),
    ),
)
class ROADMAP(PairLoss):
    """ROADMAP: SupAP, and a calibration that makes similarities of different queries comparable.

        L = SupAP + calibration { mean over positives with S < pos_margin of (pos_margin - S)
                                + mean over negatives with S > neg_margin of (S - neg_margin) }

    As released, with both weights 1; the paper weighs them by 1 - lambda and lambda = 1/2, which is half of it.
    """

    needs = "nothing"

    def __init__(
        self,
        tau: Scale = 0.01,
        rho: Weight = 100.0,
        delta: Weight = 0.05,
        start: Number = 0.5,
        offset: Number | None = None,
        pos_margin: Number = 0.9,
        neg_margin: Number = 0.6,
        calibration: Weight = 1.0,
        count_query: bool = False,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.sup_ap = SupAP(tau, rho, delta, start, offset, count_query, **engine)
        self.calibration = Calibration(pos_margin, neg_margin, calibration, calibration, **engine)

    def parts(self) -> tuple[PairLoss, ...]:
        return self.sup_ap, self.calibration


@register(
    "tcm",
    "Zhang et al., Threshold-Consistent Margin Loss for Open-World Deep Metric Learning, ICLR 2024",
    year=2024,
    no_recipe="that of its base",
    space={"pos_margin": Real(0.5, 1.0), "neg_margin": Real(0.0, 0.9)},
    presets={"roadmap": {"base": "sup_ap", "neg_margin": 0.6}},
    plain={"method.params.pos_weight": 0.0, "method.params.neg_weight": 0.0},
    similarities="SPN",
    compared=(
        (
            "pytorch-metric-learning",
            "value 4e-16, gradient 6e-16; no code of the authors was found",
            "2.9.0",
        ),
    ),
)
class TCM(Wraps, PairLoss):
    """Threshold-consistent margin: a regulariser on any loss, so that one threshold suits all classes.

        L = base + pos_weight mean over positives with S < pos_margin of (pos_margin - S)
                 + neg_weight mean over negatives with S > neg_margin of (S - neg_margin)

    The means are over the active pairs of the whole batch. `base` is any pair loss or proxy loss by name, with its own
    `base_params`; with proxies the regulariser compares the batch with itself. A base that compares cosines shares the
    sweep over the blocks. What it improves is the metric `opis`.
    """

    needs = "nothing"

    def __init__(
        self,
        base: str = "multi_similarity",
        pos_margin: Number = 0.9,
        neg_margin: Number = 0.5,
        base_params: Mapping[str, Any] | None = None,
        pos_weight: Weight = 1.0,
        neg_weight: Weight = 1.0,
        num_classes: Classes | None = None,
        dim: Dim | None = None,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        given = {"base": base, "base_params": base_params, "num_classes": num_classes, "dim": dim, **engine}
        self.base = cast(PairLoss, create(base, **inner_params(given)))
        engine["miner"] = None
        self.margins = Calibration(pos_margin, neg_margin, pos_weight, neg_weight, **engine)
        self.own_batch = self.base.own_batch

    @staticmethod
    def check_together(params: Params) -> None:
        base = params["base"]
        if not issubclass(base_method("tcm", base).build, PairLoss):
            raise InputError(f"tcm: base must be a loss over pairs; got {base!r}. Use one such as 'multi_similarity'.")
        check_params(base, inner_params(params))

    def parts(self) -> tuple[PairLoss, ...]:
        return *self.base.parts(), self.margins
