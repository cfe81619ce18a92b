"""The leaderboard as data for the page: both parts, intervals, verdicts, ranks, budgets, and unequal conditions."""

from __future__ import annotations

from typing import Any

from nearfield.analysis.bias import Entry, ledger
from nearfield.analysis.leaderboard import Board, Standing, standings
from nearfield.analysis.statistics import Interval
from nearfield.analysis.tables import mark, title, verdict_text
from nearfield.bench.results import BenchResults, Part

PARTS: dict[Part, str] = {"separated": "Separated", "concatenated": "Concatenated"}
ORDER = ("recall@1", "recall@2", "recall@4", "recall@8", "r_precision", "map@r", "nmi")
HELP = {
    "r_precision": "Share of correct images among the R nearest, R being the number of correct ones.",
    "map@r": "Mean average precision at R: R-precision in which earlier ranks count more.",
    "nmi": "Agreement of k-means clusters with the classes: normalised mutual information.",
    "precision@1": "Share of queries whose nearest image is correct.",
}
METRIC = "map@r"


def metrics(results: BenchResults) -> list[dict[str, str]]:
    """Every measured metric, the board's first, with its title and a short explanation."""
    known = {key for method in results.methods for seed in method.seeds for key in seed.separated}
    known -= {"precision@1"} if "recall@1" in known else set()  # the same
    first = (METRIC, *(key for key in ORDER if key != METRIC))
    order = [*(key for key in first if key in known), *sorted(known - set(first))]
    return [{"key": key, "text": title(key), "help": _help(key)} for key in order]


def _help(key: str) -> str:
    found = HELP.get(key, "")
    return f"Share of queries with a correct image among the {key[7:]} nearest." if key.startswith("recall@") else found


def boards(results: BenchResults) -> dict[Part, Board]:
    """The board of each part that has scores, separated first."""
    joined = any(seed.concatenated for method in results.methods for seed in method.seeds)
    parts: list[Part] = ["separated", "concatenated"] if joined else ["separated"]
    return {part: standings(results, part, METRIC) for part in parts}


def board(results: BenchResults, found: dict[Part, Board]) -> dict[str, Any]:
    """All parts and the untrained baselines."""
    number = {method.label: i for i, method in enumerate(results.methods)}
    parts = [_part(each, number, _dims(results, part), len(found) > 1) for part, each in found.items()]
    return {
        "metric": METRIC,
        "parts": parts,
        "floors": [{"name": n, "scores": s} for n, s in results.baselines.items()],
    }


def _dims(results: BenchResults, part: Part) -> int | None:
    dims: int | None = results.config.get("run", {}).get("model", {}).get("dim")
    folds = int(results.protocol.get("folds", 1))
    return dims * folds if dims and part == "concatenated" else dims


def _part(found: Board, number: dict[str, int], dims: int | None, several: bool) -> dict[str, Any]:
    size = f", {dims} dims" if dims else ""
    notes: dict[Part, str] = {
        "separated": f"Each fold's network by itself{size}; mean over folds." if several else "",
        "concatenated": f"The embeddings of all folds concatenated{size}; scored once.",
    }
    return {
        "key": found.part,
        "text": PARTS[found.part],
        "note": notes[found.part],
        "rows": [_row(found, one, number[one.label]) for one in found.standings],
        "compared_seeds": list(found.compared_seeds),
        "critical": _critical(found, number),
    }


def _row(found: Board, one: Standing, method: int) -> dict[str, Any]:
    verdict = found.against_best(one.label)
    return {
        "method": method,
        "scores": {key: _interval(each) for key, each in one.scores.items()},
        "bootstrap": _interval(one.new_queries) if one.new_queries else None,
        "best": mark(found, one.label) == "★",
        "like_best": one.label in found.like_best and one.label not in found.below_baseline,
        "below_baseline": one.label in found.below_baseline,
        "verdict": None if verdict is None else {
            "text": verdict_text(found, verdict),
            "difference": _interval(verdict.comparison.difference),  # best - this
            "p": verdict.p,
        },
        "seeds": list(one.seeds),
    }  # fmt: skip


def _interval(one: Interval) -> list[float | None]:
    return [one.mean, one.half_width]


def _critical(found: Board, number: dict[str, int]) -> dict[str, Any] | None:
    if found.critical is None or not found.critical.can_differ:
        return None
    return {
        "methods": [number[label] for label in found.compared],
        "ranks": list(found.critical.ranks),
        "difference": found.critical.difference,
        "p": found.critical.p,
        "groups": [list(group) for group in found.critical.groups],  # places in `methods`
    }


def methods(results: BenchResults, found: Board) -> list[dict[str, Any]]:
    """Each method's setting, budget and unequal conditions, in the order of the results."""
    standing = {one.label: one for one in found.standings}
    listed = []
    for method in results.methods:
        one = standing.get(method.label)
        budget = None if one is None else {**vars(one.budget), "train_seconds": one.train_seconds}
        listed.append(
            {
                "label": method.label,
                "name": method.name,
                "params": {key: str(value) for key, value in method.params.items()},
                "trial": one.trial if one else None,
                "budget": budget,
                "unequal": list(method.unequal),
            }
        )
    return listed


def unequal(results: BenchResults) -> list[str]:
    """What should be equal between methods but is not, and for which: conditions, numbers of seeds and of trials."""
    whose: dict[str, list[str]] = {}
    for method in results.methods:
        for fact in method.unequal:
            whose.setdefault(fact, []).append(method.label)
    found = [f"{fact[:1].upper()}{fact[1:]}: {', '.join(labels)}." for fact, labels in whose.items()]
    for what, counts in (
        ("seeds", {m.label: len(m.seeds) for m in results.methods}),
        ("trials", {m.label: len(m.trials) for m in results.methods}),
    ):
        most = max(counts.values(), default=0)
        fewer = [f"{label} {count}" for label, count in counts.items() if count != most]
        if fewer:
            found.append(f"Unequal number of {what}: {', '.join(fewer)}; the others have {most}.")
    return found


def ledger_entries(results: BenchResults, part: Part = "separated") -> list[dict[str, Any]]:
    """The bias ledger: each pitfall with both rankings."""
    number = {method.label: i for i, method in enumerate(results.methods)}
    return [_entry(entry, number) for entry in ledger(results, METRIC, part)]


def _entry(entry: Entry, number: dict[str, int]) -> dict[str, Any]:
    biased = {place.label: place for place in entry.biased}
    return {
        "name": entry.name,
        "words": entry.words,
        "baseline": entry.baseline,
        "tau": entry.tau,
        "in_turns": entry.in_turns,
        "sides": list(entry.sides),
        "places": [
            {
                "method": number[place.label],
                "honest": [place.score, place.rank],
                "biased": [biased[place.label].score, biased[place.label].rank],
            }
            for place in entry.honest
        ],
        "mean_gain": entry.mean_gain,
        "leaders": [number[label] for label in entry.leaders],
        "missing": list(entry.missing),
    }
