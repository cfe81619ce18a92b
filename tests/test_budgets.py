"""Expected best of a search, and the flags of a budget that was too small."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from benches import fake_results

from nearfield.analysis.budgets import NOT_EXHAUSTED, STILL_LEARNING, Effort, effort, expected_best, weakened
from nearfield.analysis.figures.suites import pareto_front
from nearfield.bench.results import MethodResult
from nearfield.errors import InputError


def test_the_expected_best_is_the_mean_over_all_draws() -> None:
    values = [0.3, 0.1, 0.4, 0.4]
    for count, found in enumerate(expected_best(values), start=1):
        draws = [max(draw) for draw in product(values, repeat=count)]
        assert found == pytest.approx(sum(draws) / len(draws), abs=1e-12)


def test_there_must_be_values() -> None:
    for values in ([], [float("nan")]):
        with pytest.raises(InputError, match="finite scores"):
            expected_best(values)


def method_with(values: list[float | None], step: int | None = None) -> MethodResult:
    found = fake_results({"a": 0.5, "b": 0.4}, trials=len(values)).methods[0]
    trials = tuple(
        replace(trial, value=value, state="pruned" if value is None else "complete")
        for trial, value in zip(found.trials, values, strict=True)
    )
    if step is None:
        return replace(found, trials=trials)
    seeds = tuple(
        replace(seed, folds=tuple(replace(fold, best_step=step) for fold in seed.folds)) for seed in found.seeds
    )
    return replace(found, trials=trials, seeds=seeds)


def test_a_curve_that_still_rises_is_flagged_and_a_flat_one_is_not() -> None:
    rising = effort(method_with([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.5]), "map@r")
    assert rising.flags == (NOT_EXHAUSTED,)
    assert rising.expected[0] < rising.expected[-1] < 0.5
    flat = effort(method_with([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.3]), "map@r")
    assert flat.flags == ()


def test_a_pruned_trial_counts_as_the_worst() -> None:
    found = effort(method_with([0.5, 0.4, None, None]), "map@r")
    assert found.expected == pytest.approx(expected_best([0.5, 0.4, 0.4, 0.4]))
    assert effort(method_with([]), "map@r").flags == ()


def test_the_last_step_in_most_folds_is_still_learning() -> None:
    assert STILL_LEARNING in effort(method_with([0.5, 0.5], step=1000), "map@r").flags
    assert effort(method_with([0.5, 0.5], step=900), "map@r").flags == ()


def test_a_verdict_against_a_method_with_too_little_budget_says_so() -> None:
    good = Effort("b", (), 0.0, 0.01, 0.0, 1.0)
    assert weakened("a is better than b", good) == "a is better than b"
    poor = replace(good, rise=0.02, last_steps=0.9)
    said = weakened("a is better than b", poor)
    assert said.endswith("(at this budget only; b: search not exhausted and still learning)")


def test_the_front_holds_what_no_other_beats_in_both() -> None:
    points = {"slow": (9.0, 0.5), "fast": (1.0, 0.3), "dominated": (2.0, 0.2), "middle": (3.0, 0.4)}
    assert pareto_front(points) == ["fast", "middle", "slow"]
