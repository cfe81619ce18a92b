"""The report of a bench: an interactive page in one file that opens offline, and the same as Markdown."""

from nearfield.report.markdown import write_markdown
from nearfield.report.page import render, write_report
from nearfield.report.provenance import command

__all__ = ["command", "render", "write_markdown", "write_report"]
