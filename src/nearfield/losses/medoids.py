"""The medoids of structured clustering: a search of hundreds of small steps, in NumPy on the CPU, in float64.

A call of torch on a hundred numbers costs several times one of NumPy.

Axes: N items of the batch, J candidates for a medoid, C classes, K medoids.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MOST_COUNTS = 1 << 22  # counts of group sizes that are held at once
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


class StructuredMargin:
    """1 - NMI of the classes (N,) with each of J clusterings (J, N), (J,); between 0 and 1.

    NMI = I / sqrt(H H'), I = H + H' - (joint entropy). One group against several has NMI = 0, one group against one
    NMI = 1.
    """

    def __init__(self, truth: Indices) -> None:
        self.truth, self.classes = truth, int(truth.max()) + 1
        self._information = np.log(len(truth) / np.arange(1, len(truth) + 1))  # of an item, by its group's size - 1
        self._own = self._entropy(truth[None], self.classes)

    def __call__(self, found: Indices) -> Floats:
        clusters = int(found.max()) + 1
        own, other = self._own, self._entropy(found, clusters)
        shared = own + other - self._entropy(self.truth * clusters + found, self.classes * clusters)
        either_one = own * other == 0
        nmi = np.where(either_one, own + other == 0, shared / np.sqrt(own * other + either_one))
        return np.asarray(1 - nmi.clip(0, 1))

    def _entropy(self, groups: Indices, number: int) -> Floats:
        """Entropy of J partitions of N items into `number` groups, (J, N) -> (J,); exactly 0 for a single group."""
        found = []
        rows = max(1, MOST_COUNTS // number)
        for start in range(0, len(groups), rows):
            part = groups[start : start + rows]
            part = part + number * np.arange(len(part))[:, None]
            found.append(self._information[np.bincount(part.ravel())[part] - 1].mean(1))
        return np.concatenate(found)


class MedoidSearch:
    """Loss-augmented inference: medoids S with a large F(S) + gamma (1 - NMI), all candidates of a step at once.

    Scores and distances that differ by at most `tie`, a bound on rounding errors, are ties. Of tied candidates the one
    with the smallest sum of distances to all items wins, then the first; an item with tied distances belongs to the
    medoid that was chosen first.

    Args:
        d: distances (N, N).
        truth: class of each item (N,), 0 ... C - 1.
        gamma: weight of 1 - NMI.
        eps: relative rounding error of the distances.
    """

    def __init__(self, d: Floats, truth: Indices, gamma: float, eps: float) -> None:
        self.d, self.truth, self.gamma, self.margin = d, truth, gamma, StructuredMargin(truth)
        self.central = -d.sum(1)  # (N,)
        self.tie = 16 * eps * (math.sqrt(len(d)) * float(d.max()) + gamma)
        self.everyone = np.arange(len(d))
        self.candidates, self.evaluated = 0, 0

    def medoids(self, sweeps: int) -> Indices:
        """Greedy choice (Algorithm 1 of Song et al.), then at most `sweeps` of refinement (Algorithm 2), (C,)."""
        number = int(self.truth.max()) + 1
        first = self._best(self.everyone, self.central)  # with one cluster NMI does not depend on the medoid
        medoids, near = np.array([first]), self.d[first]  # near: distance of each item to its nearest medoid
        free = self.everyone != first
        for place in range(1, number):
            score = -np.minimum(self.d[free], near).sum(1)
            chosen = self._choose(self.everyone[free], score, medoids, place)
            medoids, near = np.append(medoids, chosen), np.minimum(near, self.d[chosen])
            free[chosen] = False
        for _ in range(sweeps if number > 1 else 0):
            before = medoids
            medoids = self._refine(medoids)
            if np.array_equal(before, medoids):
                break
        return medoids

    def _refine(self, medoids: Indices) -> Indices:
        """One sweep of PAM: the best medoid of each cluster in turn, with the clusters fixed."""
        medoids, places = medoids.copy(), self.everyone[: len(medoids)]
        _, assigned = self.assign(medoids, places)
        for place in range(len(medoids)):
            (members,) = (assigned == place).nonzero()
            if len(members) > 1:
                others = medoids[places != place]
                medoids[place] = self._choose(members, self.within(members), others, place)
        return medoids

    def within(self, members: Indices) -> Floats:
        """-sum of the distances of a cluster's members to each of them, (J,)."""
        return np.asarray(-self.d[members[:, None], members].sum(1))

    def assign(self, medoids: Indices, places: Indices) -> tuple[Floats, Indices]:
        """Distance of each item to its nearest medoid, and that medoid's index, (N,) each; a medoid has its own."""
        d = self.d[medoids]  # (K, N)
        near = d.min(0)
        assigned = places[(d <= near + self.tie).argmax(0)]
        assigned[medoids] = places
        return near, assigned

    def _choose(self, candidates: Indices, score: Floats, medoids: Indices, place: int) -> np.int64:
        """The candidate with the largest score + gamma (1 - NMI) as medoid number `place` in addition to `medoids`.

        1 - NMI is at most 1, so a candidate with score + gamma below the objective of the best score is not evaluated.
        """
        places = self.everyone[: len(medoids) + 1]
        near, assigned = self.assign(medoids, places[places != place])
        reach = near + np.where(assigned > place, self.tie, -self.tie)  # a tie goes to the lower place
        reach[medoids] = -math.inf
        best = int(score.argmax())
        goal = score[best] + self.gamma * self._margins(candidates[[best]], reach, assigned, place)[0]
        (hopeful,) = (score + self.gamma >= goal - self.tie).nonzero()
        self.candidates += len(candidates)
        self.evaluated += max(1, len(hopeful))
        if len(hopeful) < 2:  # none if the scores are NaN
            return np.int64(candidates[best])
        candidates = candidates[hopeful]
        return self._best(candidates, score[hopeful] + self.gamma * self._margins(candidates, reach, assigned, place))

    def _margins(self, candidates: Indices, reach: Floats, assigned: Indices, place: int) -> Floats:
        """1 - NMI with each candidate as medoid number `place`: items nearer than their `reach` join it, (J,)."""
        found = np.where(self.d[candidates] < reach, place, assigned)  # (J, N)
        found[self.everyone[: len(candidates)], candidates] = place
        return self.margin(found)

    def _best(self, candidates: Indices, score: Floats) -> np.int64:
        tied = score >= score.max() - self.tie
        central = np.where(tied, self.central[candidates], -math.inf)
        return np.int64(candidates[(central >= central.max() - self.tie).argmax()])

    def true_medoids(self) -> Indices:
        """The medoid of every item's class, (N,)."""
        medoid = np.empty_like(self.truth)
        for label in range(int(self.truth.max()) + 1):
            (members,) = (self.truth == label).nonzero()
            medoid[members] = self._best(members, self.within(members))
        return medoid
