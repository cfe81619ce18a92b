"""Structured clustering and prototypes: equal to their slow references, and the search finds what it should.

Legend: N items, D dims, C classes, S medoids. All in float64 unless said.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import pair_loss
from reference import Pairs, batches, leaf_pairs, pairs_of, prepare
from reference_clusters import Clusters, nmi, prototypical, prototypical_of_x, structured_clustering
from torch import Tensor

from nearfield import losses
from nearfield.errors import InputError
from nearfield.losses.medoids import MedoidSearch, StructuredMargin
from nearfield.pairs import pair_weights

ZOO = batches()
EPS = float(np.finfo(np.float64).eps)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    size = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0.0, atol=tolerance * size + 1e-12)


def value_and_gradient(loss: Callable[..., Tensor], x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = loss(x, labels)
    (grad,) = torch.autograd.grad(value, x)
    return value.detach(), grad


def agree(
    name: str, slow: Callable[..., Tensor], x: Tensor, labels: Tensor, tolerance: float = 1e-9, **params: Any
) -> None:
    """Value, gradient of the embeddings and pair weights."""
    loss = pair_loss(name, **params)
    normalize = params.pop("normalize", name == "structured_clustering")
    value, grad = value_and_gradient(loss, x, labels)
    weights = pair_weights(loss, x, labels)
    x = x.clone().requires_grad_()
    pairs = pairs_of(x, labels, normalize=normalize)
    leaves = leaf_pairs(pairs)
    expected = slow(leaves, **params)
    parts = torch.autograd.grad(expected, (leaves.s, leaves.row_sq, leaves.col_sq), materialize_grads=True)
    (expected_grad,) = torch.autograd.grad((pairs.s, pairs.row_sq, pairs.col_sq), x, parts)
    close(value, expected.detach(), tolerance)
    close(weights, parts[0], tolerance)
    close(grad, expected_grad, tolerance)


@st.composite
def any_batch(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """2 to 16 rows of 2 to 5 dims, any labels, some vectors more than once."""
    labels = draw(st.lists(st.integers(0, draw(st.integers(0, 5))), min_size=2, max_size=16))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(len(labels), draw(st.integers(2, 5)), generator=generator, dtype=torch.float64)
    rows = st.integers(0, len(labels) - 1)
    for twin, other in draw(st.lists(st.tuples(rows, rows), max_size=4)):
        x[twin] = x[other]
    return x, torch.tensor(labels)


@st.composite
def lattice(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Few positions for many items: squared distances are integers, most scores are tied, medoids coincide."""
    labels = draw(st.lists(st.integers(0, 3), min_size=2, max_size=12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    wide, dims = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return torch.randint(0, wide + 1, (len(labels), dims), generator=generator).double(), torch.tensor(labels)


# ------------------------------------------------------------------------------------------------ structured clustering

SETTINGS: list[dict[str, Any]] = [
    {},
    {"squared": True},
    {"gamma": 0.0},
    {"gamma": 20.0},
    {"sweeps": 0},
    {"gamma": 3.0, "squared": True, "sweeps": 1, "normalize": False},
]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("batch", [name for name in ZOO if name != "large_norms"])
def test_structured_clustering_equals_reference(batch: str, params: dict[str, Any]) -> None:
    agree("structured_clustering", structured_clustering, *ZOO[batch], **params)


@settings(deadline=None, max_examples=20)
@given(batch=any_batch(), gamma=st.sampled_from([0.1, 1.0, 5.0]), squared=st.booleans())
def test_structured_clustering_equals_reference_on_any_batch(
    batch: tuple[Tensor, Tensor], gamma: float, squared: bool
) -> None:
    agree("structured_clustering", structured_clustering, *batch, 1e-7, gamma=gamma, squared=squared)


@settings(deadline=None, max_examples=40)
@given(batch=lattice(), gamma=st.sampled_from([0.5, 2.0, 8.0]))
def test_structured_clustering_breaks_ties_as_documented(batch: tuple[Tensor, Tensor], gamma: float) -> None:
    agree("structured_clustering", structured_clustering, *batch, gamma=gamma, squared=True, normalize=False)


def test_a_medoid_keeps_itself_when_another_takes_its_place() -> None:
    x = torch.tensor([0, 1, 1, 1, 1, 0, 0], dtype=torch.float64)[:, None]
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 2])
    params: dict[str, Any] = {"gamma": 100.0, "squared": True, "normalize": False}
    agree("structured_clustering", structured_clustering, x, labels, **params)
    assert MedoidSearch((x - x.T).abs().numpy(), labels.numpy(), 100.0, EPS).medoids(5).tolist() == [0, 1, 2]


