"""Parameter groups: every parameter once, at its rate; a forgotten one stops the training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import nearfield as nf
from nearfield import losses
from nearfield.config import ModelConfig, OptimizerConfig
from nearfield.errors import InputError
from nearfield.models import build_model
from nearfield.training.optimizers import build_optimizer, learning_rate_factor, param_groups, require_all_trained


def test_groups_have_the_rates_of_the_recipe() -> None:
    model, loss = build_model(ModelConfig(width=2), 0), losses.create("proxy_anchor", num_classes=5, dim=64)
    recipe = OptimizerConfig(lr=1e-4, head=10.0, loss_lr=1e-2, weight_decay=1e-3, eps=1e-7, loss_eps=0.01)
    groups = {group["name"]: group for group in nf.param_groups(model, loss, recipe)}
    assert {name: group["lr"] for name, group in groups.items()} == {"backbone": 1e-4, "head": 1e-3, "loss": 1e-2}
    assert (groups["loss"]["weight_decay"], groups["loss"]["eps"]) == (0.0, 0.01)
    assert (groups["head"]["weight_decay"], groups["head"]["eps"]) == (1e-3, 1e-7)
    assert groups["loss"]["params"] == [loss.proxies]
    assert groups["head"]["params"] == [model.head.weight, model.head.bias]


@pytest.mark.parametrize("name", losses.names())
def test_every_parameter_is_in_one_group(name: str) -> None:
    known: dict[str, Any] = {"num_classes": 5, "dim": 16, "features": 8}
    asked = losses.method(name).parameters
    loss = losses.create(name, **{k: v for k, v in known.items() if k in asked})
    model = build_model(ModelConfig(width=2, dim=16), 0)
    model.head = getattr(loss, "embedder", model.head)
    found = [p for group in param_groups(model, loss, OptimizerConfig()) for p in group["params"]]
    assert len(found) == len({id(p) for p in found})
    assert {id(p) for p in found} == {id(p) for module in (model, loss) for p in module.parameters()}


def test_frozen_parameters_stay_out() -> None:
    model, loss = build_model(ModelConfig(width=2), 0), losses.create("contrastive")
    model.freeze_backbone()
    assert [g["name"] for g in param_groups(model, loss, OptimizerConfig())] == ["head"]
    model.head.requires_grad_(False)
    with pytest.raises(InputError, match="nothing to train"):
        build_optimizer(model, loss, OptimizerConfig())


def test_a_plain_network_is_one_group() -> None:
    groups = param_groups(nn.Linear(3, 2), losses.create("contrastive"), OptimizerConfig(lr=0.5))
    assert [(g["name"], g["lr"]) for g in groups] == [("backbone", 0.5)]


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "rmsprop"])
def test_every_optimiser_steps_the_loss_too(name: str) -> None:
    model, loss = nn.Linear(3, 4), losses.create("proxy_softmax", num_classes=3, dim=4)
    optimizer = build_optimizer(model, loss, OptimizerConfig(name=name))  # type: ignore[arg-type]
    before = loss.get_parameter("proxies").detach().clone()
    loss(model(torch.randn(6, 3)), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
    optimizer.step()
    assert not torch.equal(before, loss.get_parameter("proxies"))


def test_a_forgotten_parameter_is_named() -> None:
    model, loss = nn.Linear(3, 4), losses.create("margin", num_classes=3)
    with pytest.raises(InputError, match=r"does not train beta of Margin.*param_groups"):
        require_all_trained(torch.optim.SGD(model.parameters(), lr=0.1), loss)


@pytest.mark.parametrize("name", [n for n in losses.names() if losses.method(n).recipe])
def test_published_recipes_build(name: str) -> None:
    asked = losses.method(name).parameters
    known: dict[str, Any] = {"num_classes": 5, "dim": 16}
    loss = losses.create(name, **{k: v for k, v in known.items() if k in asked})
    recipe = losses.method(name).recipe
    assert recipe is not None
    build_optimizer(build_model(ModelConfig(width=2, dim=16), 0), loss, recipe)


def test_biases_and_norms_may_stay_without_decay() -> None:
    model, loss = build_model(ModelConfig(width=2), 0), losses.create("proxy_anchor", num_classes=5, dim=64)
    groups = param_groups(model, loss, OptimizerConfig(weight_decay=0.1, decay_biases=False))
    decayed = {id(p) for group in groups if group["weight_decay"] > 0 for p in group["params"]}
    assert decayed == {id(p) for p in model.parameters() if p.ndim > 1}
    assert sum(len(group["params"]) for group in groups) == len([*model.parameters(), *loss.parameters()])


def test_the_schedule_warms_up_and_ends_low() -> None:
    factors = [learning_rate_factor(step, 100, OptimizerConfig(warmup_steps=10)) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[10] == 1.0
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[-1] < 0.01


def test_the_schedule_drops_or_stays() -> None:
    drops = OptimizerConfig(schedule="step", decay_every=30, decay=0.5, warmup_steps=0)
    assert [learning_rate_factor(step, 100, drops) for step in (0, 29, 30, 59, 60, 99)] == [1, 1, 0.5, 0.5, 0.25, 0.125]
    stays = OptimizerConfig(schedule="constant", warmup_steps=2)
    assert [learning_rate_factor(step, 100, stays) for step in (0, 1, 2, 99)] == [0.5, 1, 1, 1]
    with pytest.raises(ValueError, match='schedule "step" needs decay_every'):
        OptimizerConfig(schedule="step")
