"""Geometry of a line chart with bands: numbers in, coordinates out; the template draws them.

Axes: x is a step, y a percentage; a point of a series is (x, low, middle, high).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

LEFT, TOP, BOTTOM = 40, 28, 44  # margins in pixels; the right one holds the labels
CHARACTER = 7.2  # pixels, about the widest average of 13 px text
LABEL_GAP = 18  # pixels between the baselines of two labels
MAX_DOTS = 24  # a series with more points is drawn without dots


class Series(NamedTuple):
    """One line with its band."""

    label: str
    points: Sequence[tuple[float, float, float, float]]  # x, low, middle, high


def line_chart(series: Sequence[Series], width: int, height: int) -> dict[str, Any]:
    """Ticks, lines, bands, dots and end labels of `series`, `width` pixels wide and at least `height` high."""
    height = max(height, TOP + BOTTOM + LABEL_GAP * len(series))
    longest = int(0.4 * width / CHARACTER)
    labels = [shorten(one.label, longest) for one in series]
    right = width - 20 - CHARACTER * max(map(len, labels))
    floor = height - BOTTOM
    steps = ticks(0, max(x for one in series for x, *_ in one.points), max(2, width // 120), whole=True)
    levels = _level_ticks([value for one in series for _, *values in one.points for value in values])
    last = max(x for one in series for x, *_ in one.points)
    across, up = scale(0, last, LEFT, right), scale(levels[0], levels[-1], floor, TOP)
    ends = [up(one.points[-1][2]) for one in series]
    places = spread(ends, LABEL_GAP, TOP, floor)
    return {
        "width": width,
        "height": height,
        "left": LEFT,
        "right": round(right, 1),
        "top": TOP,
        "floor": floor,
        "x_ticks": [{"at": across(step), "text": f"{step:,.0f}"} for step in steps if step <= last],
        "y_ticks": [{"at": up(level), "text": f"{level:g}"} for level in levels],
        "lines": [
            {
                "label": one.label,
                "short": short,
                "line": path([(across(x), up(mid)) for x, _, mid, _ in one.points]),
                "band": _band(one, across, up),
                "dots": [(across(x), up(mid)) for x, _, mid, _ in one.points] if len(one.points) <= MAX_DOTS else [],
                "end": (across(one.points[-1][0]), end),
                "label_at": place,
            }
            for one, short, end, place in zip(series, labels, ends, places, strict=True)
        ],
    }


def ticks(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten that cover low..high in about `count` steps."""
    rough = max((high - low) / count, 1e-9)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """The linear map of low..high onto the pixels start..end, to a tenth of a pixel."""
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 1)


def path(points: Sequence[tuple[float, float]]) -> str:
    """The `d` attribute of a polyline."""
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in their order, at least `gap` apart, within low..high if they fit there."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(wanted)
    for before, i in pairwise(order):
        placed[i] = max(placed[i], placed[before] + gap)
    limit = max(high, low + gap * (len(wanted) - 1))
    for i in reversed(order):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    return [round(place, 1) for place in placed]


def shorten(text: str, length: int) -> str:
    """`text` cut in the middle to `length` characters: both ends tell methods apart."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def _level_ticks(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    if high - low < 1e-6:  # a flat line still needs an axis
        low, high = max(0.0, low - 1), min(100.0, high + 1)
    return ticks(low, high, 5)


def _band(one: Series, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    upper = [(across(x), up(high)) for x, _, _, high in one.points]
    lower = [(across(x), up(low)) for x, low, _, _ in one.points]
    return path([*upper, *reversed(lower)]) + "Z"
