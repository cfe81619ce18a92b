"""Slow, obvious versions of every pair-based loss, to check the fast ones against.

Each function follows its formula with loops over anchors, in float64, and leaves the derivative to plain autograd.
Nothing here is shared with the package, so an error has to be made twice to go unnoticed.

Legend: Q rows (queries, the M of the formulas), R columns (references), D dims, C classes,
pos = P_i and neg = N_i, the columns with the label of row i and those with another one.

Conventions that hold for all of them:
* A pair (i, i) is left out by its index, and only when rows and columns are the same items.
* Hinges count as active only above zero, and their derivative at zero is zero.
* The result hangs on `pairs.s` even when nothing is usable: then it is 0 and its gradient is exact zeros.
* W = dL/dS takes S_ij and S_ji as separate variables and holds the norms fixed: see `pair_weights`.

`REFERENCE` holds the losses f(pairs, **params). Some cannot be written on dot products of one preparation of the
vectors and take raw embeddings instead, f(x, labels, **params): those in `REFERENCE_OF_X`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Index = int | list[int]


# ---------------------------------------------------------------------------------------------------------- pairs


@dataclass
class Pairs:
    """What a slow loss sees: dot products, squared norms and labels of the prepared vectors."""

    s: Tensor  # (Q, R)
    row_sq: Tensor  # (Q,)
    col_sq: Tensor  # (R,)
    row_labels: Tensor  # (Q,)
    col_labels: Tensor  # (R,)
    same: bool  # rows and columns are the same items

    @property
    def rows(self) -> range:
        return range(self.s.shape[0])

    def others(self, i: int) -> list[int]:
        """Every column except the item of row i itself."""
        return [j for j in range(self.s.shape[1]) if not (self.same and j == i)]

    def positives(self, i: int) -> list[int]:
        """P_i: the other items with the label of row i."""
        labels, mine = self.col_labels.tolist(), self.row_labels.tolist()[i]
        return [j for j in self.others(i) if labels[j] == mine]

    def negatives(self, i: int) -> list[int]:
        """N_i: the items with another label than row i."""
        labels, mine = self.col_labels.tolist(), self.row_labels.tolist()[i]
        return [j for j in self.others(i) if labels[j] != mine]

    def d2(self, i: int, j: Index) -> Tensor:
        """Squared distance |x_i|^2 + |r_j|^2 - 2 S_ij, never below 0; its derivative by S is always -2."""
        return clamp_value(self.row_sq[i] + self.col_sq[j] - 2 * self.s[i, j], 0.0, math.inf)

    def d(self, i: int, j: Index) -> Tensor:
        """Distance sqrt(d2), with 1 / max(d, 1e-4) in place of 1 / d in the derivative, and derivative 0 at d = 0."""
        d2 = self.d2(i, j)
        value = d2.detach().sqrt()
        slope = torch.where(value > 0, 0.5 / value.clamp(min=1e-4), 0.0)
        return value + slope * (d2 - d2.detach())

    def zero(self) -> Tensor:
        """A 0 that hangs on s."""
        return (self.s * 0.0).sum()


def clamp_value(v: Tensor, low: float, high: float) -> Tensor:
    """Clamp the value but not the derivative: rounding just outside the range must not switch a pair off."""
    return v + (v.clamp(low, high) - v).detach()


def prepare(x: Tensor, normalize: bool) -> Tensor:
    """x in float64, divided by max(|x|, 1e-12) if asked."""
    x = x.double()
    return x / x.norm(dim=1, keepdim=True).clamp(min=1e-12) if normalize else x


def pairs_of(
    x: Tensor, labels: Tensor, refs: Tensor | None = None, ref_labels: Tensor | None = None, normalize: bool = True
) -> Pairs:
    """All pairs of `x` with itself, or with `refs`; differentiable in both.

    Products and norms are summed alike, so that identical vectors are at distance 0 exactly.
    """
    rows = prepare(x, normalize)  # (Q, D)
    cols = rows if refs is None else prepare(refs, normalize)  # (R, D)
    return Pairs(
        s=(rows[:, None, :] * cols[None, :, :]).sum(-1),
        row_sq=(rows * rows).sum(-1),
        col_sq=(cols * cols).sum(-1),
        row_labels=labels,
        col_labels=labels if ref_labels is None else ref_labels,
        same=refs is None,
    )


def leaf_pairs(pairs: Pairs) -> Pairs:
    """The same numbers with s, row_sq and col_sq as three independent leaves."""
    s, row_sq, col_sq = (t.detach().clone().requires_grad_() for t in (pairs.s, pairs.row_sq, pairs.col_sq))
    return Pairs(s, row_sq, col_sq, pairs.row_labels, pairs.col_labels, pairs.same)


def pair_weights(loss: Callable[..., Tensor], pairs: Pairs, **params: object) -> Tensor:
    """W = dL/dS, (Q, R), with the norms held fixed."""
    leaves = leaf_pairs(pairs)
    (weights,) = torch.autograd.grad(loss(leaves, **params), leaves.s)
    return weights


# ------------------------------------------------------------------------------------------------ building blocks


def hinge(v: Tensor) -> Tensor:
    """[v]_+"""
    return torch.relu(v)


def softplus(v: Tensor) -> Tensor:
    """log(1 + e^v), exact for every v."""
    return torch.logaddexp(v, torch.zeros_like(v))


def lse(v: Tensor) -> Tensor:
    """log(sum e^v)"""
    return torch.logsumexp(v, dim=0)


def lse_plus(v: Tensor) -> Tensor:
    """log(1 + sum e^v)"""
    return torch.logsumexp(torch.cat([v, v.new_zeros(1)]), dim=0)


def active_mean(zero: Tensor, hinges: list[Tensor]) -> Tensor:
    """Sum of hinge values over the number of those above zero (at least 1)."""
    active = sum(int((h > 0).sum()) for h in hinges)
    return (zero + sum(h.sum() for h in hinges)) / max(active, 1)


def soft_histogram(values: Tensor, low: float, high: float, nodes: int, node_side: str) -> Tensor:
    """h_r = sum_k max(0, 1 - |v_k - t_r| / width) for nodes t_r evenly spread over [low, high].

    Written as: a value v in [t_p, t_p+1] gives 1 - f to node p and f to node p + 1, f = (v - t_p) / width.
    A value exactly on an inner node has two one-sided derivatives: `node_side` ("left", "right") says which is meant.
    """
    width = (high - low) / (nodes - 1)
    position = (clamp_value(values, low, high) - low) / width
    cell = position.detach().floor() if node_side == "right" else position.detach().ceil() - 1
    cell = cell.clamp(0, nodes - 2).long()
    f = position - cell
    return values.new_zeros(nodes).index_add(0, cell, 1 - f).index_add(0, cell + 1, f)


# ------------------------------------------------------------------------------------- contrastive, triplet, margin


def contrastive(
    pairs: Pairs, lam: float = 0.5, form: str = "cosine", pos_margin: float = 0.0, neg_margin: float = 1.0
) -> Tensor:
    """cosine (GPW Eq. 4): sum over ordered pairs of -S (positive), [S - lam]_+ (negative), over M.

    hadsell: sum over ordered pairs of d^2 (positive), [m_n - d]_+^2 (negative), over M.
    hinge: mean of the non-zero [d - m_p]_+ of positives + mean of the non-zero [m_n - d]_+ of negatives.
    """
    if form == "hinge":
        near = [hinge(pairs.d(i, pairs.positives(i)) - pos_margin) for i in pairs.rows]
        far = [hinge(neg_margin - pairs.d(i, pairs.negatives(i))) for i in pairs.rows]
        return active_mean(pairs.zero(), near) + active_mean(pairs.zero(), far)
    if form not in ("cosine", "hadsell"):
        raise ValueError(f"unknown form {form!r}")
    total = pairs.zero()
    for i in pairs.rows:
        pos, neg = pairs.positives(i), pairs.negatives(i)
        if form == "cosine":
            total = total - pairs.s[i, pos].sum() + hinge(pairs.s[i, neg] - lam).sum()
        else:
            total = total + pairs.d2(i, pos).sum() + (hinge(neg_margin - pairs.d(i, neg)) ** 2).sum()
    return total / len(pairs.rows)


def mine_triplets(rule: str, d_ap: list[float], d_an: list[float], margin: float) -> list[tuple[int, int]]:
    """The (p, n) that a mining rule keeps for one anchor, as positions in the two lists; ties go to the first."""
    every = [(p, n) for p in range(len(d_ap)) for n in range(len(d_an))]
    if rule == "all":
        return every
    if rule == "hard":
        return [(d_ap.index(max(d_ap)), d_an.index(min(d_an)))]
    if rule == "facenet":
        return [(p, n) for p, n in every if d_ap[p] < d_an[n] < d_ap[p] + margin]
    if rule == "pml":
        return [(p, n) for p, n in every if 0 < d_an[n] - d_ap[p] <= margin]
    if rule == "semihard":
        kept = []
        for p, d_p in enumerate(d_ap):
            farther = [d_n for d_n in d_an if d_n > d_p]
            kept.append((p, d_an.index(min(farther) if farther else max(d_an))))
        return kept
    raise ValueError(f"unknown mining {rule!r}")


def triplet_distance(pairs: Pairs, i: int, j: list[int], distance: str) -> Tensor:
    """D: d, d^2, or -S."""
    if distance == "euclidean":
        return pairs.d(i, j)
    if distance == "sqeuclidean":
        return pairs.d2(i, j)
    if distance == "cosine":
        return -pairs.s[i, j]
    raise ValueError(f"unknown distance {distance!r}")


def triplet(
    pairs: Pairs, margin: float = 0.1, mining: str = "all", distance: str = "euclidean", reduction: str = "active"
) -> Tensor:
    """Sum of [D_ap - D_an + m]_+ over the mined triplets, over the number of active ones or of all mined ones.

    D is d, d^2 or -S. "semihard" mines exactly one triplet per positive pair and always averages over those pairs.
    """
    hinges: list[Tensor] = []
    for a in pairs.rows:
        pos, neg = pairs.positives(a), pairs.negatives(a)
        if not pos or not neg:
            continue
        d_ap, d_an = triplet_distance(pairs, a, pos, distance), triplet_distance(pairs, a, neg, distance)
        for p, n in mine_triplets(mining, d_ap.tolist(), d_an.tolist(), margin):
            hinges.append(hinge(d_ap[p] - d_an[n] + margin))
    if reduction == "active" and mining != "semihard":
        return active_mean(pairs.zero(), hinges)
    if reduction not in ("active", "all"):
        raise ValueError(f"unknown reduction {reduction!r}")
    return (pairs.zero() + sum(hinges)) / max(len(hinges), 1)


def margin(
    pairs: Pairs,
    alpha: float = 0.2,
    beta: float | Tensor = 1.2,
    positive_pairs: list[tuple[int, int]] | None = None,
    negative_pairs: list[tuple[int, int]] | None = None,
) -> Tensor:
    """Sum of [alpha + d - beta]_+ (positive pairs) and [alpha + beta - d]_+ (negative pairs), over the active ones.

    `beta` is a number or a (C,) tensor indexed by the class of the anchor i of a pair (i, j).
    Without lists, every positive and every negative pair is used.
    """
    if positive_pairs is None:
        positive_pairs = [(i, j) for i in pairs.rows for j in pairs.positives(i)]
    if negative_pairs is None:
        negative_pairs = [(i, j) for i in pairs.rows for j in pairs.negatives(i)]
    boundary = torch.as_tensor(beta, dtype=torch.float64)

    def beta_of(i: int) -> Tensor:
        return boundary[int(pairs.row_labels[i])] if boundary.ndim else boundary

    hinges = [hinge(alpha + pairs.d(i, j) - beta_of(i)) for i, j in positive_pairs]
    hinges += [hinge(alpha + beta_of(i) - pairs.d(i, j)) for i, j in negative_pairs]
    return active_mean(pairs.zero() + (boundary * 0.0).sum(), hinges)


def distance_weights(d: Tensor, dim: int, cutoff: float = 0.5, upper: float = 1.4) -> Tensor:
    """Probability of drawing each negative of one anchor, from its distances d: (N,) -> (N,).

    P ~ 1 / q(max(d, cutoff)) where d < upper, else 0, with the density of distances on the unit sphere
    log q(d) = (n - 2) log d + (n - 3) / 2 log(1 - d^2 / 4). All zeros when no negative is nearer than `upper`.
    """
    admissible = d < upper
    far_enough = d.double().clamp(min=cutoff)
    log_q = (dim - 2) * far_enough.log() + (dim - 3) / 2 * (1 - far_enough**2 / 4).clamp(min=1e-8).log()
    if not bool(admissible.any()):
        return torch.zeros_like(log_q)
    return torch.softmax(torch.where(admissible, -log_q, -math.inf), dim=0)


# ------------------------------------------------------------------------------------------------ lifted structure


def lifted(pairs: Pairs, margin: float = 1.0) -> Tensor:
    """1 / (2 |P|) sum over unordered positive pairs of [J_ij]_+^2 (Unbiased Evaluation, Eq. 2).

    J_ij = log( sum_{k in N_i} e^(m - d_ik) + sum_{l in N_j} e^(m - d_jl) ) + d_ij.
    Each pair is met as (i, j) and as (j, i), and both get half, so that W does not depend on the order of the rows.
    """
    need_same(pairs, "lifted")
    total, ordered_pairs = pairs.zero(), 0
    for i in pairs.rows:
        for j in pairs.positives(i):
            ordered_pairs += 1
            neg_i, neg_j = pairs.negatives(i), pairs.negatives(j)
            if neg_i or neg_j:
                repulsion = lse(torch.cat([margin - pairs.d(i, neg_i), margin - pairs.d(j, neg_j)]))
                total = total + hinge(repulsion + pairs.d(i, j)) ** 2 / 2
    unordered_pairs = ordered_pairs / 2
    return total / (2 * max(unordered_pairs, 1))


def lifted_generalized(pairs: Pairs, lam: float = 1.0) -> Tensor:
    """sum_i [ LSE_{P_i}(lam - S) + LSE_{N_i}(S) ]_+ (GPW Eq. 6), over rows that have both."""
    total = pairs.zero()
    for i in pairs.rows:
        pos, neg = pairs.positives(i), pairs.negatives(i)
        if pos and neg:
            total = total + hinge(lse(lam - pairs.s[i, pos]) + lse(pairs.s[i, neg]))
    return total


def lifted_star(pairs: Pairs, alpha: float = 2.0, beta: float = 50.0) -> Tensor:
    """1/M sum_i { 1/alpha LSE_{P_i}(-alpha S) + 1/beta LSE_{N_i}(beta S) } (GPW Eq. 16), over rows that have both."""
    total = pairs.zero()
    for i in pairs.rows:
        pos, neg = pairs.positives(i), pairs.negatives(i)
        if pos and neg:
            total = total + lse(-alpha * pairs.s[i, pos]) / alpha + lse(beta * pairs.s[i, neg]) / beta
    return total / len(pairs.rows)


# -------------------------------------------------------------------------------------------- N-pairs and angular


def need_same(pairs: Pairs, loss: str) -> None:
    if not pairs.same:
        raise ValueError(f"{loss} is defined on the pairs of one batch, not against separate references")


def anchors_and_positives(labels: Tensor) -> list[tuple[int, int]]:
    """(anchor, positive) rows: in each class the 1st and the 2nd, the 3rd and the 4th...; an odd one out is unused."""
    classes = labels.tolist()
    couples: list[tuple[int, int]] = []
    for label in sorted(set(classes)):
        members = [i for i, y in enumerate(classes) if y == label]
        couples += zip(members[0::2], members[1::2], strict=False)
    return couples


def npairs(pairs: Pairs, l2: float = 5e-4, symmetric: bool = False) -> Tensor:
    """Mean over anchors of the cross-entropy of softmax_j(a . p_j) + l2 (mean |a|^2 + mean |p|^2).

    The target is spread evenly over the references with the label of the anchor.
    Anchors without a positive or without a negative among the references are dropped.
    Symmetric: the mean of this and the same with anchors and positives swapped.
    """
    if not pairs.same:
        return npairs_between(pairs, list(pairs.rows), list(range(pairs.s.shape[1])), l2)
    couples = anchors_and_positives(pairs.row_labels)
    anchors, refs = [a for a, _ in couples], [p for _, p in couples]
    one_way = npairs_between(pairs, anchors, refs, l2)
    return (one_way + npairs_between(pairs, refs, anchors, l2)) / 2 if symmetric else one_way


def npairs_between(pairs: Pairs, anchors: list[int], refs: list[int], l2: float) -> Tensor:
    total, used = pairs.zero(), []
    for a in anchors:
        pos = [p for p in refs if int(pairs.col_labels[p]) == int(pairs.row_labels[a])]
        if 0 < len(pos) < len(refs):
            total = total + lse(pairs.s[a, refs]) - pairs.s[a, pos].mean()
            used.append(a)
    if not used:
        return total
    return total / len(used) + l2 * (pairs.row_sq[used].mean() + pairs.col_sq[refs].mean())


def angular(pairs: Pairs, angle: float = 45.0, l2: float = 0.0, symmetric: bool = False) -> Tensor:
    """Mean over (a, p) of log(1 + sum_n e^f) + l2 (mean |a|^2 + mean |p|^2), t = tan(angle).

    f = 4 t^2 (x_a + x_p) . x_n - 2 (1 + t^2) x_a . x_p; the n are the positives of couples with another label.
    Symmetric: the mean of this and the same with anchors and positives swapped.
    """
    need_same(pairs, "angular")
    couples = anchors_and_positives(pairs.row_labels)
    one_way = angular_of(pairs, couples, angle, l2)
    swapped = [(p, a) for a, p in couples]
    return (one_way + angular_of(pairs, swapped, angle, l2)) / 2 if symmetric else one_way


def angular_of(pairs: Pairs, couples: list[tuple[int, int]], angle: float, l2: float) -> Tensor:
    t2 = math.tan(math.radians(angle)) ** 2
    total, used = pairs.zero(), []
    for a, p in couples:
        neg = [n for _, n in couples if int(pairs.row_labels[n]) != int(pairs.row_labels[a])]
        if neg:
            f = 4 * t2 * (pairs.s[a, neg] + pairs.s[p, neg]) - 2 * (1 + t2) * pairs.s[a, p]
            total = total + lse_plus(f)
            used.append((a, p))
    if not used:
        return total
    norms = pairs.row_sq[[a for a, _ in used]].mean() + pairs.col_sq[[p for _, p in used]].mean()
    return total / len(used) + l2 * norms


def npairs_angular(
    x: Tensor, labels: Tensor, angle: float = 45.0, lam: float = 2.0, l2: float = 5e-4, symmetric: bool = False
) -> Tensor:
    """N-pairs on the raw embeddings + lam * angular on the unit embeddings. A function of x, not of one `Pairs`."""
    raw, unit = pairs_of(x, labels, normalize=False), pairs_of(x, labels, normalize=True)
    return npairs(raw, l2=l2, symmetric=symmetric) + lam * angular(unit, angle=angle, symmetric=symmetric)


# ---------------------------------------------------------------------------------------------------- ranked list


def ranked_list(
    pairs: Pairs, alpha: float = 1.2, margin: float = 0.4, temperature: float = 10.0, lam: float = 1.0
) -> Tensor:
    """Mean over queries that have both of  mean_{P*}(d - (alpha - m)) + lam sum_{N*} w (alpha - d).

    P* = {d > alpha - m}, N* = {d < alpha}, w = softmax_{N*}(T (alpha - d)) without gradient; an empty set gives 0.
    """
    total, queries = pairs.zero(), 0
    for i in pairs.rows:
        pos, neg = pairs.positives(i), pairs.negatives(i)
        if not pos or not neg:
            continue
        queries += 1
        d_pos, d_neg = pairs.d(i, pos), pairs.d(i, neg)
        near, far = d_neg[d_neg < alpha], d_pos[d_pos > alpha - margin]
        if len(far):
            total = total + (far - (alpha - margin)).mean()
        if len(near):
            weights = torch.softmax(temperature * (alpha - near.detach()), dim=0)
            total = total + lam * (weights * (alpha - near)).sum()
    return total / max(queries, 1)


# ------------------------------------------------------------------------------------------------ binomial family


def binomial(pairs: Pairs, alpha: float = 2.0, beta: float = 50.0, lam: float = 0.5, reduction: str = "sum") -> Tensor:
    """sum_i { mean_{P_i} log(1 + e^(alpha (lam - S))) + mean_{N_i} log(1 + e^(beta (S - lam))) } (GPW Eq. 9).

    An empty set gives 0 for its side. "mean" divides by M.
    """
    total = pairs.zero()
    for i in pairs.rows:
        pos, neg = pairs.positives(i), pairs.negatives(i)
        if pos:
            total = total + softplus(alpha * (lam - pairs.s[i, pos])).mean()
        if neg:
            total = total + softplus(beta * (pairs.s[i, neg] - lam)).mean()
    return over_rows(total, reduction, len(pairs.rows))


def over_rows(total: Tensor, reduction: str, rows: int) -> Tensor:
    if reduction not in ("sum", "mean"):
        raise ValueError(f"unknown reduction {reduction!r}")
    return total / max(rows, 1) if reduction == "mean" else total


def bin_lifted(
    pairs: Pairs, alpha: float = 2.0, beta: float = 50.0, lam: float = 0.5, binomial_norm: str = "sum"
) -> Tensor:
    """1/M sum_i of half of, on each side that is not empty, a binomial and a lifted part (GPW supplement, Eq. 10).

    Negatives: 1/beta sum_N log(1 + e^(beta (S - lam))) + 1/beta LSE_N(beta S);
    positives: 1/alpha sum_P log(1 + e^(alpha (lam - S))) + 1/alpha LSE_P(-alpha S).
    With binomial_norm="mean" the two sums are means over N_i and P_i.
    """
    if binomial_norm not in ("sum", "mean"):
        raise ValueError(f"unknown binomial_norm {binomial_norm!r}")
    total = pairs.zero()
    for i in pairs.rows:
        pos, neg = pairs.positives(i), pairs.negatives(i)
        if neg:
            s = pairs.s[i, neg]
            divisor = len(neg) if binomial_norm == "mean" else 1
            total = total + 0.5 / beta * (softplus(beta * (s - lam)).sum() / divisor + lse(beta * s))
        if pos:
            s = pairs.s[i, pos]
            divisor = len(pos) if binomial_norm == "mean" else 1
            total = total + 0.5 / alpha * (softplus(alpha * (lam - s)).sum() / divisor + lse(-alpha * s))
    return total / len(pairs.rows)


# ------------------------------------------------------------------------------------- histogram, NCA, FastAP, MS


def histogram(pairs: Pairs, nodes: int = 101) -> Tensor:
    """sum_r h-_r sum_{q <= r} h+_q, with the normalised soft histograms of all positive and all negative S.

    Each unordered pair of a batch is counted as (i, j) and as (j, i), which leaves the normalised histograms
    as they are and shares the weight of the pair evenly between S_ij and S_ji.
    """
    s_pos = torch.cat([pairs.s[i, pairs.positives(i)] for i in pairs.rows])
    s_neg = torch.cat([pairs.s[i, pairs.negatives(i)] for i in pairs.rows])
    if not len(s_pos) or not len(s_neg):
        return pairs.zero()
    h_pos = soft_histogram(s_pos, -1.0, 1.0, nodes, node_side="right") / len(s_pos)  # (nodes,)
    h_neg = soft_histogram(s_neg, -1.0, 1.0, nodes, node_side="right") / len(s_neg)  # (nodes,)
    return (h_neg * h_pos.cumsum(0)).sum()


def nca(pairs: Pairs, scale: float = 1.0, reduction: str = "sum") -> Tensor:
    """-sum_i log( sum_{P_i} e^(scale S) / sum_{k != i} e^(scale S) ) over anchors that have a positive; or the mean."""
    total, anchors = pairs.zero(), 0
    for i in pairs.rows:
        pos, every = pairs.positives(i), pairs.others(i)
        if pos:
            total = total - (lse(scale * pairs.s[i, pos]) - lse(scale * pairs.s[i, every]))
            anchors += 1
    return over_rows(total, reduction, anchors)


def ms_sets(s_pos: Tensor, s_neg: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Masks of P* = {S < max_N S + eps} and N* = {S > min_P S - eps} (GPW Eq. 11 and 12)."""
    return s_pos < s_neg.max() + eps, s_neg > s_pos.min() - eps


