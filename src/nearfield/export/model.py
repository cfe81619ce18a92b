"""A trained model as a folder that embeds on its own, and the way back: `export` a run, `load` the folder or the run.

    config.json          what the model is, what goes in, what it was trained on: a `Description`
    model.safetensors    its weights
    README.md            its model card
    model.onnx           if asked for; see `nearfield.onnx_files`

Axes: N images, F features, D embedding dims.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearfield import __version__
from nearfield.config import Config, Count, ModelConfig, RunConfig, build_config, load_config
from nearfield.data.atomic import whole_folder
from nearfield.errors import InputError
from nearfield.files import write_json, write_text
from nearfield.inputs import FeatureInput, Input, PictureInput, input_of
from nearfield.losses.relations import RelationalEmbedder
from nearfield.model_card import model_card
from nearfield.models import EmbeddingModel, Preprocessing, build_model, load_weights
from nearfield.models.build import LITE0, LITE0_TIMM
from nearfield.models.embedder import Progress, embed
from nearfield.models.ensemble import Ensemble
from nearfield.models.pretrained import Pretrained, State, read_weights
from nearfield.runs import RunFolder
from nearfield.supply import open_data

FORMAT = 1  # of config.json
WEIGHTS = "model.safetensors"


class Pixels(Config):
    """Pixel values as the network takes them; see `Preprocessing`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    bgr: bool


class Training(Config):
    """Where a model comes from."""

    run: str  # digest of the configuration
    config: str  # the configuration itself, in TOML
    method: str
    backbone: str  # as it was called in training
    pretrained: dict[str, Any] | None = None  # the file that the backbone started from
    data: str
    fingerprint: str | None = None  # of the data
    split: str | None = None  # fingerprint of the split
    fit_classes: int | None = None
    val_classes: int | None = None
    seed: int | None = None
    steps: int | None = None
    best_step: int | None = None
    train_seconds: float | None = None
    val: dict[str, float] | None = None  # scores that the step was chosen by
    commit: str | None = None
    nearfield: str | None = None
    torch: str | None = None


class Description(Config):
    """A trained model, all but its weights."""

    format: Literal[1] = 1
    nearfield: str = __version__  # the version that wrote this
    model: ModelConfig  # of the whole model; it needs no other file
    members: Count | None = None  # of an ensemble
    branches: Count | None = None  # of a relational head (DRML)
    features: Count  # F that the head sees
    input: Input
    pixels: Pixels | None = None  # None: features go in
    distance: Literal["cosine", "euclidean", "hamming"]
    sha256: str  # of the weights
    training: Training
    test: dict[str, float]  # scores on the test classes; none if it was not tested


class Embedder(nn.Module):
    """A trained model that takes anybody's images.

    `embed` prepares them as the model's test images were. Called as a module it takes what is prepared already: uint8
    images (B, H, W) or (B, H, W, 3) of the shape `input.shape`, or features (B, F).
    """

    def __init__(self, net: nn.Module, description: Description, pretrained: Pretrained, normalize: bool) -> None:
        super().__init__()
        self.net = net
        self.description = description
        self.pretrained = pretrained  # the file of its weights
        self.normalize = normalize
        self.eval()

    @property
    def dim(self) -> int:
        """Embedding dims D."""
        return self.description.model.dim

    @property
    def input(self) -> FeatureInput | PictureInput:
        """What the model takes."""
        return self.description.input

    @property
    def card(self) -> str:
        """The model card, in Markdown."""
        return model_card(self.description.model_dump(mode="json"), self.input.words, self.input.shape)

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings (B, D) of prepared images."""
        embeddings: Tensor = self.net(images)
        return F.normalize(embeddings, dim=1, eps=1e-12) if self.normalize else embeddings

    def embed(self, images: Any, batch_size: int = 64, progress: Progress | None = None) -> Tensor:
        """Embeddings (N, D) of images: a list of paths, Pillow images or uint8 arrays (H, W) or (H, W, 3), or one array
        (N, H, W) or (N, H, W, 3); of features (N, F) if that is what the model takes.
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1; got {batch_size}.")
        items = self.input.items(images)
        if len(items) == 0:
            return torch.empty(0, self.dim)
        return embed(self, _Prepared(items, self.input), batch_size, progress)


class _Prepared:
    """Images that are read and prepared when they are asked for."""

    def __init__(self, items: Any, taken: FeatureInput | PictureInput) -> None:
        self.items, self.input = items, taken

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: slice) -> Any:
        return self.input.batch(self.items[rows])


