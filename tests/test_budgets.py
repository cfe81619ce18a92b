"""Expected best of a search, and the flags of a budget that was too small."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from benches import fake_results
from suites import fake_suite

from nearfield.analysis.budgets import (
    NOT_EXHAUSTED,
    STILL_LEARNING,
    Effort,
    budget_lines,
    effort,
    efforts,
    expected_best,
    weakened,
)
from nearfield.analysis.figures.suites import pareto_front
from nearfield.analysis.suite import collect
from nearfield.analysis.suite_text import flag_lines
from nearfield.bench.results import BenchResults, MethodResult
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
    assert STILL_LEARNING in effort(method_with([0.5, 0.5], step=1000), "map@r", annealed=False).flags
    assert effort(method_with([0.5, 0.5], step=900), "map@r", annealed=False).flags == ()


def test_the_last_step_of_an_annealed_run_says_nothing() -> None:
    found = effort(method_with([0.5, 0.5], step=1000), "map@r")
    assert found.still_learning is None
    assert found.flags == ()


def with_longer(gain: float, seeds: slice = slice(0, 2)) -> BenchResults:
    """Two methods, of which the longer runs of some seeds have validation scores that are `gain` higher."""
    results = fake_results({"a": 0.5, "b": 0.4})
    methods = []
    for method in results.methods:
        longer = [
            replace(
                seed,
                folds=tuple(
                    replace(fold, val=tuple((2 * step, {"map@r": scores["map@r"] + gain}) for step, scores in fold.val))
                    for fold in seed.folds
                ),
            )
            for seed in method.seeds[seeds]
        ]
        methods.append(replace(method, variants={"longer": tuple(longer)}))
    return replace(results, methods=tuple(methods))


@pytest.mark.parametrize(("gain", "learning"), [(0.01, True), (0.0005, False), (-0.01, False)])
def test_longer_runs_that_beat_the_same_seeds_say_that_a_method_is_still_learning(gain: float, learning: bool) -> None:
    results = with_longer(gain)
    for one in efforts(results).values():
        assert one.longer == pytest.approx(gain)
        assert one.still_learning is learning
    lines = [line for line in budget_lines(results) if line.startswith("Still learning")]
    assert bool(lines) is learning
    assert all("twice the steps" in line and line.endswith("a, b.") for line in lines)
    assert not any("not measured" in line for line in budget_lines(results))


def test_a_gain_within_the_noise_between_seeds_is_none() -> None:
    results = with_longer(0.01)
    one = efforts(results)["a"]
    assert replace(one, noise=0.02).still_learning is False
    assert replace(one, noise=0.0, longer=0.0009).still_learning is False


def test_what_was_not_measured_is_said_once() -> None:
    results = fake_results({"a": 0.5, "b": 0.4})
    said = [line for line in budget_lines(results) if "not measured" in line]
    assert said == ['Whether more steps would help was not measured; `variants = ["longer"]` measures it.']
    constant = replace(results, config={"run": {"optimizer": {"schedule": "constant"}}})
    assert not any("not measured" in line for line in budget_lines(constant))
    suite = flag_lines(collect(fake_suite(3)))
    assert sum("not measured" in line for line in suite) == 1


def test_a_verdict_against_a_method_with_too_little_budget_says_so() -> None:
    good = Effort("b", (), 0.0, 0.01, 0.0, 1.0, None, False)
    assert weakened("a is better than b", good) == "a is better than b"
    poor = replace(good, rise=0.02, last_steps=0.9)
    said = weakened("a is better than b", poor)
    assert said.endswith("(at this budget only; b: search not exhausted and still learning)")


def test_the_front_holds_what_no_other_beats_in_both() -> None:
    points = {"slow": (9.0, 0.5), "fast": (1.0, 0.3), "dominated": (2.0, 0.2), "middle": (3.0, 0.4)}
    assert pareto_front(points) == ["fast", "middle", "slow"]
