"""Every pair loss equals its slow reference: value, pair weights W, gradients of queries, references and parameters.

Legend: Q rows, R columns, D dims. All in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from narrow import grad_of, narrow, pair_loss
from reference import (
    NORMALIZE,
    REFERENCE,
    REFERENCE_OF_X,
    SAME_ONLY,
    Pairs,
    active_mean,
    batches,
    hinge,
    leaf_pairs,
    pairs_of,
    reference_batches,
    shuffled_labels,
)
from torch import Tensor

from nearfield import losses
from nearfield.losses.pairwise import Margin
from nearfield.pairs import Block, PairLoss, pair_weights
from nearfield.pairs.mining import DistanceWeightedMiner, draw_by_distance

Params = dict[str, Any]
OPTIONS = ("normalize",)  # of the engine: the reference takes them elsewhere


class Case(NamedTuple):
    loss: str
    params: Params

    @property
    def slow_params(self) -> Params:
        return {k: v for k, v in self.params.items() if k not in OPTIONS}

    @property
    def normalize(self) -> bool:
        return bool(self.params.get("normalize", NORMALIZE[self.loss]))


class Result(NamedTuple):
    value: Tensor
    weights: Tensor | None  # (Q, R)
    queries: Tensor  # gradient (Q, D)
    references: Tensor | None  # gradient (R, D)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Relative to the largest entry, so that sums that cancel need no more digits than they have."""
    size = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0.0, atol=tolerance * size + 1e-12)


def case(loss: str, **params: Any) -> tuple[str, Case]:
    words = [str(v) if isinstance(v, str) else f"{k}={v}" for k, v in params.items()]
    return " ".join([loss, *words]), Case(loss, params)


RULES = ("all", "hard", "semihard", "facenet", "pml")
DEFAULTS: dict[str, Case] = dict(case(loss) for loss in REFERENCE if loss != "margin")
FORMS: dict[str, Case] = dict(
    [
        case("contrastive", form="hadsell"),
        case("contrastive", form="hinge", pos_margin=0.4, neg_margin=1.3),
        *[case("triplet", margin=0.3, mining=rule) for rule in RULES[1:]],
        case("multi_similarity", mine=False),
        case("multi_similarity", weight=False),
        case("nca", scale=5.0, reduction="mean"),
        case("bin_lifted", binomial_norm="mean"),
        case("recall_at_k", tau1=0.3, ks=(1, 3)),
        case("recall_at_k", tau1=0.1, tau2=0.5, count_query=True),
        case("smooth_ap", temperature=0.1, count_query=True),
        case("sup_ap", tau=0.2, rho=3.0, delta=0.3, start=0.7, offset=1.1, count_query=True),
        case("roadmap", tau=0.1, calibration=0.5, pos_margin=0.5, neg_margin=-0.2),
        case("tcm", base="roadmap", base_params={"tau": 0.1, "count_query": True}, pos_weight=0.5),
        case("tcm", base="triplet", base_params={"margin": 0.3}, pos_margin=0.4, neg_margin=0.1, neg_weight=2.0),
        case("tcm", base="contrastive", base_params={"form": "hinge"}),
        case("sigmoid", t=3.0, b=-1.0),
        case("epshn", mining="hard"),
        case("epshn", released=True, temperature=0.5),
        case("sct", released=True),
        case("sct", lam=0.3, threshold=0.4, temperature=0.5),
        case("dcl", temperature=0.5),
        case("tuplet_margin", scale=4.0, angle=30.0),
    ]
)
SETTINGS: dict[str, Case] = dict(
    [
        case("contrastive", lam=-0.2),
        case("contrastive", form="hadsell", neg_margin=1.4),
        case("contrastive", form="hinge"),
        case("triplet", margin=0.3),
        *[case("triplet", margin=0.3, mining=rule, reduction="all") for rule in RULES],
        *[case("triplet", margin=0.3, mining=rule, distance="cosine") for rule in RULES],
        *[case("triplet", margin=0.3, mining=rule, distance="sqeuclidean") for rule in RULES],
        case("lifted", margin=0.2, normalize=True),
        case("lifted_generalized", lam=-1.5),
        case("npairs", l2=0.1),
        case("npairs", l2=0.0, normalize=True),
        case("npairs", l2=0.1, symmetric=True),
        case("angular", angle=30.0, l2=0.01, symmetric=True, normalize=False),
        case("angular", angle=30.0, l2=0.01, normalize=False),
        case("ranked_list", alpha=1.0, margin=0.2, temperature=3.0, lam=0.5),
        case("binomial", reduction="mean"),
        case("histogram", nodes=2),
        case("histogram", nodes=7),
        case("nca", scale=20.0),
        case("multi_similarity", mine=False, weight=False),
        case("multi_similarity", eps=-0.3, lam=1.0),
        case("fastap", bins=1),
        case("fastap", bins=23),
        case("supcon", temperature=0.01),
        case("nt_xent", temperature=0.01),
        case("circle", scale=256.0, margin=0.25),
        case("circle", scale=5.0, margin=-0.2),
        case("smooth_ap", temperature=0.3),
    ]
)
PRESETS: dict[str, Case] = {
    f"{loss} {preset}": Case(loss, dict(params))
    for loss in REFERENCE
    for preset, params in losses.method(loss).presets.items()
    if loss != "margin" and params.get("distance") != "snr" and not params.get("simix")
}
RAW_DOTS: dict[str, Case] = dict(
    case(loss, normalize=False) for loss in REFERENCE if NORMALIZE[loss] and loss not in ("margin", "angular")
)
ZOO, REFERENCE_ZOO = batches(), reference_batches()
SHARED = tuple(name for name in ZOO if name != "large_norms")  # covered by the laws about scale
FEW = ("unequal", "duplicates", "collapsed_exact")


