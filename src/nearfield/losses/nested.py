"""Losses on nested embeddings: the first dims of an embedding are an embedding too.

Axes: M queries, N references, D dims, d dims of a prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import Unpack

from nearfield.errors import InputError
from nearfield.losses.bases import Wraps, base_method, inner_params
from nearfield.losses.parameters import Classes, Dim, Params
from nearfield.losses.protocols import Counted
from nearfield.losses.registry import check_params, create, register
from nearfield.metrics.prefixes import halves
from nearfield.pairs import EngineOptions, check_vectors

Dims = Annotated[Sequence[Dim], Field(min_length=1, max_length=64)]


@register(
    "matryoshka",
    "Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022",
    year=2022,
    no_recipe="that of its base",
    presets={"sum": {"reduction": "sum"}},
    compared=(
        (
            "RAIVNLab/MRL, MRL-E without bias",
            (
                'base "proxy_softmax" at temperature 1 without normalisation, preset "sum": value 4e-16, gradient '
                "4e-16, that of the proxies too"
            ),
            "00e0487",
        ),
    ),
)
class Matryoshka(Wraps, nn.Module):
    """Matryoshka: any loss on several prefixes of the embedding at once, so that it can be cut short after training.

        L = 1/|dims| sum over d in dims of base(z_1..d)

    A loss that compares unit vectors normalises each prefix; proxies are tied, the first d coordinates of each for the
    prefix of d (MRL-E). The mean keeps the step as long as that of the base; the publication sums (preset "sum"). By
    default the prefixes are the embedding and its halves down to 8 dims. `base` is any method by name with its own
    `base_params`, except those that hold the network's head or several networks. What it learns besides proxies, such
    as margins, is shared by all prefixes.
    A rotation of the embedding after training, such as PCA or whitening, destroys the order of its dims; with frozen
    features, start the head from PCA, so that prefixes begin ordered. Evaluate prefixes normalised again.
    """

    def __init__(
        self,
        base: str = "multi_similarity",
        dims: Dims | None = None,
        base_params: Mapping[str, Any] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        num_classes: Classes | None = None,
        dim: Dim | None = None,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__()
        given = {"base": base, "base_params": base_params, "num_classes": num_classes, "dim": dim, **engine}
        params = inner_params(given)
        self.base = create(base, **params)
        self.dims = None if dims is None else tuple(sorted(set(dims)))
        self.reduction, self.check_finite = reduction, engine.get("check_finite", False)
        self.own_batch: bool = getattr(self.base, "own_batch", True)
        width = params.get("dim")
        self.tied = [n for n, p in self.base.named_parameters() if p.ndim == 2 and p.shape[1] == width]

    @staticmethod
    def check_together(params: Params) -> None:
        base, dims, dim = params["base"], params["dims"], params["dim"]
        found, inner = base_method("matryoshka", base), check_params(base, inner_params(params))
        if found.holds_head or found.members:
            raise InputError(
                f"matryoshka: base must be a loss of embeddings; got {base!r}, which is part of a network."
            )
        if inner.get("sparse"):
            raise InputError("matryoshka: sparse must be False: prefixes of proxies have dense gradients; got True.")
        if dims is not None and dim is not None and max(dims) > dim:
            raise InputError(f"matryoshka: dims must be at most dim = {dim}; got {max(dims)}. Remove it from dims.")

    @property
    def last(self) -> dict[str, int]:
        """What the base counted for the longest prefix."""
        return self.base.last if isinstance(self.base, Counted) else {}

    def forward(
        self,
        queries: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of `queries` (M, D) against `references` (N, D), or against each other; a 0-dim tensor."""
        check_vectors("embeddings", queries, self.check_finite)
        width = queries.shape[1]
        dims = halves(width) if self.dims is None else self.dims
        if dims[-1] > width:
            raise InputError(f"embeddings must have at least the {dims[-1]} dims of the longest prefix; got {width}.")
        others = (references, reference_labels)
        if references is not None:
            check_vectors("references", references, self.check_finite)
            if references.shape[1] != width:
                raise InputError(f"references must have the queries' {width} dims; got {references.shape[1]}.")
        values = []
        for d in dims:
            if references is not None:
                others = (references[:, :d], reference_labels)
            given = (queries[:, :d], labels, *(others if others != (None, None) else ()))
            tied = {name: self.base.get_parameter(name)[:, :d] for name in self.tied}
            values.append(functional_call(self.base, tied, given) if tied else self.base(*given))
        total = torch.stack(values)
        return total.mean() if self.reduction == "mean" else total.sum()
