"""Every law times every loss.

A new loss is held to all of this by being registered; where a law cannot hold for a method, a table here says why.
Axes: N items, D dims, C classes.
"""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import narrow
from reference import batches
from torch import Tensor, nn

from nearfield import losses
from nearfield.errors import InputError, NearfieldError
from nearfield.losses.neighbourhood import MultiSimilarity
from nearfield.losses.protocols import Counted
from nearfield.losses.registry import Real, Whole
from nearfield.pairs import PairLoss, pair_weights
from nearfield.pairs.mining import MINERS

C, D = 10, 8
ZOO = batches()
NEEDED = {"num_classes": C, "dim": D}

# Settings that take another way through the engine than the default of their loss
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "contrastive hinge": ("contrastive", {"form": "hinge"}),
    "contrastive hadsell": ("contrastive", {"form": "hadsell"}),
    "triplet hard": ("triplet", {"mining": "hard"}),
    "triplet semihard": ("triplet", {"mining": "semihard", "distance": "sqeuclidean"}),
    "triplet pml cosine": ("triplet", {"mining": "pml", "distance": "cosine", "margin": 0.3}),
    "triplet snr": ("triplet", {"distance": "snr"}),
    "triplet random": ("triplet", {"mining": "semihard_random"}),
    "margin by class": ("margin", {"num_classes": C}),
    "margin nearest": ("margin", {"upper": 0.0, "fallback": "nearest"}),
    "multi_similarity weighting": ("multi_similarity", {"mine": False}),
    "npairs without penalty": ("npairs", {"l2": 0.0}),
    "recall_at_k with the query": ("recall_at_k", {"count_query": True, "tau1": 0.1}),
    "recall_at_k simix": ("recall_at_k", {"simix": True, "tau1": 0.1}),
    "smooth_ap with the query": ("smooth_ap", {"count_query": True, "temperature": 0.1}),
    "sup_ap with the query": ("sup_ap", {"count_query": True, "tau": 0.1}),
    "tcm of triplets": ("tcm", {"base": "triplet"}),
    "tcm of roadmap": ("tcm", {"base": "roadmap", "base_params": {"tau": 0.1}}),
    "tcm of proxies": ("tcm", {"base": "proxy_anchor", "num_classes": C, "dim": D}),
    "epshn hard": ("epshn", {"mining": "hard"}),
    "matryoshka of prefixes": ("matryoshka", {"dims": (3, 5, D)}),
    "matryoshka of tcm": ("matryoshka", {"base": "tcm", "dims": (4, D), "base_params": {"base": "sup_ap"}}),
    "matryoshka of proxies": ("matryoshka", {"base": "soft_triple", "dims": (4, D), "num_classes": C, "dim": D}),
    "npairs symmetric": ("npairs", {"symmetric": True}),
    "angular symmetric": ("angular", {"symmetric": True}),
    "snr of unit vectors": ("snr", {"normalize": True, "reg": 0.1}),
    "hyperbolic two views": ("hyperbolic", {"negatives": "two_views"}),
    "magface auto": ("magface", {"auto": True}),
    "adaface running": ("adaface", {"t_alpha": 0.2}),
    "mean field apart": ("mean_field_contrastive", {"lam": 1.0, "neg_margin": 1.0}),
}
MEMBERS: dict[str, tuple[str, dict[str, Any]]] = {**{n: (n, {}) for n in losses.names()}, **VARIANTS}

# What each law cannot ask of a method, and why
DRAWS = {  # draws depend on the row and on the order of the columns, or on the names of the classes
    "margin",
    "margin by class",
    "triplet random",
    "proxy_synthesis",
    "recall_at_k simix",
}
PAIRS_BY_ORDER = {  # 1st with 2nd, 3rd with 4th of a class; the first half of a class supports the second
    "npairs",
    "angular",
    "npairs_angular",
    "npairs without penalty",
    "npairs symmetric",
    "angular symmetric",
    "prototypical",
    "hyperbolic two views",
}
CONSTANTS = {  # weights, weights, the target of the reconstruction, the norms, the bounds of the norms
    "ranked_list",
    "circle",
    "drml",
    "adaface",
    "adaface running",
    "magface auto",
}
NO_REFERENCES = {  # several losses in one: they do not even take the argument
    "npairs_angular",
    "dreml",
    "drml",
    "hist",
    "proxy_synthesis",
    "anti_collapse",
}
SLEEPING = ("sources", "targets", "score")  # relations start with no say in the embedding
UNUSED = {("drml", "parts.2.proxies")}  # no item of the batch "random" is reconstructed best by this branch
RAW_BY_DEFAULT = {"npairs_angular"}  # one half is normalised and the other is not


