"""A batch in chunks against the same batch at once.

Axes: M items, D dims, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearfield import losses
from nearfield.config import ModelConfig
from nearfield.errors import InputError, RunError
from nearfield.models import build_model
from nearfield.training.chunks import backward_in_chunks

M, D, C = 22, 8, 6
KNOWN: dict[str, Any] = {"num_classes": C, "dim": D}


def make_loss(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    needed = [key for key, p in losses.method(name).parameters.items() if p.default is p.empty]
    torch.manual_seed(0)
    return losses.create(name, **{key: KNOWN[key] for key in needed}).to(dtype)


def make_network(dtype: torch.dtype = torch.float64, *extra: nn.Module) -> nn.Sequential:
    """Without a last bias: distances do not move with it, so that its gradient would be nothing but rounding."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), *extra, nn.Linear(16, D, bias=False)).to(dtype)


def batch(rows: int = M, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(rows) % C
    centres = torch.randn(C, 10, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, 10, generator=generator, dtype=torch.float64)
    return (centres[labels] + noise).to(dtype), labels


def gradients(step: Callable[[], Tensor], *modules: nn.Module) -> list[Tensor]:
    """The value of a step, and the gradients it leaves, zeros where there is none."""
    for module in modules:
        module.zero_grad()
    value = step().detach()
    parameters = [p for module in modules for p in module.parameters()]
    return [value, *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters)]


def plainly(forward: Callable[[Tensor], Tensor], loss: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    value: Tensor = loss(forward(images), labels)
    value.backward()
    return value


def by_parts(network: Callable[[Tensor], Tensor], chunk: int) -> Callable[[Tensor], Tensor]:
    """The network as one graph over all chunks: what chunks change in the network itself, and nothing else."""
    return lambda images: torch.cat([network(part) for part in images.split(chunk)])


def close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= tolerance * max(float(b.norm()), 1e-3)


# --------------------------------------------------------------------------------------------------------- exactness


@pytest.mark.parametrize("name", losses.names())
def test_gradients_equal_those_of_the_whole_batch(name: str) -> None:
    for dtype, tolerance in (
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
    ):  # products of other shapes round differently
        network, (images, labels) = make_network(dtype), batch(dtype=dtype)
        loss = make_loss(name, dtype)
        expected = gradients(lambda: plainly(network, loss, images, labels), network, loss)  # noqa: B023
        loss = make_loss(name, dtype)  # draws depend on the number of calls
        found = gradients(lambda: backward_in_chunks(network, loss, images, labels, 5), network, loss)  # noqa: B023
        assert any(bool(g.any()) for g in found[1:])
        close(found, expected, tolerance)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(2, 40), chunk=st.integers(1, 50))
def test_any_chunk_fits_any_batch(rows: int, chunk: int) -> None:
    network, loss, (images, labels) = make_network(), make_loss("multi_similarity"), batch(rows)
    expected = gradients(lambda: plainly(network, loss, images, labels), network)
    close(gradients(lambda: backward_in_chunks(network, loss, images, labels, chunk), network), expected, 1e-12)


def test_gradients_are_added_to_those_that_are_there() -> None:
    network, loss, (images, labels) = make_network(), make_loss("proxy_anchor"), batch()
    once = gradients(lambda: backward_in_chunks(network, loss, images, labels, 4), network, loss)

    def twice() -> Tensor:
        backward_in_chunks(network, loss, images, labels, 4)
        return backward_in_chunks(network, loss, images, labels, 7)

    close(gradients(twice, network, loss)[1:], [2 * g for g in once[1:]], 1e-12)


def test_the_value_has_no_graph_and_images_may_be_a_list() -> None:
    network, loss, (images, labels) = make_network(), make_loss("fastap"), batch()
    expected = gradients(lambda: plainly(network, loss, images, labels), network)

    def forward(rows: list[Tensor]) -> Tensor:
        embeddings: Tensor = network(torch.stack(rows))
        return embeddings

    for chunk in (6, 100):
        network.zero_grad()
        value = backward_in_chunks(forward, loss, list(images), labels, chunk)
        assert not value.requires_grad
        close([value, *(p.grad for p in network.parameters() if p.grad is not None)], expected, 1e-12)


