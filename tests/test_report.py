"""The report of a bench: complete, true to the results, safe to open anywhere; and the geometry of its chart."""

from __future__ import annotations

import base64
import dataclasses
import io
import re
import shlex
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import load_file

from nearfield import report
from nearfield.bench import COLUMNS, Standing, leaderboard, plan, run_bench
from nearfield.charts import Series, line_chart, shorten, spread, ticks
from nearfield.config import BenchConfig, build_config, merge
from nearfield.data import load
from nearfield.errors import InputError, RunError
from nearfield.report import choose_queries, command, write_report
from nearfield.store import Store
from nearfield.training import train

VALUES: dict[str, Any] = {
    "methods": [{"name": "multi_similarity"}, {"name": "proxy_softmax", "params": {"temperature": 0.1}}],
    "seeds": [0, 1],
    "run": {
        "data": {"name": "digits", "val_fraction": 0.4},
        "steps": 4,
        "eval_every": 2,
        "sampler": {"batch_size": 12},
    },
}
LABELS = ["multi_similarity", "proxy_softmax(temperature=0.1)"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    config = build_config(BenchConfig, VALUES)
    for job in plan(config, folder):  # here rather than in processes, which would each wait for torch to load
        train(job.config, job.folder)
    run_bench(config, folder, jobs=1, watch=lambda job, step, latest: None)
    return folder


@pytest.fixture(scope="module")
def html(bench: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("report") / "report.html"
    assert write_report(bench, out) == out
    return out.read_text(encoding="utf-8")


class Page(HTMLParser):
    """The parts of a report that the tests look at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []  # cells of the leaderboard as text
        self.bold: list[str] = []  # means printed as best
        self.queries: list[dict[str, Any]] = []
        self.words: list[str] = []
        self._open: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        kind = values.get("class") or ""
        self.tags.append((tag, values))
        if tag not in {"img", "meta", "input", "line", "path", "circle"}:
            self._open.append((tag, kind))
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
        elif tag == "article":
            self.queries.append({"name": "", "uri": "", "strips": []})
        elif kind.startswith("strip"):
            self.queries[-1]["strips"].append([])
        elif tag == "li" and self.queries and self._within("article"):
            self.queries[-1]["strips"][-1].append({"name": "", "mark": ""})
        elif tag == "figure" and self._within("li"):
            self.queries[-1]["strips"][-1][-1]["kind"] = kind
        elif tag == "img":
            at = self.queries[-1]["strips"][-1][-1] if self._within("li") else self.queries[-1]
            at["uri"] = values["src"]

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        tag, kind = self._open[-1] if self._open else ("", "")
        if self._within("tr"):
            self.rows[-1][-1:] = [(cell + data).removesuffix("\n") for cell in self.rows[-1][-1:]]
            if kind == "best":
                self.bold.append(data)
        elif self._within("figcaption") and kind != "category":
            at = self.queries[-1]["strips"][-1][-1] if self._within("li") else self.queries[-1]
            at["mark" if tag == "b" and self._within("li") else "name"] += data.strip()

    def _within(self, tag: str) -> bool:
        return any(name == tag for name, _ in self._open)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def copied(bench: Path, to: Path, **changes: Any) -> Path:
    """A copy of the bench whose configuration has other values."""
    shutil.copytree(bench, to)
    config = build_config(BenchConfig, {**VALUES, **changes})
    Store(to / "results.sqlite").set_meta(config=config.model_dump(mode="json"))
    return to


def standing(method: str, mean: float, half: float | None) -> Standing:
    return Standing(method, 3, dict.fromkeys(COLUMNS, mean), dict.fromkeys(COLUMNS, half), 1.0)


# ---------------------------------------------------------------------------------------------------------------
# The page


def test_nothing_is_loaded_from_elsewhere(html: str) -> None:
    assert "http:" not in html
    assert "https:" not in html
    page = Page(html)
    assert not [tag for tag, _ in page.tags if tag in {"link", "iframe", "object", "embed", "base"}]
    for tag, values in page.tags:
        assert not (tag == "script" and values)
        assert "href" not in values
        assert tag != "img" or (values["src"] or "").startswith("data:image/png;base64,")
    assert "url(" not in html
    assert "@import" not in html


def test_leaderboard_holds_every_mean_and_interval(bench: Path, html: str) -> None:
    store = Store(bench / "results.sqlite")
    standings = leaderboard(store, build_config(BenchConfig, VALUES))
    head, *rows, untrained, pixels = Page(html).rows
    assert head[0] == "Method"
    assert {row[0] for row in rows} == set(LABELS)
    for row, s in zip(rows, standings, strict=True):
        expected = [f"{100 * s.mean[c]:.1f} ± {100 * (s.half_width[c] or 0):.1f}" for c in COLUMNS]
        assert row[1:] == [*expected, "2", f"{s.train_seconds:.0f}"]
    floor = store.meta()["pixels"]
    assert (untrained[0], pixels[0]) == ("untrained network", "raw pixels")
    assert untrained[1] == f"{100 * store.meta()['untrained']['recall@1']:.1f}"
    assert pixels[1:8] == [f"{100 * floor[c]:.1f}" if c in floor else "–" for c in COLUMNS]


def test_best_means_are_bold(bench: Path, html: str) -> None:
    store = Store(bench / "results.sqlite")
    standings = leaderboard(store, build_config(BenchConfig, VALUES))
    means = [s.mean for s in standings] + [store.meta()["pixels"], store.meta()["untrained"]]
    highest = {f"{100 * max(m[c] for m in means if c in m):.1f}" for c in COLUMNS}
    assert set(Page(html).bold) == highest


def test_curves_are_drawn_for_every_method(html: str) -> None:
    for size in ("wide", "narrow"):
        (drawing,) = re.findall(rf'<svg class="{size}".*?</svg>', html, re.S)
        assert len(re.findall(r'<path class="line" d="M[\d.,]+L[\d.,]+"', drawing)) == 2  # two evaluations each
        assert len(re.findall(r'<path class="band', drawing)) == 2
        assert re.findall(r"<title>(.*?)</title>", drawing) == [row[0] for row in Page(html).rows[1:3]]


def test_pictures_are_the_test_images(html: str) -> None:
    dataset = load("digits")
    known = {image.tobytes() for image in dataset.images[dataset.indices_of(dataset.test_classes)]}
    uris = [values["src"] or "" for tag, values in Page(html).tags if tag == "img"]
    assert len(uris) == 12 * (1 + 2 * 5)
    for uri in uris:
        with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as picture:
            assert picture.format == "PNG"
            assert np.asarray(picture).tobytes() in known


def test_neighbours_and_marks_agree_with_the_embeddings(bench: Path, html: str) -> None:
    dataset, store = load("digits"), Store(bench / "results.sqlite")
    labels = dataset.labels[dataset.indices_of(dataset.test_classes)]
    order = [row[0] for row in Page(html).rows[1:3]]
    runs = {row["method"]: row for row in store.runs() if row["seed"] == 0}
    chosen_runs = [runs[name.partition("(")[0]] for name in order]
    scores = np.stack([store.query_scores(run["run"], "map@r") for run in chosen_runs])
    queries = [q for group in choose_queries(scores.mean(0), labels, 4).values() for q in group]
    shown = Page(html).queries
    assert len(shown) == len(queries) == 12
    for number, run in enumerate(chosen_runs):
        found = load_file(bench / run["folder"] / "test.safetensors")["embeddings"].astype(np.float64)
        unit = found / np.linalg.norm(found, axis=1, keepdims=True)
        for query, article in zip(queries, shown, strict=True):
            assert article["name"] == f"{labels[query]}"
            similarity = unit @ unit[query]
            similarity[query] = -np.inf
            expected = labels[np.argsort(-similarity, kind="stable")[:5]]
            strip = article["strips"][number]
            assert [each["name"] for each in strip] == [str(label) for label in expected]
            for each in strip:
                right = each["name"] == article["name"]
                assert (each["kind"], each["mark"]) == (("right", "✓ right") if right else ("wrong", "✗ wrong"))


def test_provenance_names_what_the_numbers_depend_on(bench: Path, html: str) -> None:
    text, config = Page(html).text, build_config(BenchConfig, VALUES)
    facts = Store(bench / "results.sqlite").runs()[0]["environment"]
    for fact in ("data", "split", "torch", "numpy", "python"):
        assert facts[fact] in text
    assert config.digest() in text
    assert command(config) in text
    assert "Resolved configuration" in text
    assert 'select_by = "map@r"' in text


def test_controls_can_be_reached_by_keyboard(html: str) -> None:
    tags = Page(html).tags
    assert sum(tag == "button" for tag, _ in tags) == 1 + len(COLUMNS) + 2
    radios = [values["id"] for tag, values in tags if tag == "input" and values["type"] == "radio"]
    assert radios == ["show-0", "show-1", "show-all"]
    assert [values.get("aria-sort") for tag, values in tags if tag == "th"].count("descending") == 1


def test_same_bench_gives_the_same_bytes(bench: Path, html: str, tmp_path: Path) -> None:
    again = write_report(bench, tmp_path / "deep" / "again.html")
    assert again.read_bytes() == html.encode()
    assert [path.name for path in again.parent.iterdir()] == ["again.html"]
    assert len(html) < 2_000_000


def test_names_are_shown_as_text(bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = '"><script>alert(1)</script>'
    dataset = load("digits")
    names = tuple(evil for _ in dataset.class_names)
    hostile = dataclasses.replace(dataset, class_names=names, category_names=("<b>&amp;</b>",))
    monkeypatch.setattr(report, "load", lambda name: hostile)
    text = write_report(bench, tmp_path / "report.html").read_text(encoding="utf-8")
    assert evil not in text
    assert text.count("<script") == 1
    page = Page(text)
    assert {query["name"] for query in page.queries} == {evil}
    assert "<b>&amp;</b>" in page.text


# ---------------------------------------------------------------------------------------------------------------
# Benches that are not as they should be


@pytest.mark.parametrize("empty", [False, True])
def test_folder_without_results_is_refused(tmp_path: Path, empty: bool) -> None:
    folder = tmp_path / "none"
    if empty:
        folder.mkdir()
    with pytest.raises(InputError, match="nearfield bench --out"):
        write_report(folder, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    assert not (folder / "results.sqlite").exists()


def test_results_without_a_bench_are_refused(tmp_path: Path) -> None:
    Store(tmp_path / "results.sqlite")
    with pytest.raises(InputError, match="holds no results"):
        write_report(tmp_path, tmp_path / "report.html")


def test_corrupt_results_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(RunError, match=r"results\.sqlite"):
        write_report(tmp_path, tmp_path / "report.html")


def test_bench_without_a_finished_run_is_refused(bench: Path, tmp_path: Path) -> None:
    other = copied(bench, tmp_path / "other", run={**VALUES["run"], "steps": 5})
    with pytest.raises(RunError, match="no run of the bench"):
        write_report(other, tmp_path / "report.html")


def test_unfinished_runs_are_listed_and_not_counted(bench: Path, tmp_path: Path) -> None:
    other = copied(bench, tmp_path / "other", seeds=[0, 1, 2])
    page = Page(write_report(other, tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "Not finished and not counted" in page.text
    for name in LABELS:
        assert f"{name}, seed 2: not started" in page.text
    assert [row[8] for row in page.rows[1:3]] == ["2", "2"]


def test_one_method_with_one_seed_makes_a_report(bench: Path, tmp_path: Path) -> None:
    other = copied(bench, tmp_path / "other", seeds=[1], methods=VALUES["methods"][:1])
    page = Page(write_report(other, tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "one seed gives no interval" in page.text
    assert all("±" not in cell for row in page.rows for cell in row)
    assert [len(query["strips"]) for query in page.queries] == [1] * 12


def test_other_data_gives_a_report_without_pictures(
    bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = dataclasses.replace(load("digits"), fingerprint="0" * 64)
    monkeypatch.setattr(report, "load", lambda name: changed)
    page = Page(write_report(bench, tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "is not what the runs were made on" in page.text
    assert page.queries == []
    assert len(page.rows) == 5


def test_lost_embeddings_give_a_report_without_pictures(bench: Path, tmp_path: Path) -> None:
    other = copied(bench, tmp_path / "other")
    shutil.rmtree(other / "runs")
    page = Page(write_report(other, tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "cannot read the test embeddings" in page.text
    assert page.queries == []


def test_a_single_validation_class_is_pointed_out(html: str) -> None:
    assert "single validation class" not in html
    assert "single validation class" in report._notices([], val_classes=1)[0]


# ---------------------------------------------------------------------------------------------------------------
# The parts


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        ([standing("a", 0.5, 0.02), standing("b", 0.47, 0.02), standing("c", 0.2, 0.01)], "overlaps that of b, so no"),
        ([standing("a", 0.5, 0.01), standing("b", 0.4, 0.01)], "overlaps no other. Raw pixels reach 10.0 %, without"),
        ([standing("a", 0.5, None), standing("b", 0.4, None)], "one seed gives no interval"),
        ([standing("a", 0.05, 0.01)], "a has the highest mean test MAP@R, 5.0 ± 1.0 %. Raw pixels reach 10.0 %, which"),
    ],
)
def test_finding_says_what_the_intervals_allow(standings: list[Standing], expected: str) -> None:
    assert expected in report._finding(standings, {"map@r": 0.1})


@pytest.mark.parametrize(
    "values",
    [
        {},
        VALUES,
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


@given(
    st.lists(st.tuples(st.integers(0, 6), st.one_of(st.just(np.nan), st.integers(0, 8))), max_size=60).filter(
        lambda found: any(score == score for _, score in found)
    ),
    st.integers(1, 5),
)
def test_chosen_queries_are_extreme_and_varied(found: list[tuple[int, float]], count: int) -> None:
    labels = np.array([label for label, _ in found])
    scores = np.array([score for _, score in found], dtype=np.float32)
    groups = choose_queries(scores, labels, count)
    assert list(groups) == ["Worst", "Median", "Best"]
    chosen = [query for group in groups.values() for query in group]
    assert len(set(chosen)) == len(chosen) == min(3 * count, int((~np.isnan(scores)).sum()))
    assert not np.isnan(scores[chosen]).any()
    worst = groups["Worst"]
    assert scores[worst[0]] == np.nanmin(scores)
    assert len(set(labels[worst])) == min(len(worst), len(set(labels[~np.isnan(scores)])))
    for query in worst:  # nothing of its class that was left out is worse
        rest = [q for q in np.flatnonzero(labels == labels[query]).tolist() if q not in worst]
        assert not (scores[rest] < scores[query]).any()


@given(st.floats(0, 100), st.floats(1e-3, 100), st.integers(2, 8))
def test_ticks_cover_the_range_evenly(low: float, span: float, count: int) -> None:
    found = ticks(low, low + span, count)
    step = found[1] - found[0]
    assert found[0] <= low + 1e-6
    assert found[-1] >= low + span - 1e-6
    assert len(found) <= count + 2
    assert all(b - a == pytest.approx(step) for a, b in pairwise(found))


@given(st.lists(st.floats(20, 300), min_size=1, max_size=12))
def test_labels_keep_their_order_and_distance(wanted: list[float]) -> None:
    placed = spread(wanted, 18, 20, 300)
    ordered = [placed[i] for i in sorted(range(len(wanted)), key=lambda i: wanted[i])]
    assert all(b - a >= 18 - 0.11 for a, b in pairwise(ordered))
    assert min(placed) >= 20 - 0.11
    assert max(placed) <= 300 + 0.11


def test_a_single_evaluation_and_a_flat_line_can_be_drawn() -> None:
    drawn = line_chart(
        [Series("flat", [(50, 100.0, 100.0, 100.0)]), Series("b" * 80, [(50, 100.0, 100.0, 100.0)])], 360, 300
    )
    assert [tick["text"] for tick in drawn["y_ticks"]][-1] == "100"
    assert drawn["lines"][0]["dots"] == [drawn["lines"][0]["end"]]
    assert drawn["left"] + 100 < drawn["right"] < 360
    assert len(drawn["lines"][1]["short"]) < 25
    assert all(0 <= tick["at"] <= 360 for tick in drawn["x_ticks"])


def test_labels_of_many_methods_fit_into_the_chart() -> None:
    drawn = line_chart(
        [Series(f"method {i}", [(50, 1.0, 2.0, 3.0), (100, 1.0, 2.0, 3.0)]) for i in range(25)], 360, 300
    )
    places = [line["label_at"] for line in drawn["lines"]]
    assert drawn["top"] <= min(places) < max(places) <= drawn["floor"] < drawn["height"]


def test_shortened_names_keep_both_ends() -> None:
    assert shorten("fastap", 6) == "fastap"
    assert shorten("multi_similarity(beta=50)", 12) == "multi_…a=50)"
