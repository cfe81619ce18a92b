"""The figures: complete, legible (no text on text, none outside), the same bytes each time, safe to put into a page."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from benches import Noise, fake_results
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from nearfield.analysis.bias import Entry, ledger
from nearfield.analysis.figures.rankings import ranks_figure, slope_figure
from nearfield.analysis.figures.svg import shorten, svg
from nearfield.analysis.leaderboard import Board, standings
from nearfield.errors import InputError

LONG = [f"method_{i}(temperature=0.{i}, margin=0.{i})" for i in range(30)]
SVG = "{http://www.w3.org/2000/svg}"
SILENT = Noise(0.0, 0.0, 0.0, 0.0)


def board_of(count: int, seeds: int = 5) -> Board:
    truth = {name: 0.3 - 0.003 * i for i, name in enumerate(LONG[:count])}
    return standings(fake_results(truth, seeds, folds=1, trials=0, queries=4))


def entries_of(count: int) -> dict[str, Entry]:
    truth = {name: 0.3 - 0.003 * i for i, name in enumerate(LONG[:count])}
    untuned = {name: 0.2 + 0.01 * (i * 7 % 11) for i, name in enumerate(LONG[:count])}
    found = fake_results(truth, 2, folds=1, trials=0, queries=4, variants={"untuned": untuned})
    return {entry.name: entry for entry in ledger(found)}


def texts(figure: Figure) -> list[tuple[float, float, float, str]]:
    """(left, right, baseline, text) of every text that is drawn."""
    found = []
    for node in ElementTree.fromstring(svg(figure)).iter(f"{SVG}text"):
        x, y, text = float(node.attrib["x"]), float(node.attrib["y"]), node.text or ""
        width = TextPath((0, 0), text, size=13).get_extents().x1
        (anchor,) = re.findall(r"text-anchor: (\w+)", node.attrib["style"]) or ["start"]
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        found.append((left, left + width, y, text))
    return found


def assert_legible(figure: Figure) -> None:
    found = texts(figure)
    wide, high = figure.get_size_inches() * 72
    for left, right, y, text in found:
        assert left >= -1, text
        assert right <= wide + 1, text
        assert 8 <= y <= high, text
    for (left, right, y, text), (other_left, other_right, other_y, other) in combinations(found, 2):
        assert abs(y - other_y) >= 12 or left >= other_right or other_left >= right, (text, other)


@pytest.mark.parametrize(("count", "seeds"), [(2, 2), (3, 9), (9, 5), (30, 4)])
def test_ranks_are_legible_and_complete(count: int, seeds: int) -> None:
    figure = ranks_figure(board_of(count, seeds))
    assert_legible(figure)
    assert sum(text.startswith("method") for *_, text in texts(figure)) == count


@pytest.mark.parametrize("name", ["untuned", "mine tuned", "R@1"])
@pytest.mark.parametrize("count", [2, 30])
def test_slopes_are_legible(count: int, name: str) -> None:
    assert_legible(slope_figure(entries_of(count)[name]))


def thick_lines(figure: Figure, width: float) -> list[tuple[list[float], list[float]]]:
    (axes,) = figure.axes
    lines = [one for one in axes.lines if one.get_linewidth() == width]
    return [(np.asarray(one.get_xdata()).tolist(), np.asarray(one.get_ydata()).tolist()) for one in lines]


def test_a_bar_spans_its_group() -> None:
    truth = {name: 0.5 - 0.1 * i for i, name in enumerate("abcde")}
    board = standings(fake_results(truth, 6, folds=1, trials=0, queries=4, noise=SILENT))
    assert board.critical is not None
    assert board.critical.groups == ((0, 1, 2), (1, 2, 3), (2, 3, 4))  # ranks 1 to 5, critical difference 2.49
    bars = thick_lines(ranks_figure(board), 4)
    assert [ends for _, ends in bars] == [[-0.3, 2.3], [0.7, 3.3], [1.7, 4.3]]
    assert len({places[0] for places, _ in bars}) == 3
    ((ruler, _),) = thick_lines(ranks_figure(board), 1.5)
    assert ruler == [1, 1 + board.critical.difference]


def test_slopes_join_the_two_places_of_a_method() -> None:
    entry = entries_of(6)["untuned"]
    figure = slope_figure(entry)
    found = sorted(tuple(rows) for width in (1.5, 2.5) for _, rows in thick_lines(figure, width))
    after = [place.label for place in entry.biased]
    assert found == [(i, after.index(place.label)) for i, place in enumerate(entry.honest)]


def test_in_turns_all_winners_end_at_the_first_rank() -> None:
    entry = entries_of(6)["mine tuned"]
    figure = slope_figure(entry)
    lines = [rows for width in (1.5, 2.5) for _, rows in thick_lines(figure, width)]
    assert sum(rows[1] == 0 for rows in lines) == len(entry.leaders)
    assert any(text.startswith(f"{len(entry.leaders)} method") for *_, text in texts(figure))


def test_labels_are_text_and_escaped_and_colours_follow_the_theme() -> None:
    truth = {"<b>&\"'$x^2$": 0.3, "plain": 0.2}
    text = svg(ranks_figure(standings(fake_results(truth, folds=1, trials=0))))
    root = ElementTree.fromstring(text)
    shown = [node.text for node in root.iter(f"{SVG}text")]
    assert "<b>&\"'$x^2$" in shown
    assert "<b>" not in text
    assert "currentColor" in text
    assert re.findall(r"[^{}]+(?=\{ color)", text) == [" svg:root "]
    assert root.attrib["width"].endswith("px")
    assert "Mean ranks by MAP@R" in (root.findtext(f"{SVG}title") or "")


def test_the_same_figure_gives_the_same_bytes() -> None:
    first, again = (svg(slope_figure(entries_of(4)["untuned"])) for _ in range(2))
    assert first == again


def test_one_seed_has_no_ranks() -> None:
    with pytest.raises(InputError, match="two seeds"):
        ranks_figure(board_of(4, seeds=1))


def test_shortened_names_keep_both_ends() -> None:
    assert shorten("fastap", 6) == "fastap"
    assert shorten("multi_similarity(beta=50)", 12) == "multi_…a=50)"
