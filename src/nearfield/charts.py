"""Geometry of charts: round numbers for an axis, maps from values to pixels, names that fit."""

from __future__ import annotations

import math
from collections.abc import Callable

CHARACTER = 7.2  # pixels, about the widest average of 13 px text


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


def shorten(text: str, length: int) -> str:
    """`text` cut in the middle to `length` characters: both ends tell methods apart."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"
