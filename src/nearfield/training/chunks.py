"""The exact large batch: the gradient of a batch of any size in the memory of one chunk.

Cakir et al., Deep Metric Learning to Rank (FastAP), CVPR 2019, section 4.1: embed the batch chunk by chunk without a
graph; take the loss of the whole batch and its gradient with respect to the embeddings; embed each chunk once more, now
with a graph, and send its share of that gradient through it. Only the embeddings and one chunk's graph are in memory.

The released MATLAB code does something else: it embeds with batch norm in evaluation mode but goes back in training
mode, and it updates the weights after every chunk, with that chunk's gradient divided by its length, so that later
chunks see other weights than their gradient was computed for. Here, as in the paper, a batch is one update.

Axes: M items of the batch, D embedding dims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_pre_hook

from nearfield.errors import InputError, RunError, require_one_of

CHANGED = 1e-2  # relative to the largest entry: a larger difference means another function
BatchNorm = Literal["refuse", "chunk"]


def backward_in_chunks(
    forward: Callable[[Any], Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    images: Any,
    labels: Tensor,
    chunk: int,
    *,
    batch_norm: BatchNorm = "refuse",
) -> Tensor:
    """Add to all gradients what `loss(forward(images), labels).backward()` would add; return the loss, detached.

    `images` is anything with a length that can be sliced. The caller zeroes gradients before and steps once after, and
    may enable autocast: both forward passes run under it, backward does not. For scaled gradients pass a scaled loss.

    Both passes must compute the same function. torch's random numbers repeat: each chunk of the second pass starts from
    the generator state of the first, and the generator ends as after one pass. Anything else that makes the second
    embeddings differ, such as another library's augmentations, raises RunError.

    Batch norm in training mode would use the statistics of a chunk, not of the batch. With "refuse" that is an
    InputError; frozen batch norm (evaluation mode) is fine. "chunk" normalises each chunk by its own statistics, alike
    in both passes, and updates the running statistics once per chunk. A batch of one chunk is an ordinary step.
    """
    require_one_of("batch_norm", batch_norm, ("refuse", "chunk"))
    if chunk < 1:
        raise InputError(f"chunk must be at least 1 row; got {chunk}.")
    if len(images) <= chunk:
        value = loss(forward(images), labels)
        _backward(value)
        return value.detach()

    places = [slice(begin, begin + chunk) for begin in range(0, len(images), chunk)]
    parts, states = [], []
    with torch.no_grad(), _watch_batch_norm(batch_norm) as norms:
        for place in places:
            states.append(_random_state())
            parts.append(forward(images[place]))
    embeddings = torch.cat(parts).requires_grad_()  # (M, D)
    del parts
    torch.clear_autocast_cache()  # older torch would use again what it cast without a graph
    value = loss(embeddings, labels)
    _backward(value)
    if embeddings.grad is not None:
        with _left_as_is(norms):
            _second_pass(forward, images, places, states, embeddings)
    return value.detach()


def _second_pass(
    forward: Callable[[Any], Tensor], images: Any, places: list[slice], states: list[list[Tensor]], embeddings: Tensor
) -> None:
    """Backpropagate each chunk's share of the embeddings' gradient through the network."""
    assert embeddings.grad is not None
    known = embeddings.detach()
    change = known.new_zeros(())
    for place, state in zip(places, states, strict=True):
        _set_random_state(state)
        again = forward(images[place])
        change = torch.maximum(change, (again.detach() - known[place]).abs().max())
        if again.requires_grad:  # not if only the loss has parameters to train
            _backward(again, embeddings.grad[place])
        torch.clear_autocast_cache()  # casts belong to the graph that has just been freed
    if bool(change > CHANGED * known.abs().max()):
        raise RunError(
            f"forward gave different embeddings the second time, by up to {change:.2g}; it must depend only on the "
            "images and on torch's random numbers. Augment images before, and keep no state in the network."
        )


def _backward(value: Tensor, grad: Tensor | None = None) -> None:
    with torch.autocast(value.device.type, enabled=False):  # backward uses the dtype of each forward operation
        torch.autograd.backward(value, grad)


@contextmanager
def _watch_batch_norm(policy: BatchNorm) -> Iterator[list[_BatchNorm]]:
    """Collect the batch norms in training mode that are called, or refuse the first."""
    norms: list[_BatchNorm] = []

    def look(module: nn.Module, _: Any) -> None:
        if not isinstance(module, _BatchNorm) or not (module.training or module.running_mean is None):
            return
        if policy == "refuse":
            raise InputError(
                "batch norm in training mode would see a chunk instead of the batch; freeze it (model.freeze_bn), "
                'or pass batch_norm="chunk" to normalise each chunk by its own statistics.'
            )
        if module not in norms:
            norms.append(module)

    hook = register_module_forward_pre_hook(look)
    try:
        yield norms
    finally:
        hook.remove()


@contextmanager
def _left_as_is(norms: list[_BatchNorm]) -> Iterator[None]:
    """Restore random numbers and running statistics afterwards."""
    state = _random_state()
    buffers = [buffer for norm in norms for buffer in norm.buffers(recurse=False)]
    copies = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        _set_random_state(state)
        for buffer, copy in zip(buffers, copies, strict=True):
            buffer.copy_(copy)


def _random_state() -> list[Tensor]:
    """Generator states: of the CPU, then of each CUDA device if CUDA is in use."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]


def _set_random_state(state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    for device, of_device in enumerate(state[1:]):
        torch.cuda.set_rng_state(of_device, device)
