"""The evaluator against slow, obvious versions of itself and against other libraries."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_metrics as reference
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from programs import Program, as_ranks
from sklearn.metrics import average_precision_score

import nearfield.metrics.ranking.places
from nearfield.metrics import formulas, nearest_neighbours, retrieval_metrics
from nearfield.metrics.ranking.matches import MatchPlaces

RETRIEVAL = ("recall", "precision", "r_precision", "map_at_r", "map", "mrr")
DISTANCES = ("cosine", "euclidean", "hamming", "hyperbolic")
TIES = ("expected", "optimistic", "pessimistic")


def clustered(n: int, classes: int, dim: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = rng.standard_normal((classes, dim))
    points = centres[labels] + noise * np.exp(rng.standard_normal((n, 1)) / 2) * rng.standard_normal((n, dim))
    return points.astype(np.float32), labels


def small_set(rng: np.random.Generator, count: int, dim: int, kind: str) -> np.ndarray:
    if kind == "grid":
        return rng.integers(-2, 3, (count, dim)).astype(np.float32)
    points = rng.standard_normal((count, dim)).astype(np.float32)
    return points[rng.integers(0, max(1, count // 3), count)] if kind == "duplicated" else points


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 16),
    dim=st.integers(1, 4),
    classes=st.integers(1, 5),
    kind=st.sampled_from(["grid", "random", "duplicated"]),
    distance=st.sampled_from(DISTANCES),
    ties=st.sampled_from(TIES),
    own_gallery=st.booleans(),
    by_rows=st.booleans(),
)
@example(0, 2, 1, 1, "grid", "cosine", "expected", False, False)
@example(0, 9, 1, 2, "duplicated", "euclidean", "expected", False, False)
def test_equals_the_reference_on_small_sets(
    seed: int, count: int, dim: int, classes: int, kind: str, distance: Any, ties: Any, own_gallery: bool, by_rows: bool
) -> None:
    rng = np.random.default_rng(seed)
    points, labels = small_set(rng, count, dim, kind), rng.integers(0, classes, count)
    gallery = small_set(rng, count + 3, dim, kind) if own_gallery else None
    gallery_labels = rng.integers(0, classes, count + 3) if own_gallery else None
    expected = reference.all_query_scores(points, labels, (1, 2, 5), gallery, gallery_labels, distance, ties)
    options: Any = {"denominator": "all"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearfield.metrics.ranking.sorted_rows, "FEWEST", 0 if by_rows else 10**9)
        found, per_query = retrieval_metrics(
            points, labels, (1, 2, 5), gallery, gallery_labels, RETRIEVAL, distance, ties, per_query=True, **options
        )
    for name, value in found.items():
        scores = [0.0 if query is None else query[name] for query in expected]
        assert value == pytest.approx(math.fsum(scores) / len(scores), abs=1e-9)
        known = [math.nan if query is None else query[name] for query in expected]
        np.testing.assert_allclose(per_query.scores[name].numpy(), known, atol=1e-6)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize(
    ("kind", "classes", "memory", "select", "metrics"),
    [
        ("random", 60, 512, 50.0, RETRIEVAL),  # selected pairs and compared rows
        ("random", 8, 512, 50.0, RETRIEVAL),  # many matches: sorted rows
        ("random", 60, 512, 0.0, RETRIEVAL),  # all pairs selected
        ("duplicated", 60, 0.4, 50.0, RETRIEVAL),  # several blocks, several chunks of queries
        ("duplicated", 60, 2, 50.0, ("recall", "r_precision", "map_at_r")),  # far matches are not placed
        ("random", 60, 512, 50.0, ("recall", "precision")),  # but those up to the largest K are
        ("offset", 30, 2, 1e9, RETRIEVAL),  # scores that float32 cannot tell apart
        ("random", 60, 512, 50.0, ("recall", "mrr")),  # only the best match is placed
    ],
)
def test_equals_the_reference_on_every_route_of_tiles(
    monkeypatch: pytest.MonkeyPatch, distance: Any, kind: str, classes: int, memory: float, select: float, metrics: Any
) -> None:
    monkeypatch.setattr(nearfield.metrics.ranking.places, "SELECT", select)
    monkeypatch.setattr(nearfield.metrics.ranking.sorted_rows, "FEWEST", 10**9)
    points, labels = clustered(320, classes, 24, 2.0, seed=classes)
    if kind == "duplicated":
        points[100:200] = points[:100]
    if kind == "offset":
        points = 30 + 0.01 * points
    scores = reference.score_matrix(points, points, distance)
    ks = (1, 3, 40)
    expected = [
        reference.query_scores(np.delete(scores[i], i).tolist(), np.delete(labels == labels[i], i).tolist(), ks)
        for i in range(len(labels))
    ]
    found = retrieval_metrics(points, labels, ks, metrics=metrics, distance=distance, max_memory_mb=memory)
    means = reference.mean_scores(expected)
    assert found == {name: pytest.approx(means[name], abs=1e-9) for name in found}
    single = set(metrics) - {"recall", "precision"}
    assert len(found) == len(ks) + 1 + len(single) + (len(ks) - 1) * ("precision" in metrics)


def test_query_and_gallery_stream_in_blocks() -> None:
    points, labels = clustered(300, 40, 8, 1.5, seed=1)
    gallery, gallery_labels = clustered(700, 50, 8, 1.5, seed=1)
    scores = reference.score_matrix(points, gallery, "cosine")
    expected = [
        reference.query_scores(row, gallery_labels == label, (1, 10)) for row, label in zip(scores, labels, strict=True)
    ]
    found = retrieval_metrics(points, labels, (1, 10), gallery, gallery_labels, RETRIEVAL, max_memory_mb=0.5)
    assert found == {name: pytest.approx(value, abs=1e-9) for name, value in reference.mean_scores(expected).items()}


def test_threads_do_not_change_the_result() -> None:
    points, labels = clustered(900, 90, 16, 2.0, seed=2)
    before = torch.get_num_threads()
    alone = retrieval_metrics(points, labels, metrics=RETRIEVAL)
    try:
        torch.set_num_threads(2)
        assert retrieval_metrics(points, labels, metrics=RETRIEVAL) == alone
    finally:
        torch.set_num_threads(before)


@settings(max_examples=60, deadline=None)
@given(
    above=st.integers(0, 4),
    misses=st.integers(0, 3),
    matches=st.integers(1, 3),
    before=st.integers(0, 4),
    more=st.integers(0, 3),
)
def test_closed_forms_equal_the_mean_over_all_orders(
    above: int, misses: int, matches: int, before: int, more: int
) -> None:
    """One tie group after `above` items, `before` of them matches; `more` matches come after the group."""
    before = min(before, above)
    total = before + matches + more
    row = torch.ones(1, matches, dtype=torch.float64)
    places = MatchPlaces(
        row * above, row * before, row * (matches + misses), row * matches, torch.tensor([float(total)])
    )
    sums = dict.fromkeys(["map@r", "map", "r_precision"], 0.0)
    hits, firsts = dict.fromkeys(range(1, 9), 0.0), 0.0
    orders = list(permutations([True] * matches + [False] * misses))
    for order in orders:
        seen, first = before, 0
        for place, is_match in enumerate(order, start=above + 1):
            if not is_match:
                continue
            seen, first = seen + 1, first or place
            sums["map"] += seen / place / total
            if place <= total:
                sums["map@r"] += seen / place / total
                sums["r_precision"] += 1 / total
        firsts += 1 / first
        hits = {k: count + (first <= k) for k, count in hits.items()}
    for name, function in (
        ("map@r", formulas.map_at_r),
        ("map", formulas.average_precision),
        ("r_precision", formulas.r_precision),
    ):
        assert float(function(places)) == pytest.approx(sums[name] / len(orders), abs=1e-12)
    assert float(formulas.reciprocal_rank(places)) == pytest.approx(firsts / len(orders), abs=1e-12)
    for k, count in hits.items():
        assert float(formulas.recall_at(places, k)) == pytest.approx(count / len(orders), abs=1e-10)


def test_long_ties_stay_accurate() -> None:
    above, t, r = 10.0, 50_000.0, 3.0
    row = torch.full((1, 3), 1.0, dtype=torch.float64)
    places = MatchPlaces(row * above, row * 0, row * t, row * r, torch.tensor([r], dtype=torch.float64))
    miss = np.cumprod([(t - r - j) / (t - j) for j in range(990)])
    assert float(formulas.recall_at(places, 1000)) == pytest.approx(1 - miss[-1], rel=1e-9)
    first = np.concatenate([[1.0], np.cumprod((t - r - np.arange(int(t - r))) / (t - np.arange(int(t - r))))])
    chance = first * r / (t - np.arange(len(first)))
    assert chance.sum() == pytest.approx(1)
    assert float(formulas.reciprocal_rank(places)) == pytest.approx(
        float((chance / (above + 1 + np.arange(len(first)))).sum())
    )


@pytest.mark.parametrize("distance", DISTANCES)
def test_row_order_does_not_matter(distance: Any) -> None:
    """Copies of items in other classes tie exactly wherever they stand in a tile of the product."""
    points, labels = clustered(1200, 100, 37, 2.0, seed=3)
    points[601:1201] = points[: len(points[601:1201])]
    order = np.random.default_rng(4).permutation(len(labels))
    first, per_query = retrieval_metrics(points, labels, metrics=RETRIEVAL, distance=distance, per_query=True)
    second, permuted = retrieval_metrics(
        points[order], labels[order], metrics=RETRIEVAL, distance=distance, per_query=True
    )
    assert first == {name: pytest.approx(value, abs=1e-12) for name, value in second.items()}
    for name, scores in per_query.scores.items():
        assert torch.equal(scores[torch.as_tensor(order)], permuted.scores[name])


def test_identical_embeddings_score_like_chance() -> None:
    labels = np.arange(60) % 6  # 9 matches among 59 others, all tied
    found = retrieval_metrics(np.ones((60, 5)), labels, (1, 59), metrics=RETRIEVAL)
    assert found["recall@1"] == pytest.approx(9 / 59)
    assert found["recall@59"] == 1
    assert found["r_precision"] == pytest.approx(9 / 59)
    worst = retrieval_metrics(np.ones((60, 5)), labels, (1, 51), metrics=RETRIEVAL, ties="pessimistic")
    best = retrieval_metrics(np.ones((60, 5)), labels, metrics=RETRIEVAL, ties="optimistic")
    assert (worst["recall@1"], worst["recall@51"], worst["r_precision"]) == (0, 1, 0)
    assert best["map@r"] == best["mrr"] == best["recall@1"] == 1


def test_equals_pytorch_metric_learning() -> None:
    pytest.importorskip("pytorch_metric_learning")  # not with the oldest dependencies
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    points, labels = clustered(300, 20, 8, 1.5, seed=5)
    names = (
        "precision_at_1",
        "r_precision",
        "mean_average_precision_at_r",
        "mean_average_precision",
        "mean_reciprocal_rank",
    )
    peer = AccuracyCalculator(include=names, k=None, knn_func=CustomKNN(CosineSimilarity()), device=torch.device("cpu"))
    theirs = peer.get_accuracy(torch.tensor(points), torch.tensor(labels))
    ours = retrieval_metrics(points, labels, (1,), metrics=RETRIEVAL)
    for name, key in zip(names, ("precision@1", "r_precision", "map@r", "map", "mrr"), strict=True):
        assert ours[key] == pytest.approx(theirs[name], abs=1e-6)


def test_equals_scikit_learn() -> None:
    points, labels = clustered(120, 12, 6, 1.5, seed=6)
    _, per_query = retrieval_metrics(points, labels, metrics=("map",), per_query=True)
    scores = reference.score_matrix(points, points, "cosine")
    for i, label in enumerate(labels):
        known = average_precision_score(np.delete(labels == label, i), np.delete(scores[i], i))
        assert float(per_query.scores["map"][i]) == pytest.approx(known, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ties=st.sampled_from(TIES), kind=st.sampled_from(["grid", "random"]))
def test_laws(seed: int, ties: Any, kind: str) -> None:
    rng = np.random.default_rng(seed)
    points, labels = small_set(rng, 40, 3, kind), rng.integers(0, 6, 40)
    ks = (1, 2, 4, 8, 39)
    found, per_query = retrieval_metrics(points, labels, ks, metrics=RETRIEVAL, ties=ties, per_query=True)
    scores = {name: score.nan_to_num() for name, score in per_query.scores.items()}
    assert bool((scores["map@r"] <= scores["r_precision"] + 1e-6).all())
    assert bool((scores["map@r"] <= scores["map"] + 1e-6).all())
    assert bool((scores["recall@1"] <= scores["mrr"] + 1e-6).all())
    assert all(found[f"recall@{a}"] <= found[f"recall@{b}"] + 1e-12 for a, b in pairwise(ks))
    assert found["precision@1"] == found["recall@1"]
    assert all(found[f"precision@{k}"] <= found[f"recall@{k}"] + 1e-12 for k in ks)
    assert found["precision@39"] == pytest.approx(
        float(per_query.relevant.double()[per_query.relevant > 0].mean()) / 39
    )
    assert found["recall@39"] == pytest.approx(1)
    low, high = (
        retrieval_metrics(points, labels, ks, metrics=RETRIEVAL, ties=t) for t in ("pessimistic", "optimistic")
    )
    assert all(low[name] - 1e-12 <= value <= high[name] + 1e-12 for name, value in found.items())


def test_binary_codes() -> None:
    rng = np.random.default_rng(7)
    bits = rng.random((90, 2048)) < 0.5
    bits[30:60] = bits[:30] ^ (rng.random((30, 2048)) < 0.45)
    labels = np.arange(90) % 30
    packed = retrieval_metrics(np.packbits(bits, axis=1), labels, metrics=RETRIEVAL, distance="hamming")
    assert packed == retrieval_metrics(bits, labels, metrics=RETRIEVAL, distance="hamming")
    assert packed == retrieval_metrics(np.where(bits, 0.3, -2.0), labels, metrics=RETRIEVAL, distance="hamming")
    signs = retrieval_metrics(np.where(bits, 1.0, -1.0), labels, metrics=RETRIEVAL, distance="cosine")
    assert packed == {name: pytest.approx(value, abs=1e-12) for name, value in signs.items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_exactly(dtype: torch.dtype) -> None:
    points, labels = clustered(200, 20, 8, 1.5, seed=8)
    rounded = torch.tensor(points).to(dtype)
    known = retrieval_metrics(rounded.float(), labels, metrics=RETRIEVAL)
    assert retrieval_metrics(rounded.requires_grad_(), labels, metrics=RETRIEVAL) == known


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("own_gallery", [False, True])
def test_nearest_neighbours(distance: Any, own_gallery: bool) -> None:
    rng = np.random.default_rng(9)
    queries = rng.integers(-3, 4, (50, 6)).astype(np.float32)
    gallery = rng.integers(-3, 4, (70, 6)).astype(np.float32) if own_gallery else None
    scores, index = nearest_neighbours(queries, gallery, k=4, distance=distance)
    known = reference.score_matrix(queries, queries if gallery is None else gallery, distance)
    if gallery is None:
        np.fill_diagonal(known, -np.inf)
    best = -np.sort(-known, axis=1)[:, :4]
    natural = -np.sqrt(-best) if distance == "euclidean" else best
    natural = -np.arccosh(1 - 2 * best) / np.sqrt(0.1) if distance == "hyperbolic" else natural
    np.testing.assert_allclose(scores.numpy(), natural, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(known, index.numpy(), 1), best, atol=1e-9)


def test_memory_stays_bounded() -> None:
    """9,000 items make a score matrix of 324 MB; with 48 MB allowed the process grows by little more than that."""
    script = """
