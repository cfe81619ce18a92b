"""Methods since 2019 beyond what holds for every loss: limits, bounds and identities with other methods.

Axes: N items, M items and virtual items, D dims, C classes. All in float64.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from narrow import grad_of, pair_loss
from reference import REFERENCE, REFERENCE_OF_X, Pairs, batches, beyond_margins, bound_above, pairs_of
from torch import Tensor

import nearfield as nf
from nearfield import losses
from nearfield.errors import InputError
from nearfield.pairs import pair_weights, stream
from nearfield.pairs.blocks import sweep
from nearfield.pairs.mixing import mix_within_classes
from nearfield.training import build

ZOO = batches()
X, LABELS = ZOO["random"]


def value_and_gradient(loss: Any, *given: Any) -> tuple[Tensor, Tensor]:
    x = given[0].clone().requires_grad_()
    value = loss(x, *given[1:])
    (grad,) = torch.autograd.grad(value, x)
    return value.detach(), grad


def close(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------- recall at k and SiMix


@pytest.mark.parametrize("ks", [(1,), (2,), (1, 4)])
def test_recall_at_k_is_recall_when_nothing_is_soft(ks: tuple[int, ...]) -> None:
    """k - r lies on a boundary at the k-th place: half a place beyond it the cut is hard."""
    x = X[LABELS < 3][[0, 1, 2, 3, 4, 5, 6, 7, 8]]
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4])  # one positive each: recall is a hit
    loss = losses.create("recall_at_k", ks=ks, tau1=1e-6, tau2=1e-3)
    scores = nf.retrieval_metrics(x, labels, ks=ks)
    soft = loss(x, labels)
    ranks = []
    pairs = pairs_of(x, labels)
    for i in pairs.rows:
        for p in pairs.positives(i):
            ranks.append(1 + int((pairs.s[i, pairs.others(i)] > pairs.s[i, p]).sum()))
    at_the_cut = sum(0.5 * (rank == k) for rank in ranks for k in ks) / len(ks) / len(ranks)  # sigmoid(0) = 1/2
    close(soft - at_the_cut, torch.tensor(1 - sum(scores[f"recall@{k}"] for k in ks) / len(ks)).double(), 1e-9)


def test_recall_at_k_of_a_perfect_batch() -> None:
    """Six classes of four equal vectors; with the query in its own ranking every rank grows by one half."""
    x, labels = torch.eye(6, dtype=torch.float64).repeat_interleave(4, 0), torch.arange(24) // 4
    assert losses.create("recall_at_k")(x, labels).item() == pytest.approx(0.1130, abs=5e-5)
    assert losses.create("recall_at_k", count_query=True)(x, labels).item() == pytest.approx(0.2146, abs=1e-4)


def test_recall_at_k_pushes_a_positive_that_is_ranked_above_another() -> None:
    """Without negatives only the positives move each other, and what one is pulled up others are pushed down."""
    weights = pair_weights(pair_loss("recall_at_k", ks=(1,), tau1=0.2), *ZOO["one_class"])
    assert bool((weights > 0).any())
    close(weights.sum(1), torch.zeros(len(weights), dtype=torch.float64))
    weights = pair_weights(pair_loss("recall_at_k"), X, LABELS)
    assert bool((weights[LABELS[:, None] != LABELS] >= 0).all())


def mixing_matrix(labels: Tensor, seed: int = 0, turn: int = 0) -> Tensor:
    """(M, N): the rows of the identity, then alpha and 1 - alpha at the parents of each virtual item."""
    pairing = mix_within_classes(labels, seed, torch.tensor(turn))
    assert pairing.partner is not None
    assert pairing.share is not None
    matrix = torch.zeros(len(pairing.rows), len(labels), dtype=torch.float64)
    for row, (a, b, share) in enumerate(zip(pairing.rows, pairing.partner, pairing.share, strict=True)):
        matrix[row, a] += share
        matrix[row, b] += 1 - share
    return matrix


def test_virtual_items_are_sums_of_two_of_a_class() -> None:
    labels = ZOO["unequal"][1]
    matrix = mixing_matrix(labels)
    sizes = labels.bincount()
    assert len(matrix) == len(labels) + int((sizes * (sizes - 1) // 2).sum())
    assert torch.equal(matrix[: len(labels)], torch.eye(len(labels), dtype=torch.float64))
    virtual = matrix[len(labels) :]
    close(virtual.sum(1), torch.ones(len(virtual), dtype=torch.float64))
    parents = [tuple(row.nonzero()[:, 0].tolist()) for row in virtual]
    assert all(len(pair) == 2 and labels[pair[0]] == labels[pair[1]] for pair in parents)
    assert len(set(parents)) == len(parents)
    assert not torch.equal(virtual, mixing_matrix(labels, turn=1)[len(labels) :])
    assert not torch.equal(virtual, mixing_matrix(labels, seed=1)[len(labels) :])


@pytest.mark.parametrize("count_query", [False, True])
@pytest.mark.parametrize("batch", ["random", "unequal", "duplicates", "two_same", "all_distinct", "one_class"])
def test_simix_equals_the_reference_on_items_and_virtual_items(batch: str, count_query: bool) -> None:
    x, labels = ZOO[batch]
    options: dict[str, Any] = {"tau1": 0.1, "count_query": count_query}
    loss = pair_loss("recall_at_k", simix=True, **options).eval()
    matrix = mixing_matrix(labels)
    mixed_labels = labels[matrix.argmax(1)]

    def slow(s: Tensor) -> Tensor:
        mixed = matrix @ s @ matrix.T
        ones = torch.ones(len(mixed), dtype=torch.float64)
        return REFERENCE["recall_at_k"](Pairs(mixed, ones, ones, mixed_labels, mixed_labels, same=True), **options)

    s = pairs_of(x, labels).s.detach().requires_grad_()
    expected = slow(s)
    (weights,) = torch.autograd.grad(expected, s)
    close(pair_weights(loss, x, labels), weights, 1e-9)
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(slow(pairs_of(leaf, labels).s), leaf)
    value, found = value_and_gradient(loss, x, labels)
    close(value, expected.detach(), 1e-9)
    close(found, grad, 1e-9)


def test_simix_does_not_mix_other_references() -> None:
    refs, ref_labels = batches(1)["random"]
    mixed, plain = losses.create("recall_at_k", simix=True), losses.create("recall_at_k")
    assert torch.equal(mixed(X, LABELS, refs, ref_labels), plain(X, LABELS, refs, ref_labels))


# -------------------------------------------------------------------------------------------- SupAP, ROADMAP, TCM


def average_precision(pairs: Pairs) -> Tensor:
    """Of hard ranks; items tied with a positive are above it or not, whichever lowers the score least."""
    scores = []
    for i in pairs.rows:
        pos, neg = pairs.positives(i), pairs.negatives(i)
        if pos:
            among = torch.stack([(pairs.s[i, pos] >= pairs.s[i, p]).sum() for p in pos])
            above = torch.stack([(pairs.s[i, neg] > pairs.s[i, p]).sum() for p in pos])
            scores.append((among / (among + above)).double().mean())
    return torch.stack(scores).mean()


@pytest.mark.parametrize("batch", ["random", "unequal", "separated", "collapsed", "three"])
@pytest.mark.parametrize("params", [{}, {"start": 0.9, "offset": 1.0, "tau": 0.3, "delta": 0.2}], ids=str)
def test_sup_ap_bounds_average_precision_from_above(batch: str, params: dict[str, Any]) -> None:
    x, labels = ZOO[batch]
    loss = pair_loss("sup_ap", **params)
    assert loss(x, labels) >= 1 - average_precision(pairs_of(x, labels)) - 1e-12
    weights = pair_weights(loss, x, labels)
    same = labels[:, None] == labels
    assert bool((weights[same] <= 0).all())
    assert bool((weights[~same] >= 0).all())


def test_sup_ap_is_continuous_at_delta_unless_as_released() -> None:
    given = (0.01, 100.0, 0.05, 0.5)
    just_below, just_above = torch.tensor([[0.05 - 1e-13], [0.05 + 1e-13]], dtype=torch.float64)

    def jump(offset: float | None) -> float:
        return float(bound_above(just_above, *given, offset) - bound_above(just_below, *given, offset))

    assert jump(None) == pytest.approx(0.0, abs=1e-9)
    assert jump(1.44) == pytest.approx(-0.0533, abs=1e-4)
    released = losses.method("sup_ap").presets["released"]
    assert losses.create("sup_ap", preset="released").offset == released["offset"] == 1.44


def test_average_precision_without_negatives_is_perfect() -> None:
    value, grad = value_and_gradient(losses.create("sup_ap"), *ZOO["one_class"])
    assert value.item() == pytest.approx(0.0, abs=1e-15)
    assert not bool(grad.any())


def test_tcm_of_sup_ap_is_roadmap() -> None:
    """Threshold-consistent margins with the other margin for negatives are ROADMAP's calibration."""
    close(
        value_and_gradient(losses.create("tcm", preset="roadmap"), X, LABELS),
        value_and_gradient(losses.create("roadmap"), X, LABELS),
    )


