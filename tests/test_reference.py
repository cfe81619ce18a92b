"""The slow references against numbers worked out by hand, closed-form weights, and the laws every loss obeys.

Legend: Q rows (M in the formulas), R columns, D dims, C classes; `pos` and `neg` are (Q, R) masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    NORMALIZE,
    REFERENCE,
    REFERENCE_OF_X,
    SAME_ONLY,
    Pairs,
    anchors_and_positives,
    batches,
    distance_weights,
    fastap_of_row,
    leaf_pairs,
    lse_plus,
    mine_triplets,
    ms_sets,
    pair_weights,
    pairs_of,
    reference_batches,
    soft_histogram,
    softplus,
)
from torch import Tensor

ZOO = tuple(batches())
REFERENCE_ZOO = tuple(reference_batches())
exp, log, sqrt = math.exp, math.log, math.sqrt


def close(a: Tensor, b: Tensor | float, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), rtol=tolerance, atol=tolerance)


def zoo_pairs(loss: str, batch: str, separate: bool = False) -> Pairs:
    if separate:
        x, labels, refs, ref_labels = reference_batches()[batch]
        return pairs_of(x, labels, refs, ref_labels, normalize=NORMALIZE[loss])
    x, labels = batches()[batch]
    return pairs_of(x, labels, normalize=NORMALIZE[loss])


# ---------------------------------------------------------------------------------------------- distances and zoo


def one_pair(s: float) -> Pairs:
    one, label = torch.ones(1, dtype=torch.float64), torch.tensor([0])
    return leaf_pairs(Pairs(s * one[:, None], one, one, label, label, same=False))


@pytest.mark.parametrize(
    ("s", "distance", "slope"),
    [
        (0.5, 1.0, -1.0),
        (-0.28, 1.6, -1 / 1.6),
        (1 - 0.5e-10, 1e-5, -1e4),  # 1 / d is held at 1 / 1e-4
        (1.0, 0.0, 0.0),
        (1 + 1e-15, 0.0, 0.0),  # rounding beyond the unit sphere
    ],
)
def test_distance_and_its_derivative(s: float, distance: float, slope: float) -> None:
    pairs = one_pair(s)
    d = pairs.d(0, 0)
    (grad,) = torch.autograd.grad(d, pairs.s)
    close(d.detach(), distance, 1e-5 if 0 < distance < 1e-3 else 1e-12)
    close(grad[0, 0], slope, 1e-12)


def test_squared_distance_has_slope_minus_two_even_when_clamped() -> None:
    for s in (0.3, 1.0, 1 + 1e-15):
        pairs = one_pair(s)
        (grad,) = torch.autograd.grad(pairs.d2(0, 0), pairs.s)
        assert grad.item() == -2
        assert pairs.d2(0, 0).item() >= 0


@pytest.mark.parametrize("normalize", [True, False])
def test_identical_vectors_are_at_distance_zero_exactly(normalize: bool) -> None:
    for x, labels in (batches()["duplicates"], batches()["collapsed_exact"]):
        pairs = pairs_of(x, labels, normalize=normalize)
        for i in pairs.rows:
            for j in pairs.others(i):
                assert (pairs.d(i, j).item() == 0) == bool((x[i] == x[j]).all())


def test_only_the_self_pair_is_left_out() -> None:
    pairs = pairs_of(*batches()["duplicates"])
    assert pairs.positives(0) == [1, 2, 11]
    assert pairs.negatives(0) == list(range(3, 11))
    x, labels, refs, ref_labels = reference_batches()["itself"]
    against_itself = pairs_of(x, labels, refs, ref_labels)
    assert all(i in against_itself.positives(i) for i in against_itself.rows)


def test_zoo_is_float64_and_deterministic() -> None:
    first, second, another = batches(), batches(), batches(1)
    for name, (x, labels) in first.items():
        assert x.dtype == torch.float64
        assert x.shape == (len(labels), 8)
        assert torch.equal(x, second[name][0])
        assert not torch.equal(x, another[name][0])
    for x, labels, refs, ref_labels in reference_batches().values():
        assert len(x) == len(labels)
        assert len(refs) == len(ref_labels) != len(x) or torch.equal(x, refs)


# ------------------------------------------------------------------------------------------- numbers worked by hand


def three() -> Pairs:
    """Unit vectors a, b (class 0) and c (class 1): S_ab = 0.6, S_ac = 0.2, S_bc = -0.4; row c has no positive."""
    s = torch.tensor([[1.0, 0.6, 0.2], [0.6, 1.0, -0.4], [0.2, -0.4, 1.0]], dtype=torch.float64)
    ones, labels = torch.ones(3, dtype=torch.float64), torch.tensor([0, 0, 1])
    return Pairs(s, ones, ones, labels, labels, same=True)


def four() -> Pairs:
    """Rows 0, 1 of class 0 and 2, 3 of class 1: anchors 0 and 2, positives 1 and 3."""
    s = torch.tensor([[9, 1, 9, 0], [1, 9, 9, -0.5], [9, -1, 9, 2], [0, -0.5, 2, 9]], dtype=torch.float64)
    squares, labels = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    return Pairs(s, squares, squares, labels, labels, same=True)


def sp(v: float) -> float:
    return log(1 + exp(v))


def sigmoid(v: float) -> float:
    return 1 / (1 + exp(-v))


D_AB, D_AC, D_BC = sqrt(0.8), sqrt(1.6), sqrt(2.8)
UNIT = {"alpha": 1.0, "beta": 1.0, "lam": 0.0}
BY_HAND: list[tuple[str, dict[str, Any], float]] = [
    ("contrastive", {"lam": 0.1}, (-2 * 0.6 + 2 * 0.1) / 3),
    ("contrastive", {"form": "hadsell", "neg_margin": 1.5}, (2 * 0.8 + 2 * (1.5 - D_AC) ** 2) / 3),
    ("contrastive", {"form": "hinge", "pos_margin": 0.5, "neg_margin": 1.5}, (D_AB - 0.5) + (1.5 - D_AC)),
    ("contrastive", {"form": "hinge", "pos_margin": 1.0, "neg_margin": 2.0}, ((2 - D_AC) + (2 - D_BC)) / 2),
    ("triplet", {"margin": 0.5, "distance": "cosine"}, 0.1),
    ("triplet", {"margin": 0.5, "distance": "cosine", "reduction": "all"}, 0.05),
    ("triplet", {"margin": 1.0, "distance": "sqeuclidean"}, 0.2),
    ("triplet", {"margin": 1.0, "mining": "hard"}, ((D_AB - D_AC + 1) + (D_AB - D_BC + 1)) / 2),
    ("triplet", {"margin": 1.0, "mining": "semihard", "distance": "sqeuclidean"}, 0.1),
    ("triplet", {"margin": 1.0, "mining": "facenet", "distance": "sqeuclidean", "reduction": "all"}, 0.2),
    ("triplet", {"margin": 1.0, "mining": "pml", "distance": "sqeuclidean", "reduction": "all"}, 0.2),
    ("margin", {"alpha": 0.2, "beta": 1.0}, D_AB - 0.8),
    ("margin", {"beta": 1.2, "positive_pairs": [(0, 1)], "negative_pairs": [(2, 0)]}, 1.4 - D_AC),
    ("lifted", {}, (log(exp(1 - D_AC) + exp(1 - D_BC)) + D_AB) ** 2 / 2),
    ("lifted_generalized", {"lam": 1.1}, (1.1 - 0.6 + 0.2) + (1.1 - 0.6 - 0.4)),
    ("lifted_generalized", {"lam": 0.9}, 0.9 - 0.6 + 0.2),
    ("lifted_star", {}, ((-0.6 + 0.2) + (-0.6 - 0.4)) / 3),
    ("ranked_list", {"alpha": 1.3, "margin": 0.6}, (2 * (D_AB - 0.7) + (1.3 - D_AC)) / 2),
    ("binomial", UNIT, 2 * sp(-0.6) + 1.5 * (sp(0.2) + sp(-0.4))),
    ("binomial", {**UNIT, "reduction": "mean"}, (2 * sp(-0.6) + 1.5 * (sp(0.2) + sp(-0.4))) / 3),
    (
        "bin_lifted",
        UNIT,
        (2 * (sp(-0.6) - 0.6) + (sp(0.2) + 0.2) + (sp(-0.4) - 0.4) + sp(0.2) + sp(-0.4) + log(exp(0.2) + exp(-0.4)))
        / 6,
    ),
    (
        "bin_lifted",
        {**UNIT, "binomial_norm": "mean"},
        (2 * (sp(-0.6) - 0.6) + 1.5 * (sp(0.2) + sp(-0.4)) + 0.2 - 0.4 + log(exp(0.2) + exp(-0.4))) / 6,
    ),
    ("histogram", {"nodes": 3}, 0.38),  # h+ = (0, .4, .6), h- = (.2, .7, .1)
    ("nca", {}, sp(0.2 - 0.6) + sp(-0.4 - 0.6)),
    ("nca", {"scale": 3.0, "reduction": "mean"}, (sp(3 * (0.2 - 0.6)) + sp(3 * (-0.4 - 0.6))) / 2),
    ("multi_similarity", UNIT, 0.0),
    ("multi_similarity", {**UNIT, "eps": 0.5}, (sp(-0.6) + sp(0.2)) / 3),
    ("multi_similarity", {"eps": 0.5, "weight": False}, (0.4 + 0.2) / 3),
    ("multi_similarity", {**UNIT, "mine": False}, (2 * sp(-0.6) + sp(0.2) + sp(-0.4)) / 3),
    ("fastap", {"bins": 2}, 1 - (0.65 + 0.85) / 2),
    ("supcon", {"temperature": 0.5}, (sp(2 * (0.2 - 0.6)) + sp(2 * (-0.4 - 0.6))) / 2),
    ("nt_xent", {"temperature": 0.5}, (sp(2 * (0.2 - 0.6)) + sp(2 * (-0.4 - 0.6))) / 2),
    ("circle", {"scale": 1.0, "margin": 0.4}, (sp(0.6 * (0.2 - 0.4)) + log(2)) / 2),
    ("smooth_ap", {"temperature": 1.0}, 1 - (1 / (1 + sigmoid(-0.4)) + 1 / (1 + sigmoid(-1.0))) / 2),
]


@pytest.mark.parametrize(("loss", "params", "value"), BY_HAND)
def test_value_by_hand(loss: str, params: dict[str, Any], value: float) -> None:
    close(REFERENCE[loss](three(), **params), value, 1e-12)


def test_npairs_and_angular_by_hand() -> None:
    cross_entropy = (sp(0 - 1) + sp(-1 - 2)) / 2
    close(REFERENCE["npairs"](four(), l2=0.0), cross_entropy, 1e-12)
    close(REFERENCE["npairs"](four(), l2=0.1), cross_entropy + 0.1 * (2 + 3), 1e-12)
    f_0, f_2 = 4 * (0 - 0.5) - 4 * 1, 4 * (-1 - 0.5) - 4 * 2  # tan 45 = 1
    close(REFERENCE["angular"](four()), (sp(f_0) + sp(f_2)) / 2, 1e-12)
    close(REFERENCE["angular"](four(), l2=0.1), (sp(f_0) + sp(f_2)) / 2 + 0.1 * (2 + 3), 1e-12)


def test_npairs_against_references_by_hand() -> None:
    s = torch.tensor([[1.0, 2.0, 0.0], [3.0, 1.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    squares = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    pairs = Pairs(s, squares, squares, torch.tensor([0, 1, 7]), torch.tensor([0, 0, 1]), same=False)
    row_0 = log(exp(1) + exp(2) + 1) - (1 + 2) / 2  # target half and half on columns 0 and 1
    row_1 = log(exp(3) + 2 * exp(1)) - 1
    close(REFERENCE["npairs"](pairs, l2=0.1), (row_0 + row_1) / 2 + 0.1 * (1.5 + 3), 1e-12)  # row 2: no positive


def test_npairs_angular_is_raw_npairs_plus_unit_angular() -> None:
    x, labels = batches()["random"]
    parts = REFERENCE["npairs"](pairs_of(x, labels, normalize=False), l2=0.3)
    parts = parts + 2 * REFERENCE["angular"](pairs_of(x, labels, normalize=True), angle=40)
    close(REFERENCE_OF_X["npairs_angular"](x, labels, angle=40, lam=2.0, l2=0.3), parts)


def test_couples_use_each_item_once() -> None:
    assert anchors_and_positives(torch.tensor([5, 2, 5, 5, 2, 5, 5, 9])) == [(1, 4), (0, 2), (3, 5)]


def test_snr_by_hand() -> None:
    x = torch.tensor([[1.0, -1.0], [3.0, -3.0], [0.0, 2.0]], dtype=torch.float64)  # variances 1, 9, 1
    labels, snr = torch.tensor([0, 0, 1]), REFERENCE_OF_X["snr"]
    # d_01 = 4, d_10 = 4/9, d_02 = 4, d_12 = 16/9, d_20 = 4, d_21 = 16
    close(snr(x, labels, neg_margin=2.0), (4 + 4 / 9) / 2 + (2 - 16 / 9), 1e-12)
    close(snr(x, labels, form="triplet", margin=0.2), 0.2, 1e-12)
    close(snr(x, labels, form="triplet", margin=0.2, reg=0.5), 0.2 + 0.5 * 2 / 3, 1e-12)
    close(snr(x[:1], labels[:1], x[1:], labels[1:], neg_margin=5.0), 4 + 1, 1e-12)


def test_snr_is_squared_distance_for_centred_unit_vectors() -> None:
    x, labels = batches()["random"]
    x = x - x.mean(dim=1, keepdim=True)
    x = x / x.norm(dim=1, keepdim=True)
    close(
        REFERENCE_OF_X["snr"](x, labels, form="triplet", margin=0.3),
        REFERENCE["triplet"](pairs_of(x, labels), margin=0.3, distance="sqeuclidean"),
    )


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("all", [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]),
        ("hard", [(1, 0)]),
        ("facenet", [(0, 1)]),
        ("pml", [(0, 1), (0, 2), (0, 3)]),
        ("semihard", [(0, 1), (1, 2)]),
    ],
)
def test_mining_rules_by_hand(rule: str, kept: list[tuple[int, int]]) -> None:
    assert mine_triplets(rule, d_ap=[1.0, 2.0], d_an=[0.5, 1.25, 1.5, 1.5], margin=0.5) == kept


def test_unknown_words_are_refused() -> None:
    for loss, word in [
        ("contrastive", {"form": "x"}),
        ("triplet", {"mining": "x"}),
        ("triplet", {"distance": "x"}),
        ("triplet", {"reduction": "x"}),
        ("binomial", {"reduction": "x"}),
        ("bin_lifted", {"binomial_norm": "x"}),
    ]:
        with pytest.raises(ValueError, match="unknown"):
            REFERENCE[loss](three(), **word)


# --------------------------------------------------------------------------------------------- closed forms of W


def masks(pairs: Pairs) -> tuple[Tensor, Tensor]:
    equal = pairs.row_labels[:, None] == pairs.col_labels[None, :]  # (Q, R)
    self_pair = torch.eye(*equal.shape, dtype=torch.bool) & pairs.same
    return equal & ~self_pair, ~equal


def distances(pairs: Pairs) -> Tensor:
    """(Q, R), with 1 on the diagonal, which no formula uses, to keep 1 / d finite."""
    d = (pairs.row_sq[:, None] + pairs.col_sq[None, :] - 2 * pairs.s).clamp(min=0).sqrt()
    return d.fill_diagonal_(1.0) if pairs.same else d


def softmax_over(v: Tensor, mask: Tensor) -> Tensor:
    """Row softmax over a mask; 0 in rows where the mask is empty."""
    return torch.softmax(v.masked_fill(~mask, -math.inf), dim=1).nan_to_num(0.0)


def lse_over(v: Tensor, mask: Tensor) -> Tensor:
    return torch.logsumexp(v.masked_fill(~mask, -math.inf), dim=1)


def both(pos: Tensor, neg: Tensor) -> Tensor:
    """(Q, 1), 1 where the row has a positive and a negative."""
    return (pos.any(1) & neg.any(1)).double()[:, None]


def w_contrastive_cosine(pairs: Pairs) -> Tensor:
    pos, neg = masks(pairs)
    return ((neg & (pairs.s > 0.5)).double() - pos.double()) / len(pairs.s)


def w_contrastive_hadsell(pairs: Pairs) -> Tensor:
    (pos, neg), d = masks(pairs), distances(pairs)
    return (-2 * pos + neg * 2 * (1 - d).clamp(min=0) / d) / len(pairs.s)


def w_contrastive_hinge(pairs: Pairs) -> Tensor:
    (pos, neg), d = masks(pairs), distances(pairs)
    near, far = pos & (d > 0.3), neg & (d < 1.1)
    return far / (d * far.sum()) - near / (d * near.sum())


def active_triplets(pairs: Pairs, measure: Tensor, m: float) -> Tensor:
    """(Q, R, R) of (a, p, n)"""
    pos, neg = masks(pairs)
    return pos[:, :, None] & neg[:, None, :] & (measure[:, :, None] - measure[:, None, :] + m > 0)


def w_triplet_cosine(pairs: Pairs) -> Tensor:
    active = active_triplets(pairs, -pairs.s, 0.1)
    return (active.sum(1) - active.sum(2)).double() / active.sum()


def w_triplet_euclidean(pairs: Pairs) -> Tensor:
    d = distances(pairs)
    active = active_triplets(pairs, d, 0.1)
    return (active.sum(1) - active.sum(2)) / d / active.sum()


def w_triplet_squared(pairs: Pairs) -> Tensor:
    pos, neg = masks(pairs)
    active = active_triplets(pairs, distances(pairs) ** 2, 0.1)
    return 2 * (active.sum(1) - active.sum(2)).double() / (pos.sum(1) * neg.sum(1)).sum()


def w_triplet_hard(pairs: Pairs) -> Tensor:
    (pos, neg), d = masks(pairs), distances(pairs)
    w, active = torch.zeros_like(d), 0
    for i in torch.nonzero(pos.any(1) & neg.any(1)).flatten():
        p, n = d[i].masked_fill(~pos[i], -math.inf).argmax(), d[i].masked_fill(~neg[i], math.inf).argmin()
        if d[i, p] - d[i, n] + 0.1 > 0:
            active += 1
            w[i, p], w[i, n] = -1 / d[i, p], 1 / d[i, n]
    return w / active


def w_margin(pairs: Pairs) -> Tensor:
    (pos, neg), d = masks(pairs), distances(pairs)
    near, far = pos & (d > 1.0), neg & (d < 1.4)
    return (far.double() - near.double()) / d / (near.sum() + far.sum())


def w_lifted(pairs: Pairs) -> Tensor:
    (pos, neg), d = masks(pairs), distances(pairs)
    r = ((1 - d).exp() * neg).sum(1)  # (Q,)
    r_sum = r[:, None] + r[None, :]
    unordered = pos.sum() / 2
    j_hinge = pos * (r_sum.log() + d).clamp(min=0)
    c = (j_hinge / r_sum).sum(1) / unordered
    return -j_hinge / unordered / d / 2 + neg * (1 - d).exp() * c[:, None] / d


def w_lifted_generalized(pairs: Pairs) -> Tensor:
    (pos, neg), s = masks(pairs), pairs.s
    active = (lse_over(1 - s, pos) + lse_over(s, neg) > 0)[:, None] * both(pos, neg)
    return active * (softmax_over(s, neg) - softmax_over(-s, pos))


def w_lifted_star(pairs: Pairs) -> Tensor:
    (pos, neg), s = masks(pairs), pairs.s
    return both(pos, neg) * (softmax_over(50 * s, neg) - softmax_over(-2 * s, pos)) / len(s)


def w_npairs(pairs: Pairs) -> Tensor:
    couples = anchors_and_positives(pairs.row_labels)
    a, p = [i for i, _ in couples], [j for _, j in couples]
    same_label = (pairs.row_labels[a][:, None] == pairs.row_labels[p][None, :]).double()
    w = torch.zeros_like(pairs.s)
    block = torch.softmax(pairs.s[a][:, p], dim=1) - same_label / same_label.sum(1, keepdim=True)
    w[torch.tensor(a)[:, None], torch.tensor(p)[None, :]] = block / len(couples)
    return w


def w_angular(pairs: Pairs) -> Tensor:
    couples = anchors_and_positives(pairs.row_labels)
    t2, n, w = 1.0, len(couples), torch.zeros_like(pairs.s)
    for a, p in couples:
        others = [k for _, k in couples if pairs.row_labels[k] != pairs.row_labels[a]]
        f = 4 * t2 * (pairs.s[a, others] + pairs.s[p, others]) - 2 * (1 + t2) * pairs.s[a, p]
        q = f.exp() / (1 + f.exp().sum())
        w[a, others] += 4 * t2 * q / n
        w[p, others] += 4 * t2 * q / n
        w[a, p] -= 2 * (1 + t2) * q.sum() / n
    return w


def w_ranked_list(pairs: Pairs) -> Tensor:
    (pos, neg), d = masks(pairs), distances(pairs)
    far, near = pos & (d > 0.8), neg & (d < 1.2)
    mean_weight = far.double() / far.sum(1, keepdim=True).clamp(min=1)
    queries = both(pos, neg)
    return queries * (softmax_over(10 * (1.2 - d), near) - mean_weight) / d / queries.sum()


def w_binomial(pairs: Pairs) -> Tensor:
    (pos, neg), s = masks(pairs), pairs.s
    n_pos, n_neg = pos.sum(1, keepdim=True).clamp(min=1), neg.sum(1, keepdim=True).clamp(min=1)
    return neg * 50 * torch.sigmoid(50 * (s - 0.5)) / n_neg - pos * 2 * torch.sigmoid(2 * (0.5 - s)) / n_pos


def w_bin_lifted(pairs: Pairs) -> Tensor:
    (pos, neg), s = masks(pairs), pairs.s
    far = neg * torch.sigmoid(50 * (s - 0.5)) + softmax_over(50 * s, neg)
    near = pos * torch.sigmoid(2 * (0.5 - s)) + softmax_over(-2 * s, pos)
    return (far - near) / 2 / len(s)


def triangles(v: Tensor, nodes: Tensor) -> Tensor:
    """sum_k max(0, 1 - |v_k - t_r| / width), as the papers print it."""
    return (1 - (v[:, None] - nodes[None, :]).abs() / (nodes[1] - nodes[0])).clamp(min=0).sum(0)


def w_histogram(pairs: Pairs) -> Tensor:
    (pos, neg), s = masks(pairs), pairs.s
    nodes, width = torch.linspace(-1, 1, 101, dtype=torch.float64), 0.02
    h_pos, h_neg = triangles(s[pos], nodes) / pos.sum(), triangles(s[neg], nodes) / neg.sum()
    cell = ((s + 1) / width).floor().long().clamp(0, 99)
    return (neg * h_pos[cell + 1] / neg.sum() - pos * h_neg[cell] / pos.sum()) / width


def w_nca(pairs: Pairs) -> Tensor:
    (pos, neg), s = masks(pairs), pairs.s
    return 3 * pos.any(1)[:, None] * (softmax_over(3 * s, pos | neg) - softmax_over(3 * s, pos))


def w_multi_similarity(pairs: Pairs, mine: bool) -> Tensor:
    (pos, neg), s = masks(pairs), pairs.s
    hardest_pos = s.masked_fill(~pos, math.inf).amin(1, keepdim=True)
    hardest_neg = s.masked_fill(~neg, -math.inf).amax(1, keepdim=True)
    usable = both(pos, neg)
    keep_pos, keep_neg = pos & (s < hardest_neg + 0.1), neg & (s > hardest_pos - 0.1)
    e_pos = (keep_pos if mine else pos) * (-2 * (s - 0.5)).exp()
    e_neg = (keep_neg if mine else neg) * (50 * (s - 0.5)).exp()
    return usable * (e_neg / (1 + e_neg.sum(1, keepdim=True)) - e_pos / (1 + e_pos.sum(1, keepdim=True))) / len(s)


def w_ms_mining_only(pairs: Pairs) -> Tensor:
    w = torch.zeros_like(pairs.s)
    for i in pairs.rows:
        pos, neg = torch.tensor(pairs.positives(i)), torch.tensor(pairs.negatives(i))
        if len(pos) and len(neg):
            keep_pos, keep_neg = ms_sets(pairs.s[i, pos], pairs.s[i, neg], 0.1)
            w[i, pos[keep_pos]] = -1 / int(keep_pos.sum())
            w[i, neg[keep_neg]] = 1 / int(keep_neg.sum())
    return w / len(w)


def fastap_tables(pairs: Pairs, i: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h+, h-, H+, H of one row, 11 nodes each."""
    pos, neg = masks(pairs)
    z, nodes = 2 - 2 * pairs.s[i], torch.linspace(0, 4, 11, dtype=torch.float64)
    h_pos, h_neg = triangles(z[pos[i]], nodes), triangles(z[neg[i]], nodes)
    return h_pos, h_neg, h_pos.cumsum(0), (h_pos + h_neg).cumsum(0)


