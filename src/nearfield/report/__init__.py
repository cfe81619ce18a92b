"""The report of a bench: an interactive page in one file, which opens offline; and the same as text."""

from nearfield.report.markdown import write_markdown
from nearfield.report.page import render, write_report
from nearfield.report.provenance import command

__all__ = ["command", "render", "write_markdown", "write_report"]
