"""Slow, obvious versions of the losses on clusterings, to check the fast ones against.

Loops over items and candidates in float64; nothing is skipped, nothing is shared with the package.
Legend: N items, C classes, S chosen medoids in the order in which they were chosen.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import torch
from reference import Pairs, hinge, lse
from torch import Tensor

Distances = list[list[float]]
EPS = 2.0**-52


# ------------------------------------------------------------------------------------------------ structured clustering


def nmi(a: list[int], b: list[int]) -> float:
    """Mutual information over the geometric mean of the entropies; 1 for one cluster against one class."""
    n, of_a, of_b, joint = len(a), Counter(a), Counter(b), Counter(zip(a, b, strict=True))
    if len(of_a) == len(of_b) == 1:
        return 1.0
    mutual = sum(c / n * math.log(c * n / (of_a[i] * of_b[j])) for (i, j), c in joint.items())
    h_a, h_b = (-sum(c / n * math.log(c / n) for c in sizes.values()) for sizes in (of_a, of_b))
    return mutual / max(math.sqrt(abs(h_a * h_b)), 1e-10)


class Clusters:
    """A batch in label order, with the rules by which equals are told apart."""

    def __init__(self, pairs: Pairs, gamma: float, squared: bool) -> None:
        measure = pairs.d2 if squared else pairs.d
        self.items = sorted(pairs.rows, key=lambda i: int(pairs.row_labels[i]))  # stable
        self.labels, self.gamma = pairs.row_labels.tolist(), gamma
        self.d: Distances = [[0.0 if i == j else float(measure(i, j).detach()) for j in pairs.rows] for i in pairs.rows]
        self.classes = len(set(self.labels))
        n, largest = len(self.items), max(map(max, self.d))
        self.tie = 16 * EPS * (math.sqrt(n) * largest + gamma)

    def assign(self, medoids: list[int]) -> list[int]:
        """The medoid of each item: itself, or the earliest chosen of those that are nearest."""
        found = []
        for i in range(len(self.items)):
            nearest = min(self.d[i][j] for j in medoids)
            first = next(j for j in medoids if self.d[i][j] <= nearest + self.tie)
            found.append(i if i in medoids else first)
        return found

    def facility(self, medoids: list[int]) -> float:
        """F = -sum_i min_j d_ij"""
        return -math.fsum(min(self.d[i][j] for j in medoids) for i in range(len(self.items)))

    def margin(self, medoids: list[int]) -> float:
        return self.gamma * (1 - nmi(self.labels, self.assign(medoids)))

    def objective(self, medoids: list[int]) -> float:
        """F(S) + gamma (1 - NMI)"""
        return self.facility(medoids) + self.margin(medoids)

    def best(self, scores: dict[int, float]) -> int:
        """The best item: of equals the one nearest to all others, of equals again the first in label order."""
        tied = [j for j in self.items if j in scores and scores[j] >= max(scores.values()) - self.tie]
        central = {j: -math.fsum(self.d[j]) for j in tied}
        return next(j for j in tied if central[j] >= max(central.values()) - self.tie)

    def within(self, members: list[int]) -> dict[int, float]:
        """-sum of the distances of all members to each of them."""
        return {j: -math.fsum(self.d[i][j] for i in members) for j in members}

    def greedy(self) -> list[int]:
        medoids: list[int] = []
        for _ in range(self.classes):
            free = [j for j in self.items if j not in medoids]
            medoids.append(self.best({j: self.objective([*medoids, j]) for j in free}))
        return medoids

    def refine(self, medoids: list[int]) -> list[int]:
        """One sweep of PAM."""
        medoids, found = list(medoids), self.assign(medoids)
        for place, medoid in enumerate(list(medoids)):
            members = [i for i in range(len(self.items)) if found[i] == medoid]
            scores = {}
            for j, score in self.within(members).items():
                scores[j] = score + self.margin([*medoids[:place], j, *medoids[place + 1 :]])
            medoids[place] = self.best(scores)
        return medoids

    def search(self, sweeps: int) -> list[int]:
        medoids = self.greedy()
        for _ in range(sweeps):
            medoids = self.refine(medoids)
        return medoids

    def true_medoids(self) -> list[int]:
        """The medoid of each item's class."""
        members = {y: [i for i in range(len(self.items)) if self.labels[i] == y] for y in set(self.labels)}
        medoid = {y: self.best(self.within(mine)) for y, mine in members.items()}
        return [medoid[y] for y in self.labels]

    def maximum(self) -> float:
        """The true maximum, by trying every set of medoids; the order in which they come only matters to ties."""
        return max(self.objective(list(medoids)) for medoids in combinations(range(len(self.items)), self.classes))


def structured_clustering(pairs: Pairs, gamma: float = 1.0, squared: bool = False, sweeps: int = 5) -> Tensor:
    """[ F(S) + gamma (1 - NMI) - F~ ]_+ with the medoids held fixed."""
    clusters = Clusters(pairs, gamma, squared)
    medoids = clusters.search(sweeps)
    measure, total = pairs.d2 if squared else pairs.d, pairs.zero()
    for i, (found, true) in enumerate(zip(clusters.assign(medoids), clusters.true_medoids(), strict=True)):
        for j, sign in ((found, -1), (true, 1)):
            if j != i:
                total = total + sign * measure(i, j)
    return hinge(total + clusters.margin(medoids))


# --------------------------------------------------------------------------------------------------------- prototypical


def episode(labels: list[int], support: int | None) -> tuple[dict[int, list[int]], list[int]]:
    """Support rows of each class and query rows: in each class the first half, or the first `support`, and the rest."""
    supports: dict[int, list[int]] = {}
    queries: list[int] = []
    for y in sorted(set(labels)):
        rows = [i for i, label in enumerate(labels) if label == y]
        shots = max(1, len(rows) // 2) if support is None else support
        supports[y], queries = rows[:shots], queries + rows[shots:]
    return supports, queries


def prototypical(pairs: Pairs, support: int | None = None) -> Tensor:
    """Mean over queries of LSE_k(-|q - mu_k|^2) + |q - mu_y|^2, from similarities and norms:

    |q - mu|^2 = |q|^2 - 2/n sum_s S_qs + 1/n^2 (sum_s |x_s|^2 + sum_{s != t} S_st).
    """
    labels = pairs.row_labels.tolist()
    supports, queries = episode(labels, support)
    if len(supports) < 2 or not queries:
        return pairs.zero()
    total = pairs.zero()
    for q in queries:
        d2 = {}
        for y, rows in supports.items():
            n = len(rows)
            square = sum(pairs.row_sq[s] if s == t else pairs.s[s, t] for s in rows for t in rows) / n**2
            d2[y] = pairs.row_sq[q] - 2 * pairs.s[q, rows].sum() / n + square
        total = total + lse(-torch.stack(list(d2.values()))) + d2[labels[q]]
    return total / len(queries)


def prototypical_of_x(x: Tensor, labels: Tensor, support: int | None = None) -> Tensor:
    """The same from the vectors: exact where norms are large."""
    supports, queries = episode(labels.tolist(), support)
    if len(supports) < 2 or not queries:
        return (x * 0.0).sum()
    means = torch.stack([x[rows].mean(0) for rows in supports.values()])  # (C, D)
    total = (x * 0.0).sum()
    for q in queries:
        log_p = torch.log_softmax(-(x[q] - means).square().sum(1), 0)
        total = total - log_p[list(supports).index(int(labels[q]))]
    return total / len(queries)
