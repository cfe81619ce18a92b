"""An ensemble over random groupings of the classes: each member learns to separate a few meta-classes.

Axes: M items of a batch, L members, G meta-classes, C classes, D dims of all members together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError
from nearfield.losses.bases import base_params_of, build_base, check_base, learned_by_base
from nearfield.losses.parameters import Classes, Count, Dim, Params, Seed
from nearfield.losses.protocols import Counted
from nearfield.losses.registry import Claim, Whole, register
from nearfield.pairs import EngineOptions, check_classes, check_labels, check_vectors


@register(
    "dreml",
    "Xuan et al., Deep Randomized Ensembles for Metric Learning, ECCV 2018",
    year=2018,
    claims=(Claim("cars196", "R18, ensemble", 84.2, "quoted in Unbiased Evaluation"),),
    space={"meta_classes": Whole(4, 48)},
    presets={
        "original": {"members": 48, "meta_classes": 12, "base": "logits"},
        "unbiased_evaluation": {"members": 12, "meta_classes": 12, "balanced": False},
    },
    members="members",
    sampler="shuffle",
    recipe=OptimizerConfig(name="sgd", lr=0.01, loss_lr=0.01, weight_decay=5e-4),
    compared=(
        (
            "littleredxh/DREML",
            (
                'base "logits", the groupings given to both: value 3e-16, gradient equal; an earlier version '
                "(1428e29) normalises embeddings first; its training was not run"
            ),
            "6038826",
        ),
    ),
)
class DREML(nn.Module):
    """Randomised ensembles: L networks, each trained on its own random grouping of the classes, concatenated.

        L = sum_l base_l(x^l, g_l(y)),   x = [x^1 ... x^L],   g_l: classes -> meta-classes, drawn once

    Members share no parameters and no gradients, so `nearfield train` trains them one by one or in parallel (`member`
    returns the loss of one), each for its share of the run's steps, and concatenates their normalised embeddings.
    `balanced` groupings assign to each meta-class the same number of classes, give or take one (the authors); otherwise
    each class draws its meta-class, and some may stay empty (Unbiased Evaluation). The authors train each member on
    plain logits, `base="logits"`; Unbiased Evaluation uses Proxy-NCA with learned proxies, the default here. With fewer
    classes than `meta_classes`, each is a meta-class of its own. A step fetches each grouping: a synchronisation with
    an accelerator for each member.
    """

    groupings: Tensor
    parts: nn.ModuleList

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        members: Count = 4,
        meta_classes: Count = 12,
        base: str = "proxy_nca",
        base_params: Mapping[str, Any] | None = None,
        balanced: bool = True,
        seed: Seed = 0,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__()
        groups = min(meta_classes, num_classes)
        self.num_classes, self.dim = num_classes, dim
        self.register_buffer("groupings", draw_groupings(members, num_classes, groups, balanced, seed))
        params = base_params_of(base, groups, dim // members, base_params, engine)
        self.parts = nn.ModuleList([build_base(base, params) for _ in range(members)])

    @staticmethod
    def check_together(params: Params) -> None:
        if params["dim"] % params["members"]:
            raise InputError(f"dim must be a multiple of members; got {params['dim']} and {params['members']}.")
        check_base(params["base"], DREML._member_params(params))

    @staticmethod
    def learned_numbers(params: Params) -> int:
        return int(params["members"] * learned_by_base(params["base"], DREML._member_params(params)))

    @staticmethod
    def _member_params(params: Params) -> dict[str, Any]:
        groups, size = min(params["meta_classes"], params["num_classes"]), params["dim"] // params["members"]
        return base_params_of(params["base"], groups, size, params["base_params"], params)

    @property
    def members(self) -> int:
        """Number of networks, L."""
        return len(self.parts)

    @property
    def last(self) -> dict[str, int]:
        """Sum of what the members counted in their last call."""
        counts = [part.last for part in self.parts if isinstance(part, Counted)]
        return {key: sum(count[key] for count in counts) for key in counts[0]}

    def member(self, index: int) -> Member:
        """The loss of one member, which takes its own embeddings (M, D / L) and the labels of the classes."""
        return Member(self.parts[index], self.groupings[index])

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The sum of the members' losses on their slices of `embeddings` (M, D); a 0-dim tensor."""
        check_vectors("embeddings", embeddings)
        if embeddings.shape[1] != self.dim:
            raise InputError(f"embeddings must have dim = {self.dim} columns; got {embeddings.shape[1]}.")
        slices = embeddings.chunk(self.members, dim=1)
        return torch.stack([self.member(i)(x, labels) for i, x in enumerate(slices)]).sum()


class Member(nn.Module):
    """A base loss on meta-classes."""

    grouping: Tensor

    def __init__(self, base: nn.Module, grouping: Tensor) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("grouping", grouping)

    @property
    def last(self) -> dict[str, int]:
        """What the base loss counted."""
        return self.base.last if isinstance(self.base, Counted) else {}

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The base loss of `embeddings` (M, D / L) with the meta-classes of `labels`; a 0-dim tensor."""
        labels = check_labels("labels", labels, embeddings)
        check_classes(labels, len(self.grouping))
        value: Tensor = self.base(embeddings, self.grouping.cpu()[labels])
        return value


def draw_groupings(members: int, num_classes: int, groups: int, balanced: bool, seed: int) -> Tensor:
    """A random meta-class for each member and class, (L, C); drawn on the CPU, so the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    if not balanced:
        return torch.randint(groups, (members, num_classes), generator=generator)
    orders = [torch.randperm(num_classes, generator=generator) for _ in range(members)]
    return torch.stack([order % groups for order in orders])
