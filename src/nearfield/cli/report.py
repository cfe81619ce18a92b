"""`nearfield report`: write the report of a bench."""

from __future__ import annotations

import argparse
from pathlib import Path

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command
from nearfield.errors import InputError


def add_parser(commands: Commands) -> None:
    """The grammar."""
    example = "nearfield report runs/bench -o report.html"
    summary = "write a bench's report: one HTML file that opens offline"
    parser = add_command(commands, "report", report, summary, example)
    parser.add_argument("bench", type=Path, help="folder of a bench")
    written = "file to write; NAME.md is the same as text, with two pictures (default: report.html in the folder)"
    parser.add_argument("-o", "--out", type=Path, help=written)
    pictures = "data with pictures of the same rows, for a bench that was run on features"
    parser.add_argument("--pictures", metavar="NAME", help=pictures)


def report(arguments: argparse.Namespace) -> None:
    """Write a bench's report: a page, or text where the file's name ends in .md."""
    from rich.markup import escape

    from nearfield.report import write_markdown, write_report

    out = arguments.out or arguments.bench / "report.html"
    if out.suffix == ".md":
        if arguments.pictures:
            raise InputError(f"--pictures is for pages, and {out} is text; leave it out, or write a .html file.")
        for file in write_markdown(arguments.bench, out):
            show.results().print(f"Written: {file}", soft_wrap=True)
        return
    with show.notes().status("Reading the results") as status:
        write_report(arguments.bench, out, arguments.pictures, lambda line: status.update(escape(line)))
    show.results().print(f"Report: {out}", soft_wrap=True)