def w_fastap(pairs: Pairs) -> Tensor:
    """The closed pair form: one derivative per cell and per kind of pair."""
    (pos, neg), w, delta = masks(pairs), torch.zeros_like(pairs.s), 0.4
    cell = ((2 - 2 * pairs.s) / delta).floor().long().clamp(0, 9)
    for i in torch.nonzero(pos.any(1)).flatten():
        h_pos, _, cum_pos, cum = fastap_tables(pairs, int(i))
        ratio = (cum_pos / cum).nan_to_num(0.0)
        low, high = slice(0, 10), slice(1, 11)
        lut_neg = cum_pos[low] * h_pos[low] / cum[low] ** 2
        lut_pos = ratio[high] - ratio[low] - h_pos[low] * (cum - cum_pos)[low] / cum[low] ** 2
        w[i] += neg[i] * lut_neg.nan_to_num(0.0)[cell[i]] + pos[i] * lut_pos.nan_to_num(0.0)[cell[i]]
        w[i] *= 2 / (delta * int(pos[i].sum()))
    return w / pos.any(1).sum()


def w_fastap_by_nodes(pairs: Pairs) -> Tensor:
    """The node form: F+_k and F-_k, then the slopes of the two triangles over a pair."""
    (pos, neg), w, delta = masks(pairs), torch.zeros_like(pairs.s), 0.4
    cell = ((2 - 2 * pairs.s) / delta).floor().long().clamp(0, 9)
    for i in torch.nonzero(pos.any(1)).flatten():
        h_pos, _, cum_pos, cum = fastap_tables(pairs, int(i))
        cum_neg = cum - cum_pos
        f_pos, f_neg = torch.zeros(11, dtype=torch.float64), torch.zeros(11, dtype=torch.float64)
        for k in range(11):
            filled = torch.arange(11)[k:][cum[k:] > 0]
            f_pos[k] = (h_pos * cum_neg / cum**2)[filled].sum() + (cum_pos[k] / cum[k] if cum[k] > 0 else 0)
            f_neg[k] = -(h_pos * cum_pos / cum**2)[filled].sum()
        slope_pos, slope_neg = f_pos.diff() / delta, f_neg.diff() / delta
        w[i] = 2 * (pos[i] * slope_pos[cell[i]] + neg[i] * slope_neg[cell[i]]) / pos[i].sum()
    return w / pos.any(1).sum()