def multi_similarity(
    pairs: Pairs,
    alpha: float = 2.0,
    beta: float = 50.0,
    lam: float = 0.5,
    eps: float = 0.1,
    mine: bool = True,
    weight: bool = True,
) -> Tensor:
    """1/M sum_i { 1/alpha LSE+_{P*}(-alpha (S - lam)) + 1/beta LSE+_{N*}(beta (S - lam)) } (GPW Eq. 15).

    With weight=False: 1/M sum_i { mean_{P*}(1 - S) + mean_{N*}(S) }. With mine=False: P* = P_i and N* = N_i.
    Anchors for which either set is empty are skipped; the divisor stays M.
    """
    total = pairs.zero()
    for i in pairs.rows:
        pos, neg = pairs.positives(i), pairs.negatives(i)
        if not pos or not neg:
            continue
        s_pos, s_neg = pairs.s[i, pos], pairs.s[i, neg]
        if mine:
            keep_pos, keep_neg = ms_sets(s_pos.detach(), s_neg.detach(), eps)
            s_pos, s_neg = s_pos[keep_pos], s_neg[keep_neg]
        if not len(s_pos) or not len(s_neg):
            continue
        if weight:
            total = total + lse_plus(-alpha * (s_pos - lam)) / alpha + lse_plus(beta * (s_neg - lam)) / beta
        else:
            total = total + (1 - s_pos).mean() + s_neg.mean()
    return total / len(pairs.rows)


