"""The report of a bench: an interactive page in one file, which opens offline."""

from nearfield.report.page import render, write_report
from nearfield.report.provenance import command

__all__ = ["command", "render", "write_report"]
