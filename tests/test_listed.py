"""Losses over listed pairs: what the engine computes by labels is the same as over the list of all pairs."""

from __future__ import annotations

import math

import pytest
import torch
from narrow import pair_loss
from reference import batches
from torch import Tensor
from torch.nn import functional as F

from nearfield import InputError, losses
from nearfield.losses.proxy_loss import within_batch
from nearfield.pairs import PairLoss
from nearfield.pairs.listed import Side, listed_loss

OTHER = {"dreml", "drml", "margin", "angular", "npairs", "npairs_angular"}  # draw, combine or pair rows up themselves


def elsewhere(name: str) -> bool:
    """Whether a method compares a batch with nothing but itself, is made of others, or has a measure of its own."""
    build = losses.method(name).build
    if not issubclass(build, PairLoss) or build.own_batch or build.weigh is PairLoss.weigh:
        return True
    return build.shows_self or build.row_norms or build.measure == "hyperbolic"


LISTED = [
    name
    for name in losses.names()
    if name not in OTHER and within_batch(losses.method(name).build) and not elsewhere(name)
]


def measured(loss: PairLoss, x: Tensor, refs: Tensor | None = None) -> Tensor:
    """The matrix of a loss's measure, by plain operations."""
    q = F.normalize(x, dim=1) if loss.normalize else x
    r = q if refs is None else F.normalize(refs, dim=1) if loss.normalize else refs
    gaps = q[:, None] - r
    if loss.measure == "snr":
        return gaps.var(2) / q.var(1, keepdim=True)
    if loss.measure == "dot":
        return q @ r.T
    square = gaps.square().sum(2)
    return square if loss.measure == "sqeuclidean" else (square + torch.eye(len(q), len(r)) * 1e-30).sqrt()


def over_list(loss: PairLoss, x: Tensor, labels: Tensor) -> Tensor:
    mat = measured(loss, x)
    same = labels[:, None] == labels
    pos, neg = (same & ~torch.eye(len(x), dtype=torch.bool)).nonzero(), (~same).nonzero()
    near, away = (Side(mat[index[:, 0], index[:, 1]], index[:, 0]) for index in (pos, neg))
    return listed_loss(loss, near, away, labels, -math.inf if loss.measure == "dot" else math.inf)


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("kind", ["random", "unequal", "all_distinct", "one_class"])
def test_all_pairs_listed_are_all_pairs(name: str, kind: str) -> None:
    loss = pair_loss(name)
    if loss.pairing(batches()[kind][1]) is not None or loss.miner is not None:
        loss = pair_loss(name, mine=False) if name == "multi_similarity" else pytest.skip("has rows of its own")
    x, labels = batches()[kind]
    found = []
    for call in (lambda x: loss(x, labels), lambda x: over_list(loss, x, labels)):
        given = x.clone().requires_grad_()
        value = call(given)
        found.append((value.detach(), torch.autograd.grad(value, given)[0]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=1e-10)


def test_a_pair_listed_twice_counts_twice() -> None:
    loss = pair_loss("nt_xent", temperature=0.5)
    pos, neg = torch.tensor([0.3, 0.1], dtype=torch.float64), torch.tensor([0.2, 0.2, -0.4], dtype=torch.float64)
    rows, labels = torch.tensor([0, 0]), torch.tensor([7])
    found = listed_loss(loss, Side(pos, rows), Side(neg, torch.zeros(3, dtype=torch.int64)), labels, -math.inf)
    push = (2 * (0.2 / 0.5 * torch.ones(())).exp() + torch.tensor(-0.8).exp()).double()
    expected = torch.stack([-(p / 0.5) + ((p / 0.5).exp() + push).log() for p in pos]).mean()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)


def test_nan_and_second_derivatives_are_not_hidden() -> None:
    loss, zeros = pair_loss("triplet"), torch.zeros(1, dtype=torch.int64)
    bad = listed_loss(loss, Side(torch.tensor([math.nan]), zeros), Side(torch.tensor([1.0]), zeros), zeros, math.inf)
    assert bad.isnan()
    x = torch.tensor([2.0], requires_grad=True)
    value = listed_loss(loss, Side(x, zeros), Side(torch.tensor([1.0]), zeros), zeros, math.inf)
    (slope,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError):
        slope.sum().backward()
    with pytest.raises(InputError, match="needs the whole batch"):
        listed_loss(pair_loss("lifted"), Side(x, zeros), Side(x, zeros), zeros, math.inf)