def make(member: str, **options: Any) -> nn.Module:
    """A float64 loss; parameters start from the same numbers every time."""
    name, params = MEMBERS[member]
    needed = [key for key, p in losses.method(name).parameters.items() if p.default is p.empty]
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(0)
    loss = losses.create(name, **{**{key: NEEDED[key] for key in needed}, **params, **options})
    torch.set_rng_state(state)
    return loss.double()


def has_proxies(member: str) -> bool:
    name, params = MEMBERS[member]
    return "num_classes" in losses.method(params.get("base", name)).needs


def run(loss: Callable[..., Tensor], x: Tensor, labels: Tensor, *references: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient."""
    x = x.clone().requires_grad_()
    value = loss(x, labels, *references)
    (grad,) = torch.autograd.grad(value, x)
    return value.detach(), grad


def close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    for a, b in zip(found, expected, strict=True):
        size = float(b.abs().max()) if b.numel() else 0.0
        torch.testing.assert_close(a, b, rtol=0.0, atol=tolerance * max(size, 1e-3))


each = pytest.mark.parametrize("member", MEMBERS)


# ------------------------------------------------------------------------------------------------------- symmetries


def within_class_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """A random order of the rows that leaves the items of each class in sequence."""
    order = torch.randperm(len(labels), generator=generator)
    place = torch.empty_like(order)
    for label in labels.unique():
        mine = (labels[order] == label).nonzero()[:, 0]
        place[mine] = (labels == label).nonzero()[:, 0]
    return place


@pytest.mark.parametrize("member", [m for m in MEMBERS if m not in DRAWS])
def test_order_of_rows_does_not_matter(member: str) -> None:
    x, labels = ZOO["unequal"]
    generator = torch.Generator().manual_seed(1)
    keeps = member in PAIRS_BY_ORDER
    order = within_class_order(labels, generator) if keeps else torch.randperm(len(x), generator=generator)
    value, grad = run(make(member), x, labels)
    close(run(make(member), x[order], labels[order]), (value, grad[order]))


def rename(loss: nn.Module, new_name: Tensor) -> None:
    """Move what the loss knows about each class to the new name of the class."""
    groupings = getattr(loss, "groupings", None)
    if groupings is not None:  # a meta-class of each class, (L, C); the parameters are about those
        groupings[:, new_name] = groupings.clone()
        return
    for p in loss.parameters():
        if len(p) % C == 0:
            by_class = p.detach().clone().view(C, -1)
            p.data.view(C, -1)[new_name] = by_class


@pytest.mark.parametrize("member", [m for m in MEMBERS if m not in DRAWS])
def test_names_of_classes_do_not_matter(member: str) -> None:
    x, labels = ZOO["unequal"]
    new_name = torch.randperm(C, generator=torch.Generator().manual_seed(2))
    loss, renamed = make(member), make(member)
    rename(renamed, new_name)
    close(run(renamed, x, new_name[labels]), run(loss, x, labels))


@each
def test_block_size_does_not_matter(member: str) -> None:
    for batch, sizes in (("unequal", (1, 3, 7)), ("duplicates", (5,))):
        expected = run(make(member), *ZOO[batch])
        for rows in sizes:
            close(run(make(member, block_rows=rows), *ZOO[batch]), expected)


def test_block_size_does_not_matter_to_ties_among_many_positives() -> None:
    """Equally far negatives, and blocks with more and with fewer positives than a loop over them is used for."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor([12, 3, 3, 2]))
    x = torch.randint(-1, 2, (20, 3), generator=generator).double()
    for mining in ("all", "hard", "semihard", "facenet", "pml"):
        params: dict[str, Any] = {"mining": mining, "distance": "cosine", "margin": 1.0, "normalize": False}
        expected = run(losses.create("triplet", **params), x, labels)
        for rows in (1, 2, 5):
            close(run(losses.create("triplet", **params, block_rows=rows), x, labels), expected)


@each
def test_scale_of_unit_losses_does_not_matter(member: str) -> None:
    if member in RAW_BY_DEFAULT or not getattr(losses.method(MEMBERS[member][0]).build, "normalized", False):
        pytest.skip("compares raw embeddings")
    if member == "triplet snr":
        pytest.skip("compares centred raw embeddings")
    if getattr(losses.method(MEMBERS[member][0]).build, "row_norms", False):
        pytest.skip("the norm of a raw embedding is its quality")
    x, labels = ZOO["random"]
    scale = torch.linspace(0.01, 100.0, len(x), dtype=torch.float64)[:, None]
    value, grad = run(make(member), x, labels)
    close(run(make(member), x * scale, labels), (value, grad / scale), 1e-9)
    raw, _ = run(make(member, normalize=False), x, labels)
    assert (raw - value).abs() > 1e-6


@pytest.mark.parametrize("member", ["lifted", "npairs", "snr"])
def test_scale_of_raw_losses_matters(member: str) -> None:
    x, labels = ZOO["random"]
    scale = torch.linspace(0.5, 2.0, len(x), dtype=torch.float64)[:, None]
    assert (make(member)(x, labels) - make(member)(x * scale, labels)).abs() > 1e-6


# -------------------------------------------------------------------------------------------------------- autograd


@each
def test_gradient_follows_what_is_done_with_the_value(member: str) -> None:
    x, labels = ZOO["random"]
    value, grad = run(make(member), x, labels)
    _, tripled = run(lambda *given: 3 * make(member)(*given), x, labels)
    _, squared = run(lambda *given: make(member)(*given) ** 2 / 2, x, labels)
    close([tripled, squared], [3 * grad, value * grad])


@each
def test_gradient_is_the_derivative_of_the_value(member: str) -> None:
    """By finite differences along random directions: needs no reference."""
    if member in CONSTANTS:
        pytest.skip("what it holds constant is not differentiated, by definition")
    x, labels = ZOO["random"]
    generator = torch.Generator().manual_seed(0)
    _, grad = run(make(member), x, labels)
    for _ in range(3):
        step = 1e-6 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        rise = make(member)(x + step, labels) - make(member)(x - step, labels)
        torch.testing.assert_close(
            rise.detach(), 2 * (grad * step).sum(), rtol=1e-4, atol=1e-4 * float((grad * step).norm())
        )


@each
def test_without_gradients_the_value_is_the_same(member: str) -> None:
    x, labels = ZOO["random"]
    expected, _ = run(make(member), x, labels)
    with torch.no_grad():
        value = make(member)(x.clone().requires_grad_(), labels)
    assert not value.requires_grad
    assert torch.equal(value, expected)
    assert torch.equal(make(member)(x, labels).detach(), expected)
    with torch.inference_mode():
        assert torch.equal(make(member)(x, labels), expected)


@each
def test_parameters_get_gradients(member: str) -> None:
    loss = make(member)
    if not list(loss.parameters()):
        pytest.skip("learns nothing itself")
    loss(*ZOO["random"]).backward()  # the embeddings themselves need none
    for name, p in loss.named_parameters():
        if (member, name) in UNUSED:
            assert p.grad is None
            continue
        assert p.grad is not None, name
        assert bool(p.grad.any()) or any(word in name for word in SLEEPING), name


@each
def test_two_steps_in_a_row(member: str) -> None:
    loss, layer = make(member), nn.Linear(D, D).double()
    optimizer = torch.optim.SGD([*layer.parameters(), *loss.parameters()], lr=1e-3)
    x, labels = ZOO["random"]
    for _ in range(2):
        optimizer.zero_grad()
        loss(layer(x), labels).backward()
        optimizer.step()
    assert all(bool(p.isfinite().all()) for p in (*layer.parameters(), *loss.parameters()))


@each
def test_second_derivatives_are_refused_in_words(member: str) -> None:
    x, labels = ZOO["random"]
    x = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(make(member)(x, labels), x, create_graph=True)
    with pytest.raises(NearfieldError, match="differentiable once"):
        torch.autograd.grad(grad.square().sum(), x)


@each
def test_functional_gradient(member: str) -> None:
    x, labels = ZOO["random"]
    _, expected = run(make(member), x, labels)
    loss = make(member)
    close([torch.func.grad(lambda v: loss(v, labels))(x)], [expected])
    again = make(member)
    steps(again, 1)
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in loss.state_dict().items())
    assert steps(pickle.loads(pickle.dumps(loss)), 1) == steps(again, 1)  # nothing of the transform stays behind


