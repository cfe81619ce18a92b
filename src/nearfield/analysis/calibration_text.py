"""Calibration in words, as a page and as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nearfield.analysis.calibration import (
    FAR,
    METHODS,
    OUTLIERS,
    OWN,
    UNSTEADY,
    Bin,
    Population,
    Said,
    Simulated,
    confident,
    leave_one_dataset_out,
    overconfidence,
    reliability,
    simulate,
    split_halves,
)
from nearfield.analysis.levels import Level
from nearfield.analysis.suite import Suite
from nearfield.analysis.tables import markdown_table

Case = tuple[Level, int, Population]  # the int counts units
CASES: tuple[Case, ...] = (
    *(("seeds", size, "normal") for size in (3, 5, 10)),
    *(("classes", size, "normal") for size in (5, 12)),
    *(("datasets", size, "normal") for size in (3, 6, 10)),
    *(("datasets", size, "outliers") for size in (3, 6)),
    *(("datasets", size, "local") for size in (3, 6)),
)
ABOUT = (
    "A verdict speaks at one of three levels: for new *seeds* on the same test images, for new test *classes* of the "
    "same dataset, for a new *dataset*. Each is tried where the truth is known, and on the suite's own data by leaving "
    "out what it speaks of."
)
SIMULATED = (
    "Two methods differ by N(0, 2) in units of the methods' spread, or not at all; seeds and classes (crossed with "
    f"five seeds) add normal noise. Datasets come with a suite of {METHODS} methods, from which the prior is learned; "
    f"a dataset adds {OWN:g} times the spread of what travels, or, where differences are local, {1 / OWN:g} times. "
    f"With outliers, {OUTLIERS:.0%} of methods are {FAR:g} times as far and vary {UNSTEADY:g} times as much between "
    "datasets. A coverage of 95 % and 5 % or less of equal methods called different are what a level promises; "
    "verdicts with a probability of 0.9 or more must hold nine times in ten."
)
LEFT_OUT, HALVES = "left-out dataset", "split halves of classes"


@dataclass(frozen=True)
class Calibration:
    """Statements with their probability and whether they came true, by how they were asked; and simulations."""

    said: dict[str, list[Said]]
    simulated: dict[Case, Simulated]
    left_out: dict[str, list[Said]]  # those of `LEFT_OUT`, by the dataset that was left out

    @property
    def curves(self) -> dict[str, Sequence[Bin]]:
        """What a reliability diagram shows."""
        own = {name: reliability(said) for name, said in self.said.items() if said}
        known = {f"simulated {units(case)}": reliability(found.said) for case, found in self.simulated.items()}
        return {**own, **known}


def calibrate(suite: Suite | None, seed: int = 0, repetitions: int = 300) -> Calibration:
    """Ask a suite's own data, if there is one, and simulations; the same seed gives the same numbers."""
    said: dict[str, list[Said]] = {}
    left_out: dict[str, list[Said]] = {}
    if suite is not None:
        rng = np.random.default_rng(seed)
        left_out = leave_one_dataset_out(suite)
        said[LEFT_OUT] = [one for each in left_out.values() for one in each]
        said[HALVES] = [one for each in suite.datasets for one in split_halves(each, rng)]
    return Calibration(said, simulations(seed, repetitions), left_out)


def simulations(seed: int = 0, repetitions: int = 300) -> dict[Case, Simulated]:
    """Every level, with few and with many units."""
    return {case: _simulated(case, seed, repetitions) for case in CASES}


def _simulated(case: Case, seed: int, repetitions: int) -> Simulated:
    level, size, population = case
    return simulate(level, np.random.default_rng([seed, size]), repetitions, size, population)


def units(case: Case) -> str:
    """How many of its level's units a simulation has, and how its methods differ if not normally."""
    level, size, population = case
    return f"{size * (8 if level == 'classes' else 1)} {level}" + {"normal": ""}.get(population, f", {population}")


def calibration_lines(said: Mapping[str, Sequence[Said]]) -> list[str]:
    """What came of the suite's own statements."""
    found = []
    levels = {LEFT_OUT: "datasets", HALVES: "classes"}
    for name, each in said.items():
        if not each:
            found.append(f"Level {levels[name]}, {name}: there are too few datasets, classes or seeds to ask.")
            continue
        count, held = confident(each, 0.9)
        over = overconfidence(each)
        words = "too much" if over > 0 else "too little"
        found.append(
            f"Level {levels[name]}, {name}: of {count:,} verdicts with a probability of 0.9 or more, {held:.1%} held; "
            f"over all {len(each):,}, verdicts said {abs(over):.3f} {words} on average."
        )
    return found


def calibration_page(found: Calibration, figure: str, command: str) -> str:
    """docs/calibration.md."""
    rows = []
    for case, each in found.simulated.items():
        count, held = confident(each.said, 0.9)
        cells = [f"{each.coverage:.1%}", f"{each.false_positives:.1%}", f"{held:.1%} of {count}"]
        rows.append([case[0], units(case), *cells, str(each.repetitions)])
    head = ["level", "units", "coverage of 95 % intervals", "equal, called different", "p ≥ 0.9 held", "repetitions"]
    bins = [
        [name, f"{one.said:.2f}", f"{one.held:.2f}", f"{one.low:.2f} to {one.high:.2f}", f"{one.count:,}"]
        for name, curve in found.curves.items()
        for one in curve
        if name in found.said
    ]
    parts = [
        "# Calibration: do verdicts hold as often as they say?",
        f"Written by `{command}`.",
        ABOUT,
        f"![Share of verdicts that came true, against the probability that they were given]({figure})",
        "## Simulations",
        SIMULATED,
        markdown_table(head, rows, left=2),
    ]
    if found.said:
        parts += ["## The suite's own data", "\n".join(f"- {line}" for line in calibration_lines(found.said))]
    if bins:
        parts.append(markdown_table(["asked by", "said", "held", "95 % (Wilson)", "verdicts"], bins, left=1))
        parts.append(
            "Pairs of methods share methods and datasets, so these verdicts are not independent, and the intervals are "
            "too narrow."
        )
    if found.left_out:
        counts = {name: confident(each, 0.9) for name, each in found.left_out.items()}
        rows = [[name, f"{count:,}", f"{held:.1%}" if count else "–"] for name, (count, held) in counts.items()]
        parts.append(markdown_table(["dataset left out", "verdicts with p ≥ 0.9", "held"], rows, left=1))
    return "\n\n".join(part.strip() for part in parts) + "\n"