def w_supcon(pairs: Pairs) -> Tensor:
    (pos, neg), s = masks(pairs), pairs.s
    anchors = pos.any(1)[:, None]
    target = pos.double() / pos.sum(1, keepdim=True).clamp(min=1)
    return anchors * (softmax_over(10 * s, pos | neg) - target) * 10 / anchors.sum()


def w_nt_xent(pairs: Pairs) -> Tensor:
    (pos, neg), w = masks(pairs), torch.zeros_like(pairs.s)
    for i, p in torch.nonzero(pos).tolist():
        terms = neg[i].clone()
        terms[p] = True
        w[i] += softmax_over(10 * pairs.s[i : i + 1], terms[None])[0]
        w[i, p] -= 1
    return w * 10 / pos.sum()


def w_circle(pairs: Pairs) -> Tensor:
    (pos, neg), s, g, m = masks(pairs), pairs.s, 80.0, 0.4
    a_pos, a_neg = (1 + m - s).clamp(min=0), (s + m).clamp(min=0)
    logit_pos, logit_neg = -g * a_pos * (s - 1 + m), g * a_neg * (s - m)
    gate = torch.sigmoid(lse_over(logit_pos, pos) + lse_over(logit_neg, neg))[:, None]
    weights = softmax_over(logit_neg, neg) * a_neg - softmax_over(logit_pos, pos) * a_pos
    return both(pos, neg) * gate * g * weights / both(pos, neg).sum()


