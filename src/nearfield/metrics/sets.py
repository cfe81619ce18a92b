"""Queries and gallery of an evaluation: checked, brought together from all ranks, ready to be compared.

Axes: Q queries, N gallery items, D dimensions, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from numpy.typing import NDArray
from torch import Tensor

from nearfield.errors import InputError
from nearfield.metrics import sharded
from nearfield.metrics.checks import Array, embedding_matrix, label_array, label_codes, same_length, same_width
from nearfield.metrics.ranking.vectors import VectorSet, vector_sets
from nearfield.metrics.settings import EvalSettings

Gallery = Array | Mapping[str, Array] | None


@dataclass(frozen=True)
class EvalSets:
    """All queries and all gallery items, of all ranks."""

    queries: VectorSet
    codes: Tensor  # (Q,) int64 labels 0..C-1
    gallery: VectorSet  # the queries themselves when no gallery was given
    gallery_codes: Tensor  # (N,)
    mine: slice  # the queries that this process scores
    categories: NDArray[Any] | None  # (Q,)

    @property
    def one_set(self) -> bool:
        """Whether the queries are the gallery."""
        return self.queries is self.gallery


@dataclass(frozen=True)
class _Given:
    """The arguments of this rank, checked; of a distributed run any of them may have no rows."""

    data: Tensor  # (q, D)
    labels: NDArray[Any]
    categories: NDArray[Any] | None
    items: Tensor | None  # (n, D)
    item_labels: NDArray[Any] | None


def read_sets(
    embeddings: Array, labels: Array, gallery: Gallery, gallery_labels: Gallery, settings: EvalSettings, name: str = ""
) -> EvalSets:
    """Check the arguments and, in a distributed run, gather the shards; `name` is that of the gallery."""
    if not settings.distributed:
        given = _check(embeddings, labels, gallery, gallery_labels, settings)
        mine = slice(0, len(given.data))
    else:
        sharded.require_group()
        call = (settings.signature(), gallery is None, name)
        here = sharded.on_all_ranks(lambda: _check(embeddings, labels, gallery, gallery_labels, settings), call)
        given, start = _gathered(here)
        mine = slice(start, start + len(here.data))
    if given.items is not None:
        same_width(given.data, given.items)
    codes, item_codes = label_codes(given.labels, given.item_labels, given.data.device)
    queries, ranked = vector_sets(given.data, given.items, settings.distance)
    return EvalSets(queries, codes, ranked, codes if item_codes is None else item_codes, mine, given.categories)


def _check(
    embeddings: Array, labels: Array, gallery: Gallery, gallery_labels: Gallery, settings: EvalSettings
) -> _Given:
    data, names = _labelled(embeddings, labels, "embeddings", "labels", settings)
    categories = None
    if settings.categories is not None:
        categories = label_array(settings.categories, "categories")
        same_length(data, categories, "embeddings", "categories")
    if gallery is None:
        return _Given(data, names, categories, None, None)
    if isinstance(gallery_labels, Mapping):
        raise InputError("gallery_labels must be one array, as gallery is one; got a dict.")
    others = _labelled(cast(Array, gallery), cast(Array, gallery_labels), "gallery", "gallery_labels", settings)
    return _Given(data, names, categories, *others)


def _labelled(
    rows: Array, labels: Array, argument: str, label_argument: str, settings: EvalSettings
) -> tuple[Tensor, NDArray[Any]]:
    matrix = embedding_matrix(rows, argument, settings.distance, may_be_empty=settings.distributed)
    names = label_array(labels, label_argument)
    same_length(matrix, names, argument, label_argument)
    return matrix, names


def _gathered(here: _Given) -> tuple[_Given, int]:
    """The rows of all ranks, and where those of this rank begin."""
    data, start = sharded.gather_matrix(here.data, "embeddings")
    labels = sharded.gather_labels(here.labels, "labels")
    categories = None if here.categories is None else sharded.gather_labels(here.categories, "categories")
    if here.items is None or here.item_labels is None:
        return _Given(data, labels, categories, None, None), start
    items = sharded.gather_matrix(here.items, "gallery")[0]
    return _Given(data, labels, categories, items, sharded.gather_labels(here.item_labels, "gallery_labels")), start