def crossed(cases: dict[str, Case], names: tuple[str, ...], separate: bool = False) -> list[Any]:
    return [
        pytest.param(c, name, id=f"{title} | {name}")
        for title, c in cases.items()
        for name in names
        if not (separate and c.loss in SAME_ONLY)
    ]


def fast(case: Case, x: Tensor, labels: Tensor, refs: Tensor | None = None, ref_labels: Tensor | None = None) -> Result:
    """The result of the package."""
    loss = losses.create(case.loss, **case.params)
    x, refs = x.clone().requires_grad_(), None if refs is None else refs.clone().requires_grad_()
    given = (x, labels) if refs is None else (x, labels, refs, ref_labels)
    value = loss(*given)
    value.backward()
    weights = pair_weights(loss, *given) if isinstance(loss, PairLoss) else None
    assert x.grad is not None
    return Result(value.detach(), weights, grad_of(x), None if refs is None else refs.grad)


def slow(case: Case, x: Tensor, labels: Tensor, refs: Tensor | None = None, ref_labels: Tensor | None = None) -> Result:
    """The result of the slow reference."""
    x, refs = x.clone().requires_grad_(), None if refs is None else refs.clone().requires_grad_()
    pairs = pairs_of(x, labels, refs, ref_labels, normalize=case.normalize)
    return slow_on(lambda leaves: REFERENCE[case.loss](leaves, **case.slow_params), pairs, x, refs)


def slow_on(function: Callable[[Pairs], Tensor], pairs: Pairs, x: Tensor, refs: Tensor | None) -> Result:
    """One evaluation with s and the norms as independent variables, then the chain rule back to the vectors."""
    leaves = leaf_pairs(pairs)
    value = function(leaves)
    parts = torch.autograd.grad(
        value, (leaves.s, leaves.row_sq, leaves.col_sq), materialize_grads=True, retain_graph=True
    )
    inputs = (x,) if refs is None else (x, refs)
    grads = torch.autograd.grad((pairs.s, pairs.row_sq, pairs.col_sq), inputs, parts)
    return Result(value.detach(), parts[0], grads[0], None if refs is None else grads[1])