CLOSED_FORMS: dict[str, tuple[str, dict[str, Any], Callable[[Pairs], Tensor]]] = {
    "contrastive cosine": ("contrastive", {}, w_contrastive_cosine),
    "contrastive hadsell": ("contrastive", {"form": "hadsell"}, w_contrastive_hadsell),
    "contrastive hinge": (
        "contrastive",
        {"form": "hinge", "pos_margin": 0.3, "neg_margin": 1.1},
        w_contrastive_hinge,
    ),
    "triplet cosine": ("triplet", {"distance": "cosine"}, w_triplet_cosine),
    "triplet euclidean": ("triplet", {}, w_triplet_euclidean),
    "triplet squared": ("triplet", {"distance": "sqeuclidean", "reduction": "all"}, w_triplet_squared),
    "triplet hard": ("triplet", {"mining": "hard"}, w_triplet_hard),
    "margin": ("margin", {}, w_margin),
    "lifted": ("lifted", {}, w_lifted),
    "lifted_generalized": ("lifted_generalized", {}, w_lifted_generalized),
    "lifted_star": ("lifted_star", {}, w_lifted_star),
    "npairs": ("npairs", {}, w_npairs),
    "angular": ("angular", {}, w_angular),
    "ranked_list": ("ranked_list", {}, w_ranked_list),
    "binomial": ("binomial", {}, w_binomial),
    "bin_lifted": ("bin_lifted", {}, w_bin_lifted),
    "histogram": ("histogram", {}, w_histogram),
    "nca": ("nca", {"scale": 3.0}, w_nca),
    "multi_similarity": ("multi_similarity", {}, lambda pairs: w_multi_similarity(pairs, mine=True)),
    "ms weighting only": ("multi_similarity", {"mine": False}, lambda pairs: w_multi_similarity(pairs, mine=False)),
    "ms mining only": ("multi_similarity", {"weight": False}, w_ms_mining_only),
    "fastap": ("fastap", {}, w_fastap),
    "fastap by nodes": ("fastap", {}, w_fastap_by_nodes),
    "supcon": ("supcon", {}, w_supcon),
    "nt_xent": ("nt_xent", {}, w_nt_xent),
    "circle": ("circle", {}, w_circle),
}


