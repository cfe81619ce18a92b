"""Beside pytorch-metric-learning 2.9: equal where it means the same loss, and free of the defects found in it.

Axes: N items, D dims. Every batch is float64 unless the point is another precision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from narrow import grad_of, pair_loss
from pytorch_metric_learning import distances, miners
from pytorch_metric_learning import losses as pml
from reference import REFERENCE, batches, pairs_of, shuffled_labels
from torch import Tensor

from nearfield import losses
from nearfield.pairs import Block, pair_weights
from nearfield.pairs.mining import DistanceWeightedMiner, draw_by_distance

Loss = Callable[[Tensor, Tensor], Tensor]


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Six overlapping classes of four."""
    return batches(seed)["random"]


def value_and_gradient(loss: Loss, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = loss(x, labels)
    (grad,) = torch.autograd.grad(value, x)
    return value.detach(), grad


def mined(loss: torch.nn.Module, miner: torch.nn.Module) -> Loss:
    return lambda x, labels: loss(x, labels, miner(x, labels))


def times(factor: float, loss: Loss) -> Loss:
    return lambda x, labels: factor * loss(x, labels)


def raw(kind: type[Any], **options: Any) -> Any:
    return kind(normalize_embeddings=False, **options)


def remember(blocks: list[Block]) -> Callable[[Block], Block]:
    """A miner that keeps every pair and puts the block in the list."""

    def miner(block: Block) -> Block:
        blocks.append(block)
        return block

    return miner


COSINE = distances.CosineSimilarity()
SEMIHARD = miners.TripletMarginMiner(margin=0.3, type_of_triplets="semihard")
AGREED: dict[str, tuple[str, dict[str, Any], Loss]] = {
    "contrastive": ("contrastive", {"form": "hinge"}, pml.ContrastiveLoss()),
    "contrastive, margins": (
        "contrastive",
        {"form": "hinge", "pos_margin": 0.4, "neg_margin": 1.3},
        pml.ContrastiveLoss(pos_margin=0.4, neg_margin=1.3),
    ),
    "snr": ("snr", {}, pml.SignalToNoiseRatioContrastiveLoss(distance=raw(distances.SNRDistance))),
    "triplet": ("triplet", {"margin": 0.3}, pml.TripletMarginLoss(margin=0.3)),
    "triplet, cosine": (
        "triplet",
        {"margin": 0.3, "distance": "cosine"},
        pml.TripletMarginLoss(margin=0.3, distance=COSINE),
    ),
    "triplet, semihard": (
        "triplet",
        {"margin": 0.3, "mining": "pml"},
        mined(pml.TripletMarginLoss(margin=0.3), SEMIHARD),
    ),
    "triplet, hard": (
        "triplet",
        {"margin": 0.3, "mining": "hard"},
        mined(pml.TripletMarginLoss(margin=0.3), miners.BatchHardMiner()),
    ),
    "lifted": ("lifted", {}, pml.LiftedStructureLoss(distance=raw(distances.LpDistance))),
    "lifted_generalized": (
        "lifted_generalized",
        {},
        times(24, pml.GeneralizedLiftedStructureLoss(neg_margin=0, pos_margin=1, distance=COSINE)),
    ),
    "multi_similarity": (
        "multi_similarity",
        {},
        mined(pml.MultiSimilarityLoss(), miners.MultiSimilarityMiner()),
    ),
    "multi_similarity, all pairs": ("multi_similarity", {"mine": False}, pml.MultiSimilarityLoss()),
    "circle": ("circle", {}, pml.CircleLoss()),
    "nca": ("nca", {"scale": 2.0, "reduction": "mean"}, pml.NCALoss()),  # exp(-d^2) is exp(2 S) on unit vectors
    "supcon": ("supcon", {}, pml.SupConLoss()),
    "nt_xent": ("nt_xent", {}, pml.NTXentLoss(temperature=0.1)),
    "fastap": ("fastap", {}, pml.FastAPLoss()),
    "sincere": ("sincere", {"temperature": 0.07}, pml.NTXentLoss(temperature=0.07)),
    "tuplet_margin": ("tuplet_margin", {}, pml.TupletMarginLoss()),
    "tuplet_margin, slack": ("tuplet_margin", {"scale": 8.0, "angle": 20.0}, pml.TupletMarginLoss(20.0, 8)),
    "tcm": (
        "tcm",
        {"base_params": {"mine": False}, "pos_margin": 0.8, "neg_margin": 0.3},
        lambda x, labels: (
            pml.MultiSimilarityLoss()(x, labels)
            + pml.ThresholdConsistentMarginLoss(margin_plus=0.8, margin_minus=0.3)(x, labels)
        ),
    ),
    "roadmap's calibration": (  # its other half switched off: no negative ranks above any positive
        "tcm",
        {"base": "dcl", "neg_margin": 0.6, "base_params": {"temperature": 1e6}},
        lambda x, labels: (
            pml.ContrastiveLoss(pos_margin=0.9, neg_margin=0.6, distance=COSINE)(x, labels)
            + losses.create("dcl", temperature=1e6)(x, labels)
        ),
    ),
}


@pytest.mark.parametrize("title", AGREED)
def test_equals_pml(title: str) -> None:
    name, params, peer = AGREED[title]
    for seed in (0, 1):
        x, labels = batch(seed)
        value, grad = value_and_gradient(losses.create(name, **params), x, labels)
        peer_value, peer_grad = value_and_gradient(peer, x, labels)
        assert grad.abs().max() > 0
        torch.testing.assert_close(value, peer_value, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(grad, peer_grad, rtol=1e-6, atol=1e-8)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
def test_histogram_equals_pml_up_to_its_float32_bins() -> None:
    for seed in (0, 1, 2):
        ours, theirs = losses.create("histogram")(*batch(seed)), pml.HistogramLoss()(*batch(seed))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0.0)


def test_npairs_equals_pml_with_one_pair_a_class() -> None:
    x, _ = batch()
    labels = torch.arange(12).repeat(2)
    ours = value_and_gradient(losses.create("npairs", l2=0.0), x, labels)
    theirs = value_and_gradient(pml.NPairsLoss(distance=raw(distances.DotProductSimilarity)), x, labels)
    torch.testing.assert_close(ours, theirs)


def test_margin_equals_pml_on_the_triplets_that_were_drawn() -> None:
    """One negative is drawn for each positive, so the draws are triplets."""
    x, labels = batch()
    blocks: list[Block] = []
    loss = losses.create("margin", num_classes=6, miner=remember(blocks))
    peer = pml.MarginLoss(learn_beta=True, num_classes=6)
    for module in (loss, peer):
        module.double().get_parameter("beta").data.copy_(torch.linspace(1.0, 1.3, 6))
    value, grad = value_and_gradient(loss, x, labels)
    (block,) = blocks
    drawn, real = draw_by_distance(block.neg, block, DistanceWeightedMiner())
    assert bool(real.all())
    order = labels.sort(stable=True).indices
    triplets = block.rows.repeat_interleave(3), order[block.pos_index].flatten(), order[drawn].flatten()
    theirs = value_and_gradient(lambda x, labels: peer(x, labels, triplets), x, labels)
    torch.testing.assert_close((value, grad), theirs)


def test_references_equal_pml() -> None:
    (x, labels), (refs, ref_labels) = batch(0), batch(1)
    for name, params, peer in (AGREED["nt_xent"], AGREED["circle"], AGREED["triplet"], AGREED["contrastive"]):
        ours = losses.create(name, **params)(x, labels, refs, ref_labels)
        theirs = peer(x, labels, ref_emb=refs, ref_labels=ref_labels)  # type: ignore[call-arg]
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


# ------------------------------------------------------------------------------------------------------ its defects


@pytest.mark.parametrize(("classes", "each"), [(8, 4), (3, 6), (4, 4)])
def test_smooth_ap_for_any_number_of_classes_in_any_order(classes: int, each: int) -> None:
    """PML mixes up the number of classes and their size, and takes the rows to be sorted by class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(each)
    x = torch.randn(classes, 8, generator=generator)[labels].double()
    x = x + torch.randn(len(labels), 8, generator=generator)
    loss = losses.create("smooth_ap")
    expected = REFERENCE["smooth_ap"](pairs_of(x, labels))
    order = torch.randperm(len(labels), generator=generator)
    torch.testing.assert_close(loss(x, labels), expected)
    torch.testing.assert_close(loss(x[order], labels[order]), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histogram_takes_a_cosine_of_one(dtype: torch.dtype) -> None:
    """PML's index runs out of bounds."""
    x, labels = batches()["duplicates"]
    value, grad = value_and_gradient(losses.create("histogram"), x.to(dtype), labels)
    assert bool(value.isfinite())
    assert bool(grad.isfinite().all())
    x = torch.eye(4, dtype=dtype)[[0, 0, 1, 1]]  # cosines of exactly 1 and 0
    assert losses.create("histogram")(x, torch.tensor([0, 0, 1, 1])).item() == pytest.approx(0.0, abs=1e-6)
    assert losses.create("histogram")(x, torch.tensor([0, 1, 0, 1])).item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", losses.names())
def test_duplicates_give_finite_gradients(name: str) -> None:
    """PML's gradients through acos and its losses on exact duplicates are NaN."""
    needed = [key for key, p in losses.method(name).parameters.items() if p.default is p.empty]
    x, labels = batches()["duplicates"]
    known: dict[str, Any] = {"num_classes": 4, "dim": 8}
    loss = losses.create(name, **{key: known[key] for key in needed})
    value, grad = value_and_gradient(loss, x.float(), labels)
    assert bool(value.isfinite())
    assert bool(grad.isfinite().all())


def test_angular_normalises_the_negatives_too() -> None:
    """PML's value grows with the scale of the embeddings although it says it normalises."""
    x, labels = batch()
    loss = losses.create("angular")
    torch.testing.assert_close(loss(2 * x, labels), loss(x, labels))
    torch.testing.assert_close(loss(10 * x, labels), loss(x, labels))


@pytest.mark.parametrize("scale", [30.0, 60.0, 200.0])
def test_nca_does_not_underflow(scale: float) -> None:
    """PML takes softmax, sum, log in turn: rows that underflow are dropped, and NaN is left when all are."""
    x, labels = batch()
    x = torch.cat([x, -x[labels == 0][:1]])  # one item opposite to its class
    labels = torch.cat([labels, labels.new_zeros(1)])
    loss = losses.create("nca", scale=2 * scale)
    exact, narrow = loss(x, labels), loss(x.float(), labels)
    assert exact > scale
    torch.testing.assert_close(narrow.double(), exact, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(
    ("temperature", "dtype"), [(0.07, torch.float16), (0.01, torch.float32), (0.002, torch.float32)]
)
def test_nt_xent_is_not_capped(temperature: float, dtype: torch.dtype) -> None:
    """PML adds a tiny number inside the logarithm: a cap on the value, and no gradient beyond it."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [1.0, 0.2], [-1.0, -0.2]], dtype=dtype)
    labels = torch.tensor([0, 0, 1, 1])
    loss = losses.create("nt_xent", temperature=temperature)
    value, grad = value_and_gradient(loss, x, labels)
    exact, exact_grad = value_and_gradient(loss, x.double(), labels)
    assert exact > 1.9 / temperature
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(grad.double(), exact_grad, rtol=2e-3, atol=1e-3 * float(exact_grad.abs().max()))


def test_distance_weighting_serves_every_anchor_in_many_dims() -> None:
    """PML divides by the largest weight of all: with one near-duplicate of another class others draw nothing."""
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(128, 512, generator=generator), torch.arange(32).repeat_interleave(4)
    x[4] = x[0] + 0.01 * x[4]  # labels 0 and 1
    blocks: list[Block] = []
    loss = pair_loss("margin", upper=1.5, miner=remember(blocks))
    weights = pair_weights(loss, x, labels)
    drawn, real = draw_by_distance(blocks[0].neg, blocks[0], DistanceWeightedMiner(upper=1.5))
    assert bool(real.all())
    assert bool((blocks[0].neg.gather(1, drawn) < 1.5).all())
    pushed = (weights * (labels[:, None] != labels) != 0).any(1)  # those that drew one nearer than beta + alpha
    assert int(pushed.sum()) > 100


PAIR_LOSSES = [name for name in losses.names() if name in REFERENCE and name not in ("npairs", "angular", "margin")]


@pytest.mark.parametrize("name", [*(n for n in PAIR_LOSSES if n != "epshn"), "snr"])  # it has no use for such a query
def test_one_positive_and_one_negative_are_enough(name: str) -> None:
    """PML answers 0 for a single positive and a single negative pair, however wrong they are."""
    anchor = torch.tensor([[1.0, 0.1, 0.0, 0.3]], dtype=torch.float64)
    refs = torch.tensor([[-0.5, 1.0, 0.3, 0.1], [1.0, 0.2, 0.1, 0.3]], dtype=torch.float64)
    loss = losses.create(name)
    given: tuple[Tensor, ...]
    if losses.method(name).build.own_batch:  # type: ignore[attr-defined]
        given = torch.cat([anchor, refs]), torch.tensor([0, 0, 1])
    else:
        given = anchor, torch.tensor([0]), refs, torch.tensor([0, 1])
    queries = given[0].clone().requires_grad_()
    value = loss(queries, *given[1:])
    value.backward()
    assert value.abs() > 1e-3
    if name not in ("histogram", "fastap", "smooth_ap", "recall_at_k"):  # flat where the order is as wrong as it can be
        assert grad_of(queries).abs().max() > 1e-3


def test_ranked_list_does_not_depend_on_pairs_beyond_its_margin() -> None:
    """PML adds 1e-5 for every column to the sum of the weights, so the value falls with the batch size."""
    anchor = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    near = torch.tensor([[0.2, 1.0, 0.0], [1.0, 0.5, 0.0]], dtype=torch.float64)
    far = torch.tensor([[-1.0, 0.3, 0.1]], dtype=torch.float64).repeat(4000, 1)
    loss = losses.create("ranked_list")
    few = loss(anchor, torch.tensor([0]), near, torch.tensor([0, 1]))
    many = loss(anchor, torch.tensor([0]), torch.cat([near, far]), torch.tensor([0, 1] + [2] * 4000))
    assert few > 0.1
    torch.testing.assert_close(many, few, rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("name", [n for n in PAIR_LOSSES if n != "lifted"])
def test_references_are_not_ignored(name: str) -> None:
    """PML's ThresholdConsistentMargin gives one value for any references."""
    x, labels = batch(0)
    loss = losses.create(name)
    values = {loss(x, labels, *batch(seed)).item() for seed in (1, 2)}
    assert len(values) == 2


def test_small_distances_are_exact() -> None:
    """PML's come from the expanded square: 1.0918e-3 for 1.0998e-3, and items up to 9e-4 away from themselves."""
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(64, 128, generator=generator))
    y = torch.nn.functional.normalize(x + 1e-4 * torch.randn(64, 128, generator=generator))
    labels = torch.arange(64)
    blocks: list[Block] = []
    loss = losses.create("contrastive", form="hinge", miner=remember(blocks))
    loss(x, labels, y, labels)
    found = blocks[-1].pos[:, 0].double()
    true = (torch.nn.functional.normalize(x.double()) - torch.nn.functional.normalize(y.double())).norm(dim=1)
    assert 1e-4 < true.max() < 2e-3
    torch.testing.assert_close(found, true, rtol=1e-3, atol=0.0)
    blocks.clear()
    loss(x, labels, x.clone(), labels)
    assert not bool(blocks[-1].pos.any())


def test_proxies_keep_their_precision() -> None:
    """PML casts its parameters to the type of the batch, in place and for good."""
    loss = losses.create("proxy_softmax", num_classes=6, dim=8)
    before = copy.deepcopy(loss.state_dict())
    x, labels = batch()
    for dtype in (torch.float16, torch.bfloat16):
        loss(x.to(dtype).requires_grad_(), labels).backward()
    for key, value in loss.state_dict().items():
        if key != "turn":
            assert torch.equal(value, before[key])
            assert value.dtype == before[key].dtype
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in loss.parameters())


def test_labels_beyond_two_to_the_24_stay_apart() -> None:
    """PML's evaluator casts labels to float32, which merges 16777216 and 16777217."""
    x, labels = batch()
    for name in ("multi_similarity", "triplet", "nca"):
        loss = losses.create(name)
        assert torch.equal(loss(x, labels + 2**24), loss(x, labels))


@pytest.mark.parametrize("name", ["nt_xent", "lifted", "histogram", "snr", "smooth_ap", "triplet", "fastap"])
def test_two_thousand_items_are_no_trouble(name: str) -> None:
    """PML needs gigabytes for most of these long before this size."""
    generator = torch.Generator().manual_seed(0)
    labels = shuffled_labels([4] * 512, generator)
    x = torch.randn(2048, 16, generator=generator)
    value, grad = value_and_gradient(losses.create(name), x, labels)
    assert bool(value.isfinite())
    assert bool(grad.isfinite().all())
    assert bool(grad.any())
