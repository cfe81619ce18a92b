"""Miners keep exactly the pairs that their rule names, and compose with every pair loss.

Legend: Q rows, R columns, both in the caller's order; B rows of a block, P positives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import pair_loss
from reference import NORMALIZE, REFERENCE, Pairs, batches, ms_sets, pairs_of, reference_batches
from torch import Tensor

from nearfield import losses
from nearfield.errors import InputError
from nearfield.pairs import Block, Miner, pair_weights
from nearfield.pairs.mining import MINERS, DistanceWeightedMiner, HardMiner, MultiSimilarityMiner, SemiHardMiner, keep

ZOO, REFERENCE_ZOO = batches(), reference_batches()


class Spy:
    """A miner that records its input and what `inner` returned for it."""

    def __init__(self, inner: Miner = lambda block: block) -> None:
        self.inner = inner
        self.seen: list[tuple[Block, Block]] = []

    def __call__(self, block: Block) -> Block:
        self.seen.append((block, self.inner(block)))
        return self.seen[-1][1]


def masks(block: Block, columns: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Positives and negatives of a block, (Q, R) each, in the caller's order."""
    pos = torch.zeros(rows, len(columns) + 1, dtype=torch.bool)
    pos[block.rows[:, None], block.pos_index] = block.pos_mask
    neg = torch.zeros(rows, len(columns), dtype=torch.bool)
    neg[block.rows[:, None], columns] = block.neg_mask[:, :-1]
    in_order = torch.zeros_like(neg)
    in_order[:, columns] = pos[:, :-1]
    return in_order, neg


def mined(miner: Miner, distance: str, *batch: Tensor) -> tuple[Tensor, Tensor]:
    """The positives and negatives of the batch that the miner keeps, (Q, R) each."""
    spy = Spy(miner)
    losses.create("triplet", distance=distance, miner=spy)(*batch)
    ((_, block),) = spy.seen
    assert torch.equal(block.num_pos, block.pos_mask.sum(1).to(block.num_pos))
    assert torch.equal(block.num_neg, block.neg_mask.sum(1).to(block.num_neg))
    columns = (batch[1] if len(batch) == 2 else batch[3]).sort(stable=True).indices
    return masks(block, columns, len(batch[0]))


