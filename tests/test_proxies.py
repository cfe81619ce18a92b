"""Every proxy loss equals its slow reference: value, gradients of embeddings and of proxies, and pair weights.

Axes: N items, C classes, D dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import grad_of, narrow
from reference import batches
from reference_proxies import PROXY_REFERENCE
from torch import Tensor, nn
from torch.nn import functional as F

from nearfield import losses
from nearfield.errors import InputError
from nearfield.losses.classifiers import add_angle
from nearfield.losses.proxy_loss import ProxyLoss
from nearfield.losses.registry import Real
from nearfield.pairs import pair_weights

pml = pytest.importorskip("pytorch_metric_learning.losses")

C, D = 10, 8
ZOO = batches()
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *[(name, {}) for name in PROXY_REFERENCE],
    *[(n, dict(p)) for n in PROXY_REFERENCE for p in losses.method(n).presets.values()],
    ("proxy_triplet", {"margin": 0.1}),
    ("proxy_nca", {"scale": 1.0, "proxy_scale": 8.0}),
    ("proxy_softmax", {"label_smoothing": 0.3, "temperature": 0.5}),
    ("proxy_softmax", {"label_smoothing": 0.3, "temperature": 0.5, "smooth_over": "others"}),
    ("proxy_anchor", {"alpha": 5.0, "delta": -0.2}),
    ("cosface", {"scale": 4.0, "margin": 0.9}),
    ("arcface", {"scale": 4.0, "margin": 1.5}),
    ("sub_center_arcface", {"scale": 8.0, "centers": 1}),
    ("soft_triple", {"scale": 5.0, "gamma": 1.0, "centers": 2, "tau": 3.0}),
    ("soft_triple", {"centers": 1}),
    ("uce", {"scale": 8.0, "margin": 0.0, "lam": 0.2}),
    ("adaface", {"margin": 1.2, "h": 3.0, "scale": 4.0}),
    ("magface", {"auto": True, "scale": 4.0}),
    ("magface", {"l_a": 0.5, "u_a": 3.0, "u_m": 1.5, "scale": 8.0, "lam": 0.3}),
    ("potential_field", {"alpha": 1.0, "delta": 1.3, "proxies_per_class": 2}),
    ("mean_field_contrastive", {"lam": 0.7, "neg_margin": 1.2, "pos_margin": 0.4}),
    ("mean_field_contrastive", {"lam": 2.0, "neg_margin": 0.9, "power": 1.0}),
]
PULLS_ALONE = {"proxy_anchor", "uce", "magface", "potential_field", "mean_field_contrastive"}  # without other classes
PLAIN: dict[str, dict[str, Any]] = {"soft_triple": {"tau": 0.0}}  # without the regulariser of the centers


def make(name: str, num_classes: int = C, dim: int = D, **params: Any) -> ProxyLoss:
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(0)
    loss = losses.create(name, num_classes=num_classes, dim=dim, **params)
    torch.set_rng_state(state)
    return narrow(ProxyLoss, loss).double()


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    found, expected = found.detach(), expected.detach()
    size = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0.0, atol=tolerance * size + 1e-12)


def compare(name: str, params: dict[str, Any], x: Tensor, labels: Tensor, num_classes: int = C) -> None:
    loss = make(name, num_classes, x.shape[1], **params)
    x = x.clone().requires_grad_()
    proxies = loss.proxies.detach().clone().requires_grad_()
    besides = {key: p.detach().clone().requires_grad_() for key, p in loss.named_parameters() if key != "proxies"}
    expected = PROXY_REFERENCE[name](x, labels, proxies, **params, **besides)
    want = torch.autograd.grad(expected, (x, proxies, *besides.values()))
    value = loss(x, labels)
    found = torch.autograd.grad(value, (x, loss.proxies, *(loss.get_parameter(key) for key in besides)))
    close(value, expected)
    for ours, theirs in zip(found, want, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize(("name", "params"), SETTINGS, ids=str)
@pytest.mark.parametrize("batch", [b for b in ZOO if b != "large_norms"])
def test_equals_its_reference(name: str, params: dict[str, Any], batch: str) -> None:
    x, labels = ZOO[batch]
    if bool((x == 0).all(1).any()):
        pytest.skip("the gradient of the reference is infinite at a vector of length 0")
    compare(name, params, x, labels)


@pytest.mark.parametrize("name", PROXY_REFERENCE)
@settings(deadline=None, max_examples=15)
@given(items=st.integers(1, 12), classes=st.integers(2, 7), dim=st.integers(2, 5), seed=st.integers(0, 2**31))
def test_any_shape_equals_its_reference(name: str, items: int, classes: int, dim: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(items, dim, generator=generator, dtype=torch.float64)
    compare(name, {}, x, torch.randint(classes, (items,), generator=generator), classes)


@pytest.mark.parametrize("name", [name for name in PROXY_REFERENCE if name != "potential_field"])  # in its own file
def test_weights_are_the_derivative_with_respect_to_cosines(name: str) -> None:
    """W is an (N, C K) matrix, whether batch or proxies are the engine's rows."""
    x, labels = ZOO["random"]
    loss = make(name, **PLAIN.get(name, {})).eval()
    x = F.normalize(x, dim=1).requires_grad_()
    w = pair_weights(loss, x, labels)
    value = loss(x, labels)
    p = F.normalize(loss.proxies.detach(), dim=1)
    g = w @ p
    close(torch.autograd.grad(value, x)[0], g - (g * x).sum(1, keepdim=True) * x.detach())


