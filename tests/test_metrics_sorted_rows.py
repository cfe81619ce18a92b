"""Places read off sorted rows: exact, whatever float32 can tell, and only where classes are large."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import reference_metrics as reference
import torch

from nearfield.metrics import retrieval_metrics
from nearfield.metrics.ranking import places, sorted_rows
from nearfield.metrics.ranking.matches import RankingTask
from nearfield.metrics.ranking.scan import between, highest, order_rows, workers

FIRST = ("recall", "r_precision", "map_at_r")
ALL = (*FIRST, "map", "mrr")
KS = (1, 3, 12)


def points_of(kind: str, count: int = 320, classes: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(classes)
    labels = np.arange(count) % classes
    labels[: count // 8] = classes + np.arange(count // 8)  # classes of a single item: no match
    points = rng.standard_normal((2 * count, 12))[labels] + 1.5 * rng.standard_normal((count, 12))
    if kind == "duplicated":
        points[100:200] = points[:100]
    if kind == "offset":
        points = 30 + 0.01 * points
    if kind == "equal":
        points[:] = points[0]
    return points.astype(np.float32), labels


class Routes:
    """How many queries took which route, and how many rows were computed in float64."""

    def __init__(self, patch: pytest.MonkeyPatch, **constants: int) -> None:
        self.rows = self.tiles = self.doubles = 0
        for name, value in {"TILE": 70 * 320, "ROWS": 1, **constants}.items():
            patch.setattr(sorted_rows, name, value)
        by_rows, by_tiles = sorted_rows.count_by_rows, places.count_by_tiles
        in_float64 = sorted_rows._Gallery._in_float64

        def count_rows(task: Any, matches: Any, *others: Any) -> Any:
            self.rows += len(matches.rows)
            return by_rows(task, matches, *others)

        def count_tiles(task: Any, matches: Any, *others: Any) -> Any:
            self.tiles += len(matches.rows)
            return by_tiles(task, matches, *others)

        def doubles(gallery: Any, rows: Any, *others: Any) -> Any:
            self.doubles += len(rows)
            return in_float64(gallery, rows, *others)

        patch.setattr(places, "count_by_rows", count_rows)
        patch.setattr(places, "count_by_tiles", count_tiles)
        patch.setattr(sorted_rows._Gallery, "_in_float64", doubles)


@functools.cache
def expected(kind: str, distance: str) -> Any:
    points, labels = points_of(kind)
    scores = reference.score_matrix(points, points, distance)
    return reference.mean_scores(
        [
            reference.query_scores(np.delete(scores[i], i).tolist(), np.delete(labels == labels[i], i).tolist(), KS)
            for i in range(len(labels))
        ]
    )


@pytest.mark.parametrize("distance", ["cosine", "euclidean", "hamming"])
@pytest.mark.parametrize("metrics", [FIRST, ("recall",), ("map_at_r", "mrr"), ALL])
@pytest.mark.parametrize("kind", ["random", "duplicated", "offset"])
def test_equal_the_reference(monkeypatch: pytest.MonkeyPatch, kind: str, metrics: Any, distance: Any) -> None:
    points, labels = points_of(kind)
    seen = Routes(monkeypatch)
    found = retrieval_metrics(points, labels, KS, metrics=metrics, distance=distance)
    assert (seen.rows, seen.tiles) == (280, 0)
    assert found == {name: pytest.approx(expected(kind, distance)[name], abs=1e-9) for name in found}
    if kind == "random" or distance == "hamming":
        assert seen.doubles == 0


@pytest.mark.parametrize("crowd", [-1, 0, 3, 1000])  # doubtful matches of a row that are compared one by one
@pytest.mark.parametrize("kind", ["duplicated", "offset"])
def test_what_float32_cannot_tell_is_told_in_float64(monkeypatch: pytest.MonkeyPatch, kind: str, crowd: int) -> None:
    points, labels = points_of(kind)
    seen = Routes(monkeypatch, CROWD=crowd)
    found = retrieval_metrics(points, labels, KS, metrics=ALL)
    assert found == {name: pytest.approx(expected(kind, "cosine")[name], abs=1e-9) for name in found}
    assert (seen.doubles > 0) == (crowd < 1000)
    if crowd < 0:
        assert seen.doubles == 280


def test_all_items_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = points_of("equal")
    seen = Routes(monkeypatch)
    found = retrieval_metrics(points, labels, KS, metrics=FIRST)
    assert seen.rows == 280
    assert found["r_precision"] == pytest.approx(34 / 319, abs=1e-9)  # a class has 35 items, R = 34


def test_precision_reaches_beyond_the_number_of_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """R is 34: the ranks of all matches matter up to 60; where that of the best one counts, so do those of all."""
    points, labels = points_of("random")
    seen = Routes(monkeypatch)
    found = retrieval_metrics(points, labels, (1, 60), metrics=("precision",))
    codes = torch.from_numpy(labels)
    vectors: Any = None
    task = RankingTask(vectors, vectors, codes, codes, None, rest_exact=False, best_depth=1, rest_depth=60)
    assert sorted_rows.places_that_matter(task, torch.tensor([34, 70])).tolist() == [60, 70]
    task = RankingTask(vectors, vectors, codes, codes, None, rest_exact=False, rest_depth=60)
    assert sorted_rows.places_that_matter(task, torch.tensor([34, 70])).tolist() == [320, 320]
    scores = reference.score_matrix(points, points, "cosine")
    np.fill_diagonal(scores, -np.inf)
    nearest = np.argsort(-scores, axis=1)[:, :60]
    hits = (labels[nearest] == labels[:, None]).mean(axis=1)[labels < 8]
    assert seen.rows == 280
    assert found["precision@60"] == pytest.approx(hits.mean(), abs=1e-9)


@pytest.mark.parametrize("memory", [0.5, 0.05])
def test_a_gallery_of_its_own_and_little_memory(monkeypatch: pytest.MonkeyPatch, memory: float) -> None:
    (points, labels), (gallery, gallery_labels) = points_of("random", 240), points_of("random", 400)
    seen = Routes(monkeypatch)
    scores = reference.score_matrix(points, gallery, "cosine")
    queries = [
        reference.query_scores(row, gallery_labels == label, KS) for row, label in zip(scores, labels, strict=True)
    ]
    found = retrieval_metrics(points, labels, KS, gallery, gallery_labels, FIRST, max_memory_mb=memory)
    assert (seen.rows > 200) == (memory > 0.05)  # there is no room for the gallery's coordinates
    assert found == {name: pytest.approx(value, abs=1e-9) for name, value in reference.mean_scores(queries).items()
                     if name in found}  # fmt: skip


def test_threads_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = points_of("duplicated", 700)
    seen = Routes(monkeypatch)
    before = torch.get_num_threads()
    alone = retrieval_metrics(points, labels, metrics=FIRST)
    try:
        torch.set_num_threads(2)
        assert retrieval_metrics(points, labels, metrics=FIRST) == alone
    finally:
        torch.set_num_threads(before)
    assert seen.rows > 1000


def test_only_large_classes_are_placed_by_sorted_rows() -> None:
    """CUB's shape is, SOP's is not; nor is a gallery that does not fit in memory."""

    def suits(items: int, matches: int, **options: Any) -> bool:
        labels = torch.zeros(items, dtype=torch.int64)
        vectors: Any = type("Vectors", (), {"width": 128})
        task = RankingTask(vectors, vectors, labels, labels, None, **{"best_depth": 8, **options})
        return bool(sorted_rows.suits(task, torch.tensor([matches])))

    assert suits(5924, 58)
    assert suits(5924, 58, rest_exact=False)
    assert suits(300, 8)
    assert not suits(300, 7)
    assert not suits(60502, 4, best_depth=1000)
    assert not suits(60502, 49)
    assert suits(60502, 51)
    assert not suits(60502, 51, memory=1 << 20)


@pytest.mark.parametrize("places", [1, 30, 999, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_highest_of_each_row(monkeypatch: pytest.MonkeyPatch, places: int, threads: int) -> None:
    tile = torch.randint(-50, 50, (331, 1000), generator=torch.Generator().manual_seed(0)).float()
    before = tile.clone()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    with workers(tile.device) as pool:
        assert torch.equal(highest(tile, places, pool), tile.sort(1).values[:, 1000 - places :])
    assert torch.equal(tile, before)


def test_what_lies_between_in_some_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    tile = torch.randint(-50, 50, (40, 1003), generator=generator).float()
    row = torch.randint(40, (700,), generator=generator)
    low = torch.randint(-50, 50, (700,), generator=generator).float()
    high = low + torch.randint(3, (700,), generator=generator)
    which, column = between(tile, row, low, high)
    line = tile[row]
    assert torch.equal(torch.stack([which, column], 1), ((line >= low[:, None]) & (line <= high[:, None])).nonzero())
    nothing = row[:0]
    assert [len(part) for part in between(tile, nothing, low[:0], high[:0])] == [0, 0]


@pytest.mark.parametrize("spread", [1.0, 1e-3, 3e-7, 0.0])
@pytest.mark.parametrize("hidden", [False, True])
def test_ordered_rows_leave_only_near_entries_between_the_cuts(spread: float, hidden: bool) -> None:
    """Against comparisons in float64, with scores of any spread, ties, infinite cuts and hidden entries."""
    generator = torch.Generator().manual_seed(0)
    tile = (0.7 + spread * torch.randn(40, 3000, generator=generator)).round(decimals=8)
    cuts = tile[:, :9].double().sort(1).values
    cuts[::3, -2:] = torch.inf  # queries with fewer matches
    if hidden:
        tile[:, 100:140] = torch.finfo(torch.float32).min
    low, high = cuts - 1e-6, cuts + 1e-6
    order, bottom, top = order_rows(tile, low, high, exact=False)
    assert torch.equal(order.sort(1).values, torch.arange(3000).expand(40, -1))
    step = (cuts[cuts < torch.inf].max() - cuts.min() + 2e-6) / 64_000  # a level of scores
    for row, column in (low < torch.inf).nonzero().tolist():
        ranked, (first, last) = tile[row, order[row]].double(), (int(found[row, column]) for found in (bottom, top))
        assert bool((ranked[:first] < low[row, column] + 1e-7).all())
        assert bool((ranked[last:] > high[row, column] - 1e-7).all())
        assert bool(((ranked[first:last] - cuts[row, column]).abs() <= 1e-6 + 3 * step + 1e-6).all())


@pytest.mark.parametrize("bits", [64, 40_000])  # levels of 16 bits tell all scores apart, and do not
def test_ordered_rows_of_whole_numbers_are_exact(bits: int) -> None:
    tile = torch.randint(-bits, bits + 1, (30, 2000), generator=torch.Generator().manual_seed(1)).float()
    cuts = tile[:, :12].double()
    _, bottom, top = order_rows(tile, cuts - 0.5, cuts + 0.5, exact=True)
    assert torch.equal(bottom, (tile[:, None] < cuts[:, :, None]).sum(2))
    assert torch.equal(top, (tile[:, None] <= cuts[:, :, None]).sum(2))
