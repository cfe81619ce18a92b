"""Build models from a configuration.

Axes: N rows of data, F features, D embedding dims.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearfield.config import ModelConfig, build_config
from nearfield.errors import InputError
from nearfield.models import backbones
from nearfield.models.backbones import Backbone
from nearfield.models.embedding_model import EmbeddingModel
from nearfield.models.heads import make_head, make_norm, pca_head
from nearfield.models.pretrained import Pretrained, Rename, caffe_names, lite0_names, lite0_weights, load_weights

LITE0 = "efficientnet_lite0"
LITE0_TIMM = "timm:tf_efficientnet_lite0"  # the same network without the weights


def build_model(config: ModelConfig, seed: int, features: Tensor | None = None) -> EmbeddingModel:
    """A model to train; its random initialisation depends on `seed` alone.

    `features` (N, F) are the training data of the backbone "features": they give F, and the axes of init "pca". For
    images, init "pca" is left to `start_from_pca`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone, rename = _fresh_backbone(config, features)
        head = make_head(backbone.num_features, config.dim, config.head, config.init)
    norm = make_norm(backbone.num_features, config.norm)
    model = EmbeddingModel(
        backbone,
        head,
        config.dim,
        norm=norm,
        pool=config.pool,
        dropout=config.dropout,
        freeze_bn=config.freeze_bn,
        freeze_bn_affine=config.freeze_bn_affine,
        frozen_stages=config.frozen_stages,
        pretrained=_fill(backbone, rename, config),
    )
    if config.init == "pca" and features is not None:
        start_from_pca(model, features)
    return model


def pretrained_backbone(name: str, weights: Path | None = None) -> EmbeddingModel:
    """A backbone with pretrained weights and no head: its embeddings are its features, averaged over space."""
    config = build_config(ModelConfig, {"backbone": name, "weights": None if weights is None else str(weights)})
    backbone, rename = _fresh_backbone(config, None)
    pretrained = _fill(backbone, rename, config)
    if pretrained is None:
        raise InputError(f"{name} comes without weights; give weights, a .safetensors or .pth file for it.")
    model = EmbeddingModel(backbone, nn.Identity(), backbone.num_features, pretrained=pretrained)
    model.backbone_name = name
    return model


def _fresh_backbone(config: ModelConfig, features: Tensor | None) -> tuple[Backbone, Rename | None]:
    """The backbone that the configuration names, and what maps the names in a weights file to its own."""
    if config.backbone == "conv":
        return backbones.conv(config.width, config.channels), None
    if config.backbone == "features":
        if features is None or features.ndim != 2:
            raise InputError('model.backbone "features" requires data that are features (N, F); got images.')
        return backbones.features(features.shape[1]), None
    if config.backbone == "bn_inception":
        return backbones.bn_inception(), caffe_names
    if config.backbone == "googlenet":
        return backbones.googlenet(), caffe_names
    return backbones.from_timm(self_contained(config.backbone).removeprefix("timm:")), None


def self_contained(backbone: str) -> str:
    """The name of the same network without the pretrained weights that come with it."""
    return LITE0_TIMM if backbone == LITE0 else backbone


def weights_file(config: ModelConfig) -> Path | None:
    """The file of weights that the backbone starts from: the configuration's, or the one that comes with it."""
    if config.weights is not None:
        return Path(config.weights).expanduser()
    return lite0_weights() if config.backbone == LITE0 else None


def _fill(backbone: Backbone, rename: Rename | None, config: ModelConfig) -> Pretrained | None:
    """Load the backbone's pretrained weights, if there are any."""
    path = weights_file(config)
    if path is None:
        return None
    return load_weights(backbone.net, path, lite0_names if config.weights is None else rename)


def features_of(model: EmbeddingModel) -> nn.Module:
    """The model without its head, as a module of its own."""
    return _Features(model)


class _Features(nn.Module):
    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.features(images)


@lru_cache(maxsize=32)
def _pca(features: Tensor, dim: int, normed: bool) -> tuple[Tensor, Tensor]:
    """Principal components of the tensor `features`, computed once per process."""
    x = features.float()
    return pca_head(functional.layer_norm(x, x.shape[1:]) if normed else x, dim)


@torch.no_grad()
def start_from_pca(model: EmbeddingModel, features: Tensor) -> None:
    """Initialise the head with the principal components of the backbone's `features` (N, F)."""
    if not isinstance(model.head, nn.Linear):
        return
    weight, bias = _pca(features, model.head.out_features, normed=not isinstance(model.norm, nn.Identity))
    model.head.weight.copy_(weight)
    model.head.bias.copy_(bias)
