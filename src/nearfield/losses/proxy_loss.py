"""What losses against learned proxies share: the proxies themselves, sampling of classes, and the cross-entropy.

Axes: B queries of a block, C classes, D dims. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.errors import InputError
from nearfield.losses.parameters import Classes, Count, Dim, Params
from nearfield.pairs import EngineOptions, Held, PairLoss, check_classes, finite, is_real, log_sum_exp
from nearfield.pairs.mining import uniforms


class ProxyOptions(EngineOptions, total=False):
    """Options that every proxy loss takes in addition to its own parameters."""

    sample: Count | None
    sparse: bool


class ProxyLoss(PairLoss):
    """A pair loss that compares a batch with learned `proxies` (C, D), one row (or several centers) for each class.

    For very many classes: with `sample`, a training step compares with that many classes, those of the batch and random
    others (Partial FC, An et al., CVPR 2022); with `sparse`, the gradient of the proxies is a sparse tensor of the rows
    in use, and an optimiser for sparse gradients (SGD, SparseAdam) updates only those.
    """

    own_batch = True
    classes: Tensor

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        centers: Count = 1,
        *,
        sample: Count | None = None,
        sparse: bool = False,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.num_classes, self.centers, self.sample, self.sparse = num_classes, centers, sample, sparse
        try:
            self.proxies = nn.Parameter(
                torch.empty(num_classes * centers, dim)
            )  # the centers of a class are neighbours
        except RuntimeError as error:
            size = f"{num_classes * centers:,} x {dim:,}"
            raise InputError(f"proxies must fit into memory; got {size} numbers. Lower num_classes or dim.") from error
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")
        self.register_buffer("classes", torch.arange(num_classes).repeat_interleave(centers), persistent=False)

    @staticmethod
    def check_together(params: Params) -> None:
        sample, num_classes = params.get("sample"), params["num_classes"]
        if sample is not None and sample > num_classes:
            raise InputError(f"sample must be at most num_classes = {num_classes}, or None for all; got {sample}.")

    @staticmethod
    def learned_numbers(params: Params) -> int:
        return int(params["num_classes"] * params.get("centers", 1) * params["dim"])

    def held(self, labels: Tensor) -> Held:
        check_classes(labels, self.num_classes)
        if self.sample is None or not self.training:
            every = torch.arange(len(self.proxies), device=labels.device)
            vectors = F.embedding(every, self.proxies, sparse=True) if self.sparse else self.proxies
            return Held(vectors, self.classes)
        chosen = self._choose(labels)  # (S,)
        rows = (chosen[:, None] * self.centers + torch.arange(self.centers, device=labels.device)).flatten()
        return Held(F.embedding(rows, self.proxies, sparse=self.sparse), self.classes[rows])

    def choices(self, labels: Tensor) -> int:
        """How many classes a batch with these labels is compared with in training."""
        return max(self.sample or self.num_classes, len(labels.unique()))

    def _choose(self, labels: Tensor) -> Tensor:
        """The classes of the batch and random others, ascending."""
        every = torch.arange(self.num_classes, device=labels.device)
        luck = uniforms(0, self.turn, every, 1)[:, 0]  # (C,)
        luck[labels] = 2.0
        count = max(self.sample or 0, int((luck == 2.0).sum()))
        return luck.topk(count).indices.sort().values


def within_batch(build: type[nn.Module]) -> bool:
    """Whether a class of losses compares the items of a batch with each other, and with nothing that it holds."""
    return issubclass(build, PairLoss) and not issubclass(build, ProxyLoss)


def cross_entropy(
    pos: Tensor, neg: Tensor, smoothing: float = 0.0, with_positive: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """-log softmax at the one positive of each row, (B,), and its derivatives; `pos` (B, 1) and `neg` are logits.

    With `smoothing` e the target is 1 - e + e/C at the positive and e/C elsewhere. Without `with_positive` the softmax
    is over the negatives alone.
    """
    if with_positive:
        whole, pos_share, neg_share = log_sum_exp(pos, neg)
    else:
        whole, neg_share = log_sum_exp(neg)
        pos_share = torch.zeros_like(pos)
    value, pos_share = whole - (1 - smoothing) * pos[:, 0], pos_share - (1 - smoothing)
    if smoothing:
        real = is_real(neg)
        aside = smoothing / (1 + real.sum(1, keepdim=True))  # (B, 1)
        everyone = pos[:, 0] + (finite(neg) * real).sum(1)
        value = value - aside[:, 0] * everyone
        pos_share, neg_share = pos_share - aside, neg_share - aside * real
    return value, pos_share, neg_share
