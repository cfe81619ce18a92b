"""The bridge beside pytorch-metric-learning 2.9: every mapped class with the same arguments gives the same result.

Each class of `nearfield.compat.pml` and the class of the same name in `pytorch_metric_learning` are built alike and
called alike; values and gradients are compared in float64. Axes: N items, D dims.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from importlib.metadata import metadata
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import pytorch_metric_learning as pml
import pytorch_metric_learning.distances
import pytorch_metric_learning.losses
import pytorch_metric_learning.miners
import pytorch_metric_learning.reducers
import pytorch_metric_learning.regularizers
import pytorch_metric_learning.samplers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PeerCalculator
from reference import batches
from torch import Tensor, nn

from nearfield import InputError
from nearfield.compat import pml as bridge
from nearfield.compat.pml.base import PairBridge
from nearfield.compat.pml.utils.accuracy_calculator import AccuracyCalculator
from nearfield.training.doctor import Doctor

pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # PML's HistogramLoss

Build = Callable[[ModuleType], Any]  # from a library, ours or theirs, to a loss or a miner
BATCH = "random", "unequal", "duplicates"

LOSSES: dict[str, Build] = {
    "contrastive": lambda lib: lib.losses.ContrastiveLoss(),
    "contrastive, margins": lambda lib: lib.losses.ContrastiveLoss(pos_margin=0.4, neg_margin=1.3),
    "contrastive, mean": lambda lib: lib.losses.ContrastiveLoss(reducer=lib.reducers.MeanReducer()),
    "contrastive, squared": lambda lib: lib.losses.ContrastiveLoss(
        0.25, 1.5, distance=lib.distances.LpDistance(power=2)
    ),
    "contrastive, raw": lambda lib: lib.losses.ContrastiveLoss(
        1.0, 4.0, distance=lib.distances.LpDistance(normalize_embeddings=False)
    ),
    "contrastive, L1": lambda lib: lib.losses.ContrastiveLoss(0.3, 2.0, distance=lib.distances.LpDistance(p=1)),
    "contrastive, cosine": lambda lib: lib.losses.ContrastiveLoss(0.9, 0.2, distance=lib.distances.CosineSimilarity()),
    "contrastive, cosine, mean": lambda lib: lib.losses.ContrastiveLoss(
        1.5, 0.6, distance=lib.distances.CosineSimilarity(), reducer=lib.reducers.MeanReducer()
    ),
    "snr": lambda lib: lib.losses.SignalToNoiseRatioContrastiveLoss(),
    "triplet": lambda lib: lib.losses.TripletMarginLoss(),
    "triplet, margin": lambda lib: lib.losses.TripletMarginLoss(margin=0.3),
    "triplet, mean": lambda lib: lib.losses.TripletMarginLoss(0.3, reducer=lib.reducers.MeanReducer()),
    "triplet, threshold": lambda lib: lib.losses.TripletMarginLoss(0.2, reducer=lib.reducers.ThresholdReducer(low=0)),
    "triplet, cosine": lambda lib: lib.losses.TripletMarginLoss(0.2, distance=lib.distances.CosineSimilarity()),
    "triplet, L1": lambda lib: lib.losses.TripletMarginLoss(0.2, distance=lib.distances.LpDistance(p=1)),
    "triplet, swap": lambda lib: lib.losses.TripletMarginLoss(0.3, swap=True),
    "triplet, smooth": lambda lib: lib.losses.TripletMarginLoss(0.3, smooth_loss=True),
    "triplet, smooth, cosine": lambda lib: lib.losses.TripletMarginLoss(
        0.3, smooth_loss=True, swap=True, distance=lib.distances.CosineSimilarity()
    ),
    "multi similarity": lambda lib: lib.losses.MultiSimilarityLoss(),
    "multi similarity, distance": lambda lib: lib.losses.MultiSimilarityLoss(
        alpha=2, beta=10, base=0.7, distance=lib.distances.LpDistance()
    ),
    "nt-xent": lambda lib: lib.losses.NTXentLoss(),
    "nt-xent, distance": lambda lib: lib.losses.NTXentLoss(0.1, distance=lib.distances.LpDistance()),
    "supcon": lambda lib: lib.losses.SupConLoss(),
    "supcon, distance": lambda lib: lib.losses.SupConLoss(0.2, distance=lib.distances.LpDistance()),
    "circle": lambda lib: lib.losses.CircleLoss(),
    "generalised lifted": lambda lib: lib.losses.GeneralizedLiftedStructureLoss(),
    "generalised lifted, cosine": lambda lib: lib.losses.GeneralizedLiftedStructureLoss(
        neg_margin=0.2, pos_margin=0.9, distance=lib.distances.CosineSimilarity()
    ),
    "lifted": lambda lib: lib.losses.LiftedStructureLoss(),
    "lifted, margins": lambda lib: lib.losses.LiftedStructureLoss(neg_margin=0.5, pos_margin=0.1),
    "margin": lambda lib: lib.losses.MarginLoss(),
    "margin, beta": lambda lib: lib.losses.MarginLoss(0.1, nu=0.1, beta=1.0, learn_beta=True),
    "margin, beta of a class": lambda lib: lib.losses.MarginLoss(0.1, nu=0.1, beta=1.0, learn_beta=True, num_classes=7),
    "nca": lambda lib: lib.losses.NCALoss(),
    "nca, scale": lambda lib: lib.losses.NCALoss(softmax_scale=5),
    "nca, raw": lambda lib: lib.losses.NCALoss(distance=lib.distances.LpDistance(normalize_embeddings=False)),
    "nca, cosine": lambda lib: lib.losses.NCALoss(3, distance=lib.distances.CosineSimilarity()),
}
OWN: dict[str, Build] = {  # of a batch alone
    "fastap": lambda lib: lib.losses.FastAPLoss(),
    "fastap, bins": lambda lib: lib.losses.FastAPLoss(num_bins=5),
    "proxy anchor": lambda lib: lib.losses.ProxyAnchorLoss(7, 8),
    "proxy anchor, margin": lambda lib: lib.losses.ProxyAnchorLoss(7, 8, margin=0.5, alpha=8),
    "proxy nca": lambda lib: lib.losses.ProxyNCALoss(7, 8, softmax_scale=3),
    "normalised softmax": lambda lib: lib.losses.NormalizedSoftmaxLoss(7, 8),
    "arcface": lambda lib: lib.losses.ArcFaceLoss(7, 8),
    "arcface, margin": lambda lib: lib.losses.ArcFaceLoss(7, 8, margin=50, scale=10),
    "cosface": lambda lib: lib.losses.CosFaceLoss(num_classes=7, embedding_size=8, margin=0.2, scale=20),
    "sub-center arcface": lambda lib: lib.losses.SubCenterArcFaceLoss(num_classes=7, embedding_size=8, sub_centers=2),
    "soft triple": lambda lib: lib.losses.SoftTripleLoss(7, 8, centers_per_class=3, gamma=0.2),
}
MINERS: dict[str, Build] = {
    "multi similarity": lambda lib: lib.miners.MultiSimilarityMiner(),
    "multi similarity, distance": lambda lib: lib.miners.MultiSimilarityMiner(0.2, distance=lib.distances.LpDistance()),
    "batch hard": lambda lib: lib.miners.BatchHardMiner(),
    "batch hard, cosine": lambda lib: lib.miners.BatchHardMiner(distance=lib.distances.CosineSimilarity()),
    "batch hard, raw": lambda lib: lib.miners.BatchHardMiner(
        distance=lib.distances.LpDistance(normalize_embeddings=False)
    ),
    "batch hard, squared": lambda lib: lib.miners.BatchHardMiner(distance=lib.distances.LpDistance(power=2)),
    "pair margin": lambda lib: lib.miners.PairMarginMiner(0.9, 1.2),
    "pair margin, cosine": lambda lib: lib.miners.PairMarginMiner(0.5, 0.1, distance=lib.distances.CosineSimilarity()),
    "all triplets": lambda lib: lib.miners.TripletMarginMiner(margin=0.3),
    "semihard": lambda lib: lib.miners.TripletMarginMiner(margin=0.3, type_of_triplets="semihard"),
    "semihard, narrow": lambda lib: lib.miners.TripletMarginMiner(margin=0.02, type_of_triplets="semihard"),
    "semihard, cosine": lambda lib: lib.miners.TripletMarginMiner(
        margin=0.2, type_of_triplets="semihard", distance=lib.distances.CosineSimilarity()
    ),
    "hard": lambda lib: lib.miners.TripletMarginMiner(margin=0.3, type_of_triplets="hard"),
    "easy": lambda lib: lib.miners.TripletMarginMiner(margin=0.3, type_of_triplets="easy"),
    **{
        f"{pos} and {neg}": lambda lib, pos=pos, neg=neg: lib.miners.BatchEasyHardMiner(pos, neg)  # type: ignore[misc]
        for pos, neg in (("easy", "semihard"), ("semihard", "hard"), ("hard", "easy"), ("all", "hard"), ("easy", "all"))
    },
    "easy in a range": lambda lib: lib.miners.BatchEasyHardMiner(
        "easy", "easy", allowed_pos_range=[0.5, 1.4], allowed_neg_range=[0.2, 1.3]
    ),
}


def pair(build: Build) -> tuple[Any, Any]:
    """Our object and theirs, in float64, with the same parameters."""
    torch.manual_seed(0)
    theirs = build(pml)
    ours = build(bridge)
    if isinstance(ours, nn.Module):
        ours, theirs = ours.double(), theirs.double()
        if list(theirs.parameters()) and not isinstance(ours, PairBridge):
            ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def outcome(loss: Any, x: Tensor, labels: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    """Value, and the gradients of the embeddings, of the references and of whatever the loss learns."""
    x = x.clone().requires_grad_()
    rest = tuple(r.clone().requires_grad_() if isinstance(r, Tensor) and r.is_floating_point() else r for r in rest)
    wanted = [x, *(r for r in rest if isinstance(r, Tensor) and r.requires_grad)]
    wanted += [p for p in loss.parameters() if p.requires_grad]
    value = loss(x, labels, *rest)
    grads = torch.autograd.grad(value, wanted, allow_unused=True)
    found = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, grads, strict=True)]
    return value.detach().squeeze(), *found


def same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        other = other.T if mine.shape != other.shape else other  # PML's W is (D, C)
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9)


def list_used(loss: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the loss goes through a list of pairs instead of the engine."""
    calls: list[int] = []
    kind, original = type(loss), type(loss).over_list

    def counted(self: Any, *args: Any) -> Tensor:
        calls.append(1)
        return original(self, *args)  # type: ignore[no-any-return]

    monkeypatch.setattr(kind, "over_list", counted)
    return calls