def agree(found: Result, expected: Result, ties: bool = False, tolerance: float = 1e-9) -> None:
    """All four; with exact `ties` among candidates, only the total pull and push of each row."""
    close(found.value, expected.value, tolerance)
    if found.weights is not None and expected.weights is not None:
        if ties:
            close(found.weights.clamp(max=0).sum(1), expected.weights.clamp(max=0).sum(1), tolerance)
            close(found.weights.clamp(min=0).sum(1), expected.weights.clamp(min=0).sum(1), tolerance)
        else:
            close(found.weights, expected.weights, tolerance)
    close(found.queries, expected.queries, tolerance)
    if expected.references is not None and not ties:
        assert found.references is not None
        close(found.references, expected.references, tolerance)


def tied(case: Case, batch: str) -> bool:
    """Rules that select one of several ties may select another than the reference; the value is the same."""
    return case.params.get("mining") in ("hard", "semihard") and batch == "collapsed_exact"


@pytest.mark.parametrize(
    ("case", "batch"),
    crossed(DEFAULTS | FORMS, SHARED) + crossed(SETTINGS | RAW_DOTS, FEW) + crossed(PRESETS, ("unequal",)),
)
def test_equals_reference(case: Case, batch: str) -> None:
    x, labels = ZOO[batch]
    agree(fast(case, x, labels), slow(case, x, labels), tied(case, batch))


@pytest.mark.parametrize(
    ("case", "batch"),
    crossed(DEFAULTS, tuple(name for name in REFERENCE_ZOO if name not in ("large_norms", "random")), separate=True)
    + crossed(FORMS, (*FEW, "unseen_classes"), separate=True)
    + crossed(SETTINGS, ("duplicates", "one_reference"), separate=True),
)
def test_equals_reference_against_references(case: Case, batch: str) -> None:
    given = REFERENCE_ZOO[batch]
    agree(fast(case, *given), slow(case, *given), tied(case, batch))


def test_every_pair_loss_is_compared() -> None:
    methods = [losses.method(name) for name in losses.names()]
    registered = {m.name for m in methods if m.within_batch and not m.by_cluster}
    assert registered | {"npairs_angular", "matryoshka"} == {*REFERENCE, *REFERENCE_OF_X}


# ------------------------------------------------------------------------------------------------ triplets in bulk


def crowded() -> tuple[Tensor, Tensor]:
    """Classes of 11, 4 and 2 with some vectors twice: more positives than the loop over positives handles."""
    generator = torch.Generator().manual_seed(3)
    labels = shuffled_labels([11, 4, 2], generator)
    x = torch.randn(17, 4, generator=generator, dtype=torch.float64)
    x[5], x[9] = x[2], x[12]
    return x, labels


def lattice() -> tuple[Tensor, Tensor]:
    """Small integers in label order: dot products are exact, and many of them are equal or differ by 1."""
    generator = torch.Generator().manual_seed(4)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([11, 4, 2]))
    return torch.randint(-1, 2, (17, 3), generator=generator).double(), labels


@pytest.mark.parametrize("reduction", ["active", "all"])
@pytest.mark.parametrize("rule", RULES)
def test_triplets_with_many_positives(rule: str, reduction: str) -> None:
    case = Case("triplet", {"margin": 0.2, "mining": rule, "reduction": reduction})
    agree(fast(case, *crowded()), slow(case, *crowded()))


@pytest.mark.parametrize("reduction", ["active", "all"])
@pytest.mark.parametrize("rule", RULES)
def test_triplets_at_the_edges_of_their_rules(rule: str, reduction: str) -> None:
    x, labels = lattice()
    params = {"margin": 1.0, "mining": rule, "reduction": reduction, "distance": "cosine", "normalize": False}
    case = Case("triplet", params)
    agree(fast(case, x, labels), slow(case, x, labels))