def test_a_network_that_learns_nothing_leaves_the_loss_its_gradient() -> None:
    network, loss, (images, labels) = make_network().requires_grad_(False), make_loss("drml"), batch()
    expected = gradients(lambda: plainly(network, loss, images, labels), loss)
    close(gradients(lambda: backward_in_chunks(network, loss, images, labels, 5), loss), expected, 1e-12)


# -------------------------------------------------------------------------------------------------------- randomness


class StochasticDepth(nn.Module):
    """Leaves out its layer for a random half of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        kept: Tensor = self.layer(x) * (torch.rand(len(x), 1, dtype=x.dtype) < 0.5)
        return x + kept


@pytest.mark.parametrize("extra", [nn.Dropout(0.4), StochasticDepth()], ids=["dropout", "stochastic depth"])
def test_random_draws_repeat_and_the_generator_ends_where_it_would_have(extra: nn.Module) -> None:
    network, loss, (images, labels) = make_network(torch.float64, extra), make_loss("multi_similarity"), batch()
    torch.manual_seed(3)
    expected = gradients(lambda: plainly(by_parts(network, 5), loss, images, labels), network)
    end = torch.get_rng_state()
    torch.manual_seed(3)
    close(gradients(lambda: backward_in_chunks(network, loss, images, labels, 5), network), expected, 1e-12)
    assert torch.equal(torch.get_rng_state(), end)
    again = gradients(lambda: backward_in_chunks(network, loss, images, labels, 5), network)
    assert (again[1] - expected[1]).norm() > 1e-3 * expected[1].norm()  # the next step draws anew


def test_what_the_loss_draws_is_not_drawn_again() -> None:
    network, (images, labels) = make_network(torch.float64, nn.Dropout(0.4)), batch()

    def noisy(x: Tensor, _: Tensor) -> Tensor:
        return (x * torch.rand(x.shape, dtype=x.dtype)).sum()

    torch.manual_seed(3)
    noisy(by_parts(network, 5)(images), labels)
    end = torch.get_rng_state()
    torch.manual_seed(3)
    backward_in_chunks(network, noisy, images, labels, 5)
    assert torch.equal(torch.get_rng_state(), end)


def test_randomness_that_does_not_repeat_is_refused() -> None:
    network, loss, (images, labels) = make_network(), make_loss("fastap"), batch()
    own = torch.Generator().manual_seed(0)

    def augmenting(x: Tensor) -> Tensor:
        embeddings: Tensor = network(x + torch.randn(x.shape, generator=own, dtype=x.dtype))
        return embeddings

    with pytest.raises(RunError, match="different embeddings the second time"):
        backward_in_chunks(augmenting, loss, images, labels, 5)


def test_mixed_precision_is_the_same_in_both_passes() -> None:
    """Also that weights cast without a graph in the first pass are not used in the second: they would not learn."""
    network, loss, (images, labels) = make_network(torch.float32), make_loss("npairs"), batch(dtype=torch.float32)

    def plain() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            value: Tensor = loss(by_parts(network, 5)(images), labels)
        value.backward()
        return value

    def chunked() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return backward_in_chunks(network, loss, images, labels, 5)

    expected, found = gradients(plain, network), gradients(chunked, network)
    assert torch.equal(found[0], expected[0])  # the very same embeddings
    close(found, expected, 2e-2)  # gradients of weights are rounded to bfloat16 for each chunk
    assert all(bool(g.any()) for g in found)


class Spy(torch.autograd.Function):
    """Passes everything on, and writes down whether autocast is on in either direction."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seen: list[tuple[str, bool]]) -> Tensor:
        ctx.seen = seen
        seen.append(("forward", torch.is_autocast_enabled("cpu")))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.seen.append(("backward", torch.is_autocast_enabled("cpu")))
        return grad, None


def spy(x: Tensor, seen: list[tuple[str, bool]]) -> Tensor:
    passed: Tensor = Spy.apply(x, seen)  # type: ignore[no-untyped-call]
    return passed


@pytest.mark.parametrize("chunk", [8, 100])
def test_no_backward_runs_under_autocast(chunk: int) -> None:
    network, loss, (images, labels) = make_network(torch.float32), make_loss("npairs"), batch(dtype=torch.float32)
    seen: list[tuple[str, bool]] = []

    def spied(x: Tensor) -> Tensor:
        embeddings: Tensor = network(spy(network(x) @ torch.ones(D, 10), seen))
        return embeddings

    with torch.autocast("cpu", torch.bfloat16):
        backward_in_chunks(spied, lambda x, y: loss(spy(x, seen), y), images, labels, chunk)
    assert ("backward", False) in seen
    assert set(seen) == {("forward", True), ("backward", False)}


