"""The report of a bench: faithful to the results, complete, safe to open anywhere; and its parts one by one."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import Inline
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from narrow import pair_loss
from numpy.typing import NDArray
from PIL import Image
from report_bench import Shape, invent

from nearfield import losses
from nearfield.analysis.bias import ledger
from nearfield.analysis.leaderboard import standings
from nearfield.analysis.statistics import mean_interval
from nearfield.analysis.tables import percent
from nearfield.bench.results import BenchResults
from nearfield.bench.run import run_bench
from nearfield.config import BenchConfig, build_config, merge
from nearfield.data import Dataset, load
from nearfield.errors import InputError, RunError
from nearfield.metrics import prefix_metrics, retrieval_metrics
from nearfield.report import (
    atlas,
    board,
    command,
    gallery,
    page,
    pair_weights,
    prefixes,
    published,
    render,
    sentences,
    thumbnails,
    tuning,
    write_markdown,
    write_report,
)
from nearfield.report.cache import Cache, digest
from nearfield.report.items import items_of, open_items
from nearfield.report.markdown import markdown
from nearfield.report.packing import pack, script_json, shares, unpack
from nearfield.report.pair_weights import choose_batch, pair_weight_section
from nearfield.report.thumbnails import COLUMNS, PER_SHEET, SIDES, make_sheets

TSNE = atlas.tsne
NAMES = ["multi_similarity", "contrastive", "proxy_softmax", "histogram"]


def small_data(name: str = "digits", per_class: int = 12, classes: int = 10) -> Dataset:
    """Few images of each of the first classes of a built-in dataset, half of the classes for the test."""
    whole = load(name)
    rows = np.concatenate([np.flatnonzero(whole.labels == label)[:per_class] for label in range(classes)])
    return dataclasses.replace(
        whole,
        images=whole.images[rows],
        labels=whole.labels[rows],
        class_names=whole.class_names[:classes],
        class_category=whole.class_category[:classes],
        train_classes=np.arange(classes // 2),
        test_classes=np.arange(classes // 2, classes),
    )


def noise(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


@pytest.fixture(scope="module", autouse=True)
def hurry() -> Iterator[None]:
    """Maps that are no maps, and few points of few curves; what is left out here has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atlas, "tsne", lambda rows, cosine: rows[:, :2].astype(np.float64))
        patch.setattr(pair_weights, "POINTS", 7)
        patch.setattr(pair_weights, "TRIALS", 3)
        yield


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return small_data()


@pytest.fixture(scope="module")
def results(dataset: Dataset) -> BenchResults:
    return invent(dataset, NAMES, Shape(seeds=3, trials=6))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def html(results: BenchResults, dataset: Dataset, cache: Cache) -> str:
    return render(results, items_of(dataset), cache)


@pytest.fixture(scope="module")
def data(html: str) -> dict[str, Any]:
    return embedded(html)


def embedded(html: str) -> dict[str, Any]:
    """The data inside a page."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    found: dict[str, Any] = json.loads(text)
    return found


class Tags(HTMLParser):
    """The elements of a page, as a browser without scripts sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


# ---------------------------------------------------------------------------------------------------------------
# The page


