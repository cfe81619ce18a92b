"""Which parameters learn at which rate: the network, its head, and what the loss holds (proxies, margins)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError


def param_groups(model: nn.Module, loss: nn.Module, recipe: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups for any optimiser of torch: "backbone", "head" and "loss", those that have parameters.

    The head, whatever of `model` is outside `model.backbone`, learns at `recipe.head` times the rate; the parameters of
    the loss at `recipe.loss_lr`, with their own epsilon and weight decay (none by default: decay would pull proxies and
    margins to 0). A parameter that model and loss share belongs to the model. Frozen parameters stay out.
    """
    backbone = list(getattr(model, "backbone", model).parameters())
    seen: set[int] = set()

    def fresh(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        found = [p for p in parameters if p.requires_grad and id(p) not in seen]
        seen.update(id(p) for p in found)
        return found

    rates = {"weight_decay": recipe.weight_decay, "eps": recipe.eps}
    groups = [
        {"name": "backbone", "params": fresh(backbone), "lr": recipe.lr, **rates},
        {"name": "head", "params": fresh(list(model.parameters())), "lr": recipe.lr * recipe.head, **rates},
        {
            "name": "loss",
            "params": fresh(list(loss.parameters())),
            "lr": recipe.loss_lr,
            "weight_decay": recipe.loss_weight_decay,
            "eps": recipe.loss_eps,
        },
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, loss: nn.Module, recipe: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimiser that `recipe` names; each group keeps its rate as "base_lr", for schedules."""
    groups = [{**group, "base_lr": group["lr"]} for group in param_groups(model, loss, recipe)]
    if not groups:
        raise InputError("model and loss have no parameters that need a gradient: there is nothing to train.")
    if recipe.name == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
    elif recipe.name == "rmsprop":
        optimizer = torch.optim.RMSprop(groups, lr=recipe.lr)
    else:
        kind = torch.optim.AdamW if recipe.name == "adamw" else torch.optim.Adam
        optimizer = kind(groups, lr=recipe.lr)
    require_all_trained(optimizer, loss)
    return optimizer


def require_all_trained(optimizer: torch.optim.Optimizer, loss: nn.Module) -> None:
    """InputError if the loss learns something that the optimiser does not know: it would silently stay as it is."""
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in loss.named_parameters() if p.requires_grad and id(p) not in known]
    if missing:
        raise InputError(
            f"the optimiser does not train {', '.join(missing)} of {type(loss).__name__}; "
            "build its groups with nearfield.param_groups(model, loss, recipe)."
        )
