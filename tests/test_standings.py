"""The leaderboard against results whose truth is known, complete and in progress; its table and its words."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from benches import CONCATENATED, Noise, fake_results
from hypothesis import given
from hypothesis import strategies as st

from nearfield.analysis import statistics as ns
from nearfield.analysis.leaderboard import Board, _full_table, standings
from nearfield.analysis.tables import baseline_lines, mark, standings_markdown, title, verdict_lines
from nearfield.bench.results import BenchResults
from nearfield.errors import InputError

TRUTH = {"low": 0.10, "best": 0.30, "close": 0.2999, "middle": 0.20}
QUIET = Noise(seed=0.001, fold=0.001, query=0.05, rest=0.01)


@pytest.fixture(scope="module")
def results() -> BenchResults:
    return fake_results(TRUTH, noise=QUIET, rng=1)


@pytest.fixture(scope="module")
def board(results: BenchResults) -> Board:
    return standings(results)


def one_method(results: BenchResults, label: str) -> list[float]:
    (found,) = (method for method in results.methods if method.label == label)
    return [seed.separated["map@r"] for seed in found.seeds]


def test_the_order_is_that_of_the_truth_and_the_intervals_are_of_the_seeds(results: BenchResults, board: Board) -> None:
    assert {s.label for s in board.standings[:2]} == {"best", "close"}
    assert [s.label for s in board.standings[2:]] == ["middle", "low"]
    for one in board.standings:
        assert one.scores["map@r"] == ns.mean_interval(one_method(results, one.label))
        assert one.scores["r_precision"].mean == pytest.approx(one.scores["map@r"].mean + 0.1)
        assert set(one.scores) == {"map@r", "r_precision", "recall@1", "nmi"}
        assert one.seeds == (0, 1, 2, 3, 4)


def test_another_metric_orders_the_board() -> None:
    recall = {"low": 0.9, "best": 0.1, "close": 0.3, "middle": 0.5}
    found = standings(fake_results(TRUTH, recall=recall), metric="recall@1")
    assert [s.label for s in found.standings] == ["low", "middle", "close", "best"]


def test_the_concatenated_board_reads_the_concatenated_scores(results: BenchResults, board: Board) -> None:
    found = standings(results, part="concatenated")
    for one, other in zip(found.standings, board.standings, strict=True):
        assert one.label == other.label
        assert one.scores["map@r"].mean == pytest.approx(other.scores["map@r"].mean + CONCATENATED)
        assert one.new_queries is not None
        assert one.new_queries.mean == pytest.approx(one.scores["map@r"].mean)


def test_a_protocol_without_folds_has_no_concatenated_board() -> None:
    found = standings(fake_results(TRUTH, folds=1), part="concatenated")
    assert found.standings == ()
    assert found.waiting == tuple(TRUTH)
    assert verdict_lines(found) == ["No method has a finished seed yet."]


# ---------------------------------------------------------------------------------------------------------------
# New queries


def test_the_second_interval_is_of_seeds_and_queries(results: BenchResults, board: Board) -> None:
    for one in board.standings:
        queries = results.queries(one.label, "map@r", "separated")
        assert one.new_queries is not None
        assert one.new_queries.mean == pytest.approx(one.scores["map@r"].mean)
        assert one.new_queries.half_width == pytest.approx(ns.two_way_interval(queries).half_width)
        assert (one.new_queries.half_width or 0) > (
            one.scores["map@r"].half_width or 0
        )  # new queries are a source of its own


def test_queries_without_a_match_are_left_out(results: BenchResults, board: Board) -> None:
    def gaps(label: str, metric: str, part: str) -> np.ndarray:
        values = results.queries(label, metric, "separated")
        return np.concatenate([values, np.full((len(values), 3), np.nan)], axis=1)

    assert standings(replace(results, queries=gaps)).standings == board.standings


def test_a_score_that_queries_do_not_have_has_no_second_interval(results: BenchResults) -> None:
    found = standings(results, metric="nmi")  # equal everywhere
    assert all(one.new_queries is None for one in found.standings)
    assert set(found.like_best) == set(TRUTH)


# ---------------------------------------------------------------------------------------------------------------
# Budgets


def test_budgets_count_trials_networks_and_seconds(board: Board) -> None:
    one = board.standings[0]
    assert (one.budget.complete, one.budget.pruned) == (2, 1)
    assert one.budget.runs == 4 + 4 + 1 + 5 * 4
    assert one.budget.seconds == pytest.approx(9 * 1.0 + 20 * 2.0)
    assert one.train_seconds == 2.0
    assert one.trial == 1
    assert one.params == {"optimizer.lr": 1e-3}


def test_without_a_search_there_is_no_trial() -> None:
    one = standings(fake_results(TRUTH, trials=0)).standings[0]
    assert (one.trial, one.params, one.budget.complete, one.budget.runs) == (None, {}, 0, 20)


# ---------------------------------------------------------------------------------------------------------------
# Verdicts


def test_large_differences_are_significant_and_the_close_one_is_not(board: Board) -> None:
    assert set(board.like_best) == {"best", "close"}
    assert board.best == board.like_best[0] == board.standings[0].label
    for label in ("middle", "low"):
        verdict = board.against_best(label)
        assert verdict is not None
        assert verdict.text == f"{board.best} is better than {label}"
    second = board.against_best(board.standings[1].label)
    assert second is not None
    assert second.text.startswith("not significantly different")
    assert board.against_best(board.best or "") is None


def test_ranks_are_within_a_seed(results: BenchResults, board: Board) -> None:
    assert board.critical is not None
    table = np.array([one_method(results, label) for label in board.compared]).T
    assert board.critical == ns.critical_difference(table)
    assert table.shape == (5, 4)


def test_one_seed_claims_nothing() -> None:
    found = standings(fake_results(TRUTH, seeds=1, noise=QUIET))
    assert [s.label for s in found.standings][2:] == ["middle", "low"]
    assert all(interval.half_width is None for s in found.standings for interval in s.scores.values())
    assert (found.compared, found.verdicts, found.critical, found.like_best) == ((), None, None, ())
    lines = verdict_lines(found)
    assert lines[2] == "No two methods share two finished seeds, so no difference can be tested."
    assert "±" not in standings_markdown(found).split("\n\n")[0]
    assert "≈" not in standings_markdown(found)


def test_unequal_seeds_are_compared_where_they_can_be() -> None:
    seeds = {"low": range(5), "best": range(5), "close": [0], "middle": range(5)}
    found = standings(fake_results(TRUTH, seeds=seeds, noise=QUIET))
    assert set(found.compared) == {"low", "best", "middle"}
    assert found.compared_seeds == (0, 1, 2, 3, 4)
    assert found.against_best("close") is None
    assert "close is not compared: it has finished only seeds 0." in verdict_lines(found)
    assert {one.label for one in found.standings} == set(TRUTH)


def test_the_best_of_the_compared_may_not_be_the_first() -> None:
    seeds = {"low": range(3), "best": [7], "middle": range(3)}
    found = standings(fake_results(TRUTH, seeds=seeds, noise=QUIET))
    assert found.standings[0].label == "best"
    assert found.best == "middle"
    lines = verdict_lines(found)
    assert "Over the compared seeds, middle has the highest mean." in lines
    assert "close has no finished seed." in lines
    assert found.waiting == ("close",)


@pytest.mark.parametrize(
    ("seeds", "names", "common"),
    [
        ({"a": [0, 1], "b": [0, 1], "c": [0, 1]}, "abc", (0, 1)),
        ({"a": range(5), "b": range(5), "c": range(2)}, "ab", (0, 1, 2, 3, 4)),
        ({"a": range(3), "b": range(2), "c": range(2)}, "abc", (0, 1)),
        ({"a": [0, 1, 2], "b": [0, 2, 3]}, "ab", (0, 2)),  # what both have, though no method has just that
        ({"a": [0, 1], "b": [2, 3]}, "", ()),
        ({"a": [0, 1]}, "", ()),
        ({}, "", ()),
    ],
)
def test_the_full_table(seeds: dict[str, list[int]], names: str, common: tuple[int, ...]) -> None:
    found = _full_table({name: dict.fromkeys(numbers, 0.5) for name, numbers in seeds.items()})
    assert found == (tuple(names), common)


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.integers(0, 5)), max_size=6))
def test_the_full_table_has_no_gaps_and_is_no_smaller_than_anyones(seeds: dict[str, set[int]]) -> None:
    names, common = _full_table({name: dict.fromkeys(numbers, 0.5) for name, numbers in seeds.items()})
    assert all(seeds[name] >= set(common) for name in names)
    assert (len(names) > 1 and len(common) > 1) or not (names or common)
    for own in seeds.values():
        having = sum(other >= own for other in seeds.values())
        assert len(names) * len(common) >= having * len(own) * (min(having, len(own)) > 1)


def test_an_empty_bench_has_an_empty_board() -> None:
    found = standings(replace(fake_results({}), missing=("everything",)))
    assert (found.standings, found.best) == ((), None)
    assert verdict_lines(found) == ["No method has a finished seed yet."]
    assert "untrained network" in standings_markdown(found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"metric": "mapr"}, "metric must be .* got 'mapr', did you mean 'map@r'"), ({"part": "seperated"}, "separated")],
)
def test_refusals(results: BenchResults, arguments: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        standings(results, **arguments)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------
# The untrained baseline


def with_baseline(results: BenchResults, score: float) -> Board:
    return standings(replace(results, baselines={"raw pixels": {"map@r": score}, "PCA": {"map@r": 0.01}}))


def test_nobody_is_best_or_better_below_an_untrained_baseline(results: BenchResults) -> None:
    board = with_baseline(results, 0.606)
    assert board.baseline == ("raw pixels", 0.606)
    assert set(board.below_baseline) == set(TRUTH)
    text = "\n".join([standings_markdown(board), *verdict_lines(board)])
    assert "★" not in text
    assert "≈" not in text
    assert "is better" not in text
    assert "The best untrained baseline scores 60.60 % (raw pixels); no method exceeds it" in text
    assert f"{board.best} scores higher than low, but not above the untrained baseline." in text


def test_some_methods_do_not_exceed_the_untrained_baseline(results: BenchResults) -> None:
    board = with_baseline(results, 0.25)
    assert board.below_baseline == ("middle", "low")
    marks = {label: mark(board, label) for label in TRUTH}
    assert board.best is not None
    assert marks == {**dict.fromkeys(board.like_best, "≈"), board.best: "★", "middle": "▽", "low": "▽"}
    assert baseline_lines(board) == [
        "The best untrained baseline scores 25.00 % (raw pixels); 2 of 4 methods do not exceed it: middle, low."
    ]
    assert "▽ not above the best untrained baseline." in standings_markdown(board)
    assert f"Level seeds: {board.best} is better than low." in verdict_lines(board)


def test_a_baseline_without_the_metric_says_nothing(results: BenchResults) -> None:
    board = standings(replace(results, baselines={"raw pixels": {"recall@1": 1.0}}))
    assert (board.baseline, board.below_baseline, baseline_lines(board)) == (None, (), [])


# ---------------------------------------------------------------------------------------------------------------
# Text


def test_the_lines_count_significant_differences(board: Board) -> None:
    lines = verdict_lines(board)
    first = board.standings[0].scores["map@r"]
    assert first.half_width is not None
    value = f"{100 * first.mean:.2f} ± {100 * first.half_width:.2f} %"
    assert lines[0] == f"{board.best} has the highest mean MAP@R (separated): {value}."
    assert lines[1] == "The best untrained baseline scores 5.00 % (untrained network); every method exceeds it."
    assert lines[2].startswith(
        "Level seeds (for new seeds on the same test images): 5 of 6 differences are significant"
    )
    assert len(lines) == 3 + 3


def test_the_table_marks_the_group_of_the_best(board: Board) -> None:
    table = standings_markdown(board).split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    assert cells[0] == ["", "method", "MAP@R", "R-precision", "R@1", "NMI", "seeds", "trials", "s / network"]
    assert [row[1] for row in cells[2:4]] == ["*untrained network*", "*raw pixels*"]  # the baselines come first
    assert cells[3][2:4] == ["2.00", "–"]
    assert [row[0] for row in cells[4:]] == ["★", "≈", "", ""]
    assert [row[1] for row in cells[4:]] == [one.label for one in board.standings]
    value = board.standings[0].scores["map@r"]
    assert cells[4][2] == f"{100 * value.mean:.2f} ± {100 * (value.half_width or 0):.2f}"
    assert cells[4][6:] == ["5", "2 + 1 pruned", "2.0"]
    assert all(len(one) == len(other) for one, other in pairwise(table))


def test_unequal_conditions_are_shown() -> None:
    results = fake_results({"a": 0.3, "b|c": 0.2})
    marked = replace(results.methods[0], unequal=("2048 bits against 64 floats",))
    text = standings_markdown(standings(replace(results, methods=(marked, results.methods[1]))))
    assert "| a † " in text
    assert "† a: 2048 bits against 64 floats." in text
    assert "b\\|c" in text


def test_titles() -> None:
    assert [title(metric) for metric in ("map@r", "recall@8", "precision@1", "nmi")] == ["MAP@R", "R@8", "P@1", "NMI"]
