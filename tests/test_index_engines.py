"""The contract of engines: every law for every engine, and the same neighbours from all of them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nearfield.errors import InputError, RunError
from nearfield.index import engines
from nearfield.index.engines import Engine, check_engine, faiss_files, open_engine, ordered, recall
from nearfield.index.engines.faiss_files import FaissEngine

importlib.import_module("faiss.contrib.torch_utils")  # as other libraries do: it replaces methods of faiss's indexes

DIM = 16
Floats = npt.NDArray[np.float32]
Make = Callable[[], Engine]


def unit(count: int, seed: int = 0, dim: int = DIM) -> Floats:
    """Clustered vectors of length 1."""
    draw = np.random.default_rng(seed)
    x = np.repeat(draw.standard_normal((-(-count // 10), dim)), 10, 0)[:count] + 0.6 * draw.standard_normal(
        (count, dim)
    )
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


@pytest.fixture(params=["faiss:exact", "faiss:hnsw", "faiss:ivf", "postgres", "postgres hnsw", "milvus"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Opens the same engine again and again; a faiss engine from its last snapshot."""
    monkeypatch.setattr(faiss_files, "FEW", 0)  # approximate engines really are, however few vectors there are
    kind: str = request.param
    if kind == "milvus":
        if importlib.util.find_spec("pymilvus") is None or importlib.util.find_spec("milvus_lite") is None:
            pytest.skip("pymilvus and milvus-lite are not installed")
        spec = f"milvus:{tmp_path / 'lite.db'}"
    else:
        spec = request.getfixturevalue("postgres") if kind.startswith("postgres") else kind
    opened: list[Engine] = []

    def open_it() -> Engine:
        snapshots = sorted(tmp_path.glob("search-*"), key=lambda path: int(path.name.split("-")[1]))
        made = open_engine(spec, tmp_path, DIM, "nearfield_test", snapshots[-1].name if snapshots else None)
        if kind == "postgres hnsw":
            made.exact_up_to = 0  # type: ignore[attr-defined]
        opened.append(made)
        return made

    yield open_it
    opened[-1].drop()
    for engine in opened:
        engine.close()


def exact(queries: Floats, ids: Any, vectors: Floats, k: int) -> tuple[Any, Any]:
    """The slow, obvious search: sort everything by (-score, id)."""
    found, values = [], []
    for query in queries.astype(np.float64):
        scores = vectors.astype(np.float64) @ query
        order = sorted(range(len(ids)), key=lambda i: (-scores[i], ids[i]))[:k]
        found.append([ids[i] for i in order])
        values.append([scores[i] for i in order])
    return np.array(found), np.array(values)


def test_engines_find_the_nearest(make: Make) -> None:
    engine, x, ids = make(), unit(300), np.arange(300) * 7 + 5
    engine.add(ids, x, ["a"] * 300)
    engine.save()
    assert len(engine) == 300
    found = engine.search(unit(20, 1), 5)
    known, scores = exact(unit(20, 1), ids, x, 5)
    np.testing.assert_array_equal(found.ids, known)
    np.testing.assert_allclose(found.scores, scores, atol=1e-5)


def test_engines_keep_what_was_saved(make: Make) -> None:
    first, x = make(), unit(200)
    first.add(np.arange(100), x[:100], ["a"] * 100)
    first.save()
    second = make()
    assert len(second) == 100
    second.add(np.arange(100, 200), x[100:], ["b"] * 100)
    second.delete(np.array([3, 150, 9999]))
    kept = np.setdiff1d(np.arange(200), [3, 150])
    np.testing.assert_array_equal(second.search(x[:9], 4).ids, exact(x[:9], kept, x[kept], 4)[0])  # before it is saved
    second.save()
    third = make()
    assert len(third) == 198
    np.testing.assert_array_equal(third.search(x[:9], 4).ids, exact(x[:9], kept, x[kept], 4)[0])


def test_engines_filter_by_class(make: Make) -> None:
    engine, x = make(), unit(300)
    labels = ['it\'s "x" -- %s {y}' if i % 30 == 0 else None if i % 2 else "common" for i in range(300)]
    engine.add(np.arange(300), x, labels)
    engine.save()
    rare = np.arange(0, 300, 30)
    found = engine.search(x[:6], 10, labels[0])
    np.testing.assert_array_equal(found.ids, exact(x[:6], rare, x[rare], 10)[0])  # all ten, though others are nearer
    assert (engine.search(x[:2], 3, "nobody").ids == -1).all()


