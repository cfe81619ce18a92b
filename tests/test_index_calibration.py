"""New or known: fast formulas against slow ones, and what is promised, simulated."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from nearfield.errors import InputError
from nearfield.index.calibration import (
    Calibration,
    auroc,
    calibrate,
    class_weights,
    threshold_at,
    thresholds_at,
)
from nearfield.index.open_set import BestScores, Labelled, best_scores
from nearfield.index.reliability import expected_calibration_error, fit, isotonic, platt


def labelled(classes: int, each: int, seed: int, noise: float = 0.5, dim: int = 16, first: int = 0) -> Labelled:
    """Clusters of vectors of length 1; every content differs."""
    draw = np.random.default_rng(seed)
    codes = np.repeat(np.arange(first, first + classes), each)
    x = np.repeat(draw.standard_normal((classes, dim)), each, 0) + noise * draw.standard_normal((len(codes), dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return Labelled(x.astype(np.float32), codes, np.arange(len(codes)) + 10**6 * first)


def part(whole: Labelled, rows: slice) -> Labelled:
    return Labelled(whole.vectors[rows], whole.classes[rows], whole.contents[rows])


def blocks(whole: Labelled, size: int) -> list[Labelled]:
    return [part(whole, slice(i, i + size)) for i in range(0, len(whole.classes), size)]


def synthetic(seed: int, queries: int = 400, classes: int = 40, ties: bool = False) -> BestScores:
    draw = np.random.default_rng(seed)
    codes = np.repeat(np.arange(classes), queries // classes)
    other = draw.normal(0.4, 0.1, (queries, 1)) + draw.normal(0, 0.05, (classes, 1))[codes]
    same = draw.normal(0.7, 0.12, queries)
    if ties:
        same, other = np.round(same, 1), np.round(other, 1)
    return BestScores(codes, same, other, np.array([1000]))


def test_best_scores_equal_the_obvious_loop() -> None:
    gallery = labelled(7, 5, 0)
    gallery.contents[3] = gallery.contents[2]  # a copy is no match
    queries = part(gallery, slice(None, None, 3))
    found = best_scores(queries, blocks(gallery, 8), fractions=(0.5, 1.0), seed=3)
    draw = np.random.default_rng(3)
    chance = np.concatenate([draw.random(len(block.classes)) for block in blocks(gallery, 8)])
    for q in range(len(queries.classes)):
        same, other, half = -np.inf, -np.inf, -np.inf
        for n in range(len(gallery.classes)):
            score = float(queries.vectors[q] @ gallery.vectors[n])
            if queries.contents[q] == gallery.contents[n]:
                continue
            if queries.classes[q] == gallery.classes[n]:
                same = max(same, score)
            else:
                other = max(other, score)
                half = max(half, score) if chance[n] < 0.5 else half
        np.testing.assert_allclose(
            [found.same[q], found.other[q, 1], found.other[q, 0]], [same, other, half], atol=1e-6
        )
    assert found.sizes.tolist() == [int((chance < 0.5).sum()), 35]


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.5, 0.9]), min_size=1, max_size=30),
    st.sampled_from([0.001, 0.05, 0.1, 0.3, 0.5, 0.99]),
)
def test_the_threshold_is_the_lowest_that_keeps_the_rate(values: list[float], rate: float) -> None:
    scores = np.array(values)
    found = threshold_at(scores, rate)
    assert (scores >= found).mean() <= rate
    lower = scores[scores < found]
    assert not len(lower) or (scores >= lower.max()).mean() > rate  # any lower one accepts too many
    assert not len(lower) or found == np.nextafter(lower.max(), np.inf)


def test_weights_count_as_repetitions() -> None:
    draw = np.random.default_rng(0)
    scores, weights = draw.random(50).round(1), draw.integers(0, 4, (20, 50)).astype(float)
    for rate in (0.01, 0.1, 0.4):
        slow = [threshold_at(np.repeat(scores, row.astype(int)), rate) for row in weights]
        np.testing.assert_array_equal(thresholds_at(scores, weights, rate), slow)
    best = synthetic(1)
    times = class_weights(best, 30, 0)
    assert (times.sum(1) == 400).all()  # classes are of equal size
    for row in times:
        assert all(len(set(row[best.classes == name])) == 1 for name in range(40))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_auroc_is_the_share_of_pairs(known: list[int], unknown: list[int]) -> None:
    slow = np.mean([(a > b) + (a == b) / 2 for a in known for b in unknown])
    assert auroc(np.array(known, float), np.array(unknown, float)) == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_rates_equal_counts(ties: bool) -> None:
    best = synthetic(2, ties=ties)
    found = calibrate(best, 0.05)
    wrong = [u >= found.threshold for u in best.other[:, 0]]
    missed = [not (s >= found.threshold and s > u) for s, u in zip(best.same, best.other[:, 0], strict=True)]
    assert found.fpir[0] == pytest.approx(np.mean(wrong), abs=1e-12)
    assert found.fpir[0] <= 0.05
    assert found.fnir[0] == pytest.approx(np.mean(missed), abs=1e-12)
    assert found.fnir[1] <= found.fnir[0] <= found.fnir[2]
    assert found.interval[0] <= found.threshold <= found.interval[1]
    assert found.accuracy == pytest.approx(np.mean(best.same > best.other[:, 0]))
    for fpir, fnir, t in found.curve:
        assert fpir == pytest.approx(np.mean(best.other[:, 0] >= t))
        assert fnir == pytest.approx(1 - np.mean((best.same >= t) & (best.same > best.other[:, 0])))
    assert [point[0] for point in found.curve] == sorted(point[0] for point in found.curve)
    own = [threshold_at(best.other[best.classes == c, 0], 0.05) for c in range(40)]
    assert found.class_thresholds is not None
    np.testing.assert_allclose(found.class_thresholds, np.quantile(own, (0.05, 0.5, 0.95)))


def test_platt_has_the_largest_likelihood() -> None:
    draw = np.random.default_rng(0)
    scores, weights = draw.normal(0.5, 0.2, 200), draw.uniform(0.5, 2, 200)
    right = (draw.random(200) < 1 / (1 + np.exp(-8 * (scores - 0.5)))).astype(float)
    found = platt(scores, right, weights)
    w = weights / weights.mean()
    up, down = w[right > 0].sum(), w[right == 0].sum()
    target = np.where(right > 0, (up + 1) / (up + 2), 1 / (down + 2))

    def loss(theta: Any) -> float:
        p = 1 / (1 + np.exp(-(theta[0] * scores + theta[1])))
        return float(-(w * (target * np.log(p) + (1 - target) * np.log(1 - p))).sum())

    slow = minimize(loss, (1.0, 0.0), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 5000})
    np.testing.assert_allclose(found.x, slow.x, rtol=1e-5)
    assert loss(np.array(found.x)) <= slow.fun + 1e-9


@pytest.mark.parametrize("right", [np.ones(30), np.zeros(30), (np.arange(30) > 14).astype(float)])
def test_platt_stands_separable_and_constant_outcomes(right: Any) -> None:
    p = platt(np.linspace(0, 1, 30), right, np.ones(30))(np.linspace(-1, 2, 50))
    assert np.isfinite(p).all()
    assert ((p > 0) & (p < 1)).all()


def test_isotonic_is_the_best_non_decreasing_fit() -> None:
    draw = np.random.default_rng(1)
    scores, right, weights = np.sort(draw.random(40)), draw.integers(0, 2, 40).astype(float), draw.uniform(0.5, 2, 40)
    p = isotonic(scores, right, weights)(scores)
    assert (np.diff(p) >= -1e-12).all()
    for i in range(40):  # max-min formula: max over a <= i of min over b >= i of the mean of a..b
        best = max(
            min(np.average(right[a : b + 1], weights=weights[a : b + 1]) for b in range(i, 40)) for a in range(i + 1)
        )
        assert p[i] == pytest.approx(best, abs=1e-9)
    many = fit(np.tile(scores, 30), np.tile(right, 30), np.ones(1200))
    assert (many.kind, fit(scores, right, weights).kind) == ("isotonic", "platt")


def test_calibration_error_by_hand() -> None:
    p = np.array([0.1] * 5 + [0.9] * 5)
    right = np.array([0.0, 0, 0, 0, 1, 1, 1, 1, 1, 0])
    error, bins = expected_calibration_error(p, right, np.ones(10))
    assert error == pytest.approx(0.5 * abs(0.1 - 0.2) + 0.5 * abs(0.9 - 0.8))
    np.testing.assert_allclose(bins, [(0.1, 0.2, 0.5), (0.9, 0.8, 0.5)])
    assert expected_calibration_error(right, right, np.ones(10))[0] == 0


def test_probabilities_hold_for_new_classes() -> None:
    """Fitted on one half of the world, right on the other as often as it says."""
    rule = calibrate(synthetic(3, 4000, 400), 0.05)
    world = synthetic(4, 20000, 2000)
    scores = np.concatenate([world.known, world.unknown])
    right = np.concatenate([world.right, np.zeros(20000)]).astype(float)
    assert expected_calibration_error(rule.reliability(scores), right, np.ones(40000))[0] < 0.03
    assert rule.ece < 0.04


def test_the_promised_rate_holds_on_new_classes() -> None:
    """FPIR of the threshold on fresh classes is the rate on average, and usually inside a widened interval."""
    rates, inside = [], 0
    for seed in range(40):
        found = calibrate(synthetic(seed, 600, 60), 0.1)
        fresh = float((synthetic(1000 + seed, 20000, 2000).unknown >= found.threshold).mean())
        rates.append(fresh)
        inside += found.fpir[1] - 0.01 <= fresh <= found.fpir[2] + 0.01
    assert np.mean(rates) == pytest.approx(0.1, abs=0.015)
    assert inside >= 34


def test_the_p_value_is_valid() -> None:
    """Of queries of known classes at most a share p has a p-value <= p."""
    levels = (0.01, 0.05, 0.1, 0.5)
    hits = dict.fromkeys(levels, 0)
    draw = np.random.default_rng(0)
    for _ in range(400):
        scores = draw.normal(0.6, 0.1, 120)
        best = BestScores(np.repeat(np.arange(20), 6)[:119], scores[:119], np.full((119, 1), -1.0), np.array([500]))
        rule = _rule(best)
        for level in levels:
            hits[level] += rule.p_value(float(scores[119])) <= level
    for level in levels:
        assert hits[level] / 400 <= level + 3 * np.sqrt(level * (1 - level) / 400)
    rule = _rule(synthetic(0))
    assert rule.p_value(-1) == pytest.approx(1 / 401)
    assert rule.p_value(2) == 1


def _rule(best: BestScores) -> Calibration:
    known = tuple(np.sort(best.known).tolist())
    fields = dict.fromkeys(Calibration.__dataclass_fields__)
    return Calibration(**{**fields, "known": known})  # type: ignore[arg-type]


def test_thresholds_grow_with_the_gallery() -> None:
    """The largest of n similarities grows with n: the threshold of a small gallery accepts too much of a large one."""
    gallery = labelled(400, 10, 0, noise=1.0)
    queries = part(gallery, slice(None, None, 4))
    best = best_scores(queries, blocks(gallery, 512))
    found = calibrate(best, 0.05)
    sizes, thresholds = zip(*found.trend, strict=True)
    assert sizes[-1] == 4000
    assert found.growth > 0.005
    assert thresholds[-1] - thresholds[0] > 0.03
    assert (best.unknown >= thresholds[0]).mean() > 0.1  # twice the rate that was asked for
    half = best_scores(queries, blocks(gallery, 512), fractions=(1 / 16, 1 / 8, 1 / 4))
    ahead = calibrate(BestScores(half.classes, half.same, half.other, half.sizes), 0.05, gallery_size=4000)
    assert ahead.threshold == pytest.approx(found.threshold, abs=0.02)  # extrapolated from a quarter
    assert calibrate(half, 0.05).threshold < ahead.threshold
    assert ahead.gallery_size == 4000


def test_it_is_stored_and_read_again() -> None:
    found = calibrate(synthetic(5), 0.02)
    again = Calibration.of(json.loads(json.dumps(found.facts())))
    assert again == found
    for score in (-1.0, found.threshold, 0.5, 1.0):
        assert again.probability(score) == found.probability(score)
    assert again.is_new(np.nextafter(found.threshold, -1))
    assert not again.is_new(found.threshold)


def test_too_little_to_calibrate_on() -> None:
    best = synthetic(0, 400, 4)
    with pytest.raises(InputError, match="5 classes"):
        calibrate(best, 0.05)
    for rate in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="false_accept must be"):
            calibrate(synthetic(0), rate)
