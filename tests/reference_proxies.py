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
    centers: int = 10, start: str = "normal",
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


def uce(
    x: Tensor, y: Tensor, p: Tensor, scale: float = 64.0, margin: float = 0.4, lam: float = 1.0, bias: Any = None
) -> Tensor:
    cosine, total = unit(x) @ unit(p).T, x.new_zeros(())
    b = math.log(10 * len(p)) if bias is None else bias.sum()
    for i in range(len(x)):
        for c in range(len(p)):
            if c == y[i]:
                total = total + torch.logaddexp(b - scale * (cosine[i, c] - margin), x.new_zeros(()))
            else:
                total = total + lam * torch.logaddexp(scale * cosine[i, c] - b, x.new_zeros(()))
    return total / len(x)


def adaface(
    x: Tensor, y: Tensor, p: Tensor, margin: float = 0.4, h: float = 0.333, scale: float = 64.0, t_alpha: float = 1.0
) -> Tensor:
    """In a first training step."""
    norms, (mean, std) = x.detach().norm(dim=1).clamp(0.001, 100), x.new_tensor([20.0, 100.0])
    if len(x) > 1:
        mean, std = t_alpha * norms.mean() + (1 - t_alpha) * mean, t_alpha * norms.std() + (1 - t_alpha) * std
    cosine = (unit(x) @ unit(p).T).clamp(-1 + 1e-3, 1 - 1e-3)
    logits = scale * cosine
    for i in range(len(x)):
        quality = (h * (norms[i] - mean) / (std + 1e-3)).clamp(-1, 1)
        angle = (cosine[i, y[i]].acos() - margin * quality).clamp(1e-3, math.pi - 1e-3)
        target = scale * (angle.cos() - (margin + margin * quality))
        logits = logits.index_put((torch.tensor(i), y[i]), target)
    return cross_entropy(logits, y)


def magface(
    x: Tensor, y: Tensor, p: Tensor, scale: float = 64.0, l_a: float = 10.0, u_a: float = 110.0, l_m: float = 0.45,
    u_m: float = 0.8, lam: float = 35.0, auto: bool = False,
) -> Tensor:  # fmt: skip
    """In a first training step."""
    if auto:
        ends = torch.quantile(x.detach().norm(dim=1), torch.tensor([0.1, 0.9], dtype=x.dtype))
        if float(ends[0] / 2) < float(2 * ends[1]):
            l_a, u_a = float(ends[0] / 2), float(2 * ends[1])
    cosine = unit(x) @ unit(p).T
    logits, outside = scale * cosine, x.new_zeros(())
    for i in range(len(x)):
        a = x[i].norm().clamp(l_a, u_a)
        margin = l_m + (u_m - l_m) * (a - l_a) / (u_a - l_a)
        c = cosine[i, y[i]].clamp(-1 + 1e-7, 1 - 1e-7)
        logits = logits.index_put(
            (torch.tensor(i), y[i]), scale * ((c.acos() + margin).cos() if float(c.detach()) > 0 else c)
        )
        outside = outside + lam * (a / u_a**2 + 1 / a)
    return cross_entropy(logits, y) + outside / len(x)


