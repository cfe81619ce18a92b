"""Cross-batch memory: earlier embeddings as additional references (Wang et al., Cross-Batch Memory, CVPR 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from nearfield.errors import InputError
from nearfield.losses.parameters import Count, Dim, Weight, validated
from nearfield.losses.protocols import Counted, TakesReferences


@validated("CrossBatchMemory")
class CrossBatchMemory(nn.Module):
    """A loss on the batch plus `weight` times the same loss of the batch against a queue of earlier embeddings.

        L = loss(batch) + weight loss(batch, memory)

    The memory holds the last `size` embeddings, without gradient; the batch is enqueued after the loss, so that no item
    is compared with itself. During the first `start` training calls only the batch counts, as early embeddings drift.
    The queue, its cursor and its fill level are in the `state_dict`. Labels and counts stay on the CPU, wherever the
    module is moved, so that no step waits for an accelerator.
    """

    memory: Tensor
    memory_labels: Tensor
    cursor: Tensor
    filled: Tensor
    calls: Tensor

    def __init__(
        self,
        loss: nn.Module,
        size: Count,
        dim: Dim,
        weight: Weight = 1.0,
        start: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        super().__init__()
        compares = isinstance(loss, TakesReferences) and not loss.own_batch
        if not compares:
            raise InputError(f"loss must compare with references; {type(loss).__name__} takes none. Use a pair loss.")
        self.loss, self.weight, self.start = loss, weight, start
        self.register_buffer("memory", torch.zeros(size, dim))
        self.register_buffer("memory_labels", torch.zeros(size, dtype=torch.int64))
        for name in ("cursor", "filled", "calls"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CrossBatchMemory:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in ("memory_labels", "cursor", "filled", "calls"):
            self._buffers[name] = getattr(self, name).cpu()
        return self

    @property
    def last(self) -> dict[str, int]:
        """What the loss counted in its last call: against the memory once it is in use."""
        return self.loss.last if isinstance(self.loss, Counted) else {}

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch (M, D), which is enqueued in training; a 0-dim tensor."""
        value: Tensor = self.loss(embeddings, labels)
        filled = int(self.filled)
        if filled and int(self.calls) >= self.start:
            known = self.memory[:filled].to(embeddings.dtype), self.memory_labels[:filled]
            value = value + self.weight * self.loss(embeddings, labels, *known)
        if self.training:
            self._remember(embeddings.detach(), labels)
            self.calls += 1
        return value

    def _remember(self, embeddings: Tensor, labels: Tensor) -> None:
        """Overwrite the oldest entries with the batch (with its last `size` rows, if it is longer)."""
        size = len(self.memory)
        embeddings, labels = embeddings[-size:], labels[-size:]
        places = (int(self.cursor) + torch.arange(len(labels))) % size
        self.memory[places.to(self.memory.device, non_blocking=True)] = embeddings.to(self.memory)
        self.memory_labels[places] = labels.to(self.memory_labels)
        self.cursor.fill_((int(self.cursor) + len(labels)) % size)
        self.filled.fill_(min(size, int(self.filled) + len(labels)))