@pytest.mark.parametrize("rule", ["semihard_random", "semihard_drop"])
def test_random_triplets_follow_their_rule(rule: str) -> None:
    """One positive and one negative per anchor, from FaceNet's band if possible; the mean is over those."""
    x, labels = ZOO["random"]
    pairs = pairs_of(x, labels)
    loss = pair_loss("triplet", mining=rule, distance="cosine", margin=0.1, reduction="all")
    seen: set[tuple[int, int, int]] = set()
    for _ in range(8):
        value = loss.train()(x, labels)
        weights = pair_weights(loss, x, labels)  # the same turn, so the same triplets
        hinges, stood = [], 0
        for a in pairs.rows:
            p, n = weights[a].argmin(), weights[a].argmax()
            band_exists = any(
                0 < pairs.s[a, q] - pairs.s[a, m] < 0.1 for q in pairs.positives(a) for m in pairs.negatives(a)
            )
            if weights[a].abs().sum() == 0:
                stood += rule == "semihard_random"
                continue
            assert int(p) in pairs.positives(a)
            assert int(n) in pairs.negatives(a)
            assert int((weights[a] != 0).sum()) == 2
            gap = pairs.s[a, p] - pairs.s[a, n]
            in_band = [m for m in pairs.negatives(a) if 0 < pairs.s[a, p] - pairs.s[a, m] < 0.1]
            assert 0 < gap < 0.1 or (rule == "semihard_random" and not in_band)
            assert band_exists or rule == "semihard_random"
            hinges.append(0.1 - gap)
            stood += 1
            seen.add((a, int(p), int(n)))
        close(value, torch.stack(hinges).sum() / stood)
    assert len(seen) > 30  # 24 anchors, 8 turns: another draw every turn


# ----------------------------------------------------------------------------------------------------- margin loss


class Spy:
    """A miner that keeps every pair and records the blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def __call__(self, block: Block) -> Block:
        self.blocks.append(block)
        return block


def drawn_pairs(block: Block, columns: Tensor, params: Params) -> list[tuple[int, int]]:
    """The (row, column) of every drawn negative in the caller's order, repeated as often as it was drawn."""
    rule = DistanceWeightedMiner(params.get("cutoff", 0.5), params.get("upper", 1.4), params.get("seed", 0))
    drawn, real = draw_by_distance(block.neg, block, rule)
    found = []
    for b, row in enumerate(block.rows.tolist()):
        if bool(real[b].any()):
            found += [(row, int(columns[c])) for c in drawn[b][real[b]]]
        elif params.get("fallback") == "nearest" and block.num_neg[b] > 0:
            found += [(row, int(columns[block.neg[b].argmin()]))] * int(block.num_pos[b])
    return found


MARGINS: list[Params] = [
    {},
    {"alpha": 0.4, "beta": 0.9, "seed": 7},
    {"num_classes": 10},
    {"fallback": "nearest", "upper": 0.8, "cutoff": 0.2},
    {"upper": 0.0},
    {"normalize": False},
]


def check_margin(params: Params, x: Tensor, labels: Tensor, refs: Tensor | None, ref_labels: Tensor | None) -> None:
    spy = Spy()
    loss = narrow(Margin, losses.create("margin", **params, miner=spy, block_rows=None))
    boundary = torch.linspace(0.8, 1.3, len(loss.beta), dtype=torch.float64) if len(loss.beta) > 1 else loss.beta
    loss.double().beta.data.copy_(boundary)
    x, refs = x.clone().requires_grad_(), None if refs is None else refs.clone().requires_grad_()
    given = (x, labels) if refs is None else (x, labels, refs, ref_labels)
    value = loss(*given)
    value.backward()
    (block,) = spy.blocks
    columns = (labels if ref_labels is None else ref_labels).sort(stable=True).indices
    negative_pairs = drawn_pairs(block, columns, params)
    beta = loss.beta.detach().clone().requires_grad_()
    pairs = pairs_of(x, labels, refs, ref_labels, normalize=params.get("normalize", True))
    alpha = params.get("alpha", 0.2)

    def function(leaves: Pairs) -> Tensor:
        one = beta if len(beta) > 1 else beta[0]
        return REFERENCE["margin"](leaves, alpha=alpha, beta=one, negative_pairs=negative_pairs)

    expected = slow_on(function, pairs, x, refs)
    weights = pair_weights(loss, *given)
    agree(Result(value.detach(), weights, grad_of(x), None if refs is None else refs.grad), expected)
    (slope,) = torch.autograd.grad(function(pairs), beta)
    close(grad_of(loss.beta), slope)


