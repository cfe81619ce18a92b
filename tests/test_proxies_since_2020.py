"""Losses against proxies published since 2020: what they are where they meet others, their state, their wrappers.

Values and gradients of most are compared with their slow references in test_proxies.py.
Axes: N items, C classes, D dims.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import grad_of, narrow
from reference import batches
from reference_proxies import hist as slow_hist
from reference_proxies import potential_field as slow_field
from reference_proxies import proxy_synthesis as slow_synthesis
from reference_proxies import volume
from test_proxies import C, D, close
from test_proxies import make as make_proxies
from torch import Tensor, nn
from torch.nn import functional as F

from nearfield import losses
from nearfield.errors import InputError
from nearfield.losses.faces import UCE, AdaFace, MagFace
from nearfield.losses.hypergraphs import HIST
from nearfield.losses.synthesis import AntiCollapse, ProxySynthesis
from nearfield.pairs import pair_weights

ZOO = batches()
X, Y = ZOO["random"]
BATCHES = [name for name in ZOO if name != "large_norms"]


def make(name: str, num_classes: int = C, dim: int = D, **params: Any) -> nn.Module:
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(0)
    loss = losses.create(name, num_classes=num_classes, dim=dim, **params)
    torch.set_rng_state(state)
    return loss.double()


# --------------------------------------------------------------------------------------------------- AdaFace, MagFace


def test_adaface_is_cosface_without_adaptivity_and_for_equal_norms() -> None:
    cosface = make_proxies("cosface", margin=0.4)(X, Y)
    close(make("adaface", h=0.0)(X, Y), cosface)
    close(make("adaface")(F.normalize(X, dim=1), Y), cosface)


def test_adaface_at_its_ends_is_arcface_and_its_opposite() -> None:
    """The worst image of a batch has an angular margin, the best the opposite of one and twice the margin."""
    x = torch.cat([0.01 * F.normalize(X[:1], dim=1), 50 + 0 * X[1:2], F.normalize(X[2:], dim=1)])
    loss = narrow(AdaFace, make("adaface", h=50.0, scale=8.0))
    w = pair_weights(loss.eval(), x, Y)  # quality from the first mean and std, 20 and 100
    arcface = pair_weights(make_proxies("arcface", margin=0.4, scale=8.0), x, Y)
    close(w[0], arcface[0])
    assert float((w[1] - arcface[1]).abs().max()) > 1e-6


def test_running_norms_follow_the_batches_and_stay_in_evaluation() -> None:
    loss = narrow(AdaFace, make("adaface", t_alpha=0.25))
    loss(X, Y)
    norms = X.norm(dim=1)
    close(loss.mean, 0.25 * norms.mean() + 0.75 * 20)
    close(loss.std, 0.25 * norms.std() + 0.75 * 100)
    before = loss.mean.clone(), loss.std.clone()
    loss(X[:1], Y[:1])  # a batch of one has no spread
    loss.eval()(X, Y)
    pair_weights(loss.train(), X, Y)
    assert (loss.mean, loss.std) == before
    resumed = narrow(AdaFace, make("adaface", t_alpha=0.25))
    resumed.load_state_dict(loss.state_dict())
    close(resumed(X, Y), loss(X, Y), 0.0)


def test_magface_is_arcface_with_an_easy_margin_where_its_margins_meet() -> None:
    """cos(theta + m) where cos theta > 0, and no margin at all elsewhere."""
    loss = narrow(MagFace, make("magface", l_m=0.5, u_m=0.5, lam=0.0, scale=4.0))
    cosine = F.normalize(X, dim=1) @ F.normalize(loss.proxies.detach(), dim=1).T
    own = cosine.gather(1, Y[:, None])
    target = torch.where(own > 0, (own.acos() + 0.5).cos(), own)
    close(loss(X, Y), F.cross_entropy(4 * cosine.scatter(1, Y[:, None], target), Y))


def test_the_norm_of_magface_has_a_gradient_of_its_own() -> None:
    """(1 - p_y) s sin(theta + m) m' + lam (1 / u^2 - 1 / a^2), over N, inside the bounds; none outside."""
    low, high, lam, s = 1.5, 4.0, 0.7, 4.0
    loss = narrow(MagFace, make("magface", l_a=low, u_a=high, lam=lam, scale=s))
    x = X.clone().requires_grad_()
    loss(x, Y).backward()
    a, unit = X.norm(dim=1), F.normalize(X, dim=1)
    inside = (a > low) & (a < high)
    assert 3 < int(inside.sum()) < len(X)
    cosine = unit @ F.normalize(loss.proxies.detach(), dim=1).T
    own, rate = cosine.gather(1, Y[:, None])[:, 0], (0.8 - 0.45) / (high - low)
    margin = 0.45 + rate * (a.clamp(low, high) - low)
    target = torch.where(own > 0, (own.acos() + margin).cos(), own)
    p = (s * cosine.scatter(1, Y[:, None], target[:, None])).softmax(1).gather(1, Y[:, None])[:, 0]
    turn = torch.where(own > 0, (own.acos() + margin).sin(), 0.0)
    expected = inside * ((1 - p) * s * turn * rate + lam * (1 / high**2 - 1 / a**2)) / len(X)
    close((grad_of(x) * unit).sum(1), expected)