def fastap_of_row(z_pos: Tensor, z_neg: Tensor, bins: int) -> Tensor:
    """FastAP of one query: 1/N+ sum_l H+_l h+_l / H_l, from soft histograms of z with nodes 0, 4/bins, ..., 4."""
    h_pos = soft_histogram(z_pos, 0.0, 4.0, bins + 1, node_side="left")
    h_neg = soft_histogram(z_neg, 0.0, 4.0, bins + 1, node_side="left")
    cum_pos, cum_all = h_pos.cumsum(0), (h_pos + h_neg).cumsum(0)
    filled = cum_all > 0
    return (cum_pos[filled] * h_pos[filled] / cum_all[filled]).sum() / len(z_pos)


def fastap(pairs: Pairs, bins: int = 10) -> Tensor:
    """1 - mean of FastAP_i over queries that have a positive, with z = 2 - 2 S (FastAP, Eq. 14)."""
    scores = [
        fastap_of_row(2 - 2 * pairs.s[i, pairs.positives(i)], 2 - 2 * pairs.s[i, pairs.negatives(i)], bins)
        for i in pairs.rows
        if pairs.positives(i)
    ]
    return pairs.zero() + 1 - torch.stack(scores).mean() if scores else pairs.zero()


# ------------------------------------------------------------------------------------------------------------ SNR


