"""Gradient checks of any loss: ours, pytorch-metric-learning's, a user's.

Axes: M rows of a batch, D dims.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nearfield import losses
from nearfield.errors import InputError
from nearfield.pairs import PairLoss

Loss = Callable[[Tensor, Tensor], Tensor]
TOLERANCE = 1e-6


class Check(NamedTuple):
    """One comparison and the largest relative error that it found."""

    name: str
    error: float
    why: str  # what is compared

    @property
    def passed(self) -> bool:
        return self.error <= TOLERANCE


def find_loss(name: str, num_classes: int, dim: int, **params: Any) -> Loss:
    """A registered loss by name, or any class as `module:Class`, built with `params`."""
    if ":" not in name:
        needed = losses.method(name).parameters
        known = {key: value for key, value in (("num_classes", num_classes), ("dim", dim)) if key in needed}
        return losses.create(name, **{**known, **params})
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")  # for a file in the current folder
    try:
        built = getattr(importlib.import_module(module), attribute)(**params)
    except Exception as error:  # importing and building other people's code may raise anything
        raise InputError(
            f"loss must be a method or module:Class, with --set for its arguments; got {name!r}; building it raised "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove("")
    if not callable(built):
        raise InputError(f"loss must be callable with (embeddings, labels); got {name!r}. Name a loss class.")
    found: Loss = built
    return found


def certify(loss: Loss, rows: int = 48, dim: int = 16, classes: int = 12, seed: int = 0) -> list[Check]:
    """Compare value and gradient of a batch with finite differences, other block sizes and two-pass chunks.

    InputError if the loss cannot be called with embeddings and labels, or its value has no gradient.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    y = torch.arange(rows) % classes
    if isinstance(loss, nn.Module):
        loss = loss.double().eval()
    try:
        value, gradient = _value_and_gradient(loss, x, y)
    except Exception as problem:  # other people's code may raise anything
        raise InputError(
            "loss must return a differentiable 0-dim tensor for (embeddings, labels); calling it raised "
            f"{type(problem).__name__}: {problem}"
        ) from problem
    checks = []
    if not getattr(loss, "constant_weights", False):
        error = max(_difference_error(loss, x, y, gradient, generator) for _ in range(4))
        checks.append(Check("finite differences", error, "directional derivative of the value, and the gradient"))
    if isinstance(loss, PairLoss):
        before = loss.block_rows
        for step in (1, 5, 16):
            loss.block_rows = step
            other, other_gradient = _value_and_gradient(loss, x, y)
            error = max(_relative(other, value), _relative(other_gradient, gradient))
            checks.append(
                Check(f"blocks of {step} rows", error, "value and gradient, and those of the default block size")
            )
        loss.block_rows = before
    checks.append(
        Check("two-pass chunks", _chunk_error(loss, x, y), "gradient of a network in chunks, and of the whole batch")
    )
    scaled = _value_and_gradient(lambda a, b: 3 * loss(a, b), x, y)[1] / 3
    checks.append(Check("grad_output", _relative(scaled, gradient), "gradient of 3 L, and 3 times the gradient of L"))
    return checks


def _value_and_gradient(loss: Loss, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = loss(x, y)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


def _difference_error(loss: Loss, x: Tensor, y: Tensor, gradient: Tensor, generator: torch.Generator) -> float:
    """Relative error of the gradient in a random direction, by central differences.

    The smaller error of two steps: one step may be too long for a steep loss, the other too short for a large value.
    """
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    along, size = (gradient * direction).sum(), (gradient.norm() * direction.norm()).clamp(min=1e-12)
    errors = []
    with torch.no_grad():
        for step in (1e-6, 1e-5):
            slope = (loss(x + step * direction, y) - loss(x - step * direction, y)) / (2 * step)
            errors.append(float((slope - along).abs() / size))
    return min(errors)


def _chunk_error(loss: Loss, x: Tensor, y: Tensor, chunk: int = 7) -> float:
    """Relative error of a network's gradient when the batch is embedded twice in chunks (FastAP, section 4.1)."""
    network = nn.Linear(x.shape[1], x.shape[1]).double()
    weights = list(network.parameters())
    whole = torch.autograd.grad(loss(network(x), y), weights)
    with torch.no_grad():
        embeddings = torch.cat([network(part) for part in x.split(chunk)])
    gradient = _value_and_gradient(loss, embeddings, y)[1]
    network.zero_grad()
    for part, upstream in zip(x.split(chunk), gradient.split(chunk), strict=True):
        network(part).backward(upstream)
    chunked = torch.cat([p.grad.flatten() for p in weights if p.grad is not None])
    return _relative(chunked, torch.cat([g.flatten() for g in whole]))


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp(min=1e-12))
