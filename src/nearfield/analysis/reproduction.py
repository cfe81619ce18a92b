"""A table or figure of a paper beside what came out here: every cell, in Markdown, and as a figure where it is one.

Scores lie in [0, 1]; only text is in percent, as published numbers are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from nearfield.analysis.figures.svg import COLORS, drawing
from nearfield.analysis.statistics import Interval, kendall_tau, mean_interval
from nearfield.analysis.tables import markdown_table, percent, title
from nearfield.bench.results import BenchResults, Seed
from nearfield.recipes.tables import Entry, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JOINED = "concatenated/"  # prefix of a metric of the folds' embeddings side by side


@dataclass(frozen=True)
class Reproduced:
    """A table with the results of the entries that are done, by label."""

    table: Table
    found: Mapping[str, BenchResults]
    small: bool
    command: str

    def seeds(self, entry: Entry) -> tuple[Seed, ...]:
        """The finished repetitions of an entry."""
        results = self.found.get(entry.label)
        return results.methods[0].seeds if results is not None and results.methods else ()

    def interval(self, entry: Entry, metric: str) -> Interval | None:
        """Mean and 95 % t-interval over seeds; None where it was not measured."""
        values = [value for seed in self.seeds(entry) if (value := _score(seed, metric)) is not None]
        return mean_interval(values) if values else None

    @property
    def missing(self) -> tuple[str, ...]:
        """Entries that are not finished."""
        lines = []
        for entry in self.table.entries:
            results = self.found.get(entry.label)
            left = ("not run yet",) if results is None else results.missing
            lines += [f"{entry.label}: {line}" for line in left]
        return tuple(lines)


def _score(seed: Seed, metric: str) -> float | None:
    if metric.startswith(JOINED):
        return (seed.concatenated or {}).get(metric.removeprefix(JOINED))
    return seed.separated.get(metric)


def page(reproduced: Reproduced, figure: str | None = None) -> str:
    """The whole page in Markdown; `figure` is the file of the figure beside it."""
    table, small = reproduced.table, reproduced.small
    parts = [f"# {table.paper}, {table.where}", f"{table.title}. Percent, mean ± 95 % t-interval over seeds."]
    if small:
        scaled = "**Scaled down**, so that numbers compare within a column and not with the paper's"
        parts.append(f"{scaled}: {table.scaling.words}")
    if figure is not None:
        parts.append(f"![{table.title}]({figure})")
    parts.append(cells_markdown(reproduced))
    if table.quoted:
        parts.append("Rows in italics are other work's numbers, which the paper quotes.")
    if orders := order_lines(reproduced):
        parts.append("\n".join(f"- {line}" for line in orders))
    if table.notes:
        notes = "\n".join(f"- {line}" for line in table.notes)
        parts.append(f"Where this differs from the paper, and what is wrong in it:\n\n{notes}")
    parts.append(_conditions(reproduced))
    if reproduced.missing:
        parts.append("Not finished: " + "; ".join(reproduced.missing) + ".")
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def cells_markdown(reproduced: Reproduced) -> str:
    """Every cell: ours, and the paper's below the same heading; then the rows that the paper quotes."""
    table = reproduced.table
    rows_of = [entry.published for entry in table.entries] + list(table.quoted.values())
    printed = [m for m in table.columns if any(m in row for row in rows_of)]
    measured = [m for m in table.columns if any(reproduced.interval(entry, m) for entry in table.entries)]
    head = ["", *(f"{_title(m)}, ours" for m in measured), *(f"{_title(m)}, paper" for m in printed)]
    rows = []
    for entry in table.entries:
        ours = [percent(found) if (found := reproduced.interval(entry, m)) else "–" for m in measured]
        theirs = [_printed(entry.published, m) + _interval(entry.intervals, m) for m in printed]
        rows.append([entry.label, *ours, *theirs])
    for label, quoted in table.quoted.items():
        rows.append([f"*{label}*", *("–" for _ in measured), *(_printed(quoted, m) for m in printed)])
    return markdown_table(head, rows, left=1)


def _printed(row: Mapping[str, float], metric: str) -> str:
    return f"{row[metric]:g}" if metric in row else "–"


def _interval(row: Mapping[str, float], metric: str) -> str:
    return f" ± {row[metric]:g}" if metric in row else ""


def _title(metric: str) -> str:
    return title(metric.removeprefix(JOINED)) + (" (concatenated)" if metric.startswith(JOINED) else "")


