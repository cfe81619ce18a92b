"""Normalised mutual information of two partitions, from their contingency table.

Axes: N items, k cells of the table that are not empty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def normalized_mutual_information(truth: Integers, found: Integers, average: str = "arithmetic") -> float:
    """I(U; V) over the mean of H(U) and H(V), arithmetic or geometric, for labels (N,) from 0 on of both partitions.

    1 if neither partition divides anything, 0 if one of them does not.
    """
    rows, columns = int(truth.max()) + 1, int(found.max()) + 1
    cells, counts = np.unique(found * rows + truth, return_counts=True)  # (k,)
    sizes = np.bincount(truth, minlength=rows), np.bincount(found, minlength=columns)
    if all(np.count_nonzero(size) == 1 for size in sizes):
        return 1.0
    total = len(truth)
    joint = counts / total
    apart = np.log(sizes[0][cells % rows]) + np.log(sizes[1][cells // rows]) - 2 * np.log(total)
    information = float(np.sum(joint * (np.log(joint) - apart)))
    entropies = [_entropy(size) for size in sizes]
    mean = np.sqrt(entropies[0] * entropies[1]) if average == "geometric" else (entropies[0] + entropies[1]) / 2
    return float(np.clip(information / mean, 0.0, 1.0)) if mean > 0 else 0.0


def _entropy(sizes: Integers) -> float:
    shares = sizes[sizes > 0] / sizes.sum()
    return -float(np.sum(shares * np.log(shares)))
