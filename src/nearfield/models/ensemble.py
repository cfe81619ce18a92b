"""Several networks as one: their normalised embeddings, concatenated."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Ensemble(nn.Module):
    """[x^1 ... x^L], each member's embedding at length 1, so that all weigh the same in a cosine."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings (B, D) of all members together."""
        return torch.cat([F.normalize(member(images), dim=1, eps=1e-12) for member in self.members], 1)