def order_lines(reproduced: Reproduced) -> list[str]:
    """How far the order of the rows agrees with the paper's, by Kendall's tau, for each column."""
    lines = []
    for metric in reproduced.table.columns:
        both = [
            (found.mean, entry.published[metric])
            for entry in reproduced.table.entries
            if metric in entry.published and (found := reproduced.interval(entry, metric)) is not None
        ]
        if len(both) > 2:
            tau = kendall_tau(*zip(*both, strict=True))
            if tau is None:
                continue
            agreement = f"Kendall's tau between our order and the paper's is {tau:.2f} ({len(both)} rows)"
            lines.append(f"{_title(metric)}: {agreement}.")
    return lines


def _conditions(reproduced: Reproduced) -> str:
    first = next(iter(reproduced.found.values()), None)
    if first is None:
        return f"Command: `{reproduced.command}`."
    commit = first.environment.get("commit") or "unknown"
    seeds = len(reproduced.table.entries[0].bench.seeds)
    known = {name: scores["recall@1"] for name, scores in first.baselines.items() if "recall@1" in scores}
    baselines = ", ".join(f"{name} {100 * score:.1f}" for name, score in known.items())
    lines = [f"Command: `{reproduced.command}`. Commit {commit}, data {first.data['name']}, {seeds} seeds."]
    lines += [f"Untrained baselines, R@1: {baselines}."] if baselines else []
    return " ".join(lines)


def as_json(reproduced: Reproduced) -> dict[str, Any]:
    """All numbers."""

    def cell(entry: Entry, metric: str) -> dict[str, float | None]:
        found = reproduced.interval(entry, metric)
        ours = (None, None) if found is None else (found.mean, found.half_width)
        theirs = {"published": entry.published.get(metric), "published_interval": entry.intervals.get(metric)}
        return {"mean": ours[0], "half_width": ours[1], **theirs}

    table = reproduced.table
    return {
        "name": table.name,
        "paper": table.paper,
        "small": reproduced.small,
        "rows": {entry.label: {metric: cell(entry, metric) for metric in table.columns} for entry in table.entries},
        "quoted": {label: dict(row) for label, row in table.quoted.items()},
        "missing": list(reproduced.missing),
    }


# ---------------------------------------------------------------------------------------------------------------
# Figures


def figure(reproduced: Reproduced) -> Figure | None:
    """The figure, of a table that is one: a curve for each name, over the values of the axis or over steps."""
    table = reproduced.table
    if not table.axis or not reproduced.found:
        return None
    curves = _learning_curves(reproduced) if table.axis == "step" else _axis_curves(reproduced)
    if not curves:
        return None
    with drawing(640, 340, table.title) as made:
        axes = made.subplots()
        for number, (name, points) in enumerate(curves.items()):
            xs, means, halves = zip(*points, strict=True)
            axes.errorbar(xs, means, halves, label=name, marker="o", capsize=3, color=COLORS[number % len(COLORS)])
        if table.axis != "step":
            axes.set_xscale("log", base=2)
        ticks = sorted({x for points in curves.values() for x, _, _ in points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(table.axis)
        axes.set_ylabel(f"{title(table.columns[0])}, %")
        axes.grid(axis="y")
        axes.legend()
    return made


Points = list[tuple[float, float, float]]  # value of the axis, mean and half-width in percent


def _axis_curves(reproduced: Reproduced) -> dict[str, Points]:
    curves: dict[str, Points] = {}
    metric = reproduced.table.columns[0]
    for entry in reproduced.table.entries:
        name, _, value = entry.label.rpartition(", ")
        found = reproduced.interval(entry, metric)
        if found is not None:
            point = (float(value), 100 * found.mean, 100 * (found.half_width or 0.0))
            curves.setdefault(name or "ours", []).append(point)
    return curves


def _learning_curves(reproduced: Reproduced) -> dict[str, Points]:
    """Validation scores along the way, the mean over seeds and folds: test classes are for the end alone."""
    metric = reproduced.table.columns[0]
    curves = {}
    for entry in reproduced.table.entries:
        runs = [dict(fold.val) for seed in reproduced.seeds(entry) for fold in seed.folds]
        if runs:
            curves[entry.label] = [(float(step), 100 * _mean_at(runs, step, metric), 0.0) for step in runs[0]]
    return curves


def _mean_at(runs: Sequence[Mapping[int, Mapping[str, float]]], step: int, metric: str) -> float:
    return fmean(run[step][metric] for run in runs if step in run)
