"""The figure of an ablation as free-standing SVG: our curves with 95 % intervals, the papers' own beside them.

Two panels with an axis each: the papers' numbers are of other data and networks, and are not rescaled. Values that are
numbers stand on a logarithmic axis; a few names stand side by side; more of them have a row each.
Pixels: x to the right, y down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2

from nearfield.analysis.ablations.outcome import METRIC, Outcome
from nearfield.analysis.figures.svg import CHARACTER, INK, LINE, SOFT, line, scale, shorten, svg, text, ticks
from nearfield.analysis.statistics import Interval
from nearfield.analysis.tables import title

COLORS = ("#2a78c2", "#d0661b", "#1a936f", "#b05fa3", "#b58a00", "#7a6ff0")  # legible on white and on black
DASHES = ("none", "6 4", "2 3")  # one for each round of the colours
TOP, ROW, GAP = 46, 17, 26  # pixels above the plot, between two lines of text, between two panels
HEIGHT = 250  # pixels of the plot, at least


@dataclass(frozen=True)
class Series:
    """A curve: value -> (mean, half-width of its interval or None), in percent."""

    name: str
    points: Mapping[str, tuple[float, float | None]]


@dataclass(frozen=True)
class Panel:
    """One plot: its title, what its axis is, and its curves."""

    title: str
    axis: str
    values: tuple[str, ...]
    series: tuple[Series, ...]
    ordered: bool

    @property
    def in_rows(self) -> bool:
        """Whether each value has a row, its name on the left."""
        return not self.ordered and len(self.values) > 3

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest percent that is drawn, a little room around them."""
        ends = [m + sign * (half or 0.0) for one in self.series for m, half in one.points.values() for sign in (-1, 1)]
        low, high = max(0.0, min(ends)), min(100.0, max(ends))  # an interval may leave what a score can be
        room = max(0.05 * (high - low), 0.5)
        return max(0.0, low - room), min(100.0, high + room)


def ablation_svg(outcome: Outcome, width: int = 960) -> str:
    """Our panel, and that of the papers if they print numbers."""
    panels = [_ours(outcome), *_published(outcome)]
    widths = [width] if len(panels) == 1 else [round(0.54 * (width - GAP)), round(0.46 * (width - GAP))]
    widths = [min(640, widths[0])] if len(panels) == 1 else widths
    tall = max(HEIGHT, *(ROW * len(panel.series) for panel in panels))
    parts, left = [], 0.0
    for panel, wide in zip(panels, widths, strict=True):
        parts += _rows(panel, left, wide, tall) if panel.in_rows else _lines(panel, left, wide, tall)
        left += wide + GAP
    words = f"{outcome.ablation.question} {title(METRIC)} by {outcome.ablation.axis}, on {outcome.data}"
    return svg(parts, round(left - GAP), TOP + tall + 46, words)


def _ours(outcome: Outcome) -> Panel:
    names = [curve.method.partition("(")[0] for curve in outcome.curves]  # parameters only where they are needed
    series = tuple(
        Series(name if names.count(name) == 1 else curve.method, {v: _percent(curve.interval(v)) for v in curve.scores})
        for name, curve in zip(names, outcome.curves, strict=True)
        if curve.scores
    )
    seeds = max((len(found) for curve in outcome.curves for found in curve.scores.values()), default=0)
    words = f"{outcome.data}: {title(METRIC)}, %, 95 % interval over {seeds} seeds"
    return Panel(words, outcome.ablation.axis, tuple(outcome.benches), series, outcome.ablation.ordered)


def _percent(interval: Interval) -> tuple[float, float | None]:
    return 100 * interval.mean, None if interval.half_width is None else 100 * interval.half_width


def _published(outcome: Outcome) -> list[Panel]:
    """All numbers of the papers in one panel; none if they print none."""
    found = {name: numbers for paper in outcome.ablation.papers for name, numbers in paper.numbers.items()}
    if not found:
        return []
    study = outcome.ablation
    values = list(dict.fromkeys(value for numbers in found.values() for value in numbers))
    if study.ordered:
        values.sort(key=float)
    series = tuple(
        Series(name, {v: (number, None) for v, number in numbers.items()}) for name, numbers in found.items()
    )
    return [Panel(f"as published: {title(METRIC)}, %", study.axis, tuple(values), series, study.ordered)]


# ---------------------------------------------------------------------------------------------------------------
# Curves over an axis


def _lines(panel: Panel, left: float, width: float, tall: float) -> list[str]:
    """Values along x, percent along y, the names of the curves on the right."""
    names = [shorten(one.name, int(0.3 * width / CHARACTER)) for one in panel.series]
    named = CHARACTER * max(map(len, names), default=0)
    start, end, bottom = left + 36, left + width - 14 - named, TOP + tall
    marks = ticks(*panel.bounds, 5)
    up = scale(marks[0], marks[-1], bottom, TOP)
    across = _positions(panel, start + 16, end - 16)
    parts = [text(left, 16, panel.title, "start"), *_level_lines(marks, up, start, end)]
    parts += _value_labels(panel, across, bottom)
    parts.append(text((start + end) / 2, bottom + 38, panel.axis, "middle", SOFT))
    lasts = []
    for number, one in enumerate(panel.series):
        shift = 5 * (number - (len(panel.series) - 1) / 2) if any(h for _, h in one.points.values()) else 0
        at = [(across[value] + shift, mean, half) for value, (mean, half) in one.points.items()]
        parts += _curve(at, up, number)
        lasts.append(up(at[-1][1]))
    for y, number in zip(_spread(lasts), range(len(names)), strict=True):
        parts.append(text(end + 6, y + 4, names[number], "start", COLORS[number % len(COLORS)]))
    return parts