import pathlib, torch
from nearfield.metrics import retrieval_metrics
torch.set_num_threads(1)
status = lambda key: next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key))
x, y = torch.randn(9000, 32), torch.arange(9000) % 1500
names = ("recall", "r_precision", "map_at_r", "map", "mrr")
retrieval_metrics(x[:500], y[:500] % 50, metrics=names)
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
retrieval_metrics(x, y, metrics=names, max_memory_mb=48)
print((status("VmHWM") - before) / 1024)
"""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from /proc, which this system does not have")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 72


def on_ranks(ranks: int, script: Path, *words: str) -> None:
    def start(rank: int, variables: dict[str, str]) -> Program:
        return Program(["python", str(script), *words], script.with_suffix(f".{rank}.txt"), variables)

    programs = as_ranks(ranks, start)
    assert [program.returncode for program in programs] == [0] * ranks, [p.printed()[1] for p in programs]


@pytest.mark.programs
def test_several_processes_give_the_same_result(tmp_path: Path) -> None:
    points, labels = clustered(301, 40, 8, 1.5, seed=10)
    points[100:150] = points[:50]
    np.savez(tmp_path / "data.npz", points=points, labels=labels)
    script = tmp_path / "job.py"
    script.write_text(
        """
import json, sys
import numpy as np, torch, torch.distributed as dist
from nearfield.metrics import retrieval_metrics
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, data = dist.get_rank(), np.load(sys.argv[1])
mine = slice(0, 120) if rank == 0 else slice(120, None)
names = ("recall", "precision", "r_precision", "map_at_r", "map", "mrr", "nmi", "roc_auc", "counts")
found, per_query = retrieval_metrics(
    torch.tensor(data["points"][mine]), data["labels"][mine], metrics=names, per_query=True, distributed=True,
    categories=data["labels"][mine] % 2,
)
half = slice(mine.start // 2, None if mine.stop is None else mine.stop // 2)
gallery = retrieval_metrics(
    data["points"][mine], data["labels"][mine], metrics=("recall",), distributed=True,
    gallery=data["points"][half], gallery_labels=data["labels"][half],
)
with open(f"{sys.argv[2]}/{rank}.json", "w") as stream:
    json.dump([found, per_query.scores["map"].tolist(), gallery], stream)
dist.barrier()
dist.destroy_process_group()
"""
    )
    on_ranks(2, script, str(tmp_path / "data.npz"), str(tmp_path))
    found, scores, gallery = json.loads((tmp_path / "0.json").read_text())
    assert json.loads((tmp_path / "1.json").read_text()) == [found, scores, gallery]
    names = (*RETRIEVAL, "nmi", "roc_auc", "counts")
    alone, per_query = retrieval_metrics(points, labels, metrics=names, per_query=True, categories=labels % 2)
    assert {**found, "nmi": 0} == {**alone, "nmi": 0}
    assert found["nmi"] == pytest.approx(alone["nmi"], abs=0.05)
    assert scores == per_query.scores["map"].tolist()
    shown = np.r_[0:60, 60:301]
    known = retrieval_metrics(points, labels, metrics=("recall",), gallery=points[shown], gallery_labels=labels[shown])
    assert gallery == known


@pytest.mark.programs
def test_empty_shards_count_and_an_error_of_one_rank_reaches_all(tmp_path: Path) -> None:
    """Of three ranks the second has no rows at all; whatever it may call them, nobody waits for ever."""
    script = tmp_path / "job.py"
    script.write_text(
        """
import json, sys
import numpy as np, torch, torch.distributed as dist
from nearfield.errors import InputError
from nearfield.metrics import retrieval_metrics
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
rng = np.random.default_rng(0)
points, labels = rng.standard_normal((30, 4)).astype(np.float32), np.array(list("abcde") * 6)
shards = {0: slice(0, 10), 1: slice(0, 0), 2: slice(10, 30)}
mine = shards[rank]
names = ("recall", "map", "roc_auc", "uniformity", "counts")

def scores(x, y, **options):
    try:
        return retrieval_metrics(x, y, metrics=names, distributed=True, **options)
    except InputError as error:
        return str(error)

bad = points.copy()
bad[20] = np.nan
empty = rank == 1
found = {
    "typed": scores(torch.tensor(points[mine]), labels[mine]),
    "lists": scores([] if empty else points[mine], [] if empty else labels[mine]),
    "gallery": scores(points[mine], labels[mine], gallery=points[shards[2 - rank]],
                      gallery_labels=labels[shards[2 - rank]], categories=[] if empty else labels[mine]),
    "no gallery here": scores(points, labels, gallery=points if rank == 0 else [],
                              gallery_labels=labels if rank == 0 else []),
    "all empty": scores([], []),
    "not finite": scores(bad[mine], labels[mine]),
    "widths": scores(points[mine][:, : 4 - rank], labels[mine]),
    "kinds": scores(points[mine], labels[mine] if rank else np.arange(10)),
    "options": scores(points[mine], labels[mine], ks=(1, 2 + rank)),
    "first rank": scores(points[mine], np.array(["a"] * 30)[mine]),
}
with open(f"{sys.argv[1]}/{rank}.json", "w") as stream:
    json.dump([found, points.tolist(), labels.tolist()], stream)
dist.barrier()
dist.destroy_process_group()
"""
    )
    on_ranks(3, script, str(tmp_path))
    (found, rows, labels), *others = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    points = np.array(rows, dtype=np.float32)
    assert [other[0] for other in others] == [found, found]
    names = ("recall", "map", "roc_auc", "uniformity", "counts")
    known = retrieval_metrics(points, labels, metrics=names)
    assert found["typed"] == found["lists"] == pytest.approx(known)
    order = np.r_[10:30, 0:10]
    gallery = {"gallery": points[order], "gallery_labels": [labels[i] for i in order], "categories": labels}
    assert found["gallery"] == pytest.approx(retrieval_metrics(points, labels, metrics=names, **gallery))
    assert found["no gallery here"]["queries"] == 90
    for case, message in {
        "all empty": "embeddings must hold at least one row; the shards of all ranks are empty",
        "not finite": "rank 2: embeddings must be finite",
        "widths": "embeddings must have as many dimensions on every rank; got 2, 4",
        "kinds": "labels must be of one kind on all ranks",
        "options": "rank 1 was called with other arguments than rank 0",
        "first rank": "labels must give pairs that match and pairs that do not",
    }.items():
        assert message in found[case]


def test_real_features_of_birds(real_data: Path) -> None:
    """The 100 test classes of CUB-200-2011, untrained features, stored in float16."""
    data = np.load(real_data / "cub200_efficientnet_lite0_224.npz")
    test = data["labels"] > 100
    found, per_query = retrieval_metrics(
        data["features"][test], data["labels"][test], metrics=("recall", "r_precision", "map_at_r"), per_query=True
    )
    hits = {k: int(per_query.scores[f"recall@{k}"].sum()) for k in (1, 2, 4, 8)}
    assert hits == {1: 3418, 2: 4180, 4: 4807, 8: 5257}  # of 5,924
    assert round(100 * found["r_precision"], 2) == 28.82
    assert round(100 * found["map@r"], 2) == 18.01
