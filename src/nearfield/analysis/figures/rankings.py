"""Two diagrams as free-standing SVG text: mean ranks with what is not different, and how a sin moves a ranking.

Both are of one ink, `currentColor`, with the variables --soft, --line, --right and --wrong of the page around them if
there is one, so that they fit a light and a dark page; a file opened by itself follows the reader's preference.
Pixels: x to the right, y down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from nearfield.analysis.bias import Entry, Place
from nearfield.analysis.figures.svg import CHARACTER, INK, LINE, SOFT, line, scale, shorten, svg, text, ticks
from nearfield.analysis.leaderboard import Board
from nearfield.analysis.tables import title
from nearfield.errors import InputError

ROW = 19  # pixels between two lines of text
BAR = 8  # pixels between two bars
AXIS = 58  # pixels above the axis of ranks
NARROW = 640  # pixels: below, the critical-difference diagram has a row for each method
UP, DOWN = "var(--right, #0a7450)", "var(--wrong, #b92c1a)"


def critical_difference_svg(board: Board, width: int = 1080) -> str:
    """Mean ranks over seeds; a bar joins methods whose ranks differ by less than the critical difference (Demšar 2006).

    The best is on the left. Below 640 pixels every method has a row, and the bars stand upright beside the rows.
    """
    found = board.critical
    if found is None:
        raise InputError("board must compare at least two methods over two seeds to have ranks; finish more seeds.")
    order = sorted(range(len(found.ranks)), key=lambda i: found.ranks[i])
    ranked = [(board.compared[i], found.ranks[i]) for i in order]
    bars = [(order.index(group[0]), order.index(group[-1])) for group in found.groups]
    draw = _lying if width >= NARROW else _standing
    parts, height = draw(ranked, bars, found.difference, width)
    words = f"Mean ranks by {title(board.metric)} over {len(board.compared_seeds)} seeds, and what is not different"
    return svg(parts, width, height, words)


def slope_svg(entry: Entry, width: int = 720) -> str:
    """The honest ranking on the left, the biased one on the right, a line for each method.

    A sin in turns has a table for each method: there a line ends at the rank that the method reaches in its own.
    """
    scored = width >= 560
    column = (width - max(80, width // 5)) // 2
    longest = int((column - 44 - 48 * scored) / CHARACTER)
    left, right = column, width - column
    ends = {place.label: place.rank - 1 if entry.in_turns else i for i, place in enumerate(entry.biased)}
    parts = [
        text(left - 8, 14, "honest", "end", SOFT),
        text(right + 8, 14, shorten(entry.name, longest), "start", SOFT),
    ]
    for i, place in enumerate(entry.honest):
        parts += _label(place, i, left, -1, longest, 0 if scored else None)
    if entry.in_turns:
        for rank, count in Counter(place.rank for place in entry.biased).items():
            parts.append(text(right + 8, _row(rank - 1) + 4, f"{rank:g}", "start"))
            parts.append(text(right + 34, _row(rank - 1) + 4, f"{count} method{'s' * (count > 1)}", "start", SOFT))
    else:
        for i, place in enumerate(entry.biased):
            parts += _label(place, i, right, 1, longest, width if scored else None)
    moves = entry.moves
    for i, place in sorted(enumerate(entry.honest), key=lambda one: abs(moves[one[1].label])):  # the farthest on top
        move = moves[place.label]
        color, thick = (
            UP if move > 0 else DOWN if move < 0 else LINE,
            1 if entry.in_turns else 2.5 if abs(move) >= 3 else 1.5,
        )
        parts.append(line(left + 4, _row(i), right - 4, _row(ends[place.label]), color, thick))
    words = f"Honest ranks and ranks with the sin “{entry.name}”, one line for each method"
    return svg(parts, width, _row(len(entry.honest)), words)


def _label(place: Place, row: float, x: float, side: int, longest: int, score_at: float | None) -> list[str]:
    """Rank, method and, where there is room, score; away from x to the left (side -1) or to the right (1)."""
    y, anchor, other = _row(row) + 4, "end" if side < 0 else "start", "start" if side < 0 else "end"
    texts = [
        text(x + 8 * side, y, f"{place.rank:g}", anchor),
        text(x + 34 * side, y, shorten(place.label, longest), anchor),
    ]
    return texts if score_at is None else [*texts, text(score_at, y, f"{100 * place.score:.1f}", other, SOFT)]


# ---------------------------------------------------------------------------------------------------------------
# The two layouts of the critical-difference diagram: (label, mean rank) best first, bars (first, last place)

Ranked = Sequence[tuple[str, float]]
Bars = Sequence[tuple[int, int]]


def _lying(ranked: Ranked, bars: Bars, difference: float, width: int) -> tuple[list[str], float]:
    """An axis across, labels on both sides, each with a line to its rank; bars between the axis and the labels."""
    longest = int(0.26 * width / CHARACTER)
    names = [shorten(label, longest) for label, _ in ranked]
    side = 60 + CHARACTER * max(map(len, names))
    across = scale(1, len(ranked), side, width - side)
    parts = [*_ruler(difference, len(ranked), across, side), *_axis(len(ranked), across, (width - 2 * side) / 40)]
    spans = [(across(ranked[first][1]) - 4, across(ranked[last][1]) + 4) for first, last in bars]
    levels = _levels(spans)
    for (x, x2), level in zip(spans, levels, strict=True):
        parts.append(line(x, AXIS + 12 + BAR * level, x2, AXIS + 12 + BAR * level, INK, 4))
    top = AXIS + 26 + BAR * (max(levels, default=-1) + 1)
    half = (len(ranked) + 1) // 2
    for i, ((_, rank), name) in enumerate(zip(ranked, names, strict=True)):
        row, x = i if i < half else len(ranked) - 1 - i, across(rank)
        y, edge, away, anchor = top + ROW * row, side, -1, "end"
        if i >= half:
            edge, away, anchor = width - side, 1, "start"
        start = edge + 10 * away
        parts.append(f'<path d="M{start:g},{y:g}H{x:g}V{AXIS}" style="fill: none; stroke: {SOFT}; stroke-width: 1"/>')
        parts.append(text(start + 6 * away, y + 4, f"{rank:.1f}", anchor, SOFT))
        parts.append(text(start + 44 * away, y + 4, name, anchor))
    return parts, top + ROW * half


def _standing(ranked: Ranked, bars: Bars, difference: float, width: int) -> tuple[list[str], float]:
    """A row for each method with a dot at its rank; bars stand on the right and join rows."""
    longest = int(0.42 * width / CHARACTER)
    names = [shorten(label, longest) for label, _ in ranked]
    rows = [AXIS + 20 + ROW * i for i in range(len(ranked))]
    spans = [(rows[first] - 6, rows[last] + 6) for first, last in bars]
    levels = _levels(spans)
    columns = max(levels, default=-1) + 1
    gap = min(BAR, 0.27 * width / max(1, columns))
    start, end = 16 + CHARACTER * max(map(len, names)), width - 8 - gap * columns
    across = scale(1, len(ranked), start, end - 34)
    parts = [*_ruler(difference, len(ranked), across, 0), *_axis(len(ranked), across, (end - start) / 40)]
    for y, (_, rank), name in zip(rows, ranked, names, strict=True):
        parts += [
            text(0, y + 4, name, "start"),
            line(start, y, end - 34, y, LINE, 0.5),
            f'<circle cx="{across(rank):g}" cy="{y}" r="4" style="fill: {INK}"/>',
            text(end, y + 4, f"{rank:.1f}", "end", SOFT),
        ]
    for (y, y2), level in zip(spans, levels, strict=True):
        x = end + 8 + gap * (level + 0.5)
        parts.append(line(x, y, x, y2, INK, gap / 2))
    return parts, rows[-1] + ROW


def _levels(spans: Sequence[tuple[float, float]]) -> list[int]:
    """A lane for each bar, given in the order of their starts: the first lane whose last bar ends well before it."""
    lanes: list[float] = []
    found = []
    for start, end in spans:
        lane = next((i for i, busy in enumerate(lanes) if busy + 6 < start), len(lanes))
        lanes[lane : lane + 1] = [end]
        found.append(lane)
    return found


def _ruler(difference: float, ranks: int, across: Callable[[float], float], text_at: float) -> list[str]:
    """The critical difference at the axis' own scale, from rank 1 on; as long as the axis where it exceeds it."""
    y, x, x2 = 22, across(1), across(min(1 + difference, ranks))
    more = "" if 1 + difference <= ranks else ", more than the axis"
    ends = [line(at, y - 4, at, y + 4, INK, 1.5) for at in (x, x2)]
    return [
        text(text_at, y - 9, f"critical difference {difference:.1f}{more}", "start"),
        line(x, y, x2, y, INK, 1.5),
        *ends,
    ]


def _axis(ranks: int, across: Callable[[float], float], count: float) -> list[str]:
    inner = [rank for rank in ticks(1, ranks, max(2, int(count)), whole=True) if 1 < rank < ranks]
    gap = 0.6 * (inner[1] - inner[0]) if len(inner) > 1 else 0.5
    marks = [1, *(rank for rank in inner if rank - 1 >= gap and ranks - rank >= gap), ranks]
    y = AXIS
    parts = [line(across(1), y, across(ranks), y, INK, 1.5)]
    for rank in marks:
        parts += [
            line(across(rank), y - 5, across(rank), y, INK, 1.5),
            text(across(rank), y - 9, f"{rank:g}", "middle"),
        ]
    return parts


def _row(place: float) -> float:
    return 36 + ROW * place