def test_magface_finds_its_bounds_once() -> None:
    loss = narrow(MagFace, make("magface", auto=True))
    loss.eval()(X, Y)
    assert loss.norm_bounds.tolist() == [10, 110]
    loss.train()(X, Y)
    ends = torch.quantile(X.norm(dim=1), torch.tensor([0.1, 0.9], dtype=X.dtype))
    close(loss.norm_bounds, ends * torch.tensor([0.5, 2.0]))
    found = loss.norm_bounds.clone()
    loss(10 * X, Y)
    assert torch.equal(loss.norm_bounds, found)
    with pytest.raises(InputError, match=r"l_a must be below u_a; got 5\.0 and 5\.0"):
        make("magface", l_a=5.0, u_a=5.0)


def test_the_authors_bound_of_lam() -> None:
    """lam >= s k u^2 l^2 / (u^2 - l^2): at less, the norm of a hard image would fall below any."""
    k = (0.8 - 0.45) / (110 - 10)
    bound = 64 * k * 110**2 * 10**2 / (110**2 - 10**2)
    assert bound == pytest.approx(22.59, abs=0.01)
    assert losses.method("magface").parameters["lam"].default > bound
    assert losses.method("magface").presets["command_line"]["lam"] < bound


def test_uce_learns_one_threshold() -> None:
    loss = narrow(UCE, make("uce"))
    assert loss.bias.item() == pytest.approx(math.log(10 * C))
    far = -F.normalize(loss.proxies.detach()[Y], dim=1)  # cos = -1: the released clamp has no gradient here
    x = (far + 1e-3 * X).requires_grad_()
    loss(x, Y).backward()
    assert bool((grad_of(x).norm(dim=1) > 1e-3).all())
    close(make("uce", num_classes=1)(X, 0 * Y), F.softplus(math.log(10.0) - 64 * (_cosine(1) - 0.4)).mean(), 1e-6)


def _cosine(num_classes: int) -> Tensor:
    proxies = narrow(UCE, make("uce", num_classes)).proxies.detach()
    return (F.normalize(X, dim=1) @ F.normalize(proxies, dim=1).T)[:, 0]


# ------------------------------------------------------------------------------------------------------------ fields