@pytest.mark.parametrize("batch", ["random", "unequal"])
@pytest.mark.parametrize("case", CLOSED_FORMS)
def test_autograd_equals_closed_form(case: str, batch: str) -> None:
    loss, params, closed_form = CLOSED_FORMS[case]
    pairs = zoo_pairs(loss, batch)
    weights = pair_weights(REFERENCE[loss], pairs, **params)
    assert weights.abs().max() > 0
    close(weights, closed_form(pairs), 1e-9)


@pytest.mark.parametrize("case", [c for c, (loss, _, _) in CLOSED_FORMS.items() if loss not in (*SAME_ONLY, "npairs")])
def test_autograd_equals_closed_form_against_references(case: str) -> None:
    loss, params, closed_form = CLOSED_FORMS[case]
    pairs = zoo_pairs(loss, "unseen_classes", separate=True)
    weights = pair_weights(REFERENCE[loss], pairs, **params)
    assert weights.shape == (24, 23)
    assert weights.abs().max() > 0
    close(weights, closed_form(pairs), 1e-9)


def test_smooth_ap_and_snr_gradients_by_finite_differences() -> None:
    x, labels = batches()["random"]
    x, labels = x[:7].clone().requires_grad_(), labels[:7] % 2
    assert torch.autograd.gradcheck(lambda v: REFERENCE["smooth_ap"](pairs_of(v, labels), temperature=0.3), x)
    for form in ("contrastive", "triplet"):
        assert torch.autograd.gradcheck(lambda v, f=form: REFERENCE_OF_X["snr"](v, labels, form=f, reg=0.1), x)