def variance(v: Tensor) -> Tensor:
    """Mean squared deviation over the last axis."""
    return ((v - v.mean(-1, keepdim=True)) ** 2).mean(-1)


def snr(
    x: Tensor,
    labels: Tensor,
    refs: Tensor | None = None,
    ref_labels: Tensor | None = None,
    form: str = "contrastive",
    pos_margin: float = 0.0,
    neg_margin: float = 1.0,
    margin: float = 0.2,
    reg: float = 0.0,
    normalize: bool = False,
) -> Tensor:
    """d_ij = var(z_j - z_i) / max(var(z_i), 1e-8) over the D components of raw (or unit) embeddings, i the anchor.

    contrastive: mean of the non-zero [d - m_p]_+ + mean of the non-zero [m_n - d]_+;
    triplet: mean of the non-zero [d_ap - d_an + m]_+ over all triplets. Both + reg * mean_i |sum_d z_id|.
    A function of x, not of `Pairs`: the variances are not squared norms.
    """
    pairs = pairs_of(x, labels, refs, ref_labels, normalize=False)
    rows = x.double()  # (Q, D)
    cols = rows if refs is None else refs.double()  # (R, D)
    if normalize:
        rows, cols = (z / z.norm(dim=1, keepdim=True) for z in (rows, cols))

    def distances(i: int, js: list[int]) -> Tensor:
        return variance(cols[js] - rows[i]) / variance(rows[i]).clamp(min=1e-8)

    near, far, triplets = [], [], []
    for i in pairs.rows:
        d_pos, d_neg = distances(i, pairs.positives(i)), distances(i, pairs.negatives(i))
        near.append(hinge(d_pos - pos_margin))
        far.append(hinge(neg_margin - d_neg))
        triplets.append(hinge(d_pos[:, None] - d_neg[None, :] + margin))
    penalty = reg * rows.sum(dim=1).abs().mean()
    if form == "contrastive":
        return active_mean(pairs.zero(), near) + active_mean(pairs.zero(), far) + penalty
    if form == "triplet":
        return active_mean(pairs.zero(), triplets) + penalty
    raise ValueError(f"unknown form {form!r}")


