"""What the statistics compute without importing scipy.stats, against it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nearfield.analysis import statistics


@pytest.mark.parametrize("k", [2, 3, 10, 33, 100])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_studentized_range(k: int, level: float) -> None:
    expected = stats.studentized_range.cdf(statistics._studentized_range(level, k), k, np.inf)
    assert expected == pytest.approx(level, abs=1e-7)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 5), k=st.integers(2, 9), values=st.integers(2, 9))
def test_ranks_and_tau(seed: int, n: int, k: int, values: int) -> None:
    scores = np.random.default_rng(seed).integers(0, values, (n + 1, k)).astype(float)
    np.testing.assert_array_equal(statistics._ranks(scores), stats.rankdata(-scores, axis=1))
    tau = statistics.kendall_tau(scores[0], scores[1])
    if np.ptp(scores[0]) and np.ptp(scores[1]):
        assert tau == pytest.approx(stats.kendalltau(scores[0], scores[1]).statistic, abs=1e-12)
    else:
        assert tau is None


@pytest.mark.programs
def test_leaderboards_and_reports_import_no_heavy_part_of_scipy() -> None:
    code = "import sys, nearfield.cli.leaderboard, nearfield.report as r; heavy = {'scipy.stats', 'scipy.optimize'}"
    code += "; sys.exit(bool(heavy & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
