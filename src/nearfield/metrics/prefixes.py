"""Metrics of an embedding that is cut short: the first d dims, normalised again (Matryoshka).

Axes: Q queries, N gallery items, D dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearfield.errors import InputError
from nearfield.metrics.api import retrieval_metrics
from nearfield.metrics.checks import Array, embedding_matrix, whole_number

BYTES = 4  # of a dim, as float32
SHORTEST = 8  # the shortest of the halves


def prefix_metrics(
    embeddings: Array,
    labels: Array,
    dims: Sequence[int],
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    **options: Any,
) -> dict[int, dict[str, float]]:
    """`retrieval_metrics`, by cosine, of the first d columns of embeddings and gallery, by d in `dims`, ascending."""
    rows = embedding_matrix(embeddings, "embeddings", "cosine")
    items = None if gallery is None else embedding_matrix(gallery, "gallery", "cosine")
    if not dims:
        raise InputError("dims must hold at least one number of dims; got none.")
    lengths = sorted({whole_number("dims", d, 1, rows.shape[1]) for d in dims})
    return {
        d: retrieval_metrics(
            rows[:, :d],
            labels,
            gallery=None if items is None else items[:, :d],
            gallery_labels=gallery_labels,
            distance="cosine",
            **options,
        )
        for d in lengths
    }


def halves(width: int) -> tuple[int, ...]:
    """The width and its halves down to 8, ascending."""
    found = [width]
    while found[0] // 2 >= SHORTEST:
        found.insert(0, found[0] // 2)
    return tuple(found)