# ----------------------------------------------------------------------------------------------- later pair losses


def supcon(pairs: Pairs, temperature: float = 0.1) -> Tensor:
    """Mean over anchors that have a positive of -mean_{P_i} log( e^(S_ip / T) / sum_{k != i} e^(S_ik / T) )."""
    total, anchors = pairs.zero(), 0
    for i in pairs.rows:
        pos, every = pairs.positives(i), pairs.others(i)
        if pos:
            total = total - (pairs.s[i, pos] / temperature - lse(pairs.s[i, every] / temperature)).mean()
            anchors += 1
    return total / max(anchors, 1)


def nt_xent(pairs: Pairs, temperature: float = 0.1) -> Tensor:
    """Mean over ordered positive pairs of -log( e^(S_ip / T) / (e^(S_ip / T) + sum_{N_i} e^(S_in / T)) )."""
    total, positive_pairs = pairs.zero(), 0
    for i in pairs.rows:
        neg = pairs.negatives(i)
        for p in pairs.positives(i):
            total = total - (pairs.s[i, p] / temperature - lse(pairs.s[i, [p, *neg]] / temperature))
            positive_pairs += 1
    return total / max(positive_pairs, 1)


def poincare(pairs: Pairs, i: int, j: Index) -> Tensor:
    """arcosh(1 + 2 |x - y|^2 / ((1 - |x|^2)(1 - |y|^2))) of points of the unit ball; derivative 0 at distance 0.

    The derivative by the fraction is 1 / sinh D, with 1e-4 in its place where it is less.
    """
    t = 2 * pairs.d2(i, j) / ((1 - pairs.row_sq[i]) * (1 - pairs.col_sq[j]))
    value = torch.acosh(1 + t.detach())
    small = t.detach() < 1e-6  # arcosh(1 + t) = sqrt(2 t) (1 - t / 12 + ...)
    value = torch.where(small, (2 * t.detach()).sqrt() * (1 - t.detach() / 12), value)
    slope = torch.where(value > 0, 1 / value.sinh().clamp(min=1e-4), 0.0)
    return value + slope * (t - t.detach())


