"""The report in a real browser: Chromium without a window, driven by Playwright, the page opened from disk.

Skipped where either is missing: `pip install playwright`, and Debian's package `chromium` or CHROMIUM=path.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from narrow import pixels_of
from report_bench import Shape, invent

from nearfield.data import Dataset, load
from nearfield.report import atlas, pair_weights, render
from nearfield.report.cache import Cache
from nearfield.report.items import Items, items_of

pytestmark = pytest.mark.programs

sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
if not CHROMIUM.exists():
    pytest.skip(f"there is no Chromium at {CHROMIUM}; install it or set CHROMIUM", allow_module_level=True)

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
NAMES = ["multi_similarity", "contrastive", "proxy_softmax", "histogram", "triplet", "fastap", "arcface", "binomial"]
EVIL = "<script>alert(1)</script>\"'&amp;"
FOLDER = '/data/it\'s "quoted"/<b>birds.npz'
KEEP_COPIES = """Object.defineProperty(navigator, "clipboard", {
  value: { writeText: async (text) => { window.copied = text; } }
});"""
DRAWN = "canvas => canvas.toDataURL()"


def pictures() -> Dataset:
    """Glyphs of twelve test classes in three categories, the first with a hostile name."""
    glyphs = load("glyphs")
    chosen = np.concatenate([np.flatnonzero(glyphs.class_category == category)[:8] for category in (0, 4, 5)])
    rows = np.concatenate([np.flatnonzero(glyphs.labels == label) for label in chosen])
    names = [glyphs.class_names[label] for label in chosen]
    names[4] = EVIL
    return dataclasses.replace(
        glyphs,
        images=glyphs.images[rows],
        labels=np.repeat(np.arange(24), 10),
        class_names=tuple(names),
        class_category=np.repeat(np.arange(3), 8),
        category_names=("Latin", "Greek", "Cyrillic"),
        train_classes=np.array([i for i in range(24) if i % 8 < 4]),
        test_classes=np.array([i for i in range(24) if i % 8 >= 4]),
    )


@pytest.fixture(scope="module", autouse=True)
def hurry() -> Iterator[None]:
    """Maps that are no maps, and few points of few curves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atlas, "tsne", lambda rows, cosine: rows[:, :2].astype(np.float64) - rows[:, :2].mean())
        patch.setattr(pair_weights, "POINTS", 7)
        patch.setattr(pair_weights, "TRIALS", 1)
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset = pictures()
    results = invent(dataset, NAMES, Shape(seeds=4, trials=7))
    results = dataclasses.replace(results, data={**results.data, "name": FOLDER, "images": 11_788, "classes": 200})
    out = tmp_path_factory.mktemp("page") / "report.html"
    out.write_text(render(results, with_files(items_of(dataset)), Cache(None)), encoding="utf-8")
    return out


def with_files(items: Items) -> Items:
    return dataclasses.replace(items, files=tuple(f"{EVIL}/{row}.png" for row in items.rows))