Rule = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def by_rule(rule: Rule, distance: str, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """The same by a loop over rows: `rule` is given the distances (or negated similarities) of one row."""
    measures: dict[str, Callable[[int, list[int]], Tensor]] = {
        "euclidean": pairs.d,
        "sqeuclidean": pairs.d2,
        "cosine": lambda i, js: -pairs.s[i, js],
    }
    measure = measures[distance]
    found = torch.zeros(2, *pairs.s.shape, dtype=torch.bool)
    for i in pairs.rows:
        columns = pairs.positives(i), pairs.negatives(i)
        kept = rule(measure(i, columns[0]).detach(), measure(i, columns[1]).detach())
        for side in (0, 1):
            found[side, i, [j for j, k in zip(columns[side], kept[side].tolist(), strict=True) if k]] = True
    return found[0], found[1]


def ms_rule(eps: float) -> Rule:
    def rule(d_pos: Tensor, d_neg: Tensor) -> tuple[Tensor, Tensor]:
        if not len(d_pos) or not len(d_neg):
            return torch.zeros_like(d_pos), torch.zeros_like(d_neg)
        return ms_sets(-d_pos, -d_neg, eps)

    return rule


def hard_rule(d_pos: Tensor, d_neg: Tensor) -> tuple[Tensor, Tensor]:
    pos, neg = torch.zeros_like(d_pos), torch.zeros_like(d_neg)
    if len(pos):
        pos[d_pos.argmax()] = 1
    if len(neg):
        neg[d_neg.argmin()] = 1
    return pos, neg


def semihard_rule(margin: float) -> Rule:
    def rule(d_pos: Tensor, d_neg: Tensor) -> tuple[Tensor, Tensor]:
        kept = [any(p < n < p + margin for p in d_pos) for n in d_neg]
        return torch.ones_like(d_pos), torch.tensor(kept, dtype=d_neg.dtype)

    return rule


RULES: dict[str, tuple[Miner, Rule]] = {
    "multi_similarity": (MultiSimilarityMiner(), ms_rule(0.1)),
    "multi_similarity, apart": (MultiSimilarityMiner(eps=-0.3), ms_rule(-0.3)),
    "hard": (HardMiner(), hard_rule),
    "semihard": (SemiHardMiner(), semihard_rule(0.2)),
    "semihard, wide": (SemiHardMiner(margin=0.7), semihard_rule(0.7)),
}
WITHOUT_TIES = [name for name in ZOO if name not in ("duplicates", "collapsed_exact")]


@pytest.mark.parametrize("distance", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("batch", WITHOUT_TIES)
@pytest.mark.parametrize("title", RULES)
def test_keeps_what_the_rule_says(title: str, batch: str, distance: str) -> None:
    miner, rule = RULES[title]
    expected = by_rule(rule, distance, pairs_of(*ZOO[batch]))
    for found, wanted in zip(mined(miner, distance, *ZOO[batch]), expected, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("title", RULES)
@pytest.mark.parametrize("batch", ["unequal", "unseen_classes", "itself", "one_reference"])
def test_keeps_what_the_rule_says_of_references(batch: str, title: str) -> None:
    miner, rule = RULES[title]
    expected = by_rule(rule, "cosine", pairs_of(*REFERENCE_ZOO[batch]))
    for found, wanted in zip(mined(miner, "cosine", *REFERENCE_ZOO[batch]), expected, strict=True):
        assert torch.equal(found, wanted)


EVERY_MINER: dict[str, Miner] = {
    **{title: miner for title, (miner, _) in RULES.items()},
    "distance weighted": DistanceWeightedMiner(),
}


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@pytest.mark.parametrize("miner", EVERY_MINER.values(), ids=list(EVERY_MINER))
def test_never_adds_a_pair(miner: Miner, distance: str) -> None:
    for x, labels in ZOO.values():
        pos, neg = mined(miner, distance, x, labels)
        equal = labels[:, None] == labels
        assert not bool((pos & ~equal).any())
        assert not bool(pos.diagonal().any())
        assert not bool((neg & equal).any())


def test_hard_keeps_one_of_equals() -> None:
    for batch in ("duplicates", "collapsed_exact"):
        x, labels = ZOO[batch]
        pos, neg = mined(HardMiner(), "euclidean", x, labels)
        assert bool((pos.sum(1) == 1).all())
        assert bool((neg.sum(1) == 1).all())
        pairs = pairs_of(x, labels)
        for i in pairs.rows:
            farthest, nearest = pairs.d(i, pairs.positives(i)).max(), pairs.d(i, pairs.negatives(i)).min()
            torch.testing.assert_close(pairs.d(i, int(pos[i].nonzero())), farthest, atol=1e-12, rtol=0)
            torch.testing.assert_close(pairs.d(i, int(neg[i].nonzero())), nearest, atol=1e-12, rtol=0)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 3), min_size=2, max_size=16), st.floats(-0.5, 0.5))
def test_multi_similarity_mines_both_sides_or_neither(seed: int, labels: list[int], eps: float) -> None:
    x = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pos, neg = mined(MultiSimilarityMiner(eps), "cosine", x, torch.tensor(labels))
    assert torch.equal(pos.any(1), neg.any(1))


# ------------------------------------------------------------------------------------------------------------- keep


def one_block(distance: str = "euclidean") -> Block:
    spy = Spy()
    losses.create("triplet", distance=distance, miner=spy)(*ZOO["unequal"])
    return spy.seen[0][0]


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_keep_moves_the_others_infinitely_far_or_near(distance: str) -> None:
    block = one_block(distance)
    generator = torch.Generator().manual_seed(0)
    pos = torch.rand(block.pos.shape, generator=generator) < 0.5
    neg = torch.rand(block.neg.shape, generator=generator) < 0.5
    kept = keep(block, pos, neg)
    assert torch.equal(kept.pos_mask, block.pos_mask & pos)
    assert torch.equal(kept.neg_mask, block.neg_mask & neg)
    assert torch.equal(kept.pos[kept.pos_mask], block.pos[block.pos_mask & pos])
    assert torch.equal(kept.num_neg.long(), kept.neg_mask.sum(1))
    assert torch.equal(kept.num_pos.long(), kept.pos_mask.sum(1))


def test_keep_does_not_change_a_side_without_a_mask() -> None:
    block = one_block()
    nothing = torch.zeros_like(block.neg, dtype=torch.bool)
    kept = keep(block, neg=nothing)
    assert torch.equal(kept.pos, block.pos)
    assert not bool(kept.neg_mask.any())
    assert keep(block) == block


# ---------------------------------------------------------------------------------------------- distance weighting


def test_distance_weighted_keeps_near_negatives_one_for_each_positive_at_most() -> None:
    x, labels = ZOO["random"]
    pairs = pairs_of(x, labels)
    for distance in ("euclidean", "cosine"):
        pos, neg = mined(DistanceWeightedMiner(upper=1.2), distance, x, labels)
        for i in pairs.rows:
            near = [j for j in pairs.negatives(i) if pairs.d(i, j) < 1.2]
            assert set(neg[i].nonzero()[:, 0].tolist()) <= set(near)
            assert 1 <= int(neg[i].sum()) <= len(pairs.positives(i)) or not near
            assert int(pos[i].sum()) == len(pairs.positives(i))


