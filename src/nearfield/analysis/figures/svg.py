"""One style for all figures, and SVG from matplotlib that suits light and dark pages.

Text stays text. The ink is `currentColor`, so a file follows the reader's light or dark preference; all other colours
are legible on both. The same figure gives the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, SOFT, LINE = "#0d1117", "#737d88", "#9aa4ae"
COLORS = ("#2a78c2", "#d0661b", "#1a936f", "#b05fa3", "#b58a00", "#7a6ff0")
UP, DOWN = "#1a936f", "#d0502b"
DARK = (
    "<style>@media screen and (prefers-color-scheme: dark) { svg:root { color: #e6eaee; color-scheme: dark } }</style>"
)
STYLE: Any = {  # the stubs know every key as a literal
    "figure.dpi": 72,  # a point is a pixel
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.1,  # inches
    "font.family": ["DejaVu Sans"],  # wide: a fallback font needs less room
    "font.size": 13,
    "text.parse_math": False,  # names may contain dollar signs
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 13,
    "axes.titlesize": 13,
    "axes.titlelocation": "left",
    "axes.titlepad": 14,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.6,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 13,
    "ytick.labelsize": 13,
    "legend.fontsize": 13,
    "legend.frameon": False,
    "legend.labelcolor": "linecolor",
    "lines.linewidth": 2,
    "svg.fonttype": "none",
    "svg.hashsalt": "nearfield",
}


@contextmanager
def drawing(width: float, height: float, words: str) -> Iterator[Figure]:
    """An empty figure to draw on, its size in pixels; `words` is its text alternative."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72))
        figure.set_label(words)
        yield figure


def svg(figure: Figure) -> str:
    """The figure as free-standing SVG."""
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context(STYLE):
        facts = {"Title": figure.get_label(), "Date": None, "Creator": None}
        figure.savefig(stream, format="svg", transparent=True, metadata=facts)
    text = stream.getvalue()
    head, body = text[text.index("<svg") :].split(">", 1)
    return head.replace('pt"', 'px"') + ">" + DARK + body.replace(INK, "currentColor")


def shorten(name: str, length: int) -> str:
    """`name` cut in the middle to `length` characters: both ends tell methods apart."""
    if len(name) <= length:
        return name
    tail = (length - 1) // 2
    return f"{name[: length - 1 - tail]}…{name[len(name) - tail :]}"