# -------------------------------------------------------------------------------------------------------- batch norm


def test_frozen_batch_norm_is_exact() -> None:
    model = build_model(ModelConfig(width=4, dim=D), seed=0).double()
    model.freeze_bn = True
    assert isinstance(model.backbone, nn.Sequential)
    model.backbone.append(nn.BatchNorm2d(model.num_features).double())
    model.train()
    images = torch.randint(256, (10, 1, 16, 16), dtype=torch.uint8)
    labels, loss = torch.arange(10) % 3, make_loss("triplet")
    before = {name: value.clone() for name, value in model.named_buffers()}
    expected = gradients(lambda: plainly(model, loss, images, labels), model)
    close(gradients(lambda: backward_in_chunks(model, loss, images, labels, 3), model), expected, 1e-12)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(16), nn.BatchNorm1d(16, track_running_stats=False).eval()])
def test_live_batch_norm_is_refused_before_it_changes_anything(norm: nn.Module) -> None:
    network, loss, (images, labels) = make_network(torch.float64, norm), make_loss("fastap"), batch()
    before = [buffer.clone() for buffer in network.buffers()]
    for forward in (network, network.forward, lambda x: network(x)):  # however it is called
        with pytest.raises(InputError, match="batch norm in training mode"):
            backward_in_chunks(forward, loss, images, labels, 5)
    assert all(torch.equal(a, b) for a, b in zip(before, network.buffers(), strict=True))
    backward_in_chunks(network, loss, images, labels, len(images))  # one chunk is the batch


@pytest.mark.parametrize("momentum", [0.1, None])
def test_live_batch_norm_by_chunk_updates_its_statistics_once(momentum: float | None) -> None:
    def network() -> nn.Sequential:
        return make_network(torch.float64, nn.BatchNorm1d(16, momentum=momentum))

    loss, (images, labels) = make_loss("multi_similarity"), batch()
    whole, chunked = network(), network()
    expected = gradients(lambda: plainly(by_parts(whole, 8), loss, images, labels), whole)
    found = gradients(lambda: backward_in_chunks(chunked, loss, images, labels, 8, batch_norm="chunk"), chunked)
    close(found, expected, 1e-12)
    for a, b in zip(chunked.buffers(), whole.buffers(), strict=True):
        assert torch.equal(a, b)
    assert int(dict(chunked.named_buffers())["2.num_batches_tracked"]) == 3


# ------------------------------------------------------------------------------------------------- memory and refusals


def largest_graph(step: Callable[[], Any]) -> int:
    """The most numbers that autograd holds at a time."""
    held = [0, 0]

    class Kept:
        def __init__(self, x: Tensor) -> None:
            self.x = x
            held[0] += x.numel()
            held[1] = max(held)

        def __del__(self) -> None:
            held[0] -= self.x.numel()

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.x):
        step()
    return held[1]


def test_memory_does_not_grow_with_the_batch_beyond_the_embeddings() -> None:
    network, loss = make_network(torch.float64, *[nn.Tanh() for _ in range(20)]), make_loss("multi_similarity")

    def size(rows: int, chunk: int) -> int:
        images, labels = batch(rows)
        return largest_graph(lambda: backward_in_chunks(network, loss, images, labels, chunk))

    small, large, plain = size(64, 16), size(1024, 16), size(1024, 1024)
    embeddings = 8 * 1024 * D  # the loss keeps a few arrays of the embeddings' size
    assert large <= small + embeddings
    assert plain > 4 * large


@pytest.mark.parametrize("chunk", [0, -3])
def test_a_chunk_has_rows(chunk: int) -> None:
    with pytest.raises(InputError, match=f"chunk must be at least 1 row; got {chunk}"):
        backward_in_chunks(make_network(), make_loss("fastap"), *batch(), chunk)


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(InputError, match=r"batch_norm must be one of.*'chunk'"):
        backward_in_chunks(make_network(), make_loss("fastap"), *batch(), 4, batch_norm="chunks")  # type: ignore[arg-type]
