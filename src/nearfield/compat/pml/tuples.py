"""Index tuples: (anchors, positives, negatives), or (anchors, positives, anchors, negatives) for pairs.

Axes: M queries, N references, T pairs or triplets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Union, overload

import torch
from torch import Tensor

from nearfield.errors import InputError
from nearfield.pairs import Block

Indices = Union[Sequence[Tensor], "Mined"]
Pairs = tuple[Tensor, Tensor, Tensor, Tensor]
Triplets = tuple[Tensor, Tensor, Tensor]


class Batch(NamedTuple):
    """What a loss or a miner compares."""

    embeddings: Tensor  # (M, D)
    labels: Tensor | None  # (M,)
    ref_emb: Tensor  # (N, D)
    ref_labels: Tensor | None  # (N,)
    own: bool  # whether a row is not to be compared with the column of the same number

    @classmethod
    def of(
        cls, embeddings: Tensor, labels: Tensor | None, ref_emb: Tensor | None, ref_labels: Tensor | None, version: int
    ) -> Batch:
        """The batch of a call. Version 2 takes a row and the column of its number for one item if both label arguments
        are one object; version 3, if no references are given.
        """
        if ref_emb is None:
            return cls(embeddings, labels, embeddings, labels, True)
        same = labels is not None and ref_labels is labels
        if same and version == 3 and ref_labels is not None:
            same, ref_labels = False, ref_labels.view_as(ref_labels)  # another object
        return cls(embeddings, labels, ref_emb, ref_labels, same)

    def matches(self) -> tuple[Tensor, Tensor]:
        """Which columns are positives and which negatives of each row, (M, N) booleans."""
        if self.labels is None or self.ref_labels is None:
            raise InputError("labels must be given for queries and references where no indices_tuple is; got None.")
        device = self.embeddings.device
        same = self.labels.to(device)[:, None] == self.ref_labels.to(device)
        differ = ~same
        if self.own:
            same.fill_diagonal_(False)
        return same, differ

    def all_pairs(self) -> Pairs:
        """All pairs that the labels make."""
        same, differ = self.matches()
        a1, p = same.nonzero(as_tuple=True)
        a2, n = differ.nonzero(as_tuple=True)
        return a1, p, a2, n


class Mined(Sequence[Tensor]):
    """The tuple of a miner: enumerated when somebody looks at it, never if the engine can apply the miner's rule."""

    def __init__(self, batch: Batch, size: int, mine: Callable[..., tuple[Tensor, ...]], rule: Rule | None) -> None:
        self.batch, self.size, self.rule = batch, size, rule
        self._mine = mine
        self._found: tuple[Tensor, ...] | None = None

    @property
    def found(self) -> tuple[Tensor, ...]:
        """The index tensors."""
        if self._found is None:
            with torch.no_grad():
                self._found = self._mine(*self.batch[:4])
        return self._found

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.found)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Tensor, ...]: ...
    def __getitem__(self, index: int | slice) -> Tensor | tuple[Tensor, ...]:
        return self.found[index]


class Rule(NamedTuple):
    """What a miner keeps, in words that the engine understands."""

    mine: Callable[[Block], Block] | None  # on a block of the miner's own measure; None for rules over triplets
    measure: str  # that it looks at
    normalize: bool
    paired: bool  # whether a query keeps positives if and only if it keeps negatives
    triplets: str = ""  # "semihard" or "all", for rules over triplets
    margin: float = 0.0  # of these


def as_pairs(given: Indices) -> Pairs:
    """A tuple of 3 or 4 as pairs."""
    if len(given) == 3:
        a, p, n = given
        return a, p, a, n
    if len(given) != 4:
        raise InputError(f"indices_tuple must hold 3 tensors (triplets) or 4 (pairs); got {len(given)}.")
    a1, p, a2, n = given
    return a1, p, a2, n


def as_triplets(given: Indices) -> Triplets:
    """A tuple of 3 or 4 as triplets: of pairs, every positive with every negative of the same anchor."""
    if len(given) == 3:
        a, p, n = given
        return a, p, n
    a1, p, a2, n = as_pairs(given)
    left, right = (a1[:, None] == a2).nonzero(as_tuple=True)
    return a1[left], p[left], n[right]


def element_weights(given: Indices | None, rows: int, like: Tensor, references: bool) -> Tensor | None:
    """How often each row is in the tuple, over the most frequent one: how classification losses read a tuple, (M,)."""
    if given is None or all(not len(part) for part in given):
        return None
    parts = list(given)
    if references:  # only anchors are rows
        parts = parts[:1] if len(parts) == 3 else [parts[0], parts[2]]
    counts = torch.bincount(torch.cat(parts), minlength=rows)
    return counts.to(like.device, torch.promote_types(like.dtype, torch.float32)) / counts.max()
