"""Deep relational metric learning: several views of the features, each trained by its own images, and their relations.

Axes: M items of a batch, K branches, F features of the backbone, f = F / K of a branch, D embedding dims, d = D / K.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError
from nearfield.losses.bases import base_params_of, build_base, check_base, forms_pairs, learned_by_base
from nearfield.losses.parameters import Classes, Count, Dim, Params, Weight
from nearfield.losses.protocols import Counted
from nearfield.losses.registry import Claim, Real, method, register
from nearfield.pairs import EngineOptions, check_labels, check_vectors

SHORTEST = 1e-12  # a node that is shorter, as of features that are all 0, has no direction and gets no gradient


class Views(NamedTuple):
    """Everything that the embedder computes for a batch."""

    nodes: Tensor  # (M, K, d) unit vectors, or 0
    errors: Tensor  # (M, K) reconstruction error of each branch
    relations: Tensor  # (M, K, K) weight of source k in the message to l; a column sums to 1 or is 0
    embedding: Tensor  # (M, D)


class RelationalEmbedder(nn.Module):
    """From features (M, F) to relation-aware embeddings (M, D); the head of the network.

    n_k = normalise(W_k f_k + b_k),   f = [f_1 ... f_K]
    e_k = mean (f_k - Dec_k(n_k))^2                             input and target detached: trains the decoders alone
    s_kl = ReLU(u . (A_k f_k + a_k - B_l f_l - b_l) + c),   s_kl / sum_k s_kl    over the source k; features detached
    o_l = V [n_l ; sum_k s_kl n_k] + v,   shared by all l;   embedding [o_1 ... o_K]

    Decoders are linear. V starts as [I | 0], all other weights Kaiming-normal over fan-out, all biases at 0.
    """

    def __init__(self, features: int, dim: int, branches: int) -> None:
        super().__init__()
        wide, narrow = features // branches, dim // branches
        self.branches = branches

        def one_each(inputs: int, outputs: int) -> nn.ModuleList:
            return nn.ModuleList([nn.Linear(inputs, outputs) for _ in range(branches)])

        self.nodes, self.decoders = one_each(wide, narrow), one_each(narrow, wide)
        self.sources, self.targets = one_each(wide, narrow), one_each(wide, narrow)
        self.score = nn.Linear(narrow, 1)
        self.output = nn.Linear(2 * narrow, narrow)
        for layer in (m for m in self.modules() if isinstance(m, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.output.weight.copy_(torch.eye(narrow, 2 * narrow))

    @staticmethod
    def learned_numbers(features: int, dim: int, branches: int) -> int:
        """How many weights there are."""
        wide, narrow = features // branches, dim // branches
        in_branch = 4 * wide * narrow + 3 * narrow + wide  # node, decoder, source, target
        return branches * in_branch + (narrow + 1) + (2 * narrow + 1) * narrow

    def look(self, features: Tensor) -> Views:
        """Nodes, reconstruction errors, relations and embedding of `features` (M, F)."""
        parts = features.unflatten(1, (self.branches, -1))  # (M, K, f)
        raw = _each(self.nodes, parts)  # (M, K, d)
        dead = torch.linalg.vector_norm(raw.detach(), dim=2, keepdim=True) <= SHORTEST
        nodes = F.normalize(raw, dim=2, eps=SHORTEST).masked_fill(dead, 0.0)
        errors = (parts.detach() - _each(self.decoders, nodes.detach())).square().mean(2)
        sources, targets = _each(self.sources, parts.detach()), _each(self.targets, parts.detach())
        scores = self.score(sources[:, :, None] - targets[:, None]).squeeze(3).relu()  # (M, K, K)
        relations = F.normalize(scores, p=1.0, dim=1)
        messages = relations.transpose(1, 2) @ nodes  # (M, K, d)
        embedding = self.output(torch.cat([nodes, messages], 2)).flatten(1)
        return Views(nodes, errors, relations, embedding)

    def forward(self, features: Tensor) -> Tensor:
        """Embeddings (M, D)."""
        return self.look(features).embedding


def _each(layers: nn.ModuleList, parts: Tensor) -> Tensor:
    """Layer k on part k, (M, K, ...)."""
    return torch.stack([layer(part) for layer, part in zip(layers, parts.unbind(1), strict=True)], 1)


@register(
    "drml",
    "Zheng et al., Deep Relational Metric Learning, ICCV 2021",
    year=2021,
    claims=(
        Claim("cub", "BN-Inception-512", 68.7),
        Claim("cars196", "BN-Inception-512", 86.9),
        Claim("sop", "BN-Inception-512", 79.9),
    ),
    space={"emb_weight": Real(1.0, 20.0, log=True), "rec_weight": Real(0.1, 10.0, log=True)},
    presets={
        "proxy_anchor_cub": {"base": "proxy_anchor", "base_params": {"alpha": 64.0, "delta": 0.2}},
        "triplet": {"base": "triplet", "base_params": {"mining": "semihard"}},
        "margin": {"base": "margin"},
        "cosface": {"base": "cosface"},
    },
    holds_head=True,
    base_params={"proxy_anchor": {"alpha": 64.0, "delta": 0.2}},
    sampler="base",
    recipe=OptimizerConfig(lr=5e-5, head=20.0, loss_lr=1e-2, weight_decay=1e-4),
    compared=(
        (
            "zbr17/DRML, relation_embedder.py and multi_proxy_collector.py, with GeDML 0.2.2",
            (
                "biases at 0 and at random, an empty branch: value 3e-16, gradient 5e-15, that of the proxies too, "
                "that of every weight of the head 3e-12, test embedding equal"
            ),
            "2c416a9",
        ),
    ),
)
class DRML(nn.Module):
    """An ensemble of views of the features, each trained by the images it reconstructs best, joined by their relations.

        L = sum_k base_k(n_k of the items with argmin_k e = k) + emb_weight base_K+1(embedding) + rec_weight mean e

    Takes the backbone's features (M, `features`, by default `dim`) and holds the head that embeds them, `embedder`. Any
    method can be the base, with its own parameters for each branch and for the embedding. A branch without items
    contributes 0, and so does one with a single item if the base compares items with each other. Which items a branch
    has is known only on the device: each branch is a synchronisation with an accelerator.

    `base_params` override the published ones: Proxy-Anchor has alpha = 64 and delta = 0.2 here (the baseline in the
    paper has 32 and 0.1). Batches are those of the base, m images of each class for losses over pairs.

    Known from the authors' code: K = 4 equal slices of the features; detached inputs of decoders and relations; the
    gate; all layers linear with biases, and how they start; relations normalised over their source, all-zero columns
    left 0; weights 10 and 1 with Proxy-Anchor. Inferred: the weights for other base losses; branches of equal size at
    other dims.
    """

    constant_weights: ClassVar[bool] = True  # detached inputs and targets: the gradient is not the derivative

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        base: str = "proxy_anchor",
        base_params: Mapping[str, Any] | None = None,
        branches: Annotated[int, Field(ge=1, le=1024)] = 4,
        features: Count | None = None,
        emb_weight: Weight = 10.0,
        rec_weight: Weight = 1.0,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__()
        self.features = dim if features is None else features
        self.embedder = RelationalEmbedder(self.features, dim, branches)
        self.emb_weight, self.rec_weight = emb_weight, rec_weight
        self.fewest = 2 if forms_pairs(base) else 1  # items that a branch needs

        params = {"base": base, "base_params": base_params, "num_classes": num_classes, **engine}

        def base_loss(size: int) -> nn.Module:
            return build_base(base, self._base_params(params, size))

        self.parts = nn.ModuleList([base_loss(dim // branches) for _ in range(branches)])
        self.whole = base_loss(dim)

    @staticmethod
    def check_together(params: Params) -> None:
        features, dim, branches = params["features"] or params["dim"], params["dim"], params["branches"]
        if features % branches or dim % branches:
            raise InputError(f"features and dim must be multiples of branches; got {features}, {dim} and {branches}.")
        for size in (dim // branches, dim):
            check_base(params["base"], DRML._base_params(params, size))

    @staticmethod
    def learned_numbers(params: Params) -> int:
        features, dim, branches = params["features"] or params["dim"], params["dim"], params["branches"]
        each, whole = (learned_by_base(params["base"], DRML._base_params(params, s)) for s in (dim // branches, dim))
        return int(RelationalEmbedder.learned_numbers(features, dim, branches) + branches * each + whole)

    @staticmethod
    def _base_params(params: Params, size: int) -> dict[str, Any]:
        name, own = cast(tuple[str, dict[str, Any]], method("drml").base(params))
        return base_params_of(name, params["num_classes"], size, own, params)

    @property
    def last(self) -> dict[str, int]:
        """What the loss of the embedding counted."""
        return self.whole.last if isinstance(self.whole, Counted) else {}

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """The loss of the backbone's features (M, F); a 0-dim tensor."""
        check_vectors("embeddings", features)
        labels = check_labels("labels", labels, features)
        if features.shape[1] != self.features:
            raise InputError(f"embeddings must be the backbone's {self.features} features; got {features.shape[1]}.")
        with torch.autocast(features.device.type, enabled=False):
            views = self.embedder.look(features.to(self.embedder.score.weight.dtype))
            branch = views.errors.argmin(1)  # (M,) the first of ties
            total: Tensor = self.emb_weight * self.whole(views.embedding, labels)
            total = total + self.rec_weight * views.errors.mean()
            for k, part in enumerate(self.parts):
                mine = branch == k
                if int(mine.sum()) >= self.fewest:
                    total = total + part(views.nodes[mine, k], labels[mine.cpu()])
        return total.to(torch.promote_types(features.dtype, torch.float32))