def potential_field(
    x: Tensor, y: Tensor, p: Tensor, alpha: float = 4.0, delta: float = 0.3, proxies_per_class: int = 15
) -> Tensor:
    charges = torch.cat([unit(x), unit(p)])
    labels = torch.cat([y, torch.arange(len(p)) // proxies_per_class])
    total = x.new_zeros(())
    for i in range(len(charges)):
        others = torch.arange(len(charges)) != i
        same = labels[others] == labels[i]
        d = distance(charges[others], charges[i])
        total = total - (1 / d[same].clamp(min=delta) ** alpha).sum()
        total = total + (1 / d[~same].clamp(0.01 * delta, delta) ** alpha).sum()
    return total / len(charges)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """|a - b|, with 1 / max(d, 1e-4) in place of 1 / d in the derivative, and derivative 0 at d = 0."""
    d2 = (a - b).square().sum(-1)
    d = d2.detach().sqrt()
    return d + torch.where(d > 0, 0.5 / d.clamp(min=1e-4), 0.0) * (d2 - d2.detach())


def mean_field_contrastive(
    x: Tensor, y: Tensor, p: Tensor, pos_margin: float = 0.02, neg_margin: float = 0.3, lam: float = 0.0,
    power: float = 2.0,
) -> Tensor:  # fmt: skip
    d, between = 1 - unit(x) @ unit(p).T, 1 - unit(p) @ unit(p).T
    total, apart = x.new_zeros(()), x.new_zeros(())
    for i in range(len(x)):
        for c in range(len(p)):
            gap = d[i, c] - pos_margin if c == y[i] else neg_margin - d[i, c]
            total = total + gap.clamp(min=0)
    for c in range(len(p)):
        for other in range(len(p)):
            if other != c:
                apart = apart + (neg_margin - between[c, other]).clamp(min=0) ** power
    return total / len(x) + lam * apart / len(p)


def mixed(a: Tensor, b: Tensor, share: float) -> Tensor:
    """A mixture of two directions, of length 1."""
    v: Tensor = share * a / a.norm() + (1 - share) * b / b.norm()
    length: Tensor = v.norm()
    return v / length


def proxy_synthesis(
    x: Tensor, y: Tensor, p: Tensor, parents: list[tuple[int, int]], share: float, base: str, params: dict[str, Any]
) -> Tensor:
    """The base loss with a virtual item for each pair of parents and a virtual proxy for each pair of their classes."""
    items, proxies, labels, of_pair = list(x), list(p), y.tolist(), {}
    for i, j in parents:
        pair = int(y[i]), int(y[j])
        if pair not in of_pair:
            of_pair[pair] = len(proxies)
            proxies.append(mixed(p[pair[0]], p[pair[1]], share))
        items.append(mixed(x[i], x[j], share))
        labels.append(of_pair[pair])
    value: Tensor = PROXY_REFERENCE[base](torch.stack(items), torch.tensor(labels), torch.stack(proxies), **params)
    return value


def volume(p: Tensor, y: Tensor, eps: float = 0.5, form: str = "released") -> Tensor:
    """The term of the anti-collapse loss."""
    mine = unit(p)[y.unique()]
    n, d = mine.shape
    factor = n / (d * eps) if form == "released" else d / (n * eps**2)
    return torch.exp(-0.5 * torch.logdet(torch.eye(n, dtype=p.dtype) + factor * mine @ mine.T))


def hist(x: Tensor, y: Tensor, loss: Any) -> Tensor:
    """With the parameters of `loss`."""
    mean, variance = unit(loss.gaussians.proxies), loss.gaussians.log_variances.clamp(0, 6).exp()
    rows = [[((u - m).square() / v).sum() for m, v in zip(mean, variance, strict=True)] for u in unit(x)]
    far = torch.stack([torch.stack(row) for row in rows])  # (N, C)
    value = cross_entropy(-loss.gaussians.tau * far, y)
    if len(x) < 2:
        return value
    present = y.unique()
    edges = torch.stack(
        [
            torch.stack([far[i, c] * 0 + 1 if y[i] == c else (-loss.alpha * far[i, c]).exp() for c in present])
            for i in range(len(x))
        ]
    )
    vertex, edge = torch.diag(edges.sum(1) ** -0.5), torch.diag(1 / edges.sum(0))
    graph = vertex @ edges @ edge @ edges.T @ vertex
    h = graph @ (x @ loss.inner.weight.T + loss.inner.bias)
    h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt() * loss.scale + loss.shift
    h = torch.where(h > 0, h, 0.1 * h)
    found: Tensor = value + loss.lam_s * cross_entropy(graph @ (h @ loss.outer.weight.T + loss.outer.bias), y)
    return found


PROXY_REFERENCE: dict[str, Callable[..., Any]] = {
    "proxy_triplet": proxy_triplet,
    "proxy_nca": proxy_nca,
    "proxy_softmax": proxy_softmax,
    "proxy_anchor": proxy_anchor,
    "cosface": cosface,
    "arcface": arcface,
    "sub_center_arcface": sub_center_arcface,
    "soft_triple": soft_triple,
    "uce": uce,
    "adaface": adaface,
    "magface": magface,
    "potential_field": potential_field,
    "mean_field_contrastive": mean_field_contrastive,
}
