"""Test splits are scored under their own protocols, query by query, as the slow metrics say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference_metrics
import torch
from miniatures import MAKE, add
from test_protocols import made

from nearfield.data import Dataset
from nearfield.errors import InputError
from nearfield.metrics import retrieval_metrics
from nearfield.metrics.dataset_scores import score_test

KS = (1, 2, 4, 8)
NAMES = ["precision@1", "r_precision", "map@r", *(f"recall@{k}" for k in KS)]


def embedded(dataset: Dataset, seed: int = 0) -> np.ndarray:
    """Embeddings of the test rows that know a little about their classes."""
    generator = np.random.default_rng(seed)
    labels = dataset.labels[dataset.test_rows()]
    centres = generator.normal(size=(len(dataset.class_names), 5))
    return (centres[labels] + 1.5 * generator.normal(size=(len(labels), 5))).astype(np.float32)


def open_set() -> Dataset:
    """Ten test classes of one to five images, their rows mixed with those of training."""
    labels = np.random.default_rng(1).permutation([c for c in range(20) for _ in range(1 + c % 5)])
    return made(labels.tolist())


def agrees(found: tuple[dict[str, float], dict[str, np.ndarray]], slow: list[dict[str, float] | None]) -> None:
    scores, queries = found
    mean = reference_metrics.mean_scores(slow)
    for name in NAMES:
        assert scores[name] == pytest.approx(mean[name], abs=1e-9)
        assert queries[name].dtype == np.float32
        wanted = [np.nan if each is None else each[name] for each in slow]
        np.testing.assert_allclose(queries[name], wanted, atol=1e-6)


@pytest.mark.parametrize("distance", ["cosine", "euclidean", "hamming"])
def test_every_image_searches_all_others(distance: str) -> None:
    dataset = open_set()
    vectors, labels = embedded(dataset), dataset.labels[dataset.test_rows()].tolist()
    slow = reference_metrics.all_query_scores(vectors, labels, KS, distance=distance)
    assert None in slow  # a class of one image has nothing to find
    found = score_test(dataset, vectors, distance=distance)
    agrees(found, slow)
    assert 0 < found[0]["nmi"] < 1
    tensors = score_test(dataset, torch.from_numpy(vectors), distance=distance)
    assert tensors[0] == found[0]


def test_a_closed_set_searches_its_test_images_alone() -> None:
    labels = [c for c in range(4) for _ in range(6)]
    dataset = made(labels, is_test=[i % 6 < 3 for i in range(24)])
    vectors = embedded(dataset)
    assert len(vectors) == 12
    tested = dataset.labels[dataset.test_rows()].tolist()
    agrees(score_test(dataset, vectors), reference_metrics.all_query_scores(vectors, tested, KS))


def test_queries_search_the_gallery() -> None:
    plain = open_set()
    tested = np.isin(plain.labels, plain.test_classes)
    queries = tested & (np.random.default_rng(2).random(len(tested)) < 0.4)
    dataset = replace(plain, is_query=queries, is_gallery=tested & ~queries)
    vectors, rows = embedded(dataset), dataset.test_rows()
    q, g = queries[rows], ~queries[rows]
    labels = dataset.labels[rows]
    slow = reference_metrics.all_query_scores(vectors[q], labels[q].tolist(), KS, vectors[g], labels[g].tolist())
    found = score_test(dataset, vectors)
    agrees(found, slow)
    assert all(len(each) == q.sum() for each in found[1].values())


def test_in_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    MAKE["inshop"](tmp_path / "inshop")
    dataset = add("inshop", tmp_path / "inshop")
    # 0 and 3 are the queries; 1 and 2 are the matches of the first, which finds 4 before 1; 4 and 5 of the second
    vectors = np.array([[1, 0], [0.7, 0.3], [0.5, 0.5], [0, 1], [0.9, 0.1], [0.1, 0.9]], dtype=np.float32)
    scores, queries = score_test(dataset, vectors, metrics=("recall", "map_at_r"), ks=(1, 2))
    assert queries["recall@1"].tolist() == [0.0, 1.0]
    assert queries["recall@2"].tolist() == [1.0, 1.0]
    assert queries["map@r"].tolist() == [0.25, 0.5]
    assert (scores["recall@1"], scores["map@r"]) == (0.5, 0.375)


def vehicles() -> Dataset:
    plain = made([c for c in range(24) for _ in range(4)])
    rows = plain.test_rows()
    return replace(plain, test_lists={"test_800": rows[8:24], "test_1600": rows[4:32], "night": rows[:12]})


def test_each_list_is_scored_in_both_forms() -> None:
    dataset = vehicles()
    vectors, rows = embedded(dataset), dataset.test_rows()
    scores, queries = score_test(dataset, vectors, seed=5)
    lists = {"small": slice(8, 24), "medium": slice(4, 32), "night": slice(0, 12)}
    forms = {f"{name}/{form}/" for name in lists for form in ("loo", "gallery1")}
    assert {key.rpartition("/")[0] + "/" for key in scores if "/" in key} == forms
    for name, part in lists.items():
        labels = dataset.labels[rows][part].tolist()
        slow = reference_metrics.all_query_scores(vectors[part], labels, KS)
        for form in ("loo", "gallery1"):
            prefix = f"{name}/{form}/"
            found = tuple({k.removeprefix(prefix): v for k, v in s.items() if prefix in k} for s in (scores, queries))
            if form == "loo":
                agrees(found, slow)  # type: ignore[arg-type]
                continue
            drawn = retrieval_metrics(vectors[part], labels, KS, metrics=("recall",), protocol="gallery1", seed=5)
            assert {key: found[0][key] for key in drawn} == drawn
            assert "nmi" not in found[0]
    for key in ("map@r", "recall@1", "nmi"):
        assert scores[key] == scores[f"medium/loo/{key}"]  # the longest list
    assert np.array_equal(queries["map@r"], queries["medium/loo/map@r"])


def test_ten_galleries_are_drawn_by_the_seed() -> None:
    """The mean over draws, made again by hand: one image of every vehicle is the gallery, the others search it."""
    dataset = vehicles()
    vectors = embedded(dataset)
    key = "small/gallery1/recall@1"
    one, same, other = (score_test(dataset, vectors, seed=seed, metrics=["recall"])[0][key] for seed in (0, 0, 1))
    assert one == same != other
    # with perfect embeddings every probe finds its vehicle, with useless ones one in as many as there are vehicles
    labels = dataset.labels[dataset.test_rows()]
    perfect = np.eye(len(dataset.class_names), dtype=np.float32)[labels]
    assert score_test(dataset, perfect, metrics=["recall"])[0][key] == 1.0
    blind = score_test(dataset, np.ones_like(perfect), metrics=["recall"])[0]
    assert blind[key] == pytest.approx(1 / 4)
    assert blind["small/loo/recall@1"] == pytest.approx(3 / 15)


def test_vehicleid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    MAKE["vehicleid"](tmp_path / "vehicleid")
    dataset = add("vehicleid", tmp_path / "vehicleid")
    scores, queries = score_test(dataset, embedded(dataset), metrics=("recall", "map_at_r"))
    assert scores["small/loo/recall@1"] == 1.0  # one vehicle of two images
    assert len(queries["small/gallery1/recall@1"]) == 2
    assert len(queries["test_13164/loo/recall@1"]) == len(queries["recall@1"]) == 5


def test_metrics_other_than_retrieval_are_given_once() -> None:
    dataset = vehicles()
    scores, queries = score_test(dataset, embedded(dataset), metrics=["effective_rank"])
    assert set(scores) == {"effective_rank", *(f"{name}/loo/effective_rank" for name in ("small", "medium", "night"))}
    assert queries == {}


def test_what_does_not_fit_is_refused() -> None:
    dataset = open_set()
    with pytest.raises(InputError, match=r"a row for each of the .* test images; got 3"):
        score_test(dataset, np.ones((3, 2), dtype=np.float32))
    wrong = replace(dataset, test_lists={"odd": dataset.train_rows()[:2]})
    with pytest.raises(InputError, match=r"test_lists\['odd'\] must hold test images only"):
        score_test(wrong, embedded(wrong))