def test_the_weights_of_a_field_are_between_all_charges() -> None:
    params: dict[str, Any] = {"alpha": 2.0, "delta": 1.2, "proxies_per_class": 2}
    loss = make_proxies("potential_field", **params)
    w = pair_weights(loss, X, Y)
    charges = torch.cat([F.normalize(X, dim=1), F.normalize(loss.proxies.detach(), dim=1)]).requires_grad_()
    assert w.shape == (len(charges), len(charges))
    value = slow_field(charges[: len(X)], Y, charges[len(X) :], **params)
    g = (w + w.T) @ charges.detach()
    flat = g - (g * charges.detach()).sum(1, keepdim=True) * charges.detach()
    close(flat, torch.autograd.grad(value, charges)[0])
    same = torch.cat([Y, torch.arange(C).repeat_interleave(2)])
    alike = (same[:, None] == same) & ~torch.eye(len(same), dtype=torch.bool)
    assert bool((w[alike] <= 0).all())
    assert bool((w[same[:, None] != same] >= 0).all())
    assert not bool(w.diagonal().any())


def test_near_positives_pull_hardest_and_far_negatives_do_not_push() -> None:
    angles = torch.tensor([0.0, 0.4, 1.3, 0.2, 2.0], dtype=torch.float64)
    x = torch.stack([angles.cos(), angles.sin()], 1)
    labels = torch.tensor([0, 0, 0, 1, 1])
    loss = make_proxies("potential_field", 2, 2, proxies_per_class=1, delta=0.3)
    w = pair_weights(loss, x, labels)
    assert float(w[0, 1]) < float(w[0, 2]) < 0
    assert float(w[0, 3]) > 0
    assert float(w[0, 4]) == 0


def test_fields_of_classes_are_kept_apart() -> None:
    """The regulariser is the slow sum, in blocks too, over the classes that are sampled."""
    params: dict[str, Any] = {"lam": 1.0, "neg_margin": 1.5}
    expected = make_proxies("mean_field_contrastive", **params)(X, Y)
    close(make_proxies("mean_field_contrastive", **params, block_rows=3)(X, Y), expected)
    without = make_proxies("mean_field_contrastive", neg_margin=1.5)(X, Y)
    assert bool(expected > without)


# ---------------------------------------------------------------------------------------------------------- wrappers


@pytest.mark.parametrize("base", ["proxy_softmax", "proxy_nca", "cosface", "arcface"])
@pytest.mark.parametrize("batch", BATCHES)
def test_synthesis_equals_its_reference(base: str, batch: str) -> None:
    x, labels = ZOO[batch]
    loss = narrow(ProxySynthesis, make("proxy_synthesis", base=base))
    mixture = loss._mixture(labels)
    parents = list(zip(mixture.first.tolist(), mixture.second.tolist(), strict=True))
    assert all(labels[i] != labels[j] for i, j in parents)
    x = x.clone().requires_grad_()
    proxies = loss.proxies.detach().clone().requires_grad_()
    expected = slow_synthesis(x, labels, proxies, parents, mixture.share, base, {})
    want = torch.autograd.grad(expected, (x, proxies))
    value = loss(x, labels)
    found = torch.autograd.grad(value, (x, loss.proxies))
    close(value, expected)
    close(found[0], want[0], 1e-8)
    close(found[1], want[1], 1e-8)


@settings(deadline=None, max_examples=25)
@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=20), mu=st.floats(0, 1), turn=st.integers(0, 100))
def test_mixtures_are_of_two_classes(labels: list[int], mu: float, turn: int) -> None:
    loss = narrow(ProxySynthesis, make("proxy_synthesis", mu=mu))
    loss.base.turn.fill_(turn)
    y = torch.tensor(labels)
    mixture = loss._mixture(y)
    assert bool((y[mixture.first] != y[mixture.second]).all())
    assert len(mixture.first) <= mu * len(labels)
    assert 0 <= mixture.share <= 1
    most = max(labels.count(c) for c in labels)
    if mu == 1:
        assert len(mixture.first) >= min(len(labels), 2 * (len(labels) - most))
    assert len(set(mixture.first.tolist())) == len(mixture.first)


