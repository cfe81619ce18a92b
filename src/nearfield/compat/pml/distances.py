"""Distances: what a loss or miner compares. The engine streams those it knows; any other gives a dense matrix.

Axes: M queries, N references, D dims.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearfield.compat.pml.errors import Version, check_version, refuse
from nearfield.errors import InputError

Measure = Literal["dot", "euclidean", "sqeuclidean", "snr"]


class BaseDistance(nn.Module):
    """A matrix of distances, or of similarities (`is_inverted`), of vectors normalised first by default."""

    is_inverted: ClassVar[bool] = False

    def __init__(
        self, normalize_embeddings: bool = True, p: float = 2, power: float = 1, collect_stats: bool | None = None
    ) -> None:
        super().__init__()
        self.normalize_embeddings, self.p, self.power, self.collect_stats = (
            normalize_embeddings,
            p,
            power,
            collect_stats,
        )

    @property
    def measure(self) -> Measure | None:
        """The engine's name for it; None if the engine does not stream it."""
        return None

    def forward(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        """The matrix (M, N), differentiable; of the queries with each other without references."""
        ref_emb = query_emb if ref_emb is None else ref_emb
        if query_emb.ndim != 2 or ref_emb.ndim != 2:
            raise InputError(f"embeddings must have shape (rows, dims); got {tuple(query_emb.shape)}.")
        wide = torch.promote_types(torch.promote_types(query_emb.dtype, ref_emb.dtype), torch.float32)
        mat = self.compute_mat(self.maybe_normalize(query_emb.to(wide)), self.maybe_normalize(ref_emb.to(wide)))
        return mat if self.power == 1 else mat**self.power

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """The matrix, before its power, of vectors that are normalised already; what your own distance overrides."""
        raise NotImplementedError

    def maybe_normalize(self, embeddings: Tensor) -> Tensor:
        """The vectors divided by their p-norm, if this distance compares such."""
        return F.normalize(embeddings, p=self.p, dim=1) if self.normalize_embeddings else embeddings


class LpDistance(BaseDistance):
    """The p-norm of the difference, to a power."""

    @property
    def measure(self) -> Measure | None:
        known: dict[tuple[float, float], Measure] = {(2, 1): "euclidean", (2, 2): "sqeuclidean"}
        return known.get((self.p, self.power))

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return torch.cdist(query_emb, ref_emb, p=self.p, compute_mode="donot_use_mm_for_euclid_dist")


class DotProductSimilarity(BaseDistance):
    """The dot product: unless told otherwise of normalised vectors in version 2, of raw ones in version 3."""

    is_inverted = True

    def __init__(self, normalize_embeddings: bool | None = None, *, version: Version = 2, **kwargs: Any) -> None:
        check_version(version)
        super().__init__(version == 2 if normalize_embeddings is None else normalize_embeddings, **kwargs)

    @property
    def measure(self) -> Measure | None:
        return "dot" if self.power == 1 and (self.p == 2 or not self.normalize_embeddings) else None

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return query_emb @ ref_emb.T


class CosineSimilarity(DotProductSimilarity):
    """The dot product of normalised vectors."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(normalize_embeddings=True, **kwargs)


class SNRDistance(BaseDistance):
    """The signal-to-noise distance var(r - q) / var(q) over the components; |r - q|^2 / |q|^2 of centred vectors."""

    @property
    def measure(self) -> Measure | None:
        return "snr" if self.power == 1 and (self.p == 2 or not self.normalize_embeddings) else None

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        q, r = (x - x.mean(1, keepdim=True) for x in (query_emb, ref_emb))
        return torch.cdist(q, r, compute_mode="donot_use_mm_for_euclid_dist").square() / q.square().sum(1, keepdim=True)


def __getattr__(name: str) -> Any:
    return refuse(name, __name__, {"BatchedDistance": "the engine computes every distance in blocks by itself."})
