"""A trained model that embeds any images.

Axes: N images, B images of a batch, F features, D embedding dims.
"""

from __future__ import annotations

from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearfield.config import build_config
from nearfield.data.input_spec import FeatureInput, PictureInput
from nearfield.errors import InputError
from nearfield.export.description import WEIGHTS, Description, Pixels, describe, read_description
from nearfield.export.model_card import model_card
from nearfield.losses.relations import RelationalEmbedder
from nearfield.models import EmbeddingModel, Preprocessing, build_model, load_weights
from nearfield.models.embed_images import embed
from nearfield.models.ensemble import Ensemble
from nearfield.models.pretrained import Pretrained
from nearfield.progress import Progress
from nearfield.training.run_folder import RunFolder


class Embedder(nn.Module):
    """A trained model that embeds any images.

    `embed` prepares them as the model's test images were prepared. Called as a module it takes prepared input: uint8
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
        """What the model takes as input."""
        return self.description.input

    @property
    def card(self) -> str:
        """The model card, in Markdown."""
        return model_card(self.description.values(), self.input.words, self.input.shape)

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings (B, D) of prepared images."""
        embeddings: Tensor = self.net(images)
        return F.normalize(embeddings, dim=1, eps=1e-12) if self.normalize else embeddings

    def embed(self, images: Any, batch_size: int = 64, progress: Progress | None = None) -> Tensor:
        """Embeddings (N, D) of images, or of features (N, F) if the model takes features.

        Images are a list of paths, Pillow images or uint8 arrays (H, W) or (H, W, 3), or one array (N, H, W[, 3]).
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1; got {batch_size}.")
        items = self.input.items(images)
        if len(items) == 0:
            return torch.empty(0, self.dim)
        return embed(self, _Prepared(items, self.input), batch_size, progress)


class _Prepared:
    """Images that are read and prepared on demand."""

    def __init__(self, items: Any, taken: FeatureInput | PictureInput) -> None:
        self.items, self.input = items, taken

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: slice) -> Any:
        return self.input.batch(self.items[rows])


def load(path: str | PathLike[str], normalize: bool | None = None) -> Embedder:
    """The model in an exported folder, or in the folder of a finished run.

    With `normalize` its embeddings have length 1; by default they do if the run compared them by cosine.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        description = read_description(folder / "config.json")
    elif (folder / "result.json").is_file():
        description = describe(RunFolder(folder))
    else:
        rule = "must be an exported model or the folder of a finished run"
        raise InputError(f"{folder} {rule}; found no config.json and no result.json in it. Check the path.")
    net = build_net(description)
    description = description.model_copy(update={"pixels": pixels_of(net)})
    found = load_weights(net, folder / WEIGHTS)
    if found.sha256 != description.sha256:
        raise InputError(f"{folder / WEIGHTS} is not the file that was exported: its checksum differs. Export again.")
    return Embedder(net, description, found, description.distance == "cosine" if normalize is None else normalize)


def build_net(description: Description) -> nn.Module:
    """The network, before its weights are loaded."""
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


def pixels_of(net: nn.Module) -> Pixels | None:
    """The pixel values that a network takes; None if it takes features."""
    first = net.members[0] if isinstance(net, Ensemble) else net
    assert isinstance(first, EmbeddingModel)
    return None if first.preprocessing is None else build_config(Pixels, asdict(first.preprocessing))
