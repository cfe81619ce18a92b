"""Embed many images in evaluation mode.

Axes: N images, B images of a batch, D embedding dims.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from nearfield.progress import Progress


class Rows(Protocol):
    """Images or features that give a batch when sliced: a tensor, an array, files read on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


@torch.no_grad()
def embed(model: nn.Module, images: Rows, batch_size: int = 512, progress: Progress | None = None) -> Tensor:
    """Embeddings (N, D) of N images in evaluation mode; the model's mode is restored."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    was_training = model.training
    model.eval()
    done: list[Tensor] = []
    try:
        for start in range(0, max(len(images), 1), batch_size):
            done.append(model(as_tensor(images[start : start + batch_size]).to(device)))
            if progress is not None:
                progress(min(start + batch_size, len(images)), len(images))
        return torch.cat(done)
    finally:
        model.train(was_training)


def as_tensor(batch: Any) -> Tensor:
    """A batch as a tensor; a read-only array (a memory-mapped file) is copied, because tensors are writable."""
    if isinstance(batch, Tensor):
        return batch
    array = np.asarray(batch)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
