"""Duplicates in an index: files with the same content, and images that look almost the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearfield.data.leaks import BITS, DISTANCE, near_pairs
from nearfield.index.store import Row

SIMILAR = 0.9  # cosine of near-duplicates at least: simple drawings can have close hashes without being alike


@dataclass(frozen=True)
class NearDuplicate:
    """Two items whose images differ, but little."""

    first: int  # ids, ascending
    second: int
    bits: int  # of the difference hashes that differ
    score: float  # cosine similarity


@dataclass(frozen=True)
class Duplicates:
    """Two lists, kept apart: a copy is certain, a near-duplicate is a suspicion."""

    identical: tuple[tuple[int, ...], ...]  # ids of each group of files with the same content
    near: tuple[NearDuplicate, ...]  # the most similar first; of identical files only the first counts


def find_duplicates(
    rows: Sequence[Row], vectors: Callable[[Sequence[int]], npt.NDArray[np.float32]], distance: int = DISTANCE
) -> Duplicates:
    """Duplicates among items: the same content; difference hashes within `distance` bits and similar vectors."""
    groups: dict[bytes, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.digest, []).append(row)
    identical = tuple(tuple(row.id for row in group) for group in groups.values() if len(group) > 1)
    firsts = [group[0] for group in groups.values()]
    if not firsts:
        return Duplicates((), ())
    hashes = np.frombuffer(b"".join(row.hash for row in firsts), np.uint8).reshape(len(firsts), BITS // 8)
    bits = np.unpackbits(hashes, axis=1).astype(np.bool_)
    near = []
    for a, b, differing in near_pairs(bits, bits, distance):
        if a < b:
            pair = vectors([firsts[a].id, firsts[b].id])
            score = float(pair[0] @ pair[1])
            if score >= SIMILAR:
                near.append(NearDuplicate(firsts[a].id, firsts[b].id, differing, score))
    near.sort(key=lambda pair: (-pair.score, pair.first, pair.second))
    return Duplicates(identical, tuple(near))
