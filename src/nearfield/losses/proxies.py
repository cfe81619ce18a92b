"""Losses against learned proxies, a vector for each class: the proxies are the references.

Axes: B queries of a block, C classes, D dims. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from nearfield.errors import InputError, require_positive
from nearfield.pairs import Block, EngineOptions, PairLoss, Weighted, log_sum_exp
from nearfield.registry import Real, register


class ProxyLoss(PairLoss):
    """A pair loss whose references are its own parameters: `proxies` (C, D), a row for each class."""

    def __init__(self, num_classes: int, dim: int, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        if num_classes < 1 or dim < 1:
            raise InputError(f"num_classes and dim must be at least 1; got {num_classes} and {dim}.")
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")
        self.register_buffer("classes", torch.arange(num_classes), persistent=False)
        self.classes: Tensor

    def held_references(self) -> tuple[Tensor, Tensor] | None:
        return self.proxies, self.classes


@register(
    "proxy_softmax",
    "Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019",
    space={"temperature": Real(0.02, 0.2, log=True)},
    presets={
        "reality_check_cub": {"temperature": 0.1087},
        "reality_check_cars": {"temperature": 0.0886},
        "reality_check_sop": {"temperature": 0.0630},
        "unbiased_evaluation": {"label_smoothing": 0.1},
    },
    sampler="shuffle",
)
class ProxySoftmax(ProxyLoss):
    """Normalised softmax: classify by cosine to a learned proxy, with a temperature.

        L = 1/M sum_i -log softmax_c(x_i . p_c / temperature) at c = y_i

    W = (softmax - target) / (temperature M); with `label_smoothing` e the target is 1 - e + e/C at y and e/C elsewhere.
    Without the temperature the softmax of cosines is nearly flat and the method fails. DMLPlayground applies
    log-softmax to 1 - cosine, so that its proxies point away from their class.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        temperature: float = 0.05,
        label_smoothing: float = 0.0,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(num_classes, dim, **engine)
        (self.temperature,) = require_positive(temperature=temperature)
        if not 0 <= label_smoothing < 1:
            raise InputError(f"label_smoothing must be at least 0 and below 1; got {label_smoothing}.")
        self.label_smoothing = label_smoothing

    def weigh(self, block: Block) -> Weighted:
        t, aside = self.temperature, self.label_smoothing / len(self.proxies)
        whole, pos, neg = log_sum_exp(block.pos / t, block.neg / t)
        target = (1 - self.label_smoothing) * block.pos[:, 0]
        if aside:
            everyone = block.pos[:, 0] + torch.where(block.neg_mask, block.neg, 0.0).sum(1)
            target = target + aside * everyone
            neg = torch.where(block.neg_mask, neg - aside, 0.0)
        return Weighted(whole - target / t, (pos - (1 - self.label_smoothing + aside)) / t, neg / t)
