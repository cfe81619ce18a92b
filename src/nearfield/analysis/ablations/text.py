"""The outcome of an ablation in sentences, as a table, as JSON, and written to files.

Only text is in percent. Every verdict says its level: new test classes (`analysis.levels`), where scores of single
queries are known, and new seeds on the same test images (`analysis.statistics`), corrected over all pairs of values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nearfield.analysis.ablations.figure import ablation_figure
from nearfield.analysis.ablations.outcome import METRIC, Curve, Outcome, first_of
from nearfield.analysis.figures.svg import svg
from nearfield.analysis.levels import SAYS, Level, class_verdicts
from nearfield.analysis.statistics import Interval, Verdicts, kendall_tau, verdicts
from nearfield.analysis.tables import markdown_table, percent, title
from nearfield.bench.ablations import Ablation
from nearfield.files import write_json, write_text

SHOWN = (METRIC, "map@r")  # columns of the table


# ---------------------------------------------------------------------------------------------------------------
# In sentences


def words(outcome: Outcome) -> list[str]:
    """The outcome in sentences, for every method."""
    lines = []
    for curve in outcome.curves:
        lines += _sentences(outcome.ablation, curve)
    lines += rank_lines(outcome) if outcome.ablation.ranks else []
    said: list[Level] = [level for level in ("classes", "seeds") if any(f"Level {level}" in line for line in lines)]
    lines += [f"Level {level}: {SAYS[level]}." for level in said]
    return lines + ["Not finished: " + "; ".join(outcome.missing) + "."] * bool(outcome.missing)


def rank_lines(outcome: Outcome) -> list[str]:
    """The order of the methods at every value, and how much of it is left at the last one: Kendall's tau."""
    shared = [value for value in outcome.benches if all(value in curve.scores for curve in outcome.curves)]
    if len(shared) < 2 or len(outcome.curves) < 2:
        return []
    means = {value: [curve.interval(value).mean for curve in outcome.curves] for value in shared}
    lines = []
    for value, scores in means.items():
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        tau = kendall_tau(scores, means[shared[-1]])
        words = "" if value == shared[-1] or tau is None else f" (Kendall's tau with {shared[-1]}: {tau:.2f})"
        lines.append(f"order at {value}: {', '.join(outcome.curves[i].method for i in order)}{words}.")
    return lines


def _sentences(ablation: Ablation, curve: Curve) -> list[str]:
    table = curve.table() if curve.scores else {}
    begin, of = (f"{curve.method}: ", f", {curve.method}") if curve.method else ("", "")
    if len(table) < 2 or not next(iter(table.values())):
        return [f"{begin}fewer than two values share a finished seed; there is nothing to compare."]
    names = list(table)
    lines = [begin + _course(ablation, table, curve)] if ablation.ordered and len(table) > 2 else []
    for level, found in _verdicts(curve).items():
        if len(table) > 2:
            lines.append(f"Level {level}{of}: {_against_best(found, _tests(level, curve))}")
        if ablation.ordered or len(table) == 2:
            lines.append(f"Level {level}{of}: {_ends(names[0], names[-1], found)}")
    return lines


def _verdicts(curve: Curve) -> dict[Level, Verdicts]:
    """Of all pairs of values, from the most general level to the least."""
    found: dict[Level, Verdicts] = {}
    if classes := curve.class_table():
        found["classes"] = class_verdicts(classes, curve.shares)
    return found | {"seeds": verdicts(curve.table())}


def _tests(level: Level, curve: Curve) -> str:
    seeds, count = len(curve.shared_seeds), len(curve.scores)
    by = f"{len(curve.shares)} classes crossed with {seeds} seeds" if level == "classes" else f"{seeds} seeds"
    return f"{by}, Holm-corrected over {count * (count - 1) // 2} pairs"


def _course(ablation: Ablation, table: Mapping[str, Sequence[float]], curve: Curve) -> str:
    """How the mean changes along the axis."""
    means = {value: float(np.mean(scores)) for value, scores in table.items()}
    steps = [later - earlier for earlier, later in pairwise(means.values())]
    best = max(means, key=lambda value: means[value])
    ends = f"from {next(iter(means))} to {list(means)[-1]}"
    metric = title(METRIC)
    if all(step > 0 for step in steps):
        return f"mean {metric} increases with every value of the axis ({ablation.axis}), {ends}."
    if all(step < 0 for step in steps):
        return f"mean {metric} decreases with every value of the axis ({ablation.axis}), {ends}."
    return f"mean {metric} is not monotone {ends}; it is highest at {best}, {percent(curve.interval(best))} %."


def _against_best(found: Verdicts, tests: str) -> str:
    best, *alike = found.like_best
    worse = [pair.second for pair in found.pairs if pair.first == best and pair.significant]
    parts = [f"significantly better than {', '.join(worse)}"] if worse else []
    parts += [f"not significantly different from {', '.join(alike)}"] if alike else []
    return f"{best} has the highest mean: {'; '.join(parts)} ({tests})."


