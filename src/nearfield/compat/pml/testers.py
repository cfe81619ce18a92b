"""`BaseTester.get_all_embeddings`: the embeddings of a dataset, as PML's examples take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from nearfield.compat.pml.errors import refuse


class BaseTester:
    """Embeds datasets; scoring is `AccuracyCalculator`'s."""

    def __init__(
        self,
        normalize_embeddings: bool = True,
        batch_size: int = 32,
        dataloader_num_workers: int = 2,
        data_device: torch.device | str | None = None,
    ) -> None:
        self.normalize_embeddings, self.batch_size = normalize_embeddings, batch_size
        self.dataloader_num_workers = dataloader_num_workers
        self.data_device = torch.device(data_device or ("cuda" if torch.cuda.is_available() else "cpu"))

    @torch.no_grad()
    def get_all_embeddings(
        self,
        dataset: Dataset[Any],
        trunk_model: nn.Module,
        embedder_model: nn.Module | None = None,
        collate_fn: Callable[..., Any] | None = None,
        eval: bool = True,
        return_as_numpy: bool = False,
    ) -> tuple[Any, Any]:
        """Embeddings (N, D), normalised, and labels (N, 1), in the order of the dataset."""
        model = trunk_model if embedder_model is None else nn.Sequential(trunk_model, embedder_model)
        if eval:
            model.eval()
        loader = DataLoader(dataset, self.batch_size, num_workers=self.dataloader_num_workers, collate_fn=collate_fn)
        parts: list[Tensor] = []
        labels: list[Tensor] = []
        for images, known in loader:
            parts.append(model(images.to(self.data_device)).float())
            labels.append(torch.as_tensor(known).reshape(len(known), -1))
        found = torch.cat(parts)
        found = F.normalize(found, dim=1) if self.normalize_embeddings else found
        together = torch.cat(labels).to(found.device)
        return (found.cpu().numpy(), together.cpu().numpy()) if return_as_numpy else (found, together)


def __getattr__(name: str) -> Any:
    names = ("GlobalEmbeddingSpaceTester", "GlobalTwoStreamEmbeddingSpaceTester", "WithSameParentLabelTester")
    return refuse(name, __name__, dict.fromkeys(names, "embed with BaseTester and score with AccuracyCalculator."))
