"""Losses on clusterings of a batch: medoids that compete with the true classes, and class prototypes.

Axes: B queries of a block, P positives, N items of the batch (references), C classes, D dims. See `nearfield.pairs` for
what a block is.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError
from nearfield.losses.medoids import MedoidSearch
from nearfield.losses.parameters import Count, Params, Weight
from nearfield.losses.registry import Claim, Real, register
from nearfield.pairs import Block, EngineOptions, Pairing, PairLoss, Weighted, is_real, log_sum_exp, pick


@register(
    "structured_clustering",
    "Song et al., Deep Metric Learning via Facility Location, CVPR 2017; Unbiased Evaluation Eqs. 10-12",
    year=2017,
    claims=(Claim("cars196", "", 58.1, "quoted in Unbiased Evaluation"),),
    space={"gamma": Real(0.1, 10.0, log=True)},
    presets={"ronekko": {"squared": True}},
    by_cluster=True,
    recipe=OptimizerConfig(name="rmsprop", lr=1e-4, weight_decay=1e-5),
    compared=(
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            (
                "value 3e-14, gradient 6e-16; a class of two items has two medoids, of which MXNet takes the "
                "gradients of both; ronekko's Chainer code was not run"
            ),
            "c55749b",
        ),
    ),
)
class StructuredClustering(PairLoss):
    """Structured clustering: the true classes must score higher than any other set of as many medoids, by a margin.

        F(X, S) = -sum_i min_{j in S} d_ij,   F~ = sum over classes k of max_{j in k} F(X_k, {j})
        L = [ max_{|S| = C} { F(X, S) + gamma (1 - NMI(g(S), y)) } - F~ ]_+

    g(S) assigns every item to its nearest medoid, a medoid to itself; NMI = I / sqrt(H H'). The maximum is searched as
    published: greedily, one medoid at a time, then by at most `sweeps` of PAM, which try every member of a cluster as
    its medoid by -(sum of the cluster's distances) + gamma (1 - NMI), clusters in the order in which they were chosen.
    The search may miss the maximum, so the value is a lower bound of the equation's. Where L > 0, dL/dd is -1 between
    an item and its medoid in S and +1 between it and the medoid of its class, at most 2 M pairs; NMI is a constant. A
    class of one item adds 0 to F~. `MedoidSearch` documents how ties are broken. It needs all distances, O(M^2), and
    runs on the CPU in float64, a synchronisation with an accelerator; `last` counts the candidates for a medoid and
    those that were evaluated.
    DMLPlayground uses d, gamma = 1 and 5 sweeps, the defaults here; for a batch of one class its NMI is 0 and its loss
    gamma, here 1 and 0. ronekko's code uses d^2 (preset "ronekko") and visits the clusters in random order. "Unbiased
    Evaluation" decays a "gamma factor": in its code that is RMSprop's, not this one.
    """

    own_batch = True
    needs = "nothing"
    surveys = True
    reduction = "sum"

    def __init__(
        self,
        gamma: Weight = 1.0,
        squared: bool = False,
        sweeps: Annotated[int, Field(ge=0, le=1000)] = 5,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.gamma, self.sweeps = gamma, sweeps
        self.measure = "sqeuclidean" if squared else "euclidean"

    @staticmethod
    def check_together(params: Params) -> None:
        if params.get("miner") is not None:
            raise InputError("structured_clustering needs the distances of all pairs; remove miner.")

    def survey(self, block: Block) -> Tensor:
        """All distances of each row, and in the last column the first item of its class, (B, N + 1)."""
        d = block.neg.scatter(1, block.pos_index, block.pos).scatter_(1, block.order[:, None], 0.0)
        d[:, -1] = torch.cat([block.order[:, None], block.pos_index], 1).amin(1)
        return d

    def gather_survey(self, parts: list[Tensor]) -> Tensor:
        """Of each row: its medoid in S, the medoid of its class, and its share of the value, (N, 3)."""
        rows = torch.cat(parts).cpu().double().numpy()  # hundreds of small steps follow
        truth = np.unique(rows[:, -1], return_inverse=True)[1].ravel()
        search = MedoidSearch(rows[:, :-1], truth, self.gamma, float(torch.finfo(parts[0].dtype).eps))
        medoids, everyone = search.medoids(self.sweeps), search.everyone
        _, assigned = search.assign(medoids, everyone[: len(medoids)])
        found, true = medoids[assigned], search.true_medoids()
        margin = self.gamma * search.margin(assigned[None])[0]
        value = (search.d[everyone, true] - search.d[everyone, found]).sum() + margin
        if value <= 0:
            found, true = everyone, everyone  # a row with itself is not a pair: no gradient
        self.last |= {"candidates": search.candidates, "evaluated": search.evaluated}
        share = np.full(len(rows), np.maximum(value, 0) / len(rows))
        return torch.from_numpy(np.stack([found, true, share], 1)).to(parts[0])

    def weigh(self, block: Block) -> Weighted:
        found, true, share = block.survey[block.order].unbind(1)
        found, true = found.long()[:, None], true.long()[:, None]  # (B, 1)
        pos = (block.pos_index == true).to(share.dtype) - (block.pos_index == found).to(share.dtype)
        neg = torch.zeros_like(block.neg).scatter_(1, found, -1.0).mul_(is_real(block.neg))
        return Weighted(share, pos, neg)


@register(
    "prototypical",
    "Snell et al., Prototypical Networks for Few-shot Learning, NeurIPS 2017; Unbiased Evaluation Eq. 13",
    year=2017,
    presets={"unbiased_evaluation": {"support": 5}},
    by_cluster=True,
    sampler="episodic",
    recipe=OptimizerConfig(name="adam", lr=1e-4, eps=1e-7, weight_decay=1e-5),
    compared=(
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            "value 4e-16, gradient 9e-16",
            "c55749b",
        ),
    ),
)
class Prototypical(PairLoss):
    """Prototypical networks: classify each query by its distance to the mean of some items of every class.

        mu_k = mean of the support of class k,   L = mean over queries of -log softmax_k(-|q - mu_k|^2) at k = y_q

    A batch is one episode: in row order the first `support` items of a class (None: half of them, rounded down, at
    least 1) are its support and the others its queries. A class without further items has a prototype and no queries.
    Embeddings are not normalised.
    dL/d|q - mu_k|^2 = 1[k = y] - softmax_k, shared equally by the support items. Pair weights: each similarity of a
    query and a support item has its share of W_qk; |mu|^2 consists of similarities within a support, which have theirs;
    norms are constant as everywhere.
    DMLPlayground draws 12 classes of 5 support and 5 query images (preset "unbiased_evaluation" for the 5) and expands
    the square, which cancels for large norms. "Unbiased Evaluation" prints a distance where the code has its square.
    """

    normalized = False
    own_batch = True
    measure = "sqeuclidean"
    reduction = "usable"

    def __init__(self, support: Count | None = None, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.support = support

    def pairing(self, labels: Tensor) -> Pairing | None:
        """Rows of the queries, the first support row of each prototype, and which prototype each row supports."""
        _, classes, sizes = labels.unique(return_inverse=True, return_counts=True)
        order = classes.argsort(stable=True)
        first = sizes.cumsum(0) - sizes  # (C,) of each class in that order
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - first[classes[order]]  # (N,) within the class
        shots = (sizes // 2).clamp(min=1) if self.support is None else torch.full_like(sizes, self.support)
        queries = rank >= shots[classes]
        return Pairing(queries.nonzero()[:, 0], order[first], classes.masked_fill(queries, -1))

    def combine(self, x: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
        support, of = supports(pairing)
        shots = of.bincount()[:, None].to(x.device, x.dtype, non_blocking=True)
        of = of.to(x.device, non_blocking=True)
        total = x.new_zeros(len(pairing.columns), x.shape[1]).index_add(0, of, pick(x, support))
        return pick(x, pairing.rows), total / shots

    def unfold(self, weights: Tensor, pairing: Pairing, full: Tensor) -> Tensor:
        support, of = (each.to(full.device) for each in supports(pairing))
        shots = of.bincount()
        full[pairing.rows[:, None], support] = (weights / shots)[:, of]
        inside = (of[:, None] == of) & ~torch.eye(len(of), dtype=torch.bool, device=of.device)
        pull = -weights.sum(0) / (2 * shots.square())  # dL/d|mu|^2 = -sum_q W / 2, spread over the pairs of |mu|^2
        full[support[:, None], support] = inside * pull[of]
        return full

    def weigh(self, block: Block) -> Weighted:
        value, share = log_sum_exp(block.pos - block.neg, one=True)  # one positive: the query's prototype
        return Weighted(value, share.sum(1, keepdim=True), -share)


def supports(pairing: Pairing) -> tuple[Tensor, Tensor]:
    """Rows that support a prototype, and the prototype of each."""
    assert pairing.member is not None
    (support,) = (pairing.member >= 0).nonzero(as_tuple=True)
    return support, pairing.member[support]
