"""Backbones: networks that turn pixels into features, and the pixel values they expect.

Axes: B images, H x W pixels, C channels of the network's input, F features, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nearfield.errors import InputError, nearest
from nearfield.models.inception import FEATURES, BNInception, GoogLeNet

LUMA = (0.299, 0.587, 0.114)  # grey of red, green and blue (ITU-R BT.601)


@dataclass(frozen=True)
class Preprocessing:
    """How pixels enter a network: (x - mean) / std by channel, where 255 has become `scale`.

    Channels, and so `mean` and `std`, are red, green, blue, or the reverse if `bgr`; or one, grey.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1.0
    bgr: bool = False

    def __call__(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Input (B, C, H, W) from images (B, H, W), (B, H, W, 3) or (B, 3, H, W), uint8 or scaled to [0, 1]."""
        x = _planes(images)
        if images.dtype == torch.uint8:
            x = x.to(dtype) if self.scale == 255 else x.to(dtype) / (255 / self.scale)
        elif images.dtype.is_floating_point:
            x = x.to(dtype) if self.scale == 1 else x.to(dtype) * self.scale
        else:
            raise InputError(f"images must be uint8, or floats in [0, 1]; got {images.dtype}.")
        if len(self.mean) == 3:
            x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
            x = x.flip(1) if self.bgr else x
        elif x.shape[1] == 3:
            x = (x * x.new_tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
        return (x - x.new_tensor(self.mean).view(-1, 1, 1)) / x.new_tensor(self.std).view(-1, 1, 1)


def _planes(images: Tensor) -> Tensor:
    if images.ndim == 3:
        return images.unsqueeze(1)  # (B, 1, H, W)
    if images.ndim == 4 and images.shape[-1] == 3:
        return images.permute(0, 3, 1, 2)  # (B, 3, H, W)
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    raise InputError(f"images must be (B, H, W), (B, H, W, 3) or (B, 3, H, W); got {tuple(images.shape)}.")


SIGNED = Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))  # [-1, 1]
SIGNED_GREY = Preprocessing((0.5,), (0.5,))
BN_INCEPTION = Preprocessing((104.0, 117.0, 128.0), (1.0, 1.0, 1.0), scale=255.0, bgr=True)
GOOGLENET = Preprocessing((104.0, 117.0, 123.0), (1.0, 1.0, 1.0), scale=255.0, bgr=True)


@dataclass(frozen=True)
class Backbone:
    """A network without its classifier."""

    net: nn.Module  # gives (B, F, h, w), (B, T, F) or (B, F), once `arrange` has put the axes in order
    num_features: int
    preprocessing: Preprocessing | None  # None: the input is features already
    arrange: Callable[[Tensor], Tensor] | None = None
    stages: tuple[nn.Module, ...] = ()  # one after the other they are `net`; none if it has no stages to freeze


def conv(width: int, channels: int = 1) -> Backbone:
    """A small network for small images: four 3x3 convolutions with batch norm, max-pooled after the first three."""
    stages: list[list[nn.Module]] = []
    inputs = channels
    for outputs, pool in ((width, True), (2 * width, True), (4 * width, True), (4 * width, False)):
        layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        stages.append([*layers, nn.MaxPool2d(2, ceil_mode=True)] if pool else layers)
        inputs = outputs
    net = nn.Sequential(*(layer for stage in stages for layer in stage))
    preprocessing = SIGNED_GREY if channels == 1 else SIGNED
    return Backbone(net, inputs, preprocessing, stages=tuple(nn.Sequential(*stage) for stage in stages))


def features(num_features: int) -> Backbone:
    """No network: features that were computed before."""
    return Backbone(nn.Identity(), num_features, None)


def bn_inception() -> Backbone:
    """BN-Inception with the preprocessing it was trained with: blue first, 0 to 255."""
    return Backbone(BNInception(), FEATURES, BN_INCEPTION)


def googlenet() -> Backbone:
    """GoogLeNet with the preprocessing it was trained with: blue first, 0 to 255."""
    return Backbone(GoogLeNet(), FEATURES, GOOGLENET)


def from_timm(name: str) -> Backbone:
    """Any network of timm, randomly initialised, with the preprocessing that timm states for it."""
    from nearfield.models import torchvision_shim

    torchvision_shim.torchvision()  # timm imports it; see there
    import timm

    if not timm.is_model(name):
        raise InputError(f"timm has no model {name!r}; {_near(name, timm.list_models())}")
    net: Any = timm.create_model(name, pretrained=False, num_classes=0, global_pool="")
    stated = net.pretrained_cfg
    count = getattr(net, "head_hidden_size", None) or net.num_features  # of what comes out without a classifier
    preprocessing = Preprocessing(tuple(stated["mean"]), tuple(stated["std"]))
    stages = _stages_of(net) if isinstance(net, timm.models.EfficientNet) else ()
    return Backbone(net, int(count), preprocessing, _order_of(net), stages)


def _stages_of(net: Any) -> tuple[nn.Module, ...]:
    """The stages of timm's EfficientNet; the first has the stem, the last the convolution after the blocks."""
    first, *middle, last = net.blocks
    stem, top = (net.conv_stem, net.bn1), (net.conv_head, net.bn2)
    return (nn.Sequential(*stem, first), *middle, nn.Sequential(last, *top))


def _near(name: str, known: list[str]) -> str:
    hint = nearest(name, known)
    return hint if len(hint) < 100 else "see timm.list_models()."


def _order_of(net: Any) -> Callable[[Tensor], Tensor] | None:
    """What reorders the axes of a timm model's output to (B, F, h, w) or (B, T, F); None if they are so already."""
    if str(getattr(net, "output_fmt", "NCHW")).endswith("NHWC"):
        return _channels_first
    prefix = int(getattr(net, "num_prefix_tokens", 0))
    return _WithoutPrefix(prefix) if prefix else None


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


@dataclass(frozen=True)
class _WithoutPrefix:
    """Drops class and register tokens, which belong to no place in the image."""

    count: int

    def __call__(self, x: Tensor) -> Tensor:
        return x[:, self.count :]  # (B, T, F)
