"""What charts are made of: round numbers for an axis, maps from values to pixels, names that fit; marks of SVG.

A chart is of one ink, `currentColor`, with the variables --soft and --line of the page around it if there is one, so
that it fits a light and a dark page; a file opened by itself follows the reader's preference. Styles are written into
each mark, as a page's own rules for SVG must not reach them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

CHARACTER = 7.2  # pixels, about the widest average of 13 px text
INK, SOFT, LINE = "currentColor", "var(--soft, #6b7580)", "var(--line, #a5aeb7)"
DARK = "color: #e6eaee; --soft: #9fa9b3; --line: #4a545e; --right: #4fcf9c; --wrong: #ff8a75; color-scheme: dark"
STYLE = f"<style>@media screen and (prefers-color-scheme: dark) {{ svg:root {{ {DARK} }} }}</style>"
FONT = 'font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; max-width: 100%; height: auto'


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


def shorten(name: str, length: int) -> str:
    """`name` cut in the middle to `length` characters: both ends tell methods apart."""
    if len(name) <= length:
        return name
    tail = (length - 1) // 2
    return f"{name[: length - 1 - tail]}…{name[len(name) - tail :]}"


def svg(parts: Sequence[str], width: int, height: float, words: str) -> str:
    """A free-standing picture of these marks; `words` are what it says to those who cannot see it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}"'
    )
    body = "\n".join(parts)
    return f'{head} role="img" aria-label="{escape(words)}" style="{escape(FONT)}">\n{STYLE}\n{body}\n</svg>\n'


def line(x: float, y: float, x2: float, y2: float, color: str, thick: float) -> str:
    """A straight line."""
    return f'<line x1="{x:g}" y1="{y:g}" x2="{x2:g}" y2="{y2:g}" style="stroke: {color}; stroke-width: {thick:g}"/>'


def text(x: float, y: float, words: str, anchor: str, color: str = INK) -> str:
    """Words that start, end or have their middle at x."""
    return f'<text x="{x:g}" y="{y:g}" style="fill: {color}; text-anchor: {anchor}">{escape(words)}</text>'
