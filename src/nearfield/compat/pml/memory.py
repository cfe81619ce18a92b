"""Losses around losses: `CrossBatchMemory` and `SelfSupervisedLoss` under the conventions of PML 2.9.

Axes: M items of a batch, N items of the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nearfield.compat.pml.base import PairBridge
from nearfield.compat.pml.errors import NotMapped
from nearfield.compat.pml.miners import BaseMiner
from nearfield.compat.pml.tuples import Batch, Indices, as_pairs, as_triplets
from nearfield.errors import InputError
from nearfield.pairs import Block
from nearfield.pairs.mining import keep


class CrossBatchMemory(nn.Module):
    """A loss of a batch against a queue that holds it and earlier batches; no item is compared with itself.

    Where this library's own `CrossBatchMemory` adds the loss of the batch to that against earlier batches, PML enqueues
    first and takes one loss against the whole queue. Cursor and fill level are in the `state_dict`, which PML forgets.
    """

    embedding_memory: Tensor
    label_memory: Tensor
    cursor: Tensor

    def __init__(
        self, loss: PairBridge, embedding_size: int, memory_size: int = 1024, miner: BaseMiner | None = None
    ) -> None:
        super().__init__()
        if not isinstance(loss, PairBridge) or loss.loss.own_batch:
            raise NotMapped(f"CrossBatchMemory of {type(loss).__name__}", "it needs a loss that takes references.")
        self.loss, self.miner = loss, miner
        self.embedding_size, self.memory_size = embedding_size, memory_size
        self.reset_queue()

    def reset_queue(self) -> None:
        """Forget everything."""
        self.register_buffer("embedding_memory", torch.zeros(self.memory_size, self.embedding_size))
        self.register_buffer("label_memory", torch.zeros(self.memory_size, dtype=torch.int64))
        self.register_buffer(
            "cursor", torch.zeros(2, dtype=torch.int64)
        )  # where the next item goes; how many there are

    @property
    def queue_idx(self) -> int:
        """Where the next item goes."""
        return int(self.cursor[0])

    @property
    def has_been_filled(self) -> bool:
        """Whether every place of the queue holds an item."""
        return int(self.cursor[1]) == self.memory_size

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Indices | None = None,
        enqueue_mask: Tensor | None = None,
    ) -> Tensor:
        """The loss against the queue, which the batch joins first; or rows of `enqueue_mask`, which are no queries."""
        if indices_tuple is not None and enqueue_mask is not None:
            raise InputError("indices_tuple and enqueue_mask must not be given both; leave one out.")
        if enqueue_mask is not None:
            self.add_to_memory(embeddings[enqueue_mask], labels[enqueue_mask])
            embeddings, labels, places = embeddings[~enqueue_mask], labels[~enqueue_mask], None
        else:
            places = self.add_to_memory(embeddings, labels)
        filled = int(self.cursor[1])
        memory, known = self.embedding_memory[:filled].to(embeddings), self.label_memory[:filled].to(labels)
        if self.miner is None and indices_tuple is None:
            return self._streamed(embeddings, labels, memory, known, places)
        mined = self._tuple(embeddings, labels, memory, known, places, indices_tuple)
        value: Tensor = self.loss(embeddings, labels, mined, memory, known)
        return value

    def add_to_memory(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Overwrite the oldest items with these; their places, (M,)."""
        if len(embeddings) > self.memory_size:
            raise InputError(f"a batch must fit into memory_size = {self.memory_size}; got {len(embeddings)} rows.")
        places = (
            self.queue_idx + torch.arange(len(embeddings), device=self.embedding_memory.device)
        ) % self.memory_size
        self.embedding_memory = self.embedding_memory.to(embeddings.dtype)  # as PML
        self.embedding_memory[places] = embeddings.detach().to(self.embedding_memory)
        self.label_memory[places] = labels.to(self.label_memory)
        self.cursor[0] = (self.queue_idx + len(embeddings)) % self.memory_size
        self.cursor[1] = min(self.memory_size, int(self.cursor[1]) + len(embeddings))
        return places

    def _streamed(
        self, embeddings: Tensor, labels: Tensor, memory: Tensor, known: Tensor, places: Tensor | None
    ) -> Tensor:
        """All pairs but those of an item and itself: by the engine where it streams the loss's distance."""
        if places is None or self.loss.distance.measure not in self.loss.streams:
            batch = Batch(embeddings, labels, memory, known, False)
            given = None if places is None else _without_self(batch.all_pairs(), places)
            listed: Tensor = self.loss(embeddings, labels, given, memory, known)
            return listed
        by_label = torch.empty_like(known)  # the column of each item of the memory, in the engine's order
        by_label[known.argsort(stable=True)] = torch.arange(len(known), device=known.device)
        self.loss.loss.miner = _without_columns(by_label[places.to(known.device)])
        try:
            value: Tensor = self.loss(embeddings, labels, None, memory, known)
        finally:
            self.loss.loss.miner = None
        return value

    def _tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        memory: Tensor,
        known: Tensor,
        places: Tensor | None,
        given: Indices | None,
    ) -> Indices:
        """What the miner finds, without items and themselves, and the tuple of the caller."""
        batch = Batch(embeddings, labels, memory, known, False)
        found: Indices = (
            batch.all_pairs() if self.miner is None else self.miner(embeddings, labels, memory, known).found
        )
        if places is not None:
            found = _without_self(found, places)
        if given is not None:
            given = as_triplets(given) if len(found) == 3 else as_pairs(given)
            found = tuple(torch.cat([mine, theirs.to(mine)]) for mine, theirs in zip(found, given, strict=True))
        return found


def _without_self(given: Indices, places: Tensor) -> Indices:
    """The tuple without pairs of an item and its own place in the memory."""
    a, p, *rest = given
    other = places.to(p.device)[a] != p
    return (a[other], p[other], rest[0][other]) if len(rest) == 1 else (a[other], p[other], *rest)


def _without_columns(own: Tensor) -> Callable[[Block], Block]:
    """A miner that removes the column `own` (M,) of each query from its positives."""

    def mine(block: Block) -> Block:
        return keep(block, block.pos_index != own.to(block.rows.device)[block.rows][:, None])

    return mine


class SelfSupervisedLoss(nn.Module):
    """A loss of two views of the same items: the views of an item are its positives."""

    def __init__(self, loss: nn.Module, symmetric: bool = True, **kwargs: Any) -> None:
        super().__init__()
        if kwargs:
            raise NotMapped(f"SelfSupervisedLoss({', '.join(kwargs)})", "it takes a loss and `symmetric`.")
        self.loss, self.symmetric = loss, symmetric

    def forward(self, embeddings: Tensor, ref_emb: Tensor) -> Tensor:
        """The loss of both views; `symmetric` takes anchors from both, else from the first."""
        labels = torch.arange(len(embeddings))
        value: Tensor
        if self.symmetric:
            value = self.loss(torch.cat([embeddings, ref_emb]), labels.repeat(2))
        else:
            value = self.loss(embeddings, labels, None, ref_emb, labels.clone())
        return value
