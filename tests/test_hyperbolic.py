"""The loss in hyperbolic space: equal to its slow reference, its limits, and ranking by the same distance.

Axes: N items, D dims.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import grad_of, pair_loss
from reference import batches, hyperbolic_of_pairs, in_ball, leaf_pairs, pairs_of, reference_batches
from reference import hyperbolic as slow
from torch import Tensor

from nearfield.config import RunConfig
from nearfield.errors import InputError
from nearfield.losses.hyperbolic import Hyperbolic
from nearfield.metrics import nearest_neighbours, retrieval_metrics
from nearfield.metrics.ball import Ball, ball_of, to_ball
from nearfield.pairs import pair_weights
from nearfield.pairs.measures import MEASURES
from nearfield.training.build import distance_of

ZOO, REFERENCE_ZOO = batches(), reference_batches()
SETTINGS: list[dict[str, Any]] = [{}, {"c": 1.0, "clip": 1.0}, {"c": 5.0, "clip": 9.0, "temperature": 1.0}]


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    size = float(expected.detach().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=0.0, atol=tolerance * size + 1e-12)


def compare(params: dict[str, Any], *given: Tensor, tolerance: float = 1e-9) -> None:
    """Value, weights between points of the ball, and gradients of queries and references."""
    x, labels, *rest = given
    loss = pair_loss("hyperbolic", **params)
    grads = []
    for function in (loss, lambda *args: slow(*args, **params)):
        vectors = [v.clone().requires_grad_() for v in (x, *rest[:1])]
        value = function(vectors[0], labels, *vectors[1:], *rest[1:])
        value.backward()
        grads.append([value.detach(), *map(grad_of, vectors)])
    for ours, theirs in zip(*grads, strict=True):
        close(ours, theirs, tolerance)
    ball = {key: value for key, value in params.items() if key in ("c", "clip")}
    others, other_labels = (in_ball(rest[0], **ball), rest[1]) if rest else (None, None)
    leaves = leaf_pairs(pairs_of(in_ball(x, **ball), labels, others, other_labels, normalize=False))
    rest_of = {key: value for key, value in params.items() if key != "clip"}
    (weights,) = torch.autograd.grad(hyperbolic_of_pairs(leaves, **rest_of), leaves.s)
    close(pair_weights(loss, *given), weights, tolerance)


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("batch", ZOO)
def test_equals_its_reference(batch: str, params: dict[str, Any]) -> None:
    compare(params, *ZOO[batch], tolerance=1e-6 if "collapsed" in batch else 1e-9)


@pytest.mark.parametrize("batch", ["random", "unequal", "duplicates", "separated", "two_same", "all_distinct"])
def test_the_released_form_equals_its_reference(batch: str) -> None:
    compare({"negatives": "two_views"}, *ZOO[batch])


@pytest.mark.parametrize("batch", ["unequal", "duplicates", "one_reference", "unseen_classes", "itself"])
def test_equals_its_reference_against_references(batch: str) -> None:
    compare({}, *REFERENCE_ZOO[batch])


@settings(deadline=None, max_examples=15)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), dim=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_any_batch_equals_its_reference(sizes: list[int], dim: int, seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    if len(labels) < 2:
        return
    x = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    compare({}, x, labels, tolerance=1e-7)
    compare({"negatives": "two_views"}, x, labels, tolerance=1e-7)


def test_views_are_of_one_batch() -> None:
    x, labels = ZOO["random"]
    with pytest.raises(InputError, match="compares a batch with itself"):
        pair_loss("hyperbolic", preset="released")(x, labels, x, labels)


def test_without_curvature_it_is_twice_the_euclidean_distance() -> None:
    x = ZOO["random"][0] / 4
    c = 1e-10
    points = to_ball(x, c, 1e3)
    a = points.square().sum(1, keepdim=True)
    squares = (points[:, None] - points).square().sum(2)
    found = MEASURES["hyperbolic"].forward(squares, a, a[:, 0]) / math.sqrt(c)
    close(found, 2 * torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"), 1e-6)


def test_the_measure_has_gradients_to_both_norms() -> None:
    """dD/dd2 = 2c / (AB q), dD/d|x|^2 = 2 c^2 d2 / (A^2 B q) and likewise for |y|^2, at c = 1."""
    generator = torch.Generator().manual_seed(0)
    a, b, u = (0.8 * torch.rand(6, 1, generator=generator, dtype=torch.float64) for _ in range(3))
    leaves = [v.clone().requires_grad_() for v in (u, a, b)]
    d = torch.acosh(1 + 2 * leaves[0] / ((1 - leaves[1]) * (1 - leaves[2])))
    want = torch.autograd.grad(d.sum(), leaves)
    measure = MEASURES["hyperbolic"]
    x = measure.forward(u, a, b)
    close(x, d)
    by_dot = measure.to_dot(torch.ones_like(x), x, a, b)
    close(by_dot, -2 * want[0])
    assert measure.stretch is not None
    f, g = measure.stretch(x, a, b)
    close(-f * by_dot, 2 * (want[0] + want[1]))
    close(-g * by_dot, 2 * (want[0] + want[2]))


def test_points_are_inside_the_ball() -> None:
    x = torch.cat([torch.randn(5, 3) * 10.0**k for k in range(-20, 20, 5)])
    for c, clip in ((0.1, 2.3), (1.0, 100.0), (1e-4, 1e4)):
        radius = to_ball(x, c, clip).norm(dim=1)
        assert float(radius.max()) <= 1 - 1e-3 + 1e-6
    zero = torch.zeros(2, 3, requires_grad=True)
    to_ball(zero, 0.1, 2.3).sum().backward()
    assert bool(grad_of(zero).isfinite().all())
    close(to_ball(x[:5].double(), 0.1, 2.3), in_ball(x[:5].double()))


def test_ranks_as_the_loss_measures() -> None:
    """Of each query the nearest others, and the distances, with another ball than the default."""
    x = 0.4 * ZOO["random"][0]
    loss = Hyperbolic(c=0.7, clip=1.5)
    points, _ = loss.lift(x, None)
    a = points.square().sum(1, keepdim=True)
    far = MEASURES["hyperbolic"].forward((points[:, None] - points).square().sum(2), a, a[:, 0]) / math.sqrt(0.7)
    far.fill_diagonal_(math.inf)
    scores, near = nearest_neighbours(x, k=5, distance="hyperbolic:0.7:1.5")
    assert torch.equal(near, far.argsort(1)[:, :5])
    close(-scores.double(), far.sort(1).values[:, :5], 1e-6)
    assert not torch.equal(near, nearest_neighbours(x, k=5)[1])


def test_runs_of_the_method_are_ranked_by_its_distance() -> None:
    def of(name: str, distance: str = "cosine", **params: Any) -> str:
        given = {"distance": distance, "method": {"name": name, "params": params}}
        return distance_of(RunConfig.model_validate(given))

    assert of("hyperbolic") == of("hyperbolic", "hyperbolic") == "hyperbolic:0.1:2.3"
    assert of("hyperbolic", c=0.5, clip=1.0) == "hyperbolic:0.5:1"
    assert of("hyperbolic", "euclidean") == "euclidean"
    assert of("triplet") == "cosine"
    assert of("triplet", "hyperbolic") == "hyperbolic"


def test_the_name_of_the_distance() -> None:
    assert ball_of("cosine") is None
    assert ball_of("hyperbolic") == Ball(0.1, 2.3)
    assert ball_of("hyperbolic:0.5:3") == Ball(0.5, 3.0)
    for wrong in ("hyperbolic:x", "hyperbolic:1:2:3", "hyperbolic:-1:2", "hyperbolic:nan:1", "hyperbolic:"):
        with pytest.raises(InputError, match="hyperbolic:C:CLIP"):
            ball_of(wrong)
        with pytest.raises(InputError, match="hyperbolic:C:CLIP"):
            retrieval_metrics(ZOO["random"][0], ZOO["random"][1], distance=wrong)
