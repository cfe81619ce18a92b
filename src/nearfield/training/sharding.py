"""Proxies split over processes in training: checkpoints that hold all rows, and gradients that all processes judge.

A checkpoint does not depend on the number of processes that wrote it: rank 0 collects the rows of all when it writes,
and sends each process its own when it reads, however many there are then. Only rank 0 ever has all of them, on the CPU.

Axes: n rows of this rank, N rows of all ranks, D dims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfield.losses.proxy_loss import split_parameters
from nearfield.training.distributed import on_first_rank
from nearfield.training.run_folder import Saved

Sizes = tuple[int, ...]  # rows of each rank


class Split(NamedTuple):
    """What is split over processes."""

    weights: Mapping[str, Sizes]  # by name, of all modules
    optimizer: Mapping[int, Sizes]  # by index of the parameter
    parameters: tuple[nn.Parameter, ...]


def split_of(modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer) -> Split:
    """What is split of these modules, whose state is saved as `prefix.name`, and of their optimizer."""
    found = {
        (f"{prefix}.{name}", module.get_parameter(name)): sizes
        for prefix, module in modules.items()
        for name, sizes in split_parameters(module).items()
    }
    by_id = {id(parameter): sizes for (_, parameter), sizes in found.items()}
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    return Split(
        {name: sizes for (name, _), sizes in found.items()},
        {index: by_id[id(p)] for index, p in enumerate(trained) if id(p) in by_id},
        tuple(parameter for _, parameter in found),
    )


def gather_split(split: Split, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Replace this rank's rows in `weights` and in the state of the optimizer by all rows on rank 0, None elsewhere."""
    if split.optimizer:
        state["state"] = {index: {**values} for index, values in state["state"].items()}  # the optimizer keeps its own
    for holder, key, sizes in _entries(split, weights, state):
        holder[key] = _to_first_rank(holder[key], sizes)


def load_split(split: Split, load: Callable[[], Saved | None]) -> Saved | None:
    """What `load` returns on rank 0, on every rank: with all that is not split, and its own rows of what is."""
    wholes: list[Tensor] = []

    def without_rows() -> tuple[Saved | None, list[tuple[torch.Size, torch.dtype]]]:
        saved = load()
        for holder, key, _ in _entries(split, saved.weights, saved.state["optimizer"]) if saved else ():
            wholes.append(holder[key])
            holder[key] = None
        return saved, [(whole.shape[1:], whole.dtype) for whole in wholes]

    saved, kinds = on_first_rank(without_rows)
    entries = list(_entries(split, saved.weights, saved.state["optimizer"])) if saved else []
    for (holder, key, sizes), kind in zip(entries, kinds, strict=True):
        holder[key] = _from_first_rank(wholes.pop(0) if wholes else None, sizes, *kind)
    return saved


def _entries(
    split: Split, weights: dict[str, Any], state: dict[str, Any]
) -> Iterator[tuple[dict[Any, Any], Any, Sizes]]:
    """Where there is a tensor that is split: its dict, its key and the rows of each rank."""
    for name, sizes in split.weights.items():
        yield weights, name, sizes
    for index, sizes in split.optimizer.items():
        values = state["state"].get(index, {})
        for key in sorted(values):
            if values[key] is None or (
                isinstance(values[key], Tensor) and values[key].ndim
            ):  # step counts have no rows
                yield values, key, sizes


def _to_first_rank(rows: Tensor, sizes: Sizes) -> Tensor | None:
    """The rows of all ranks, (N, ...), on the CPU of rank 0; None elsewhere."""
    mine = rows.detach().cpu().contiguous()
    if dist.get_rank():
        dist.send(mine, 0)
        return None
    whole = mine.new_empty(sum(sizes), *mine.shape[1:])
    for rank, part in enumerate(whole.split(sizes)):
        part.copy_(mine) if rank == 0 else dist.recv(part, rank)
    return whole


def _from_first_rank(whole: Tensor | None, sizes: Sizes, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """This rank's rows (n, ...) of what rank 0 has."""
    rank = dist.get_rank()
    if whole is None:
        mine = torch.empty(sizes[rank], *shape, dtype=dtype)
        dist.recv(mine, 0)
        return mine
    parts: tuple[Tensor, ...] = whole.contiguous().split(sizes)
    for other, part in enumerate(parts[1:], 1):
        dist.send(part, other)
    return parts[0].clone()


@torch.no_grad()
def gradient_norm(parameters: Iterable[nn.Parameter], split: Split) -> Tensor:
    """The norm of the gradients of `parameters` on all ranks, still on its device; the same on each."""
    given, parted = list(parameters), {id(p) for p in split.parameters}
    every = [p for p in given if p.grad is not None]
    norm = _norm([p.grad for p in every if id(p) not in parted])
    if not any(id(p) in parted for p in given):
        return norm
    square = _norm([p.grad for p in every if id(p) in parted]).square().to(split.parameters[0].device)
    dist.all_reduce(square)
    return (norm.square().to(square) + square).sqrt()


def _norm(grads: list[Any]) -> Tensor:
    return torch.stack(torch._foreach_norm(grads)).norm() if grads else torch.zeros(())


@torch.no_grad()
def share_overflow(split: Split) -> None:
    """Make the gradients of split parameters NaN on every rank if one of them overflowed on any.

    Before a gradient scaler looks at them, so that all ranks skip the step or none does.
    """
    for p in split.parameters:
        grad = torch.zeros(1, device=p.device) if p.grad is None else p.grad
        values = grad._values() if grad.is_sparse else grad
        bad = values.norm().float() * 0  # 0 or NaN
        dist.all_reduce(bad)
        values += bad.to(values)
