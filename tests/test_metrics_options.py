"""Bad input, protocols, and the metrics that look at whole sets: clustering, verification, diagnostics."""

from __future__ import annotations

import math
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_metrics as reference
import torch
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.metrics import normalized_mutual_info_score, roc_auc_score

from nearfield.errors import InputError
from nearfield.metrics import KMeans, nearest_neighbours, retrieval_metrics
from nearfield.metrics.clustering import kmeans, pairwise_f1
from nearfield.metrics.ranking.vectors import vector_sets

POINTS = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)
LABELS = np.arange(12) % 4


def with_value(value: float) -> np.ndarray:
    points = POINTS.copy()
    points[7, 2] = value
    return points


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embeddings": with_value(np.nan)}, "embeddings must be finite; 1 of 12 rows hold NaN or infinity, first 7."),
        ({"embeddings": with_value(np.inf)}, "embeddings must be finite"),
        ({"embeddings": with_value(1.0).astype(float) * 1e-200}, "from 1e-100 to 1e100"),
        ({"embeddings": [[1.0], [1.0, 2.0]]}, "embeddings must be rectangular, all rows equally long"),
        ({"embeddings": POINTS[0]}, "embeddings must be a matrix"),
        ({"embeddings": POINTS[:0], "labels": LABELS[:0]}, "got shape (0, 4)"),
        ({"embeddings": [["a", "b"]] * 12}, "embeddings must be numbers"),
        ({"embeddings": POINTS + 1j}, "embeddings must be numbers"),
        ({"embeddings": torch.tensor(POINTS + 1j)}, "embeddings must be real numbers"),
        ({"embeddings": (POINTS > 0).astype(np.uint8)}, 'which only distance="hamming" ranks'),
        ({"labels": LABELS[:9]}, "got 12 rows and 9 labels"),
        ({"labels": LABELS / 2}, "labels must be integers or strings; got float64"),
        ({"labels": LABELS[:, None]}, "labels must be one value per item; got shape (12, 1)"),
        ({"labels": np.arange(12)}, "labels must give at least one query a match"),
        ({"gallery": POINTS}, "gallery and gallery_labels must be given together"),
        ({"gallery": POINTS[:0], "gallery_labels": LABELS[:0]}, "gallery must be a matrix of at least one item"),
        (
            {"gallery": POINTS[:, :3], "gallery_labels": LABELS},
            "gallery must have the 4 dimensions of the queries; got 3",
        ),
        ({"gallery": POINTS, "gallery_labels": LABELS[:5]}, "got 12 rows and 5 labels"),
        ({"gallery": POINTS, "gallery_labels": LABELS.astype(str)}, "labels and gallery_labels must be of one kind"),
        ({"gallery": POINTS, "gallery_labels": LABELS + 9}, "no query label is in the gallery"),
        ({"gallery": {"a": POINTS}, "gallery_labels": {"b": LABELS}}, "same names as gallery"),
        ({"metrics": ("recal",)}, "did you mean 'recall'?"),
        ({"metrics": ()}, "metrics must name at least one"),
        ({"ks": (0, 1)}, "ks must be a whole number from 1 to 9007199254740992; got 0"),
        ({"ks": ()}, "ks must hold at least one number"),
        ({"distance": "cosinus"}, "did you mean 'cosine'?"),
        ({"ties": "random"}, "ties must be one of expected, optimistic, pessimistic"),
        ({"denominator": "some"}, "denominator must be one of matched, all"),
        ({"protocol": "gallery"}, "did you mean 'gallery1'?"),
        ({"protocol": "gallery1", "gallery": POINTS, "gallery_labels": LABELS}, "draws its own gallery"),
        ({"protocol": "gallery1", "labels": np.arange(12)}, "labels must hold a class of two items for gallery1"),
        ({"repeats": 0}, "repeats must be a whole number from 1"),
        ({"max_memory_mb": 0}, "max_memory_mb must be a number above 0; got 0"),
        ({"fmr": (1.5,)}, "fmr must be a number from 0 up to, not including, 1; got 1.5"),
        ({"distributed": True}, "call init_process_group first"),
        ({"categories": LABELS[:3]}, "embeddings and categories must have the same length; got 12 rows and 3"),
        ({"labels": np.zeros(12, int), "metrics": ("roc_auc",)}, "one kind is missing"),
    ],
)
def test_bad_input_is_refused_in_plain_words(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        retrieval_metrics(**{"embeddings": POINTS, "labels": LABELS, "metrics": ("recall",), **arguments})


def test_bad_neighbour_counts_are_refused() -> None:
    with pytest.raises(InputError, match="k must be a whole number from 1 to 11; got 12"):
        nearest_neighbours(POINTS, k=12)


def test_large_and_odd_labels_stay_distinct() -> None:
    points = np.repeat(np.eye(4), 2, axis=0)
    for labels in (
        np.array([2**24, 2**24 + 1] * 4),
        np.array([2**63, 2**63 + 1] * 4, dtype=np.uint64),
        torch.tensor([-(2**40), -(2**40) + 1] * 4),
        ["a", "b"] * 4,
        np.array([True, False] * 4),
    ):
        assert retrieval_metrics(points, labels, (1,), metrics=("recall",))["recall@1"] == 0


def test_read_only_and_reversed_arrays_are_accepted() -> None:
    known = retrieval_metrics(POINTS, LABELS, metrics=("map",))
    frozen = POINTS.copy()
    frozen.flags.writeable = False
    assert retrieval_metrics(frozen, LABELS, metrics=("map",)) == known
    assert retrieval_metrics(POINTS[::-1], LABELS[::-1], metrics=("map",)) == pytest.approx(known)
    assert retrieval_metrics(POINTS.tolist(), LABELS.tolist(), metrics=("map",)) == known
    assert retrieval_metrics(np.asfortranarray(POINTS), LABELS, metrics=("map",)) == known


def test_a_zero_vector_has_cosine_zero_with_everything() -> None:
    points = np.array([[1, 0], [0, 0], [-1, 0.0], [0, 1]])
    _, per_query = retrieval_metrics(points, [0, 0, 1, 1], (1,), metrics=("recall",), per_query=True)
    assert per_query.scores["recall@1"].tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 2, 1 / 3])