def _ends(first: str, last: str, found: Verdicts) -> str:
    """The last value against the first, with its interval and verdict."""
    verdict = next(pair for pair in found.pairs if {pair.first, pair.second} == {first, last})
    difference = verdict.comparison.difference
    mean = difference.mean if verdict.first == last else -difference.mean
    half = "" if difference.half_width is None else f" ± {100 * difference.half_width:.2f}"
    corrected = "" if len(found.pairs) == 1 else "; corrected over all pairs"
    value = f"{100 * mean:+.2f}{half} percentage points of {title(METRIC)}"
    return f"{last} minus {first}: {value}{corrected}: {verdict.text}."


# ---------------------------------------------------------------------------------------------------------------
# As files


def table_markdown(outcome: Outcome) -> str:
    """Every value with its scores in percent and its cost."""
    head = [outcome.ablation.axis, "method", *map(title, SHOWN), "seeds", "steps", "s / network"]
    rows = []
    for curve in outcome.curves:
        for value, seeds in curve.scores.items():
            scores = [percent(curve.interval(value, metric)) for metric in SHOWN]
            cost = [str(outcome.benches[value].run.steps), f"{curve.seconds[value]:.1f}"]
            rows.append([value, curve.method, *scores, str(len(seeds)), *cost])
    if not outcome.ablation.methods:
        return markdown_table([head[0], *head[2:]], [[row[0], *row[2:]] for row in rows], left=1)
    return markdown_table(head, rows)


def papers_markdown(ablation: Ablation) -> str:
    """What the papers report, and the numbers they print."""
    lines = "\n".join(f"- {paper.where}: {paper.found}" for paper in ablation.papers)
    curves = {name: numbers for paper in ablation.papers for name, numbers in paper.numbers.items()}
    if not curves:
        return lines + "\n"
    values = list(dict.fromkeys(value for numbers in curves.values() for value in numbers))
    if ablation.ordered:
        values.sort(key=float)
    rows = [[name, *(f"{n[value]:g}" if value in n else "–" for value in values)] for name, n in curves.items()]
    return f"{lines}\n\n{markdown_table(['R@1, %, as published', *values], rows, left=1)}"


def outcome_markdown(outcome: Outcome) -> str:
    """The whole outcome as Markdown."""
    study, run = outcome.ablation, first_of(outcome.benches).run
    conditions = (
        f"Data {outcome.data}; {run.model.backbone}, {run.model.dim} dims. Percent, mean ± 95 % t-interval over seeds; "
        "test classes unseen in training."
    )
    found = "\n".join(f"- {line}" for line in words(outcome))
    parts = [f"# {study.question}", conditions, study.note, "![The curves](ablation.svg)", table_markdown(outcome)]
    parts += ["Results:", found, "What the papers report:", papers_markdown(study), *_provenance(outcome)]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _provenance(outcome: Outcome) -> list[str]:
    """What it takes to run the same again: versions, commit, and the bench that the axis varies."""
    facts = ", ".join(f"{name} {value}" for name, value in outcome.environment.items() if value)
    value, bench = next(iter(outcome.benches.items()))
    return ["## Provenance", f"{facts}. The bench at {value}:".lstrip(". "), f"```toml\n{bench.to_toml().strip()}\n```"]


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """All numbers, for JSON."""
    study = outcome.ablation
    return {
        "ablation": study.name,
        "question": study.question,
        "axis": study.axis,
        "data": outcome.data,
        "environment": dict(outcome.environment),
        "curves": [
            {
                "method": curve.method,
                "values": {
                    value: {
                        "seeds": {str(seed): scores for seed, scores in seeds.items()},
                        "train_seconds": curve.seconds[value],
                        **{key: _interval(curve.interval(value, key)) for key in SHOWN},
                    }
                    for value, seeds in curve.scores.items()
                },
                "verdicts": _pairs(curve),
            }
            for curve in outcome.curves
        ],
        "words": words(outcome),
        "papers": [{"where": p.where, "found": p.found, "numbers": p.numbers} for p in study.papers],
        "missing": list(outcome.missing),
        "benches": {value: bench.model_dump(mode="json") for value, bench in outcome.benches.items()},
    }


def _pairs(curve: Curve) -> dict[str, list[dict[str, Any]]]:
    """Level -> every pair of values: the difference first - second before correction, p and verdict after it."""
    if len(curve.scores) < 2 or not curve.shared_seeds:
        return {}
    return {
        level: [
            {"first": pair.first, "second": pair.second, "p": pair.p, "significant": pair.significant}
            | {"difference": _interval(pair.comparison.difference)}
            for pair in found.pairs
        ]
        for level, found in _verdicts(curve).items()
    }


def _interval(interval: Interval) -> dict[str, float | None]:
    return {"mean": interval.mean, "half_width": interval.half_width}


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Write ablation.json, ablation.md and ablation.svg."""
    write_json(folder / "ablation.json", outcome_json(outcome))
    write_text(folder / "ablation.svg", svg(ablation_figure(outcome)))
    write_text(folder / "ablation.md", outcome_markdown(outcome))