@pytest.mark.parametrize("params", MARGINS, ids=str)
@pytest.mark.parametrize("batch", ["random", "three", "one_class", "all_distinct", "separated", "collapsed", *FEW])
def test_margin_equals_reference_on_the_pairs_it_drew(batch: str, params: Params) -> None:
    check_margin(params, *ZOO[batch], None, None)


@pytest.mark.parametrize("preset", losses.method("margin").presets)
def test_margin_presets_equal_reference(preset: str) -> None:
    check_margin(dict(losses.method("margin").presets[preset]), *ZOO["unequal"], None, None)


@pytest.mark.parametrize("params", MARGINS[:4], ids=str)
@pytest.mark.parametrize("batch", [*FEW, "unseen_classes"])
def test_margin_equals_reference_against_references(batch: str, params: Params) -> None:
    check_margin(params, *REFERENCE_ZOO[batch])


def test_margin_draws_one_negative_for_each_positive() -> None:
    x, labels = ZOO["random"]
    spy = Spy()
    loss = losses.create("margin", miner=spy)
    loss(x, labels)
    pairs = pairs_of(x, labels)
    found = drawn_pairs(spy.blocks[0], labels.sort(stable=True).indices, {})
    for i in pairs.rows:
        near = [j for j in pairs.negatives(i) if pairs.d(i, j) < 1.4]
        drawn = [j for row, j in found if row == i]
        assert len(drawn) == (len(pairs.positives(i)) if near else 0)
        assert set(drawn) <= set(near)


# --------------------------------------------------------------------------------- SNR and N-pairs with Angular


def snr_pairs(x: Tensor, labels: Tensor, refs: Tensor | None = None, ref_labels: Tensor | None = None) -> Pairs:
    """On centred vectors the signal-to-noise distance is |r - q|^2 / |q|^2."""
    refs = None if refs is None else refs - refs.mean(1, keepdim=True)
    return pairs_of(x - x.mean(1, keepdim=True), labels, refs, ref_labels, normalize=False)


def snr_of_pairs(
    pairs: Pairs, form: str, pos_margin: float = 0.0, neg_margin: float = 1.0, margin: float = 0.2
) -> Tensor:
    near, far, triplets = [], [], []
    for i in pairs.rows:
        d_pos, d_neg = (pairs.d2(i, js) / pairs.row_sq[i] for js in (pairs.positives(i), pairs.negatives(i)))
        near.append(hinge(d_pos - pos_margin))
        far.append(hinge(neg_margin - d_neg))
        triplets.append(hinge(d_pos[:, None] - d_neg + margin))
    if form == "triplet":
        return active_mean(pairs.zero(), triplets)
    return active_mean(pairs.zero(), near) + active_mean(pairs.zero(), far)


SNRS: dict[str, tuple[Case, Params]] = {
    "contrastive": (Case("snr", {}), {}),
    "margins": (Case("snr", {"pos_margin": 0.5, "neg_margin": 1.7}), {"pos_margin": 0.5, "neg_margin": 1.7}),
    "triplet": (Case("triplet", {"distance": "snr", "margin": 0.2}), {"form": "triplet"}),
}


SNR_BATCHES = [(name, False) for name in ZOO]
SNR_BATCHES += [(name, True) for name in REFERENCE_ZOO if name != "one_reference"]  # a query plus 0.1: no noise at all


