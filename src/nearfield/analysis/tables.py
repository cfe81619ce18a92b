"""The leaderboard as a table and in words. Scores lie in [0, 1]; only text is in percent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nearfield.analysis.leaderboard import Board
from nearfield.analysis.levels import SAYS
from nearfield.analysis.statistics import Interval, Verdict

TITLES = {"r_precision": "R-precision", "map@r": "MAP@R", "nmi": "NMI", "mrr": "MRR", "map": "MAP"}
MARKS = {
    "★": "highest mean",
    "≈": "not significantly different from the highest mean",
    "▽": "not above the best untrained baseline",
}
SHOWN = ("map@r", "r_precision", "recall@1", "nmi")  # columns of the table, if they were measured


def title(metric: str) -> str:
    """The name of a metric in text."""
    return TITLES.get(metric, metric.replace("recall@", "R@").replace("precision@", "P@"))


def percent(interval: Interval) -> str:
    """Mean ± half-width."""
    half = "" if interval.half_width is None else f" ± {100 * interval.half_width:.2f}"
    return f"{100 * interval.mean:.2f}{half}"


def mark(board: Board, label: str) -> str:
    """The method's mark from `MARKS`, or none. Below the untrained baseline no method is best."""
    if label in board.below_baseline:
        return "▽"
    return "★" if label == board.best else "≈" if label in board.like_best else ""


def legend(board: Board) -> str:
    """What the marks on this board mean."""
    used = {mark(board, one.label) for one in board.standings}
    return "; ".join(f"{each} {words}" for each, words in MARKS.items() if each in used) + "." * bool(used - {""})


def baseline_lines(board: Board) -> list[str]:
    """One sentence on the best untrained baseline and the methods that do not exceed it; none if none was measured."""
    if board.baseline is None or not board.standings:
        return []
    (name, score), below, count = board.baseline, board.below_baseline, len(board.standings)
    found = f"The best untrained baseline scores {100 * score:.2f} % ({name})"
    if not below:
        return [f"{found}; every method exceeds it."]
    if len(below) == count:
        return [f"{found}; no method exceeds it, so none is called better than another."]
    return [f"{found}; {len(below)} of {count} methods do not exceed it: {', '.join(below)}."]


def verdict_text(board: Board, verdict: Verdict) -> str:
    """The verdict in words; never "better" for a method that does not exceed the untrained baseline."""
    if verdict.significant and verdict.first in board.below_baseline:
        return f"{verdict.first} scores higher than {verdict.second}, but not above the untrained baseline"
    return verdict.text


def verdict_lines(board: Board) -> list[str]:
    """The board in sentences: the best, the baseline, the number of significant differences, each against the best."""
    if not board.standings:
        return ["No method has a finished seed yet."]
    first = board.standings[0]
    value = percent(first.scores[board.metric])
    lines = [f"{first.label} has the highest mean {title(board.metric)} ({board.part}): {value} %."]
    lines += baseline_lines(board)
    if board.verdicts:
        pairs, best = board.verdicts.pairs, board.best
        significant = sum(pair.significant for pair in pairs)
        lines += class_lines(board)
        lines.append(
            f"Level seeds ({SAYS['seeds']}): {significant} of {len(pairs)} differences are significant: paired t-tests "
            f"over {len(board.compared_seeds)} seeds, Holm-corrected over all pairs."
        )
        if best != first.label:
            lines.append(f"Over the compared seeds, {best} has the highest mean.")
        lines += [_sentence(board, pair) for pair in pairs if pair.first == best]
    elif len(board.standings) > 1:
        lines.append("No two methods share two finished seeds, so no difference can be tested.")
    lines += [
        f"{one.label} is not compared: it has finished only seeds {', '.join(map(str, one.seeds))}."
        for one in board.standings
        if board.verdicts and one.label not in board.compared
    ]
    return lines + [f"{label} has no finished seed." for label in board.waiting]


def _sentence(board: Board, pair: Verdict) -> str:
    words = verdict_text(board, pair) if pair.significant else f"{pair.first} and {pair.second}: {pair.text}"
    return f"Level seeds: {words}."


def class_lines(board: Board) -> list[str]:
    """What holds for new test classes, in one sentence; none where the classes of the queries are not known."""
    if board.class_verdicts is None:
        return []
    pairs, like = board.class_verdicts.pairs, board.class_verdicts.like_best
    significant = sum(pair.significant for pair in pairs)
    line = (
        f"Level classes ({SAYS['classes']}): {significant} of {len(pairs)} differences are significant: "
        f"{len(board.shares)} classes crossed with {len(board.compared_seeds)} seeds, Holm-corrected over all pairs; "
        f"not significantly below the highest mean: {', '.join(like)}."
    )
    return [line]


def standings_markdown(board: Board, metrics: Sequence[str] = SHOWN, explain: bool = True) -> str:
    """The board as a table in percent, with the untrained baselines first and the marks of `mark`.

    `explain` adds what is unequal about the methods marked †.
    """
    every = {key for one in board.standings for key in one.scores}
    shown = [board.metric, *(key for key in metrics if key in every and key != board.metric)]
    rows = []
    for name, scores in board.baselines.items():
        cells = [f"{100 * scores[key]:.2f}" if key in scores else "–" for key in shown]
        rows.append(["", f"*{name}*", *cells, "–", "–", "–"])
    for one in board.standings:
        cells = [percent(one.scores[key]) if key in one.scores else "–" for key in shown]
        trials = f"{one.budget.complete}" + (f" + {one.budget.pruned} pruned" if one.budget.pruned else "")
        name = one.label + " †" * bool(one.unequal)
        rows.append([mark(board, one.label), name, *cells, str(len(one.seeds)), trials, f"{one.train_seconds:.1f}"])
    text = markdown_table(["", "method", *map(title, shown), "seeds", "trials", "s / network"], rows)
    notes = [f"Scores in percent, {board.part}: mean ± 95 % t-interval over seeds."]
    notes += [legend(board)] if board.standings else []
    if explain:
        notes += [f"† {one.label}: {'; '.join(one.unequal)}." for one in board.standings if one.unequal]
    return text + "\n" + "\n".join(f"{note}  " for note in notes).rstrip() + "\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 2) -> str:
    """A table that is aligned as plain text too; columns after the first `left` are right-aligned."""
    lines = [list(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(head))]
    rule = [("-" * width if i < left else "-" * (width - 1) + ":") for i, width in enumerate(widths)]
    padded = [
        [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in [padded[0], rule, *padded[1:]])
