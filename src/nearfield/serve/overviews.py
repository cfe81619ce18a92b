"""Duplicates and the atlas of a collection: seconds of work, done once per state of the index, in a thread aside."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfield.index import Duplicates, Index
from nearfield.report import atlas
from nearfield.report.cache import Cache


@dataclass(frozen=True)
class Atlas:
    """A map of the collection: an equal share of every class, placed by t-SNE."""

    ids: list[int]
    labels: list[int]  # places in `classes`; -1 without a label
    classes: list[str]
    x: list[float]  # in 0..1
    y: list[float]


class Overviews:
    """Computes what is asked for, once for every generation of the index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nearfield-overview")
        self._known: dict[str, tuple[int, Future[Any]]] = {}

    def duplicates(self, generation: int) -> Future[Duplicates]:
        """Identical and nearly identical items."""
        return self._once("duplicates", generation, lambda index: index.duplicates())

    def atlas(self, generation: int) -> Future[Atlas]:
        """The map."""
        return self._once("atlas", generation, make_atlas)

    def _once(self, name: str, generation: int, work: Any) -> Future[Any]:
        known = self._known.get(name)
        failed = known is not None and known[1].done() and known[1].exception() is not None
        if known is None or known[0] != generation or failed:
            self._known[name] = (generation, self._pool.submit(self._open, work))
        return self._known[name][1]

    def _open(self, work: Any) -> Any:
        with Index.open(self.path) as index:  # an index belongs to one thread
            return work(index)

    def close(self) -> None:
        """Drop what waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def make_atlas(index: Index) -> Atlas:
    """The map of an index; fewer than `atlas.FEWEST` items have none."""
    classes = list(index.classes)
    place = {name: number for number, name in enumerate(classes)}
    ids = np.array(index.ids, np.int64)
    labels = np.array([-1 if label is None else place[label] for label in index.labels.values()], np.int64)
    if len(ids) < atlas.FEWEST:
        return Atlas([], [], classes, [], [])
    chosen = atlas.sample(labels)
    vectors = index.vectors(ids[chosen].tolist())
    (points,) = atlas.maps([vectors], np.arange(len(chosen)), True, Cache(None))
    x, y = points.round(4).T.tolist()
    return Atlas(ids[chosen].tolist(), labels[chosen].tolist(), classes, x, y)