def in_ball(x: Tensor, c: float = 0.1, clip: float = 2.3) -> Tensor:
    """Embeddings as points of the Poincare ball of curvature -c, scaled to radius 1."""
    rows = []
    for z in x:
        z = z * torch.clamp(clip / (z.norm() + 1e-5), max=1.0)
        n = z.norm().clamp(min=1e-12)
        rows.append(z / n * torch.clamp(torch.tanh(math.sqrt(c) * n), max=1 - 1e-3))
    return torch.stack(rows)


def hyperbolic_of_pairs(pairs: Pairs, c: float = 0.1, temperature: float = 0.2, negatives: str = "all") -> Tensor:
    """Each positive against all negatives, mean over pairs; or against those of two views, mean over classes.

    View k of a class is its k-th item.
    """
    total, positive_pairs, classes = pairs.zero(), 0, set()
    labels = pairs.col_labels.tolist()
    view = [labels[:j].count(label) for j, label in enumerate(labels)]

    def logits(i: int, j: list[int]) -> Tensor:
        return -poincare(pairs, i, j) / math.sqrt(c) / temperature

    for i in pairs.rows:
        neg = pairs.negatives(i)
        for p in pairs.positives(i) if neg else ():
            mine = neg if negatives == "all" else [n for n in neg if view[n] in (view[i], view[p])]
            total = total - (logits(i, [p]).sum() - lse(logits(i, [p, *mine])))
            positive_pairs += 1
            classes.add(labels[p])
    return total / max(positive_pairs if negatives == "all" else len(classes), 1)


def hyperbolic(
    x: Tensor, labels: Tensor, refs: Tensor | None = None, ref_labels: Tensor | None = None, c: float = 0.1,
    clip: float = 2.3, temperature: float = 0.2, negatives: str = "all",
) -> Tensor:  # fmt: skip
    """`hyperbolic_of_pairs` of raw embeddings."""
    others = None if refs is None else in_ball(refs, c, clip)
    pairs = pairs_of(in_ball(x, c, clip), labels, others, ref_labels, normalize=False)
    return hyperbolic_of_pairs(pairs, c, temperature, negatives)


def circle(pairs: Pairs, scale: float = 80.0, margin: float = 0.4) -> Tensor:
    """Mean over anchors that have both of log(1 + e^(LSE_N(g a_n (S - m)) + LSE_P(-g a_p (S - 1 + m)))).

    a_p = [1 + m - S]_+ and a_n = [S + m]_+ carry no gradient.
    """
    total, anchors = pairs.zero(), 0
    for i in pairs.rows:
        pos, neg = pairs.positives(i), pairs.negatives(i)
        if pos and neg:
            s_pos, s_neg = pairs.s[i, pos], pairs.s[i, neg]
            a_pos, a_neg = hinge(1 + margin - s_pos).detach(), hinge(s_neg + margin).detach()
            push = lse(scale * a_neg * (s_neg - margin))
            pull = lse(-scale * a_pos * (s_pos - (1 - margin)))
            total = total + softplus(push + pull)
            anchors += 1
    return total / max(anchors, 1)


def smooth_ap(pairs: Pairs, temperature: float = 0.01, count_query: bool = False) -> Tensor:
    """1 - mean of AP_i over anchors that have a positive; with `count_query` the anchor is one of its positives too.

    AP_i = mean over p in P_i of (1 + sum_{k in P_i, k != p} g(k, p)) / (1 + sum_{k != i, k != p} g(k, p)),
    g(k, p) = sigmoid((S_ik - S_ip) / T).
    """
    scores: list[Tensor] = []
    for i in pairs.rows:
        pos, every = pairs.positives(i), pairs.others(i)
        if not pos:
            continue
        itself = [i] if count_query and pairs.same else []
        pos, every = [*pos, *itself], [*every, *itself]
        precisions = []
        for p in pos:
            ahead_pos = torch.sigmoid((pairs.s[i, [k for k in pos if k != p]] - pairs.s[i, p]) / temperature)
            ahead_all = torch.sigmoid((pairs.s[i, [k for k in every if k != p]] - pairs.s[i, p]) / temperature)
            precisions.append((1 + ahead_pos.sum()) / (1 + ahead_all.sum()))
        scores.append(torch.stack(precisions).mean())
    return pairs.zero() + 1 - torch.stack(scores).mean() if scores else pairs.zero()


# ------------------------------------------------------------------------------------ ranks, bounds and thresholds


def recall_at_k(
    pairs: Pairs,
    ks: tuple[int, ...] = (1, 2, 4, 8, 16),
    tau1: float = 0.01,
    tau2: float = 1.0,
    count_query: bool = False,
) -> Tensor:
    """Mean over queries that have a positive of 1 - mean_k min(sum_p h_kp, k) / min(k, |P_i|).

    h_kp = sigmoid((k - r_p) / tau2), r_p = 1 + sum_{z != p} sigmoid((S_iz - S_ip) / tau1); with `count_query`, z = i
    too.
    """
    total, queries = pairs.zero(), 0
    for i in pairs.rows:
        pos = pairs.positives(i)
        ranked = [*pairs.others(i), *([i] if count_query and pairs.same else [])]
        if not pos:
            continue
        queries += 1
        ranks = [
            1 + torch.sigmoid((pairs.s[i, [z for z in ranked if z != p]] - pairs.s[i, p]) / tau1).sum() for p in pos
        ]
        for k in ks:
            found = torch.sigmoid((k - torch.stack(ranks)) / tau2).sum()
            total = total + (1 - torch.minimum(found, pairs.zero() + k) / min(k, len(pos))) / len(ks)
    return total / max(queries, 1)