@each
def test_vmap_is_refused_in_words(member: str) -> None:
    x, labels = ZOO["random"]
    loss, several = make(member), torch.stack([x, 2 * x])
    for mapped in (loss, torch.func.grad(loss)):
        with pytest.raises(NearfieldError, match=r"torch.vmap.*once for each batch"):
            torch.vmap(mapped, in_dims=(0, None))(several, labels)
        with pytest.raises(NearfieldError, match=r"torch.vmap.*once for each batch"):
            torch.vmap(mapped)(several, torch.stack([labels, labels]))


@each
def test_several_gradients_at_once(member: str) -> None:
    x, labels = ZOO["random"]
    _, grad = run(make(member), x, labels)
    loss = make(member)
    both = torch.func.jacrev(lambda v: torch.stack([loss(v, labels)] * 2) * torch.tensor([1.0, 3.0]))(x)
    close(both, [grad, 3 * grad])


@each
def test_layout_in_memory_does_not_matter(member: str) -> None:
    x, labels = ZOO["random"]
    expected = run(make(member), x, labels)
    wide, tall = torch.zeros(len(x), 2 * D, dtype=x.dtype), torch.stack([labels, labels], 1)
    wide[:, ::2] = x
    close(run(make(member), wide[:, ::2], tall[:, 0]), expected)
    close(run(make(member), x.T.contiguous().T, labels), expected)