@pytest.mark.parametrize("form", SNRS)
@pytest.mark.parametrize(("batch", "separate"), SNR_BATCHES)
def test_snr_equals_reference(batch: str, separate: bool, form: str) -> None:
    case, params = SNRS[form]
    given: tuple[Tensor, ...] = REFERENCE_ZOO[batch] if separate else ZOO[batch]
    found = fast(case, *given)
    x, refs = given[0].clone().requires_grad_(), given[2].clone().requires_grad_() if separate else None
    value = REFERENCE_OF_X["snr"](x, given[1], *((refs, given[3]) if separate else ()), **params)
    grads = torch.autograd.grad(value, (x,) if refs is None else (x, refs), materialize_grads=True)
    kind = "triplet" if form == "triplet" else "contrastive"
    leaves = leaf_pairs(snr_pairs(*given))
    (weights,) = torch.autograd.grad(
        snr_of_pairs(leaves, kind, **{k: v for k, v in params.items() if k != "form"}), leaves.s
    )
    expected = Result(value.detach(), weights, grads[0], grads[1] if separate else None)
    agree(found, expected, tolerance=1e-6 if batch == "collapsed" else 1e-9)


@pytest.mark.parametrize("form", SNRS)
def test_snr_of_nearly_constant_embeddings(form: str) -> None:
    """The variance of a query is clamped to 1e-8, and has no gradient there."""
    case, params = SNRS[form]
    x, labels = ZOO["unequal"]
    x = x * torch.logspace(-6, -3, len(x), dtype=x.dtype)[:, None]
    found = fast(case, x, labels)
    x = x.requires_grad_()
    value = REFERENCE_OF_X["snr"](x, labels, **params)
    value.backward()
    close(found.value, value.detach())
    close(found.queries, grad_of(x))


def test_snr_of_unit_vectors_does_not_depend_on_their_length() -> None:
    """The reality check normalised embeddings before the distance and before the regulariser."""
    x, labels = ZOO["unequal"]
    scale = torch.linspace(0.1, 10.0, len(x), dtype=torch.float64)[:, None]
    for preset in losses.method("snr").presets:
        loss = losses.create("snr", preset=preset)
        close(loss(scale * x, labels), loss(x, labels))
    assert losses.create("snr")(scale * x, labels) != losses.create("snr")(x, labels)


def test_symmetric_pairs_are_the_mean_of_both_directions() -> None:
    """As DMLPlayground computes it: the loss of (a, p), that of (p, a), and half of their sum."""
    x, labels = ZOO["random"][0], torch.arange(12).repeat_interleave(2)
    swapped = torch.arange(24).view(12, 2).flip(1).flatten()
    for name in ("npairs", "angular", "npairs_angular"):
        one, both = losses.create(name, l2=0.1), losses.create(name, l2=0.1, symmetric=True)
        close(both(x, labels), (one(x, labels) + one(x[swapped], labels)) / 2)
        assert (both(x, labels) - one(x, labels)).abs() > 1e-6


@pytest.mark.parametrize("preset", ["", *losses.method("snr").presets])
def test_snr_regulariser_and_presets(preset: str) -> None:
    params = {"reg": 0.3, **(losses.method("snr").presets[preset] if preset else {})}
    x, labels = ZOO["unequal"]
    found = fast(Case("snr", dict(params)), x, labels)
    x = x.clone().requires_grad_()
    value = REFERENCE_OF_X["snr"](x, labels, **params)
    value.backward()
    close(found.value, value.detach())
    close(found.queries, grad_of(x))


@pytest.mark.parametrize(
    "params", [{}, {"angle": 30.0, "lam": 0.5, "l2": 0.1}, {"lam": 0.5, "l2": 0.1, "symmetric": True}], ids=str
)
@pytest.mark.parametrize("batch", ZOO)
def test_npairs_angular_equals_reference(batch: str, params: Params) -> None:
    x, labels = ZOO[batch]
    found = fast(Case("npairs_angular", params), x, labels)
    x = x.clone().requires_grad_()
    value = REFERENCE_OF_X["npairs_angular"](x, labels, **params)
    value.backward()
    close(found.value, value.detach())
    close(found.queries, grad_of(x))