def bound_above(d: Tensor, tau: float, rho: float, delta: float, start: float, offset: float | None) -> Tensor:
    """h-(d) of SupAP; continuous at delta without an offset."""
    step = torch.sigmoid(d / tau)
    reached = start + 1 / (1 + math.exp(-delta / tau)) if offset is None else offset
    return torch.where(d <= 0, step, torch.where(d <= delta, start + step, rho * (d - delta) + reached))


def sup_ap(
    pairs: Pairs,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
    start: float = 0.5,
    offset: float | None = None,
    count_query: bool = False,
) -> Tensor:
    """1 - mean of AP_i over queries that have a positive; AP_i = mean over p of A_p / (A_p + sum_j h-(S_ij - S_ip)).

    A_p = number of positives k with S_ik >= S_ip, p among them; with `count_query` the query is a positive too.
    """
    scores = []
    for i in pairs.rows:
        pos, neg = pairs.positives(i), pairs.negatives(i)
        if not pos:
            continue
        pos = [*pos, *([i] if count_query and pairs.same else [])]
        precisions = []
        for p in pos:
            among = (pairs.s[i, pos] >= pairs.s[i, p]).sum()
            above = bound_above(pairs.s[i, neg] - pairs.s[i, p], tau, rho, delta, start, offset).sum()
            precisions.append(among / (among + above))
        scores.append(torch.stack(precisions).mean())
    return pairs.zero() + 1 - torch.stack(scores).mean() if scores else pairs.zero()


def beyond_margins(pairs: Pairs, pos_margin: float, neg_margin: float) -> tuple[Tensor, Tensor]:
    """Mean over the positives with S < m+ of m+ - S, and mean over the negatives with S > m- of S - m-."""
    low = [hinge(pos_margin - pairs.s[i, pairs.positives(i)]) for i in pairs.rows]
    high = [hinge(pairs.s[i, pairs.negatives(i)] - neg_margin) for i in pairs.rows]
    return active_mean(pairs.zero(), low), active_mean(pairs.zero(), high)


def roadmap(
    pairs: Pairs, pos_margin: float = 0.9, neg_margin: float = 0.6, calibration: float = 1.0, **bound: Any
) -> Tensor:
    """SupAP + calibration (the mean of low positives + the mean of high negatives)."""
    low, high = beyond_margins(pairs, pos_margin, neg_margin)
    return sup_ap(pairs, **bound) + calibration * (low + high)


def tcm(
    pairs: Pairs,
    base: str = "multi_similarity",
    pos_margin: float = 0.9,
    neg_margin: float = 0.5,
    base_params: dict[str, Any] | None = None,
    pos_weight: float = 1.0,
    neg_weight: float = 1.0,
) -> Tensor:
    """The base + pos_weight times the mean of low positives + neg_weight times the mean of high negatives."""
    low, high = beyond_margins(pairs, pos_margin, neg_margin)
    return REFERENCE[base](pairs, **(base_params or {})) + pos_weight * low + neg_weight * high


# ------------------------------------------------------------------------------------ sigmoid, easy positives, DCL


def sigmoid(pairs: Pairs, t: float = 10.0, b: float = -10.0) -> Tensor:
    """-1/M sum_i { sum_{P_i} log sigmoid(t S + b) + sum_{N_i} log sigmoid(-(t S + b)) }."""
    total = pairs.zero()
    for i in pairs.rows:
        total = total + softplus(-(t * pairs.s[i, pairs.positives(i)] + b)).sum()
        total = total + softplus(t * pairs.s[i, pairs.negatives(i)] + b).sum()
    return total / len(pairs.rows)


def largest(s: Tensor) -> Tensor:
    """The largest entry, -inf of none; equal ones share its derivative."""
    return s.amax() if len(s) else torch.tensor(-math.inf, dtype=s.dtype)


def easy_and_hard(pairs: Pairs, i: int, semihard: bool, least: float | None) -> tuple[Tensor, Tensor]:
    """The largest S of a positive, and of a negative; with `semihard` of a negative that is not above it.

    With `least`, positives above 0.9999 do not count, and whatever is not above `least` is -inf.
    """
    s_pos, s_neg = pairs.s[i, pairs.positives(i)], pairs.s[i, pairs.negatives(i)]
    if least is not None:
        s_pos = s_pos[s_pos <= 0.9999]
    p = largest(s_pos)
    n = largest(s_neg[s_neg <= p] if semihard else s_neg)
    floor = -math.inf if least is None else least
    return tuple(s if s > floor else torch.tensor(-math.inf, dtype=s.dtype) for s in (p, n))  # type: ignore[return-value]


def epshn(pairs: Pairs, temperature: float = 0.1, mining: str = "semihard", released: bool = False) -> Tensor:
    """Mean over the queries that have both of log(1 + e^((s_n - s_p) / T))."""
    total, used = pairs.zero(), 0
    for i in pairs.rows:
        p, n = easy_and_hard(pairs, i, mining == "semihard", 0.0 if released else None)
        if p > -math.inf and n > -math.inf:
            total, used = total + softplus((n - p) / temperature), used + 1
    return total / max(used, 1)


def sct(
    pairs: Pairs, lam: float = 1.0, threshold: float = 0.8, temperature: float = 0.1, released: bool = False
) -> Tensor:
    """Mean over the queries that have both of lam s_n if s_n > s_p or s_n > threshold, else log(1 + e^(...))."""
    total, used = pairs.zero(), 0
    for i in pairs.rows:
        p, n = easy_and_hard(pairs, i, semihard=False, least=-1.0 if released else None)
        if p == -math.inf or n == -math.inf:
            continue
        used += 1
        if n > p or n > threshold:
            total = total + lam * n
        elif not (released and n == p):
            total = total + softplus((n - p) / temperature)
    return total / max(used, 1)


def dcl(pairs: Pairs, temperature: float = 0.1) -> Tensor:
    """Mean over ordered positive pairs of -S_ip / T + LSE_{N_i}(S / T), where there are negatives."""
    total, positive_pairs = pairs.zero(), 0
    for i in pairs.rows:
        neg = pairs.negatives(i)
        for p in pairs.positives(i) if neg else []:
            total = total - pairs.s[i, p] / temperature + lse(pairs.s[i, neg] / temperature)
            positive_pairs += 1
    return total / max(positive_pairs, 1)


