"""The engine itself: what a loss sees, gradients from its weights, memory, precision and random draws.

Axes: M queries, N references, B queries of a block, P positives, D dims, K draws.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import grad_of, narrow, pair_loss
from reference import batches, distance_weights, pairs_of, reference_batches, shuffled_labels
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nearfield import losses
from nearfield.losses.pairwise import Margin
from nearfield.pairs import Block, PairLoss, Weighted, blocks, log_sum_exp, pair_weights
from nearfield.pairs.layout import layout_of_pattern
from nearfield.pairs.mining import DistanceWeightedMiner, draw_by_distance, uniforms
from nearfield.pairs.stream import Kept

ZOO, REFERENCE_ZOO = batches(), reference_batches()
NEEDED: dict[str, Any] = {"num_classes": 80, "dim": 8}


def make(name: str, **options: Any) -> nn.Module:
    needed = [key for key, p in losses.method(name).parameters.items() if p.default is p.empty]
    return losses.create(name, **{key: NEEDED[key] for key in needed}, **options)


class Spy:
    """A miner that keeps every pair and records the blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def __call__(self, block: Block) -> Block:
        self.blocks.append(block)
        return block


def blocks_of(name: str, *batch: Tensor, **options: Any) -> list[Block]:
    spy = Spy()
    losses.create(name, miner=spy, **options)(*batch)
    return spy.blocks


# ------------------------------------------------------------------------------------------------ a loss by a caller


class Probe(PairLoss):
    """Smooth in every pair and different for positives and negatives: sum of x^2 and of exp(-x / 2) (exp(x) for S)."""

    needs: ClassVar[Literal["both", "positive", "nothing"]] = "nothing"

    def __init__(self, measure: str, reduction: str = "batch", **engine: Any) -> None:
        super().__init__(**engine)
        self.measure = measure  # type: ignore[assignment]
        self.reduction = reduction  # type: ignore[assignment]
        self.rate = nn.Parameter(torch.tensor([1.0, 0.5], dtype=torch.float64))

    def pair_parameters(self) -> tuple[nn.Parameter, ...]:
        return (self.rate,)

    def weigh(self, block: Block) -> Weighted:
        a, b = self.rate.detach()
        b = -b if block.far > 0 else b
        x = torch.where(block.pos_mask, block.pos, 0.0)
        y = torch.where(block.neg_mask, (b * block.neg).exp(), 0.0)
        slope = torch.where(block.neg_mask, block.neg, 0.0) * y * (-1 if block.far > 0 else 1)
        tilt = torch.stack([x.square().sum(), slope.sum()])
        return Weighted(a * x.square().sum(1) + y.sum(1), 2 * a * x, b * y, block.num_pos, (tilt,))


def probe_by_autograd(
    measure: str, reduction: str, rate: Tensor, normalize: bool, x: Tensor, labels: Tensor, *refs: Tensor
) -> Tensor:
    """The same loss, dense."""
    rows, cols = x, refs[0] if refs else x
    if normalize:
        rows, cols = F.normalize(rows), F.normalize(cols)
    if measure == "snr":
        rows, cols = rows - rows.mean(1, keepdim=True), cols - cols.mean(1, keepdim=True)
    s, equal = rows @ cols.T, labels[:, None] == (refs[1] if refs else labels)
    squared = (rows[:, None] - cols).square().sum(-1)
    pos = equal if refs else equal & ~torch.eye(len(x), dtype=torch.bool)
    d = {
        "dot": s,
        "sqeuclidean": squared,
        "euclidean": torch.where(squared > 0, squared, 1.0).sqrt(),
        "snr": squared / rows.square().sum(1, keepdim=True),
    }[measure]
    total = rate[0] * d[pos].square().sum() + ((1 if measure == "dot" else -1) * rate[1] * d[~equal]).exp().sum()
    return total / {"sum": 1, "batch": len(x), "usable": len(x), "terms": max(int(pos.sum()), 1)}[reduction]


