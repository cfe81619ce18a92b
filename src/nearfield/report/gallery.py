"""What each method retrieves: neighbours of every query, scores by class, confused classes.

Axes: M methods, Q queries (every test image is one), K neighbours, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.data.dataset import Integers
from nearfield.report.cache import Cache, digest
from nearfield.report.packing import pack, shares

NEIGHBOURS = 8
IMAGES = 6_000  # in the whole report
CONFUSIONS = 4_000  # most frequent pairs of confused classes, for each method
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Answers:
    """What one method retrieved."""

    method: int  # its index in the results
    scores: Floats  # (Q,) average precision at R; NaN for a query without a match
    near: Integers  # (Q, K) nearest first


def answers(method: int, embeddings: NDArray[np.float16], scores: Floats, distance: str, cache: Cache) -> Answers:
    """The nearest other test images of every test image, by exact search."""
    k = min(NEIGHBOURS, len(embeddings) - 1)

    def search() -> dict[str, NDArray[Any]]:
        import torch

        from nearfield.metrics import nearest_neighbours

        rows = torch.from_numpy(embeddings.astype(np.float32))
        return {"near": nearest_neighbours(rows, k=k, distance=distance)[1].numpy().astype(np.int32)}

    found = cache.get("near", digest(embeddings, f"{distance} {k}"), search)["near"]
    return Answers(method, np.asarray(scores), found.astype(np.int64))


def choose_queries(found: Sequence[Answers], labels: Integers, limit: int = IMAGES) -> Integers:
    """Queries (ascending) that need at most `limit` images, their neighbours included; all queries if possible.

    Otherwise taken in turn from the hardest for all methods, those on which methods disagree most, and random ones;
    classes take turns too.
    """
    if len(labels) <= limit:
        return np.arange(len(labels))
    chosen: list[int] = []
    needed: set[int] = set()
    for query in _by_turns(np.stack([each.scores for each in found]), labels):
        more = {query, *chain.from_iterable(each.near[query].tolist() for each in found)}
        if len(needed | more) > limit:
            break
        needed |= more
        chosen.append(query)
    return np.array(sorted(chosen), dtype=np.int64)


def _by_turns(scores: Floats, labels: Integers) -> Iterator[int]:
    """Every query with a score from all methods, once; `scores` is (M, Q)."""
    usable = np.flatnonzero(~np.isnan(scores).any(axis=0))
    usable = np.random.Generator(np.random.PCG64(0)).permutation(usable)  # breaks ties between equal scores
    mean, dispute = scores[:, usable].mean(axis=0), np.ptp(scores[:, usable], axis=0)
    orders = (np.argsort(mean, kind="stable"), np.argsort(-dispute, kind="stable"), np.arange(len(usable)))
    lists = [_classes_in_turn(usable[order], labels) for order in orders]
    return iter(dict.fromkeys(int(q) for turn in zip(*lists, strict=True) for q in turn))


def _classes_in_turn(order: Integers, labels: Integers) -> Integers:
    """The first query of every class in the given order, then the second of every class, and so on."""
    by_class = np.argsort(labels[order], kind="stable")
    starts = np.r_[0, np.flatnonzero(np.diff(labels[order][by_class])) + 1]
    sizes = np.diff(np.r_[starts, len(order)])
    turn = np.empty(len(order), dtype=np.int64)
    turn[by_class] = np.arange(len(order)) - np.repeat(starts, sizes)
    return order[np.argsort(turn, kind="stable")]


def images_shown(found: Sequence[Answers], queries: Integers) -> Integers:
    """The queries and all their neighbours, ascending."""
    return np.unique(np.concatenate([queries, *(each.near[queries].ravel() for each in found)]))


def by_class(found: Answers, labels: Integers) -> tuple[Floats, Floats]:
    """Mean average precision and share of correct first neighbours by class, (C,) each, over queries with a score."""
    scored = ~np.isnan(found.scores)
    own, first = labels[scored], labels[found.near[scored, 0]]
    size = np.bincount(own, minlength=labels.max() + 1)
    with np.errstate(invalid="ignore"):
        precision = np.bincount(own, found.scores[scored], minlength=len(size)) / size
        right = np.bincount(own, own == first, minlength=len(size)) / size
    return precision, right


def confusions(found: Answers, labels: Integers) -> Integers:
    """Rows (class, class of the wrong first neighbour, count), most frequent first."""
    classes = int(labels.max()) + 1
    first = labels[found.near[:, 0]]
    wrong = first != labels
    pairs, counts = np.unique(labels[wrong] * classes + first[wrong], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:CONFUSIONS]
    return np.stack([pairs[order] // classes, pairs[order] % classes, counts[order]], axis=1)


def gallery(found: Sequence[Answers], queries: Integers, labels: Integers, seed: int, part: str) -> dict[str, Any]:
    """The data that the page shows for each method."""
    number = np.uint16 if len(labels) <= 65_535 else np.uint32
    methods = []
    for each in found:
        precision, right = by_class(each, labels)
        methods.append(
            {
                "method": each.method,
                "scores": pack(shares(each.scores[queries])),
                "near": pack(each.near[queries].astype(number)),
                "class_scores": pack(shares(precision)),
                "class_right": pack(shares(right)),
                "confusions": pack(confusions(each, labels).astype(np.uint16)),
            }
        )
    return {
        "queries": pack(queries.astype(number)),
        "total": len(labels),
        "neighbours": found[0].near.shape[1],
        "seed": seed,
        "part": part,
        "methods": methods,
    }