@pytest.mark.parametrize("name", PROXY_REFERENCE)
def test_one_class_has_nothing_to_learn(name: str) -> None:
    x = torch.randn(4, D, dtype=torch.float64, requires_grad=True)
    loss = make(name, 1, **PLAIN.get(name, {}))
    value = loss(x, torch.zeros(4, dtype=torch.int64))
    value.backward()
    if name in PULLS_ALONE:
        assert value != 0
        return
    assert value == 0
    assert not bool(grad_of(x).any())


# ------------------------------------------------------------------------------------------------------- identities


def test_probabilistic_proxy_nca_is_a_softmax_with_a_temperature() -> None:
    x, labels = ZOO["random"]
    nca = make("proxy_nca", scale=1.5, proxy_scale=4.0, form="probabilistic")
    softmax = make("proxy_softmax", temperature=1 / (2 * 1.5 * 4.0))
    close(nca(x, labels), softmax(x, labels))


def test_families_meet_where_their_margins_vanish() -> None:
    x, labels = ZOO["random"]
    plain = make("proxy_softmax", temperature=1 / 64)(x, labels)
    close(make("cosface", margin=0.0)(x, labels), plain)
    close(make("arcface", margin=0.0)(x, labels), plain)
    close(make("sub_center_arcface", margin=0.0, centers=1)(x, labels), plain)
    close(make("soft_triple", scale=64.0, delta=0.0, centers=1)(x, labels), plain)


def test_classifiers_push_as_much_as_they_pull() -> None:
    x, labels = ZOO["random"]
    for name in ("proxy_softmax", "proxy_nca", "cosface", "proxy_triplet"):
        w = pair_weights(make(name), x, labels)
        close(w.sum(1), torch.zeros(len(x), dtype=w.dtype))
        own = w.gather(1, labels[:, None])
        assert bool((own <= 0).all())
        assert bool((w.scatter(1, labels[:, None], 0.0) >= 0).all())


def test_soft_triple_can_push_away_a_weak_center() -> None:
    """Through the inner softmax the weight of a positive center may be positive."""
    x, labels = ZOO["random"]
    w = pair_weights(make("soft_triple", gamma=0.02, centers=3), x, labels).view(len(x), C, 3)
    own = w[torch.arange(len(x)), labels]
    assert bool((own > 0).any())
    assert bool((own < 0).any())


@given(st.floats(-1, 1), st.floats(0, math.pi / 2))
def test_the_angular_target_is_monotone(cosine: float, margin: float) -> None:
    c = torch.linspace(-1, 1, 501, dtype=torch.float64)
    value, slope = add_angle(c, margin)
    assert bool((value.diff() >= -1e-12).all())
    assert bool((slope >= -1e-12).all())
    low, high = add_angle(torch.tensor([cosine, min(1.0, cosine + 1e-3)], dtype=torch.float64), margin)[0]
    assert low <= high + 1e-12


# ------------------------------------------------------------------------------------------- very many classes


@pytest.mark.parametrize("name", PROXY_REFERENCE)
def test_sampled_classes_are_those_of_the_batch_and_others(name: str) -> None:
    x, labels = ZOO["random"]
    full, some = make(name), make(name, sample=len(labels.unique()) + 2)
    held = some.held(labels)
    rows = held.labels.unique()
    assert len(rows) == len(labels.unique()) + 2
    assert set(labels.tolist()) <= set(rows.tolist())
    place = torch.full((C,), -1).scatter(0, rows, torch.arange(len(rows)))
    params = PLAIN.get(name, {})
    some, small = make(name, sample=some.sample, **params), make(name, len(rows), **params)
    small.load_state_dict({**some.state_dict(), "proxies": held.vectors.detach().clone()})
    close(some(x, labels), small(x, place[labels]))
    some.eval()
    full.load_state_dict(some.state_dict())
    full.eval()
    if not params:
        close(some(x, labels), full(x, labels))  # nothing is drawn outside training


def test_other_classes_are_drawn_anew_every_step_and_alike_every_time() -> None:
    x, labels = torch.randn(6, D), torch.tensor([3, 4, 3, 4, 3, 4])

    def drawn() -> list[list[int]]:
        loss = make("proxy_softmax", 1000, sample=12).float()
        found = []
        for _ in range(3):
            found.append(loss.held(labels).labels.tolist())
            loss(x, labels)
        return found

    assert drawn() == drawn()
    assert len({tuple(step) for step in drawn()}) == 3