# ------------------------------------------------------------------------------------------------------ identities


def test_npairs_equals_its_printed_form_with_one_couple_per_class() -> None:
    x, _ = batches()["random"]
    labels = torch.arange(12).repeat(2)  # anchors 0..11, positives 12..23
    anchors, positives = x[:12], x[12:]
    gap = anchors @ positives.T - (anchors * positives).sum(1, keepdim=True)  # a_i . p_j - a_i . p_i
    printed = torch.stack([lse_plus(gap[i, [j for j in range(12) if j != i]]) for i in range(12)]).mean()
    close(REFERENCE["npairs"](pairs_of(x, labels, normalize=False), l2=0.0), printed)


def test_angular_equals_its_cross_entropy_form() -> None:
    x, labels = batches()["random"]
    labels = torch.arange(12).repeat(2)
    unit = x / x.norm(dim=1, keepdim=True)
    a, p, t2 = unit[:12], unit[12:], math.tan(math.radians(40)) ** 2
    logits = 4 * t2 * (a + p) @ p.T
    logits.diagonal().copy_(2 * (1 + t2) * (a * p).sum(1))
    cross_entropy = torch.nn.functional.cross_entropy(logits, torch.arange(12))
    close(REFERENCE["angular"](pairs_of(x, labels), angle=40), cross_entropy)


@pytest.mark.parametrize(("loss", "params"), [("nca", {"scale": 5.0}), ("npairs", {}), ("supcon", {}), ("nt_xent", {})])
def test_softmax_losses_have_zero_row_sums(loss: str, params: dict[str, Any]) -> None:
    weights = pair_weights(REFERENCE[loss], zoo_pairs(loss, "random"), **params)
    close(weights.sum(1), torch.zeros(24, dtype=torch.float64), 1e-12)


def test_lifted_generalized_weighs_each_side_by_one() -> None:
    pairs = zoo_pairs("lifted_generalized", "random")
    (pos, neg), weights = masks(pairs), pair_weights(REFERENCE["lifted_generalized"], pairs)
    ones = torch.ones(24, dtype=torch.float64)
    close((weights * neg).sum(1), ones)
    close((weights * pos).sum(1), -ones)


def test_multi_similarity_weights_are_bounded_by_one_over_m() -> None:
    for name in ("random", "unequal", "duplicates", "collapsed"):
        pairs = zoo_pairs("multi_similarity", name)
        (pos, neg), weights = masks(pairs), pair_weights(REFERENCE["multi_similarity"], pairs)
        assert bool(((weights * neg).sum(1) < 1 / len(weights)).all())
        assert bool(((weights * pos).sum(1) > -1 / len(weights)).all())