# ---------------------------------------------------------------------------------------------- limits of arithmetic


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bins", [1, 10])
def test_fastap_of_references_that_are_exactly_opposite(bins: int, dtype: torch.dtype) -> None:
    """No reference is nearer than the last bin: H is 0 in all bins before, and 0/0 is not a gradient."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], dtype=dtype)
    labels = torch.tensor([0, 0, 1, 1])
    for batch in ((x[:1], labels[:1], x[1:], labels[1:]), (x, labels)):
        queries = batch[0].clone().requires_grad_()
        value = losses.create("fastap", bins=bins)(queries, *batch[1:])
        value.backward()
        assert bool(value.isfinite())
        assert bool(queries.grad.isfinite().all())  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["fastap", "histogram"])
@pytest.mark.parametrize("block_rows", [None, 2])
def test_histograms_of_nan_are_nan(name: str, block_rows: int | None) -> None:
    """And not an index out of bounds: bins are computed from similarities."""
    x, labels = ZOO["random"]
    x = x.clone()
    x[4, 1] = float("nan")
    x.requires_grad_()
    value = losses.create(name, block_rows=block_rows)(x, labels)
    value.backward()
    assert bool(value.isnan())
    assert bool(x.grad.isnan().any())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "params"), [("npairs", {}), ("angular", {"l2": 1e-3}), ("npairs_angular", {}), ("snr", {"reg": 0.1})]
)
def test_penalties_do_not_overflow_in_float16(name: str, params: Params) -> None:
    """|z|^2 of 512 dims, or their sum, is above 65504."""
    generator = torch.Generator().manual_seed(0)
    x, labels = 200 + 12 * torch.randn(16, 512, generator=generator), torch.arange(16) // 2
    narrow = x.half().requires_grad_()
    value = losses.create(name, **params)(narrow, labels)
    value.backward()
    assert bool(narrow.grad.isfinite().all())  # type: ignore[union-attr]
    torch.testing.assert_close(value, losses.create(name, **params)(narrow.detach().float(), labels))


# ------------------------------------------------------------------------------------------------- any batch at all


@st.composite
def any_batch(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """2 to 24 rows of 2 to 6 dims, any labels, sometimes a vector that occurs twice."""
    labels = draw(st.lists(st.integers(0, draw(st.integers(0, 6))), min_size=2, max_size=24))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(len(labels), draw(st.integers(2, 6)), generator=generator, dtype=torch.float64)
    x *= draw(st.sampled_from([0.1, 1.0, 10.0]))
    twin = draw(st.one_of(st.none(), st.tuples(st.integers(0, len(labels) - 1), st.integers(0, len(labels) - 1))))
    if twin:
        x[twin[0]] = x[twin[1]]
    return x, torch.tensor(labels)


EVERY = DEFAULTS | FORMS | SETTINGS
ANY = (
    "contrastive",
    "contrastive hadsell",
    "contrastive hinge pos_margin=0.4 neg_margin=1.3",
    "triplet",
    "triplet margin=0.3 facenet",
    "triplet margin=0.3 pml cosine",
    "lifted",
    "lifted_generalized",
    "lifted_star",
    "npairs l2=0.0 normalize=True",
    "angular",
    "ranked_list",
    "binomial",
    "bin_lifted",
    "histogram nodes=7",
    "nca",
    "multi_similarity",
    "fastap",
    "supcon",
    "nt_xent",
    "circle",
    "smooth_ap temperature=0.3",
    "recall_at_k tau1=0.1 tau2=0.5 count_query=True",
    "sup_ap tau=0.2 rho=3.0 delta=0.3 start=0.7 offset=1.1 count_query=True",
    "roadmap",
    "tcm",
    "sigmoid",
    "epshn",
    "sct",
    "dcl",
    "sincere",
    "tuplet_margin",
)


@pytest.mark.parametrize("title", ANY)
@settings(deadline=None, max_examples=7)
@given(batch=any_batch())
def test_equals_reference_on_any_batch(title: str, batch: tuple[Tensor, Tensor]) -> None:
    x, labels = batch
    if title.startswith("triplet margin"):  # bands: whether a copy in another class is beyond a positive is rounding
        twins = (x[:, None] == x).all(2) & (labels[:, None] != labels)
        assume(not bool(twins.any()))
    agree(fast(EVERY[title], *batch), slow(EVERY[title], *batch), tolerance=1e-7)
