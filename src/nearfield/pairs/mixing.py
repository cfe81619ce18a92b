"""Virtual items: sums of two items of a class, compared without vectors of their own being normalised.

For v = a x_i + (1 - a) x_j every similarity is the same sum of two, S_v. = a S_i. + (1 - a) S_j., so that the weights
of a virtual row or column fold back onto those of its parents.
Axes: N items of a batch, M items and virtual items.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearfield.pairs.contract import Pairing
from nearfield.pairs.mining import uniforms


def mix_within_classes(labels: Tensor, seed: int, turn: Tensor) -> Pairing:
    """Every item, then a virtual one for every unordered pair of a class, with a share that is uniform in [0, 1).

    Labels and the pairing are on the CPU; the shares are where `turn` is.
    """
    ordered, rows = labels.sort(stable=True)
    everyone = torch.arange(len(labels))
    first, second = [everyone], [everyone]
    for step in range(1, int(labels.unique(return_counts=True)[1].max())):
        (at,) = (ordered[step:] == ordered[:-step]).nonzero(as_tuple=True)
        first.append(rows[at])
        second.append(rows[at + step])
    one, other = torch.cat(first), torch.cat(second)
    share = uniforms(seed, turn, torch.arange(len(one), device=turn.device), 1)[:, 0].double()
    share[: len(labels)] = 1.0
    return Pairing(one, one, partner=other, share=share)


def mix(x: Tensor, pairing: Pairing) -> Tensor:
    """The items and the virtual items, (M, D), of a pairing by `mix_within_classes`."""
    rows, partner, share = _two(pairing, x)
    return share[:, None] * x[rows] + (1 - share)[:, None] * x[partner]


def fold(weights: Tensor, pairing: Pairing, full: Tensor) -> Tensor:
    """Weights between items and virtual items (M, M) as weights between items, added to `full` (N, N)."""
    rows, partner, share = _two(pairing, weights)
    half = weights.new_zeros(len(full), len(weights))  # (N, M)
    half.index_add_(0, rows, share[:, None] * weights).index_add_(0, partner, (1 - share)[:, None] * weights)
    return full.index_add_(1, rows, share * half).index_add_(1, partner, (1 - share) * half)


def _two(pairing: Pairing, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both parents of each item and the share of the first, where `like` is."""
    assert pairing.partner is not None
    assert pairing.share is not None
    rows, partner = (index.to(like.device, non_blocking=True) for index in (pairing.rows, pairing.partner))
    return rows, partner, pairing.share.to(like)