@pytest.mark.parametrize("reduction", ["sum", "batch", "usable", "terms"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("measure", ["dot", "sqeuclidean", "euclidean", "snr"])
@pytest.mark.parametrize("separate", [False, True])
def test_every_measure_has_its_chain_rule(measure: str, normalize: bool, reduction: str, separate: bool) -> None:
    given = REFERENCE_ZOO["unseen_classes"] if separate else ZOO["unequal"]
    results = []
    for by_engine in (True, False):
        inputs = [t.clone().requires_grad_() if t.is_floating_point() else t for t in given]
        probe = Probe(measure, reduction, normalize=normalize, block_rows=5)
        dense = (measure, reduction, probe.rate, normalize)
        value = probe(*inputs) if by_engine else probe_by_autograd(*dense, *inputs)
        value.backward()
        results.append([value.detach(), probe.rate.grad, *(t.grad for t in inputs if t.is_floating_point())])
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-10)


def test_penalties_and_parameters_add_up() -> None:
    """A loss may add a term of its own outside the pairs."""

    class Penalised(Probe):
        def penalty(self, queries: Tensor, references: Tensor) -> Tensor:
            return queries.square().mean() + references.abs().mean()

    x, labels = ZOO["random"]
    x = x.clone().requires_grad_()
    plain, whole = Probe("dot")(x, labels), Penalised("dot")(x, labels)
    torch.testing.assert_close(whole, plain + x.square().mean() + x.abs().mean())
    (grad,) = torch.autograd.grad(whole, x)
    (expected,) = torch.autograd.grad(Probe("dot")(x, labels) + x.square().mean() + x.abs().mean(), x)
    torch.testing.assert_close(grad, expected)


# ------------------------------------------------------------------------------------------------ what a loss sees


@pytest.mark.parametrize("block_rows", [None, 5])
@pytest.mark.parametrize("distance", ["cosine", "euclidean", "sqeuclidean"])
@pytest.mark.parametrize("separate", [False, True])
def test_blocks_hold_every_pair_once(distance: str, block_rows: int | None, separate: bool) -> None:
    given = REFERENCE_ZOO["unseen_classes"] if separate else ZOO["unequal"]
    pairs = pairs_of(*given)
    columns = pairs.col_labels.sort(stable=True).indices
    measure = {"cosine": lambda i, j: pairs.s[i, j], "euclidean": pairs.d, "sqeuclidean": pairs.d2}[distance]
    seen: list[int] = []
    for block in blocks_of("triplet", *given, distance=distance, block_rows=block_rows):
        assert block.neg.shape == (len(block.rows), len(columns) + 1)
        assert block.dim == 8
        assert block.far == (-math.inf if distance == "cosine" else math.inf)
        seen += block.rows.tolist()
        for b, i in enumerate(block.rows.tolist()):
            assert int(block.labels[b]) == int(pairs.row_labels[i])
            pos, neg = pairs.positives(i), pairs.negatives(i)
            real = block.pos_mask[b]
            assert sorted(columns[block.pos_index[b][real]].tolist()) == pos
            assert sorted(columns[block.neg_mask[b].nonzero()[:, 0]].tolist()) == neg
            assert (int(block.num_pos[b]), int(block.num_neg[b])) == (len(pos), len(neg))
            assert bool((block.pos_index[b][~real] == len(columns)).all())
            shown = torch.zeros(len(columns), dtype=torch.float64)
            shown[columns] = block.neg[b, :-1]
            torch.testing.assert_close(shown[neg], measure(i, neg))
            torch.testing.assert_close(block.pos[b][real], measure(i, columns[block.pos_index[b][real]].tolist()))
    assert sorted(seen) == list(pairs.rows)


def test_small_batches_are_one_block_and_the_option_splits_them() -> None:
    assert len(blocks_of("nca", *ZOO["random"])) == 1
    assert [len(b.rows) for b in blocks_of("nca", *ZOO["random"], block_rows=10)] == [10, 10, 4]


# ------------------------------------------------------------------------------------------------------ pair weights

DOTS = [n for n in losses.names() if getattr(make(n), "measure", None) == "dot"]
RAW: dict[str, dict[str, Any]] = {"npairs": {"l2": 0.0}}


@pytest.mark.parametrize("name", [n for n in DOTS if "num_classes" not in losses.method(n).needs])
def test_gradient_is_w_plus_its_transpose_times_x(name: str) -> None:
    x, labels = ZOO["unequal"]
    loss = pair_loss(name, normalize=False, **RAW.get(name, {}))
    x = F.normalize(x).requires_grad_()
    (grad,) = torch.autograd.grad(loss(x, labels), x)
    weights = pair_weights(loss, x, labels)
    assert weights.shape == (18, 18)
    assert not weights.requires_grad
    assert bool(weights.any())
    assert not bool(weights.diagonal().any())
    torch.testing.assert_close((weights + weights.T) @ x.detach(), grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in DOTS if not getattr(losses.method(n).build, "own_batch", False)])