@pytest.mark.parametrize("sample", [None, 4])
def test_sparse_gradients_step_only_the_rows_compared_with(sample: int | None) -> None:
    x, labels = torch.randn(6, D), torch.tensor([1, 2, 1, 2, 1, 2])
    dense, sparse = (make("cosface", sample=sample, sparse=s).float() for s in (False, True))
    touched = sparse.held(labels).labels.unique()
    for loss in (dense, sparse):
        loss(x, labels).backward()
    found = grad_of(sparse.proxies)
    assert found.is_sparse
    assert torch.equal(found.to_dense(), grad_of(dense.proxies))
    assert torch.equal(found.coalesce().indices()[0], touched)
    before = sparse.proxies.detach().clone()
    torch.optim.SparseAdam(sparse.parameters(), lr=0.1).step()
    moved = sparse.proxies.ne(before).any(1).nonzero()[:, 0]
    assert len(moved) > 0
    assert set(moved.tolist()) <= set(touched.tolist())


def test_wrong_proxies_are_refused() -> None:
    with pytest.raises(InputError, match=r"sample must be at most num_classes = 4.*9"):
        make("cosface", 4, sample=9)
    with pytest.raises(InputError, match=r"centers.*at least 1.*0"):
        make("soft_triple", centers=0)
    with pytest.raises(InputError, match=r"margin.*got 28\.6\. Angles are in radians"):
        make("arcface", margin=28.6)
    with pytest.raises(InputError, match=r"proxies must fit into memory; got 2,147,483,647 x 1,048,576 numbers"):
        make("cosface", 2**31 - 1, 2**20)
    with pytest.raises(InputError, match="proxies' 8 dims; got 5"):
        make("cosface")(torch.randn(3, 5).double(), torch.tensor([0, 1, 2]))
    x, labels = ZOO["random"]
    with pytest.raises(InputError, match="without references"):
        make("proxy_anchor")(x, labels, x, labels)


# ------------------------------------------------------------------------------------------------------ the peer


# Losses of pytorch-metric-learning with the same definition, and our settings for it
PEERS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "proxy_softmax": (lambda: pml.NormalizedSoftmaxLoss(C, D, temperature=0.05), {}),
    "proxy_nca": (lambda: pml.ProxyNCALoss(C, D, softmax_scale=9), {"form": "probabilistic"}),
    "proxy_anchor": (lambda: pml.ProxyAnchorLoss(C, D), {}),
    "cosface": (lambda: pml.CosFaceLoss(C, D), {}),
    "arcface": (lambda: pml.ArcFaceLoss(C, D, margin=math.degrees(0.5)), {}),
    "sub_center_arcface": (
        lambda: pml.SubCenterArcFaceLoss(num_classes=C, embedding_size=D, margin=math.degrees(0.5), sub_centers=3), {},
    ),
    "soft_triple": (lambda: pml.SoftTripleLoss(C, D), {"tau": 0.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", PEERS)
def test_equals_pytorch_metric_learning(name: str) -> None:
    """Value and gradient; its proxy matrices are transposed in most losses, and scaled inside."""
    x, labels = ZOO["random"]
    build, setting = PEERS[name]
    loss, peer = make(name, **setting), build().double()
    weight = next(peer.parameters())
    ours = loss.proxies.detach()
    weight.data = ours.T.clone() if weight.shape[0] == D else ours.clone()
    found, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
    value, expected = loss(found, labels), peer(wanted, labels)
    close(value, expected, 1e-6)
    close(torch.autograd.grad(value, found)[0], torch.autograd.grad(expected, wanted)[0], 1e-6)


@pytest.mark.parametrize("preset", ["reality_check_cub", "reality_check_cars", "reality_check_sop"])
def test_the_reality_checks_soft_triple_divides_by_gamma(preset: str) -> None:
    """Its settings go in as they were published: the library that found them computes softmax(S / gamma)."""
    params = losses.method("soft_triple").presets[preset]
    published = {"reality_check_cub": 58.95, "reality_check_cars": 19.18, "reality_check_sop": 47.9}
    assert params["gamma"] == published[preset]
    searched = losses.method("soft_triple").space["gamma"]
    assert isinstance(searched, Real)
    assert searched.low <= 0.1 < 19 < 59 <= searched.high  # the paper's value, and those
    x, labels = ZOO["random"]
    loss = make("soft_triple", **{**params, "tau": 0.0})
    peer = pml.SoftTripleLoss(C, D, la=params["scale"], gamma=params["gamma"], margin=params["delta"]).double()
    next(peer.parameters()).data = loss.proxies.detach().T.clone()
    close(loss(x, labels), peer(x, labels), 1e-6)


def test_the_released_soft_triple_starts_uniform() -> None:
    """Within 1/sqrt(C K), as by kaiming_uniform_(a=sqrt 5) of the authors' (D, C K) matrix."""
    uniform, normal = (make("soft_triple", 40, 32, start=start).proxies.detach() for start in ("uniform", "normal"))
    bound = 1 / math.sqrt(400)
    assert uniform.abs().max() == pytest.approx(bound, rel=0.001)
    assert uniform.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert normal.std() == pytest.approx(bound * math.sqrt(2), rel=0.02)
    with pytest.raises(InputError, match="start must be 'normal' with shard, which splits the centers; got 'uniform'"):
        make("soft_triple", start="uniform", shard=True)