def test_no_synthesis_is_the_base() -> None:
    expected = make_proxies("cosface")(X, Y)
    close(make("proxy_synthesis", base="cosface", mu=0.0)(X, Y), expected, 0.0)
    one = torch.zeros(len(X), dtype=torch.int64)
    close(make("proxy_synthesis", base="cosface")(X, one), make_proxies("cosface")(X, one), 0.0)


def test_synthesis_of_sampled_classes() -> None:
    some = narrow(ProxySynthesis, make("proxy_synthesis", 1000, base="cosface", sample=12))
    assert bool(some(X, Y).isfinite())
    x = X.clone().requires_grad_()
    some(x, Y).backward()
    assert int(grad_of(some.proxies).any(1).sum()) == 12


@pytest.mark.parametrize("params", [{}, {"form": "coding_rate", "eps": 0.2, "weight": 3.0}], ids=str)
@pytest.mark.parametrize("batch", ["random", "one_class", "all_distinct"])
def test_anti_collapse_equals_its_reference(batch: str, params: dict[str, Any]) -> None:
    x, labels = ZOO[batch]
    loss, base = narrow(AntiCollapse, make("anti_collapse", **params)), make_proxies("proxy_anchor")
    proxies = loss.proxies.detach().clone().requires_grad_()
    shape = {key: value for key, value in params.items() if key != "weight"}
    expected = base(x, labels) + params.get("weight", 1.0) * volume(base.proxies, labels, **shape)
    close(loss(x, labels), expected)
    want = torch.autograd.grad(expected, base.proxies)[0]
    close(torch.autograd.grad(loss(x, labels), loss.proxies)[0], want)
    assert proxies.shape == (C, D)


def test_anti_collapse_is_large_for_equal_proxies() -> None:
    loss = narrow(AntiCollapse, make("anti_collapse", dim=32))
    spread = loss._volume(torch.eye(32)[:10])
    assert float(loss._volume(torch.ones(10, 32))) > float(spread)
    assert float(loss._volume(torch.randn(200, 32))) < float(spread)  # more rows than dims
    for wrong in ("triplet", "hist", "logits"):
        with pytest.raises(InputError, match="base must be a loss against proxies"):
            make("anti_collapse", base=wrong)


# -------------------------------------------------------------------------------------------------------------- HIST


@pytest.mark.parametrize("batch", BATCHES)
def test_hist_equals_its_reference(batch: str) -> None:
    x, labels = ZOO[batch]
    loss = narrow(HIST, make("hist", hidden=6, tau=4.0))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    value, expected = loss(ours, labels), slow_hist(theirs, labels, loss)
    close(value, expected, 1e-8)
    if len(labels.unique()) == 1:
        return  # all items are one vertex: batch norm divides rounding by rounding
    weights = list(loss.parameters())
    found = torch.autograd.grad(value, (ours, *weights), materialize_grads=True)
    want = torch.autograd.grad(expected, (theirs, *weights), materialize_grads=True)
    size = max(float(g.abs().max()) for g in want)
    for mine, other in zip(found, want, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6 * size)


def test_hist_with_unit_variances_is_a_softmax_over_proxies() -> None:
    loss = narrow(HIST, make("hist", lam_s=0.0, tau=3.0))
    loss.gaussians.log_variances.data.fill_(-1.0)
    softmax = make_proxies("proxy_softmax", temperature=1 / (2 * 3.0))
    softmax.proxies.data.copy_(loss.proxies.detach())
    close(loss(X, Y), softmax(X, Y))
    assert not bool(torch.autograd.grad(loss(X, Y), loss.gaussians.log_variances)[0].any())


def test_hist_of_one_item_has_no_batch_statistics() -> None:
    loss = narrow(HIST, make("hist"))
    close(loss(X[:1], Y[:1]), loss.gaussians(X[:1], Y[:1]), 0.0)
