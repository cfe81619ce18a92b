"""The bias ledger: how much each known pitfall of reporting changes scores and ranking, from the runs of one bench.

Every entry ranks the same methods twice over the same seeds, once honestly and once with the pitfall, so that both
share the noise of the seeds. Pitfalls that favour a paper's own method alone (tuned, or larger, than the others) are
applied to each method in turn. Scores lie in [0, 1]; only text is in percent.
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
HONEST = "the mean over seeds, with equal tuning for every method and each run's step chosen by validation"


@dataclass(frozen=True)
class Place:
    """One line of a ranking; equal scores share the mean of their ranks."""

    label: str
    score: float
    rank: float  # 1 is best


@dataclass(frozen=True)
class Entry:
    """One pitfall: the honest ranking and the biased one."""

    name: str
    words: str
    baseline: str  # what `honest` is
    honest: tuple[Place, ...]  # best first
    biased: tuple[Place, ...]  # best first; in turns, each with its rank in its own table
    tau: float | None  # Kendall's, between the rankings; in turns, the mean over the tables
    gains: dict[str, float] | None  # biased score - honest score; None if they are different metrics
    in_turns: bool  # whether one method at a time is favoured, each in a table of its own
    leaders: tuple[str, ...]  # of the biased ranking; in turns, all that lead their own table
    missing: tuple[str, ...]  # methods without the runs for it, in neither ranking
    sides: tuple[str, str]  # what the two rankings are called

    @property
    def mean_gain(self) -> float | None:
        return sum(self.gains.values()) / len(self.gains) if self.gains else None

    @property
    def largest_gain(self) -> tuple[str, float] | None:
        """The method whose score changes most, and by how much."""
        return max(self.gains.items(), key=lambda gain: abs(gain[1])) if self.gains else None

    @property
    def moves(self) -> dict[str, float]:
        """Ranks that each method gains, most first."""
        biased = {place.label: place.rank for place in self.biased}
        moves = {place.label: place.rank - biased[place.label] for place in self.honest}
        return dict(sorted(moves.items(), key=lambda move: -move[1]))

    @property
    def leader_changes(self) -> bool:
        """Whether another method can be called the best."""
        return any(label != self.honest[0].label for label in self.leaders)


@dataclass(frozen=True)
class _Pitfall:
    name: str
    words: str
    measure: Measure
    baseline: str = HONEST
    in_turns: bool = False
    comparable: bool = True  # whether honest and biased scores are of one metric
    sides: tuple[str, str] = ("honest", "biased")


def ledger(results: BenchResults, metric: str = "map@r", part: Part = "separated") -> list[Entry]:
    """An entry for each pitfall that at least two methods have the runs for."""
    check_metric(results, metric, part)
    methods = [method for method in results.methods if seed_scores(method.seeds, metric, part)]
    fewest = min((len(seed_scores(method.seeds, metric, part)) for method in methods), default=0)
    pitfalls = [*_pitfalls(metric, part, fewest), *(_pitfalls_of_folds(metric) if part == "separated" else [])]
    return [entry for pitfall in pitfalls if (entry := _entry(pitfall, methods))]


def _pitfalls(metric: str, part: Part, fewest: int) -> list[_Pitfall]:
    def scores(method: MethodResult, variant: str | None = None) -> dict[int, float]:
        return seed_scores(method.seeds if variant is None else method.variants.get(variant, ()), metric, part)

    def variants(honest: str | None, biased: str | None) -> Measure:
        return lambda method: _shared(scores(method, honest), scores(method, biased))

    return [
        _Pitfall(
            "chance",
            "No pitfall: one half of the seeds against the other. A change no larger than this may be chance.",
            lambda method: _halves(list(scores(method).values())),
            "the first half of the seeds",
            sides=("first half", "second half"),
        ),
        _Pitfall(
            "best seed",
            f"The best of {fewest} seeds instead of their mean.",
            lambda method: _best_seed(list(scores(method).values()), fewest),
        ),
        _Pitfall("untuned", "The published setting for every method, without a search.", variants(None, "untuned")),
        _Pitfall(
            "mine tuned",
            "Each method in turn is tuned, while all others keep their published settings.",
            variants("untuned", None),
            "the published setting for every method",
            in_turns=True,
        ),
        _Pitfall("64 dims", "An embedding of 64 dims for every method.", variants(None, "dim64")),
        _Pitfall("512 dims", "An embedding of 512 dims for every method.", variants(None, "dim512")),
        _Pitfall(
            "mine with 512 dims",
            "Each method in turn has 512 dims, while all others have 64.",
            variants("dim64", "dim512"),
            "64 dims for every method",
            in_turns=True,
        ),
        _Pitfall("plain", "Every method without its own tricks.", variants(None, "plain")),
        _Pitfall("twice the steps", "Twice the training steps for every method.", variants(None, "longer")),
        _Pitfall(
            "mine trained longer",
            "Each method in turn has twice the training steps.",
            variants(None, "longer"),
            in_turns=True,
        ),
        _Pitfall(
            "R@1",
            f"Ranked by R@1 instead of {title(metric)}.",
            lambda method: _shared(scores(method), seed_scores(method.seeds, "recall@1", part)),
            comparable=False,
        ),
    ]


def _pitfalls_of_folds(metric: str) -> list[_Pitfall]:
    """Those of single networks."""
    return [
        _Pitfall(
            "best test epoch",
            "One step for all runs of a method, the best on the test classes, instead of steps chosen by validation.",
            lambda method: _oracle(method, metric, lambda curves: float(curves.mean(axis=0).max())),
        ),
        _Pitfall(
            "mean of maxima",
            "The mean over runs of each run's own best step on the test classes.",
            lambda method: _oracle(method, metric, lambda curves: float(curves.max(axis=1).mean())),
        ),
        _Pitfall(
            "concatenated",
            "The embeddings of all folds concatenated, with as many more dims, instead of each fold by itself.",
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
    """Score at the step chosen by validation, and what `choose` makes of the test curves (runs, common steps)."""
    folds = [fold for seed in method.seeds for fold in seed.folds if fold.test and metric in fold.test]
    curves = [{step: scores[metric] for step, scores in fold.oracle if metric in scores} for fold in folds]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    if not steps:
        return None
    honest = float(np.mean([fold.test[metric] for fold in folds if fold.test]))
    return honest, choose(np.array([[curve[step] for step in steps] for curve in curves]))


def _entry(pitfall: _Pitfall, methods: Sequence[MethodResult]) -> Entry | None:
    """Both rankings of the methods with runs for the pitfall; None if there are fewer than two."""
    found = {method.label: pitfall.measure(method) for method in methods}
    pairs = {label: pair for label, pair in found.items() if pair}
    if len(pairs) < 2:
        return None
    honest, biased = ({label: pair[i] for label, pair in pairs.items()} for i in (0, 1))
    shift = rank_shift(honest, biased)
    if pitfall.in_turns:
        tables = [rank_shift(honest, {**honest, label: biased[label]}) for label in shift.methods]  # in one order
        ranks = tuple(table.biased_ranks[i] for i, table in enumerate(tables))
        taus = [table.tau for table in tables if table.tau is not None]
        tau = float(np.mean(taus)) if taus else None
    else:
        ranks, tau = shift.biased_ranks, shift.tau
    places = _places(shift.methods, biased, ranks)
    return Entry(
        name=pitfall.name,
        words=pitfall.words,
        baseline=pitfall.baseline,
        honest=_places(shift.methods, honest, shift.ranks),
        biased=places,
        tau=tau,
        gains=dict(zip(shift.methods, shift.gains, strict=True)) if pitfall.comparable else None,
        in_turns=pitfall.in_turns,
        leaders=tuple(place.label for place in places if place.rank == (1 if pitfall.in_turns else places[0].rank)),
        missing=tuple(label for label, pair in found.items() if not pair),
        sides=pitfall.sides,
    )


def _places(labels: Sequence[str], scores: Mapping[str, float], ranks: Sequence[float]) -> tuple[Place, ...]:
    places = [Place(label, scores[label], rank) for label, rank in zip(labels, ranks, strict=True)]
    return tuple(sorted(places, key=lambda place: place.rank))


# ---------------------------------------------------------------------------------------------------------------
# As a table


def ledger_markdown(entries: Sequence[Entry]) -> str:
    """A row for each pitfall, and what each of them is."""
    head = ["pitfall", "leader", "methods", "Kendall's τ", "mean gain", "largest gain", "mean move", "largest move"]
    explained = (
        f"The honest ranking is by {HONEST}. Gains are biased minus honest scores, in percentage points. Moves are "
        "ranks gained; their mean is of absolute values."
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
    return against + (f" No runs for it: {', '.join(entry.missing)}." if entry.missing else "")
