"""The embedding model: backbone, pooling, norm, head.

Axes: B images, H x W pixels, C channels and h x w places of an activation, F features, D embedding dims.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearfield.errors import InputError
from nearfield.models.backbones import Backbone
from nearfield.models.heads import pooled, require_pool
from nearfield.models.pretrained import Pretrained


class EmbeddingModel(nn.Module):
    """z = head(norm(pool(backbone(images)))), not normalised: losses normalise themselves.

    With `freeze_bn` the backbone's batch norm stays in evaluation mode during training; with `freeze_bn_affine` its
    scale and shift are frozen too. The first `frozen_stages` stages of the backbone are never trained: neither weights
    nor statistics change. A model that `takes_activations` is given what comes out of them in place of images.
    """

    takes_activations = False
    backbone_name: str | None = None  # of a backbone without a head, as a configuration names it

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Module,
        dim: int,
        *,
        norm: nn.Module | None = None,
        pool: str = "avg",
        dropout: float = 0.0,
        freeze_bn: bool = False,
        freeze_bn_affine: bool = False,
        frozen_stages: int = 0,
        pretrained: Pretrained | None = None,
    ) -> None:
        super().__init__()
        if frozen_stages > len(backbone.stages):
            has = f"has {len(backbone.stages)}" if backbone.stages else "has none that are known"
            raise InputError(
                f"frozen_stages must be at most the number of the backbone's stages; this one {has}, got "
                f"{frozen_stages}. The backbone conv and the EfficientNets have stages; set 0 for others."
            )
        self.backbone = backbone.net
        self.frozen, self._later = backbone.stages[:frozen_stages], backbone.stages[frozen_stages:]
        self.norm = norm or nn.Identity()
        self.head = head
        self.dropout = nn.Dropout(dropout)  # the last layer before the loss normalises
        self.num_features = backbone.num_features  # F
        self.dim = dim  # D
        self.preprocessing = backbone.preprocessing
        self.pretrained = pretrained
        self.pool = require_pool(pool)
        self.freeze_bn = freeze_bn
        self.freeze_bn_affine = freeze_bn_affine
        self.backbone_frozen = False
        self._arrange = backbone.arrange
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on CPU
        self.freeze_backbone(False)
        self.train()

    def features(self, images: Tensor) -> Tensor:
        """Features (B, F) of images as `Preprocessing` takes them; for the backbone "features", the input itself."""
        dtype = next((p.dtype for p in self.parameters()), torch.float32)
        if self.preprocessing is None:
            if images.ndim != 2 or images.shape[1] != self.num_features:
                raise InputError(f"features must be (B, {self.num_features}); got {tuple(images.shape)}.")
            return images.to(dtype)
        if not self.frozen:
            x = self.backbone(self.preprocessing(images, dtype))
        else:
            x = images.to(dtype) if self.takes_activations else self.activations(images)
            for stage in self._later:
                x = stage(x)
        return pooled(self._arrange(x) if self._arrange else x, self.pool)

    @torch.no_grad()
    def activations(self, images: Tensor) -> Tensor:
        """What comes out of the frozen stages, (B, C, h, w)."""
        assert self.preprocessing is not None  # a backbone that has stages takes images
        x = self.preprocessing(images, next(self.backbone.parameters()).dtype)
        for stage in self.frozen:
            x = stage(x)
        return x

    def input_of_head(self, images: Tensor) -> Tensor:
        """Features (B, F) as the head takes them: normalised, if the model has a norm."""
        normed: Tensor = self.norm(self.features(images))
        return normed

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings (B, D)."""
        embeddings: Tensor = self.dropout(self.head(self.input_of_head(images)))
        return embeddings

    def train(self, mode: bool = True) -> EmbeddingModel:
        """Set the mode; what is frozen stays in evaluation mode."""
        super().train(mode)
        if self.backbone_frozen:
            self.backbone.eval()
        elif self.freeze_bn:
            for module in self._batch_norms():
                module.eval()
        for stage in self.frozen:
            stage.eval()
        return self

    def freeze_backbone(self, frozen: bool = True) -> None:
        """Freeze the whole backbone, weights and statistics, while the new parameters warm up; or unfreeze it."""
        self.backbone_frozen = frozen
        self.backbone.requires_grad_(not frozen)
        if self.freeze_bn_affine:
            for module in self._batch_norms():
                module.requires_grad_(False)
        for stage in self.frozen:
            stage.requires_grad_(False)
        self.train(self.training)

    def _batch_norms(self) -> list[nn.Module]:
        return [module for module in self.backbone.modules() if isinstance(module, _BatchNorm)]
