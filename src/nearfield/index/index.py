"""An index that is open for searching.

    index = nf.Index.open("shop.index")
    for result in index.search(["query.jpg"], k=5):
        result.neighbours, result.suggestion, result.is_new

Axes: Q queries, K neighbours, D dims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from nearfield.errors import InputError, RunError
from nearfield.index import build
from nearfield.index.answers import Item, Neighbour, SearchResult, Suggestion
from nearfield.index.calibration import Calibration
from nearfield.index.duplicates import Duplicates, find_duplicates
from nearfield.index.engines import Found, ordered
from nearfield.index.measure import measure, vector_blocks
from nearfield.index.model import IndexModel
from nearfield.index.store import Store

ATTEMPTS = 3  # at opening, while another process replaces the files
LARGEST = 10_000  # neighbours of a query
DEEP = 100  # neighbours among which a labelled one is looked for, if some items have no label


class Index:
    """An index of images: search it, look at its items, add and remove some. Not to be shared between threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._model: IndexModel | None = None
        self._store = Store(path)
        try:
            self._read()
        except BaseException:
            self._store.close()
            raise

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """The index in the folder `path`, as `nearfield index` wrote it."""
        return cls(Path(path))

    def _read(self) -> None:
        for attempt in range(ATTEMPTS):
            with self._store.snapshot():
                self._ids, labels = self._store.labels()
                self._labels = dict(zip(self._ids.tolist(), labels, strict=True))
                facts, self.measured = self._store.fact("model"), self._store.fact("measured")
                calibration, self.note = self._store.fact("calibration"), self._store.fact("note")
                name = self._store.fact("snapshot")
            try:
                self._engine = build.stored_engine(self._store, self.path)
                break
            except (OSError, RunError):
                if attempt == ATTEMPTS - 1 or self._store.fact("snapshot") == name:
                    raise
        self._all_labelled = None not in self._labels.values()
        self.digest: str = facts["digest"]  # of the model that made the vectors
        self.dim: int = facts["dims"]
        self.calibration = None if calibration is None else Calibration.of(calibration)

    def reload(self) -> None:
        """Read the index again, after another process has changed it."""
        self._engine.close()
        self._read()

    def close(self) -> None:
        """Release files and connections."""
        self._engine.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {len(self)} items, {self.dim} dims, model {self.digest[:12]})"

    @property
    def classes(self) -> dict[str, int]:
        """The number of items of each class, by name; unlabelled items are not counted."""
        counts = Counter(label for label in self._labels.values() if label is not None)
        return {name: counts[name] for name in sorted(counts)}

    @property
    def ids(self) -> list[int]:
        """The ids of all items, ascending."""
        return [int(item) for item in self._ids]

    @property
    def labels(self) -> dict[int, str | None]:
        """The label of each item, by id, ascending."""
        return dict(self._labels)

    @property
    def model(self) -> IndexModel:
        """The model that is stored with the index; loaded when it is first used."""
        if self._model is None:
            self._model = build.stored_model(self._store, self.path)
        return self._model

    def item(self, id: int) -> Item:
        """An item; InputError if there is none with this id."""
        found = self._store.items([id]).get(id) if id in self._labels else None
        if found is None:
            raise InputError(f"id must be one of the index; got {id}.")
        return found

    def thumbnail(self, id: int) -> bytes:
        """The thumbnail of an item, a WebP file."""
        self.item(id)
        found = self._store.thumbnail(id)
        assert found is not None
        return found

    def file(self, id: int) -> Path | None:
        """The original file of an item, if it was a file and is still there."""
        item = self.item(id)
        path = None if item.root is None else Path(item.root) / item.path
        return path if path is not None and path.is_file() else None

    def vectors(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The vectors (N, D) of items, of length 1."""
        for item in ids:
            self.item(item)
        return self._store.vectors(ids)

    def embed(self, images: Any) -> npt.NDArray[np.float32]:
        """Vectors (Q, D) of images: paths, Pillow images or uint8 arrays (H, W) or (H, W, 3); or of a single one."""
        single = isinstance(images, str | PathLike) or hasattr(images, "getpixel")
        return self.model.embed([images] if single else images)

    def search(
        self, images_or_vectors: Any, k: int = 10, *, label: str | None = None, model: str | None = None
    ) -> list[SearchResult]:
        """The K nearest items of each query, the suggested class, and whether the query is of a new class.

        Queries are images as `embed` takes them, or vectors (Q, D) or (D,) of floats. `label` searches one class only.
        `model` is the digest of the model that made the vectors, if it is known: another than the index's is refused.
        """
        if model is not None and model != self.digest:
            raise InputError(
                f"queries must be made by the model of the index, digest {self.digest}; got {model}. Vectors of two "
                "models cannot be compared."
            )
        if not isinstance(k, int | np.integer) or not 1 <= k <= LARGEST:
            raise InputError(f"k must be a whole number in 1..{LARGEST}; got {k!r}.")
        vectors = self._vectors_of(images_or_vectors)
        if not len(vectors):
            return []
        found = self._nearest(vectors, int(k), label)
        deep = k if self._all_labelled else max(k, DEEP)
        best = found if label is None and deep == k else self._nearest(vectors, int(deep), None)
        items = self._store.items(set(found.ids[found.ids >= 0].tolist()))
        return [
            self._result(found.ids[row], found.scores[row], items, *self._best(best.ids[row], best.scores[row]))
            for row in range(len(vectors))
        ]

    def _vectors_of(self, given: Any) -> npt.NDArray[np.float32]:
        array = given.detach().cpu().numpy() if hasattr(given, "detach") else given
        if not isinstance(array, np.ndarray) and isinstance(array, Sequence) and not isinstance(array, str):
            first = array[0] if len(array) else None
            numbers = isinstance(first, float | np.floating) or (
                isinstance(first, Sequence)
                and not isinstance(first, str)
                and all(isinstance(x, int | float) for x in first)
            )
            array = np.asarray(array, np.float64) if numbers else array
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            return self.model_cut(array[None] if array.ndim == 1 else array)
        return self.embed(array)

    def model_cut(self, vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Vectors as the index compares them: the first D dims, of length 1."""
        return self.model.cut(vectors)

    def _nearest(self, vectors: npt.NDArray[np.float32], k: int, label: str | None) -> Found:
        """The nearest items, scored by the vectors of the index, so that answers do not depend on the engine.

        An engine on a server may know more than the index shows, if a change of it was interrupted.
        """
        extra = max(0, len(self._engine) - len(self))
        found = self._engine.search(vectors, min(k + extra, len(self) + extra) or 1, label)
        ids = np.where(np.isin(found.ids, self._ids), found.ids, -1)  # (Q, K)
        unique, places = np.unique(ids, return_inverse=True)
        items = np.zeros((len(unique), self.dim), np.float32)
        items[unique >= 0] = self._store.vectors(unique[unique >= 0].tolist()).reshape(-1, self.dim)
        rows = zip(vectors, places.reshape(ids.shape), strict=True)
        scores = np.stack([items[place] @ vector for vector, place in rows])
        return ordered(ids, scores, k)

    def _best(self, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float32]) -> tuple[str | None, float]:
        """Label and score of the nearest labelled item; without one, a bound of its score."""
        last = -np.inf
        for item, score in zip(ids.tolist(), scores.tolist(), strict=True):
            if item in self._labels:
                last = score
                label = self._labels[item]
                if label is not None:
                    return label, score
        return None, last

    def _result(
        self,
        ids: npt.NDArray[np.int64],
        scores: npt.NDArray[np.float32],
        items: dict[int, Item],
        label: str | None,
        score: float,
    ) -> SearchResult:
        neighbours = tuple(
            Neighbour(item, items[item].label, min(1.0, max(-1.0, value)), items[item].path)
            for item, value in zip(ids.tolist(), scores.tolist(), strict=True)
            if item in items
        )
        rule = self.calibration
        if rule is None:
            return SearchResult(neighbours, None if label is None else Suggestion(label, None), None, None)
        if label is None:  # no labelled item is near: a labelled one scores at most this
            return SearchResult(neighbours, None, True if rule.is_new(score) else None, None)
        return SearchResult(
            neighbours, Suggestion(label, rule.probability(score)), rule.is_new(score), rule.p_value(score)
        )

    def check(self) -> list[str]:
        """Measure recall and latency again, into `measured`; what is wrong with the files of the index, if anything."""
        rows = self._store.rows()
        self.measured = measure(self._store, self._engine, rows)
        problems = [] if self._store.check() == "ok" else [f"{self._store.file} is damaged: {self._store.check()}."]
        stale = len(self._engine) - len(self)
        if stale:
            problems.append(
                f"the engine holds {len(self._engine)} vectors for {len(self)} images. Run the command that was "
                "interrupted again, or make the index again."
            )
        lengths = [np.linalg.norm(vectors, axis=1) for _, vectors in vector_blocks(self._store, self._ids)]
        odd = sum(int((np.abs(block - 1) > 1e-3).sum()) for block in lengths)
        return [*problems, *([f"{odd} vectors are not of length 1. Make the index again."] if odd else [])]

    def duplicates(self) -> Duplicates:
        """Items with the same content, and items that look almost the same: two lists, kept apart."""
        return find_duplicates(self._store.rows(), self._store.vectors)

    def add(self, images: Sequence[tuple[str, str | None, bytes]]) -> build.Changes:
        """Add encoded images (name, label, content), which are stored in no file."""
        changes = build.add_images(self.path, images, self.model)
        self.reload()
        return changes

    def remove(self, ids: Iterable[int]) -> build.Changes:
        """Remove items."""
        changes = build.remove_items(self.path, ids)
        self.reload()
        return changes