def test_gradients_against_references_are_w_times_them(name: str) -> None:
    x, labels, refs, ref_labels = REFERENCE_ZOO["unseen_classes"]
    loss = narrow(PairLoss, make(name, normalize=False, **RAW.get(name, {}))).double()
    given: tuple[Tensor, ...]
    x, refs = F.normalize(x).requires_grad_(), F.normalize(refs).requires_grad_()
    if "num_classes" in losses.method(name).needs:
        refs, given = loss.get_parameter("proxies"), (x, labels)
    else:
        given = (x, labels, refs, ref_labels)
    grads = torch.autograd.grad(loss(*given), (x, refs))
    weights = pair_weights(loss, *given)
    assert weights.shape == (len(x), len(refs))
    torch.testing.assert_close(grads, (weights @ refs.detach(), weights.T @ x.detach()), rtol=1e-10, atol=1e-12)


def test_pair_weights_have_no_side_effects() -> None:
    loss = narrow(Margin, losses.create("margin", num_classes=10))
    x, labels = ZOO["random"]
    x = x.clone().requires_grad_()
    loss(x, labels).backward()
    before = {k: v.clone() for k, v in loss.state_dict().items()}
    grads = grad_of(x).clone(), grad_of(loss.beta).clone()
    first, second = pair_weights(loss, x, labels), pair_weights(loss, x, labels)
    assert torch.equal(first, second)
    assert all(torch.equal(v, before[k]) for k, v in loss.state_dict().items())
    assert torch.equal(grad_of(x), grads[0])
    assert torch.equal(grad_of(loss.beta), grads[1])