# ------------------------------------------------------------------------------------------------- degenerate batches


@each
def test_degenerate_batches_are_finite_and_have_a_graph(member: str) -> None:
    for batch in ZOO:
        loss = make(member)
        value, grad = run(loss, *ZOO[batch])
        assert value.shape == (), batch
        assert bool(value.isfinite()), batch
        assert bool(grad.isfinite().all()), batch
        assert isinstance(loss, Counted)
        if loss.last["anchors"] == loss.last["unusable_anchors"]:
            assert value.item() == 0, batch
            assert not bool(grad.any()), batch


NEEDS_POSITIVE = {"nca", "supcon", "fastap", "smooth_ap", "recall_at_k", "sup_ap"}
NEEDS_NOTHING = {"contrastive", "snr", "binomial", "bin_lifted", "margin", "histogram", "roadmap", "tcm", "sigmoid"}
NEEDS_BOTH = {
    "circle",
    "dcl",
    "epshn",
    "lifted",
    "lifted_generalized",
    "lifted_star",
    "matryoshka",
    "multi_similarity",
    "nt_xent",
    "ranked_list",
    "sct",
    "sincere",
    "triplet",
    "tuplet_margin",
}


@pytest.mark.parametrize("name", sorted(NEEDS_POSITIVE | NEEDS_NOTHING | NEEDS_BOTH))
def test_unusable_anchors_are_counted(name: str) -> None:
    for x, labels in ZOO.values():
        loss = make(name)
        loss(x, labels)
        equal = labels[:, None] == labels
        alone, surrounded = equal.sum(1) == 1, equal.all(1)
        unusable = (alone if name in NEEDS_POSITIVE else alone | surrounded) & (name not in NEEDS_NOTHING)
        assert loss.last == {"anchors": len(x), "unusable_anchors": int(unusable.sum())}


def test_unusable_pairs_are_counted() -> None:
    """Losses over couples: 4 + 2 + 1 items are three couples and one left over, two of them of one class."""
    x, labels = torch.randn(7, D, dtype=torch.float64), torch.tensor([0, 0, 0, 0, 1, 1, 2])
    for name in ("npairs", "angular", "npairs_angular"):
        loss = make(name)
        loss(x, labels)
        assert loss.last == {"anchors": 3, "unusable_anchors": 0}
        loss(x[:4], labels[:4])
        assert loss.last == {"anchors": 2, "unusable_anchors": 2}


@each
@settings(deadline=None, max_examples=6)
@given(
    labels=st.lists(st.integers(0, C - 1), min_size=2, max_size=24),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e3]),
)
def test_any_batch_is_finite_in_float32(member: str, labels: list[int], seed: int, scale: float) -> None:
    x = scale * torch.randn(len(labels), D, generator=torch.Generator().manual_seed(seed))
    value, grad = run(make(member).float(), x, torch.tensor(labels))
    assert bool(value.isfinite())
    assert bool(grad.isfinite().all())


@each
def test_zero_vectors_are_finite(member: str) -> None:
    x, labels = ZOO["random"]
    for rows in (slice(0, 2), slice(None)):
        y = x.clone()
        y[rows] = 0
        value, grad = run(make(member), y, labels)
        assert bool(value.isfinite())
        assert bool(grad.isfinite().all())


