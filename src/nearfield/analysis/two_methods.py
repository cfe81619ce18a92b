"""Two methods: their difference at each level. A pair that was named beforehand needs no correction for many pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nearfield.analysis.levels import SAYS
from nearfield.analysis.new_dataset import FEWEST_DATASETS, NewDataset
from nearfield.analysis.statistics import Comparison
from nearfield.analysis.suite import OneDataset, Suite
from nearfield.analysis.suite_text import Table, verdict
from nearfield.analysis.tables import percent, title
from nearfield.errors import InputError, nearest

ALPHA = 0.05


@dataclass(frozen=True)
class OnDataset:
    """Two methods on one dataset; scores in [0, 1], differences are first - second."""

    scores: tuple[float, float]
    classes: Comparison | None  # level classes; None where the classes of the queries are not known
    seeds: Comparison  # level seeds
    below_baseline: bool  # neither exceeds the best untrained baseline, so that neither may be called better


@dataclass(frozen=True)
class TwoMethods:
    """Two methods of a bench or a suite."""

    names: tuple[str, str]
    metric: str
    datasets: Mapping[str, OnDataset]
    new: NewDataset | None  # level datasets; None with fewer than `FEWEST_DATASETS`


def two_methods(suite: Suite, a: str, b: str) -> TwoMethods:
    """a - b at every level; InputError unless both are finished on every dataset."""
    for name in (a, b):
        if name not in suite.methods:
            raise InputError(
                f"{name!r} is no method that every dataset has two seeds of; {nearest(name, suite.methods)}"
            )
    if a == b:
        raise InputError(f"two methods must differ; got {a} twice.")
    found = {each.name: _on_dataset(each, a, b) for each in suite.datasets}
    return TwoMethods((a, b), suite.metric, found, suite.pair(a, b) if suite.pairs else None)


def _on_dataset(each: OneDataset, a: str, b: str) -> OnDataset:
    below = {a, b} <= set(each.board.below_baseline)
    return OnDataset((each.means[a], each.means[b]), each.over_classes(a, b), each.over_seeds(a, b), below)


def table(found: TwoMethods) -> Table:
    """Both scores and their difference on every dataset, in percent."""
    first, second = found.names
    rows = []
    for name, each in found.datasets.items():
        scores = [f"{100 * score:.2f}" for score in each.scores]
        rows.append([name, *scores, *_cells(each.classes), *_cells(each.seeds)])
    note = (
        f"{title(found.metric)} in percent, mean over seeds. Differences are {first} - {second} with 95 % intervals: "
        f"{SAYS['classes']}, and {SAYS['seeds']}. p is of this pair alone: right for two methods that were named "
        "before the results were seen, not for two that stand out among many."
    )
    return Table(["dataset", first, second, "new classes", "p", "new seeds", "p"], rows, 1, note)


def _cells(found: Comparison | None) -> list[str]:
    if found is None:
        return ["–", "–"]
    return [f"{'+' * (found.difference.mean >= 0)}{percent(found.difference)}", f"{found.p:.2g}"]


def lines(found: TwoMethods) -> list[str]:
    """What follows, from the most general level to the least."""
    first, second = found.names
    count = len(found.datasets)
    if found.new is None:
        said = [f"Level datasets: not known; {count} of at least {FEWEST_DATASETS} datasets."]
    else:
        probability = f"{first} scores higher with a probability of {found.new.positive:.2f}"
        said = [f"Level datasets: {verdict(first, second, found.new)}. {probability}."]
    if all(each.classes for each in found.datasets.values()):
        said.append(_counted(found, "classes"))
    return [*said, _counted(found, "seeds")]


def _counted(found: TwoMethods, level: Literal["classes", "seeds"]) -> str:
    """On which datasets either of the two is better."""
    groups: dict[str, list[str]] = {}
    for name, each in found.datasets.items():
        compared = each.classes if level == "classes" else each.seeds
        assert compared is not None  # the level is said only where it is known for all
        winner = found.names[compared.difference.mean < 0]
        if compared.p >= ALPHA:
            words = "not significantly different on {}"
        elif each.below_baseline:
            words = f"{winner} scores higher on {{}}, but not above the untrained baseline"
        else:
            words = f"{winner} is better on {{}}"
        groups.setdefault(words, []).append(name)
    return f"Level {level}: {'; '.join(words.format(', '.join(names)) for words, names in groups.items())}."


def facts(found: TwoMethods) -> dict[str, Any]:
    """All numbers, for JSON."""
    return {
        "first": found.names[0],
        "second": found.names[1],
        "metric": found.metric,
        "datasets": {name: asdict(each) for name, each in found.datasets.items()},
        "new_dataset": None if found.new is None else asdict(found.new),
        "lines": lines(found),
    }