def test_pair_weights_are_exact_under_autocast_and_for_narrow_embeddings() -> None:
    x, labels = ZOO["random"]
    loss = pair_loss("multi_similarity")
    expected = pair_weights(loss, x.float(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(pair_weights(loss, x.float(), labels), expected, rtol=0.0, atol=0.0)
    assert pair_weights(loss, x.bfloat16(), labels).dtype == torch.float32


# ------------------------------------------------------------------------------------------------------------ memory


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, Tensor):
                self.numel = max(self.numel, t.numel())
        return out


@pytest.mark.parametrize("name", losses.names())
def test_nothing_of_size_n_by_n_exists(name: str) -> None:
    if name == "structured_clustering":
        pytest.skip("looks for medoids among all distances of a batch")
    if name == "hist":
        pytest.skip("brings a network over the batch, whose hidden layer is as large")
    m, rows = 800, 16
    labels = shuffled_labels([10] * 80, torch.Generator().manual_seed(0))
    x = torch.randn(m, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss = make(name, block_rows=rows)
    with Largest() as largest:
        loss(x, labels).backward()
    columns = max(m, len(getattr(loss, "proxies", ())))
    assert rows * 80 <= largest.numel < m * columns / 16
    assert x.grad is not None


def test_largest_measures_every_operation() -> None:
    x, labels = torch.randn(64, 8, requires_grad=True), torch.arange(16).repeat(4)
    with Largest() as largest:
        loss = losses.create("nca")
        loss(x, labels).backward()
    assert largest.numel >= 64 * 64  # one block holds all rows


def test_many_close_pairs_are_recomputed_in_parts() -> None:
    """A collapsed batch: every pair is recomputed without cancellation, a bounded number at a time."""
    x = torch.ones(300, 256) + 1e-4 * torch.randn(300, 256, generator=torch.Generator().manual_seed(0))
    with Largest() as largest:
        value = losses.create("contrastive", form="hinge")(x, torch.arange(100).repeat(3))
    assert bool(value.isfinite())
    assert largest.numel <= 2 * (1 << 20)  # against 300 * 300 * 256, 23 times as much


# --------------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("size", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("normalize", [True, False])
def test_small_distances_are_accurate_in_float32(size: float, normalize: bool) -> None:
    """Among vectors that are far from each other in general; compared on the vectors as the engine rounds them."""
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(64, 128, generator=generator))
    y = x + size * F.normalize(torch.randn(64, 128, generator=generator))
    labels = torch.arange(64)
    rounded = (F.normalize(x), F.normalize(y)) if normalize else (x, y)
    true = (rounded[0].double() - rounded[1].double()).norm(dim=1)
    (block,) = blocks_of("triplet", x, labels, y, labels, normalize=normalize)
    relative = 1e-4 if size >= 1e-3 else 1e-3  # the common origin costs a rounding of 1e-8 in each component
    torch.testing.assert_close(block.pos[:, 0].double(), true, rtol=relative, atol=0.0)


def test_distances_survive_a_common_offset() -> None:
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(32, 8, generator=generator), torch.arange(8).repeat(4)
    shifted = (x + 512).double() - 512  # what float32 leaves of it
    loss = losses.create("lifted")
    torch.testing.assert_close(loss(x + 512, labels).double(), loss(shifted, labels), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    ("name", "params"),
    [("contrastive", {"form": "hinge"}), ("triplet", {}), ("ranked_list", {}), ("margin", {}), ("lifted", {})],
)
def test_duplicates_are_at_distance_zero_and_have_no_gradient(
    name: str, params: dict[str, Any], normalize: bool, dtype: torch.dtype
) -> None:
    x, labels = ZOO["collapsed_exact"]
    x = (1000 * x).to(dtype).requires_grad_()
    for block in blocks_of("triplet", x, labels, normalize=normalize):
        assert not bool(block.pos[block.pos_mask].any())
        assert not bool(block.neg[block.neg_mask].any())
    value = losses.create(name, normalize=normalize, **params)(x, labels)
    value.backward()
    assert bool(value.isfinite())
    assert not bool(grad_of(x).any())


def test_gradients_of_tiny_distances_are_bounded() -> None:
    """1 / d is clamped to 1 / 1e-4."""
    x = torch.tensor([[1.0, 0.0], [1.0, 1e-9], [-1.0, 0.3]], dtype=torch.float64)
    weights = pair_weights(pair_loss("contrastive", form="hinge", normalize=False), x, torch.tensor([0, 1, 0]))
    assert 1e3 < weights.abs().max() <= 1e4


@pytest.mark.parametrize("name", ["nca", "npairs", "supcon", "lifted", "binomial", "multi_similarity", "circle"])
def test_large_dot_products_do_not_overflow(name: str) -> None:
    x, labels = ZOO["random"]
    x = (1e4 * x).float().requires_grad_()
    value = losses.create(name, normalize=False)(x, labels)
    value.backward()
    assert bool(value.isfinite())
    assert bool(grad_of(x).isfinite().all())


# ------------------------------------------------------------------------------------------------------- log_sum_exp


rows_of_numbers = st.lists(st.one_of(st.just(-math.inf), st.floats(-1e3, 1e3)), max_size=6)


@settings(deadline=None, max_examples=100)
@given(rows_of_numbers, rows_of_numbers, st.booleans())
def test_log_sum_exp_of_both_sides(left: list[float], right: list[float], one: bool) -> None:
    a, b = (torch.tensor([side], dtype=torch.float64).reshape(1, -1) for side in (left, right))
    value, share_a, share_b = log_sum_exp(a, b, one=one)
    everything = torch.cat([a, b, torch.zeros(1, int(one), dtype=torch.float64)], 1)
    if bool((everything > -math.inf).any()):
        torch.testing.assert_close(value, torch.logsumexp(everything, 1))
        shares = torch.softmax(everything, 1)[:, : a.shape[1] + b.shape[1]]
    else:
        assert value.item() == 0
        shares = torch.zeros_like(everything)
    torch.testing.assert_close(torch.cat([share_a, share_b], 1), shares)


def test_shares_of_log_sum_exp_are_its_derivative() -> None:
    v = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for one in (False, True):
        value, share = log_sum_exp(v.detach(), one=one)
        exact = torch.logsumexp(torch.cat([v, v.new_zeros(5, int(one))], 1), 1)
        torch.testing.assert_close(value, exact.detach())
        (grad,) = torch.autograd.grad(exact.sum(), v)
        torch.testing.assert_close(share, grad)


# ------------------------------------------------------------------------------------------------------------- draws


def draw(rows: int, draws: int, seed: int = 0, turn: int = 0, first: int = 0) -> Tensor:
    return uniforms(seed, torch.tensor(turn), torch.arange(first, first + rows), draws).double()


def test_uniforms_are_uniform() -> None:
    for seed, turn in ((0, 0), (0, 1), (1, 0), (12345, 678)):
        u = draw(4000, 16, seed, turn)
        assert 0 <= float(u.min()) < 1e-3
        assert 1 - 1e-3 < float(u.max()) < 1
        counts = torch.histc(u, 64, 0.0, 1.0)
        chi_square = ((counts - 1000).square() / 1000).sum()  # 63 degrees of freedom: 63 +- 11
        assert 20 < float(chi_square) < 125


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (draw(20000, 1), draw(20000, 1, turn=1)),
        (draw(20000, 1), draw(20000, 1, seed=1)),
        (draw(20000, 1), draw(20000, 1, first=1)),
        (draw(20000, 2)[:, :1], draw(20000, 2)[:, 1:]),
        (draw(20000, 1, seed=1), draw(20000, 1, turn=1)),
    ],
    ids=["turn", "seed", "row", "draw", "seed and turn"],
)
def test_uniforms_are_unrelated(a: Tensor, b: Tensor) -> None:
    assert abs(float(torch.corrcoef(torch.stack([a[:, 0], b[:, 0]]))[0, 1])) < 0.03
    assert int((a == b).sum()) < 10


