"""Parameter groups and learning rates: the network, its head, and the parameters of the loss (proxies, margins)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError


def param_groups(model: nn.Module, loss: nn.Module, recipe: OptimizerConfig) -> list[dict[str, Any]]:
    """Parameter groups for any optimizer of torch: "backbone", "head" and "loss", those that have parameters.

    The head, everything in `model` outside `model.backbone`, learns at `recipe.head` times the rate; the parameters of
    the loss at `recipe.loss_lr`, with their own epsilon and weight decay (none by default: decay would pull proxies and
    margins to 0). A parameter that model and loss share belongs to the model. Frozen parameters are left out. Without
    `recipe.decay_biases`, biases and norms (parameters with at most one axis) get groups of their own without decay.
    """
    backbone = list(getattr(model, "backbone", model).parameters())
    seen: set[int] = set()

    def fresh(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        found = [p for p in parameters if p.requires_grad and id(p) not in seen]
        seen.update(id(p) for p in found)
        return found

    def of_network(name: str, parameters: Iterable[nn.Parameter], lr: float) -> list[dict[str, Any]]:
        given, mine = {"name": name, "lr": lr, "eps": recipe.eps}, fresh(parameters)
        if recipe.decay_biases:
            return [{**given, "params": mine, "weight_decay": recipe.weight_decay}]
        kinds = ((recipe.weight_decay, [p for p in mine if p.ndim > 1]), (0.0, [p for p in mine if p.ndim <= 1]))
        return [{**given, "params": some, "weight_decay": decay} for decay, some in kinds]

    groups = [
        *of_network("backbone", backbone, recipe.lr),
        *of_network("head", model.parameters(), recipe.lr * recipe.head),
        {
            "name": "loss",
            "params": fresh(loss.parameters()),
            "lr": recipe.loss_lr,
            "weight_decay": recipe.loss_weight_decay,
            "eps": recipe.loss_eps,
        },
    ]
    return [group for group in groups if group["params"]]


def learning_rate_factor(step: int, steps: int, recipe: OptimizerConfig) -> float:
    """The factor of every learning rate at a step: linear warm-up, then the schedule.

    "cosine" falls to 0 at the last step along half a cosine; "step" multiplies by `decay` every `decay_every` steps.
    """
    warm = recipe.warmup_steps
    if step < warm:
        return (step + 1) / warm
    if recipe.schedule == "step":
        assert recipe.decay_every is not None
        return float(recipe.decay ** (step // recipe.decay_every))
    if recipe.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def build_optimizer(model: nn.Module, loss: nn.Module, recipe: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer that `recipe` names; each group keeps its rate as "base_lr", for schedules."""
    groups = [{**group, "base_lr": group["lr"]} for group in param_groups(model, loss, recipe)]
    if not groups:
        raise InputError("model and loss have no parameters that need a gradient: there is nothing to train.")
    if recipe.name == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, fused=True)
    elif recipe.name == "rmsprop":
        optimizer = torch.optim.RMSprop(groups, lr=recipe.lr, momentum=recipe.momentum)
    else:
        kind = torch.optim.AdamW if recipe.name == "adamw" else torch.optim.Adam
        optimizer = kind(groups, lr=recipe.lr, fused=True)
    require_all_trained(optimizer, loss)
    return optimizer


def clip_gradients(
    optimizer: torch.optim.Optimizer, recipe: OptimizerConfig, norm: Callable[[list[nn.Parameter]], Tensor]
) -> None:
    """Scale gradients down to the norm `recipe.clip`: the network's as one, or backbone, head and loss each.

    `norm` computes that of the gradients of some parameters, of which other processes may have more.
    """
    if recipe.clip is None:
        return
    parts: dict[str, list[nn.Parameter]] = {}
    for group in optimizer.param_groups:
        if recipe.clip_by == "part" or group["name"] != "loss":
            parts.setdefault(group["name"] if recipe.clip_by == "part" else "network", []).extend(group["params"])
    for parameters in parts.values():
        factor = (recipe.clip / (norm(parameters) + 1e-6)).clamp(max=1.0)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.device))


def require_all_trained(optimizer: torch.optim.Optimizer, loss: nn.Module) -> None:
    """InputError if a parameter of the loss is missing from the optimizer: it would silently never learn."""
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in loss.named_parameters() if p.requires_grad and id(p) not in known]
    if missing:
        raise InputError(
            f"the optimizer does not train {', '.join(missing)} of {type(loss).__name__}; "
            "build its parameter groups with nearfield.param_groups(model, loss, recipe)."
        )