@pytest.fixture(scope="module")
def data(path: Path) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    return json.loads(text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as tool:
        found = tool.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield found
        found.close()


@pytest.fixture
def problems() -> list[str]:
    """What a page must not do: log an error, ask the network, open a dialog."""
    return []


def opened(browser: Any, path: Path, problems: list[str], **options: Any) -> Any:
    """The page at `path`; whatever goes wrong while it is open is added to `problems`."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **options})
    context.set_default_timeout(20_000)

    def refuse(route: Any) -> None:
        problems.append(route.request.url)
        route.abort()

    def listen(message: Any) -> None:
        if message.type in ("error", "warning"):
            problems.append(message.text)

    def dismiss(dialog: Any) -> None:
        problems.append(dialog.message)
        dialog.dismiss()

    context.route(re.compile(r"^(?!file:|blob:|data:)"), refuse)
    page = context.new_page()
    page.on("console", listen)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", dismiss)
    page.add_init_script(KEEP_COPIES)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # sizes are known
    return page


@pytest.fixture
def page(browser: Any, path: Path, problems: list[str]) -> Iterator[Any]:
    found = opened(browser, path, problems)
    yield found
    found.context.close()
    assert problems == []


def column(page: Any, number: int) -> list[str]:
    cells = page.locator(f"#board tbody tr > :nth-child({number})").all_inner_texts()
    return [cell.split("±")[0].split("\n")[0].strip() for cell in cells]


def names(page: Any) -> list[str]:
    return list(page.locator("#board tbody .label").all_inner_texts())


def head(page: Any, text: str) -> Any:
    return page.locator("#board thead th", has_text=re.compile(f"^{re.escape(text)}$"))


# ---------------------------------------------------------------------------------------------------------------
# Leaderboard


def test_every_section_is_there(page: Any) -> None:
    wanted = ["Leaderboard", "Curves", "Prefixes", "Search", "Bias", "Atlas", "Gallery", "Pair weights", "Provenance"]
    assert page.locator("#nav a").all_inner_texts() == wanted
    assert page.title().startswith(f"{len(NAMES)} methods on <b>birds.npz")
    assert page.locator("#board tbody tr").count() == len(NAMES)
    assert page.locator("#board tfoot tr").count() == 2
    assert page.locator("#critical svg .dot").count() == len(NAMES)
    assert page.locator("#papers-table tbody tr").count() == 6


def test_sorting_by_a_head(page: Any, data: Any) -> None:
    assert head(page, "MAP@R").get_attribute("aria-sort") == "descending"
    values = [float(cell) for cell in column(page, 4)]
    assert values == sorted(values, reverse=True)
    head(page, "R@1").locator("button").press("Enter")
    place = 4 + [metric["key"] for metric in data["metrics"]].index("recall@1")
    values = [float(cell) for cell in column(page, place)]
    assert values == sorted(values, reverse=True)
    assert head(page, "R@1").get_attribute("aria-sort") == "descending"
    assert head(page, "MAP@R").get_attribute("aria-sort") is None
    head(page, "R@1").locator("button").click()
    assert [float(cell) for cell in column(page, place)] == sorted(values)
    head(page, "Method").locator("button").click()
    assert names(page) == sorted(NAMES)


def test_decimals_are_as_many_as_the_intervals_are_worth(page: Any, data: Any) -> None:
    for place, metric in enumerate(data["metrics"], start=4):
        rows = [row for part in data["board"]["parts"] for row in part["rows"]]
        halves = sorted(row["scores"][metric["key"]][1] for row in rows)
        decimals = 2 if halves[len(halves) // 2] < 0.001 else 1
        assert {len(cell.split(".")[1]) for cell in column(page, place)} == {decimals}


def test_filter_and_details(page: Any, data: Any) -> None:
    page.get_by_label("Filter").fill("soft")
    assert names(page) == ["proxy_softmax"]
    page.locator("#board .label").press("Enter")
    detail = page.locator("#board .detail").inner_text()
    assert "Budget used" in detail
    assert "complete and" in detail
    page.get_by_label("Filter").fill("no such method")
    assert "No method matches" in page.locator("#board tbody").inner_text()


def test_parts_and_verdicts(page: Any, data: Any) -> None:
    before = column(page, 4)
    alike = [data["methods"][row["method"]]["label"] for row in data["board"]["parts"][0]["rows"] if row["like_best"]]
    assert sorted(page.locator("#board tr.alike .label").all_inner_texts()) == sorted(alike)
    page.get_by_label("Concatenated", exact=True).check(force=True)
    assert [float(cell) for cell in column(page, 4)] > [float(cell) for cell in before]
    assert page.locator("#board .tag.warn").all_inner_texts() == ["≠ unequal"]


def test_methods_below_a_baseline_are_tagged(browser: Any, tmp_path: Path, problems: list[str]) -> None:
    results = invent(pictures(), NAMES[:3], Shape(seeds=3, trials=0))
    second = sorted(np.mean([seed.separated["map@r"] for seed in method.seeds]) for method in results.methods)[1]
    out = tmp_path / "below.html"
    results = dataclasses.replace(results, baselines={"raw pixels": {"map@r": float(second) + 0.01}})
    out.write_text(render(results, "no data here", Cache(None)), encoding="utf-8")
    page = opened(browser, out, problems)
    assert page.locator("#board tbody .tag.warn").all_inner_texts() == ["below baseline"] * 2
    page.context.close()
    assert problems == []


def test_copies_hold_what_is_in_sight(page: Any, data: Any) -> None:
    page.get_by_label("Filter").fill("similarity")
    page.get_by_role("button", name="CSV").click()
    page.wait_for_function("window.copied")
    rows = list(csv.DictReader(io.StringIO(page.evaluate("window.copied"))))
    assert [row["method"] for row in rows] == ["untrained network", "raw pixels", "multi_similarity"]
    expected = next(
        r for r in data["board"]["parts"][0]["rows"] if data["methods"][r["method"]]["label"] == "multi_similarity"
    )
    assert float(rows[-1]["map@r"]) == pytest.approx(expected["scores"]["map@r"][0], abs=1e-6)
    page.get_by_role("button", name="Markdown").click()
    page.wait_for_function("window.copied.startsWith('|')")
    lines = page.evaluate("window.copied").splitlines()
    assert len(lines) == 5
    assert len({line.count("|") for line in lines}) == 1
    page.get_by_role("button", name="LaTeX").click()
    page.wait_for_function("window.copied.startsWith('\\\\begin')")
    assert "multi\\_similarity & $" in page.evaluate("window.copied")
    assert page.locator("#live").inner_text() == "1 method copied as LaTeX"


def test_long_labels_take_two_lines_and_tips_hold_their_values(
    browser: Any, tmp_path: Path, problems: list[str]
) -> None:
    invented = invent(pictures(), NAMES[:2], Shape(seeds=2, trials=0))
    long = "multi_similarity(alpha=2.0, beta=50.0, lam=0.5, eps=0.1, distance=cosine)"
    methods = (dataclasses.replace(invented.methods[0], label=long), invented.methods[1])
    results = dataclasses.replace(
        invented,
        methods=methods,
        queries=lambda label, metric, part: invented.queries(label.partition("(")[0], metric, part),
    )
    out = tmp_path / "long.html"
    out.write_text(render(results, "no data here", Cache(None)), encoding="utf-8")
    page = opened(browser, out, problems)
    label = page.locator("#board .label").first
    line = page.locator("#board .label").nth(1).bounding_box()["height"]
    assert label.bounding_box()["height"] <= 2 * line + 2
    label.click()
    assert label.bounding_box()["height"] > 2 * line + 2  # the whole name, once it is opened
    chart = page.locator("#curve-chart svg")
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(100)  # scrolling hides the tip
    chart.hover(position={"x": 300, "y": 150})
    tip, table = (page.locator(name).bounding_box() for name in ("#tip", "#tip table"))
    assert table["x"] + table["width"] <= tip["x"] + tip["width"]
    page.context.close()
    assert problems == []


# ---------------------------------------------------------------------------------------------------------------
# Curves, search, bias


def test_curves_can_be_chosen_and_read(page: Any) -> None:
    chart = page.locator("#curve-chart svg")
    assert chart.locator(".line").count() == 5
    page.locator("#curve-chips .chip").nth(0).click()
    assert chart.locator(".line").count() == 4
    page.get_by_role("button", name="All", exact=True).click()
    assert chart.locator(".line").count() == len(NAMES)
    page.get_by_label("Show dashed").check(force=True)
    assert chart.locator(".oracle").count() == len(NAMES)
    chart.hover(position={"x": 300, "y": 200})
    assert "step" in page.locator("#tip").inner_text()
    assert page.locator("#tip tr").count() > 4


def test_shorter_embeddings_are_drawn_and_tabled(page: Any, data: Any) -> None:
    assert page.locator("#prefix-chart svg .line").count() == len(data["prefixes"])
    table = page.locator("#prefix-table table")
    assert table.locator("tbody tr").count() == len(data["prefixes"])
    assert table.locator("thead").inner_text().count("bytes") == len({d for p in data["prefixes"] for d in p["dims"]})
    page.locator("#prefix-controls select").select_option(label="R@1")
    first = data["prefixes"][0]["scores"]["recall@1"][0]
    assert f"{100 * first:.2f}" in table.inner_text()


def test_search_shows_every_parameter(page: Any, data: Any) -> None:
    field = page.locator("#search-controls select")
    field.select_option(label="contrastive")
    charts = page.locator("#search-charts svg")
    charts.nth(1).wait_for()
    assert charts.count() == 2
    assert charts.first.locator(".dot, .hollow").count() == 7
    charts.first.locator("path.dot, path.hollow").first.hover()
    assert "Trial 0" in page.locator("#tip").inner_text()
    assert "|ρ| below" in page.locator("#search-caption").inner_text()


def test_bias_ledger_draws_every_habit(page: Any, data: Any) -> None:
    cards = page.locator("#bias-controls label")
    assert cards.count() == len(data["ledger"])
    for number, entry in enumerate(data["ledger"]):
        cards.nth(number).click()
        assert entry["words"] in page.locator("#bias-words").inner_text()
        assert page.locator("#bias-chart .line").count() == len(entry["places"])
        assert page.locator("#bias-chart text").all_text_contents()[:2] == entry["sides"]
        moved = sum(place["honest"][1] != place["biased"][1] for place in entry["places"])
        assert page.locator("#bias-chart .up, #bias-chart .down").count() == moved


# ---------------------------------------------------------------------------------------------------------------
# Atlas


def test_atlas_answers_hover_click_and_keys(page: Any) -> None:
    canvas = page.locator("#atlas-stage canvas")
    canvas.scroll_into_view_if_needed()
    look = "document.querySelector('#atlas-stage canvas').atlas"
    x, y = page.evaluate(f"{look}.screen(0)")
    canvas.hover(position={"x": x, "y": y})
    page.wait_for_selector("#tip:not([hidden]) .thumb")
    assert "blob:" in page.locator("#tip .thumb").evaluate("e => e.style.backgroundImage")
    shown = page.locator("#tip b").inner_text()
    canvas.click(position={"x": x, "y": y})
    assert page.evaluate(f"{look}.state.lit.size") == 1
    assert f"Highlighted: {shown}" in page.locator("#atlas-caption").inner_text()
    canvas.press("Escape")
    assert page.evaluate(f"{look}.state.lit.size") == 0
    canvas.press("+")
    page.get_by_role("button", name="Zoom in").click()
    assert page.evaluate(f"{look}.state.k") == pytest.approx(1.4 * 1.6)
    canvas.press("0")
    assert page.evaluate(f"{look}.state.k") == 1
    before = page.evaluate(f"{look}.screen(3)")
    page.locator("#atlas-controls select").select_option(label="binomial")
    page.wait_for_timeout(200)
    assert page.evaluate(f"{look}.screen(3)") != before
    page.get_by_label("Category").check(force=True)
    assert page.locator("#atlas-caption .keys span").all_inner_texts() == ["Latin", "Greek", "Cyrillic"]
    page.get_by_label("Highlight classes").fill("greek")
    assert page.evaluate(f"{look}.state.lit.size") == 4


def many_classes(categories: int) -> Dataset:
    """Eighty test classes, whose colours nobody could tell apart, in so many categories."""
    glyphs, labels = pictures(), np.repeat(np.arange(120), 4)
    return dataclasses.replace(
        glyphs,
        images=np.resize(pixels_of(glyphs), (480, *pixels_of(glyphs).shape[1:])),
        labels=labels,
        class_names=tuple(f"character {i}" for i in range(120)),
        class_category=np.arange(120) % categories,
        category_names=tuple(f"script {i}" for i in range(categories)),
        train_classes=np.arange(40),
        test_classes=np.arange(40, 120),
    )


@pytest.mark.parametrize(("categories", "colours"), [(5, "Category"), (1, "None")])
def test_atlas_of_many_classes_is_no_confetti(
    browser: Any, tmp_path: Path, problems: list[str], categories: int, colours: str
) -> None:
    dataset = many_classes(categories)
    out = tmp_path / "many.html"
    results = invent(dataset, NAMES[:2], Shape(seeds=2, trials=0, dims=8))
    out.write_text(render(results, items_of(dataset), Cache(None)), encoding="utf-8")
    page = opened(browser, out, problems)
    assert page.locator("#atlas-controls input:checked").locator("..").inner_text() == colours
    look = "document.querySelector('#atlas-stage canvas').atlas"
    painted = f"new Set({look}.colours.filter((_, label) => !{look}.state.lit.has(label))).size"
    assert page.evaluate(painted) == categories
    page.get_by_label("Highlight classes").fill("character 77")
    lit = page.evaluate(f"[...{look}.state.lit]")
    assert len(lit) == 1
    own, others = page.evaluate(f"[{look}.colours[{lit[0]}], {look}.colours.filter((_, label) => label !== {lit[0]})]")
    assert page.locator("#atlas-caption .keys span").all_inner_texts() == ["character 77"]
    assert own not in others
    assert len(set(others)) == 1
    page.get_by_label("Class", exact=True).first.check(force=True)
    assert page.evaluate(f"new Set({look}.colours).size") == 80
    page.context.close()
    assert problems == []


def test_atlas_shows_pictures_when_near(page: Any) -> None:
    canvas = page.locator("#atlas-stage canvas")
    canvas.scroll_into_view_if_needed()
    page.wait_for_timeout(100)
    drawings = [canvas.evaluate(DRAWN)]
    for _ in range(3):
        page.get_by_role("button", name="Zoom in").click()
        page.wait_for_timeout(150)
        drawings.append(canvas.evaluate(DRAWN))
    assert len(set(drawings)) == 4
    assert len(drawings[-1]) > 2 * len(drawings[0])  # pictures hold more than dots


# ---------------------------------------------------------------------------------------------------------------
# Gallery


def precisions(page: Any) -> list[float]:
    texts = page.locator("#gallery-list .strip p").all_inner_texts()
    return [float(re.search(r"([\d.]+) %", text).group(1)) for text in texts]  # type: ignore[union-attr]


def test_gallery_is_sorted_and_grows(page: Any, data: Any) -> None:
    values = precisions(page)
    assert len(values) == 8
    assert values == sorted(values)
    page.locator("#gallery-list .more").click()
    values = precisions(page)
    assert len(values) == 16
    assert values == sorted(values)
    page.get_by_label("Best first").check(force=True)
    assert precisions(page)[0] >= max(values)
    assert page.locator("#gallery-list .query").first.locator("li").count() == data["gallery"]["neighbours"]


def test_marks_agree_with_the_classes(page: Any) -> None:
    for query in page.locator("#gallery-list .query").all():
        asked = query.locator(".asked b").inner_text()
        for found in query.locator("li").all():
            mark, _, name = found.inner_text().partition(" ")
            assert mark.strip() == ("✓" if name == asked else "✗")
            assert ("right" in (found.get_attribute("class") or "")) == (name == asked)


def test_one_method_against_another(page: Any) -> None:
    page.locator("#gallery-controls").get_by_label("Compare with").select_option(label="binomial")
    counts = [int(text) for text in page.locator("#gallery-outcomes b").all_inner_texts()]
    assert sum(counts) == 120
    assert counts[0] > 0
    assert page.locator("#gallery-list .query").count() == min(8, counts[0])
    for query in page.locator("#gallery-list .query").all():
        first, second = query.locator(".strip").all()
        assert first.locator("li").first.get_attribute("class") == "right"
        assert second.locator("li").first.get_attribute("class") == "wrong"
    page.locator("#gallery-outcomes button").nth(3).press("Enter")
    assert page.locator("#gallery-outcomes button").nth(3).get_attribute("aria-pressed") == "true"
    assert page.locator("#gallery-list .query").count() == min(8, counts[3])
    assert "against binomial" in page.locator("#classes-title").inner_text()
    assert page.locator("#classes thead th").count() == 6


def test_classes_and_confusions(page: Any, data: Any) -> None:
    page.locator("#gallery-controls").get_by_label("Method").select_option(label="binomial")
    rows = page.locator("#classes tbody tr:has(td:nth-child(2))")
    assert rows.count() == 10
    page.locator("#classes tbody .more").click()
    assert rows.count() == 12
    values = [
        float(text.split("\n")[0]) for text in page.locator("#classes tbody tr td:nth-child(3)").all_inner_texts()
    ]
    assert values == sorted(values)
    name = rows.first.locator("button").inner_text()
    rows.first.locator("button").click()
    assert set(page.locator("#gallery-list .asked b").all_inner_texts()) == {name}
    times = [int(text) for text in page.locator("#confusion tbody td:nth-child(3)").all_inner_texts()]
    assert times == sorted(times, reverse=True)
    page.locator("#confusion canvas").hover(position={"x": 200, "y": 60})
    assert "taken for" in page.locator("#tip").inner_text()


def test_pair_weights_of_two_losses(page: Any) -> None:
    panels = page.locator("#weights-panels")
    assert panels.locator("canvas").count() == 2
    assert panels.locator(".line").count() == 12
    page.locator("#weights-controls").get_by_label("Compare with").select_option(label="fastap")
    assert panels.locator("h3").all_inner_texts()[1] == "fastap"
    canvas = panels.locator("canvas").first
    before = canvas.evaluate(DRAWN)
    page.locator("#weights-controls").get_by_label("Loss").select_option(label="binomial")
    assert panels.locator("canvas").first.evaluate(DRAWN) != before
    canvas.hover(position={"x": 40, "y": 90})
    assert page.locator("#tip").inner_text().startswith("W ")
    page.locator("#weights-controls").get_by_label("Compare with").select_option(index=0)
    assert panels.locator("canvas").count() == 1


# ---------------------------------------------------------------------------------------------------------------
# For every reader


def test_hostile_names_are_text(page: Any) -> None:
    assert page.locator("#provenance").get_by_text(FOLDER, exact=True).count() == 1
    page.locator("#gallery-controls").get_by_label("Class").fill("alert(1)")
    assert set(page.locator("#gallery-list .asked b").all_inner_texts()) == {EVIL}
    assert page.locator("#gallery-list .file").first.get_attribute("title").startswith(f"{EVIL}/")
    assert page.locator("main script, main img, main b b").count() == 0


def test_theme_follows_the_system_and_the_switch(browser: Any, path: Path, problems: list[str]) -> None:
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    page = opened(browser, path, problems, color_scheme="dark")
    dark = page.evaluate(background)
    page.locator("#theme").click()
    light = page.evaluate(background)
    assert (dark, light) == ("rgb(20, 23, 27)", "rgb(255, 255, 255)")
    page.locator("#theme").press("Enter")
    assert page.evaluate(background) == dark
    page.context.close()
    assert problems == []


def test_a_telephone_does_not_scroll_sideways(browser: Any, path: Path, problems: list[str]) -> None:
    page = opened(browser, path, problems, viewport={"width": 400, "height": 800})
    page.locator("#gallery-controls").get_by_label("Compare with").select_option(label="histogram")
    page.locator("#board .label").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.context.close()
    assert problems == []


def test_keyboard_reaches_everything(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    loose = "e => e.tabIndex < 0 || !(e.textContent.trim() || e.getAttribute('aria-label'))"
    assert page.evaluate(f"[...document.querySelectorAll('button')].filter({loose}).length") == 0
    unlabelled = "e => !e.labels?.length && !e.getAttribute('aria-label')"
    assert page.evaluate(f"[...document.querySelectorAll('select, input')].filter({unlabelled}).length") == 0
    assert (
        page.evaluate("new Set([...document.querySelectorAll('[id]')].map((e) => e.id)).size")
        == page.locator("[id]").count()
    )


def test_paper_is_light_and_without_controls(browser: Any, path: Path, problems: list[str]) -> None:
    page = opened(browser, path, problems, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator("#board-controls").is_visible()
    assert page.locator("#board").is_visible()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    page.context.close()


def test_a_large_report_is_small_and_opens_soon(browser: Any, tmp_path: Path, problems: list[str]) -> None:
    """25 methods and 3,000 pictures of noise, which no format can compress much."""
    rng = np.random.default_rng(0)
    base = pictures()
    dataset = dataclasses.replace(
        base,
        images=rng.integers(0, 255, size=(6000, 48, 48, 3), dtype=np.uint8),
        labels=np.repeat(np.arange(100), 60),
        class_names=tuple(f"class {i}" for i in range(100)),
        class_category=np.zeros(100, dtype=np.int64),
        category_names=("all",),
        train_classes=np.arange(50),
        test_classes=np.arange(50, 100),
    )
    results = invent(dataset, [*NAMES, *(f"method_{i}" for i in range(17))], Shape(dims=16))
    out = tmp_path / "large.html"
    out.write_text(render(results, items_of(dataset), Cache(None)), encoding="utf-8")
    size = out.stat().st_size / 1e6
    assert size < 15
    start = time.perf_counter()
    page = opened(browser, out, problems)
    seconds = time.perf_counter() - start
    elements = page.evaluate("document.querySelectorAll('*').length")
    print(f"\n25 methods, 3,000 pictures: {size:.1f} MB, opened in {seconds:.2f} s, {elements} elements")
    assert seconds < 20
    assert page.locator("#board tbody tr").count() == 25
    page.context.close()
    assert problems == []
