"""Two figures: mean ranks with the critical difference, and how a pitfall changes a ranking."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nearfield.analysis.bias import Entry, Place
from nearfield.analysis.figures.svg import DOWN, INK, LINE, SOFT, UP, drawing, shorten
from nearfield.analysis.leaderboard import Board
from nearfield.analysis.tables import title
from nearfield.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 20  # pixels for a method
LONGEST = 34  # characters of a method's name


def ranks_figure(board: Board) -> Figure:
    """Mean ranks over seeds, best first; bars join methods closer than the critical difference (Demšar 2006)."""
    from matplotlib.ticker import MaxNLocator

    found = board.critical
    if found is None:
        raise InputError("board must compare at least two methods over two seeds to have ranks; run more seeds.")
    count = len(found.ranks)
    order = sorted(range(count), key=lambda i: found.ranks[i])
    words = f"Mean ranks by {title(board.metric)} over {len(board.compared_seeds)} seeds, with the critical difference"
    with drawing(760, 80 + ROW * count, words) as figure:
        axes = figure.subplots()
        axes.set(xlim=(1, count), ylim=(count - 0.5, -2.2))
        axes.set_yticks(range(count), [shorten(board.compared[i], LONGEST) for i in order])
        axes.tick_params("y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("mean rank")
        for row, i in enumerate(order):
            axes.plot([1, found.ranks[i]], [row, row], color=LINE, lw=0.5)
            axes.plot(found.ranks[i], row, "o", color=INK, clip_on=False)
            _beside(axes, found.ranks[i], row, f"{found.ranks[i]:.1f}", 8)
        axes.plot([1, 1 + found.difference], [-1, -1], "|-", color=INK, lw=1.5)
        axes.text(1, -1.4, f"critical difference {found.difference:.1f}")
        for lane, group in enumerate(found.groups):
            ends = [order.index(group[0]) - 0.3, order.index(group[-1]) + 0.3]
            place = [1.08 + 0.018 * lane] * 2
            axes.plot(place, ends, color=INK, lw=4, clip_on=False, transform=axes.get_yaxis_transform())
    return figure


def slope_figure(entry: Entry) -> Figure:
    """The honest ranking on the left, the biased one on the right, a line for each method.

    For a pitfall in turns, a line ends at the rank that the method reaches in its own table.
    """
    words = f"{entry.name}: ranks in the {entry.sides[0]} and in the {entry.sides[1]} ranking, a line for each method"
    with drawing(860, 40 + ROW * len(entry.honest), words) as figure:
        axes = figure.subplots()
        axes.set(xlim=(0, 1), ylim=(len(entry.honest) - 0.5, -1.5))
        axes.axis("off")
        _beside(axes, 0, -1, entry.sides[0], -8, SOFT)
        _beside(axes, 1, -1, entry.sides[1], 8, SOFT)
        for row, place in enumerate(entry.honest):
            _label(axes, 0, row, place)
        ends = {place.label: place.rank - 1 if entry.in_turns else row for row, place in enumerate(entry.biased)}
        if entry.in_turns:
            for rank, count in Counter(place.rank for place in entry.biased).items():
                _beside(axes, 1, rank - 1, f"{rank:g}", 8)
                _beside(axes, 1, rank - 1, f"{count} method{'s' * (count > 1)}", 84, SOFT)
        else:
            for row, place in enumerate(entry.biased):
                _label(axes, 1, row, place)
        moves = entry.moves
        for row, place in sorted(
            enumerate(entry.honest), key=lambda each: abs(moves[each[1].label])
        ):  # far ones on top
            move = moves[place.label]
            color, width = UP if move > 0 else DOWN if move < 0 else LINE, 2.5 if abs(move) >= 3 else 1.5
            axes.plot([0, 1], [row, ends[place.label]], color=color, lw=width, clip_on=False)
    return figure


def _label(axes: Axes, x: int, row: float, place: Place) -> None:
    """Rank, score and method, away from the lines: to the left at x 0, to the right at x 1."""
    side = 2 * x - 1
    _beside(axes, x, row, f"{place.rank:g}", 8 * side)
    _beside(axes, x, row, f"{100 * place.score:.1f}", 40 * side, SOFT)
    _beside(axes, x, row, shorten(place.label, LONGEST), 84 * side)


def _beside(axes: Axes, x: float, y: float, words: str, pixels: float, color: str = INK) -> None:
    """Text at a distance in pixels to the right of a point, or to the left if negative."""
    align = "left" if pixels > 0 else "right"
    axes.annotate(words, (x, y), (pixels, 0), textcoords="offset pixels", ha=align, va="center", color=color)