@pytest.mark.parametrize("distance", ["cosine", "sqeuclidean"])
def test_distance_weighted_draws_the_same_whatever_the_loss_compares(distance: str) -> None:
    x, labels = ZOO["random"]
    _, expected = mined(DistanceWeightedMiner(), "euclidean", x, labels)
    assert torch.equal(mined(DistanceWeightedMiner(), distance, x, labels)[1], expected)


def test_distance_weighted_draws_follow_the_seed_and_the_turn_and_not_the_block_size() -> None:
    x, labels = ZOO["random"]

    def weights(seed: int, turns: int, block_rows: int | None) -> Tensor:
        loss = pair_loss("binomial", miner=DistanceWeightedMiner(seed=seed), block_rows=block_rows)
        for _ in range(turns):
            loss(x, labels)
        return pair_weights(loss, x, labels)

    first = weights(0, 1, None)
    for rows in (1, 5, 24):
        torch.testing.assert_close(weights(0, 1, rows), first, rtol=1e-12, atol=1e-14)
    assert not torch.equal(weights(1, 1, None), first)
    assert not torch.equal(weights(0, 2, None), first)


# ---------------------------------------------------------------------------------------- composition with losses


@dataclass
class Mined(Pairs):
    """Pairs of which a miner kept some."""

    pos: Tensor = None  # type: ignore[assignment]  # (Q, R)
    neg: Tensor = None  # type: ignore[assignment]

    def positives(self, i: int) -> list[int]:
        return [j for j in super().positives(i) if self.pos[i, j]]

    def negatives(self, i: int) -> list[int]:
        return [j for j in super().negatives(i) if self.neg[i, j]]

    def others(self, i: int) -> list[int]:
        return [j for j in super().others(i) if self.kept(i, j)]

    def kept(self, i: int, j: int) -> bool:
        return bool(self.pos[i, j] or self.neg[i, j])


OWN_PAIRS = ("npairs", "angular", "margin")  # they choose their own pairs
COMPOSED: list[tuple[str, dict[str, Any]]] = [
    *[(loss, {}) for loss in REFERENCE if loss not in (*OWN_PAIRS, "lifted", "tcm")],
    ("contrastive", {"form": "hinge"}),
    ("contrastive", {"form": "hadsell"}),
    ("triplet", {"mining": "semihard"}),
    ("multi_similarity", {"mine": False}),
]


@pytest.mark.parametrize("title", ["multi_similarity", "hard", "semihard"])
@pytest.mark.parametrize(("loss", "params"), COMPOSED, ids=str)
def test_loss_with_miner_equals_reference_on_mined_pairs(loss: str, params: dict[str, Any], title: str) -> None:
    if title == "semihard" and loss == "nt_xent":
        pytest.skip("whether positives that are left without negatives count in the mean is a matter of definition")
    check_composition(loss, params, title)


def test_lifted_with_a_miner_is_refused_or_right() -> None:
    """A pair counts from both of its ends, of which a miner may keep one."""
    with contextlib.suppress(InputError):
        check_composition("lifted", {}, "hard")


def test_the_miner_of_a_regularised_loss_is_its_bases() -> None:
    """The margins of TCM are over all pairs, whatever its base gets to see."""
    x, labels = ZOO["unequal"]
    miner, _ = RULES["hard"]
    margins = losses.create("tcm", base="contrastive")(x, labels) - losses.create("contrastive")(x, labels)
    expected = losses.create("multi_similarity", miner=miner)(x, labels) + margins
    torch.testing.assert_close(losses.create("tcm", miner=miner)(x, labels), expected, rtol=1e-9, atol=1e-12)


def check_composition(loss: str, params: dict[str, Any], title: str) -> None:
    miner, rule = RULES[title]
    x, labels = ZOO["unequal"]
    pos, neg = by_rule(rule, measured_by(loss, params), pairs_of(x, labels, normalize=NORMALIZE[loss]))
    x1, x2 = x.clone().requires_grad_(), x.clone().requires_grad_()
    value = losses.create(loss, **params, miner=miner)(x1, labels)
    value.backward()
    pairs = Mined(**vars(pairs_of(x2, labels, normalize=NORMALIZE[loss])), pos=pos, neg=neg)
    mine = {"mine": False} if loss == "multi_similarity" else {}  # the given miner replaces its own
    expected = REFERENCE[loss](pairs, **{**params, **mine})
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(x1.grad, x2.grad, rtol=1e-8, atol=1e-11)


