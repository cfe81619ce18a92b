"""A head trained on frozen features, joined with the backbone that computed them: one network that takes images.

A features file that `nearfield embed` wrote records its backbone and how its images were prepared; of any other file
the caller must say both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from nearfield import data
from nearfield.config import ModelConfig, build_config
from nearfield.data import user_datasets
from nearfield.data.input_spec import PictureInput
from nearfield.errors import InputError
from nearfield.export.description import Description
from nearfield.export.model import Embedder, build_net, pixels_of
from nearfield.metrics.from_files import read_info
from nearfield.models import EmbeddingModel, pretrained_backbone
from nearfield.models.build import self_contained
from nearfield.models.ensemble import Ensemble


class Backbone(NamedTuple):
    """What turned images into features."""

    name: str
    input: PictureInput
    sha256: str | None = None  # of its weights, if they were recorded


def choose_backbone(
    description: Description, name: str | None, size: int | None = None, resize: str | None = None
) -> Backbone | None:
    """The backbone called `name` with images at `size`, by default what the features file records; None for "none".

    InputError if the two contradict each other, or nothing is known about the images.
    """
    if name == "none" or description.model.backbone != "features":
        if name not in (None, "none"):
            raise InputError(f"backbone is for a head trained on features, but this model has its own; got {name}.")
        return None
    known = recorded_backbone(description)
    name = name or (known.name if known else None)
    if name is None:
        if size is not None or resize is not None:
            raise InputError("size and resize are those of a backbone's images; give --backbone too.")
        return None
    if known is not None and known.name != name:
        raise InputError(f"backbone must be {known.name}, which computed the features; got {name}.")
    if size is None:
        if known is None:
            raise InputError("size is missing: the features do not record how large their images were; give --size.")
        return known
    rule = "exact" if resize == "square" else "short"
    taken = build_config(PictureInput, {"colour": True, "rule": rule, "resize": (size, size), "crop": (size, size)})
    if known is not None and known.input != taken:
        raise InputError(f"size and resize must be those of the features, {known.input.words}; got {taken.words}.")
    return known or Backbone(name, taken)


def recorded_backbone(description: Description) -> Backbone | None:
    """The backbone that the run's features file records; None if it records none, or is not the file trained on."""
    name = description.training.data
    path = Path(name) if Path(name).suffix == ".npz" else user_datasets.source(name)
    info = {} if path is None else read_info(path)
    if not info.get("backbone") or data.load(name).fingerprint != description.training.fingerprint:
        return None
    found: Mapping[str, Any] = info["backbone"]
    return Backbone(found["name"], build_config(PictureInput, found["input"]), (info.get("model") or {}).get("sha256"))


def join(head: Embedder, backbone: Backbone, weights: Path | None = None) -> Embedder:
    """One network of a backbone with pretrained weights and a head trained on its features.

    InputError if the widths or the backbone's weights are not those that the head was trained with.
    """
    below, old = pretrained_backbone(backbone.name, weights), head.description
    if below.dim != old.features:
        raise InputError(f"backbone {backbone.name} gives {below.dim} features, but the head takes {old.features}.")
    assert below.pretrained is not None
    if backbone.sha256 not in (None, below.pretrained.sha256):
        raise InputError(
            f"the features were computed with other weights of {backbone.name}: sha256 {backbone.sha256} there, "
            f"{below.pretrained.sha256} in {below.pretrained.source}. Give the same file with --weights."
        )
    kept = {key: getattr(old.model, key) for key in ("dim", "norm", "head")}  # all else is the backbone's default
    made = {"backbone": backbone.name, "pretrained": below.pretrained._asdict()}
    changes = {
        "model": ModelConfig(backbone=self_contained(backbone.name), **kept),
        "input": backbone.input,
        "pixels": pixels_of(below),
        "joined": backbone.name,
        "training": old.training.model_copy(update=made),
    }
    description = old.model_copy(update=changes)
    net = build_net(description)
    for model, trained in zip(_members(net), _members(head.net), strict=True):
        for name, part in (("backbone", below.backbone), ("norm", trained.norm), ("head", trained.head)):
            model.get_submodule(name).load_state_dict(part.state_dict())
    return Embedder(net, description, below.pretrained, head.normalize)


def _members(net: nn.Module) -> list[EmbeddingModel]:
    found = list(net.members) if isinstance(net, Ensemble) else [net]
    return [model for model in found if isinstance(model, EmbeddingModel)]