@each
def test_nan_or_infinity_in_is_nan_out(member: str) -> None:
    """Whichever row has it; a comparison with NaN is False, so miners and hinges would drop it without a trace."""
    x, labels = ZOO["unequal"]
    for row, bad in enumerate([float("nan"), float("inf"), -float("inf")] * (len(x) // 3)):
        y = x.clone()
        y[row, row % D] = bad
        value, grad = run(make(member), y, labels)
        assert bool(value.isnan()), (row, bad)
        assert bool(grad.isnan().any()), (row, bad)
        with torch.no_grad():
            assert bool(make(member)(y, labels).isnan())


@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("member", ["triplet", "lifted_star", "binomial", "fastap", "histogram"])
def test_nan_in_is_nan_out_of_a_miner(member: str, miner: str) -> None:
    x, labels = ZOO["random"]
    x = x.clone()
    x[17, 3] = float("nan")
    value, grad = run(make(member, miner=MINERS[miner](), block_rows=5), x, labels)
    assert bool(value.isnan())
    assert bool(grad.isnan().all())


def test_nan_in_references_proxies_and_pair_weights() -> None:
    x, labels = ZOO["random"]
    refs = x.clone()
    refs[5, 0] = float("nan")
    value, grad = run(make("multi_similarity"), x, labels, refs, labels)
    assert bool(value.isnan())
    assert bool(grad.isnan().all())
    assert bool(pair_weights(narrow(PairLoss, make("multi_similarity")), refs, labels).isnan().all())
    loss = make("proxy_anchor", miner=MINERS["multi_similarity"]())
    loss.get_parameter("proxies").data[2, 2] = float("nan")
    assert bool(loss(x, labels).isnan())


@each
def test_huge_embeddings_are_not_taken_for_infinite(member: str) -> None:
    """Their sum overflows, they do not."""
    x, labels = ZOO["random"]
    loss = make(member, check_finite=True)
    assert loss(x.abs() * 1e307, labels).dtype == torch.float64  # no InputError


# -------------------------------------------------------------------------------------------------------- precision


@each
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)], ids=str
)
def test_narrow_embeddings(member: str, dtype: torch.dtype, tolerance: float) -> None:
    """Computed in float32, the gradient in the type of the embeddings; compared on the same rounded numbers."""
    x, labels = ZOO["random"]
    x = x.to(dtype)
    value, grad = run(make(member).float(), x, labels)
    exact, exact_grad = run(make(member), x.double(), labels)
    assert value.dtype == torch.float32
    assert grad.dtype == dtype
    torch.testing.assert_close(value.double(), exact, rtol=1e-4, atol=1e-5)
    close([grad.double()], [exact_grad], tolerance)


@each
def test_float64_embeddings_with_a_loss_left_in_float32(member: str) -> None:
    x, labels = ZOO["random"]
    value, grad = run(make(member).float(), x, labels)
    exact, exact_grad = run(make(member), x, labels)
    assert value.dtype == grad.dtype == exact.dtype == exact_grad.dtype == torch.float64
    torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-6)
    close([grad], [exact_grad], 1e-4)


@each
def test_autocast_changes_nothing(member: str) -> None:
    x, labels = ZOO["random"]
    x = x.float()
    expected = run(make(member).float(), x, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(make(member).float(), x, labels)
        narrow, _ = run(make(member).float(), x.bfloat16(), labels)
    assert found[0].dtype == narrow.dtype == torch.float32
    compared = 1 if member in ("drml", "hist") else 2  # their layers go backward as any layers do under autocast
    close(found[:compared], expected[:compared], 1e-6)


# ------------------------------------------------------------------------------------------------------------ labels


@each
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8], ids=str)
def test_labels_of_any_integer_type(member: str, dtype: torch.dtype) -> None:
    x, labels = ZOO["random"]
    close(run(make(member), x, labels.to(dtype)), run(make(member), x, labels))


def test_labels_of_rarer_integer_types() -> None:
    x, labels = ZOO["random"]
    for dtype in (torch.int16, torch.int8, torch.uint16, torch.uint32, torch.uint64):
        close(run(make("margin by class"), x, labels.to(dtype)), run(make("margin by class"), x, labels))


LARGE = 2**31 - 1


@pytest.mark.parametrize("member", [m for m in MEMBERS if not has_proxies(m) and m != "margin by class"])
def test_labels_of_any_size(member: str) -> None:
    x, labels = ZOO["random"]
    expected = run(make(member), x, labels)
    for shift in (LARGE - 5, -LARGE, -3, 2**24):
        close(run(make(member), x, labels + shift), expected)


@pytest.mark.parametrize("member", [m for m in MEMBERS if has_proxies(m) or m == "margin by class"])
@pytest.mark.parametrize("bad", [-1, C])
def test_labels_without_a_class_are_refused(member: str, bad: int) -> None:
    x, labels = ZOO["random"]
    labels = labels.clone()
    labels[3] = bad
    with pytest.raises(InputError, match=rf"labels.*num_classes.*{bad}"):
        make(member)(x, labels)


# ------------------------------------------------------------------------------------------------------------- state