@settings(deadline=None, max_examples=30)
@given(batch=lattice(), seed=st.integers(0, 99))
def test_rounding_does_not_decide_among_equals(batch: tuple[Tensor, Tensor], seed: int) -> None:
    x, labels = batch
    labels, order = labels.sort(stable=True)
    d = (x[order, None] - x[order]).square().sum(-1).sqrt()
    noise = torch.randn(d.shape, generator=torch.Generator().manual_seed(seed), dtype=d.dtype)
    truth = labels.unique(return_inverse=True)[1].numpy()
    exact, rounded = (MedoidSearch(m.numpy(), truth, 1.0, EPS) for m in (d, d * (1 + 2.0**-52 * noise)))
    medoids = exact.medoids(5)
    assert np.array_equal(rounded.medoids(5), medoids)
    places = np.arange(len(medoids))
    assert np.array_equal(rounded.assign(medoids, places)[1], exact.assign(medoids, places)[1])
    assert np.array_equal(rounded.true_medoids(), exact.true_medoids())


@settings(deadline=None, max_examples=20)
@given(batch=any_batch(), seed=st.integers(0, 99))
def test_order_and_blocks_do_not_matter_even_among_small_clusters(batch: tuple[Tensor, Tensor], seed: int) -> None:
    """In a cluster of two each member is as good a medoid as the other."""
    x, labels = batch
    x = x + 1e-3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)  # no twins
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    value, grad = value_and_gradient(losses.create("structured_clustering"), x, labels)
    for rows in (None, 1, 3):
        loss = losses.create("structured_clustering", block_rows=rows)
        moved, moved_grad = value_and_gradient(loss, x[order], 7 - labels[order])
        close(moved, value)
        close(moved_grad, grad[order])


def search_of(clusters: Clusters, pairs: Pairs) -> MedoidSearch:
    """The fast search on the reference's distances; items are in label order."""
    truth = pairs.row_labels.unique(return_inverse=True)[1]
    return MedoidSearch(np.array(clusters.d, dtype=np.float64), truth.numpy(), clusters.gamma, EPS)


@settings(deadline=None, max_examples=30)
@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=8),
    seed=st.integers(0, 2**31),
    gamma=st.sampled_from([0.3, 1.0, 4.0]),
)
def test_search_never_exceeds_the_maximum_over_all_sets(labels: list[int], seed: int, gamma: float) -> None:
    y = torch.tensor(sorted(labels))
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pairs = pairs_of(x, y)
    clusters = Clusters(pairs, gamma, squared=False)
    medoids = search_of(clusters, pairs).medoids(5).tolist()
    assert medoids == clusters.search(5)
    assert len(set(medoids)) == len(set(labels))
    reached, maximum = clusters.objective(medoids), clusters.maximum()
    assert reached <= maximum + 1e-12
    truth = -sum(clusters.d[i][j] for i, j in enumerate(clusters.true_medoids()))
    value = float(losses.create("structured_clustering", gamma=gamma)(x, y))
    assert value == pytest.approx(max(reached - truth, 0.0), abs=1e-11)
    assert value <= max(maximum - truth, 0.0) + 1e-11


def test_search_often_finds_the_maximum_and_sometimes_misses_it() -> None:
    generator, found = torch.Generator().manual_seed(0), 0
    y = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    for _ in range(30):
        pairs = pairs_of(torch.randn(8, 3, generator=generator, dtype=torch.float64), y)
        clusters = Clusters(pairs, 1.0, squared=False)
        found += clusters.objective(search_of(clusters, pairs).medoids(5).tolist()) > clusters.maximum() - 1e-9
    assert 15 <= found < 30


