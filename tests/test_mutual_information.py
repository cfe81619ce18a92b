"""Mutual information against scikit-learn's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from nearfield.metrics.mutual_information import normalized_mutual_information


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 60),
    classes=st.integers(1, 8),
    clusters=st.integers(1, 8),
    average=st.sampled_from(["arithmetic", "geometric"]),
    agree=st.booleans(),
)
def test_equals_that_of_scikit_learn(
    seed: int, count: int, classes: int, clusters: int, average: str, agree: bool
) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, count)
    found = rng.permutation(classes)[truth] if agree else rng.integers(0, clusters, count)
    expected = normalized_mutual_info_score(truth, found, average_method=average)
    assert normalized_mutual_information(truth, found, average) == pytest.approx(expected, abs=1e-12)


def test_of_many_items_and_clusters() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 300, 20_000)
    found = np.where(rng.random(20_000) < 0.5, truth, rng.integers(0, 300, 20_000))
    expected = normalized_mutual_info_score(truth, found)
    assert normalized_mutual_information(truth, found) == pytest.approx(expected, rel=1e-12)


@pytest.mark.programs
def test_nmi_imports_no_scikit_learn() -> None:
    code = (
        "import sys, torch; from nearfield import retrieval_metrics as m;"
        "m(torch.randn(30, 4), [i % 3 for i in range(30)], metrics=('nmi', 'map_at_r'));"
        "sys.exit('sklearn' in sys.modules or 'scipy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