def steps(loss: nn.Module, count: int) -> list[float]:
    return [float(loss(*ZOO["random"]).detach()) for _ in range(count)]


@each
def test_state_dict_continues_where_it_stopped(member: str) -> None:
    loss = make(member)
    steps(loss, 2)
    stored = io.BytesIO()
    torch.save(loss.state_dict(), stored)
    stored.seek(0)
    resumed = make(member)
    resumed.load_state_dict(torch.load(stored, weights_only=True))
    assert steps(resumed, 2) == steps(loss, 2)


@each
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))], ids=["deepcopy", "pickle"]
)
def test_copies_continue_and_are_independent(member: str, duplicate: Callable[[nn.Module], nn.Module]) -> None:
    loss = make(member)
    steps(loss, 1)
    twin = duplicate(loss)
    before = copy.deepcopy(loss.state_dict())
    mine = steps(twin, 2)
    assert all(torch.equal(loss.state_dict()[k], v) for k, v in before.items())
    assert steps(loss, 2) == mine


@pytest.mark.parametrize("member", sorted(DRAWS))
def test_draws_change_in_training_and_stay_in_evaluation(member: str) -> None:
    loss = make(member)
    assert len(set(steps(loss, 5))) > 1
    assert len(set(steps(loss.eval(), 5))) == 1


# ------------------------------------------------------------------------------------------------------- compilation


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled_loss_on_squared_distances() -> None:
    torch._dynamo.reset()
    close(run(torch.compile(make("snr"), backend="aot_eager"), *ZOO["random"]), run(make("snr"), *ZOO["random"]), 1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("member", ["multi_similarity", "margin", "triplet", "snr"])
def test_compiled_training_step(member: str) -> None:
    loss, layer = make(member), nn.Linear(D, D).double()
    x, labels = ZOO["random"]

    def step(x: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = loss(layer(x), labels)
        return 2 * value

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager")
    for length in (24, 24, 17):
        turn = copy.deepcopy(loss.state_dict())
        layer.zero_grad()
        value = compiled(x[:length], labels[:length])
        value.backward()
        grad = layer.weight.grad
        loss.load_state_dict(turn)
        layer.zero_grad()
        expected = step(x[:length], labels[:length])
        expected.backward()
        close([value.detach(), grad], [expected.detach(), layer.weight.grad], 1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("member", ["multi_similarity", "contrastive hinge", "triplet", "fastap"])
def test_compile_option_changes_nothing(member: str) -> None:
    torch._dynamo.reset()
    loss = make(member, compile=True)
    for length in (24, 17):
        x, labels = (t[:length] for t in ZOO["random"])
        close(run(loss, x, labels), run(make(member), x, labels), 1e-10)
    loss = pickle.loads(pickle.dumps(loss))
    close(run(loss, *ZOO["unequal"]), run(make(member), *ZOO["unequal"]), 1e-10)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))], ids=["deepcopy", "pickle"]
)
def test_a_loss_to_be_compiled_can_be_copied(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    duplicate(losses.create("multi_similarity", compile=True))


# ------------------------------------------------------------------------------------------------------------ errors


X, Y = torch.randn(6, D, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2, 2])
WRONG: dict[str, tuple[Any, Any, str]] = {
    "three axes": (X[None], Y, r"embeddings.*\(rows, dims\).*\(1, 6, 8\)"),
    "one axis": (X[:, 0], Y, r"embeddings.*\(rows, dims\).*\(6,\)"),
    "no rows": (X[:0], Y[:0], r"embeddings.*\(0, 8\)"),
    "no dims": (X[:, :0], Y, r"embeddings.*\(6, 0\)"),
    "one row": (X[:1], Y[:1], r"embeddings.*at least 2 rows.*1"),
    "whole numbers": (X.long(), Y, r"embeddings.*floating.*int64"),
    "8 bits": (X.to(torch.float8_e4m3fn), Y, r"embeddings.*floating.*float8_e4m3fn.*float\(\)"),
    "sparse": (X.to_sparse(), Y, r"embeddings.*dense.*sparse_coo.*to_dense"),
    "no data": (X.to("meta"), Y, r"embeddings.*meta device"),
    "a list": ([[1.0, 2.0]], Y, r"embeddings.*tensor.*list"),
    "float labels": (X, Y.float(), r"labels.*integers.*float32.*long"),
    "bool labels": (X, Y > 0, r"labels.*integers.*bool"),
    "sparse labels": (X, Y.to_sparse(), r"labels.*dense.*sparse_coo"),
    "labels without data": (X, Y.to("meta"), r"labels.*meta device"),
    "listed labels": (X, [0, 0, 1, 1, 2, 2], r"labels.*tensor.*list"),
    "too few labels": (X, Y[:5], r"labels.*\(6,\).*\(5,\)"),
    "labels in columns": (X, Y[:, None], r"labels.*\(6,\).*\(6, 1\)"),
    "large labels": (X, Y + 2**31, r"labels.*2\^31.*2147483650"),
    "large negative labels": (X, -Y - 2**31, r"labels.*2\^31"),
}


