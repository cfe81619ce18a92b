"""General Pair Weighting by measurement: how the weight of a pair depends on its own and the other similarities.

A neighbourhood is one query with chosen similarities to its positives and negatives. It is constructed exactly:
x_j = s_j q + sqrt(1 - s_j^2) e_j with orthonormal e_j has the cosine s_j to the unit vector q.
Axes: P positives, N negatives, D dims.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from nearfield import losses
from nearfield.errors import InputError
from nearfield.files import atomic_write
from nearfield.pairs import PairLoss, pair_weights

MOVES = (-0.3, -0.16, 0.16, 0.3)  # multiples of the histogram loss's bin width, so that its nodes have no effect
PROBE = 1  # the negative whose weight is measured


def table_loss(name: str, params: Mapping[str, Any] | None = None) -> PairLoss | None:
    """The loss of the method `name` as it is measured; None unless it is a loss over pairs of a batch's items."""
    method = losses.method(name)
    if not method.within_batch:
        return None
    return cast(PairLoss, losses.create(name, **{**method.table_params, **(params or {})}).eval())


def weights_of(loss: PairLoss, pos: Tensor, neg: Tensor) -> tuple[Tensor, Tensor]:
    """Signed weights (P,) and (N,) of one query's pairs, at the given cosines."""
    s = torch.cat([pos, neg]).double()
    d = len(s) + 1
    query = torch.zeros(1, d, dtype=torch.float64)
    query[0, 0] = 1
    others = torch.zeros(len(s), d, dtype=torch.float64)
    others[:, 0] = s
    others[torch.arange(len(s)), torch.arange(1, d)] = (1 - s.square()).clamp(min=0).sqrt()
    labels = torch.cat([torch.zeros(len(pos)), torch.arange(1, len(neg) + 1)]).long()
    own = torch.zeros(1, dtype=torch.long)
    if loss.own_batch:  # query and neighbours form one batch; negatives are pairs of a class
        w = pair_weights(loss, torch.cat([query, others]), torch.cat([own, (labels + 1) // 2]))[0, 1:]
    else:
        w = pair_weights(loss, query, own, others, labels)[0]
    return w[: len(pos)], w[len(pos) :]


def similarity_types(loss: PairLoss, seed: int = 0, trials: int = 40, tolerance: float = 1e-3) -> str:
    """Which of S, P, N the weight of a negative pair depends on, by measurement.

    S: all similarities of the query change together, so that relative similarities stay the same. P: only those of the
    positives change. N: only those of the other negatives change. The weight depends on one if it changes by more than
    `tolerance` of the largest weight in any of `trials` random neighbourhoods.
    """
    generator = torch.Generator().manual_seed(seed)
    found = set()
    for _ in range(trials):
        pos = 0.2 + 0.5 * torch.rand(2, generator=generator, dtype=torch.float64)
        neg = 0.1 + 0.6 * torch.rand(4, generator=generator, dtype=torch.float64)
        for move in MOVES:
            others = neg + move
            others[PROBE] = neg[PROBE]
            changed = {"S": (pos + move, neg + move), "P": (pos + move, neg), "N": (pos, others)}
            for kind, (new_pos, new_neg) in changed.items():
                before, after = weights_of(loss, pos, neg)[1], weights_of(loss, new_pos, new_neg)[1]
                top = max(float(before.abs().max()), float(after.abs().max()))
                if float((after[PROBE] - before[PROBE]).abs()) > tolerance * top:
                    found.add(kind)
    return "".join(kind for kind in "SPN" if kind in found)


def weight_curves(loss: PairLoss, points: int = 161) -> dict[str, list[tuple[str, Tensor, Tensor]]]:
    """Weight as a function of similarity, of a negative and of a positive, in three neighbourhoods: (name, s, w)."""
    s = torch.linspace(-0.2, 0.999, points, dtype=torch.float64)
    curves: dict[str, list[tuple[str, Tensor, Tensor]]] = {"negative": [], "positive": []}
    for name, others in {"far": 0.0, "middle": 0.3, "near": 0.6}.items():
        rest = torch.full((3,), others, dtype=torch.float64)
        partner = torch.tensor([0.7], dtype=torch.float64)
        w = torch.stack([weights_of(loss, partner, torch.cat([x[None], rest]))[1][0] for x in s])
        curves["negative"].append((f"other negatives at {others:g} ({name})", s, w))
        w = torch.stack([weights_of(loss, torch.cat([x[None], partner]), rest)[0][0] for x in s])
        curves["positive"].append((f"negatives at {others:g} ({name})", s, w))
    return curves


def plot_weights(loss: PairLoss, name: str, embeddings: Tensor, labels: Tensor, out: Path) -> Path:
    """Plot the weight curves and the weights of a real batch, rows and columns in label order, as an SVG file."""
    if out.suffix != ".svg":
        raise InputError(f"--plot must name a file that ends in .svg; got {out}. Change its ending to .svg.")
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    order = labels.sort(stable=True).indices
    w = pair_weights(loss, embeddings[order], labels[order])
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for axis, (kind, curves) in zip(axes, weight_curves(loss).items(), strict=False):
        for label, s, weight in curves:
            axis.plot(s.numpy(), weight.numpy(), label=label)
        axis.set(title=f"weight of a {kind} pair", xlabel="its similarity S", ylabel="W = dL/dS")
        axis.axhline(0, color="grey", lw=0.6)
        axis.legend(fontsize=7, frameon=False)
    top = float(w.abs().max()) or 1.0
    image = axes[2].imshow(w.numpy(), cmap="RdBu_r", vmin=-top, vmax=top, interpolation="nearest")
    axes[2].set(title=f"W over a batch of {len(labels)}, by class", xlabel="reference", ylabel="query")
    figure.colorbar(image, ax=axes[2], shrink=0.85)
    figure.suptitle(name)
    with atomic_write(out) as path, matplotlib.rc_context({"svg.hashsalt": "nearfield"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)
    return out
