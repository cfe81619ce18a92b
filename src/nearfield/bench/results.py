"""The results of a bench as plain values: every trial, seed and fold. Made by `read_results`, read by `analysis`.

Axes: S seeds, Q queries (test images), D embedding dims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Scores = dict[str, float]  # metric -> value in [0, 1]
Part = Literal["separated", "concatenated"]


@dataclass(frozen=True)
class Fold:
    """One trained network of a run."""

    fold: int
    fit_classes: int
    val_classes: int
    best_step: int  # chosen by validation
    train_seconds: float
    val: tuple[tuple[int, Scores], ...]  # learning curve: (step, validation scores), ascending
    oracle: tuple[tuple[int, Scores], ...]  # the same of the test classes, where it was recorded; never used to choose
    test: Scores | None  # None in a trial, which never sees the test classes


@dataclass(frozen=True)
class Trial:
    """One setting tried in the search; number 0 is the published one."""

    number: int
    params: dict[str, Any]  # dotted keys of the run's configuration, such as "method.params.beta", "optimizer.lr"
    folds: tuple[Fold, ...]
    value: float | None  # mean over folds of the best validation score; None if it was pruned
    state: Literal["complete", "pruned"]


@dataclass(frozen=True)
class Seed:
    """One repetition of the chosen setting."""

    seed: int
    folds: tuple[Fold, ...]
    separated: Scores  # test scores of each fold's network, averaged
    concatenated: Scores | None  # of the folds' embeddings side by side; None unless they are joined


@dataclass(frozen=True)
class MethodResult:
    """Everything that a bench found for one method."""

    label: str  # name, with the parameters that the bench's configuration sets
    name: str
    params: dict[str, Any]  # the chosen setting, dotted keys; empty if there was no search and no override
    trials: tuple[Trial, ...]
    seeds: tuple[Seed, ...]  # of the chosen setting, finished ones, ascending
    variants: dict[str, tuple[Seed, ...]]  # the same, "untuned", "dim64", "dim512", "plain" or "longer"
    unequal: tuple[str, ...]  # how its conditions differ from those of other methods, human-readable


@dataclass(frozen=True)
class BenchResults:
    """A bench's results so far."""

    config: dict[str, Any]  # of the bench, resolved
    digest: str
    protocol: dict[str, Any]  # name, digest and every field
    data: dict[str, Any]  # `Dataset.summary()`
    environment: dict[str, Any]  # versions, commit, platform
    split: str  # fingerprint
    baselines: dict[str, Scores]  # scores without training: "raw features", "PCA", "whitening", "untrained network"
    methods: tuple[MethodResult, ...]  # in the order of the configuration; with a finished seed or trial
    missing: tuple[str, ...]  # tasks that are not finished, human-readable
    queries: Callable[[str, str, Part], Floats]  # (label, metric, part) -> (S, Q) per-query test scores
    # label -> (Q, D) of the first seed, if they are here: of all folds where they are joined, else of the first
    embeddings: Callable[[str], NDArray[np.float16] | None]
    query_classes: NDArray[np.int64] | None = None  # (Q,) the class of each query; None in results of old versions