@each
def test_wrong_input_is_refused_in_words(member: str) -> None:
    for title, (x, labels, message) in WRONG.items():
        if title != "one row" or not has_proxies(member):  # one item and the proxies are pairs enough
            with pytest.raises(InputError, match=message):
                make(member)(x, labels)


@each
def test_not_finite_embeddings_are_refused_when_asked(member: str) -> None:
    for bad in (float("nan"), float("inf")):
        x = X.clone()
        x[2, 3] = bad
        with pytest.raises(InputError, match=r"embeddings must be finite; 1 of 6 rows"):
            make(member, check_finite=True)(x, Y)
    assert bool(make(member, check_finite=True)(X, Y).isfinite())


PLAIN = [
    m
    for m in MEMBERS
    if m != "hyperbolic two views" and not has_proxies(m) and getattr(make(m), "own_batch", None) is False
]
WRONG_REFERENCES: dict[str, tuple[Any, Any, str]] = {
    "no labels": (X, None, "references.*without reference_labels"),
    "no references": (None, Y, "reference_labels.*without references"),
    "other dims": (X[:, :5], Y, "references.*8 dims.*5"),
    "too few labels": (X, Y[:5], r"reference_labels.*\(6,\).*\(5,\)"),
    "float labels": (X, Y.float(), "reference_labels.*integers"),
    "one axis": (X[0], Y, r"references.*\(rows, dims\)"),
}


@pytest.mark.parametrize("title", WRONG_REFERENCES)
def test_wrong_references_are_refused_in_words(title: str) -> None:
    refs, ref_labels, message = WRONG_REFERENCES[title]
    for member in PLAIN:
        with pytest.raises(InputError, match=message):
            make(member)(X, Y, refs, ref_labels)


@pytest.mark.parametrize("member", [m for m in MEMBERS if m not in PLAIN and m not in NO_REFERENCES])
def test_references_are_refused_where_they_mean_nothing(member: str) -> None:
    for refs, ref_labels in ((X, Y), (X, None), (None, Y)):
        with pytest.raises(InputError, match="without"):
            make(member)(X, Y, refs, ref_labels)


@pytest.mark.parametrize("member", PLAIN)
def test_references_of_another_precision(member: str) -> None:
    """Narrow queries against wide references and the other way round."""
    x, labels = ZOO["random"]
    refs, ref_labels = batches(1)["random"]
    expected = make(member)(x, labels, refs, ref_labels)
    for queries, others in ((x.float(), refs), (x, refs.float())):
        value = make(member)(queries, labels, others, ref_labels)
        torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("member", PLAIN)
def test_block_size_does_not_matter_against_references(member: str) -> None:
    """Blocks of one row: half of them have no positive at all."""
    x, labels = ZOO["random"]
    given = (x, labels, x.flip(0) + 0.1, labels.flip(0) + 3)
    close(run(make(member, block_rows=1), *given), run(make(member), *given))


@pytest.mark.parametrize("member", PLAIN)
def test_labels_of_two_types(member: str) -> None:
    x, labels = ZOO["random"]
    refs, ref_labels = batches(1)["random"]
    expected = make(member)(x, labels, refs, ref_labels)
    for other in (torch.int32, torch.uint8):
        assert torch.equal(make(member)(x, labels.to(other), refs, ref_labels), expected)
        assert torch.equal(make(member)(x, labels, refs, ref_labels.to(other)), expected)