def measured_by(loss: str, params: dict[str, Any]) -> str:
    if loss in ("lifted", "triplet", "ranked_list"):
        return "euclidean"
    return {"hinge": "euclidean", "hadsell": "sqeuclidean"}.get(params.get("form", ""), "cosine")


def test_hard_mining_by_miner_equals_hard_mining_by_the_loss() -> None:
    for x, labels in (ZOO[name] for name in WITHOUT_TIES):
        by_miner = pair_weights(pair_loss("triplet", miner=HardMiner()), x, labels)
        by_loss = pair_weights(pair_loss("triplet", mining="hard"), x, labels)
        torch.testing.assert_close(by_miner, by_loss, rtol=1e-12, atol=1e-14)


def test_semihard_miner_keeps_no_negative_between_the_bands() -> None:
    """Positives at 0.2 and 1.0, margin 0.1: negatives at 0.25 and 1.05 are semi-hard, those at 0.6 and 1.2 are not."""
    at = torch.tensor([0.0, 0.2, 1.0, 0.25, 0.6, 1.05, 1.2], dtype=torch.float64)[:, None]
    labels = torch.tensor([0, 0, 0, 1, 2, 3, 4])
    loss = pair_loss("contrastive", form="hinge", neg_margin=9.0, normalize=False, miner=SemiHardMiner(0.1))
    weights = pair_weights(loss, at[:1], labels[:1], at[1:], labels[1:])[0]
    assert (weights[2:] > 0).tolist() == [True, False, True, False]


def test_semihard_miner_is_facenet_when_there_is_one_positive() -> None:
    x = ZOO["random"][0]
    labels = torch.arange(12).repeat(2)
    by_miner = pair_weights(pair_loss("triplet", margin=0.2, miner=SemiHardMiner(0.2)), x, labels)
    by_loss = pair_weights(pair_loss("triplet", margin=0.2, mining="facenet"), x, labels)
    assert bool(by_loss.any())
    torch.testing.assert_close(by_miner, by_loss, rtol=1e-12, atol=1e-14)


def test_multi_similarity_mines_by_default_and_a_given_miner_replaces_its_own() -> None:
    x, labels = ZOO["random"]
    own = losses.create("multi_similarity", eps=0.2)
    by_hand = losses.create("multi_similarity", mine=False, miner=MultiSimilarityMiner(0.2))
    replaced = losses.create("multi_similarity", eps=0.2, miner=HardMiner())
    hard = losses.create("multi_similarity", mine=False, miner=HardMiner())
    assert torch.equal(own(x, labels), by_hand(x, labels))
    assert torch.equal(replaced(x, labels), hard(x, labels))
    assert not torch.equal(own(x, labels), hard(x, labels))


@pytest.mark.parametrize("name", MINERS)
def test_a_miner_by_name_is_the_published_one(name: str) -> None:
    x, labels = ZOO["random"]
    by_name = losses.create("binomial", miner=name)
    by_hand = losses.create("binomial", miner=MINERS[name]())
    assert torch.equal(by_name(x, labels), by_hand(x, labels))
    assert not torch.equal(by_name(x, labels), losses.create("binomial")(x, labels))


@pytest.mark.parametrize(
    ("given", "said"),
    [("semi_hard", "unknown miner 'semi_hard'.*did you mean 'semihard'"), (3, "miner must be callable; got 3")],
)
def test_an_unknown_miner_is_refused_and_the_nearest_named(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        losses.create("binomial", miner=given)


def test_any_function_of_a_block_is_a_miner() -> None:
    """Only negatives above a threshold, written by a caller."""
    x, labels = ZOO["random"]

    def similar(block: Block) -> Block:
        return keep(block, neg=block.neg > 0.2)

    weights = pair_weights(pair_loss("lifted_star", miner=similar), x, labels)
    pairs = pairs_of(x, labels)
    negative = labels[:, None] != labels
    some = (negative & (pairs.s > 0.2)).any(1, keepdim=True)
    assert torch.equal((weights != 0) & negative, negative & (pairs.s > 0.2) & some)


@pytest.mark.parametrize("loss", ["contrastive", "supcon", "histogram", "triplet", "margin"])
def test_everything_mined_away_is_zero_with_a_graph(loss: str) -> None:
    x, labels = ZOO["random"]
    x = x.clone().requires_grad_()

    def nothing(block: Block) -> Block:
        return keep(block, torch.zeros_like(block.pos_mask), torch.zeros_like(block.neg_mask))

    value = losses.create(loss, miner=nothing)(x, labels)
    value.backward()
    assert value.item() == 0
    assert x.grad is not None
    assert not bool(x.grad.any())