# ------------------------------------------------------------------------------------------------------------ losses


@pytest.mark.parametrize("name", [*LOSSES, *OWN])
@pytest.mark.parametrize("kind", ["random", "unequal"])
def test_a_batch(name: str, kind: str) -> None:
    ours, theirs = pair((LOSSES | OWN)[name])
    for seed in (0, 1):
        x, labels = batches(seed)[kind]
        same(outcome(ours, x, labels), outcome(theirs, x, labels))


@pytest.mark.parametrize("name", [n for n in LOSSES if "swap" not in n and n != "triplet, smooth, cosine"])
def test_references(name: str) -> None:
    ours, theirs = pair(LOSSES[name])
    (x, labels), (refs, ref_labels) = batches(0)["random"], batches(1)["random"]
    refs, ref_labels = refs[1:], ref_labels[1:]
    if name.startswith("lifted"):  # theirs looks up the row of a reference's number, too
        refs, ref_labels = refs[:20], ref_labels[:20]
    same(outcome(ours, x, labels, None, refs, ref_labels), outcome(theirs, x, labels, None, refs, ref_labels))


@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("name", [n for n in LOSSES if n not in ("contrastive, margins", "triplet, threshold")])
def test_the_tuple_of_a_miner(name: str, miner: str) -> None:
    (ours, theirs), (mine, other) = pair(LOSSES[name]), pair(MINERS[miner])
    x, labels = batches(0)["unequal"]
    x, y = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, wanted = ours(x, labels, mine(x, labels)), theirs(y, labels, other(y, labels))
    torch.testing.assert_close(found.squeeze(), wanted.squeeze(), rtol=1e-7, atol=1e-9)
    found.backward()
    wanted.sum().backward()
    if x.grad is not None or y.grad is not None:
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["nca", "fastap", "proxy nca", "normalised softmax", "arcface", "cosface", "soft triple"]
)
def test_a_tuple_as_weights_of_items(name: str) -> None:
    ours, theirs = pair((LOSSES | OWN)[name])
    x, labels = batches(0)["random"]
    for miner in ("multi similarity", "semihard"):
        mined = MINERS[miner](pml)(x, labels)
        same(outcome(ours, x, labels, mined), outcome(theirs, x, labels, mined))


