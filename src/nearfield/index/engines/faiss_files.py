"""The engine of one machine: memory-mapped files, searched by faiss.

Exact up to `EXACT_UP_TO` vectors, then a graph (HNSW), then inverted lists (IVF), both over 8 bits a dim (SQ8). An
approximate index only proposes candidates; their scores are computed from the vectors themselves. Its effort (efSearch,
nprobe) is doubled until recall@10 against exact search, measured on these very vectors, reaches `TARGET`.

    search-1/   vectors.f32 (R, D)   ids.npy   classes.npy   alive.npy (R,)   facts.json   approximate.faiss

Axes: R rows (dead ones included), Q queries, K neighbours, D dims.
"""

from __future__ import annotations

import importlib
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfield.errors import InputError, require_one_of
from nearfield.files import flush_to_disk, read_json, whole_folder, write_json
from nearfield.index.engines.contract import EXACT_UP_TO, Floats, Found, Ids, ordered, recall

KINDS = ("auto", "exact", "hnsw", "ivf")
GRAPH_UP_TO = 1_000_000  # vectors; beyond, building a graph takes too long and inverted lists need less memory
BLOCK = 65_536  # rows compared at a time
RERANK = 4  # candidates per neighbour that an approximate index proposes
TARGET = 0.95  # recall@10
EFFORTS = {"hnsw": 64, "ivf": 8}  # the first that is tried
SAMPLE = 200  # queries that recall is measured on
DEAD = 0.2  # share of deleted rows from which on an approximate index is built again
FEW = 20_000  # rows that a filter leaves, up to which they are compared one by one
Mask = npt.NDArray[np.bool_]
faiss: Any = importlib.import_module("faiss")  # its types are incomplete


