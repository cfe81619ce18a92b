"""BN-Inception and GoogLeNet as Caffe trained them, under Caffe's layer names, so that ported checkpoints fit.

Axes: B images, H x W pixels, h x w cells of the feature map; F = 1024 features.

In the public ports of BN-Inception every ReLU works in place, and the next layer reads the tensor under its earlier
name, by then rectified. Here each layer is convolution, batch norm, ReLU: the same function.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 1024

# Outputs of 1x1 | 3x3_reduce, 3x3 | double_3x3_reduce, double_3x3_1 and _2 | kind of pooling, pool_proj.
# 0: the branch is missing, and the block halves the map.
BN_BLOCKS = {
    "inception_3a": (64, 64, 64, 64, 96, "avg", 32),
    "inception_3b": (64, 64, 96, 64, 96, "avg", 64),
    "inception_3c": (0, 128, 160, 64, 96, "max", 0),
    "inception_4a": (224, 64, 96, 96, 128, "avg", 128),
    "inception_4b": (192, 96, 128, 96, 128, "avg", 128),
    "inception_4c": (160, 128, 160, 128, 160, "avg", 128),
    "inception_4d": (96, 128, 192, 160, 192, "avg", 128),
    "inception_4e": (0, 128, 192, 192, 256, "max", 0),
    "inception_5a": (352, 192, 320, 160, 224, "avg", 128),
    "inception_5b": (352, 192, 320, 192, 224, "max", 128),
}
# Outputs of 1x1 | 3x3_reduce, 3x3 | 5x5_reduce, 5x5 | pool_proj. The map is halved before the blocks in HALVED.
BLOCKS = {
    "inception_3a": (64, 96, 128, 16, 32, 32),
    "inception_3b": (128, 128, 192, 32, 96, 64),
    "inception_4a": (192, 96, 208, 16, 48, 64),
    "inception_4b": (160, 112, 224, 24, 64, 64),
    "inception_4c": (128, 128, 256, 24, 64, 64),
    "inception_4d": (112, 144, 288, 32, 64, 64),
    "inception_4e": (256, 160, 320, 32, 128, 128),
    "inception_5a": (256, 160, 320, 32, 128, 128),
    "inception_5b": (384, 192, 384, 48, 128, 128),
}
HALVED = ("inception_4a", "inception_5a")


class BNInception(nn.ModuleDict):
    """Inception with batch norm (Ioffe and Szegedy 2015), as in the port `bn_inception-52deb4733`, without classifier.

    The port sets the momentum of batch norm to 0.9, Caffe's convention; in PyTorch's that discards the statistics
    at every step. Here it is 0.1, which is the same in PyTorch's convention.
    """

    def __init__(self) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        channels = 192
        for name, (one, reduce, three, double_reduce, double, _, proj) in BN_BLOCKS.items():
            stride = 1 if one else 2
            if one:
                self._add(f"{name}_1x1", channels, one, 1)
            self._add(f"{name}_3x3_reduce", channels, reduce, 1)
            self._add(f"{name}_3x3", reduce, three, 3, stride)
            self._add(f"{name}_double_3x3_reduce", channels, double_reduce, 1)
            self._add(f"{name}_double_3x3_1", double_reduce, double, 3)
            self._add(f"{name}_double_3x3_2", double, double, 3, stride)
            if proj:
                self._add(f"{name}_pool_proj", channels, proj, 1)
            channels = one + three + double + (proj or channels)

    def forward(self, images: Tensor) -> Tensor:
        """Feature map (B, 1024, h, w) of preprocessed images (B, 3, H, W)."""
        x = _halve(self._layer("conv1_7x7_s2", images))
        x = _halve(self._layer("conv2_3x3", self._layer("conv2_3x3_reduce", x)))
        for name, (one, *_, pool, proj) in BN_BLOCKS.items():
            double = self._layer(f"{name}_double_3x3_1", self._layer(f"{name}_double_3x3_reduce", x))
            branches = [self._layer(f"{name}_1x1", x)] if one else []
            branches += [
                self._layer(f"{name}_3x3", self._layer(f"{name}_3x3_reduce", x)),
                self._layer(f"{name}_double_3x3_2", double),
                self._layer(f"{name}_pool_proj", _smooth(x, str(pool))) if proj else _halve(_even(x)),
            ]
            x = torch.cat(branches, 1)
        return x

    def _add(self, name: str, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        self[name] = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2)
        self[f"{name}_bn"] = nn.BatchNorm2d(outputs)

    def _layer(self, name: str, x: Tensor) -> Tensor:
        return F.relu(self[f"{name}_bn"](self[name](x)), inplace=True)


class GoogLeNet(nn.ModuleDict):
    """GoogLeNet (Szegedy et al. 2015) without batch norm: Caffe's bvlc_googlenet, without classifiers.

    torchvision's model of this name has batch norm and other kernels: its weights do not fit. Fresh weights are drawn
    as in Caffe's definition: uniform with variance 1 / fan_in, biases 0.2.
    """

    def __init__(self) -> None:
        super().__init__()
        self["conv1_7x7_s2"] = nn.Conv2d(3, 64, 7, 2, padding=3)
        self["conv2_3x3_reduce"] = nn.Conv2d(64, 64, 1)
        self["conv2_3x3"] = nn.Conv2d(64, 192, 3, padding=1)
        channels = 192
        for name, (one, reduce3, three, reduce5, five, proj) in BLOCKS.items():
            self[f"{name}_1x1"] = nn.Conv2d(channels, one, 1)
            self[f"{name}_3x3_reduce"] = nn.Conv2d(channels, reduce3, 1)
            self[f"{name}_3x3"] = nn.Conv2d(reduce3, three, 3, padding=1)
            self[f"{name}_5x5_reduce"] = nn.Conv2d(channels, reduce5, 1)
            self[f"{name}_5x5"] = nn.Conv2d(reduce5, five, 5, padding=2)
            self[f"{name}_pool_proj"] = nn.Conv2d(channels, proj, 1)
            channels = one + three + five + proj
        for convolution in self.values():
            assert isinstance(convolution, nn.Conv2d)
            bound = math.sqrt(3 / convolution.weight[0].numel())
            nn.init.uniform_(convolution.weight, -bound, bound)
            nn.init.constant_(convolution.bias, 0.2)  # type: ignore[arg-type]  # every layer here has one

    def forward(self, images: Tensor) -> Tensor:
        """Feature map (B, 1024, h, w) of preprocessed images (B, 3, H, W)."""
        x = _respond(_halve(self._layer("conv1_7x7_s2", images)))
        x = _halve(_respond(self._layer("conv2_3x3", self._layer("conv2_3x3_reduce", x))))
        for name in BLOCKS:
            x = _halve(x) if name in HALVED else x
            branches = [
                self._layer(f"{name}_1x1", x),
                self._layer(f"{name}_3x3", self._layer(f"{name}_3x3_reduce", x)),
                self._layer(f"{name}_5x5", self._layer(f"{name}_5x5_reduce", x)),
                self._layer(f"{name}_pool_proj", _smooth(x, "max")),
            ]
            x = torch.cat(branches, 1)
        return x

    def _layer(self, name: str, x: Tensor) -> Tensor:
        return F.relu(self[name](x), inplace=True)


def _halve(x: Tensor) -> Tensor:
    """Caffe's pooling: 3x3, stride 2; the last window may reach beyond the border."""
    return F.max_pool2d(x, 3, 2, ceil_mode=True)


def _even(x: Tensor) -> Tensor:
    """A rectified map with zeros added to an odd side: the port fails on those (an image of 112 pixels, for example).

    There a convolution and a pooling, side by side, halve an odd side to different lengths. Zeros never win a maximum.
    """
    return F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))


def _smooth(x: Tensor, kind: str) -> Tensor:
    """Pooling 3x3 at the same size; the average counts the zeros of the border, as Caffe's does."""
    return F.avg_pool2d(x, 3, 1, padding=1) if kind == "avg" else F.max_pool2d(x, 3, 1, padding=1)


def _respond(x: Tensor) -> Tensor:
    """Caffe's local response normalisation over five channels."""
    return F.local_response_norm(x, 5, alpha=1e-4, beta=0.75)
