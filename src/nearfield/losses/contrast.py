"""Contrastive losses since 2019: every pair by itself through a sigmoid, and positives against all negatives of a row.

Axes: B queries of a block, P positives, N references. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.losses.parameters import Number, Params, Scale
from nearfield.losses.protocols import Idle, class_size
from nearfield.losses.registry import Real, register
from nearfield.pairs import Block, EngineOptions, PairLoss, Weighted, finite, log_sum_exp

Chance = Annotated[float, Field(gt=0, lt=1)]
Degrees = Annotated[float, Field(ge=0, lt=90, description="Angles are in degrees.")]
LEAST_SINE = 1e-3  # the derivative of the angle is singular at 0 and 180 degrees: sines are clamped to this in it


@register(
    "sigmoid",
    "Zhai et al., Sigmoid Loss for Language Image Pre-Training, ICCV 2023, with labels",
    year=2023,
    no_recipe="published for language-image training from scratch, another task",
    space={"t": Real(1.0, 100.0, log=True), "b": Real(-20.0, 0.0)},
    similarities="S",
    compared=(
        (
            "mlfoundations/open_clip, SigLipLoss",
            "one positive a row: value 2e-15, gradient 4e-15, that of t and b 2e-13",
            "3.3.0",
        ),
    ),
)
class Sigmoid(PairLoss):
    """Pairwise sigmoid: every pair is classified by itself as same or different, with a learned scale and offset.

        L = -1/M sum_i { sum_{P_i} log sigmoid(t S + b) + sum_{N_i} log sigmoid(-(t S + b)) }

    W+ = -t/M sigmoid(-(t S + b)), W- = t/M sigmoid(t S + b); dL/db = sum W / t, dL/dlog t = sum W S. `t` and `b` are
    the initial values of the two learned numbers; what is learned is how far log t and b move from there. b is the
    log-odds that a pair is positive: -10 is one in 22,000. With m items of a class in a batch of M it is
    log((m - 1) / (M - m)): give `prior` = (m - 1) / (M - 1), the share of pairs
    that are positive, to start there instead. The sum over negatives makes the gradient grow with the batch.
    """

    needs = "nothing"

    def __init__(
        self, t: Scale = 10.0, b: Number = -10.0, prior: Chance | None = None, **engine: Unpack[EngineOptions]
    ) -> None:
        super().__init__(**engine)
        self.t, self.b = t, b if prior is None else math.log(prior) - math.log1p(-prior)
        self.log_t, self.bias = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))  # moves: exact at the start

    @staticmethod
    def learned_numbers(params: Params) -> int:
        return 2

    def pair_parameters(self) -> tuple[nn.Parameter, ...]:
        return self.log_t, self.bias

    def weigh(self, block: Block) -> Weighted:
        t, b = self.t * self.log_t.to(block.neg.dtype).exp(), self.b + self.bias.to(block.neg.dtype)
        up, down = -(t * block.pos + b), t * block.neg + b
        pos, neg = torch.sigmoid(up).mul_(-t), torch.sigmoid(down).mul_(t)
        moved = (pos * finite(block.pos)).sum() + (neg * finite(block.neg)).sum()  # dL/dlog_t
        slopes = [x.reshape(1).to(self.bias.dtype) for x in (moved, (pos.sum() + neg.sum()) / t)]
        return Weighted(F.softplus(up).sum(1) + F.softplus(down).sum(1), pos, neg, params=tuple(slopes))


@register(
    "dcl",
    "Yeh et al., Decoupled Contrastive Learning, ECCV 2022, with labels",
    year=2022,
    no_recipe="published for contrastive training from scratch without labels, another task",
    space={"temperature": Real(0.02, 0.5, log=True)},
    plain={"method.params.temperature": 1.0},
    similarities="N",
    compared=(
        (
            "raminnakhli/Decoupled-Contrastive-Learning",
            "two items a class: value 8e-16, gradient 7e-16, theirs twice ours",
            "50991ef",
        ),
        (
            "tufts-ml/SupContrast, DCLLoss",
            (
                "classes of one size: value 4e-16, gradient 7e-16; with others it averages over the positives of a "
                "query first"
            ),
            "0288eb2",
        ),
    ),
)
class DCL(PairLoss):
    """Decoupled contrastive: normalised temperature-scaled cross-entropy without the positive in the denominator.

        L = mean over (i, p) of -S_ip / T + log sum_{n in N_i} exp(S_in / T)

    W_p = -1/T and W_n = softmax over N_i of S / T, times 1/T: an easy positive no longer weakens the push. The value
    has no lower bound.
    """

    reduction = "terms"

    def __init__(self, temperature: Scale = 0.1, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.temperature = temperature

    def idle(self, labels: Tensor) -> Idle:
        return Idle("log_n", math.log(max(1.0, len(labels) - class_size(labels))))

    def weigh(self, block: Block) -> Weighted:
        t, real = self.temperature, block.pos_mask
        push, share = log_sum_exp(block.neg / t)
        pulled = torch.where(real, block.pos, 0.0).sum(1) / t
        pairs = block.num_pos
        return Weighted(pairs * push - pulled, real.to(push.dtype).div_(-t), share.mul_(pairs[:, None] / t), pairs)


@register(
    "tuplet_margin",
    "Yu and Tao, Deep Metric Learning with Tuplet Margin Loss, ICCV 2019",
    year=2019,
    no_recipe="none is named here: the publication was not at hand",
    space={"scale": Real(8.0, 128.0, log=True), "angle": Real(0.0, 20.0)},
    similarities="SPN",
    compared=(
        (
            "pytorch-metric-learning",
            "value 2e-11, gradient 2e-15",
            "2.9.0",
        ),
    ),
)
class TupletMargin(PairLoss):
    """Tuplet margin: each positive, turned away by a slack angle, against all negatives at once.

        L = mean over (i, p) of log(1 + sum_{n in N_i} exp(scale (cos theta_in - cos(theta_ip - angle))))

    Without the slack, positives that are close already would be pulled for ever; within `angle` they are pushed off.
    The derivative of cos(theta - angle) is sin(theta - angle) / sin(theta): sines below 1e-3 are clamped in it, and
    where a positive coincides with its query only the part cos(angle) is left.
    """

    reduction = "terms"

    def __init__(self, scale: Scale = 64.0, angle: Degrees = 5.73, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.scale, self.angle = scale, math.radians(angle)

    def weigh(self, block: Block) -> Weighted:
        real, s = block.pos_mask, self.scale
        cos = torch.where(block.pos_mask, block.pos, 0.0)
        square = (1 - cos.square()).clamp_(min=0)
        square.masked_fill_(square < 64 * torch.finfo(cos.dtype).eps, 0.0)  # only rounding is left
        sin = square.sqrt()
        turned = cos * math.cos(self.angle) + sin * math.sin(self.angle)
        tilt = math.cos(self.angle) - cos / sin.clamp(min=LEAST_SINE) * sin.sign() * math.sin(self.angle)
        push, share = log_sum_exp(s * block.neg)
        gap = torch.where(real, push[:, None] - s * turned, -torch.inf)
        lost = torch.sigmoid(gap)
        neg = share.mul_(s * lost.sum(1, keepdim=True))
        return Weighted(F.softplus(gap).sum(1), -s * lost * tilt, neg, block.num_pos)