@settings(deadline=None)
@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=6),
    st.lists(st.floats(-1, 1), min_size=1, max_size=6),
)
def test_multi_similarity_mines_both_sides_or_neither(s_pos: list[float], s_neg: list[float]) -> None:
    eps = 0.125
    # sixteenths: exact in binary, so that both thresholds are compared without rounding
    p = (torch.tensor(s_pos, dtype=torch.float64) * 16).round() / 16
    n = (torch.tensor(s_neg, dtype=torch.float64) * 16).round() / 16
    keep_pos, keep_neg = ms_sets(p, n, eps)
    assert bool(keep_pos.any()) == bool(keep_neg.any())


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.integers(2, 40), st.sampled_from(["left", "right"]))
def test_soft_histogram_is_a_sum_of_triangles(values: list[float], nodes: int, side: str) -> None:
    v = torch.tensor(values, dtype=torch.float64)
    h = soft_histogram(v, -1.0, 1.0, nodes, side)
    close(h, triangles(v, torch.linspace(-1, 1, nodes, dtype=torch.float64)))
    close(h.sum(), float(len(values)))
    assert bool((h >= -1e-12).all())


def node_slopes(v: float, side: str) -> list[float]:
    """d h_r / d v at nodes -1, 0, 1."""
    point = torch.tensor([v], dtype=torch.float64, requires_grad=True)
    h = soft_histogram(point, -1.0, 1.0, 3, side)
    return [torch.autograd.grad(h[r], point, retain_graph=True)[0].item() for r in range(3)]


def test_soft_histogram_derivative_on_a_node() -> None:
    assert node_slopes(0.0, "left") == [-1, 1, 0]
    assert node_slopes(0.0, "right") == [0, -1, 1]


@pytest.mark.parametrize("side", ["left", "right"])
def test_soft_histogram_derivative_at_the_ends_is_the_one_from_inside(side: str) -> None:
    assert node_slopes(-1.0, side) == node_slopes(-1 - 1e-15, side) == [-1, 1, 0]
    assert node_slopes(1.0, side) == node_slopes(1 + 1e-15, side) == [0, -1, 1]


def test_fastap_is_one_without_negatives() -> None:
    z = torch.tensor([0.0, 0.3, 1.7, 4.0], dtype=torch.float64, requires_grad=True)
    score = fastap_of_row(z, z.new_zeros(0), bins=10)
    (grad,) = torch.autograd.grad(score, z)
    close(score, 1.0)
    close(grad, torch.zeros_like(z), 1e-12)


def test_fastap_derivative_on_a_node_is_the_left_one() -> None:
    z_pos = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    z_neg = torch.tensor([1.0], dtype=torch.float64)
    (on_node,) = torch.autograd.grad(fastap_of_row(z_pos, z_neg, bins=2), z_pos)
    (before,) = torch.autograd.grad(fastap_of_row(z_pos - 1e-9, z_neg, bins=2), z_pos)
    (after,) = torch.autograd.grad(fastap_of_row(z_pos + 1e-9, z_neg, bins=2), z_pos)
    close(on_node, before, 1e-7)
    assert (on_node - after).abs() > 0.05


def test_fastap_and_smooth_ap_reach_average_precision() -> None:
    """FastAP when every z is alone on a node, SmoothAP when the temperature vanishes."""
    pairs, bins = zoo_pairs("fastap", "random"), 2**20
    pairs.s = 1 - 2 / bins * ((1 - pairs.s) * bins / 2).round()
    precisions = []
    for i in pairs.rows:
        ranked = sorted(pairs.others(i), key=lambda j: -float(pairs.s[i, j]))
        hits = [k for k, j in enumerate(ranked, start=1) if j in pairs.positives(i)]
        precisions.append(sum(found / k for found, k in enumerate(hits, start=1)) / len(hits))
    average = 1 - sum(precisions) / len(precisions)
    close(REFERENCE["fastap"](pairs, bins=bins), average)
    close(REFERENCE["smooth_ap"](pairs, temperature=1e-8), average)


def test_ranked_list_weights_carry_no_gradient() -> None:
    pairs = zoo_pairs("ranked_list", "random")
    (pos, neg), weights = masks(pairs), pair_weights(REFERENCE["ranked_list"], pairs)
    assert bool((weights[neg] >= 0).all())
    assert bool((weights[pos] <= 0).all())


