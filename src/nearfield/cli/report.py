"""`nearfield report`: write the report of a bench."""

from __future__ import annotations

import argparse
from pathlib import Path

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command
from nearfield.errors import InputError

DETAILS = """
One HTML file that opens offline: leaderboard, significance, learning curves, retrieved images. `nearfield bench`
writes it at the end; this command writes it again, also of a bench that is still running.
"""
EXAMPLES = """
nearfield report runs/bench
nearfield report runs/bench -o results.md
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "write the report of a bench as an HTML page or as Markdown"
    parser = add_command(commands, "report", report, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("bench", type=Path, metavar="DIR", help="folder of a bench")
    out = "file to write: .html, or .md for Markdown with two figures (default: report.html in the folder)"
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help=out)
    images = "for a bench on features: the dataset with the images they were computed from, row by row"
    parser.add_argument("--images", "--pictures", metavar="NAME", help=images)


def report(arguments: argparse.Namespace) -> None:
    """Write a bench's report: a page, or Markdown where the file's name ends in .md."""
    from nearfield.report import write_markdown, write_report

    out = arguments.out or arguments.bench / "report.html"
    if out.suffix == ".md":
        if arguments.images:
            raise InputError(f"--images requires an HTML report; got {out}. Remove it, or write a .html file.")
        show.say(*(f"Written: {file}" for file in write_markdown(arguments.bench, out)))
        return
    with show.status("Reading the results") as phase:
        write_report(arguments.bench, out, arguments.images, phase)
    show.say(f"Report: {out}")
