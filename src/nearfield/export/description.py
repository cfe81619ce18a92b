"""The description of a trained model: everything but its weights, stored beside them.

Axes: F features, D embedding dims.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from nearfield._version import __version__
from nearfield.config import Config, Count, ModelConfig, RunConfig, build_config, load_config
from nearfield.data.input_spec import FeatureInput, Input, input_of
from nearfield.errors import InputError
from nearfield.files import read_json
from nearfield.models.build import self_contained
from nearfield.models.pretrained import State, read_weights
from nearfield.training.batches import open_data
from nearfield.training.build import distance_of
from nearfield.training.run_folder import RunFolder

FORMAT = 1  # of config.json
WEIGHTS = "model.safetensors"


class Pixels(Config):
    """How pixel values enter the network; see `Preprocessing`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    bgr: bool


class Training(Config):
    """Where a model comes from."""

    run: str  # digest of the configuration
    config: str  # the configuration itself, in TOML
    method: str
    backbone: str  # as the configuration names it
    pretrained: dict[str, Any] | None = None  # the file of weights that the backbone started from
    data: str
    fingerprint: str | None = None  # of the data
    split: str | None = None  # fingerprint of the split
    fit_classes: int | None = None
    val_classes: int | None = None
    classes: tuple[str, ...] | None = None  # names of the training classes, validation included, where they are known
    seed: int | None = None
    steps: int | None = None
    best_step: int | None = None
    train_seconds: float | None = None
    val: dict[str, float] | None = None  # validation scores of the chosen step
    start: dict[str, dict[str, float]] | None = None  # validation and test scores before the first step
    commit: str | None = None
    nearfield: str | None = None
    torch: str | None = None


class Description(Config):
    """Everything about a trained model but its weights."""

    format: Literal[1] = 1
    nearfield: str = __version__  # the version that wrote this
    model: ModelConfig  # of the whole model; no other file is needed
    members: Count | None = None  # of an ensemble
    branches: Count | None = None  # of a relational head (DRML)
    features: Count  # F, inputs of the head
    input: Input
    pixels: Pixels | None = None  # None: the input is features
    distance: str  # as `retrieval_metrics` takes it
    sha256: str  # of the weights
    training: Training
    test: dict[str, float]  # scores on the test classes; empty if not tested
    joined: str | None = None  # the backbone on whose frozen features the head was trained

    def values(self) -> dict[str, Any]:
        """What goes into config.json."""
        unset: dict[str, Any] = {} if self.joined else {"joined": True}
        if self.training.classes is None:
            unset["training"] = {"classes"}
        return self.model_dump(mode="json", exclude=unset)


def describe(run: RunFolder) -> Description:
    """Describe the model of a finished run, without its pixel values, which the network itself knows."""
    config = load_config(RunConfig, run.path / "config.toml")
    state, sha256 = read_weights(run.path / WEIGHTS)
    sizes = _sizes(state, config.model.dim)
    changes = {"weights": None, "init": "default", "backbone": self_contained(config.model.backbone)}
    facts = read_json(run.path / "environment.json", InputError)
    result = run.result or {}
    values: dict[str, Any] = {
        "model": config.model.model_copy(update={**changes, "dim": sizes["dim"]}).model_dump(mode="json"),
        **{key: sizes[key] for key in ("members", "branches", "features")},
        "input": _input(config, facts, sizes["features"]),
        "distance": distance_of(config),
        "sha256": sha256,
        "training": _training(config, facts, result),
        "test": result.get("test", {}),
    }
    return build_config(Description, values)


def _sizes(state: State, dim: int) -> dict[str, Any]:
    """Members, branches, F and D, read from the names and shapes of the weights; D is `dim` if there is no head."""
    members = len({name.split(".")[1] for name in state if name.startswith("members.")}) or None
    head = "head" if members is None else "members.0.head"
    nodes = [name for name in state if name.startswith(f"{head}.nodes.") and name.endswith(".weight")]
    branches = len(nodes) or None
    first = state.get(nodes[0] if nodes else f"{head}.weight")  # (D, F), or (D / K, F / K)
    each = (dim // (members or 1),) * 2 if first is None else tuple(size * (branches or 1) for size in first.shape)
    return {"members": members, "branches": branches, "features": each[1], "dim": each[0] * (members or 1)}


def _input(config: RunConfig, facts: Mapping[str, Any], features: int) -> dict[str, Any]:
    """The input of the run's model: as recorded, or else as the run's data imply."""
    if "input" in facts:
        return dict(facts["input"])
    if config.model.backbone == "features":
        return FeatureInput(features=features).model_dump(mode="json")
    return input_of(open_data(config.data), config.data).model_dump(mode="json")


def _training(config: RunConfig, facts: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in {**facts, **result}.items() if key in Training.model_fields}
    return {
        **known,
        "run": config.digest(),
        "config": config.to_toml(),
        "method": config.method.name,
        "backbone": config.model.backbone,
        "data": config.data.name,
        "fingerprint": facts.get("data"),
    }


def read_description(path: Path) -> Description:
    values = read_json(path, InputError)
    if values.get("format") != FORMAT:
        raise InputError(
            f"{path} must have format {FORMAT}; got {values.get('format')!r}. Export again, or update nearfield."
        )
    try:
        return build_config(Description, values)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from error