def test_uniforms_do_not_depend_on_the_block() -> None:
    whole = draw(100, 5)
    assert torch.equal(draw(30, 5, first=40), whole[40:70])
    assert torch.equal(draw(100, 3), whole[:, :3])
    scattered = torch.tensor([7, 3, 99, 3])
    assert torch.equal(uniforms(0, torch.tensor(0), scattered, 5).double(), whole[scattered])


@pytest.mark.parametrize("seed", [-1, 2**31, 2**40, 2**63])
def test_any_integer_is_a_seed(seed: int) -> None:
    u = draw(2000, 4, seed=seed)
    assert 0 <= float(u.min()) < 0.01 < 0.99 < float(u.max()) < 1
    assert abs(float(u.mean()) - 0.5) < 0.02


@pytest.mark.parametrize("cutoff", [0.5, 0.9])
def test_draws_follow_the_weights(cutoff: float) -> None:
    x, labels = ZOO["random"]
    (block,) = blocks_of("margin", x, labels)
    rule, turns = DistanceWeightedMiner(cutoff=cutoff, upper=1.3, seed=5), 1500
    times = torch.zeros_like(block.neg)
    for turn in range(turns):
        drawn, real = draw_by_distance(block.neg, replace(block, turn=torch.tensor(turn)), rule)
        times.scatter_add_(1, drawn, real.to(times.dtype))
    for b in range(len(block.rows)):
        expected = torch.zeros_like(times[b])
        mask = block.neg_mask[b]
        expected[mask] = distance_weights(block.neg[b][mask], 8, cutoff=cutoff, upper=1.3)
        total = turns * int(block.num_pos[b])
        assert float(expected.sum()) == pytest.approx(float(times[b].sum()) / total)
        spread = (expected * (1 - expected) / total).sqrt()
        assert bool(((times[b] / total - expected).abs() <= 5 * spread + 1e-12).all())


