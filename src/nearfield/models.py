"""Embedding models: a backbone that turns images into features, and a head that turns features into an embedding.

Axes: B images, H x W pixels, F features, D embedding dims.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfield.config import ModelConfig


class ConvNet(nn.Module):
    """A small convolutional network for small grey images: four 3x3 convolutions, mean over space, linear head."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        channels = 1
        for out, pool in ((width, True), (2 * width, True), (4 * width, True), (4 * width, False)):
            stages += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
            stages += [nn.MaxPool2d(2, ceil_mode=True)] if pool else []
            channels = out
        self.backbone = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(channels, dim)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # twice as fast on CPU

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings (B, D) of images (B, H, W), uint8 or scaled to [0, 1]."""
        x = images.unsqueeze(1)  # (B, 1, H, W)
        x = x.to(self.head.weight.dtype) / 255 if x.dtype == torch.uint8 else x
        embedding: Tensor = self.head(self.backbone(2 * x - 1))
        return embedding


def build_model(config: ModelConfig, seed: int) -> nn.Module:
    """A freshly initialised model; its weights depend on `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ConvNet(config.width, config.dim)


@torch.no_grad()
def embed(model: nn.Module, images: Tensor, batch_size: int = 512) -> Tensor:
    """Embeddings (N, D) of images (N, H, W) in evaluation mode; the model's mode is restored."""
    was_training = model.training
    model.eval()
    try:
        return torch.cat([model(part) for part in images.split(batch_size)])
    finally:
        model.train(was_training)