@pytest.mark.parametrize("gamma", [0.2, 1.0, 5.0])
def test_skipping_candidates_changes_nothing(gamma: float) -> None:
    """The reference evaluates all candidates."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(8).repeat_interleave(5)
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)[y]
    pairs = pairs_of(x + torch.randn(40, 6, generator=generator, dtype=torch.float64), y)
    clusters = Clusters(pairs, gamma, squared=False)
    search = search_of(clusters, pairs)
    assert search.medoids(5).tolist() == clusters.search(5)
    assert 0 < search.evaluated < search.candidates
    if gamma < 1:
        assert search.evaluated < search.candidates / 2


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=30))
def test_margin_is_one_minus_nmi(rows: list[tuple[int, int, int]]) -> None:
    from sklearn.metrics import normalized_mutual_info_score

    truth, *found = (list(column) for column in zip(*rows, strict=True))
    margins = StructuredMargin(np.array(truth))(np.array(found))
    for margin, clustering in zip(margins.tolist(), found, strict=True):
        assert margin == pytest.approx(1 - nmi(truth, clustering), abs=1e-12)
        score = normalized_mutual_info_score(truth, clustering, average_method="geometric")
        assert margin == pytest.approx(1 - score, abs=1e-12)
        assert 0 <= margin <= 1


def test_margin_of_equal_partitions_is_exactly_zero_and_many_groups_fit_in_parts() -> None:
    labels = np.random.default_rng(0).permutation(2000) // 3
    found = np.stack([666 - labels, labels, np.zeros_like(labels)])
    assert StructuredMargin(labels)(found).tolist() == [0, 0, 1]


@pytest.mark.parametrize("batch", ["one_class", "two_same", "two_different", "all_distinct", "separated"])
def test_nothing_to_lose_is_exactly_zero(batch: str) -> None:
    value, grad = value_and_gradient(losses.create("structured_clustering"), *ZOO[batch])
    assert value == 0
    assert not bool(grad.any())


def test_no_gradient_where_the_search_ends_below_the_true_classes() -> None:
    """Only a search that misses the maximum can be below: the true medoids are one of the choices."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64) + 2 * torch.eye(3, dtype=torch.float64)[labels]
    clusters = Clusters(pairs_of(x, labels), 0.2, squared=False)
    truth = -sum(clusters.d[i][j] for i, j in enumerate(clusters.true_medoids()))
    assert clusters.objective(clusters.search(5)) < truth - 0.1 < clusters.maximum()
    value, grad = value_and_gradient(losses.create("structured_clustering", gamma=0.2), x, labels)
    assert value == 0
    assert not bool(grad.any())


def test_identical_items_have_a_margin_and_no_gradient() -> None:
    value, grad = value_and_gradient(losses.create("structured_clustering", gamma=2.0), *ZOO["collapsed_exact"])
    assert 0 < value <= 2
    assert not bool(grad.any())


def test_weights_are_plus_and_minus_one_over_distance_on_few_pairs() -> None:
    x, labels = ZOO["random"]
    loss = pair_loss("structured_clustering")
    weights = pair_weights(loss, x, labels)
    d = torch.cdist(prepare(x, True), prepare(x, True))
    slopes = -weights * d
    assert float(loss(x, labels)) > 0
    assert 0 < int((weights != 0).sum()) <= 2 * len(x)
    close(slopes, slopes.round())
    assert set(slopes.round().unique().tolist()) == {-1, 0, 1}
    assert bool(((weights != 0).sum(1) <= 2).all())
    assert not bool((weights * (labels[:, None] != labels) < 0).any())  # other classes are only pushed


def test_last_tells_how_much_was_evaluated() -> None:
    loss = pair_loss("structured_clustering")
    loss(*ZOO["random"])
    assert loss.last["anchors"] == 24
    assert loss.last["unusable_anchors"] == 0
    assert 0 < loss.last["evaluated"] < loss.last["candidates"]


@pytest.mark.parametrize("name", ["structured_clustering", "prototypical"])
def test_what_is_not_a_number_comes_through(name: str) -> None:
    x, labels = ZOO["random"]
    x = x.clone()
    x[3, 1] = torch.nan
    assert bool(losses.create(name)(x, labels).isnan())