def test_in_many_dims_one_near_duplicate_leaves_every_anchor_drawing() -> None:
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(128, 512, generator=generator), torch.arange(32).repeat_interleave(4)
    x[4] = x[0] + 0.01 * x[4]  # another class
    (block,) = blocks_of("margin", x, labels)
    for upper in (1.35, 1.4, 1.5):
        drawn, real = draw_by_distance(block.neg, block, DistanceWeightedMiner(upper=upper))
        in_range = (block.neg < upper).any(1)
        assert torch.equal(real.any(1), in_range)
        assert torch.equal(real.all(1), in_range)
        assert bool((block.neg.gather(1, drawn)[real] < upper).all())
        assert int(in_range.sum()) > (100 if upper > 1.35 else 1)


def test_draws_without_an_upper_bound_prefer_the_far_side_too() -> None:
    """The density of distances is small at both ends: without `upper` draws go to whatever is rarest."""
    weights = distance_weights(torch.tensor([0.6, 1.41, 1.9]), 128, upper=3.0)
    x = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.82, 0.572], [-0.805, 0.593]], dtype=torch.float64))
    (block,) = blocks_of("margin", x, torch.tensor([0, 0, 1, 2]))
    drawn, real = draw_by_distance(block.neg, replace(block, dim=128), DistanceWeightedMiner(upper=3.0))
    assert bool(real[:2].all())
    assert float(weights[1]) < 1e-6
    assert bool((block.neg.gather(1, drawn)[:2] < 0.65).all())


def test_the_turn_advances_in_training_only() -> None:
    loss: Any = losses.create("margin")
    x, labels = ZOO["random"]
    assert int(loss.turn) == 0
    loss.eval()
    assert torch.equal(loss(x, labels), loss(x, labels))
    assert int(loss.turn) == 0
    loss.train()
    values = {float(loss(x, labels).detach()) for _ in range(4)}
    assert int(loss.turn) == 4
    assert len(values) > 1
    with torch.no_grad():
        loss(x, labels)
    assert int(loss.turn) == 5
    assert "turn" in loss.state_dict()


def test_draws_do_not_touch_global_randomness() -> None:
    x, labels = ZOO["random"]
    state = torch.random.get_rng_state()
    for name, params in (("margin", {}), ("triplet", {"mining": "semihard_random"})):
        losses.create(name, **params)(x, labels)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_what_is_remembered_of_one_batch_does_not_leak_into_the_next() -> None:
    """Batches whose classes have the same sizes share their index; others, and other losses, have their own."""
    sizes = ((4, 4, 4), (1, 7, 4), (4, 4, 4), (2, 10), (12,), (3, 3, 3, 3), (1,) * 12)
    for turn, each in enumerate(sizes * 2):
        labels = torch.repeat_interleave(torch.arange(len(each)) * 5 - turn, torch.tensor(each))
        draw = torch.Generator().manual_seed(turn)
        labels = labels[torch.randperm(12, generator=draw)]
        x = torch.randn(12, 6, generator=draw, dtype=torch.float64, requires_grad=True)
        for name in ("multi_similarity", "contrastive", "npairs", "smooth_ap"):
            warm, cold = losses.create(name), losses.create(name, block_rows=5)
            (gradient,) = torch.autograd.grad(warm(x, labels), x)
            layout_of_pattern.cache_clear()
            blocks._known_places.cache_clear()
            (again,) = torch.autograd.grad(cold(x, labels), x)
            torch.testing.assert_close(gradient, again, rtol=1e-12, atol=1e-12)
            warm(x, labels)  # fills the memory again, for the next batch


def test_what_is_kept_of_blocks_is_one_piece_of_memory() -> None:
    """However many blocks there are; the last one may be smaller."""
    kept, drawn = Kept(), [torch.randn(rows, 3) for rows in (5, 5, 5, 2)]
    for each in drawn:
        kept.add(each, blocks=4)
    found = kept.all()
    assert [each.shape for each in found] == [each.shape for each in drawn]
    assert torch.equal(torch.cat(found), torch.cat(drawn))
    assert len({each.untyped_storage().data_ptr() for each in found}) == 1
