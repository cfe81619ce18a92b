"""Slow, obvious versions of every loss against proxies, straight from the equations; autograd does the rest.

Axes: N items, C classes, K centers of a class, D dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def unit(v: Tensor) -> Tensor:
    length: Tensor = v.norm(dim=1, keepdim=True)
    return v / length.clamp(min=1e-12)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0, over: str = "all") -> Tensor:
    if over == "all":
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    target = torch.full_like(logits, smoothing / (logits.shape[1] - 1))
    target[torch.arange(len(labels)), labels] = 1 - smoothing
    return F.cross_entropy(logits, target)  # target probabilities


def proxy_triplet(x: Tensor, y: Tensor, p: Tensor, margin: float = 1.0) -> Tensor:
    x, p, total = unit(x), unit(p), x.new_zeros(())
    for i in range(len(x)):
        for c in range(len(p)):
            if c != y[i]:
                near, far = (x[i] - p[y[i]]).square().sum(), (x[i] - p[c]).square().sum()
                total = total + (near - far + margin).clamp(min=0)
    return total / len(x)


def proxy_nca(
    x: Tensor, y: Tensor, p: Tensor, scale: float = 3.0, proxy_scale: float | None = None, form: str = "strict",
    label_smoothing: float = 0.0, smooth_over: str = "all",
) -> Tensor:  # fmt: skip
    other = scale if proxy_scale is None else proxy_scale
    far = (scale * unit(x)[:, None] - other * unit(p)[None]).square().sum(2)  # (N, C)
    if form == "probabilistic":
        return cross_entropy(-far, y, label_smoothing, smooth_over)
    total = x.new_zeros(())
    for i in range(len(x)):
        others = torch.arange(len(p)) != y[i]
        total = total + far[i, y[i]] + torch.logsumexp(-far[i][others], 0)
    return total / len(x)


def proxy_softmax(
    x: Tensor, y: Tensor, p: Tensor, temperature: float = 0.05, label_smoothing: float = 0.0, smooth_over: str = "all"
) -> Tensor:
    return cross_entropy(unit(x) @ unit(p).T / temperature, y, label_smoothing, smooth_over)


def proxy_anchor(x: Tensor, y: Tensor, p: Tensor, alpha: float = 32.0, delta: float = 0.1) -> Tensor:
    s, pull, push = unit(x) @ unit(p).T, x.new_zeros(()), x.new_zeros(())
    for c in range(len(p)):
        mine = y == c
        if bool(mine.any()):
            pull = pull + torch.log(1 + torch.exp(-alpha * (s[mine, c] - delta)).sum())
        push = push + torch.log(1 + torch.exp(alpha * (s[~mine, c] + delta)).sum())
    return pull / len(y.unique()) + push / len(p)


def cosface(x: Tensor, y: Tensor, p: Tensor, scale: float = 64.0, margin: float = 0.35) -> Tensor:
    return cross_entropy(scale * (unit(x) @ unit(p).T - margin * F.one_hot(y, len(p)).to(x.dtype)), y)


def arcface(x: Tensor, y: Tensor, p: Tensor, scale: float = 64.0, margin: float = 0.5) -> Tensor:
    return _angular(unit(x) @ unit(p).T, y, scale, margin)


def _angular(cosine: Tensor, y: Tensor, scale: float, margin: float) -> Tensor:
    theta = cosine.clamp(-1 + 1e-7, 1 - 1e-7).acos()
    monotone = torch.where(theta > math.pi - margin, theta.cos() - margin * math.sin(margin), (theta + margin).cos())
    return cross_entropy(scale * torch.where(F.one_hot(y, cosine.shape[1]) > 0, monotone, cosine), y)


def sub_center_arcface(
    x: Tensor, y: Tensor, p: Tensor, scale: float = 64.0, margin: float = 0.5, centers: int = 3
) -> Tensor:
    cosine = (unit(x) @ unit(p).T).view(len(x), -1, centers)
    return _angular(cosine.max(2).values, y, scale, margin)


def soft_triple(
    x: Tensor, y: Tensor, p: Tensor, scale: float = 20.0, gamma: float = 0.1, tau: float = 0.2, delta: float = 0.01,
    centers: int = 10,
) -> Tensor:  # fmt: skip
    s = (unit(x) @ unit(p).T).view(len(x), -1, centers)
    relaxed = ((s / gamma).softmax(2) * s).sum(2)  # (N, C)
    w, gaps = unit(p).view(-1, centers, p.shape[1]), x.new_zeros(())
    for c in range(len(w)):
        for a in range(centers):
            for b in range(a + 1, centers):
                gaps = gaps + torch.sqrt(2 + 1e-5 - 2 * (w[c, a] @ w[c, b]))
    pulled = tau * gaps / (len(w) * centers * (centers - 1)) if centers > 1 else 0.0
    return cross_entropy(scale * (relaxed - delta * F.one_hot(y, len(w)).to(x.dtype)), y) + pulled


PROXY_REFERENCE: dict[str, Callable[..., Any]] = {
    "proxy_triplet": proxy_triplet,
    "proxy_nca": proxy_nca,
    "proxy_softmax": proxy_softmax,
    "proxy_anchor": proxy_anchor,
    "cosface": cosface,
    "arcface": arcface,
    "sub_center_arcface": sub_center_arcface,
    "soft_triple": soft_triple,
}
