"""The report as Markdown, for a repository or a paper, with two figures beside it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from nearfield.analysis.bias import Entry, ledger, ledger_markdown
from nearfield.analysis.budgets import efforts
from nearfield.analysis.figures.rankings import ranks_figure, slope_figure
from nearfield.analysis.figures.svg import svg
from nearfield.analysis.leaderboard import Board
from nearfield.analysis.lint.catalogue import HEADING
from nearfield.analysis.tables import markdown_table, percent, standings_markdown, title, verdict_lines
from nearfield.bench.results import BenchResults, Part
from nearfield.files import write_text
from nearfield.report import board, provenance, published, sentences
from nearfield.report.page import read_bench


def write_markdown(bench: Path, out: Path) -> list[Path]:
    """Write the report of the bench in folder `bench` to `out`, and its figures beside it; the files written."""
    results = read_bench(bench)
    boards, entries = board.boards(results), ledger(results)
    lead = boards["separated"]
    figures = {}
    if lead.critical and lead.critical.can_differ:
        figures["ranks"] = svg(ranks_figure(lead))
    if moved := _most_moved(entries):
        figures["slope"] = svg(slope_figure(moved))
    files = {name: out.with_name(f"{out.stem}-{name}.svg") for name in figures}
    for name, file in files.items():
        write_text(file, figures[name])
    write_text(out, markdown(results, boards, entries, {name: file.name for name, file in files.items()}))
    return [out, *files.values()]


def _most_moved(entries: list[Entry]) -> Entry | None:
    """Of the pitfalls that most methods have runs for, the one after which the ranking is least like the honest one."""
    known = [entry for entry in entries if entry.tau is not None and entry.name != "chance"]
    return min(known, key=lambda entry: (-len(entry.honest), entry.tau), default=None)


def markdown(results: BenchResults, boards: dict[Part, Board], entries: list[Entry], figures: dict[str, str]) -> str:
    """The text; `figures` are file names by figure, "ranks" and "slope"."""
    shown = [metric["key"] for metric in board.metrics(results)]
    lead = boards["separated"]
    parts = [
        f"# {sentences.headline(results)}",
        _items(f"{name}: {value}" for name, value in sentences.facts(results)),
        _items(sentences.finding(lead)),
    ]
    if notices := sentences.notices(results):
        parts += [f"## {HEADING}", _items(notices)]
    for part, found in boards.items():
        parts += [f"## Leaderboard, {part}", standings_markdown(found, shown, explain=False)]
    if unequal := board.unequal(results):
        parts += ["## † Unequal conditions", _items(unequal)]
    if "ranks" in figures:
        parts.append(f"![Mean ranks and the critical difference]({figures['ranks']})")
    parts += ["## Verdicts", _items([*verdict_lines(lead), *_ranks_missing(lead)])]
    parts += ["## Budget", _budget(results)]
    if entries:
        parts += ["## How known pitfalls change the ranking", ledger_markdown(entries)]
    if "slope" in figures:
        parts.append(f"![The honest ranking and the one that differs most from it]({figures['slope']})")
    if claims := published.papers(results, boards):
        parts += ["## Published numbers", *_papers(claims, results, boards)]
    if any(one.trial is not None for one in lead.standings):
        parts += ["## Settings chosen", "Chosen by validation; trial 0 is the published setting.", _settings(lead)]
    text = escape("\n\n".join(part.strip() for part in parts), quote=False)  # Markdown viewers pass HTML through
    return "\n\n".join([text, "## Provenance", *_provenance(results)]) + "\n"


def _ranks_missing(lead: Board) -> list[str]:
    """Why there is no diagram of ranks, if the critical difference exceeds its axis."""
    if lead.critical is None or lead.critical.can_differ:
        return []
    seeds, most = len(lead.compared_seeds), len(lead.compared) - 1
    difference = f"over {seeds} seeds the critical difference is {lead.critical.difference:.1f} ranks"
    return [f"No diagram of ranks: {difference}, but ranks differ by at most {most}."]


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _papers(published: dict[str, Any], results: BenchResults, boards: dict[Part, Board]) -> list[str]:
    """A table for each published one, with our scores beside theirs."""
    parts = [f"Ours: {published['ours']}. Networks and training differ: compare the ranking, not the scores."]
    for table in published["tables"]:
        ours = {one.label: one for one in boards[table["part"]].standings}
        metrics = [metric for metric in table["metrics"] if metric in ("recall@1", "map@r", "nmi")]
        rows = []
        for row in table["rows"]:
            label = results.methods[row["method"]].label
            cells = [[percent(ours[label].scores[m]), _published(*row["scores"][m])] for m in metrics]
            rows.append([label, *(cell for pair in cells for cell in pair)])
        head = ["method", *(f"{title(m)}, {who}" for m in metrics for who in ("ours", "paper"))]
        taus = ", ".join(f"{title(m)} {table['taus'][m]:.2f}" for m in metrics if table["taus"][m] is not None)
        parts += [
            f"### {table['title']}: {table['network']}",
            f"{table['part'].capitalize()}. {table['differs']} Kendall's τ between the two rankings: {taus}.",
            markdown_table(head, rows, left=1),
        ]
    return parts


def _published(value: float, half: float | None) -> str:
    return f"{100 * value:.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def _settings(found: Board) -> str:
    """The settings that the search chose."""
    rows = []
    for one in found.standings:
        setting = ", ".join(f"{key.split('.')[-1]} {_number(value)}" for key, value in one.params.items())
        rows.append([one.label, str(one.trial), setting])
    return markdown_table(["method", "trial", "setting"], rows, left=3)


def _budget(results: BenchResults) -> str:
    """What trials and steps bought: the best validation score to expect of so many trials (Dodge et al., 2019)."""
    found = efforts(results)
    most = max((len(one.expected) for one in found.values()), default=0)
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= most]
    rows = []
    for label, one in found.items():
        best = [f"{100 * one.expected[n - 1]:.2f}" if n <= len(one.expected) else "–" for n in counts]
        gain = "–" if one.longer is None else f"{100 * one.longer:+.2f}"
        rows.append([label, *best, gain, f"{one.seconds:.1f}", "; ".join(one.flags) or "–"])
    head = ["method", *(f"best of {count}" for count in counts), "twice the steps", "s / network", "flags"]
    note = (
        "Best validation score to expect of so many trials, in percent (Dodge et al., 2019), and what twice the steps "
        "add to that of the same seeds."
    )
    return f"{note}\n\n{markdown_table(head, rows, left=1)}"


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _provenance(results: BenchResults) -> list[str]:
    found = provenance.provenance(results)
    parts = [escape(_items(f"{name}: {value}" for name, value in found["facts"].items()), quote=False)]
    parts += [f"```toml\n{found['toml'].strip()}\n```"]  # a code block needs no escaping
    missing = escape(_items(found["missing"]), quote=False)
    return [*parts, f"Not finished:\n\n{missing}"] if missing else parts
