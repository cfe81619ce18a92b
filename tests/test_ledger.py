"""The bias ledger on results without noise, where every number is known, and on incomplete ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benches import CONCATENATED, Noise, fake_results
from hypothesis import given
from hypothesis import strategies as st

from nearfield.analysis import statistics as ns
from nearfield.analysis.bias import Entry, ledger, ledger_markdown
from nearfield.bench.results import BenchResults, Part
from nearfield.errors import InputError

SILENT = Noise(0.0, 0.0, 0.0, 0.0)
TRUTH = {"a": 0.40, "b": 0.35, "c": 0.30, "d": 0.25}
VARIANTS = {
    "untuned": {"a": 0.20, "b": 0.33, "c": 0.30, "d": 0.22},
    "dim64": {"a": 0.35, "b": 0.32, "c": 0.28, "d": 0.26},
    "dim512": {"a": 0.45, "b": 0.46, "c": 0.36, "d": 0.27},
    "plain": {"b": 0.30, "c": 0.31},
}
PEAKS = {"a": 0.0, "b": 0.02, "c": 0.12, "d": 0.02}
RECALL = {"a": 0.5, "b": 0.6, "c": 0.7, "d": 0.8}


def entries(results: BenchResults, part: Part = "separated") -> dict[str, Entry]:
    return {entry.name: entry for entry in ledger(results, part=part)}


@pytest.fixture(scope="module")
def found() -> dict[str, Entry]:
    return entries(fake_results(TRUTH, noise=SILENT, variants=VARIANTS, peaks=PEAKS, recall=RECALL))


def order(entry: Entry) -> str:
    return "".join(place.label for place in entry.biased)


def test_every_sin_is_there_and_the_honest_ranking_is_the_truth(found: dict[str, Entry]) -> None:
    both = ["chance", "best seed", "untuned", "mine tuned", "64 dims", "512 dims", "mine with 512 dims", "plain", "R@1"]
    assert list(found) == [*both, "best test epoch", "mean of maxima", "concatenated"]
    for name in ("best seed", "untuned", "64 dims", "512 dims", "R@1", "best test epoch", "concatenated"):
        assert [(p.label, p.rank) for p in found[name].honest] == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
        assert [p.score for p in found[name].honest] == pytest.approx(list(TRUTH.values()))


def test_the_untuned_ranking(found: dict[str, Entry]) -> None:
    entry = found["untuned"]
    assert order(entry) == "bcda"
    assert entry.tau == pytest.approx(0.0)  # a falls past three, the other three pairs stand
    assert entry.gains == pytest.approx({"a": -0.20, "b": -0.02, "c": 0.0, "d": -0.03})
    assert entry.mean_gain == pytest.approx(-0.0625)
    assert entry.largest_gain is not None
    assert entry.largest_gain[0] == "a"
    assert entry.largest_gain[1] == pytest.approx(-0.20)
    assert entry.moves == {"b": 1, "c": 1, "d": 1, "a": -3}
    assert entry.leader_changes
    assert entry.leaders == ("b",)


def test_tuning_mine_alone(found: dict[str, Entry]) -> None:
    entry = found["mine tuned"]  # against b .33, c .30, d .22, a .20
    assert entry.in_turns
    assert [place.label for place in entry.honest] == ["b", "c", "d", "a"]
    assert {place.label: place.rank for place in entry.biased} == {"b": 1, "c": 2, "d": 3, "a": 1}
    assert {place.label: place.score for place in entry.biased} == pytest.approx(TRUTH)
    assert entry.moves == {"a": 3, "b": 0, "c": 0, "d": 0}
    assert entry.leaders == ("b", "a")
    assert entry.leader_changes
    assert entry.tau == pytest.approx((1 + 1 + 1 + 0) / 4)
    assert entry.gains == pytest.approx({"a": 0.20, "b": 0.02, "c": 0.0, "d": 0.03})


def test_dims_for_all_and_for_mine_alone(found: dict[str, Entry]) -> None:
    assert order(found["64 dims"]) == "abcd"
    assert found["64 dims"].tau == pytest.approx(1.0)
    assert not found["64 dims"].leader_changes
    assert order(found["512 dims"]) == "bacd"
    alone = found["mine with 512 dims"]  # against a .35, b .32, c .28, d .26
    assert alone.moves == {"c": 2, "b": 1, "a": 0, "d": 0}
    assert alone.leaders == ("a", "b", "c")
    assert alone.baseline == "64 dims for every method"


def test_plain_ranks_only_those_that_have_it(found: dict[str, Entry]) -> None:
    entry = found["plain"]
    assert [place.label for place in entry.honest] == ["b", "c"]
    assert order(entry) == "cb"
    assert entry.missing == ("a", "d")
    assert entry.tau == pytest.approx(-1.0)


def test_one_step_for_all_runs_gains_less_than_a_step_for_each(found: dict[str, Entry]) -> None:
    assert found["best test epoch"].gains == pytest.approx({label: peak / 2 for label, peak in PEAKS.items()})
    assert found["mean of maxima"].gains == pytest.approx(PEAKS)
    assert order(found["best test epoch"]) == "abcd"  # .40, .36, .36, .26
    assert order(found["mean of maxima"]) == "cabd"
    assert found["mean of maxima"].leader_changes


def test_another_metric_has_no_gain(found: dict[str, Entry]) -> None:
    entry = found["R@1"]
    assert order(entry) == "dcba"
    assert entry.tau == pytest.approx(-1.0)
    assert (entry.gains, entry.mean_gain, entry.largest_gain) == (None, None, None)


def test_concatenation_lifts_everybody(found: dict[str, Entry]) -> None:
    assert found["concatenated"].gains == pytest.approx(dict.fromkeys(TRUTH, CONCATENATED))
    assert found["concatenated"].tau == pytest.approx(1.0)


def test_the_best_seed_is_the_best_of_as_many_as_all_have() -> None:
    seeds = {"a": range(5), "b": range(3)}
    results = fake_results({"a": 0.3, "b": 0.3}, seeds=seeds)
    entry = entries(results)["best seed"]
    for method in results.methods:
        scores = [seed.separated["map@r"] for seed in method.seeds]
        assert (entry.gains or {})[method.label] == pytest.approx(ns.best_of_n_bias(scores, 3))
    assert entry.words == "The best of 3 seeds instead of their mean."
    whole = fake_results({"a": 0.3, "b": 0.3})
    best = {place.label: place.score for place in entries(whole)["best seed"].biased}
    assert best == pytest.approx({m.label: max(s.separated["map@r"] for s in m.seeds) for m in whole.methods})


def test_chance_is_one_half_of_the_seeds_against_the_other() -> None:
    results = fake_results(TRUTH, seeds=5)
    entry = entries(results)["chance"]
    scores = {m.label: [s.separated["map@r"] for s in m.seeds] for m in results.methods}
    assert {p.label: p.score for p in entry.honest} == pytest.approx({k: sum(v[:3]) / 3 for k, v in scores.items()})
    assert {p.label: p.score for p in entry.biased} == pytest.approx({k: sum(v[3:]) / 2 for k, v in scores.items()})


# ---------------------------------------------------------------------------------------------------------------
# What is not there


def test_a_bare_bench_has_only_the_sins_that_need_no_more_runs() -> None:
    assert list(entries(fake_results(TRUTH))) == ["chance", "best seed", "R@1", "concatenated"]
    assert list(entries(fake_results(TRUTH, seeds=1, folds=1))) == ["R@1"]
    assert entries(fake_results({"a": 0.5})) == {}
    assert ledger(fake_results({})) == []


def test_the_concatenated_ledger_has_no_sins_of_single_networks() -> None:
    found = entries(fake_results(TRUTH, noise=SILENT, variants=VARIANTS, peaks=PEAKS), "concatenated")
    assert not {"best test epoch", "mean of maxima", "concatenated"} & set(found)
    assert found["untuned"].gains == pytest.approx({"a": -0.20, "b": -0.02, "c": 0.0, "d": -0.03})


def test_a_variant_with_fewer_seeds_is_compared_over_those() -> None:
    results = fake_results(TRUTH, seeds=4, variants=VARIANTS)
    short = tuple(
        replace(method, variants={**method.variants, "untuned": method.variants["untuned"][2:3]})
        for method in results.methods
    )
    entry = entries(replace(results, methods=short))["untuned"]
    for place in entry.honest:
        (method,) = (m for m in short if m.label == place.label)
        assert place.score == pytest.approx(method.seeds[2].separated["map@r"])


def test_curves_of_unequal_length_share_their_steps() -> None:
    results = fake_results(TRUTH, noise=SILENT, peaks=dict.fromkeys(TRUTH, 0.1))
    cut = []
    for method in results.methods:
        first = method.seeds[0]
        folds = (replace(first.folds[0], oracle=first.folds[0].oracle[:2]), *first.folds[1:])  # ends before step 300
        cut.append(replace(method, seeds=(replace(first, folds=folds), *method.seeds[1:])))
    entry = entries(replace(results, methods=tuple(cut)))["best test epoch"]
    assert all(gain < 0.05 - 1e-9 for gain in (entry.gains or {}).values())


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(InputError, match="map@r"):
        ledger(fake_results(TRUTH), metric="mapr")


# ---------------------------------------------------------------------------------------------------------------
# Laws and text


@given(st.lists(st.tuples(st.floats(0.1, 0.9), st.floats(0.1, 0.9)), min_size=2, max_size=8))
def test_laws_of_every_entry(scores: list[tuple[float, float]]) -> None:
    truth = {f"m{i}": honest for i, (honest, _) in enumerate(scores)}
    variants = {"untuned": {f"m{i}": other for i, (_, other) in enumerate(scores)}}
    found = entries(fake_results(truth, seeds=2, folds=1, trials=0, queries=2, noise=SILENT, variants=variants))
    for entry in found.values():
        assert {p.label for p in entry.honest} == {p.label for p in entry.biased} == set(truth)
        assert sum(p.rank for p in entry.honest) == pytest.approx(len(scores) * (len(scores) + 1) / 2)
        assert entry.tau is None or -1 - 1e-9 <= entry.tau <= 1 + 1e-9
        if not entry.in_turns:
            assert sum(entry.moves.values()) == pytest.approx(0)
    alone = found["mine tuned"]
    for label, move in alone.moves.items():  # a higher score never costs a place, a lower one never wins one
        assert move * (alone.gains or {})[label] >= 0
    assert ledger_markdown(list(found.values()))


def test_the_table(found: dict[str, Entry]) -> None:
    text = ledger_markdown(list(found.values()))
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    cells = [cell.strip() for cell in lines["untuned"].strip("|").split("|")]
    assert cells == ["untuned", "a → b", "4", "0.00", "-6.25", "-20.00 (a)", "1.5", "-3 (a)"]
    assert "2 can lead" in lines["mine tuned"]
    assert "| the same" in lines["64 dims"]
    assert [cell.strip() for cell in lines["R@1"].split("|")[5:7]] == ["–", "–"]
    assert "Against: the published setting for every method." in text
    assert "No runs for it: a, d." in text


def test_longer_training_for_all_and_for_one_method_alone() -> None:
    longer = {"longer": {"a": 0.40, "b": 0.42, "c": 0.30, "d": 0.41}}
    found = entries(fake_results(TRUTH, noise=SILENT, variants=longer))
    assert found["twice the steps"].gains == pytest.approx({k: longer["longer"][k] - TRUTH[k] for k in TRUTH})
    assert not found["twice the steps"].in_turns
    assert set(found["mine trained longer"].leaders) == {k for k, v in longer["longer"].items() if v >= TRUTH["a"]}