def test_queries_without_a_match_are_counted_and_may_count() -> None:
    points = np.array([[0.0], [1.0], [5.0]])
    labels = [0, 0, 1]
    names = ("recall", "counts")
    found, per_query = retrieval_metrics(points, labels, (1,), metrics=names, distance="euclidean", per_query=True)
    assert found == {"recall@1": 1, "precision@1": 1, "queries": 3, "queries_without_match": 1}
    assert per_query.relevant.tolist() == [1, 1, 0]
    assert per_query.scores["recall@1"].tolist()[:2] == [1, 1]
    assert math.isnan(per_query.scores["recall@1"][2])
    every = retrieval_metrics(points, labels, (1,), metrics=names, distance="euclidean", denominator="all")
    assert every["recall@1"] == pytest.approx(2 / 3)
    alone = retrieval_metrics(points, [0, 1, 2], (1,), metrics=("recall", "map"), denominator="all")
    assert alone == {"recall@1": 0, "precision@1": 0, "map": 0}


def test_gallery1_draws_one_item_per_class() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(15), 6)
    points = rng.standard_normal((15, 8))[labels] + 0.8 * rng.standard_normal((90, 8))
    options: dict[str, Any] = {"protocol": "gallery1", "repeats": 60}
    found, per_query = retrieval_metrics(points, labels, (1, 5), metrics=("recall",), per_query=True, **options)
    units = points / np.linalg.norm(points, axis=1, keepdims=True)
    hits = []
    for _ in range(200):
        shown = np.array([rng.choice(np.flatnonzero(labels == c)) for c in range(15)])
        probes = np.setdiff1d(np.arange(90), shown)
        ranks = np.argsort(-units[probes] @ units[shown].T, axis=1)
        hits.append((labels[shown][ranks[:, 0]] == labels[probes]).mean())
    assert found["recall@1"] == pytest.approx(np.mean(hits), abs=0.02)
    assert found["recall@1"] < retrieval_metrics(points, labels, (1,), metrics=("recall",), protocol="loo")["recall@1"]
    assert found == retrieval_metrics(points, labels, (1, 5), metrics=("recall",), **options)
    assert found != retrieval_metrics(points, labels, (1, 5), metrics=("recall",), seed=1, **options)
    assert bool((per_query.relevant == 1).all())