def load(path: str | PathLike[str], normalize: bool | None = None) -> Embedder:
    """The model in an exported folder, or in the folder of a finished run.

    Its embeddings have length 1 with `normalize`; by default if the run compared them by cosine.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        description = _read_description(folder / "config.json")
    elif (folder / "result.json").is_file():
        description = describe(RunFolder(folder))
    else:
        rule = "must be an exported model or the folder of a finished run"
        raise InputError(f"{folder} {rule}; found no config.json and no result.json in it.")
    net = build_net(description)
    description = description.model_copy(update={"pixels": _pixels(net)})
    found = load_weights(net, folder / WEIGHTS)
    if found.sha256 != description.sha256:
        raise InputError(f"{folder / WEIGHTS} is not the file that was exported: it is damaged. Export the run again.")
    return Embedder(net, description, found, description.distance == "cosine" if normalize is None else normalize)


def export(run_folder: str | PathLike[str], out: str | PathLike[str], onnx: bool = False) -> Path:
    """Write the trained model of a finished run as the folder `out`, whole or not at all; with `onnx`, as ONNX too."""
    run, target = RunFolder(Path(run_folder)), Path(out)
    if run.result is None:
        raise InputError(f"{run.path} must be the folder of a finished run; found no result.json in it.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists already; delete it or choose another folder.")
    model = load(run.path)
    with whole_folder(target) as draft:
        shutil.copyfile(run.path / WEIGHTS, draft / WEIGHTS)
        write_json(draft / "config.json", model.description.model_dump(mode="json"))
        opset = None
        if onnx:
            from nearfield.onnx_files import OPSET, write_onnx

            write_onnx(model, draft / "model.onnx")
            opset = OPSET
        values = model.description.model_dump(mode="json")
        write_text(draft / "README.md", model_card(values, model.input.words, model.input.shape, opset))
        draft.chmod(target.parent.stat().st_mode & 0o755)  # temporary folders are their maker's alone
    return target


def describe(run: RunFolder) -> Description:
    """The model of a finished run, but for its pixel values, which the network knows."""
    config = load_config(RunConfig, run.path / "config.toml")
    state, sha256 = read_weights(run.path / WEIGHTS)
    sizes = _sizes(state, config.model.dim)
    backbone = LITE0_TIMM if config.model.backbone == LITE0 else config.model.backbone
    changes = {"weights": None, "init": "default", "backbone": backbone, "dim": sizes["dim"]}
    facts = _json(run.path / "environment.json")
    result = run.result or {}
    values: dict[str, Any] = {
        "model": config.model.model_copy(update=changes).model_dump(mode="json"),
        **{key: sizes[key] for key in ("members", "branches", "features")},
        "input": _input(config, facts, sizes["features"]),
        "distance": config.distance,
        "sha256": sha256,
        "training": _training(config, facts, result),
        "test": result.get("test", {}),
    }
    return build_config(Description, values)


def build_net(description: Description) -> nn.Module:
    """The network, with weights still to be loaded."""
    members = description.members or 1
    each = description.model.model_copy(update={"dim": description.model.dim // members})
    features = torch.empty(0, description.features) if each.backbone == "features" else None

    def one() -> EmbeddingModel:
        model = build_model(each, 0, features)
        if description.branches is not None:
            model.head = RelationalEmbedder(description.features, each.dim, description.branches)
        if description.pixels is not None:
            model.preprocessing = Preprocessing(**description.pixels.model_dump())
        return model

    return one() if description.members is None else Ensemble(one() for _ in range(members))


def _pixels(net: nn.Module) -> Pixels | None:
    first = net.members[0] if isinstance(net, Ensemble) else net
    assert isinstance(first, EmbeddingModel)
    return None if first.preprocessing is None else build_config(Pixels, asdict(first.preprocessing))


def _sizes(state: State, dim: int) -> dict[str, Any]:
    """Members, branches, F and D, from the names and shapes of the weights; D is `dim` if there is no head."""
    members = len({name.split(".")[1] for name in state if name.startswith("members.")}) or None
    head = "head" if members is None else "members.0.head"
    nodes = [name for name in state if name.startswith(f"{head}.nodes.") and name.endswith(".weight")]
    branches = len(nodes) or None
    first = state.get(nodes[0] if nodes else f"{head}.weight")  # (D, F), or (D / K, F / K)
    each = (dim // (members or 1),) * 2 if first is None else tuple(size * (branches or 1) for size in first.shape)
    return {"members": members, "branches": branches, "features": each[1], "dim": each[0] * (members or 1)}


def _input(config: RunConfig, facts: Mapping[str, Any], features: int) -> dict[str, Any]:
    """What the run's model takes: as it was written down, or as the run's data say."""
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


def _read_description(path: Path) -> Description:
    values = _json(path)
    if values.get("format") != FORMAT:
        raise InputError(
            f"{path} must have format {FORMAT}; got {values.get('format')!r}. Export again, or update nearfield."
        )
    try:
        return build_config(Description, values)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}. Is the folder whole?") from error
    except ValueError as error:  # of JSON and of UTF-8
        raise InputError(f"{path} is damaged: {error}.") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} is damaged: it must hold a JSON object.")
    return found