def test_adding_an_id_again_replaces_it(make: Make) -> None:
    engine, x = make(), unit(60)
    engine.add(np.arange(50), x[:50], ["a"] * 50)
    engine.save()
    engine.add(np.array([7]), x[55:56], ["b"])
    engine.save()
    assert len(engine) == 50
    assert engine.search(x[55:56], 1).ids.tolist() == [[7]]
    assert engine.search(x[55:56], 3, "b").ids.tolist() == [[7, -1, -1]]


def test_few_vectors_and_none(make: Make) -> None:
    engine, x = make(), unit(5)
    empty = engine.search(x[:2], 3)
    assert (empty.ids == -1).all()
    assert np.isneginf(empty.scores).all()
    engine.add(np.array([4]), x[:1], [None])
    engine.save()
    found = engine.search(x[:1], 3)
    assert found.ids.tolist() == [[4, -1, -1]]
    np.testing.assert_allclose(found.scores[0, 0], 1, atol=1e-6)


def test_exact_engines_agree(postgres: str, tmp_path: Path) -> None:
    """faiss exact, pgvector exact and milvus-lite flat give the same neighbours with the same scores."""
    pytest.importorskip("milvus_lite")
    x, queries, found = unit(2000, 2), unit(50, 3), []
    for spec in ("faiss:exact", postgres, f"milvus:{tmp_path / 'agree.db'}"):
        engine = open_engine(spec, tmp_path, DIM, "nearfield_agree")
        engine.add(np.arange(2000), x, ["a"] * 2000)
        engine.save()
        found.append(engine.search(queries, 10))
        engine.drop()
        engine.close()
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].ids, other.ids)
        np.testing.assert_allclose(found[0].scores, other.scores, atol=1e-6)


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_approximate_engine_reaches_its_recall(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_files, "FEW", 0)
    x = unit(8_000, 4, 32)
    engine = FaissEngine(tmp_path, 32, kind)
    engine.add(np.arange(len(x)), x, ["a"] * len(x))
    name = engine.save()
    found = engine.search(x[:300], 10).ids
    best = np.argsort(-(x[:300] @ x.T), axis=1, kind="stable")[:, :10]
    assert recall(found, best) >= 0.95
    again = FaissEngine(tmp_path, 32, kind, name)  # memory-mapped, with the effort that was found
    np.testing.assert_array_equal(again.search(x[:300], 10).ids, found)
    effort = again.facts()["effort"]
    again.delete(np.arange(100))  # few: the graph stays and skips them
    again.save()
    assert again.facts()["effort"] == effort
    assert again.search(x[:50], 10).ids.min() >= 100


def test_size_chooses_the_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_files, "EXACT_UP_TO", 400)
    monkeypatch.setattr(faiss_files, "GRAPH_UP_TO", 800)
    engine, x, kinds = FaissEngine(tmp_path, DIM), unit(1000), []
    for start, stop in ((0, 400), (400, 401), (401, 800), (800, 1000)):
        engine.add(np.arange(start, stop), x[start:stop], ["a"] * (stop - start))
        engine.save()
        kinds.append(engine.facts()["engine"])
    assert kinds == ["faiss exact", "faiss hnsw", "faiss hnsw", "faiss ivf"]
    engine.delete(np.arange(700))
    engine.save()
    assert engine.facts()["engine"] == "faiss exact"
    assert len(engine) == 300


def test_candidates_are_ordered_by_score_then_id() -> None:
    found = ordered(np.array([[9, 2, -1, 4]]), np.array([[0.5, 0.5, 9.0, 0.7]], np.float32), 5)
    assert found.ids.tolist() == [[4, 2, 9, -1, -1]]
    assert ordered(np.zeros((1, 0), np.int64), np.zeros((1, 0), np.float32), 1).ids.tolist() == [[-1]]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("postgresql://me:secret@host/db", "password"),
        ("milvus:http://me:secret@host:19530", "password"),
        ("mysql://host", "engine must be"),
        ("faiss:flat", "engine must be one of"),
    ],
)
def test_bad_engines_are_refused(spec: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        open_engine(spec, tmp_path, DIM, "x")


def test_engines_of_the_documentation_are_known() -> None:
    for spec in ("faiss", "faiss:hnsw", "postgresql://host/db", "milvus:http://host:19530"):
        assert check_engine(spec) == spec
    assert engines.EXACT_UP_TO == 200_000


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(RunError, match="Is it running"):
        open_engine("postgresql://127.0.0.1:1/none?connect_timeout=2", tmp_path, DIM, "x")
