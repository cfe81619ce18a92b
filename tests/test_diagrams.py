"""The diagrams: well-formed, complete, legible (no text on text, none outside), safe to put into a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest
from benches import Noise, fake_results
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfield.analysis.bias import Entry, ledger
from nearfield.analysis.figures.rankings import critical_difference_svg, slope_svg
from nearfield.analysis.leaderboard import Board, standings
from nearfield.errors import InputError

LONG = [f"method_{i}(temperature=0.{i}, margin=0.{i})" for i in range(30)]
WIDTHS = [360, 720, 1080]
WIDE = 6.9  # pixels of an average character


def board_of(count: int, seeds: int = 5, seed: int = 0) -> Board:
    truth = {name: 0.3 - 0.003 * i for i, name in enumerate(LONG[:count])}
    return standings(fake_results(truth, seeds, folds=1, trials=0, queries=4, rng=seed))


def entries_of(count: int) -> dict[str, Entry]:
    truth = {name: 0.3 - 0.003 * i for i, name in enumerate(LONG[:count])}
    untuned = {name: 0.2 + 0.01 * (i * 7 % 11) for i, name in enumerate(LONG[:count])}
    found = fake_results(truth, 2, folds=1, trials=0, queries=4, variants={"untuned": untuned})
    return {entry.name: entry for entry in ledger(found)}


def texts(svg: str) -> list[tuple[float, float, float, str]]:
    """(left, right, baseline, text) of every text, its width estimated."""
    found = []
    for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        x, y, text = float(node.attrib["x"]), float(node.attrib["y"]), node.text or ""
        width = WIDE * len(text)
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[node.attrib["style"].rsplit(": ", 1)[1]]
        found.append((left, left + width, y, text))
    return found


def assert_legible(svg: str, width: int) -> None:
    found = texts(svg)
    height = float(ElementTree.fromstring(svg).attrib["height"])
    for left, right, y, text in found:
        assert left >= -4, text
        assert right <= width + 4, text
        assert 8 <= y <= height, text
    for i, (left, right, y, text) in enumerate(found):
        for other_left, other_right, other_y, other in found[:i]:
            apart = abs(y - other_y) >= 12 or left >= other_right - 2 or other_left >= right - 2
            assert apart, (text, other)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [2, 3, 8, 30])
def test_ranks_are_legible(count: int, width: int) -> None:
    svg = critical_difference_svg(board_of(count), width)
    assert_legible(svg, width)
    assert len(re.findall("method", svg)) >= count


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 30), st.integers(2, 9), st.integers(0, 99), st.sampled_from(WIDTHS))
def test_ranks_are_legible_whatever_they_are(count: int, seeds: int, seed: int, width: int) -> None:
    assert_legible(critical_difference_svg(board_of(count, seeds, seed), width), width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["untuned", "mine tuned", "R@1"])
@pytest.mark.parametrize("count", [2, 30])
def test_slopes_are_legible(count: int, name: str, width: int) -> None:
    assert_legible(slope_svg(entries_of(count)[name], width), width)


def thick_lines(svg: str, thick: str) -> list[dict[str, float]]:
    nodes = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}line")
    return [
        {key: float(node.attrib[key]) for key in ("x1", "y1", "x2", "y2")}
        for node in nodes
        if node.attrib["style"].endswith(f"stroke-width: {thick}")
    ]


def test_a_bar_spans_its_group() -> None:
    silent = Noise(0.0, 0.0, 0.0, 0.0)
    truth = {name: 0.5 - 0.1 * i for i, name in enumerate("abcde")}
    board = standings(fake_results(truth, 6, folds=1, trials=0, queries=4, noise=silent))
    assert board.critical is not None
    assert board.critical.groups == ((0, 1, 2), (1, 2, 3), (2, 3, 4))  # ranks 1 to 5, critical difference 2.49
    bars = thick_lines(critical_difference_svg(board, 1080), "4")
    rank_1, rank_5 = bars[0]["x1"] + 4, bars[2]["x2"] - 4
    step = (rank_5 - rank_1) / 4
    assert [round((bar["x1"] + 4 - rank_1) / step, 1) for bar in bars] == [0, 1, 2]
    assert [round((bar["x2"] - 4 - rank_1) / step, 1) for bar in bars] == [2, 3, 4]
    assert len({bar["y1"] for bar in bars}) == 3  # they overlap, so each has its own lane
    upright = thick_lines(critical_difference_svg(board, 360), "4")
    assert [(bar["y1"] - upright[0]["y1"]) / 19 for bar in upright] == [0, 1, 2]
    assert all(bar["y2"] - bar["y1"] == 2 * 19 + 12 for bar in upright)


def test_bars_apart_share_a_lane() -> None:
    silent = Noise(0.0, 0.0, 0.0, 0.0)
    truth = {name: 0.5 - 0.1 * (i // 2) for i, name in enumerate("abcd")}  # two pairs of equals
    board = standings(fake_results(truth, 40, folds=1, trials=0, queries=4, noise=silent))
    bars = thick_lines(critical_difference_svg(board, 1080), "4")
    assert len(bars) == 2
    assert len({bar["y1"] for bar in bars}) == 1


def test_slopes_join_the_two_places_of_a_method() -> None:
    entry = entries_of(6)["untuned"]
    lines = [line for thick in ("1.5", "2.5") for line in thick_lines(slope_svg(entry), thick)]
    assert len(lines) == 6
    found = sorted(((line["y1"] - 36) / 19, (line["y2"] - 36) / 19) for line in lines)
    after = [place.label for place in entry.biased]
    assert found == [(i, after.index(place.label)) for i, place in enumerate(entry.honest)]


def test_in_turns_all_winners_end_at_the_first_rank() -> None:
    entry = entries_of(6)["mine tuned"]
    lines = thick_lines(slope_svg(entry), "1")
    assert sum(line["y2"] == 36 for line in lines) == len(entry.leaders)
    assert any(text.startswith(f"{len(entry.leaders)} method") for *_, text in texts(slope_svg(entry)))


def test_labels_are_escaped_and_styles_stay_inside() -> None:
    truth = {"<b>&\"'": 0.3, "plain": 0.2}
    board = standings(fake_results(truth, folds=1, trials=0))
    svgs: Sequence[str] = [critical_difference_svg(board), critical_difference_svg(board, 360)]
    for svg in svgs:
        assert "<b>" not in svg
        assert any(text == "<b>&\"'" for *_, text in texts(svg))
        assert re.findall(r"[^{}]+(?=\{ color)", svg) == [" svg:root "]  # a rule for any svg would leak into a page
        assert "currentColor" in svg


def test_one_seed_has_no_ranks() -> None:
    with pytest.raises(InputError, match="two seeds"):
        critical_difference_svg(board_of(4, seeds=1))