def test_several_galleries_are_scored_apart_and_together() -> None:
    galleries = {"near": POINTS[:8], "far": POINTS[4:]}
    names = {"near": LABELS[:8], "far": LABELS[4:]}
    found, per_query = retrieval_metrics(POINTS, LABELS, (1,), galleries, names, ("map", "nmi"), per_query=True)
    for name in galleries:
        alone = retrieval_metrics(POINTS, LABELS, (1,), galleries[name], names[name], ("map",))
        assert found[f"{name}/map"] == alone["map"]
    assert found["map"] == pytest.approx((found["near/map"] + found["far/map"]) / 2)
    assert set(found) == {"map", "near/map", "far/map", "nmi"}
    assert set(per_query.scores) == {"map", "near/map", "far/map"}


def test_categories_and_classes_have_means_of_their_own() -> None:
    categories = np.where(LABELS < 2, "birds", "cars")
    found, per_query = retrieval_metrics(POINTS, LABELS, (1,), metrics=("map",), categories=categories, per_query=True)
    score = per_query.scores["map"].double().numpy()
    assert found["map/birds"] == pytest.approx(score[LABELS < 2].mean())
    assert found["map/cars"] == pytest.approx(score[LABELS >= 2].mean())
    by_class = per_query.by(LABELS)
    assert list(by_class) == [0, 1, 2, 3]
    assert by_class[3]["map"] == pytest.approx(score[LABELS == 3].mean())


def blobs(classes: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(np.arange(classes), size)
    noise = np.random.default_rng(2).standard_normal((len(labels), classes))
    return np.eye(classes)[labels] + 0.01 * noise, labels


def test_clustering_recovers_separate_classes() -> None:
    points, labels = blobs(6, 20)
    settings = KMeans(restarts=5, iterations=50)
    found = retrieval_metrics(points, labels, metrics=("nmi", "ami", "f1"), kmeans=settings)
    assert found == {"nmi": pytest.approx(1), "ami": pytest.approx(1), "f1": pytest.approx(1)}


def test_clustering_is_seeded_and_averaged_as_asked() -> None:
    points = np.random.default_rng(3).standard_normal((200, 5))
    labels = np.arange(200) % 10
    values = {
        (seed, average): retrieval_metrics(points, labels, metrics=("nmi",), kmeans=KMeans(seed, average=average))[
            "nmi"
        ]
        for seed in (0, 1)
        for average in ("arithmetic", "geometric")
    }
    assert len(set(values.values())) == 4
    ready, _ = vector_sets(torch.tensor(points), None, "cosine")
    clusters = kmeans(ready, 10, KMeans(1))
    expected = normalized_mutual_info_score(labels, clusters, average_method="geometric")
    assert values[1, "geometric"] == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InputError, match="average must be one of arithmetic, geometric"):
        KMeans(average="mean")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="restarts must be a whole number from 1"):
        KMeans(restarts=0)