@settings(max_examples=40)
@given(st.sampled_from([n for n in LOSSES if not n.startswith(("nca", "margin, beta of"))]), st.data())
def test_any_tuple_without_labels(name: str, data: st.DataObject) -> None:
    """Pairs may repeat, share no label, or lack one side."""
    ours, theirs = pair(LOSSES[name])
    x = batches(0)["random"][0][:7]
    index = st.integers(0, 6)
    size, triplets = data.draw(st.integers(2, 12)), data.draw(st.booleans())
    columns = [torch.tensor(data.draw(st.lists(index, min_size=size, max_size=size))) for _ in range(4)]
    a, p, b, n = columns
    apart = (a != p) & (b != n) & (a != n)  # no item with itself
    a, p, b, n = a[apart], p[apart], b[apart], n[apart]
    listed = set(zip(a.tolist(), p.tolist(), strict=True))
    free = torch.tensor([(i, j) not in listed for i, j in zip(b.tolist(), n.tolist(), strict=True)], dtype=torch.bool)
    other = torch.tensor([(i, j) not in listed for i, j in zip(a.tolist(), n.tolist(), strict=True)], dtype=torch.bool)
    tuples = (a[other], p[other], n[other]) if triplets else (a, p, b[free], n[free])
    if all(len(part) <= 1 for part in tuples):
        return  # PML answers 0 to a single pair; the bridge does not
    same(outcome(ours, x, None, tuples), outcome(theirs, x, None, tuples))


@pytest.mark.parametrize("name", [n for n in LOSSES if n.startswith("lifted")])
def test_a_listed_pair_whose_ends_have_no_listed_negative(name: str) -> None:
    ours, theirs = pair(LOSSES[name])
    x = batches(0)["random"][0][:7]
    tuples = tuple(torch.tensor(part) for part in ([0, 2, 4], [1, 0, 5], [1, 1], [2, 0]))
    same(outcome(ours, x, None, tuples), outcome(theirs, x, None, tuples))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", ["one_class", "all_distinct", "one"])
def test_batches_without_pairs_have_no_loss(name: str, kind: str) -> None:
    ours, theirs = pair(LOSSES[name])
    x, labels = (batches()["random"][0][:1], torch.tensor([3])) if kind == "one" else batches()[kind]
    labels = labels % 7
    same(outcome(ours, x, labels), outcome(theirs, x, labels))


