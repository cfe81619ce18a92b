"""The figure of an ablation: our curves with 95 % intervals, and those of the papers beside them.

The two panels have separate axes: the papers' numbers come from other data and networks, and are not rescaled. Numeric
values lie on a logarithmic axis; up to three names stand side by side; more names have a row each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log2, nan
from typing import TYPE_CHECKING

from nearfield.analysis.ablations.outcome import METRIC, Outcome
from nearfield.analysis.figures.svg import COLORS, drawing, shorten
from nearfield.analysis.statistics import Interval
from nearfield.analysis.tables import title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", ":")  # one for each round of the colours
LONGEST = 30  # characters of a name


@dataclass(frozen=True)
class Series:
    """A curve: value -> (mean, half-width of its interval or None), in percent."""

    name: str
    points: Mapping[str, tuple[float, float | None]]


@dataclass(frozen=True)
class Panel:
    """One plot: its title and its curves."""

    title: str
    values: tuple[str, ...]
    series: tuple[Series, ...]


def ablation_figure(outcome: Outcome) -> Figure:
    """Our panel, and one for the papers if they print numbers."""
    panels = [_ours(outcome), *_published(outcome)]
    words = f"{outcome.ablation.question} {title(METRIC)} by {outcome.ablation.axis}, on {outcome.data}"
    with drawing(960 if len(panels) > 1 else 640, 340, words) as figure:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.set_title(panel.title)
            draw = _draw_rows if not outcome.ablation.ordered and len(panel.values) > 3 else _draw_curves
            draw(axes, panel, outcome)
    return figure


def _ours(outcome: Outcome) -> Panel:
    names = [curve.method.partition("(")[0] for curve in outcome.curves]  # with parameters only to tell methods apart
    series = tuple(
        Series(name if names.count(name) == 1 else curve.method, {v: _percent(curve.interval(v)) for v in curve.scores})
        for name, curve in zip(names, outcome.curves, strict=True)
        if curve.scores
    )
    seeds = max((len(found) for curve in outcome.curves for found in curve.scores.values()), default=0)
    words = f"{outcome.data}: {title(METRIC)}, %, 95 % interval over {seeds} seed{'s' * (seeds != 1)}"
    return Panel(words, tuple(outcome.benches), series)


def _percent(interval: Interval) -> tuple[float, float | None]:
    return 100 * interval.mean, None if interval.half_width is None else 100 * interval.half_width


def _published(outcome: Outcome) -> list[Panel]:
    """All numbers of the papers in one panel; no panel if they print none."""
    found = {name: numbers for paper in outcome.ablation.papers for name, numbers in paper.numbers.items()}
    if not found:
        return []
    values = list(dict.fromkeys(value for numbers in found.values() for value in numbers))
    if outcome.ablation.ordered:
        values.sort(key=float)
    series = tuple(
        Series(name, {v: (number, None) for v, number in numbers.items()}) for name, numbers in found.items()
    )
    return [Panel(f"as published: {title(METRIC)}, %", tuple(values), series)]


def _draw_curves(axes: Axes, panel: Panel, outcome: Outcome) -> None:
    """Values along x, percent along y; the legend is in the order of the last points."""
    ordered = outcome.ablation.ordered
    across = {value: log2(float(value)) if ordered else float(i) for i, value in enumerate(panel.values)}
    span = (max(across.values()) - min(across.values())) or 1.0
    drawn = []
    for number, one in enumerate(panel.series):
        aside = 0.012 * span * (number - (len(panel.series) - 1) / 2) if _has_intervals(panel) else 0.0
        means, halves = zip(*one.points.values(), strict=True)
        drawn.append(
            axes.errorbar(
                [across[value] + aside for value in one.points],
                means,
                [half or nan for half in halves],
                label=shorten(one.name, LONGEST),
                marker="o",
                capsize=4,
                elinewidth=1.5,
                color=COLORS[number % len(COLORS)],
                linestyle=DASHES[number // len(COLORS) % len(DASHES)],
            )
        )
    axes.set_xticks(list(across.values()), _tick_labels(across, 0.15 * span if ordered else 0.0))
    axes.set_xlabel(outcome.ablation.axis)
    axes.margins(x=0.06 if ordered else 0.25)
    axes.set_ylim(*_within(axes.get_ylim()))
    axes.grid(axis="y")
    lasts = [list(one.points.values())[-1][0] for one in panel.series]
    handles = [drawn[i] for i in sorted(range(len(drawn)), key=lambda i: -lasts[i])]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))


def _tick_labels(across: Mapping[str, float], gap: float) -> list[str]:
    """Labels of the values: both ends, and in between as many as keep a distance of `gap`."""
    shown: dict[str, float] = {}
    for value in [*list(across)[:: max(1, len(across) - 1)], *across]:
        if min((abs(across[value] - place) for place in shown.values()), default=inf) >= gap:
            shown[value] = across[value]
    return [shorten(value, max(6, 30 // len(shown))) if value in shown else "" for value in across]


def _draw_rows(axes: Axes, panel: Panel, outcome: Outcome) -> None:
    """A row for each value, percent along x."""
    rows = {value: row for row, value in enumerate(panel.values)}
    for number, one in enumerate(panel.series):
        means, halves = zip(*one.points.values(), strict=True)
        axes.errorbar(
            means,
            [rows[value] for value in one.points],
            xerr=[half or nan for half in halves],
            fmt="o",
            capsize=4,
            elinewidth=1.5,
            color=COLORS[number % len(COLORS)],
        )
    axes.set_yticks(range(len(rows)), [shorten(value, LONGEST) for value in rows])
    axes.tick_params("y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(*_within(axes.get_xlim()))
    axes.set_xlabel(", ".join(one.name for one in panel.series if one.name))
    axes.grid(axis="x")


def _has_intervals(panel: Panel) -> bool:
    return any(half for one in panel.series for _, half in one.points.values())


def _within(limits: tuple[float, float]) -> tuple[float, float]:
    """Limits clamped to what a score can be."""
    return max(0.0, limits[0]), min(100.0, limits[1])
