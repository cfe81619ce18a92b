"""The search: declared ranges, the published setting first, and suggestions that depend on results alone."""

from __future__ import annotations

from math import log
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfield import losses
from nearfield.bench.search import (
    FACTOR,
    Tried,
    apply,
    as_key,
    best_of,
    distributions,
    draw,
    frozen_trial,
    published,
    space_of,
    suggest,
)
from nearfield.config import MethodConfig, OptimizerConfig, RunConfig, SamplerConfig
from nearfield.errors import InputError
from nearfield.losses.registry import Choice, Range, Real, Whole
from nearfield.training.build import build_loss


def run_of(name: str, **params: Any) -> RunConfig:
    return RunConfig(method=MethodConfig(name=name, params=params))


def inside(each: Range, value: Any) -> bool:
    if isinstance(each, Choice):
        return value in each.values
    return bool(each.low * (1 - 1e-3) <= value <= each.high * (1 + 1e-3))  # four digits are kept


@pytest.mark.parametrize("name", losses.names())
def test_every_method_has_a_published_setting_and_settings_that_can_be_built(name: str) -> None:
    run = run_of(name)
    space = space_of(run)
    first = published(run, space)
    assert first["optimizer.lr"] == run.optimizer.lr
    assert set(first) <= set(space)
    for number in range(3):
        setting = draw(space, f"{name} {number}")
        assert set(setting) == set(space)
        assert all(inside(space[key], value) for key, value in setting.items())
        changed = apply(run, setting)
        assert changed.optimizer.lr == setting["optimizer.lr"]
        known = {"num_classes": 8, "dim": 16, "features": 16}
        needed: dict[str, Any] = {key: value for key, value in known.items() if key in losses.method(name).parameters}
        losses.create(name, **{**needed, **changed.method.params})


def test_rates_are_searched_around_the_benchs_own_and_given_parameters_stay() -> None:
    plain, proxies = run_of("multi_similarity"), run_of("proxy_softmax", temperature=0.1)
    assert "optimizer.loss_lr" not in space_of(plain)
    assert set(space_of(proxies)) == {"optimizer.lr", "optimizer.loss_lr", "proxy_start"}
    rate = space_of(plain)["optimizer.lr"]
    assert isinstance(rate, Real)
    assert rate.log
    assert (rate.low, rate.high) == pytest.approx((plain.optimizer.lr / FACTOR, plain.optimizer.lr * FACTOR))
    assert apply(proxies, {"optimizer.lr": 0.5}).method.params == {"temperature": 0.1}


def test_the_parameters_of_a_base_are_searched_too() -> None:
    """DRML is tuned as its base is; its first trial is the released setting, not the base's own default."""
    run = run_of("drml")
    alone = losses.method("proxy_anchor").space
    space = space_of(run)
    assert {f"method.params.base_params.{key}": each for key, each in alone.items()}.items() <= space.items()
    first = published(run, space)
    assert (first["method.params.base_params.alpha"], first["method.params.base_params.delta"]) == (64.0, 0.2)
    assert build_loss(apply(run, first), 5).get_submodule("whole").alpha == 64.0
    tuned = apply(run, {"method.params.base_params.alpha": 9.0})
    assert tuned.method.params == {"base_params": {"alpha": 9.0}}
    given = space_of(run_of("drml", base_params={"alpha": 9.0}))
    assert "method.params.base_params.alpha" not in given
    assert "method.params.base_params.delta" in given
    margin = space_of(run_of("drml", base="margin"))
    assert {key for key in margin if "base_params" in key} == {
        "method.params.base_params.alpha",
        "method.params.base_params.beta",
    }
    assert not any("base_params" in key for key in space_of(run_of("dreml", base="logits", meta_classes=16)))


def share(each: Real | Whole, value: float) -> float:
    """Where a value lies in its range, on the scale that is searched: 0 at the lower end, 1 at the upper."""
    ends = (each.low, value, each.high)
    low, at, high = (log(x) for x in ends) if each.log else ends
    return (at - low) / (high - low)


@pytest.mark.parametrize("name", losses.names())
def test_every_published_setting_lies_well_inside_the_space(name: str) -> None:
    """A twentieth of the range from either end, unless the parameter ends there by its nature."""
    found = losses.method(name)
    defaults = {key: p.default for key, p in found.parameters.items()}
    for preset, values in {"default": {}, **found.presets}.items():
        for key, each in found.space.items():
            value = {**defaults, **values}[key]
            at, (low, high) = share(each, value), (each.low, each.high)
            inside_low = at >= 0.05 or (low == 0 <= at)  # at 0 a margin or a weight ends by its nature, at 1 a share
            inside_high = at <= 0.95 or (low, value, high) == (0, 1, 1)
            where = f"{preset}: {key} = {value} lies at {at:.2f} of {each}"
            assert inside_low, where
            assert inside_high, where


