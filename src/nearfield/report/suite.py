"""The report of a suite: one offline page across datasets, the same as Markdown, and a page for each dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nearfield.analysis import suite_text
from nearfield.analysis.calibration_text import Calibration, calibration_lines
from nearfield.analysis.figures.suites import pareto_figure, reliability_figure, search_figure, suite_ranks_figure
from nearfield.analysis.figures.svg import svg
from nearfield.analysis.suite import Suite
from nearfield.files import write_text
from nearfield.report.page import write_report

SECTIONS = (
    ("leaderboard", "Leaderboard"), ("verdicts", "Verdicts"), ("agreement", "Agreement"), ("budgets", "Search"),
    ("time", "Time"), ("calibration", "Calibration"), ("datasets", "Datasets"),
)  # fmt: skip
TITLES = {
    "ranks": "Ranks on every dataset, and their mean",
    "search": "Best validation score to expect, by trials",
    "pareto": "Score against seconds of training",
    "calibration": "How often a verdict held, against its probability",
}
FINDING = 4  # sentences at the top


def write_suite(
    suite: Suite, calibration: Calibration, folder: Path, pages: Mapping[str, Path], say: Callable[[str], None]
) -> list[Path]:
    """Write report.html and report.md with its figures into `folder`, and a page for each dataset into its own.

    `pages` are the folders of the datasets' benches, inside `folder`. The files across datasets are returned.
    """
    addresses = []
    for name, own in pages.items():
        say(f"Writing the page of {name}")
        page = write_report(own, own / "report.html")
        addresses.append((name, page.relative_to(folder).as_posix()))
    drawn = {
        "ranks": svg(suite_ranks_figure(suite)),
        "search": svg(search_figure(suite)),
        "pareto": svg(pareto_figure(suite)),
        "calibration": svg(reliability_figure(calibration.curves)),
    }
    html, text = folder / "report.html", folder / "report.md"
    write_text(html, _page(suite, calibration, drawn, addresses))
    named = {name: folder / f"report-{name}.svg" for name in drawn}
    for name, file in named.items():
        write_text(file, drawn[name])
    write_text(text, suite_text.markdown(suite, {TITLES[name]: file.name for name, file in named.items()}))
    return [html, text, *named.values()]


def _page(suite: Suite, calibration: Calibration, drawn: Mapping[str, str], pages: list[tuple[str, str]]) -> str:
    templates = Environment(
        loader=PackageLoader("nearfield.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    lines = suite_text.lines(suite)
    style = (files("nearfield.report") / "assets" / "report.css").read_text(encoding="utf-8")
    return templates.get_template("suite.html.j2").render(
        title=f"{len(suite.methods)} methods on {len(suite.datasets)} datasets",
        sections=SECTIONS,
        facts=[
            ("Datasets", ", ".join(each.name for each in suite.datasets)),
            ("Methods", str(len(suite.methods))),
            ("Seeds", str(min(len(each.board.compared_seeds) for each in suite.datasets))),
            ("Level of the headline", suite.level),
        ],
        finding=lines[:FINDING],
        lines=lines,
        leaderboard=suite_text.leaderboard(suite),
        pairs=suite_text.pairs(suite) if suite.pairs else None,
        agreement=suite_text.agreements(suite),
        figures={name: Markup(text) for name, text in drawn.items()},
        calibrated=calibration_lines(calibration.said),
        missing=suite.missing,
        pages=pages,
        style=Markup(style),
    )