def tuplet_margin(pairs: Pairs, scale: float = 64.0, angle: float = 5.73) -> Tensor:
    """Mean over ordered positive pairs of log(1 + sum_{N_i} e^(scale (S_in - cos(theta_ip - angle)))).

    cos(theta - a) = S cos a + sin(theta) sin a; the derivative of sin(theta) is -S / max(sin(theta), 1e-3), and 0 at 0.
    """
    turn, total, positive_pairs = math.radians(angle), pairs.zero(), 0
    for i in pairs.rows:
        neg = pairs.negatives(i)
        for p in pairs.positives(i) if neg else []:
            cos = pairs.s[i, p]
            sin = (1 - cos.detach() ** 2).clamp(min=0).sqrt()
            sin = torch.where(sin**2 < 64 * torch.finfo(torch.float64).eps, 0.0, sin)
            slope = -cos.detach() / sin.clamp(min=1e-3) * sin.sign()
            turned = cos * math.cos(turn) + (sin + slope * (cos - cos.detach())) * math.sin(turn)
            total = total + lse_plus(scale * (pairs.s[i, neg] - turned))
            positive_pairs += 1
    return total / max(positive_pairs, 1)


# ---------------------------------------------------------------------------------------------------------- prefixes


def matryoshka(
    x: Tensor,
    labels: Tensor,
    refs: Tensor | None = None,
    ref_labels: Tensor | None = None,
    base: str = "multi_similarity",
    dims: tuple[int, ...] = (8,),
    base_params: dict[str, Any] | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Sum or mean over d of the base on the first d dims, normalised again if the base compares unit vectors."""
    total = (x * 0.0).sum()
    for d in dims:
        cut = None if refs is None else refs[:, :d]
        pairs = pairs_of(x[:, :d], labels, cut, ref_labels, normalize=NORMALIZE[base])
        total = total + REFERENCE[base](pairs, **(base_params or {}))
    return total / len(dims) if reduction == "mean" else total


# ------------------------------------------------------------------------------------------------------- registry

REFERENCE: dict[str, Callable[..., Tensor]] = {
    "contrastive": contrastive,
    "triplet": triplet,
    "margin": margin,
    "lifted": lifted,
    "lifted_generalized": lifted_generalized,
    "lifted_star": lifted_star,
    "npairs": npairs,
    "angular": angular,
    "ranked_list": ranked_list,
    "binomial": binomial,
    "bin_lifted": bin_lifted,
    "histogram": histogram,
    "nca": nca,
    "multi_similarity": multi_similarity,
    "fastap": fastap,
    "supcon": supcon,
    "nt_xent": nt_xent,
    "circle": circle,
    "smooth_ap": smooth_ap,
    "recall_at_k": recall_at_k,
    "sup_ap": sup_ap,
    "roadmap": roadmap,
    "tcm": tcm,
    "sigmoid": sigmoid,
    "epshn": epshn,
    "sct": sct,
    "dcl": dcl,
    "sincere": nt_xent,
    "tuplet_margin": tuplet_margin,
}

REFERENCE_OF_X: dict[str, Callable[..., Tensor]] = {
    "npairs_angular": npairs_angular,
    "snr": snr,
    "matryoshka": matryoshka,
    "hyperbolic": hyperbolic,
}

RAW = ("lifted", "npairs", "npairs_angular", "snr", "hyperbolic")
NORMALIZE: dict[str, bool] = {name: name not in RAW for name in (*REFERENCE, *REFERENCE_OF_X)}

SAME_ONLY = ("lifted", "angular", "npairs_angular")  # undefined against separate references


# ------------------------------------------------------------------------------------------------------ batch zoo


def shuffled_labels(sizes: list[int], generator: torch.Generator) -> Tensor:
    """Labels 0, 1, ... with the given class sizes, in random order."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return labels[torch.randperm(len(labels), generator=generator)]


def batches(seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """Small float64 batches (x, labels), D = 8, ordinary and degenerate."""
    generator = torch.Generator().manual_seed(seed)

    def gauss(rows: int) -> Tensor:
        return torch.randn(rows, 8, generator=generator, dtype=torch.float64)

    labels = shuffled_labels([4] * 6, generator)
    x = gauss(24) + 0.7 * gauss(6)[labels]  # classes overlap: every loss has both satisfied and violated pairs
    unequal = shuffled_labels([1, 2, 3, 5, 7], generator)
    few = shuffled_labels([4, 4, 4], generator)
    twins, twin_labels = gauss(12), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 0])
    twins = twins[[0, 0, 0, 3, 3, 5, 3, 7, 8, 9, 10, 0]]  # 0 four times in its class, 3 in two classes
    point = gauss(1)
    return {
        "random": (x, labels),
        "unequal": (gauss(18), unequal),
        "duplicates": (twins, twin_labels),
        "two_same": (gauss(2), torch.tensor([3, 3])),
        "two_different": (gauss(2), torch.tensor([1, 0])),
        "three": (gauss(3), torch.tensor([0, 1, 0])),
        "one_class": (gauss(7), torch.full((7,), 2)),
        "all_distinct": (gauss(9), torch.randperm(9, generator=generator)),
        "separated": (torch.eye(8, dtype=torch.float64)[few] + 0.01 * gauss(12), few),
        "collapsed": (point + 1e-3 * gauss(12), few),
        "collapsed_exact": (point.repeat(12, 1), few),
        "large_norms": (100 * x, labels),
    }


def reference_batches(seed: int = 0) -> dict[str, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The zoo against separate references, as (x, labels, refs, ref_labels), one reference fewer than rows.

    References are another draw, except where the point of the batch is that vectors coincide.
    """
    zoo, other = batches(seed), batches(seed + 1)
    made = {name: (x, y, other[name][0][1:], other[name][1][1:]) for name, (x, y) in zoo.items()}
    for name in ("duplicates", "collapsed_exact"):
        x, y = zoo[name]
        made[name] = (x, y, x[1:].clone(), y[1:].clone())
    x, y = zoo["random"]
    made["itself"] = (x, y, x.clone(), y.clone())  # (i, i) is now an ordinary positive pair
    made["one_reference"] = (x, y, x[:1] + 0.1, y[:1].clone())
    made["unseen_classes"] = (x, y, other["random"][0][1:], other["random"][1][1:] + 3)  # half the rows lack positives
    return made