def test_nothing_is_loaded_from_elsewhere(html: str) -> None:
    tags = Tags(html).found
    assert not [tag for tag, _ in tags if tag in {"link", "iframe", "object", "embed", "base", "img"}]
    assert {key for tag, values in tags if tag == "script" for key in values} <= {"type", "id"}
    assert all((values["href"] or "").startswith("#") for _, values in tags if "href" in values)
    (policy,) = [values["content"] or "" for tag, values in tags if values.get("http-equiv")]
    assert policy.startswith("default-src 'none'; img-src blob: data:;")
    assert "@import" not in html
    assert set(re.findall(r"https?://[^\"' ]+", html)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_only_our_script_may_run(html: str) -> None:
    import base64
    import hashlib

    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    fingerprint = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{fingerprint}'" in html


def test_the_same_results_give_the_same_bytes(html: str, results: BenchResults, dataset: Dataset, cache: Cache) -> None:
    assert render(results, items_of(dataset), cache) == html


def test_board_holds_every_mean_and_interval(data: dict[str, Any], results: BenchResults) -> None:
    assert [part["key"] for part in data["board"]["parts"]] == ["separated", "concatenated"]
    for part in data["board"]["parts"]:
        assert len(part["rows"]) == len(NAMES)
        for row in part["rows"]:
            seeds = [getattr(seed, part["key"]) for seed in results.methods[row["method"]].seeds]
            for metric, (mean, half) in row["scores"].items():
                expected = mean_interval([scores[metric] for scores in seeds])
                assert mean == pytest.approx(expected.mean, rel=1e-5)
                assert half == pytest.approx(expected.half_width, rel=1e-5)
    assert {metric["key"] for metric in data["metrics"]} == set(results.methods[0].seeds[0].separated) - {"precision@1"}
    assert [floor["name"] for floor in data["board"]["floors"]] == ["untrained network", "raw pixels"]


def test_verdicts_and_ranks_are_those_of_the_standings(data: dict[str, Any], results: BenchResults) -> None:
    for part in data["board"]["parts"]:
        expected = standings(results, part["key"])
        rows = {results.methods[row["method"]].label: row for row in part["rows"]}
        assert {label for label, row in rows.items() if row["like_best"]} == set(expected.like_best)
        for label, row in rows.items():
            verdict = expected.against_best(label)
            assert (row["verdict"] is None) == (verdict is None)
            if verdict:
                assert row["verdict"]["p"] == pytest.approx(verdict.p, rel=1e-5)
        assert expected.critical is not None
        assert part["critical"]["ranks"] == pytest.approx(expected.critical.ranks, rel=1e-5)
        assert [results.methods[m].label for m in part["critical"]["methods"]] == list(expected.compared)


def test_ledger_holds_both_rankings(data: dict[str, Any], results: BenchResults) -> None:
    expected = ledger(results)
    assert [entry["name"] for entry in data["ledger"]] == [entry.name for entry in expected]
    assert len(expected) > 5
    for entry, right in zip(data["ledger"], expected, strict=True):
        biased = {place.label: place for place in right.biased}
        for place, honest in zip(entry["places"], right.honest, strict=True):
            assert results.methods[place["method"]].label == honest.label
            assert place["honest"] == pytest.approx([honest.score, honest.rank], rel=1e-5)
            assert place["biased"] == pytest.approx([biased[honest.label].score, biased[honest.label].rank], rel=1e-5)


def test_neighbours_and_scores_agree_with_the_embeddings(data: dict[str, Any], results: BenchResults) -> None:
    labels = unpack(data["items"]["labels"])
    assert unpack(data["gallery"]["queries"]).tolist() == list(range(len(labels)))
    for one in data["gallery"]["methods"]:
        label = results.methods[one["method"]].label
        rows = results.embeddings(label)
        assert rows is not None
        unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        similarity = unit @ unit.T
        np.fill_diagonal(similarity, -np.inf)
        expected = np.argsort(-similarity, axis=1, kind="stable")[:, : data["gallery"]["neighbours"]]
        near = unpack(one["near"]).reshape(expected.shape)
        assert (near == expected).mean() > 0.999  # float16 may tie
        scores = results.queries(label, "map@r", "concatenated")[0]
        np.testing.assert_allclose(unpack(one["scores"]) / 60_000, scores, atol=1e-4)
        wrong = sum(labels[near[i, 0]] != labels[i] for i in range(len(labels)))
        triples = unpack(one["confusions"]).reshape(-1, 3)
        assert triples[:, 2].sum() == wrong
        assert all(np.diff(triples[:, 2].astype(int)) <= 0)


def test_provenance_names_what_the_numbers_depend_on(data: dict[str, Any], results: BenchResults) -> None:
    found = data["provenance"]
    assert found["facts"]["Data fingerprint"] == results.data["fingerprint"]
    assert found["facts"]["Split fingerprint"] == results.split
    assert found["facts"]["Commit"] == "0123456789ab"
    assert found["protocol"]["name"] == "reality-check"
    assert found["command"] == command(build_config(BenchConfig, results.config))
    assert 'select_by = "map@r"' in found["toml"]
    assert found["missing"] == list(results.missing)


def test_unequal_conditions_are_said(html: str, results: BenchResults) -> None:
    assert "Trained in float32 alone: histogram." in html
    both = [dataclasses.replace(method, unequal=("a trick", method.label)) for method in results.methods[:2]]
    found = board.unequal(dataclasses.replace(results, methods=tuple(both)))
    assert found[0] == f"A trick: {both[0].label}, {both[1].label}."
    assert len(found) == 3
    fewer = dataclasses.replace(results.methods[0], seeds=results.methods[0].seeds[:1])
    found = board.unequal(dataclasses.replace(results, methods=(fewer, *results.methods[1:])))
    assert "Unequal number of seeds: multi_similarity 1; the others have 3." in found


def test_ranks_that_cannot_differ_are_not_drawn(dataset: Dataset) -> None:
    few = invent(dataset, NAMES, Shape(seeds=2, trials=0, folds=1, variants=()))
    found = board.boards(few)
    assert found["separated"].critical is not None  # 3.3 ranks, where 4 methods lie at most 3 apart
    assert board.board(few, found)["parts"][0]["critical"] is None
    assert "the critical difference is 3.3 ranks, but ranks differ by at most 3." in markdown(few, found, [], {})


def test_halves_of_the_seeds_are_not_called_honest_and_biased(data: dict[str, Any]) -> None:
    sides = {entry["name"]: entry["sides"] for entry in data["ledger"]}
    assert sides.pop("chance") == ["first half", "second half"]
    assert set(map(tuple, sides.values())) == {("honest", "biased")}


@pytest.mark.parametrize(
    "evil", ["</script><script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "<!--", "\u2028"]
)
def test_names_are_shown_as_text(evil: str, results: BenchResults, dataset: Dataset, cache: Cache) -> None:
    hostile = dataclasses.replace(dataset, class_names=tuple(evil + str(i) for i in range(10)), category_names=(evil,))
    renamed = dataclasses.replace(results, data={**results.data, "name": f"some/{evil}/x.npz"}, missing=(evil,))
    text = render(renamed, items_of(hostile), cache)
    assert embedded(text)["items"]["classes"][0] == f"{evil}5"
    assert embedded(text)["provenance"]["missing"] == [evil]
    expected = [tag for tag, _ in Tags(render(results, items_of(dataset), cache)).found if tag != "p"]
    assert [tag for tag, _ in Tags(text).found if tag != "p"] == expected


# ---------------------------------------------------------------------------------------------------------------
# Benches that are not as they should be


@pytest.mark.programs
def test_a_real_bench_from_beginning_to_end(tmp_path: Path) -> None:
    config = build_config(BenchConfig, {
        "methods": [{"name": "multi_similarity"}, {"name": "proxy_softmax", "params": {"temperature": 0.1}}],
        "seeds": [0, 1],
        "run": {
            "data": {"name": "digits", "val_fraction": 0.4}, "steps": 4, "eval_every": 2, "sampler": {"batch_size": 12},
        },
    })  # fmt: skip
    run_bench(config, tmp_path / "bench", Inline(tmp_path), lambda watched: None)
    said: list[str] = []
    out = write_report(tmp_path / "bench", tmp_path / "deep" / "report.html", say=said.append)
    found = embedded(out.read_text(encoding="utf-8"))
    assert {method["label"] for method in found["methods"]} == {"multi_similarity", "proxy_softmax(temperature=0.1)"}
    assert found["gallery"]["total"] == 896
    assert len(found["atlas"]["maps"]) == 2
    assert len(found["weights"]["losses"]) == 1
    assert [len(found[key]) for key in ("curves", "searches")] == [2, 0]
    assert any("Thumbnails of 896 images" in line for line in said)
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
    assert list((tmp_path / "bench" / page.CACHE).glob("map-*.npz"))
    text, *figures = write_markdown(tmp_path / "bench", tmp_path / "text" / "digits.md")
    assert [figure.name for figure in figures] == ["digits-slope.svg"]  # two seeds of two methods: no ranks
    assert "(digits-slope.svg)" in text.read_text(encoding="utf-8")


@pytest.mark.parametrize("empty", [False, True])
def test_folder_without_results_is_refused(tmp_path: Path, empty: bool) -> None:
    folder = tmp_path / "none"
    if empty:
        folder.mkdir()
    with pytest.raises(InputError, match="nearfield bench --out"):
        write_report(folder, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def opening(results: BenchResults) -> Callable[[Path, str | None], BenchResults]:
    return lambda place, digest: results


def test_bench_without_a_finished_seed_is_refused(
    results: BenchResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = tuple(dataclasses.replace(method, seeds=()) for method in results.methods)
    monkeypatch.setattr(
        "nearfield.bench.read_results.open_results", opening(dataclasses.replace(results, methods=methods))
    )
    with pytest.raises(RunError, match="finished seed"):
        write_report(tmp_path, tmp_path / "report.html")


def test_other_data_gives_a_report_without_pictures(
    results: BenchResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nearfield.bench.read_results.open_results", opening(results)
    )  # whose digits are fewer than the real ones
    changed = dataclasses.replace(load("digits"), fingerprint="0" * 64)
    monkeypatch.setattr("nearfield.report.items.load", lambda name: changed)
    text = write_report(tmp_path, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "differs from the one that the bench was run on" in text
    assert "items" not in embedded(text)
    assert len(embedded(text)["board"]["parts"][0]["rows"]) == len(NAMES)


def test_lost_embeddings_give_a_report_without_pictures(results: BenchResults, dataset: Dataset, cache: Cache) -> None:
    text = render(dataclasses.replace(results, embeddings=lambda label: None), items_of(dataset), cache)
    assert "the run folders may be elsewhere" in text
    assert "gallery" not in embedded(text)


def test_one_method_with_one_seed_makes_a_report(dataset: Dataset, cache: Cache) -> None:
    alone = invent(dataset, ["triplet"], Shape(seeds=1, folds=1, trials=0, variants=()))
    found = embedded(render(alone, items_of(dataset), cache))
    (part,) = found["board"]["parts"]
    assert (part["critical"], part["rows"][0]["verdict"], part["rows"][0]["like_best"]) == (None, None, False)
    assert part["rows"][0]["scores"]["map@r"][1] is None
    assert (found["searches"], found["ledger"], found["papers"]) == ([], [], None)


def test_method_without_a_finished_seed_is_left_out_of_the_board(results: BenchResults, dataset: Dataset) -> None:
    methods = (dataclasses.replace(results.methods[0], seeds=(), variants={}), *results.methods[1:])
    found = embedded(render(dataclasses.replace(results, methods=methods), "no data here", Cache(None)))
    assert [row["method"] for row in found["board"]["parts"][0]["rows"]] == [1, 2, 3]
    assert found["methods"][0]["budget"] is None
    assert len(found["searches"]) == 4


def test_a_single_validation_class_is_pointed_out(results: BenchResults) -> None:
    seed = results.methods[0].seeds[0]
    narrow = dataclasses.replace(seed, folds=(dataclasses.replace(seed.folds[0], val_classes=1),))
    methods = (dataclasses.replace(results.methods[0], seeds=(narrow,)),)
    found = sentences.notices(dataclasses.replace(results, methods=methods))
    assert any("1 class of digits is held out, so every validation neighbour is correct" in line for line in found)
    assert "held out" not in " ".join(sentences.notices(results))


def test_every_report_shows_the_pitfalls_of_its_own_bench(results: BenchResults) -> None:
    few = dataclasses.replace(results, config={**results.config, "seeds": [0, 1], "trials": 1})
    clean = dataclasses.replace(results, config={**results.config, "seeds": [0, 1, 2, 3, 4], "trials": 8})
    page_text, text = render(few, "no data here", Cache(None)), markdown(few, board.boards(few), [], {})
    for shown in (page_text, text):
        assert "Before you trust these numbers" in shown
        assert "few-seeds: 2 seeds; run at least 5 seeds." in shown
        assert "untuned: 1 trial, the published setting; give every method the same number of trials" in shown
    assert "few-seeds" not in render(clean, "no data here", Cache(None))
    assert "few-seeds" not in markdown(clean, board.boards(clean), [], {})


# ---------------------------------------------------------------------------------------------------------------
# Pictures


def test_features_show_class_names_unless_pictures_are_named() -> None:
    pictured = small_data()
    features = dataclasses.replace(pictured, name="features", images=noise(120, 7))
    assert items_of(features).images is None
    with_pictures = items_of(features, pictured)
    assert with_pictures.images is pictured.images
    swapped = dataclasses.replace(pictured, labels=np.roll(pictured.labels, 1))
    with pytest.raises(InputError, match="row by row"):
        items_of(features, swapped)
    with pytest.raises(InputError, match="has 1,797"):
        items_of(features, load("digits"))
    with pytest.raises(InputError, match="holds features"):
        items_of(features, features)


def test_classes_may_be_numbered_otherwise() -> None:
    pictured = small_data()
    names = tuple(reversed(pictured.class_names))
    other = dataclasses.replace(
        pictured,
        labels=9 - pictured.labels,
        class_names=names,
        train_classes=np.arange(5, 10),
        test_classes=np.arange(5),
    )
    items = items_of(dataclasses.replace(pictured, images=noise(120, 7)), other)
    assert [items.class_names[label] for label in items.labels] == [
        pictured.class_names[c] for c in pictured.labels[60:]
    ]


def test_cub_features_meet_their_photographs(real_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from nearfield import data as datasets

    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path))
    datasets.add("cub", real_data / "CUB_200_2011", quick=True)
    source = real_data / "cub200_efficientnet_lite0_224.npz"
    features = load(str(source))
    items = open_items(features.summary(), "cub")
    paths = np.load(source)["paths"]
    assert [Path(file).name for file in items.files] == [Path(str(paths[row])).name for row in items.rows]
    sheets = make_sheets(items.images, items.rows[:40], limit=200_000)  # type: ignore[arg-type]
    assert sheets.side == SIDES[0]


def test_files_of_pictures_are_named(tmp_path: Path) -> None:
    for label in ("a'b\"c", "<b>", "d", "e", "f", "g"):
        (tmp_path / label).mkdir()
        for number in range(3):
            Image.new("RGB", (40, 20 + number), (9, 9, 9)).save(tmp_path / label / f"{number}.png")
    items = items_of(load(str(tmp_path), size=32))
    assert len(items.files) == len(items) == 9
    assert all(file.endswith(".png") for file in items.files)


@pytest.mark.parametrize("colour", [False, True])
def test_thumbnails_are_the_pictures(colour: bool) -> None:
    rng = np.random.default_rng(0)
    flat = rng.integers(0, 255, size=(400, 1, 1, 3) if colour else (400, 1, 1), dtype=np.uint8)
    images = np.broadcast_to(flat, (400, 20, 12, 3) if colour else (400, 20, 12)).copy()
    rows = rng.permutation(400)[:390]
    made = make_sheets(images, rows)
    assert made.side == SIDES[0]
    assert len(made.sheets) == 2
    for number in (0, 17, PER_SHEET - 1, PER_SHEET, 389):
        with Image.open(io.BytesIO(made.sheets[number // PER_SHEET])) as sheet:
            x, y = number % PER_SHEET % COLUMNS, number % PER_SHEET // COLUMNS
            middle = np.asarray(sheet.convert("RGB"))[y * 96 + 30 : y * 96 + 66, x * 96 + 30 : x * 96 + 66]
        expected = np.broadcast_to(images[rows[number], 0, 0], 3)
        assert np.abs(middle.astype(int).mean(axis=(0, 1)) - expected).max() < 16  # lossy, colours halved


def test_unchanged_thumbnails_are_encoded_once(
    results: BenchResults, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(*given: Any) -> Any:
        made.append(1)
        return make_sheets(*given)

    monkeypatch.setattr(thumbnails, "make_sheets", counted)
    first, again = (render(results, items_of(dataset), Cache(tmp_path)) for _ in range(2))
    assert first == again
    assert len(made) == 1
    other = dataclasses.replace(dataset, images=255 - np.asarray(dataset.images), fingerprint="0" * 64)
    assert render(results, items_of(other), Cache(tmp_path)) != first
    assert len(made) == 2


def test_sheets_become_smaller_when_there_is_no_room() -> None:
    noise = np.random.default_rng(0).integers(0, 255, size=(60, 96, 96, 3), dtype=np.uint8)
    sizes = {limit: make_sheets(noise, np.arange(60), limit) for limit in (10**9, 120_000, 1)}
    assert sizes[10**9].side == 96
    assert sizes[1].side == SIDES[-1]
    assert sum(map(len, sizes[120_000].sheets)) <= 120_000


# ---------------------------------------------------------------------------------------------------------------
# The parts


@given(hnp.arrays(st.sampled_from([np.uint8, np.int8, np.uint16, np.int32, np.uint32]), hnp.array_shapes(max_dims=2)))
def test_arrays_survive_packing(array: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(unpack(pack(array)), array.ravel())


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=6
    )
)
def test_text_cannot_leave_its_script(value: Any) -> None:
    text = script_json({"value": value, "nan": float("nan"), "tiny": 1.2345678e-9})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"value": value, "nan": None, "tiny": 1.23457e-9}


def test_shares_keep_nan() -> None:
    assert shares(np.array([0.0, 0.5, 1.0, np.nan])).tolist() == [0, 30_000, 60_000, 65_535]


def test_cache_computes_once_and_repairs_itself(tmp_path: Path) -> None:
    cache, calls = Cache(tmp_path), []

    def compute() -> dict[str, Any]:
        calls.append(1)
        return {"x": np.arange(3)}

    assert cache.get("kind", "key", compute)["x"].tolist() == cache.get("kind", "key", compute)["x"].tolist()
    assert len(calls) == 1
    (tmp_path / "kind-key.npz").write_bytes(b"half a file")
    assert cache.get("kind", "key", compute)["x"].tolist() == [0, 1, 2]
    assert len(calls) == 2
    assert digest(np.arange(3), "a") != digest(np.arange(3), "b") != digest(np.arange(4), "b")


@given(st.lists(st.integers(0, 6), min_size=1, max_size=80), st.integers(1, 90))
def test_sample_takes_the_same_share_of_every_class(labels: list[int], limit: int) -> None:
    array = np.array(labels)
    found = atlas.sample(array, limit)
    assert len(np.unique(found)) == len(found) == min(limit, len(labels))
    share = len(found) / len(labels)
    for label in set(labels):
        assert abs((array[found] == label).sum() - share * (array == label).sum()) <= 1


def test_maps_are_turned_alike_and_within_the_unit() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(50, 2))
    angle = 2.0
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ np.diag([1, -1])
    np.testing.assert_allclose(atlas.aligned(points @ turn, points), points, atol=1e-12)


def test_map_keeps_classes_together_and_is_repeatable() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 15)
    rows = (10 * rng.normal(size=(4, 24))[labels] + rng.normal(size=(60, 24))).astype(np.float32)
    first, again = (TSNE(rows, True) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    gaps = np.linalg.norm(first[:, None] - first, axis=2) + np.diag(np.full(60, np.inf))
    assert (labels[gaps.argmin(axis=1)] == labels).mean() > 0.95
    (unit,) = atlas.maps([rows], np.arange(60), True, Cache(None))
    assert 0 <= unit.min() < unit.max() <= 1


@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_chosen_queries_fit_with_all_their_neighbours(seed: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, size=40)
    found = []
    for method in range(2):
        near = np.stack([rng.permutation(np.delete(np.arange(40), q))[:3] for q in range(40)])
        scores = np.where(rng.random(40) < 0.1, np.nan, rng.random(40))
        found.append(gallery.Answers(method, scores, near))
    chosen = gallery.choose_queries(found, labels, limit)
    if limit >= 40:
        assert chosen.tolist() == list(range(40))
        return
    assert len(np.unique(chosen)) == len(chosen)
    assert len(gallery.images_shown(found, chosen)) <= max(limit, len(gallery.images_shown(found, chosen[:1])))
    assert len(gallery.images_shown(found, chosen)) <= limit or not len(chosen)
    assert not any(np.isnan(each.scores[chosen]).any() for each in found)


def test_hardest_and_most_disputed_queries_come_first() -> None:
    labels = np.arange(60) % 3
    one, other = np.full(60, 0.5), np.full(60, 0.5)
    one[7] = other[7] = 0.0  # hard for both
    one[11], other[11] = 1.0, 0.0  # disputed
    near = np.stack([(np.arange(60) + 1) % 60], axis=1)
    found = [gallery.Answers(0, one, near), gallery.Answers(1, other, near)]
    assert {7, 11} <= set(gallery.choose_queries(found, labels, 8).tolist())


def test_scores_by_class_leave_unscored_queries_out() -> None:
    labels = np.array([0, 0, 1, 1])
    found = gallery.Answers(0, np.array([0.5, np.nan, 0.25, 0.75]), np.array([[1], [2], [0], [2]]))
    precision, right = gallery.by_class(found, labels)
    assert precision.tolist() == [0.5, 0.5]
    assert right.tolist() == [1.0, 0.5]
    assert gallery.confusions(found, labels).tolist() == [[0, 1, 1], [1, 0, 1]]


def test_curves_are_bands_over_seeds(results: BenchResults) -> None:
    curve = tuning.curves(results)[1]
    method = results.methods[1]
    values = np.array([[[s["map@r"] for _, s in fold.val] for fold in seed.folds] for seed in method.seeds]).mean(
        axis=1
    )
    mean, low, high = curve["val"]["bands"]["map@r"]
    np.testing.assert_allclose(mean, values.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(low, values.min(axis=0), atol=1e-5)
    np.testing.assert_allclose(high, values.max(axis=0), atol=1e-5)
    assert curve["oracle"]["steps"] == curve["val"]["steps"]


def test_prefixes_are_scored_for_every_method(data: dict[str, Any], results: BenchResults) -> None:
    """Four networks of 8 dims side by side: each is cut to its first dims, and all are compared."""
    labels = unpack(data["items"]["labels"])
    assert {one["method"] for one in data["prefixes"]} == set(range(len(results.methods)))
    for one in data["prefixes"]:
        rows = results.embeddings(results.methods[one["method"]].label)
        assert rows is not None
        assert (one["dims"], one["bytes"]) == ([32], [128])
        unit = rows.astype(np.float32).reshape(len(rows), 4, 8)
        unit = (unit / np.linalg.norm(unit, axis=2, keepdims=True)).reshape(len(rows), 32)
        expected = retrieval_metrics(unit, labels, metrics=("recall", "map_at_r"))
        assert one["scores"]["map@r"] == [pytest.approx(expected["map@r"], abs=1e-5)]


def test_prefixes_of_one_network_are_its_halves(cache: Cache) -> None:
    labels = np.repeat(np.arange(6), 5)
    rows = (np.random.default_rng(0).standard_normal((6, 64))[labels] + noise(30, 64)).astype(np.float16)
    found = prefixes.prefix_scores(3, rows, 1, labels, cache)
    assert (found["method"], found["dims"], found["bytes"]) == (3, [8, 16, 32, 64], [32, 64, 128, 256])
    expected = prefix_metrics(rows.astype(np.float32), labels, (8, 16, 32, 64), metrics=("recall", "map_at_r"))
    for key in ("recall@1", "map@r"):
        assert found["scores"][key] == pytest.approx([scores[key] for scores in expected.values()], abs=1e-5)
    assert prefixes.prefix_scores(3, rows, 1, labels, cache) == found


def test_importance_is_spearmans(results: BenchResults) -> None:
    trials = [trial for trial in results.methods[0].trials if trial.value is not None]
    found = tuning.importance(trials, "optimizer.lr")
    rates, values = [t.params["optimizer.lr"] for t in trials], [t.value for t in trials]
    places = [[sorted(column).index(one) for one in column] for column in (rates, values)]  # without ties
    expected = abs(np.corrcoef(np.array(places))[0, 1])
    assert found == pytest.approx(expected)
    assert tuning.importance(trials[:3], "optimizer.lr") is None
    same = [dataclasses.replace(trial, params={"x": 1.0, "word": "a"}) for trial in trials]
    assert tuning.importance(same, "x") is None
    assert tuning.importance(same, "word") is None
    assert tuning.chance_level(8) == pytest.approx(0.707, abs=1e-3)
    assert tuning.chance_level(3) is None


def test_log_scales_are_those_of_the_search(results: BenchResults) -> None:
    (search,) = [s for s in tuning.searches(results) if results.methods[s["method"]].name == "multi_similarity"]
    logs = {param["key"]: param["log"] for param in search["params"]}
    assert logs == {
        "method.params.alpha": True, "method.params.beta": True, "method.params.eps": False,
        "method.params.lam": False, "optimizer.lr": True,
    }  # fmt: skip


def test_published_numbers_are_those_of_the_tables() -> None:
    inception, resnet, separated, concatenated = published.sources()
    assert (len(inception.rows), len(resnet.rows), len(separated.rows)) == (12, 11, 15)
    assert inception.rows["proxy_softmax"]["recall@1"] == (0.583, None)
    assert resnet.rows["margin"]["nmi"] == pytest.approx((0.673, None))
    assert separated.rows["arcface"]["map@r"] == pytest.approx((0.214, 0.001))
    assert concatenated.rows["drml"]["recall@1"] == pytest.approx((0.665, 0.001))
    every = [source.rows for source in published.sources()]
    assert {part for rows in every for name in rows for part in name.split("/")} <= set(losses.names())
    assert all(0 < value < 1 for rows in every for scores in rows.values() for value, _ in scores.values())


def test_a_method_stands_beside_the_row_of_its_own_base() -> None:
    """DRML with CosFace is not DRML-PA, and DREML with plain logits is not the DREML of Unbiased Evaluation."""
    _, _, separated, _ = published.sources()
    assert published.row_name("drml", {}) == published.row_name("drml", {"method.params.base": "proxy_anchor"})
    cosface = published.row_name("drml", {"method.params.base": "cosface"})
    assert separated.rows[cosface]["map@r"] == pytest.approx((0.223, 0.003))
    assert separated.rows["drml"]["map@r"] == pytest.approx((0.212, 0.002))
    assert not any(published.row_name("dreml", {"method.params.base": "logits"}) in s.rows for s in published.sources())


def test_papers_stand_beside_cub_only(results: BenchResults) -> None:
    boards = board.boards(results)
    assert published.papers(results, boards) is None
    cub = dataclasses.replace(results, data={**results.data, "images": 11_788, "classes": 200})
    found = published.papers(cub, boards)
    assert found is not None
    assert found["ours"].startswith("conv, 32 dims")
    assert [(table["network"], len(table["rows"])) for table in found["tables"]] == [
        ("BN-Inception, 128 dims", 3),
        ("BN-Inception, 4 x 128 dims", 3),
    ]
    assert all(tau is None or -1 <= tau <= 1 for table in found["tables"] for tau in table["taus"].values())


def test_pair_weights_are_those_of_the_losses(results: BenchResults, dataset: Dataset, cache: Cache) -> None:
    import torch

    from nearfield.pairs import pair_weights

    labels = items_of(dataset).labels
    batch = choose_batch(labels)
    assert np.bincount(labels[batch]).tolist() == [6] * 5
    rows = results.embeddings("contrastive")
    assert rows is not None
    found = pair_weight_section(results, rows[batch], labels[batch], cache)
    assert [results.methods[one["method"]].name for one in found] == ["multi_similarity", "contrastive", "histogram"]
    lam = results.methods[1].params.get("method.params.lam", 0.5)
    loss = pair_loss("contrastive", lam=lam)
    expected = pair_weights(loss, torch.from_numpy(rows[batch].astype(np.float64)), torch.from_numpy(labels[batch]))
    heat = unpack(found[1]["heat"]).reshape(30, 30) / 127 * found[1]["top"]
    np.testing.assert_allclose(heat, expected.numpy(), atol=found[1]["top"] / 120)
    assert found[1]["measured"] == "S"
    assert all(len(curve) == len(found[1]["similarity"]) for kind in found[1]["curves"].values() for curve in kind)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"methods": [{"name": "triplet", "params": {"mining": 'semi\'hard "x"', "margin": 0.25}}], "seeds": [7]},
        {
            "run": {
                "optimizer": {"lr": 1e-5},
                "select_by": "recall@1",
                "method": {"name": "fastap", "params": {"bins": 9}},
            }
        },
    ],
)
def test_command_runs_the_same_bench(values: dict[str, Any]) -> None:
    config = build_config(BenchConfig, values)
    program, verb, *rest = shlex.split(command(config))
    assert (program, verb) == ("nearfield", "bench")
    assert set(rest[::2]) <= {"--set"}
    assert build_config(BenchConfig, merge({}, rest[1::2])).digest() == config.digest()


def test_finding_says_what_the_verdicts_allow(results: BenchResults) -> None:
    lines = sentences.finding(standings(results))
    assert lines[0].startswith("multi_similarity has the highest mean MAP@R")
    assert lines[1] == "Level seeds: multi_similarity is significantly better than every other method."
    assert lines[-1].endswith("(untrained network); every method exceeds it.")
    alone = dataclasses.replace(
        results, methods=tuple(dataclasses.replace(m, seeds=m.seeds[:1]) for m in results.methods)
    )
    assert "no difference can be tested" in sentences.finding(standings(alone))[1]


def test_the_page_calls_nobody_best_or_better_below_an_untrained_baseline(results: BenchResults) -> None:
    strong = dataclasses.replace(results, baselines={"raw pixels": {"map@r": 0.99}})
    found = board.boards(strong)
    for part in board.board(strong, found)["parts"][:1]:
        assert not any(row["best"] or row["like_best"] for row in part["rows"])
        assert all(row["below_baseline"] for row in part["rows"])
        assert not any("better" in row["verdict"]["text"] for row in part["rows"] if row["verdict"])
    lines = sentences.finding(found["separated"])
    assert lines[-1].startswith("The best untrained baseline scores 99.00 % (raw pixels); no method exceeds it")
    assert "is significantly better" not in " ".join(lines)
    assert not any("★" in line for line in _section(markdown(strong, found, [], {}), "## Leaderboard, separated"))


# ---------------------------------------------------------------------------------------------------------------
# As text


def test_text_says_what_the_page_says(results: BenchResults) -> None:
    boards = board.boards(results)
    text = markdown(results, boards, ledger(results), {"ranks": "r.svg"})
    for found in boards.values():
        for one in found.standings:
            shown = (percent(one.scores[key]) for key in ("map@r", "recall@1", "nmi"))
            lines = _section(text, f"## Leaderboard, {found.part}")
            (row,) = [line for line in lines if line.startswith("|") and f" {one.label} " in line]
            assert all(f" {value} |" in row for value in shown)
    for entry in ledger(results):
        assert f"**{entry.name}**" in text
    for line in sentences.finding(boards["separated"]):
        assert f"- {line}" in text
    for line in board.unequal(results):
        assert text.count(line) == 1
    assert results.digest in text
    assert "![Mean ranks and the critical difference](r.svg)" in text
    assert "Published numbers" not in text


def test_figures_lie_beside_the_text(results: BenchResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfield.bench.read_results.open_results", opening(results))
    text, *figures = write_markdown(tmp_path, tmp_path / "deep" / "digits.md")
    assert [figure.name for figure in figures] == ["digits-ranks.svg", "digits-slope.svg"]
    assert all(f"({figure.name})" in text.read_text(encoding="utf-8") for figure in figures)
    assert all(figure.read_text(encoding="utf-8").startswith("<svg") for figure in figures)


def test_text_stands_beside_the_papers(results: BenchResults) -> None:
    cub = dataclasses.replace(results, data={**results.data, "images": 11_788, "classes": 200})
    text = markdown(cub, board.boards(cub), [], {})
    known = published.sources()[2].rows
    label = next(method.label for method in cub.methods if method.name in known)
    (row,) = [line for line in _section(text, "BN-Inception, 128 dims") if line.startswith(f"| {label} ")]
    value, half = known[label]["map@r"]
    assert f"{100 * value:.1f} ± {100 * half:.1f}" in row  # type: ignore[operator]


def _section(text: str, heading: str) -> list[str]:
    return text.split(heading)[1].split("\n##")[0].splitlines()


def test_names_are_no_html_in_text(results: BenchResults) -> None:
    evil = "<img src=x onerror=alert(1)>"
    renamed = dataclasses.replace(results, data={**results.data, "name": evil}, missing=(evil,))
    text = markdown(renamed, board.boards(renamed), [], {})
    assert "&lt;img" in text
    assert evil not in re.sub(r"```toml.*?```", "", text, flags=re.S)


def test_text_lists_what_is_missing(results: BenchResults) -> None:
    part = dataclasses.replace(results, missing=("fastap: seed 3",))
    assert "Not finished:\n\n- fastap: seed 3\n" in markdown(part, board.boards(part), [], {})