@pytest.mark.parametrize("base", ["multi_similarity", "triplet", "lifted", "npairs", "snr", "fastap", "contrastive"])
def test_tcm_is_the_base_and_two_means(base: str) -> None:
    refs, ref_labels = batches(1)["unequal"]
    loss, alone = losses.create("tcm", base=base, neg_margin=0.1, neg_weight=3.0), losses.create(base)
    low, high = beyond_margins(pairs_of(X, LABELS), 0.9, 0.1)
    close(loss(X, LABELS), alone(X, LABELS) + low + 3 * high)
    if base != "lifted":
        low, high = beyond_margins(pairs_of(X, LABELS, refs, ref_labels), 0.9, 0.1)
        close(loss(X, LABELS, refs, ref_labels), alone(X, LABELS, refs, ref_labels) + low + 3 * high)


def test_tcm_of_proxies_compares_the_batch_with_itself() -> None:
    loss = losses.create("tcm", base="proxy_softmax", num_classes=6, dim=8).double()
    low, high = beyond_margins(pairs_of(X, LABELS), 0.9, 0.5)
    close(loss(X, LABELS), loss.get_submodule("base")(X, LABELS) + low + high)
    assert [name for name, _ in loss.named_parameters()] == ["base.proxies"]


@pytest.mark.parametrize(
    ("name", "params", "sweeps"),
    [("tcm", {}, 1), ("tcm", {"block_rows": 5}, 2), ("roadmap", {}, 1), ("tcm", {"base": "triplet"}, 2)],
)
def test_a_sum_of_losses_makes_its_blocks_once(
    name: str, params: dict[str, Any], sweeps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count of active pairs needs a sweep of its own where there are several blocks; other measures always do."""
    made = []

    def counting(*given: Any) -> Any:
        made.append(1)
        return sweep(*given)

    monkeypatch.setattr(stream, "sweep", counting)
    losses.create(name, **params)(X.clone().requires_grad_(), LABELS).backward()
    assert len(made) == sweeps


def test_tcm_refuses_what_has_no_pairs() -> None:
    with pytest.raises(InputError, match=r"tcm: base must be a loss over pairs; got 'drml'.*'multi_similarity'"):
        losses.create("tcm", base="drml", num_classes=6, dim=8)
    with pytest.raises(InputError, match=r"tcm: base must be a method by name; unknown method 'tripelt'.*'triplet'"):
        losses.create("tcm", base="tripelt")
    with pytest.raises(InputError, match="triplet has no parameter 'beta'"):
        losses.create("tcm", base="triplet", base_params={"beta": 1.0})
    with pytest.raises(InputError, match="without references"):
        losses.create("tcm", base="lifted")(X, LABELS, X, LABELS)


# ------------------------------------------------------------------------------- sigmoid, easy positives, tuplets


def test_sigmoid_is_binomial_without_its_means() -> None:
    """alpha = beta = t, lam = -b / t; sums over positives and negatives, and a mean over queries."""
    t, b = 7.0, -2.0
    sigmoid = pair_weights(pair_loss("sigmoid", t=t, b=b), X, LABELS)
    binomial = pair_weights(pair_loss("binomial", alpha=t, beta=t, lam=-b / t), X, LABELS)
    same = LABELS[:, None] == LABELS
    count = torch.where(same, same.sum(1, keepdim=True) - 1, (~same).sum(1, keepdim=True))
    close(sigmoid * len(X), binomial * count)


def test_sigmoid_learns_its_scale_and_offset() -> None:
    loss = losses.create("sigmoid", t=4.0, b=-3.0).double()
    loss(X, LABELS).backward()
    log_t = torch.tensor(math.log(4.0), dtype=torch.float64, requires_grad=True)
    b = torch.tensor(-3.0, dtype=torch.float64, requires_grad=True)
    REFERENCE["sigmoid"](pairs_of(X, LABELS), t=log_t.exp(), b=b).backward()
    close(grad_of(loss.get_parameter("log_t"))[0], grad_of(log_t))
    close(grad_of(loss.get_parameter("bias"))[0], grad_of(b))
    weights = pair_weights(pair_loss("sigmoid", t=4.0, b=-3.0), X, LABELS)
    close(grad_of(b), weights.sum() / 4.0)


def test_sigmoid_starts_from_the_share_of_positive_pairs() -> None:
    """Four a class of 24: the log-odds are log(3 / 20)."""
    found, expected = (
        losses.create("sigmoid", prior=3 / 23)(X, LABELS),
        losses.create("sigmoid", b=math.log(3 / 20))(X, LABELS),
    )
    close(found, expected)


def test_selectively_contrastive_without_hard_queries_is_easy_positives() -> None:
    x, labels = torch.eye(8, dtype=torch.float64)[LABELS] + 0.1 * X, LABELS
    expected = value_and_gradient(losses.create("epshn", mining="hard"), x, labels)
    close(value_and_gradient(losses.create("sct", lam=0.0), x, labels), expected)
    close(value_and_gradient(losses.create("epshn"), x, labels), expected)  # then semi-hard ones are the hardest


def test_hard_queries_only_push() -> None:
    weights = pair_weights(pair_loss("sct", lam=0.7, threshold=-1.0), X, LABELS)
    assert bool((weights >= 0).all())
    assert bool(((weights > 0).sum(1) == 1).all())
    close(weights.sum(1), torch.full((len(X),), 0.7 / len(X), dtype=torch.float64))


def test_queries_without_a_semihard_negative_are_not_used() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.2], [1.0, -0.2]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    weights = pair_weights(pair_loss("epshn"), x, labels)
    assert not bool(weights[0].any())  # both negatives are nearer than its positive
    assert bool(weights[1:].any())


def test_released_choices_by_value() -> None:
    """An exact duplicate is taken for the query itself, and its other positive is used."""
    x = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.5, 0.0, 0.8]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1])
    for name in ("sct", "epshn"):
        ours, released = (pair_weights(pair_loss(name, released=flag), x, labels)[0] for flag in (False, True))
        assert ours[1] < 0 == ours[2]
        assert released[2] < 0 == released[1]


def test_a_positive_within_the_slack_angle_is_pushed_off() -> None:
    turn = math.radians(3.0)
    x = torch.tensor([[1.0, 0.0], [math.cos(turn), math.sin(turn)], [0.9, -0.5], [0.0, 1.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    assert pair_weights(pair_loss("tuplet_margin"), x, labels)[0, 1] > 0
    assert pair_weights(pair_loss("tuplet_margin", angle=2.0), x, labels)[0, 1] < 0


def test_an_alias_says_what_it_is() -> None:
    assert losses.method("sincere").alias_of == "nt_xent"
    assert torch.equal(losses.create("sincere")(X, LABELS), losses.create("nt_xent")(X, LABELS))


# ------------------------------------------------------------------------------------------------------- Matryoshka


@pytest.mark.parametrize("base", ["multi_similarity", "triplet", "npairs", "recall_at_k", "tcm"])
def test_one_prefix_of_all_dims_is_the_base(base: str) -> None:
    close(
        value_and_gradient(losses.create("matryoshka", base=base, dims=[8]), X, LABELS),
        value_and_gradient(losses.create(base), X, LABELS),
        1e-14,
    )


@pytest.mark.parametrize("batch", ["random", "unequal", "duplicates", "two_same", "all_distinct", "collapsed_exact"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("base", ["multi_similarity", "contrastive", "tcm"])
def test_prefixes_equal_the_reference(base: str, reduction: str, batch: str) -> None:
    x, labels = ZOO[batch]
    params: dict[str, Any] = {"base": base, "dims": (2, 5, 8), "reduction": reduction}
    found = value_and_gradient(losses.create("matryoshka", **params), x, labels)
    slow = REFERENCE_OF_X["matryoshka"]
    close(found, value_and_gradient(lambda *given: slow(*given, **params), x, labels), 1e-9)
    refs, ref_labels = batches(1)["random"]
    found = value_and_gradient(losses.create("matryoshka", **params), x, labels, refs, ref_labels)
    close(found, value_and_gradient(lambda *given: slow(*given, **params), x, labels, refs, ref_labels), 1e-9)


@pytest.mark.parametrize("base", ["proxy_softmax", "proxy_anchor", "soft_triple", "arcface"])
def test_proxies_are_tied(base: str) -> None:
    """The proxies of a prefix are prefixes of the proxies, and their gradients add up."""
    loss = losses.create("matryoshka", base=base, dims=(3, 8), num_classes=6, dim=8).double()
    proxies = loss.get_parameter("base.proxies")
    value = loss(X, LABELS)
    value.backward()
    expected, grads = [], torch.zeros_like(proxies)
    for d in (3, 8):
        part = losses.create(base, num_classes=6, dim=d).double()
        part.get_parameter("proxies").data.copy_(proxies.data[:, :d])
        expected.append(part(X[:, :d], LABELS))
        expected[-1].backward()
        grads[:, :d] += grad_of(part.get_parameter("proxies")) / 2
    close(value, torch.stack(expected).mean())
    close(grad_of(proxies), grads)


def test_a_nested_loss_with_a_memory() -> None:
    """Matryoshka of Multi-Similarity against a queue of earlier embeddings."""
    loss = losses.create("matryoshka", dims=(4, 8), base_params={"mine": False})
    memory = nf.CrossBatchMemory(loss, size=48, dim=8).double()
    first, second = batches(1)["random"], (X, LABELS)
    memory(*first)
    found = value_and_gradient(memory, *second)

    def slow(x: Tensor, labels: Tensor) -> Tensor:
        params: dict[str, Any] = {"dims": (4, 8), "base_params": {"mine": False}}
        reference = REFERENCE_OF_X["matryoshka"]
        return reference(x, labels, **params) + reference(x, labels, *first, **params)

    close(found, value_and_gradient(slow, *second), 1e-9)
    for refused in ("proxy_softmax", "lifted"):
        with pytest.raises(InputError, match="loss must compare with references"):
            nf.CrossBatchMemory(losses.create("matryoshka", base=refused, num_classes=6, dim=8), size=8, dim=8)


def test_halves_are_the_default_prefixes() -> None:
    x = torch.randn(24, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = losses.create("matryoshka", dims=(10, 20, 40))(x, LABELS)
    assert torch.equal(losses.create("matryoshka")(x, LABELS), expected)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dims": []}, "dims must have at least 1 item"),
        ({"dims": [0]}, "matryoshka: dims, 0 must be at least 1; got"),
        ({"dims": 8}, "matryoshka: dims must be"),
        ({"dims": [16], "dim": 8}, "dims must be at most dim = 8; got 16"),
        ({"base": "drml", "num_classes": 6, "dim": 8}, "base must be a loss of embeddings; got 'drml'"),
        ({"base": "proxy_nca"}, "proxy_nca needs num_classes and dim"),
        ({"base": "proxy_nca", "num_classes": 6, "dim": 8, "base_params": {"sparse": True}}, "sparse must be False"),
    ],
)
def test_wrong_prefixes_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        losses.create("matryoshka", **params)


def test_embeddings_must_have_the_longest_prefix() -> None:
    with pytest.raises(InputError, match="embeddings must have at least the 9 dims of the longest prefix; got 8"):
        losses.create("matryoshka", dims=(4, 9))(X, LABELS)


def test_a_run_may_nest_wrappers() -> None:
    """From a TOML file: lists, and the parameters of a base of a base."""
    method = {
        "name": "matryoshka",
        "params": {"base": "tcm", "dims": [16, 64], "base_params": {"base": "sup_ap", "base_params": {"tau": 0.1}}},
    }
    config = nf.RunConfig.model_validate({"method": method, "memory": 64})
    build.check_method(config)
    assert build.build_loss(config, 10).dims == (16, 64)
    proxies = {"name": "matryoshka", "params": {"base": "proxy_anchor"}}
    refused = nf.RunConfig.model_validate({"method": proxies, "memory": 64})
    with pytest.raises(InputError, match="`memory` requires a pair loss"):
        build.check_method(refused)