def _positions(panel: Panel, start: float, end: float) -> dict[str, float]:
    """Value -> pixel: by its logarithm, or side by side."""
    places = [log2(float(value)) if panel.ordered else float(i) for i, value in enumerate(panel.values)]
    if len(places) == 1:
        return {panel.values[0]: (start + end) / 2}
    inset = 0.0 if panel.ordered else (end - start) / (2 * len(places))
    across = scale(places[0], places[-1], start + inset, end - inset)
    return {value: across(place) for value, place in zip(panel.values, places, strict=True)}


def _level_lines(marks: Sequence[float], up: Callable[[float], float], start: float, end: float) -> list[str]:
    parts = []
    for mark in marks:
        parts += [
            line(start, up(mark), end, up(mark), LINE, 0.5),
            text(start - 6, up(mark) + 4, f"{mark:g}", "end", SOFT),
        ]
    return parts


def _value_labels(panel: Panel, across: Mapping[str, float], bottom: float) -> list[str]:
    """Ticks with values: both ends, and of those between as many as there is room for."""
    room = int((max(across.values()) - min(across.values())) / max(1, len(across) - 1) / CHARACTER)
    texts = {value: value if panel.ordered else shorten(value, max(6, room - 1)) for value in panel.values}
    parts = [line(x, bottom, x, bottom + 4, SOFT, 1) for x in across.values()]
    busy: list[tuple[float, float]] = []
    for value in [panel.values[0], panel.values[-1], *panel.values[1:-1]]:
        x, half = across[value], CHARACTER * len(texts[value]) / 2
        if all(x + half + 4 < low or x - half - 4 > high for low, high in busy):
            parts.append(text(x, bottom + 18, texts[value], "middle"))
            busy.append((x - half, x + half))
    return parts


def _curve(at: Sequence[tuple[float, float, float | None]], up: Callable[[float], float], number: int) -> list[str]:
    """Line, dots and intervals of a curve given as (x, percent, half-width)."""
    color, dash = COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]
    path = " ".join(f"{x:g},{up(mean):g}" for x, mean, _ in at)
    style = f"fill: none; stroke: {color}; stroke-width: 2; stroke-dasharray: {dash}"
    parts = [f'<polyline points="{path}" style="{style}"/>']
    for x, mean, half in at:
        if half:
            high, low = up(min(100.0, mean + half)), up(max(0.0, mean - half))
            parts += [line(x, high, x, low, color, 1.5)]
            parts += [line(x - 4, y, x + 4, y, color, 1.5) for y in (high, low)]
        parts.append(_dot(x, up(mean), color))
    return parts


def _dot(x: float, y: float, color: str) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="4" style="fill: {color}"/>'


def _spread(wanted: Sequence[float]) -> list[float]:
    """Heights of labels near the wanted ones, at least a line of text apart."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    found = list(wanted)
    for before, after in pairwise(order):
        found[after] = max(found[after], found[before] + ROW)
    over = max(0.0, max(found, default=0.0) - max(wanted, default=0.0))
    return [y - over / 2 for y in found]


# ---------------------------------------------------------------------------------------------------------------
# A row for each value


def _rows(panel: Panel, left: float, width: float, tall: float) -> list[str]:
    """Values down the side, percent along x."""
    names = [shorten(value, int(0.36 * width / CHARACTER)) for value in panel.values]
    start, end, bottom = left + 16 + CHARACTER * max(map(len, names)), left + width - 16, TOP + tall
    marks = ticks(*panel.bounds, 5)
    across = scale(marks[0], marks[-1], start, end)
    down = scale(0, len(names), TOP, bottom)
    parts = [text(left, 16, panel.title, "start")]
    for mark in marks:
        parts += [line(across(mark), TOP, across(mark), bottom, LINE, 0.5)]
        parts += [text(across(mark), bottom + 18, f"{mark:g}", "middle", SOFT)]
    for row, (value, name) in enumerate(zip(panel.values, names, strict=True)):
        y = down(row + 0.5)
        parts.append(text(start - 12, y + 4, name, "end", INK))
        for number, one in enumerate(panel.series):
            if value not in one.points:
                continue
            color, (mean, half) = COLORS[number % len(COLORS)], one.points[value]
            if half:
                low, high = across(max(0.0, mean - half)), across(min(100.0, mean + half))
                parts += [line(low, y, high, y, color, 1.5)]
                parts += [line(x, y - 4, x, y + 4, color, 1.5) for x in (low, high)]
            parts.append(_dot(across(mean), y, color))
    named = ", ".join(one.name for one in panel.series if one.name)
    return [*parts, text((start + end) / 2, bottom + 38, named, "middle", SOFT)] if named else parts