def slow_kmeans(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Lloyd's iterations, point by point, until nothing moves."""
    before = None
    while True:
        found = np.array([np.argmin(((point - centres) ** 2).sum(1)) for point in points])
        if before is not None and (found == before).all():
            return found
        before = found
        centres = np.stack([points[found == each].mean(0) for each in range(len(centres))])


def test_clusters_are_a_fixed_point_of_k_means() -> None:
    points = np.random.default_rng(5).standard_normal((300, 4))
    ready, _ = vector_sets(torch.tensor(points), None, "euclidean")
    found = kmeans(ready, 12, KMeans())
    assert sorted(set(found.tolist())) == list(range(12))
    centres = np.stack([points[found == each].mean(0) for each in range(12)])
    assert (slow_kmeans(points, centres) == found).all()


def spread(points: np.ndarray, found: np.ndarray) -> float:
    """Sum of squared distances to the centres of the clusters."""
    return float(sum(((points[found == each] - points[found == each].mean(0)) ** 2).sum() for each in set(found)))


def test_more_starts_and_iterations_are_no_worse() -> None:
    points = np.random.default_rng(6).standard_normal((400, 3))
    ready, _ = vector_sets(torch.tensor(points), None, "euclidean")
    worse = spread(points, kmeans(ready, 20, KMeans(restarts=1, iterations=1)))
    once = spread(points, kmeans(ready, 20, KMeans(restarts=1)))
    often = spread(points, kmeans(ready, 20, KMeans(restarts=10)))
    assert often < once < worse


def test_centres_chosen_among_some_points_are_as_good_as_those_of_scikit_learn() -> None:
    """Of 5,000 points 20 a cluster are seen, and of 3 starts one goes on: within 1 % of their sum of squares."""
    rng = np.random.default_rng(6)
    points = rng.standard_normal((30, 8))[rng.integers(0, 30, 5000)] + 0.7 * rng.standard_normal((5000, 8))
    ready, _ = vector_sets(torch.tensor(points), None, "euclidean")
    ours = [spread(points, kmeans(ready, 30, KMeans(seed))) for seed in range(4)]
    theirs = [SklearnKMeans(30, n_init=3, random_state=seed).fit(points).inertia_ for seed in range(4)]
    assert np.mean(ours) < 1.01 * np.mean(theirs)


@pytest.mark.parametrize("clusters", [40, 1200])  # one centre at a time, and several
def test_fewer_different_points_than_clusters(clusters: int) -> None:
    points = np.repeat(np.eye(8)[:, :6] + np.arange(8)[:, None], clusters // 4, 0)
    ready, _ = vector_sets(torch.tensor(points), None, "euclidean")
    found = kmeans(ready, clusters, KMeans())
    assert all(len({tuple(p) for p in points[found == each]}) == 1 for each in set(found.tolist()))


def test_k_means_of_thousands_of_small_classes() -> None:
    labels = np.repeat(np.arange(1500), 3)
    points = np.random.default_rng(7).standard_normal((1500, 8))[labels]
    noise = 0.01 * np.random.default_rng(8).standard_normal(points.shape)
    assert retrieval_metrics(points + noise, labels, metrics=("nmi",), distance="euclidean")["nmi"] > 0.99


def test_nmi_is_that_of_scikit_learn_on_cub(real_data: Path) -> None:
    """Within 0.3 points, the mean over seeds: those of one method differ by about as much among themselves."""
    with np.load(real_data / "cub200_efficientnet_lite0_224.npz") as archive:
        features, classes = archive["features"].astype(np.float32), archive["labels"]
    train, test = features[classes <= 100], features[classes > 100]
    axes = np.linalg.eigh(np.cov(train.T))[1][:, -128:]
    points, labels = (test - train.mean(0)) @ axes, classes[classes > 100]
    units = points / np.linalg.norm(points, axis=1, keepdims=True)
    ours = [retrieval_metrics(points, labels, metrics=("nmi",), kmeans=KMeans(seed))["nmi"] for seed in range(6)]
    theirs = [
        normalized_mutual_info_score(labels, SklearnKMeans(100, n_init=3, random_state=seed).fit_predict(units))
        for seed in range(6)
    ]
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=0.003)


def test_pairwise_f1_counts_pairs() -> None:
    rng = np.random.default_rng(4)
    truth, found = rng.integers(0, 4, 30), rng.integers(0, 5, 30)
    pairs = [(truth[i] == truth[j], found[i] == found[j]) for i, j in combinations(range(30), 2)]
    hits = sum(a and b for a, b in pairs)
    assert pairwise_f1(truth, found) == pytest.approx(2 * hits / (sum(a for a, _ in pairs) + sum(b for _, b in pairs)))
    assert pairwise_f1(np.arange(5), np.arange(5)) == 1


@pytest.mark.parametrize("distance", ["cosine", "euclidean", "hamming"])
@pytest.mark.parametrize("own_gallery", [False, True])
def test_verification_equals_scikit_learn(distance: Any, own_gallery: bool) -> None:
    rng = np.random.default_rng(5)
    points, labels = rng.standard_normal((70, 6)), rng.integers(0, 5, 70)
    gallery, names = (rng.standard_normal((40, 6)), rng.integers(0, 5, 40)) if own_gallery else (points, labels)
    scores = reference.score_matrix(points, gallery, distance)
    keep = np.ones_like(scores, bool) if own_gallery else np.triu(np.ones_like(scores, bool), 1)
    same, scores = (labels[:, None] == names)[keep], scores[keep]
    names_of_metrics = ("roc_auc", "eer", "fnmr", "tar")
    options: dict[str, Any] = {"metrics": names_of_metrics, "fmr": (0.05, 0.2), "distance": distance}
    others: dict[str, Any] = {"gallery": gallery, "gallery_labels": names} if own_gallery else {}
    found = retrieval_metrics(points, labels, **others, **options)
    assert found["roc_auc"] == pytest.approx(roc_auc_score(same, scores), abs=1e-5)
    for rate in (0.05, 0.2):
        reached = [cut for cut in [*np.unique(scores), np.inf] if (scores[~same] >= cut).mean() <= rate]
        assert found[f"fnmr@fmr={rate:g}"] == pytest.approx((scores[same] < min(reached)).mean(), abs=1e-12)
        assert found[f"tar@far={rate:g}"] == pytest.approx((scores[same] >= min(reached)).mean(), abs=1e-12)
    assert found["eer"] == pytest.approx(_equal_error_rate(scores, same), abs=1e-4)


def _equal_error_rate(scores: Any, same: Any) -> float:
    """Walk the thresholds upwards until FNMR reaches FMR; the rate at the crossing of the two lines there."""
    before = (1.0, 0.0)
    for cut in [*np.unique(scores), np.inf]:
        fmr, fnmr = float((scores[~same] >= cut).mean()), float((scores[same] < cut).mean())
        if fnmr >= fmr:
            gap, past = before[0] - before[1], fnmr - fmr
            return before[0] + gap / (gap + past) * (fmr - before[0])
        before = fmr, fnmr
    raise AssertionError


@pytest.mark.parametrize(("far", "eer"), [(0.0, 0.0), (1.0, 0.5)])
def test_equal_error_rate_by_hand(far: float, eer: float) -> None:
    """Two pairs that match and four that do not: all apart, or all tied."""
    points = np.eye(2).repeat(2, 0) if far == 0 else np.ones((4, 2))
    found = retrieval_metrics(points, [0, 0, 1, 1], metrics=("eer", "tar"), fmr=(0.5,))
    assert found == {"eer": pytest.approx(eer), "tar@far=0.5": pytest.approx(1 - far)}


DIAGNOSTICS = ("effective_rank", "uniformity")


@pytest.mark.parametrize("distance", ["cosine", "euclidean", "hamming"])
@pytest.mark.parametrize("kind", ["random", "offset", "large", "zero rows", "mostly zero rows"])
def test_diagnostics_equal_the_slow_formulas(distance: Any, kind: str) -> None:
    """Of the vectors as they are: far from the origin, uniformity and rank are low whatever distance ranks."""
    points = np.random.default_rng(6).standard_normal((40, 5))
    points = {"offset": points + 3, "large": 1e4 * points}.get(kind, points)
    if "zero" in kind:
        points[: 38 if "mostly" in kind else 10] = 0
    found = retrieval_metrics(points, np.arange(40) % 4, metrics=DIAGNOSTICS, distance=distance)
    assert found["effective_rank"] == pytest.approx(reference.effective_rank(points, distance), abs=1e-6)
    assert found["uniformity"] == pytest.approx(reference.uniformity(points, distance), abs=1e-5)


@pytest.mark.parametrize("distance", ["cosine", "euclidean", "hamming"])
@pytest.mark.parametrize("value", [1.0, 0.1, 0.0])
def test_collapsed_vectors_have_uniformity_0_and_rank_1(distance: Any, value: float) -> None:
    found = retrieval_metrics(np.full((6, 3), value), [0, 0, 0, 1, 1, 1], metrics=DIAGNOSTICS, distance=distance)
    assert found == {"effective_rank": pytest.approx(1, abs=1e-5), "uniformity": pytest.approx(0, abs=1e-6)}


def test_distance_ratio_compares_spread_with_centres() -> None:
    units = reference.unit_rows(POINTS.astype(np.float64))
    found = retrieval_metrics(POINTS, LABELS, metrics=("distance_ratio",))
    distances = np.linalg.norm(units[:, None] - units[None], axis=-1)
    inside = distances[(LABELS[:, None] == LABELS) & ~np.eye(12, dtype=bool)].mean()
    centres = np.stack([units[c == LABELS].mean(0) for c in range(4)])
    between = np.linalg.norm(centres[:, None] - centres[None], axis=-1)[~np.eye(4, dtype=bool)].mean()
    assert found["distance_ratio"] == pytest.approx(inside / between)
    gallery, names = np.concatenate([POINTS, POINTS]), np.arange(24)  # with classes that no query has
    other = retrieval_metrics(POINTS, LABELS, (1,), gallery, names, ("distance_ratio",))
    assert other == pytest.approx(found)
    with pytest.raises(InputError, match="class centres that differ"):
        retrieval_metrics(np.ones((12, 4)), LABELS, metrics=("distance_ratio",))


def test_metrics_without_retrieval_need_no_matches() -> None:
    assert retrieval_metrics(np.eye(3), [0, 1, 2], metrics=("effective_rank",)) == {"effective_rank": pytest.approx(3)}
