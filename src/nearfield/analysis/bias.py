"""The bias ledger: how much each classical sin moves the scores and the ranking, from the runs of one bench.

Every entry ranks the same methods twice over the same seeds, once honestly and once with the sin, so that the seeds'
luck is in both. Sins that one paper commits for its own method alone (tuned, or larger, against the others) are played
through for each method in turn. Scores lie in [0, 1]; only text is in percent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearfield.analysis.leaderboard import check_metric, seed_scores
from nearfield.analysis.statistics import best_of_n_bias, rank_shift
from nearfield.analysis.tables import markdown_table, title
from nearfield.bench.results import BenchResults, MethodResult, Part

Pair = tuple[float, float]  # honest and biased score of one method
Measure = Callable[[MethodResult], Pair | None]
HONEST = "the mean over seeds, every method tuned alike, each run's step chosen by validation"


@dataclass(frozen=True)
class Place:
    """One line of a ranking; equal scores share the mean of their ranks."""

    label: str
    score: float
    rank: float  # 1 is best


@dataclass(frozen=True)
class Entry:
    """One sin."""

    name: str
    words: str
    baseline: str  # what `honest` is
    honest: tuple[Place, ...]  # best first
    biased: tuple[Place, ...]  # best first; of a sin in turns, each with its place in its own table
    tau: float | None  # Kendall's, between the rankings; in turns, its mean over the tables
    gains: dict[str, float] | None  # biased score - honest score; None if they are different metrics
    in_turns: bool  # whether one method at a time sins, each in a table of its own
    leaders: tuple[str, ...]  # of the biased ranking; in turns, all who lead their own table
    missing: tuple[str, ...]  # methods that lack what the sin needs, and are in neither ranking
    sides: tuple[str, str]  # what the two rankings are called

    @property
    def mean_gain(self) -> float | None:
        return sum(self.gains.values()) / len(self.gains) if self.gains else None

    @property
    def largest_gain(self) -> tuple[str, float] | None:
        """The method whose score the sin changes most, and by how much."""
        return max(self.gains.items(), key=lambda gain: abs(gain[1])) if self.gains else None

    @property
    def moves(self) -> dict[str, float]:
        """Places that the sin lifts each method by, most first."""
        biased = {place.label: place.rank for place in self.biased}
        moves = {place.label: place.rank - biased[place.label] for place in self.honest}
        return dict(sorted(moves.items(), key=lambda move: -move[1]))

    @property
    def leader_changes(self) -> bool:
        """Whether someone else can be called the best."""
        return any(label != self.honest[0].label for label in self.leaders)


@dataclass(frozen=True)
class _Sin:
    name: str
    words: str
    measure: Measure
    baseline: str = HONEST
    in_turns: bool = False
    comparable: bool = True  # whether honest and biased scores are of one metric
    sides: tuple[str, str] = ("honest", "biased")


def ledger(results: BenchResults, metric: str = "map@r", part: Part = "separated") -> list[Entry]:
    """An entry for each sin that at least two methods have the runs for."""
    check_metric(results, metric, part)
    methods = [method for method in results.methods if seed_scores(method.seeds, metric, part)]
    fewest = min((len(seed_scores(method.seeds, metric, part)) for method in methods), default=0)
    sins = [*_sins(metric, part, fewest), *(_sins_of_folds(metric) if part == "separated" else [])]
    return [entry for sin in sins if (entry := _entry(sin, methods))]


def _sins(metric: str, part: Part, fewest: int) -> list[_Sin]:
    def scores(method: MethodResult, variant: str | None = None) -> dict[int, float]:
        return seed_scores(method.seeds if variant is None else method.variants.get(variant, ()), metric, part)

    def variants(honest: str | None, biased: str | None) -> Measure:
        return lambda method: _shared(scores(method, honest), scores(method, biased))

    return [
        _Sin(
            "chance",
            "No sin: one half of the seeds against the other. What moves a ranking no more than this may be chance.",
            lambda method: _halves(list(scores(method).values())),
            "the first half of the seeds",
            sides=("first half", "second half"),
        ),
        _Sin(
            "best seed",
            f"The best of {fewest} seeds instead of their mean.",
            lambda method: _best_seed(list(scores(method).values()), fewest),
        ),
        _Sin("untuned", "The published setting for everybody, without any search.", variants(None, "untuned")),
        _Sin(
            "mine tuned",
            "Each method in turn is tuned while all others keep their published settings.",
            variants("untuned", None),
            "the published setting for everybody",
            in_turns=True,
        ),
        _Sin("64 dims", "An embedding of 64 dims for everybody.", variants(None, "dim64")),
        _Sin("512 dims", "An embedding of 512 dims for everybody.", variants(None, "dim512")),
        _Sin(
            "mine with 512 dims",
            "Each method in turn has 512 dims while all others have 64.",
            variants("dim64", "dim512"),
            "64 dims for everybody",
            in_turns=True,
        ),
        _Sin("plain", "Every method without its own tricks.", variants(None, "plain")),
        _Sin(
            "R@1",
            f"Ranked by R@1 instead of {title(metric)}.",
            lambda method: _shared(scores(method), seed_scores(method.seeds, "recall@1", part)),
            comparable=False,
        ),
    ]


def _sins_of_folds(metric: str) -> list[_Sin]:
    """Those of single networks, or against them."""
    return [
        _Sin(
            "best test epoch",
            "One step for all runs of a method, the best on the test classes, instead of those that validation chose.",
            lambda method: _oracle(method, metric, lambda curves: float(curves.mean(axis=0).max())),
        ),
        _Sin(
            "mean of maxima",
            "Each run reports its own best step on the test classes; then the mean over runs.",
            lambda method: _oracle(method, metric, lambda curves: float(curves.max(axis=1).mean())),
        ),
        _Sin(
            "concatenated",
            "The folds' embeddings side by side, so with more dims, instead of each by itself.",
            lambda method: _shared(
                seed_scores(method.seeds, metric, "separated"), seed_scores(method.seeds, metric, "concatenated")
            ),
        ),
    ]


def _shared(honest: Mapping[int, float], biased: Mapping[int, float]) -> Pair | None:
    """Means over the seeds that both have."""
    both = sorted(honest.keys() & biased.keys())
    return _means([honest[seed] for seed in both], [biased[seed] for seed in both]) if both else None


def _means(honest: Sequence[float], biased: Sequence[float]) -> Pair:
    return float(np.mean(honest)), float(np.mean(biased))


def _halves(scores: Sequence[float]) -> Pair | None:
    half = (len(scores) + 1) // 2
    return _means(scores[:half], scores[half:]) if len(scores) > 1 else None


def _best_seed(scores: Sequence[float], n: int) -> Pair | None:
    mean = float(np.mean(scores))
    return (mean, mean + best_of_n_bias(scores, n)) if n > 1 else None


def _oracle(method: MethodResult, metric: str, choose: Callable[[NDArray[np.float64]], float]) -> Pair | None:
    """Score at the step that validation chose, and that which `choose` makes of test curves (runs, common steps)."""
    folds = [fold for seed in method.seeds for fold in seed.folds if fold.test and metric in fold.test]
    curves = [{step: scores[metric] for step, scores in fold.oracle if metric in scores} for fold in folds]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    if not steps:
        return None
    honest = float(np.mean([fold.test[metric] for fold in folds if fold.test]))
    return honest, choose(np.array([[curve[step] for step in steps] for curve in curves]))


def _entry(sin: _Sin, methods: Sequence[MethodResult]) -> Entry | None:
    """Both rankings of the methods that the sin can be measured for; None if there are fewer than two."""
    found = {method.label: sin.measure(method) for method in methods}
    pairs = {label: pair for label, pair in found.items() if pair}
    if len(pairs) < 2:
        return None
    equal, bent = ({label: pair[i] for label, pair in pairs.items()} for i in (0, 1))
    shift = rank_shift(equal, bent)
    if sin.in_turns:
        tables = [rank_shift(equal, {**equal, label: bent[label]}) for label in shift.methods]  # all in the same order
        ranks = tuple(table.biased_ranks[i] for i, table in enumerate(tables))
        taus = [table.tau for table in tables if table.tau is not None]
        tau = float(np.mean(taus)) if taus else None
    else:
        ranks, tau = shift.biased_ranks, shift.tau
    biased = _places(shift.methods, bent, ranks)
    return Entry(
        name=sin.name,
        words=sin.words,
        baseline=sin.baseline,
        honest=_places(shift.methods, equal, shift.ranks),
        biased=biased,
        tau=tau,
        gains=dict(zip(shift.methods, shift.gains, strict=True)) if sin.comparable else None,
        in_turns=sin.in_turns,
        leaders=tuple(place.label for place in biased if place.rank == (1 if sin.in_turns else biased[0].rank)),
        missing=tuple(label for label, pair in found.items() if not pair),
        sides=sin.sides,
    )


def _places(labels: Sequence[str], scores: Mapping[str, float], ranks: Sequence[float]) -> tuple[Place, ...]:
    places = [Place(label, scores[label], rank) for label, rank in zip(labels, ranks, strict=True)]
    return tuple(sorted(places, key=lambda place: place.rank))


# ---------------------------------------------------------------------------------------------------------------
# As a table


def ledger_markdown(entries: Sequence[Entry]) -> str:
    """A line for each sin, and what each of them is."""
    head = ["sin", "leader", "methods", "Kendall's τ", "mean gain", "largest gain", "mean move", "farthest move"]
    explained = (
        f"The honest ranking is by {HONEST}. Gains are biased minus honest scores, in points of percent. Moves are "
        "places up; their mean is of either direction."
    )
    notes = [f"- **{entry.name}**: {entry.words}{_aside(entry)}\n" for entry in entries]
    return markdown_table(head, map(_line, entries)) + f"\n{explained}\n\n" + "".join(notes)


def _line(entry: Entry) -> list[str]:
    label, move = max(entry.moves.items(), key=lambda one: abs(one[1]))
    largest = entry.largest_gain
    return [
        entry.name,
        _leader(entry),
        str(len(entry.honest)),
        "–" if entry.tau is None else f"{entry.tau:.2f}",
        "–" if entry.mean_gain is None else f"{100 * entry.mean_gain:+.2f}",
        "–" if largest is None else f"{100 * largest[1]:+.2f} ({largest[0]})",
        f"{np.mean(np.abs(list(entry.moves.values()))):.1f}",
        f"{move:+g} ({label})" if move else "–",
    ]


def _leader(entry: Entry) -> str:
    if entry.in_turns or len(entry.leaders) > 1:
        return f"{len(entry.leaders)} can lead"
    return f"{entry.honest[0].label} → {entry.leaders[0]}" if entry.leader_changes else "the same"


def _aside(entry: Entry) -> str:
    against = "" if entry.baseline == HONEST else f" Against: {entry.baseline}."
    return against + (f" Without runs for it: {', '.join(entry.missing)}." if entry.missing else "")
