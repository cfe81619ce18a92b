"""From a run's configuration to its parts: sampler, model, loss, and who gives the loss its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nearfield import losses
from nearfield.config import RunConfig
from nearfield.errors import InputError
from nearfield.losses.ensembles import DREML
from nearfield.losses.memory import CrossBatchMemory
from nearfield.models import EmbeddingModel, build_model, embed
from nearfield.models.build import start_from_pca
from nearfield.models.embed_images import Rows
from nearfield.pairs import PairLoss
from nearfield.samplers import BatchSampler
from nearfield.samplers import build_sampler as sampler_by_name

ANY_CLASSES = 1000  # as many as any method needs, where a loss is built only to be looked at


class Learner(NamedTuple):
    """What learns in a run."""

    model: EmbeddingModel
    loss: nn.Module
    forward: Callable[[Tensor], Tensor]  # the loss's input: embeddings, or features where the loss has the head


def check_method(config: RunConfig) -> None:
    """InputError if the method or its parameters do not exist."""
    loss = build_loss(config, ANY_CLASSES)
    if config.member is not None and not (isinstance(loss, DREML) and 0 <= config.member < loss.members):
        raise InputError(f"member is for ensembles, and counts from 0; {config.method.name} has no {config.member}.")


def build_sampler(config: RunConfig, labels: Tensor, categories: Tensor) -> BatchSampler:
    """The batch sampler that the configuration names, over items with these labels and categories."""
    chosen, seed = config.sampler, run_seed(config)
    name = losses.method(config.method.name).sampler if chosen.name == "auto" else chosen.name
    given = (labels.numpy(), chosen.batch_size)
    return sampler_by_name(name, *given, per_class=chosen.per_class, seed=seed, categories=categories.numpy())


def build_learner(
    config: RunConfig, num_classes: int, features: Tensor | None = None, images: Rows | None = None
) -> Learner:
    """Model and loss, of an ensemble those of the member that `config` names.

    `features` (N, F) if the data are some; otherwise `images`, of which the features are taken where the head starts
    from their principal components.
    """
    sizes = {"dim": config.model.dim // ensemble_size(config)}
    model = build_model(config.model.model_copy(update=sizes), run_seed(config), features)
    if config.model.init == "pca" and features is None and images is not None:
        start_from_pca(model, embed(_Features(model), images, batch_size=64))
    loss = build_loss(config, num_classes, model.num_features)
    if isinstance(loss, DREML):
        loss = loss.member(config.member or 0)
    embedder = getattr(loss, "embedder", None)
    if embedder is not None:
        model.head = embedder
        return Learner(model, loss, model.features)
    if config.memory is not None:
        if not isinstance(loss, PairLoss):
            raise InputError(f"memory is for losses over pairs; {config.method.name} is none. Leave it out.")
        loss = CrossBatchMemory(loss, config.memory, config.model.dim)
    return Learner(model, loss, model)


class _Features(nn.Module):
    """A model without its head."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.features(images)


def build_loss(config: RunConfig, num_classes: int, features: int | None = None) -> nn.Module:
    """The method's loss; what it must know of the data is filled in, its parameters depend on the seed alone."""
    needed = losses.method(config.method.name).parameters
    known: dict[str, Any] = {"num_classes": num_classes, "dim": config.model.dim, "features": features}
    given = {name: value for name, value in known.items() if name in needed}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return losses.create(config.method.name, **{**given, **config.method.params})


def ensemble_size(config: RunConfig) -> int:
    """Members that the method trains; 1 if it is no ensemble."""
    loss = build_loss(config, ANY_CLASSES)
    return loss.members if isinstance(loss, DREML) else 1


def run_seed(config: RunConfig) -> int:
    """Of the network and its batches; members of an ensemble have their own."""
    return config.seed if config.member is None else (config.seed + 1) * 1000 + config.member
