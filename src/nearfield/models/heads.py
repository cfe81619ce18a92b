"""Pooling, normalisation and heads: from a feature map to an embedding.

Axes: B images, N feature vectors, F features, h x w cells, T tokens, D embedding dims.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearfield.errors import InputError, require_one_of

Norm = Literal["none", "layer", "layer_affine"]
Init = Literal["default", "kaiming", "xavier", "xavier_small", "pca"]
POOLS = ("avg", "max", "avg_max")
BLOCK = 4096  # rows of features converted to float64 at a time


def pooled(x: Tensor, kind: str) -> Tensor:
    """Features (B, F) from a map (B, F, h, w), from tokens (B, T, F), or as they are.

    avg: FastAP, SoftTriple and the reality check; max: the Multi-Similarity code; avg_max, their sum: Proxy-Anchor.
    """
    if x.ndim == 2:
        return x
    x = x.transpose(1, 2).unsqueeze(-1) if x.ndim == 3 else x  # (B, F, h, w) or (B, F, T, 1)
    if kind == "avg":
        return F.adaptive_avg_pool2d(x, 1).flatten(1)
    highest = F.adaptive_max_pool2d(x, 1).flatten(1)
    return highest if kind == "max" else F.adaptive_avg_pool2d(x, 1).flatten(1) + highest


def make_norm(num_features: int, kind: Norm) -> nn.Module:
    """Layer norm of the pooled features, with or without a learned scale and shift, or none."""
    return nn.Identity() if kind == "none" else nn.LayerNorm(num_features, elementwise_affine=kind == "layer_affine")


def make_head(num_features: int, dim: int, kind: Literal["linear", "none"], init: Init) -> nn.Module:
    """A linear layer F -> D with bias, or none if D = F.

    init "default" is PyTorch's (N-pairs needs it), "kaiming" normal over fan-out (Multi-Similarity, Proxy-Anchor,
    DRML), "xavier" Glorot's uniform, "xavier_small" the same with magnitude 0.2 in place of 3 (Unbiased Evaluation);
    all but the default start from biases of 0. "pca" is left to `pca_head`.
    """
    if kind == "none":
        if dim != num_features:
            raise InputError(f"model.dim must be {num_features}, the backbone's features, without a head; got {dim}.")
        return nn.Identity()
    head = nn.Linear(num_features, dim)
    if init == "kaiming":
        nn.init.kaiming_normal_(head.weight, mode="fan_out")
    elif init in ("xavier", "xavier_small"):
        nn.init.xavier_uniform_(head.weight, gain=1.0 if init == "xavier" else math.sqrt(0.2 / 3))
    if init != "default":
        nn.init.zeros_(head.bias)
    return head


def pca_head(features: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Weight (D, F) and bias (D,) of the linear head that gives the first D principal components of features (N, F).

    y = V (x - mean), V the unit eigenvectors of the covariance by falling variance, the largest entry of each above 0.
    """
    if features.ndim != 2 or len(features) < 2:
        raise InputError(f"features must be (N, F) with N of at least 2; got {tuple(features.shape)}.")
    if not 1 <= dim <= features.shape[1]:
        raise InputError(f"dim must lie in 1..{features.shape[1]}, the number of features; got {dim}.")
    mean = torch.stack([rows.double().sum(0) for rows in features.split(BLOCK)]).sum(0) / len(features)  # (F,)
    scatter = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=features.device)  # (F, F)
    for rows in features.split(BLOCK):
        centred = rows.double() - mean
        scatter.addmm_(centred.T, centred)
    axes = torch.linalg.eigh(scatter).eigenvectors.flip(1)[:, :dim].T  # (D, F)
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))  # (D, 1)
    axes = axes * largest.sign()
    dtype = features.dtype if features.dtype in (torch.float32, torch.float64) else torch.float32
    return axes.to(dtype).contiguous(), -(axes @ mean).to(dtype)


def require_pool(kind: str) -> str:
    """`kind`, or InputError naming the nearest kind of pooling."""
    return require_one_of("pool", kind, POOLS)