@pytest.mark.parametrize("member", PLAIN)
def test_one_query_against_references(member: str) -> None:
    refs, ref_labels = ZOO["random"]
    value = make(member)(refs[:1] + 0.1, ref_labels[:1], refs, ref_labels)
    assert bool(value.isfinite())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: losses.create("multi_similarty"), "unknown method 'multi_similarty'.*'multi_similarity'"),
        (lambda: losses.create("qqq"), "unknown method 'qqq'.*valid: adaface, angular, .*triplet"),
        (lambda: losses.create("triplet", margn=0.1), "triplet has no parameter 'margn'.*'margin'"),
        (lambda: losses.create("triplet", block_row=1), "triplet has no parameter 'block_row'.*'block_rows'"),
        (lambda: losses.create("proxy_softmax"), "proxy_softmax needs num_classes and dim"),
        (lambda: losses.create("proxy_softmax", num_classes=3), "proxy_softmax needs dim"),
        (lambda: losses.create("multi_similarity", preset="papr"), "no preset 'papr'.*'paper'"),
        (lambda: losses.create("nca", preset="paper"), "nca has no preset 'paper'"),
        (lambda: losses.create("triplet", mining="semi_hard"), "mining.*'semi_hard'.*'semihard'"),
        (lambda: losses.create("triplet", distance="euclidian"), "distance.*'euclidian'.*'euclidean'"),
        (lambda: losses.create("contrastive", form="cosin"), "form.*'cosin'.*'cosine'"),
        (lambda: losses.create("nca", block_rows=0), "block_rows.*at least 1.*0"),
        (lambda: losses.create("nca", scale=-1.0), "scale must be at least 0.000001; got -1"),
        (lambda: losses.create("supcon", temperature=0.0), "temperature must be at least 0.000001; got 0.0"),
        (lambda: losses.create("histogram", nodes=1), "nodes.*at least 2.*1"),
        (lambda: losses.create("fastap", bins=0), "bins.*at least 1.*0"),
        (lambda: losses.create("angular", angle=90.0), "angle must be below 90; got 90.0. Angles are in degrees"),
        (lambda: losses.create("margin", num_classes=0), "num_classes.*at least 1.*0"),
        (lambda: losses.create("proxy_softmax", num_classes=0, dim=2), "num_classes.*at least 1.*0"),
        (lambda: losses.create("proxy_softmax", num_classes=3, dim=2, label_smoothing=1.0), "label_smoothing.*1.0"),
    ],
)
def test_wrong_settings_are_refused_in_words(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("member", ["snr", "triplet snr"])
def test_a_ratio_of_variances_needs_two_dims(member: str) -> None:
    with pytest.raises(InputError, match="dims"):
        make(member)(X[:, :1], Y)


def test_input_errors_are_value_errors_with_exit_code_2() -> None:
    with pytest.raises(ValueError, match="unknown method") as caught:
        losses.create("nothing like it")
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------- registry

each_method = pytest.mark.parametrize("name", losses.names())


def test_names_are_sorted_and_unique() -> None:
    names = losses.names()
    assert names == sorted(set(names))
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in names)


@each_method
def test_a_method_says_where_it_comes_from_and_what_it_is(name: str) -> None:
    method = losses.method(name)
    assert method.name == name
    assert len(method.source) > 10
    assert len(method.idea.splitlines()[0]) > 20
    assert set(method.similarities) <= set("SPN")
    assert method.sampler


@each_method
def test_search_space_holds_parameters_and_their_defaults(name: str) -> None:
    method = losses.method(name)
    for key, span in method.space.items():
        assert key in method.parameters
        default = method.parameters[key].default
        assert isinstance(span, Real | Whole)
        assert span.low < span.high
        assert span.low <= default <= span.high, key
        assert not (isinstance(span, Real) and span.log and span.low <= 0)
        for end in (span.low, span.high):
            value = make(name, **{key: end})(*ZOO["random"])
            assert bool(value.isfinite())


@each_method
def test_search_space_holds_published_settings(name: str) -> None:
    method = losses.method(name)
    for preset, params in method.presets.items():
        for key in params.keys() & method.space.keys():
            span = method.space[key]
            assert isinstance(span, Real | Whole)
            assert span.low <= params[key] <= span.high, (preset, key)


@each_method
def test_presets_build_and_run(name: str) -> None:
    needed = [key for key, p in losses.method(name).parameters.items() if p.default is p.empty]
    for preset, params in losses.method(name).presets.items():
        known = {"num_classes": 12, "dim": params.get("members", 1) * params.get("meta_classes", D)}
        loss = losses.create(name, preset=preset, **{key: known[key] for key in needed})
        x = torch.randn(16, known["dim"], generator=torch.Generator().manual_seed(0))
        assert bool(loss(x, torch.arange(16) // 2).isfinite())
        assert params, preset  # a preset that says nothing is the default


def test_parameters_override_a_preset() -> None:
    loss = narrow(MultiSimilarity, losses.create("multi_similarity", preset="code", beta=7.0))
    assert (loss.beta, loss.lam) == (7.0, 0.5)


@each_method
def test_losses_are_pair_losses_or_made_of_them(name: str) -> None:
    loss = make(name)
    assert any(isinstance(module, PairLoss) for module in loss.modules())
