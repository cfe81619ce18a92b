"""A pretrained backbone as it is, without any training, as a model that embeds images.

Its embeddings are its features, averaged over space: the baseline of every trained model, and what indexes photographs
that nobody has labelled.
"""

from __future__ import annotations

import hashlib
from os import PathLike
from pathlib import Path

from safetensors.torch import save

from nearfield._version import __version__
from nearfield.config import BACKBONES, ModelConfig, build_config
from nearfield.data.input_spec import PictureInput
from nearfield.errors import InputError, nearest
from nearfield.export.description import Description, Training
from nearfield.export.model import Embedder, build_net, pixels_of
from nearfield.export.write import require_free, write_folder
from nearfield.models import pretrained_backbone
from nearfield.models.build import self_contained
from nearfield.training.checkpoint import copy_weights

SIZE = 224  # pixels of the side of an image


def untrained(name: str, weights: Path | None = None, size: int = SIZE) -> Embedder:
    """The backbone `name` with its pretrained weights; it takes the middle square of images, resized to `size`."""
    if name not in BACKBONES and not name.startswith("timm:"):
        rule = "model must be an exported model, the folder of a finished run, or a backbone"
        raise InputError(f"{rule}; got {name!r}, {nearest(name, BACKBONES)}")
    backbone = pretrained_backbone(name, weights)
    assert backbone.pretrained is not None
    taken = {"colour": True, "rule": "short", "resize": (size, size), "crop": (size, size)}
    origin = Training(
        run="", config="", method="none", backbone=name, pretrained=backbone.pretrained._asdict(), data="none",
        nearfield=__version__,
    )  # fmt: skip
    description = Description(
        model=ModelConfig(backbone=self_contained(name), head="none", dim=backbone.dim),
        features=backbone.dim,
        input=build_config(PictureInput, taken),
        pixels=pixels_of(backbone),
        distance="cosine",
        sha256=hashlib.sha256(save(copy_weights(backbone))).hexdigest(),
        training=origin,
        test={},
    )
    net = build_net(description)
    net.load_state_dict(backbone.state_dict())
    return Embedder(net, description, backbone.pretrained, normalize=True)


def export_untrained(
    name: str, out: str | PathLike[str], onnx: bool = False, *, weights: Path | None = None, size: int = SIZE
) -> Path:
    """Write the backbone `name` as the folder `out`, complete or not at all; with `onnx`, as ONNX too."""
    target = require_free(Path(out))
    return write_folder(untrained(name, weights, size), target, onnx)