def test_settings_known_to_be_good_lie_well_inside() -> None:
    """Scale 11.5, proxies at 0.16 and 1.7e-3 for the network beat what eight trials found on CUB's features."""
    for name, key in (("arcface", "scale"), ("cosface", "scale"), ("proxy_anchor", "alpha")):
        run = RunConfig(method=MethodConfig(name=name), optimizer=OptimizerConfig(lr=5e-4))
        space = space_of(run)
        for where, value in ((f"method.params.{key}", 11.5), ("optimizer.loss_lr", 0.16), ("optimizer.lr", 1.7e-3)):
            each = space[where]
            assert isinstance(each, Real)
            assert 0.1 < share(each, value) < 0.9, (name, where)


def test_known_remedies_are_searched_for_every_method_of_their_kind() -> None:
    for name in losses.names():
        found, space = losses.method(name), space_of(run_of(name))
        assert ("proxy_start" in space) == found.has_proxies
        by_class = found.within_batch and found.sampler in ("m_per_class", "fastap")
        assert ("sampler.per_class" in space) == by_class
    assert space_of(run_of("fastap"))["sampler.name"] == Choice(("fastap", "m_per_class"))
    own = RunConfig(method=MethodConfig(name="triplet"), sampler=SamplerConfig(batch_size=48, per_class=2))
    assert space_of(own)["sampler.per_class"] == Choice((2, 4, 8))
    odd = RunConfig(method=MethodConfig(name="triplet"), sampler=SamplerConfig(batch_size=30, per_class=5))
    assert "sampler.per_class" not in space_of(odd)


def test_a_setting_that_no_run_can_have_is_refused() -> None:
    with pytest.raises(InputError, match="lr"):
        apply(run_of("fastap"), {"optimizer.lr": -1.0})


SPACE: dict[str, Range] = {"optimizer.lr": Real(1e-4, 1e-1, log=True), "method.params.bins": Whole(5, 40)}


def peak(setting: dict[str, Any]) -> float:
    """Best near a rate of 0.01 with 10 bins."""
    from math import log10

    return -abs(log10(setting["optimizer.lr"]) + 2) - abs(float(setting["method.params.bins"]) - 10) / 20


def history(count: int, seed: int) -> tuple[Tried, ...]:
    drawn = [draw(SPACE, f"{seed} {number}") for number in range(count)]
    return tuple(Tried(as_key(each), (peak(each), peak(each) - 0.1), number != 2) for number, each in enumerate(drawn))


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 8), seed=st.integers(0, 99))
def test_suggestions_are_a_function_of_the_results(count: int, seed: int) -> None:
    from nearfield.bench.search import _suggest

    first = suggest(SPACE, history(count, seed), "a seed")
    _suggest.cache_clear()
    assert suggest(dict(reversed(SPACE.items())), history(count, seed), "a seed") == first
    assert all(inside(SPACE[key], value) for key, value in first.items())
    assert suggest(SPACE, history(count, seed), "another seed") != first


def test_the_search_gets_nearer_to_the_peak_than_chance() -> None:
    def searched(seed: int) -> float:
        tried = list(history(4, seed))
        for number in range(4, 12):
            setting = suggest(SPACE, tuple(tried), f"{seed} {number}")
            tried.append(Tried(as_key(setting), (peak(setting),), True))
        return max(each.folds[0] for each in tried[4:])

    def drawn(seed: int) -> float:
        return max(peak(draw(SPACE, f"{seed} {number}")) for number in range(4, 12))

    assert fmean(map(searched, range(10))) > fmean(map(drawn, range(10)))


def test_published_values_outside_of_their_range_are_told_as_its_end() -> None:
    tried = Tried((("method.params.bins", 100), ("optimizer.lr", 1e-9)), (0.5,), True)
    told = frozen_trial(tried, distributions(SPACE))
    assert told.params == {"method.params.bins": 40, "optimizer.lr": 1e-4}
    assert told.value == 0.5
    suggest(SPACE, (tried, *history(3, 0)), "a seed")


def test_the_best_is_the_first_complete_one_of_the_highest_mean() -> None:
    def of(complete: bool, *folds: float) -> Tried:
        return Tried((), folds, complete)

    assert best_of({0: of(True, 0.1, 0.3), 1: of(True, 0.3, 0.2), 2: of(True, 0.2, 0.3), 3: of(False, 0.9)}) == 1
    assert best_of({0: of(False), 1: of(False, 0.9)}) == 0
