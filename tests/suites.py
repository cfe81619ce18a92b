"""Invented results of a suite whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from benches import fake_results

from nearfield.bench.results import BenchResults

METHODS = {"good": 0.5, "fair": 0.45, "same": 0.45, "poor": 0.3}


def fake_suite(datasets: int = 5, queries: int = 60, per_class: int = 5, shift: float = 0.0) -> dict[str, BenchResults]:
    """Benches of four methods; on every dataset `fair` and `same` differ by a random sign times `shift`."""
    rng = np.random.default_rng(0)
    found = {}
    for number in range(datasets):
        truth = {**METHODS, "same": METHODS["same"] + shift * rng.choice([-1.0, 1.0])}
        results = fake_results(truth, queries=queries, rng=number)
        found[f"data{number}"] = replace(results, query_classes=np.arange(queries) // per_class)
    return found
