"""A suite as tables and in words. Every sentence says at which level it speaks; only text is in percent."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import NamedTuple

from nearfield.analysis.budgets import NOT_EXHAUSTED, NOT_MEASURED, STILL_LEARNING, unmeasured, weakened
from nearfield.analysis.levels import SAYS
from nearfield.analysis.new_dataset import ROPE, SURE, NewDataset
from nearfield.analysis.suite import OneDataset, Suite, agreement
from nearfield.analysis.tables import markdown_table, title

WORDS = {"better": "is better than", "worse": "is worse than", "equal": "and"}


def headline(suite: Suite) -> str:
    """The first sentence: the method of the best mean rank, at the most general level that the data allow."""
    best = suite.methods[0]
    count, names = len(suite.datasets), ", ".join(each.name for each in suite.datasets)
    if suite.level != "datasets":
        return (
            f"Level {suite.level} ({SAYS[suite.level]}): {count} dataset{'s' * (count != 1)} cannot speak of another; "
            f"{best} has the best mean rank on {names}."
        )
    beaten = [other for other in suite.methods if other != best and suite.pair(best, other).decided == "better"]
    rest = len(suite.methods) - 1
    if not beaten:
        return (
            f"Level datasets ({SAYS['datasets']}): {best} has the best mean rank over {count} datasets, but none of "
            f"the other {rest} methods is beaten with a probability of {SURE:.0%} on a new one."
        )
    return (
        f"Level datasets ({SAYS['datasets']}): {best} has the best mean rank over {count} datasets, and is better than "
        f"{len(beaten)} of the other {rest} methods with a probability of at least {SURE:.0%} each on a new one."
    )


def lines(suite: Suite) -> list[str]:
    """The suite in sentences, from the most general level to the least."""
    found = [headline(suite)]
    if suite.pairs:
        decided = [pair for pair in suite.pairs if pair.found.decided in ("better", "worse")]
        equal = sum(pair.found.decided == "equal" for pair in suite.pairs)
        found.append(
            f"Level datasets: {len(decided)} of {len(suite.pairs)} pairs are decided for a new dataset with a "
            f"probability of at least {SURE:.0%}, and {equal} are practically equal (less than {ROPE:g} of the spread "
            "of the methods apart)."
        )
        found += [_against_best(suite, other) for other in suite.methods[1:]]
    if suite.critical:
        found.append(
            f"Level datasets, classical view: Friedman's test over {len(suite.datasets)} datasets has p = "
            f"{suite.critical.p:.2g}; mean ranks differ from {suite.critical.difference:.1f} on (Nemenyi)."
        )
    taus = [tau for tau in agreement(suite).values() if tau is not None]
    if taus:
        found.append(
            f"Level datasets: Kendall's tau between the orders on two datasets is {min(taus):.2f} to {max(taus):.2f}, "
            f"{sum(taus) / len(taus):.2f} on average."
        )
    return found + [line for each in suite.datasets for line in dataset_lines(each)] + flag_lines(suite)


def _against_best(suite: Suite, other: str) -> str:
    best = suite.methods[0]
    sentence = verdict(best, other, suite.pair(best, other))
    worst = max(suite.efforts(other), key=lambda each: len(each.flags))
    return f"Level datasets: {weakened(sentence, worst)}."


def verdict(a: str, b: str, found: NewDataset) -> str:
    """Two methods on a new dataset, in words."""
    numbers = f"better {found.better:.2f}, practically equal {found.equal:.2f}, worse {found.worse:.2f}"
    if found.decided in ("better", "worse"):
        return f"{a} {WORDS[found.decided]} {b} on a new dataset: {numbers}"
    if found.decided == "equal":
        return f"{a} and {b} are practically equal on a new dataset: {numbers}"
    return f"{a} or {b} on a new dataset is undecided: {numbers}"


def dataset_lines(each: OneDataset) -> list[str]:
    """What one dataset says: of new classes, and of new seeds."""
    found = []
    if each.verdicts:
        pairs = each.verdicts.pairs
        yes = sum(pair.significant for pair in pairs)
        like = ", ".join(each.verdicts.like_best)
        found.append(
            f"Level classes, {each.name}: {yes} of {len(pairs)} differences are significant {SAYS['classes']} "
            f"({len(each.board.shares)} classes crossed with {len(each.board.compared_seeds)} seeds, Holm); not "
            f"significantly below the best: {like}."
        )
    if each.board.verdicts:
        pairs = each.board.verdicts.pairs
        yes = sum(pair.significant for pair in pairs)
        found.append(
            f"Level seeds, {each.name}: {yes} of {len(pairs)} differences are significant {SAYS['seeds']} (Holm)."
        )
    return found


def flag_lines(suite: Suite) -> list[str]:
    """Which budgets were too small, dataset by dataset."""
    found = []
    for each in suite.datasets:
        for flag in sorted({flag for one in each.efforts.values() for flag in one.flags}):
            names = [label for label, one in each.efforts.items() if flag in one.flags]
            found.append(f"Budget, {each.name}: {flag}: {', '.join(names)}.")
    unknown = unmeasured(one for each in suite.datasets for one in each.efforts.values())
    return [*found, f"Budget. {NOT_MEASURED}."] if unknown else found


class Table(NamedTuple):
    """A table and what is written below it; columns after the first `left` are right-aligned."""

    head: list[str]
    rows: list[list[str]]
    left: int
    note: str

    def markdown(self) -> str:
        """The table and its note."""
        return f"{markdown_table(self.head, self.rows, self.left)}\n{self.note}\n"


def leaderboard(suite: Suite) -> Table:
    """Mean rank, probability that the best is better, and the mean score on every dataset in percent."""
    best, rows = suite.methods[0], []
    for label in suite.methods:
        beats = f"{suite.pair(best, label).positive:.2f}" if suite.pairs and label != best else "–"
        scores = [f"{100 * each.means[label]:.2f}" for each in suite.datasets]
        rows.append([label, f"{suite.ranks[label]:.1f}", beats, *scores, _flags(suite, label)])
    head = ["method", "mean rank", f"P({best} better)", *(each.name for each in suite.datasets), "budget"]
    note = (
        f"{title(suite.metric)} in percent, networks scored one by one, mean over seeds. Mean rank over datasets, 1 is "
        f"best. P: probability that {best} scores higher on a new dataset (level datasets). Budget: on how many "
        "datasets the search was not exhausted (s), and the method was still learning (l)."
    )
    return Table(head, rows, 1, note)


def _flags(suite: Suite, label: str) -> str:
    flags = [flag for one in suite.efforts(label) for flag in one.flags]
    found = {"s": flags.count(NOT_EXHAUSTED), "l": flags.count(STILL_LEARNING)}
    return " ".join(f"{mark}{count}" for mark, count in found.items() if count) or "–"


def pairs(suite: Suite) -> Table:
    """Every pair across datasets."""
    rows = []
    for pair in suite.pairs:
        found = pair.found
        numbers = [f"{value:.2f}" for value in (found.better, found.equal, found.worse)]
        interval = f"{found.low:+.2f} to {found.high:+.2f}"
        rows.append([pair.first, pair.second, *numbers, f"{found.mean:+.2f}", interval, found.decided or "undecided"])
    head = ["first", "second", "better", "equal", "worse", "mean", "95 % on a new dataset", "verdict"]
    note = (
        f"Level datasets. Differences are in spreads of the methods on a dataset (interquartile range / 1.349); equal: "
        f"less than {ROPE:g} of it. A verdict needs a probability of {SURE:g}."
    )
    return Table(head, rows, 2, note)


def agreements(suite: Suite) -> Table:
    """Kendall's tau between the orders on every two datasets."""
    names = [each.name for each in suite.datasets]
    taus = agreement(suite)
    rows = []
    for one in names:
        found = [taus.get((one, other), taus.get((other, one))) for other in names]
        rows.append([one, *("–" if tau is None else f"{tau:.2f}" for tau in found)])
    note = "Kendall's tau between the orders of the methods on two datasets; 0 if they have nothing in common."
    return Table(["", *names], rows, 1, note)


def markdown(suite: Suite, figures: Mapping[str, str]) -> str:
    """The page across datasets as Markdown; `figures` are file names by their titles."""
    parts = [f"# {len(suite.datasets)} datasets, {len(suite.methods)} methods", *lines(suite)[:1]]
    parts += ["## Leaderboard over all datasets", leaderboard(suite).markdown()]
    parts += [f"![{name}]({file})" for name, file in figures.items()]
    parts += ["## Verdicts", "\n".join(f"- {line}" for line in lines(suite))]
    if suite.pairs:
        parts += ["## Every pair on a new dataset", pairs(suite).markdown()]
    if len(suite.datasets) > 1:
        parts += ["## Do the datasets agree?", agreements(suite).markdown()]
    if suite.missing:
        parts += ["## Not finished", "\n".join(f"- {line}" for line in suite.missing)]
    return "\n\n".join(escape(part.strip(), quote=False) for part in parts) + "\n"