@pytest.mark.parametrize(
    ("name", "miner"),
    [
        ("triplet", "multi similarity"), ("triplet, cosine", "multi similarity"), ("triplet, margin", "semihard"),
        ("triplet, cosine", "semihard, cosine"), ("triplet", "all triplets"), ("triplet", "batch hard"),
        ("contrastive", "batch hard, cosine"), ("multi similarity", "multi similarity"),
        ("contrastive", "pair margin, cosine"), ("nt-xent", "batch hard"), ("circle", "multi similarity"),
    ],
)  # fmt: skip
def test_rules_that_the_engine_knows_are_not_enumerated(name: str, miner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, mine = LOSSES[name](bridge), MINERS[miner](bridge)
    x, labels = batches(0)["random"]
    calls, mined = list_used(loss, monkeypatch), mine(x, labels)
    value = loss(x, labels, mined)
    assert not calls
    assert mined._found is None
    torch.testing.assert_close(value, loss(x, labels, tuple(mined)), rtol=1e-10, atol=1e-12)
    assert calls
    assert loss.loss.miner is None
    torch.testing.assert_close(loss(x, labels), LOSSES[name](bridge)(x, labels))  # the rule did not stay


@pytest.mark.parametrize(
    ("name", "miner"),
    [("nt-xent", "pair margin"), ("triplet, margin", "semihard, narrow"), ("triplet, mean", "semihard")],
)
def test_rules_that_do_not_fit_are_enumerated(name: str, miner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, mine = LOSSES[name](bridge), MINERS[miner](bridge)
    x, labels = batches(0)["random"]
    calls = list_used(loss, monkeypatch)
    loss(x, labels, mine(x, labels))
    assert calls
    calls.clear()
    mined = MINERS["multi similarity"](bridge)(x.clone(), labels)
    loss(x, labels, mined)  # of another tensor
    assert calls


def test_version_2_takes_one_label_object_for_one_set_and_version_3_does_not() -> None:
    (x, labels), (refs, _) = batches(0)["random"], batches(1)["random"]
    for name in ("triplet", "nt-xent", "nca"):  # in NCA labels never decide it
        ours, theirs = pair(LOSSES[name])
        found, wanted = outcome(ours, x, labels, None, refs, labels), outcome(theirs, x, labels, None, refs, labels)
        same(found, wanted)
        kind = type(ours)
        apart = kind(version=3, **({"margin": 0.05} if name == "triplet" else {})).double()
        same(outcome(apart, x, labels, None, refs, labels), outcome(theirs, x, labels, None, refs, labels.clone()))


def test_version_3_has_its_own_defaults() -> None:
    x, labels = batches()["random"]
    three, two = bridge.losses.TripletMarginLoss(version=3), bridge.losses.TripletMarginLoss(margin=0.2)
    torch.testing.assert_close(three(x, labels), two(x, labels))
    torch.testing.assert_close(bridge.distances.DotProductSimilarity(version=3)(x), x @ x.T)
    torch.testing.assert_close(bridge.distances.DotProductSimilarity()(x), pml.distances.DotProductSimilarity()(x))
    with pytest.raises(InputError, match=r"version must be 2 or 3.*got 4"):
        bridge.losses.NTXentLoss(version=4)


def test_one_positive_and_one_negative_pair_count() -> None:
    """PML answers 0 to a tuple of single pairs."""
    x = batches()["random"][0][:3]
    one = tuple(torch.tensor([i]) for i in (0, 1, 0, 2))
    for name in ("contrastive", "multi similarity", "nt-xent"):
        assert float(LOSSES[name](bridge)(x, None, one)) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_a_loss_of_single_precision(dtype: torch.dtype) -> None:
    x, labels = batches()["random"]
    for name in ("contrastive", "contrastive, cosine", "triplet", "multi similarity", "nt-xent, distance"):
        loss = LOSSES[name](bridge)
        narrow, wide = outcome(loss, x.to(dtype), labels), outcome(loss, x.to(dtype).double(), labels)
        assert narrow[0].dtype == torch.float32
        assert narrow[1].dtype == dtype
        torch.testing.assert_close(narrow[0].double(), wide[0], rtol=1e-4, atol=1e-4)


def test_regularisers_are_added() -> None:
    x, labels = batches()["random"]
    plain, loss = (
        bridge.losses.NTXentLoss(),
        bridge.losses.NTXentLoss(embedding_regularizer=lambda e: e.norm(dim=1).mean(), embedding_reg_weight=0.5),
    )
    torch.testing.assert_close(loss(x, labels), plain(x, labels) + 0.5 * x.norm(dim=1).mean())
    ours, theirs = pair(
        lambda lib: lib.losses.ArcFaceLoss(
            7, 8, weight_regularizer=pml.regularizers.RegularFaceRegularizer(), weight_reg_weight=0.3
        )
    )
    same(outcome(ours, x, labels), outcome(theirs, x, labels))


@pytest.mark.parametrize(
    "name", ["arcface", "cosface", "proxy anchor", "normalised softmax", "soft triple", "proxy nca"]
)
def test_logits_are_those_of_pml(name: str) -> None:
    ours, theirs = pair(OWN[name])
    x, _ = batches()["random"]
    torch.testing.assert_close(ours.get_logits(x), theirs.get_logits(x))


def test_proxies_can_be_given_under_their_names() -> None:
    x, labels = batches()["random"]
    loss, given = bridge.losses.ProxyAnchorLoss(7, 8), nn.Parameter(torch.randn(7, 8))
    loss.proxies = given
    assert [p is given for p in loss.parameters()] == [True]
    turned = bridge.losses.ArcFaceLoss(7, 8)
    turned.W = nn.Parameter(torch.ones(8, 7))
    assert torch.equal(turned.W, torch.ones(8, 7))
    turned(x, labels).backward()
    assert next(turned.parameters()).grad is not None


def test_histogram_up_to_the_float32_bins_of_pml() -> None:
    for options in ({}, {"n_bins": 20}, {"delta": 0.1}):
        ours, theirs = (lib.losses.HistogramLoss(**options) for lib in (bridge, pml))
        torch.testing.assert_close(ours(*batches()["random"]), theirs(*batches()["random"]), rtol=1e-5, atol=0.0)
        assert ours(*batches()["all_distinct"]) == 0
    with pytest.raises(InputError, match=r"delta must be 2 / n_bins.*0.4"):
        bridge.losses.HistogramLoss(n_bins=10, delta=0.4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_scale_does_not_overflow(dtype: torch.dtype) -> None:
    angles = torch.arange(180, dtype=dtype).deg2rad()
    x, labels = torch.stack([angles.cos(), angles.sin()], 1).requires_grad_(), torch.arange(180) % 10
    value = bridge.losses.CircleLoss(m=0.4, gamma=300)(x, labels)
    value.backward()
    assert 0 < float(value.detach()) < torch.inf
    torch.testing.assert_close(value, pml.losses.CircleLoss(m=0.4, gamma=300)(x, labels), rtol=1e-4, atol=0.0)


def test_regularisers_of_pml_are_taken() -> None:
    x, labels = batches()["random"]
    zero_mean, sparse = pml.regularizers.ZeroMeanRegularizer, pml.regularizers.SparseCentersRegularizer
    for build in (
        lambda lib: lib.losses.SignalToNoiseRatioContrastiveLoss(
            neg_margin=0.1, embedding_regularizer=zero_mean(), embedding_reg_weight=0.1
        ),
        lambda lib: lib.losses.SoftTripleLoss(
            7, 8, centers_per_class=3, weight_regularizer=sparse(7, 3), weight_reg_weight=0.2
        ),
    ):
        ours, theirs = pair(build)
        same(outcome(ours, x, labels), outcome(theirs, x, labels))


# ------------------------------------------------------------------------------------------------------------ miners


@pytest.mark.parametrize("name", MINERS)
@pytest.mark.parametrize("kind", ["random", "unequal", "all_distinct", "one_class"])
def test_miners_find_the_pairs_of_pml(name: str, kind: str) -> None:
    ours, theirs = pair(MINERS[name])
    x, labels = batches()[kind]
    mined, wanted = ours(x, labels), theirs(x, labels)
    assert len(mined) == len(wanted)
    for part in (slice(0, 2), slice(2, 4)) if len(wanted) == 4 else (slice(0, 3),):
        assert _rows(mined[part]) == _rows(wanted[part])
    (refs, ref_labels) = batches(1)[kind]
    assert _rows(ours(x, labels, refs, ref_labels)[:2]) == _rows(theirs(x, labels, refs, ref_labels)[:2])
    assert ours.num_triplets + ours.num_pos_pairs == len(ours.last[0])


def _rows(parts: Any) -> set[tuple[int, ...]]:
    return set(zip(*(part.tolist() for part in parts), strict=True))


def test_distance_weighted_triplets_are_valid_and_drawn_as_pml_draws() -> None:
    """On a circle distances have a known density: drawn negatives are spread evenly over them."""
    torch.manual_seed(0)
    angles = torch.arange(256) / 256 * torch.pi
    x, labels = torch.stack([angles.cos(), angles.sin()], 1), torch.randint(0, 2, (256,))
    for cutoff in (0.6, 1.3):
        a, p, n = bridge.miners.DistanceWeightedMiner(0.0 + 1e-6, cutoff)(x, labels)
        assert bool((labels[a] == labels[p]).all() and (labels[a] != labels[n]).all() and (a != p).all())
        d = (x[a] - x[n]).norm(dim=1)
        assert d.max() <= cutoff
        assert abs(float(d.mean()) / (cutoff / 2) - 1) < 0.1
        assert abs(float(d.var()) / (cutoff**2 / 12) - 1) < 0.15
    assert len(bridge.miners.DistanceWeightedMiner()(x[:32], torch.arange(32))[0]) == 0
    loss = bridge.losses.MarginLoss(learn_beta=True)
    mined = bridge.miners.DistanceWeightedMiner()(x, labels)
    torch.testing.assert_close(
        loss(x, labels, mined), pml.losses.MarginLoss(learn_beta=True)(x, labels, tuple(mined)).squeeze()
    )


def test_packaged_triplets_and_miners_of_ones_own() -> None:
    x = batches()["random"][0][:6]
    a, p, n = bridge.miners.EmbeddingsAlreadyPackagedAsTriplets()(x, torch.arange(6))
    assert (a.tolist(), p.tolist(), n.tolist()) == ([0, 3], [1, 4], [2, 5])

    class Everything(bridge.miners.BaseMiner):
        def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> tuple[Tensor, ...]:
            return tuple(torch.tensor([i]) for i in (0, 1, 0, 2))

    assert [int(part) for part in Everything()(x, torch.arange(6))] == [0, 1, 0, 2]


# ------------------------------------------------------------------------------------- memory, self-supervised, sampler


@pytest.mark.parametrize(
    "name", ["contrastive", "nt-xent", "triplet", "multi similarity", "contrastive, cosine", "supcon"]
)
@pytest.mark.parametrize("miner", [None, "multi similarity", "all triplets"])
def test_the_memory_is_that_of_pml(name: str, miner: str | None) -> None:
    def build(lib: ModuleType) -> Any:
        inner = None if miner is None else MINERS[miner](lib)
        return lib.losses.CrossBatchMemory(LOSSES[name](lib), embedding_size=8, memory_size=20, miner=inner)

    ours, theirs = build(bridge), build(pml)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        size = 8 if step != 3 else 5
        x = torch.randn(size, 8, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 3, (size,), generator=generator)
        same(outcome(ours, x, labels), outcome(theirs, x, labels))
        assert ours.queue_idx == theirs.queue_idx
        assert ours.has_been_filled == theirs.has_been_filled
        assert torch.equal(ours.embedding_memory, theirs.embedding_memory)
    mask = torch.tensor([True, False] * 4)
    x, labels = torch.randn(8, 8, dtype=torch.float64), torch.randint(0, 3, (8,))
    torch.testing.assert_close(ours(x, labels, enqueue_mask=mask), theirs(x, labels, enqueue_mask=mask))
    again = build(bridge)
    again.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert (again.queue_idx, again.has_been_filled) == (ours.queue_idx, True)


def test_the_memory_adds_the_tuple_of_the_caller() -> None:
    ours, theirs = (
        lib.losses.CrossBatchMemory(lib.losses.ContrastiveLoss(), embedding_size=8, memory_size=24)
        for lib in (bridge, pml)
    )
    x, labels = batches()["random"]
    for mined in (MINERS["multi similarity"](pml)(x, labels), MINERS["semihard"](pml)(x, labels)):
        same(outcome(ours, x, labels, mined), outcome(theirs, x, labels, mined))


@pytest.mark.parametrize("symmetric", [True, False])
def test_self_supervised(symmetric: bool) -> None:
    (x, _), (y, _) = batches(0)["random"], batches(1)["random"]
    names = ("circle", "contrastive", "generalised lifted", "lifted", "multi similarity", "nt-xent", "snr", "supcon")
    for name in (*names, "triplet", "nca"):
        ours, theirs = (lib.losses.SelfSupervisedLoss(LOSSES[name](lib), symmetric=symmetric) for lib in (bridge, pml))
        torch.testing.assert_close(ours(x, y), theirs(x, y), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("batch_size", [None, 20])
@pytest.mark.parametrize("length", [30, 99, 1000])
def test_the_sampler_has_the_length_and_the_batches_of_pml(batch_size: int | None, length: int) -> None:
    labels = torch.randint(0, 10, (500,), generator=torch.Generator().manual_seed(0))
    ours, theirs = (lib.samplers.MPerClassSampler(labels, 5, batch_size, length) for lib in (bridge, pml))
    assert len(ours) == len(theirs)
    drawn = list(ours)
    assert len(drawn) == len(ours)
    size = batch_size or 50
    for start in range(0, len(drawn) - size + 1, size):
        _, counts = labels[drawn[start : start + size]].unique(return_counts=True)
        assert counts.tolist() == [5] * (size // 5)
    assert drawn != list(ours)
    torch.manual_seed(3)
    first = list(ours)
    torch.manual_seed(3)
    assert first == list(ours)


def test_the_sampler_of_version_3_yields_batches() -> None:
    labels = torch.arange(10).repeat(7)
    sampler = bridge.samplers.MPerClassSampler(labels, 5, 20, version=3)
    found = list(sampler)
    assert {len(batch) for batch in found} == {20}
    assert {index for batch in found for index in batch} == set(range(70))
    assert len(list(bridge.samplers.MPerClassSampler(labels, 5, 20, num_batches=3, version=3))) == 3
    for wrong in ((5, 60), (5, 12), (5, None)):
        with pytest.raises(InputError, match="batch_size must be"):
            bridge.samplers.MPerClassSampler(labels, *wrong, version=3)


# -------------------------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("k", [None, 3, "max_bin_count"])
@pytest.mark.parametrize("how", ["itself", "reference", "includes"])
@pytest.mark.parametrize("average", [{}, {"avg_of_avgs": True}, {"return_per_class": True}])
def test_accuracies_are_those_of_pml(k: Any, how: str, average: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 12, (60,), generator=generator)
    x = torch.randn(12, 4, generator=generator)[labels] + torch.randn(60, 4, generator=generator)
    exact: tuple[str, ...] = ("precision_at_1", "mean_average_precision", "mean_reciprocal_rank")
    if k != 3:  # PML's are wrong if a class is larger than k
        exact = (*exact, "r_precision", "mean_average_precision_at_r")
    call: tuple[Any, ...] = (x, labels)
    if how == "reference":
        call = (x[:20], labels[:20], x[20:].numpy(), labels[20:].numpy())
    elif how == "includes":
        call = (x[:20], labels[:20], x, labels, True)
    ours = AccuracyCalculator(include=exact, k=k, **average).get_accuracy(*call)
    theirs = PeerCalculator(include=exact, k=k, **average).get_accuracy(*call)
    assert set(ours) == set(exact)
    for name in exact:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, err_msg=name)


def test_accuracies_of_clusters_and_of_nothing() -> None:
    labels = torch.arange(4).repeat_interleave(10)
    x = torch.eye(4)[labels] * 10 + 0.01 * torch.arange(40)[:, None]
    found = AccuracyCalculator(include=("NMI", "AMI", "precision_at_1")).get_accuracy(x, labels[:, None])
    assert found == pytest.approx({"NMI": 1.0, "AMI": 1.0, "precision_at_1": 1.0})
    lonely = AccuracyCalculator(exclude=("NMI", "AMI")).get_accuracy(x[:3], torch.arange(3))
    assert all(np.isnan(value) for value in lonely.values())
    assert AccuracyCalculator(("r_precision",), return_per_class=True).get_accuracy(x[:3], np.arange(3.0))[
        "r_precision"
    ]
    big = torch.tensor([2**24, 2**24 + 1] * 2)  # float32 merges them, and PML with it
    assert AccuracyCalculator(("precision_at_1",)).get_accuracy(torch.eye(4)[:, :2], big)["precision_at_1"] < 1
    with pytest.raises(InputError, match="first references"):
        AccuracyCalculator().get_accuracy(x[:5], labels[:5], x[5:], labels[5:], True)
    with pytest.raises(InputError, match="metrics must be among"):
        AccuracyCalculator(include=("recall",))
    for k in (-1, 0, 1.5, "max"):
        with pytest.raises(InputError, match="k must be"):
            AccuracyCalculator(k=k)  # type: ignore[arg-type]


@pytest.mark.parametrize("to", [torch.tensor, np.array])
def test_accuracies_of_whole_numbers(to: Callable[[Any], Any]) -> None:
    """One number an item: class 0 everywhere, and one of class 1 whose match is the farthest of all."""
    query, reference = to([[i] for i in [*range(9), 100]]), to([[i] for i in [-100, *range(1, 10)]])
    labels, known = to([0] * 9 + [1]), to([1] + [0] * 9)
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    plain = AccuracyCalculator(include=names).get_accuracy(query, labels, reference, known)
    by_class = AccuracyCalculator(include=names, avg_of_avgs=True).get_accuracy(query, labels, reference, known)
    assert plain == pytest.approx(dict.fromkeys(names, 0.9))
    assert by_class == pytest.approx(dict.fromkeys(names, 0.5))


# ------------------------------------------------------------------------------------------------- scripts and refusals


def script(lib: str) -> str:
    """A training script in the manner of PML's examples, of which only the import lines name a library."""
    return f"""
from {lib} import distances, losses, miners, reducers, samplers, testers
from {lib}.utils.accuracy_calculator import AccuracyCalculator
import torch
torch.manual_seed(0)
labels = torch.arange(8).repeat_interleave(12)
data = torch.randn(8, 16)[labels] + 1.5 * torch.randn(96, 16)
dataset = torch.utils.data.TensorDataset(data, labels)
model = torch.nn.Linear(16, 8)
distance = distances.CosineSimilarity()
reducer = reducers.ThresholdReducer(low=0)
loss_func = losses.TripletMarginLoss(margin=0.2, distance=distance, reducer=reducer)
mining_func = miners.TripletMarginMiner(margin=0.2, distance=distance, type_of_triplets="semihard")
sampler = samplers.MPerClassSampler(labels, 4, 32, 64)
accuracy_calculator = AccuracyCalculator(include=("precision_at_1",), k=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
def score():
    tester = testers.BaseTester(dataloader_num_workers=0)
    embeddings, found = tester.get_all_embeddings(dataset, model)
    return accuracy_calculator.get_accuracy(embeddings, found.squeeze(1))["precision_at_1"]
before, triplets = score(), 0
for epoch in range(10):
    model.train()
    for images, known in torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        embeddings = model(images)
        indices_tuple = mining_func(embeddings, known)
        loss = loss_func(embeddings, known, indices_tuple)
        loss.backward()
        optimizer.step()
        triplets += mining_func.num_triplets
after = score()
"""


def test_a_script_of_pml_runs_with_other_import_lines() -> None:
    found = {}
    for lib in ("pytorch_metric_learning", "nearfield.compat.pml"):
        names: dict[str, Any] = {}
        exec(compile(script(lib), lib, "exec"), names)
        found[lib] = names["before"], names["after"]
        assert names["triplets"] > 0
        assert names["after"] > names["before"] + 0.05
    assert found["nearfield.compat.pml"][0] == pytest.approx(found["pytorch_metric_learning"][0])


def readme_of_pml() -> list[str]:
    """The Python blocks of PML's README, out of the package that is installed."""
    return re.findall(r"```python\n(.*?)```", metadata("pytorch-metric-learning")["Description"], re.S)


@pytest.mark.parametrize("example", ["a loss", "a miner and a loss", "two views"])
def test_the_readme_of_pml_trains_alike_with_other_import_lines(example: str) -> None:
    loss, loop, miner, _, views = readme_of_pml()
    code = {"a loss": loss + loop, "a miner and a loss": miner, "two views": views}[example]
    weights = []
    for lib, name in ((pml, "pytorch_metric_learning"), (bridge, "nearfield.compat.pml")):
        torch.manual_seed(0)
        labels = torch.arange(8).repeat_interleave(4)
        centres = torch.randn(8, 16, dtype=torch.float64)[labels]
        rounds = [centres + torch.randn(32, 16, dtype=torch.float64) for _ in range(5)]
        model = nn.Linear(16, 8, dtype=torch.float64)
        before = model.weight.detach().clone()
        names: dict[str, Any] = {
            "dataloader": rounds if example == "two views" else [(data, labels) for data in rounds],
            "model": model,
            "your_model": model,
            "your_augmentation": lambda data: data.flip(1) + data,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "TripletMarginLoss": lib.losses.TripletMarginLoss,
        }
        exec(code.replace("from pytorch_metric_learning", f"from {name}"), names)
        assert not torch.equal(model.weight, before)
        weights.append(model.weight.detach())
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-7, atol=1e-9)


def test_whatever_is_not_mapped_says_why() -> None:
    everything = [
        (module, name)
        for module in ("losses", "miners", "distances", "samplers", "reducers", "testers")
        for name, value in vars(getattr(pml, module)).items()
        if inspect.isclass(value) and "Mixin" not in name and not name.startswith(("Base", "Generic"))
    ]
    assert len(everything) > 60
    refused = {}
    for module, name in everything:
        try:
            getattr(getattr(bridge, module), name)
        except bridge.NotMapped as error:
            refused[f"{module}.{name}"] = str(error)
    assert 20 < len(refused) < 32
    for name, message in refused.items():
        assert message.startswith(f"{name} is not mapped: ")
        assert message.endswith("See docs/bridge.md.")
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = bridge.losses.Nothing


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: bridge.losses.AngularLoss(), "unnormalised"),
        (lambda: bridge.losses.NTXentLoss(reducer=bridge.reducers.AvgNonZeroReducer()), "carries its own average"),
        (lambda: bridge.losses.TripletMarginLoss(triplets_per_anchor=100), "triplets_per_anchor=100"),
        (lambda: bridge.reducers.ThresholdReducer(high=0.3), "high=0.3"),
        (lambda: bridge.losses.MarginLoss(distance=bridge.distances.CosineSimilarity()), "beta is a distance"),
        (lambda: bridge.losses.ArcFaceLoss(4, 8, distance=bridge.distances.LpDistance()), "LpDistance"),
        (lambda: bridge.losses.FastAPLoss(distance=bridge.distances.LpDistance()), "squared distances"),
        (lambda: AccuracyCalculator(knn_func=len), "knn_func"),
        (lambda: bridge.losses.CrossBatchMemory(OWN["fastap"](bridge), 8), "takes references"),
        (lambda: bridge.miners.HDCMiner(), "take any tuple"),
    ],
)
def test_what_differs_raises(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(bridge.NotMapped, match=words):
        build()


def test_calls_that_pml_refuses_are_refused() -> None:
    x, labels = batches()["random"]
    mined = MINERS["multi similarity"](bridge)(x, labels)
    for name in ("contrastive", "triplet", "multi similarity", "nt-xent", "supcon", "circle", "lifted", "margin"):
        with pytest.raises(ValueError, match="labels or indices_tuple"):
            LOSSES[name](bridge)(x)
    for name in ("fastap", "arcface", "cosface", "proxy anchor", "proxy nca", "normalised softmax", "soft triple"):
        with pytest.raises(ValueError, match="labels must be given"):
            OWN[name](bridge)(x.float(), None, mined)
        with pytest.raises(ValueError, match="takes no ref_emb"):
            OWN[name](bridge)(x.float(), labels, None, x.float().clone(), labels)
    with pytest.raises(ValueError, match="labels must be given"):
        LOSSES["nca"](bridge)(x, None, mined)
    with pytest.raises(ValueError, match="semihard"):
        bridge.miners.BatchEasyHardMiner("all", "semihard")


def test_the_doctor_reads_a_loss_of_the_bridge() -> None:
    loss, x = bridge.losses.NTXentLoss(), torch.randn(12, 4, requires_grad=True)
    doctor = Doctor(loss, torch.optim.SGD([x], 0.1))
    found = []
    for step in range(8):
        value = loss(x, torch.arange(12))
        found += doctor.look(step, x, torch.arange(12), float(value.detach()))
    assert [finding.code for finding in found][:1] == ["no_positives"]
