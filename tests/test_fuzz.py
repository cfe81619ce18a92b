"""A short form of `make fuzz`: some hostile cases of every area, always the same ones."""

from __future__ import annotations

import pytest
from fuzz import AREAS, run_area

CASES = {"batches": 400, "constructors": 400, "metrics": 60, "commands": 40}


@pytest.mark.parametrize("name", CASES)
def test_nothing_silently_wrong(name: str) -> None:
    tally = run_area(AREAS[name], seed=0, cases=CASES[name])
    assert tally.cases == CASES[name]
    assert not tally.failures, "\n".join(tally.failures)


@pytest.mark.slow
def test_a_killed_run_ends_as_if_it_had_not_been() -> None:
    tally = run_area(AREAS["kills"], seed=0, cases=34)  # about a hundred kills
    assert tally.cases == 34
    assert not tally.failures, "\n".join(tally.failures)
