"""Places near the top of rankings of large classes: exact, whatever the sample made of them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import reference_metrics as reference
import torch

import nearfield.metrics.ranking.places as places
from nearfield.metrics import retrieval_metrics
from nearfield.metrics.ranking import heads
from nearfield.metrics.ranking.matches import RankingTask
from nearfield.metrics.ranking.scan import order_rows

HEADS = ("recall", "r_precision", "map_at_r")
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


class Counts:
    """Which route how many queries took."""

    def __init__(self, patch: pytest.MonkeyPatch, **constants: float) -> None:
        self.heads = self.failed = self.rest = 0
        for name, value in {"SAMPLE": 32, "WORTH": 1e9, "SIDE": 70, **constants}.items():
            patch.setattr(heads, name, value)
        count_heads, count = heads.count_heads, places._count

        def by_heads(*arguments: Any) -> Any:
            found = count_heads(*arguments)
            self.heads += len(found[2])
            self.failed += int(found[2].sum())
            return found

        def by_all(task: Any, matches: Any, *others: Any, **named: Any) -> Any:
            self.rest += len(matches.rows)
            return count(task, matches, *others, **named)

        patch.setattr(places, "count_heads", by_heads)
        patch.setattr(places, "_count", by_all)


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
@pytest.mark.parametrize("metrics", [HEADS, ("recall",), ("map_at_r", "mrr")])
@pytest.mark.parametrize("kind", ["random", "duplicated", "offset"])
def test_equal_the_reference(monkeypatch: pytest.MonkeyPatch, kind: str, metrics: Any, distance: Any) -> None:
    points, labels = points_of(kind)
    seen = Counts(monkeypatch)
    found = retrieval_metrics(points, labels, KS, metrics=metrics, distance=distance)
    assert seen.heads == 280
    assert found == {name: pytest.approx(expected(kind, distance)[name], abs=1e-9) for name in found}
    if (kind, metrics, distance) == ("random", HEADS, "cosine"):
        assert (seen.failed, seen.rest) == (0, 0)


@pytest.mark.parametrize("constants", [{"SURE": -3.0}, {"SPARE": -1.5}, {"SURE": 0.0, "SPARE": 0.0}])
def test_what_the_sample_judged_wrongly_is_counted_again(
    monkeypatch: pytest.MonkeyPatch, constants: dict[str, float]
) -> None:
    points, labels = points_of("duplicated")
    seen = Counts(monkeypatch, **constants)
    found = retrieval_metrics(points, labels, KS, metrics=HEADS)
    assert 0 < seen.failed == seen.rest <= seen.heads
    assert found == {name: pytest.approx(expected("duplicated", "cosine")[name], abs=1e-9) for name in found}


def test_all_items_equal_fit_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = points_of("equal")
    seen = Counts(monkeypatch)
    found = retrieval_metrics(points, labels, KS, metrics=HEADS)
    assert seen.failed == seen.heads == 280
    assert found["r_precision"] == pytest.approx(34 / 319, abs=1e-9)  # a class has 35 items, R = 34


def test_precision_reaches_beyond_the_number_of_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """R is 34: the ranks of all matches matter up to 60, though that of the best matters however deep it is."""
    points, labels = points_of("random")
    seen = Counts(monkeypatch)
    found = retrieval_metrics(points, labels, (1, 60), metrics=("precision", "mrr"))
    codes = torch.from_numpy(labels)
    vectors: Any = None
    task = RankingTask(vectors, vectors, codes, codes, None, rest_exact=False, rest_depth=60)
    assert heads.plan_heads(task, torch.tensor([34, 70])).places.tolist() == [60, 70]
    scores = reference.score_matrix(points, points, "cosine")
    np.fill_diagonal(scores, -np.inf)
    nearest = np.argsort(-scores, axis=1)[:, :60]
    hits = (labels[nearest] == labels[:, None]).mean(axis=1)[labels < 8]
    assert seen.heads == 280
    assert found["precision@60"] == pytest.approx(hits.mean(), abs=1e-9)


def test_a_gallery_of_its_own_and_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    (points, labels), (gallery, gallery_labels) = points_of("random", 240), points_of("random", 400)
    seen = Counts(monkeypatch)
    scores = reference.score_matrix(points, gallery, "cosine")
    queries = [
        reference.query_scores(row, gallery_labels == label, KS) for row, label in zip(scores, labels, strict=True)
    ]
    found = retrieval_metrics(points, labels, KS, gallery, gallery_labels, HEADS, max_memory_mb=0.5)
    assert seen.heads > 200
    assert found == {name: pytest.approx(value, abs=1e-9) for name, value in reference.mean_scores(queries).items()
                     if name in found}  # fmt: skip


def test_threads_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = points_of("duplicated", 700)
    seen = Counts(monkeypatch)
    before = torch.get_num_threads()
    alone = retrieval_metrics(points, labels, metrics=HEADS)
    try:
        torch.set_num_threads(2)
        assert retrieval_metrics(points, labels, metrics=HEADS) == alone
    finally:
        torch.set_num_threads(before)
    assert seen.heads > 1000


def test_only_large_classes_are_counted_by_their_heads() -> None:
    """CUB's shape is, SOP's with its thousand neighbours is not; nor where all ranks matter, nor in small sets."""

    def fits(items: int, matches: int, **options: Any) -> bool:
        labels = torch.zeros(items, dtype=torch.int64)
        vectors: Any = None
        task = RankingTask(vectors, vectors, labels, labels, None, **{"best_depth": 8, "rest_exact": False, **options})
        return bool(heads.plan_heads(task, torch.tensor([matches])).fits)

    assert fits(5924, 58)
    assert fits(1465, 58)
    assert not fits(60502, 4, best_depth=1000)
    assert not fits(5924, 58, rest_exact=True)
    assert not fits(800, 58)


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