def test_a_batch_of_120_with_24_classes_takes_well_under_a_second() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24).repeat(5)
    x = torch.randn(24, 64, generator=generator)[labels] + 2 * torch.randn(120, 64, generator=generator)
    loss, times = losses.create("structured_clustering"), []
    for _ in range(3):
        begin = time.process_time()
        value_and_gradient(loss, x, labels)
        times.append(time.process_time() - begin)
    assert min(times) < 0.5


# --------------------------------------------------------------------------------------------------------- prototypical


@pytest.mark.parametrize("support", [None, 1, 2, 9])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("batch", [name for name in ZOO if name != "large_norms"])
def test_prototypical_equals_reference(batch: str, support: int | None, normalize: bool) -> None:
    agree("prototypical", prototypical, *ZOO[batch], support=support, normalize=normalize)


@settings(deadline=None, max_examples=40)
@given(batch=any_batch(), support=st.sampled_from([None, 1, 2, 3]))
def test_prototypical_equals_reference_on_any_batch(batch: tuple[Tensor, Tensor], support: int | None) -> None:
    agree("prototypical", prototypical, *batch, support=support)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (100.0, 0.0), (1.0, 1e4)])
def test_prototypical_does_not_cancel_for_large_norms(scale: float, offset: float) -> None:
    x, labels = ZOO["random"]
    x = scale * x + offset
    value, grad = value_and_gradient(losses.create("prototypical"), x, labels)
    expected, expected_grad = value_and_gradient(prototypical_of_x, x, labels)
    close(value, expected, 1e-8)
    close(grad, expected_grad, 1e-8)


def test_support_items_share_the_gradient_of_their_prototype() -> None:
    x, _ = ZOO["random"]
    labels = torch.arange(3).repeat_interleave(8)
    _, grad = value_and_gradient(losses.create("prototypical"), x, labels)
    by_class = grad.view(3, 8, -1)
    close(by_class[:, :4], by_class[:, :1].expand(-1, 4, -1))
    assert bool((by_class[:, 4:].diff(dim=1).abs().amax((1, 2)) > 1e-6).all())


def test_pair_weights_of_prototypes_give_the_gradient() -> None:
    """With what the norms contribute: dL/d|q|^2 = 0, as the weights of a query add up to 0, and dL/d|mu|^2 / n^2."""
    x, labels = ZOO["unequal"]
    loss = pair_loss("prototypical")
    weights = pair_weights(loss, x, labels)
    _, grad = value_and_gradient(loss, x, labels)
    leaves = leaf_pairs(pairs_of(x, labels, normalize=False))
    (norms,) = torch.autograd.grad(prototypical(leaves), leaves.row_sq)
    assert not bool(weights.diagonal().any())
    close((weights + weights.T) @ x + 2 * norms[:, None] * x, grad)


@pytest.mark.parametrize("batch", ["one_class", "two_same", "two_different", "all_distinct"])
def test_episodes_without_a_choice_are_zero(batch: str) -> None:
    value, grad = value_and_gradient(losses.create("prototypical"), *ZOO[batch])
    assert value == 0
    assert not bool(grad.any())


def test_classes_without_queries_still_compete() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([5, 5, 5, 2, 9, 9, 9, 9])
    loss = losses.create("prototypical")
    loss(x, labels)
    assert loss.last == {"anchors": 4, "unusable_anchors": 0}
    alone = labels != 2
    assert float(loss(x, labels)) > float(loss(x[alone], labels[alone])) + 1e-6
    loss = losses.create("prototypical", support=3)
    loss(x, labels)
    assert loss.last == {"anchors": 1, "unusable_anchors": 0}
    loss(x[:3], labels[:3])
    assert loss.last == {"anchors": 0, "unusable_anchors": 0}


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("structured_clustering", {"gamma": -1.0}, "gamma must be at least 0.*-1"),
        ("structured_clustering", {"gamma": float("nan")}, "gamma must be a finite number; got nan"),
        ("structured_clustering", {"sweeps": -1}, "sweeps must be at least 0.*-1"),
        ("structured_clustering", {"miner": lambda block: block}, "remove miner"),
        ("prototypical", {"support": 0}, "support must be at least 1.*0"),
    ],
)
def test_wrong_settings_are_refused_in_words(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        losses.create(name, **params)