class FaissEngine:
    """Vectors in files below `home`; `name` is the snapshot to open, without one it starts empty."""

    snapshots = True

    def __init__(self, home: Path, dim: int, kind: str = "auto", name: str | None = None) -> None:
        self.home, self.dim, self.kind = home, dim, require_one_of("engine", kind, KINDS)
        self._parts: list[Floats] = []
        self._ids: Ids = np.zeros(0, np.int64)
        self._classes: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._alive: Mask = np.zeros(0, np.bool_)
        self._labels: dict[str | None, int] = {}
        self._index: Any = None
        self._file = home / "approximate.faiss"
        self._covered = 0  # rows that the approximate index knows, from the first
        self._facts: dict[str, Any] = {"kind": "exact", "effort": 0}
        if name is not None:
            self._open(home / name)

    def _open(self, folder: Path) -> None:
        self._facts = read_json(folder / "facts.json")
        if self._facts["dim"] != self.dim:
            raise InputError(f"{folder} must hold vectors of {self.dim} dims; got {self._facts['dim']}. Index again.")
        self._ids, self._classes, self._alive = (np.load(folder / f"{n}.npy") for n in ("ids", "classes", "alive"))
        self._labels = {label: code for code, label in enumerate(self._facts["labels"])}
        if len(self._ids):
            shape = (len(self._ids), self.dim)
            self._parts = [np.memmap(folder / "vectors.f32", np.float32, "r", shape=shape)]
        if self._facts["kind"] != "exact":
            self._file = folder / "approximate.faiss"
            self._index = faiss.read_index(str(self._file), faiss.IO_FLAG_MMAP_IFC)
            self._covered = self._index.ntotal

    def __len__(self) -> int:
        return int(self._alive.sum())

    def add(self, ids: Ids, vectors: Floats, labels: Sequence[str | None]) -> None:
        self.delete(ids)
        codes = [self._labels.setdefault(label, len(self._labels)) for label in labels]
        self._parts.append(np.ascontiguousarray(vectors, np.float32))
        self._ids = np.concatenate([self._ids, np.asarray(ids, np.int64)])
        self._classes = np.concatenate([self._classes, np.asarray(codes, np.int32)])
        self._alive = np.concatenate([self._alive, np.ones(len(codes), np.bool_)])

    def delete(self, ids: Ids) -> None:
        self._alive &= ~np.isin(self._ids, ids)

    def search(self, queries: Floats, k: int, label: str | None = None) -> Found:
        allowed = self._alive
        if label is not None:
            allowed = allowed & (self._classes == self._labels.get(label, -1))
        queries = np.ascontiguousarray(queries, np.float32)
        if self._index is None or int(allowed.sum()) <= FEW:
            return self._exact(queries, k, allowed)
        near = self._approximate(queries, k, allowed)
        later = allowed.copy()
        later[: self._covered] = False
        rest = self._exact(queries, k, later)
        found = ordered(np.hstack([near.ids, rest.ids]), np.hstack([near.scores, rest.scores]), k)
        short = (
            found.ids[:, min(k, int(allowed.sum())) - 1] < 0
        )  # a filter can cut off the graph's way to what it allows
        if short.any():
            found.ids[short], found.scores[short] = self._exact(queries[short], k, allowed)
        return found

    def _exact(self, queries: Floats, k: int, allowed: Mask) -> Found:
        best = Found(np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32))
        for start, block in self._blocks():
            rows = np.flatnonzero(allowed[start : start + len(block)])
            if len(rows):
                chosen = np.ascontiguousarray(block if len(rows) == len(block) else block[rows])
                scores, places = faiss.knn(queries, chosen, min(k, len(rows)), faiss.METRIC_INNER_PRODUCT)
                ids = self._ids[start + rows[places]]
                best = ordered(np.hstack([best.ids, ids]), np.hstack([best.scores, scores]), k)
        return ordered(*best, k)

    def _blocks(self) -> Iterator[tuple[int, Floats]]:
        start = 0
        for part in self._parts:
            for first in range(0, len(part), BLOCK):
                yield start + first, part[first : first + BLOCK]
            start += len(part)

    def _approximate(self, queries: Floats, k: int, allowed: Mask, effort: int | None = None) -> Found:
        selector = None
        if not allowed[: self._covered].all():
            selector = faiss.IDSelectorBatch(np.flatnonzero(allowed[: self._covered]))
        wanted, effort = min(RERANK * k, self._covered), effort or self._facts["effort"]
        if self._facts["kind"] == "hnsw":
            parameters = faiss.SearchParametersHNSW(efSearch=max(effort, wanted), sel=selector)
        else:
            parameters = faiss.SearchParametersIVF(nprobe=effort, sel=selector)
        # faiss.contrib.torch_utils, which some libraries import, replaces `search` by one that takes no parameters
        search = getattr(self._index, "search_numpy", self._index.search)
        _, rows = search(queries, wanted, params=parameters)
        vectors = self._parts[0][np.maximum(rows, 0)]  # (Q, RERANK K, D): the first part holds the covered rows
        scores = np.einsum("qd,qkd->qk", queries, vectors)
        return ordered(np.where(rows < 0, -1, self._ids[np.maximum(rows, 0)]), scores, k)

    def save(self) -> str:
        numbers = (path.name.removeprefix("search-") for path in self.home.glob("search-*"))
        name = f"search-{1 + max((int(n) for n in numbers if n.isdecimal()), default=0)}"
        kind = self._wanted_kind()
        keep = kind != "exact" and kind == self._facts["kind"] and 1 - self._alive.mean() <= DEAD
        rows = np.arange(len(self._ids)) if keep else np.flatnonzero(self._alive)
        with whole_folder(self.home / name, flush=True) as draft:
            self._write_vectors(draft / "vectors.f32", rows)
            for array, values in (("ids", self._ids), ("classes", self._classes), ("alive", self._alive)):
                np.save(draft / f"{array}.npy", values[rows])
            facts = {"kind": kind, "effort": self._facts["effort"] if keep else 0, "dim": self.dim}
            if kind != "exact":
                vectors = np.memmap(draft / "vectors.f32", np.float32, "r", shape=(len(rows), self.dim))
                index = self._extended(vectors) if keep else build(kind, vectors)
                faiss.write_index(index, str(draft / "approximate.faiss"))
            write_json(draft / "facts.json", {**facts, "labels": list(self._labels)})
        self._open(self.home / name)
        if kind != "exact":
            self._tune(self.home / name)
        return name

    def _wanted_kind(self) -> str:
        if self.kind != "auto" or len(self) <= EXACT_UP_TO:
            return "exact" if self.kind == "auto" or not len(self) else self.kind
        return "hnsw" if len(self) <= GRAPH_UP_TO else "ivf"

    def _write_vectors(self, path: Path, rows: Ids) -> None:
        with path.open("wb") as stream:
            for start, block in self._blocks():
                first, last = np.searchsorted(rows, (start, start + len(block)))
                stream.write(np.ascontiguousarray(block[rows[first:last] - start]).tobytes())

    def _extended(self, vectors: Floats) -> Any:
        """The approximate index with the rows that it does not know yet."""
        index = faiss.read_index(str(self._file))  # a memory-mapped one cannot grow
        for start in range(self._covered, len(vectors), BLOCK):
            index.add(np.ascontiguousarray(vectors[start : start + BLOCK]))
        return index

    def _tune(self, folder: Path) -> None:
        """Double the effort until recall@10 on a sample reaches TARGET or the effort its limit; store it."""
        sample = np.random.default_rng(0).choice(np.flatnonzero(self._alive), min(SAMPLE, len(self)), replace=False)
        queries = np.ascontiguousarray(self._parts[0][np.sort(sample)])
        k = min(11, len(self))  # the vector itself and ten others
        exact = self._exact(queries, k, self._alive)
        limit = self._index.nlist if self._facts["kind"] == "ivf" else 1024
        effort = self._facts["effort"] or min(EFFORTS[self._facts["kind"]], limit)
        while recall(self._approximate(queries, k, self._alive, effort).ids, exact.ids) < TARGET and effort < limit:
            effort = min(2 * effort, limit)
        self._facts["effort"] = effort
        write_json(folder / "facts.json", self._facts)
        flush_to_disk(folder)

    def tidy(self, name: str) -> None:
        """Delete all snapshots but `name`; a process that reads one keeps its memory-mapped files."""
        for path in self.home.glob("search-*"):
            if path.name != name:
                shutil.rmtree(path, ignore_errors=True)

    def drop(self) -> None:
        self.tidy("")

    def close(self) -> None:
        self._parts, self._index = [], None

    def facts(self) -> dict[str, object]:
        extra = 0 if self._index is None else 1.0 * self.dim + (264 if self._facts["kind"] == "hnsw" else 8)
        return {
            "engine": f"faiss {self._facts['kind']}",
            "effort": self._facts["effort"],
            "bytes_per_vector": round(4.0 * self.dim + 13 + extra),
        }


def build(kind: str, vectors: Floats) -> Any:
    """An approximate index of vectors (N, D), which is read block by block; inverted lists are learned on a sample."""
    count, dim = vectors.shape
    if kind == "hnsw":
        index = faiss.index_factory(dim, "HNSW32_SQ8", faiss.METRIC_L2)
        index.hnsw.efConstruction = 80
        sample = min(count, BLOCK)
    else:
        lists = 2 ** max(0, round(math.log2(4 * math.sqrt(count))))
        lists = max(1, min(lists, count // 39))  # faiss wants 39 vectors a list to learn from
        index = faiss.index_factory(dim, f"IVF{lists},SQ8", faiss.METRIC_L2)
        sample = min(count, max(64 * lists, BLOCK))
    rows = np.sort(np.random.default_rng(0).choice(count, sample, replace=False))
    index.train(np.ascontiguousarray(vectors[rows]))
    for start in range(0, count, BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + BLOCK]))
    return index