def test_margin_gradient_of_beta_counts_active_pairs_by_class() -> None:
    pairs = zoo_pairs("margin", "random")
    beta = torch.linspace(0.9, 1.4, 6, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(REFERENCE["margin"](pairs, alpha=0.2, beta=beta), beta)
    (pos, neg), d = masks(pairs), distances(pairs)
    boundary = beta.detach()[pairs.row_labels][:, None]
    near, far = pos & (d > boundary - 0.2), neg & (d < boundary + 0.2)
    per_row = (far.double() - near.double()).sum(1) / (near.sum() + far.sum())
    close(grad, torch.zeros(6, dtype=torch.float64).index_add(0, pairs.row_labels, per_row), 1e-12)


def test_margin_without_pairs_still_reaches_beta() -> None:
    beta = torch.tensor(1.2, dtype=torch.float64, requires_grad=True)
    value = REFERENCE["margin"](three(), beta=beta, positive_pairs=[], negative_pairs=[])
    (grad,) = torch.autograd.grad(value, beta)
    assert value.item() == 0
    assert grad.item() == 0


def test_distance_weights_follow_the_density_on_the_sphere() -> None:
    d = torch.tensor([0.5, 1.0, sqrt(2), 1.9], dtype=torch.float64)
    p = distance_weights(d, dim=128, upper=2.1)
    close(p.sum(), 1.0, 1e-12)
    for k, log_weight in enumerate([91.4, 18.0, -0.3, 64.6]):
        close((p[k] / p[1]).log(), log_weight - 18.0, 5e-2)


def test_distance_weights_cut_both_ends() -> None:
    p = distance_weights(torch.tensor([0.0, 0.3, 0.5, 1.39, 1.4, 2.0], dtype=torch.float64), dim=512)
    assert p[0] == p[1] == p[2]
    assert p[3] > 0
    assert p[4] == p[5] == 0
    close(p.sum(), 1.0, 1e-12)
    assert distance_weights(torch.tensor([1.5, 1.9], dtype=torch.float64), dim=8).tolist() == [0, 0]


@pytest.mark.parametrize("v", [-800.0, -30.0, 0.0, 19.0, 21.0, 800.0])
def test_softplus_is_exact(v: float) -> None:
    exact = v + math.log1p(exp(-v)) if v > 0 else math.log1p(exp(v))
    close(softplus(torch.tensor(v, dtype=torch.float64)), exact, 1e-15)


# ------------------------------------------------------------------------------------- laws of every loss and batch


def check_value_and_gradient(value: Tensor, inputs: Tensor) -> None:
    assert value.shape == ()
    assert value.dtype == torch.float64
    assert bool(value.isfinite())
    (grad,) = torch.autograd.grad(value, inputs)
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize("batch", ZOO)
def test_finite_on_every_batch(batch: str) -> None:
    x, labels = batches()[batch]
    x.requires_grad_()
    for name, loss in REFERENCE.items():
        check_value_and_gradient(loss(pairs_of(x, labels, normalize=NORMALIZE[name])), x)
    for loss in REFERENCE_OF_X.values():
        check_value_and_gradient(loss(x, labels), x)


@pytest.mark.parametrize("batch", REFERENCE_ZOO)
def test_finite_on_every_batch_with_references(batch: str) -> None:
    x, labels, refs, ref_labels = reference_batches()[batch]
    x.requires_grad_()
    for name, loss in REFERENCE.items():
        pairs = pairs_of(x, labels, refs, ref_labels, normalize=NORMALIZE[name])
        if name in SAME_ONLY:
            with pytest.raises(ValueError, match="one batch"):
                loss(pairs)
        else:
            check_value_and_gradient(loss(pairs), x)
    check_value_and_gradient(REFERENCE_OF_X["snr"](x, labels, refs, ref_labels), x)


@pytest.mark.parametrize("loss", REFERENCE)
def test_gradient_of_x_is_w_plus_its_transpose_times_x(loss: str) -> None:
    """And 2 x dL/d|x|^2 for what reaches the loss through the norms."""
    x, labels = batches()["unequal"]
    x.requires_grad_()
    (direct,) = torch.autograd.grad(REFERENCE[loss](pairs_of(x, labels, normalize=NORMALIZE[loss])), x)
    norm = x.detach().norm(dim=1, keepdim=True)
    v = x.detach() / norm if NORMALIZE[loss] else x.detach()
    leaves = leaf_pairs(pairs_of(v, labels, normalize=False))
    value = REFERENCE[loss](leaves)
    w, row, col = torch.autograd.grad(value, (leaves.s, leaves.row_sq, leaves.col_sq), materialize_grads=True)
    g = (w + w.T) @ v + 2 * (row + col)[:, None] * v
    if NORMALIZE[loss]:
        g = (g - (g * v).sum(1, keepdim=True) * v) / norm
    close(direct, g)


@pytest.mark.parametrize("loss", REFERENCE)
def test_self_pairs_carry_no_weight(loss: str) -> None:
    for batch in ("random", "duplicates", "three"):
        weights = pair_weights(REFERENCE[loss], zoo_pairs(loss, batch))
        assert bool((weights.diagonal() == 0).all())


@pytest.mark.parametrize("loss", [name for name in REFERENCE if name not in ("npairs", "angular")])
def test_order_of_rows_does_not_matter(loss: str) -> None:
    x, labels = batches()["unequal"]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    pairs = pairs_of(x, labels, normalize=NORMALIZE[loss])
    moved = pairs_of(x[order], labels[order], normalize=NORMALIZE[loss])
    close(REFERENCE[loss](moved), REFERENCE[loss](pairs))
    close(pair_weights(REFERENCE[loss], moved), pair_weights(REFERENCE[loss], pairs)[order][:, order])


NEED_BOTH = (
    "triplet",
    "lifted",
    "lifted_generalized",
    "lifted_star",
    "npairs",
    "angular",
    "ranked_list",
    "histogram",
    "multi_similarity",
    "circle",
)
NEED_POSITIVES = (*NEED_BOTH, "nca", "fastap", "supcon", "nt_xent", "smooth_ap")
NOTHING_USABLE = [(loss, batch) for loss in NEED_BOTH for batch in ("one_class", "two_same")]
NOTHING_USABLE += [(loss, batch) for loss in NEED_POSITIVES for batch in ("all_distinct", "two_different")]


@pytest.mark.parametrize(("loss", "batch"), NOTHING_USABLE)
def test_exact_zero_with_a_graph_when_nothing_is_usable(loss: str, batch: str) -> None:
    x, labels = batches()[batch]
    x.requires_grad_()
    value = REFERENCE[loss](pairs_of(x, labels, normalize=NORMALIZE[loss]))
    (grad,) = torch.autograd.grad(value, x)
    assert value.item() == 0
    assert bool((grad == 0).all())


@pytest.mark.parametrize("loss", ["nca", "fastap", "nt_xent", "smooth_ap"])
def test_zero_without_negatives(loss: str) -> None:
    close(REFERENCE[loss](zoo_pairs(loss, "one_class")), 0.0, 1e-12)


@pytest.mark.parametrize("loss", [name for name in REFERENCE if NORMALIZE[name]])
def test_unit_losses_ignore_the_norms(loss: str) -> None:
    close(REFERENCE[loss](zoo_pairs(loss, "large_norms")), REFERENCE[loss](zoo_pairs(loss, "random")))


def test_separated_batch_satisfies_the_margin_losses() -> None:
    for loss in ("triplet", "multi_similarity", "fastap", "histogram", "smooth_ap"):
        close(REFERENCE[loss](zoo_pairs(loss, "separated")), 0.0, 2e-2)
