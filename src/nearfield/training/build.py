"""Build the parts of a run from its configuration: sampler, model, loss, and what computes the loss's input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from nearfield import losses
from nearfield.config import RunConfig
from nearfield.errors import InputError, nearest
from nearfield.losses.memory import CrossBatchMemory
from nearfield.losses.protocols import Ensembled, HoldsHead
from nearfield.losses.proxy_loss import ProxyLoss
from nearfield.models import EmbeddingModel, build_model, embed
from nearfield.models.activations import digest_of
from nearfield.models.build import features_of, start_from_pca
from nearfield.models.embed_images import Rows
from nearfield.samplers import BatchSampler
from nearfield.samplers import build_sampler as sampler_by_name

MOST_CLASSES = 2**31 - 1  # stands for the number of classes while the data are not known
MOST_STARTS = 4
_starts: dict[str, Tensor] = {}  # features (N, F) that heads of this process started from, by what they are of


class Learner(NamedTuple):
    """The parts of a run that learn."""

    model: EmbeddingModel
    loss: nn.Module
    forward: Callable[[Tensor], Tensor]  # computes the loss's input: embeddings, or the head's input if the loss has it


def check_method(config: RunConfig) -> None:
    """InputError unless the method exists and its parameters and what depends on it fit it. Builds nothing."""
    method, name = losses.method(config.method.name), config.method.name
    members = ensemble_size(config)
    if config.member is not None and not (method.members and config.member < members):
        raise InputError(f"member is for ensembles, and counts from 0; {name} has no member {config.member}.")
    if method.holds_head and config.model.dropout:
        raise InputError(
            f"model.dropout must be 0 with {name}, which embeds the features itself; got {config.model.dropout}. "
            "Remove it."
        )
    if config.memory is not None and not method.takes_references(loss_params(config, MOST_CLASSES)):
        raise InputError(
            f"`memory` requires a pair loss that compares with references, but {name} is not one; got {config.memory}. "
            "Remove `memory` from the configuration."
        )
    if config.shard_proxies and not method.shards:
        raise InputError(
            f"`shard_proxies` requires a loss with proxies that can be split over processes, but {name} is not one; "
            "got true. Remove `shard_proxies` from the configuration."
        )
    if config.proxy_start != "random" and config.shard_proxies:
        raise InputError(
            f"proxy_start must be random with shard_proxies, which splits proxies; got {config.proxy_start!r}. "
            "Remove one of them."
        )
    if config.proxy_start != "random" and not method.has_proxies:
        raise InputError(
            f"proxy_start must be random for {name}, which has no proxies of its own; got {config.proxy_start!r}. "
            "Remove it from the configuration."
        )


def build_sampler(
    config: RunConfig, labels: Tensor, categories: Tensor, category_names: Sequence[str] = ()
) -> BatchSampler:
    """The batch sampler that the configuration names, for images with these labels and categories."""
    chosen, seed = config.sampler, run_seed(config)
    published = losses.method(config.method.name).sampler_of(config.method.params)
    name = published if chosen.name == "auto" else chosen.name
    options = chosen.options()
    if chosen.unlabelled is not None:
        if chosen.unlabelled not in category_names:
            raise InputError(
                f"sampler.unlabelled must be a category of the data; got {chosen.unlabelled!r}. "
                f"{nearest(chosen.unlabelled, category_names)}"
            )
        options["unlabelled"] = category_names.index(chosen.unlabelled)
    given = (labels.numpy(), chosen.batch_size)
    return sampler_by_name(
        name, *given, per_class=chosen.per_class, seed=seed, categories=categories.numpy(), **options
    )


def build_learner(config: RunConfig, num_classes: int, features: Tensor | None = None) -> Learner:
    """Model and loss; of an ensemble, those of the member that `config` names. `features` (N, F) if the data are such.

    For images, init "pca" is left to `start_from_images`.
    """
    sizes = {"dim": config.model.dim // ensemble_size(config)}
    model = build_model(config.model.model_copy(update=sizes), run_seed(config), features)
    method, loss = losses.method(config.method.name), build_loss(config, num_classes, model.num_features)
    if method.members:
        loss = cast(Ensembled, loss).member(config.member or 0)
    if method.holds_head:
        model.head = cast(HoldsHead, loss).embedder
        return Learner(model, loss, model.input_of_head)
    if config.memory is not None:
        loss = CrossBatchMemory(loss, config.memory, config.model.dim)
    return Learner(model, loss, model)


def start_from_images(model: EmbeddingModel, images: Rows, data: str) -> None:
    """Initialise the head with the principal components of the backbone's features of images.

    `data` tells these images from all others. Trials and seeds of a bench start from one pretrained network: a process
    computes its features once.
    """
    key = digest_of([model.backbone], f"{data} {model.pool} {model.preprocessing}")
    if key not in _starts:
        while len(_starts) >= MOST_STARTS:
            del _starts[next(iter(_starts))]
        _starts[key] = embed(features_of(model), images, batch_size=64)
    start_from_pca(model, _starts[key])


@torch.no_grad()
def start_at_class_means(loss: ProxyLoss, embeddings: Tensor, labels: Tensor) -> None:
    """Turn every proxy to the mean direction of its class's embeddings (N, D); its length stays that of its start.

    So the learning rate means the same as with random proxies. Several centers of a class would stay equal for ever:
    each keeps a tenth of its own direction.
    """
    unit = nn.functional.normalize(embeddings.to(loss.proxies))
    means = torch.zeros(loss.num_classes, unit.shape[1]).to(unit).index_add_(0, labels.to(unit.device), unit)
    directions = nn.functional.normalize(means).repeat_interleave(loss.centers, dim=0)  # (C * centers, D)
    if loss.centers > 1:
        directions = nn.functional.normalize(directions + 0.1 * nn.functional.normalize(loss.proxies))
    loss.proxies.copy_(directions * loss.proxies.norm(dim=1, keepdim=True))


def build_loss(config: RunConfig, num_classes: int, features: int | None = None) -> nn.Module:
    """The method's loss; what it learns starts from numbers that depend on the seed alone."""
    params = loss_params(config, num_classes, features) | ({"shard": True} if config.shard_proxies else {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return losses.create(config.method.name, **params)


def loss_params(config: RunConfig, num_classes: int, features: int | None = None) -> dict[str, Any]:
    """All parameters of the method, checked: the configuration's, defaults, what it must know of data and run."""
    name = config.method.name
    known: dict[str, Any] = {"num_classes": num_classes, "dim": config.model.dim, "features": features}
    known["seed"] = config.seed  # so that seeds differ in all that is drawn: groupings of classes, negatives
    given = {key: value for key, value in known.items() if key in losses.method(name).parameters}
    return losses.check_params(name, {**given, **config.method.params})


def distance_of(config: RunConfig) -> str:
    """The distance that the run's embeddings are ranked by: the configuration's, or the method's own if it has one."""
    own = losses.method(config.method.name).ranked_by(config.method.params)
    return own if config.distance in ("cosine", own.partition(":")[0]) else config.distance


def ensemble_size(config: RunConfig) -> int:
    """How many networks the method trains; 1 unless it is an ensemble."""
    return losses.method(config.method.name).networks(loss_params(config, MOST_CLASSES))


def run_seed(config: RunConfig) -> int:
    """The seed of the network and its batches; members of an ensemble have their own."""
    return config.seed if config.member is None else (config.seed + 1) * 1000 + config.member
