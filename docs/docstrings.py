"""Docstrings for the site: paragraphs whose lines are aligned in columns, or indented, stay as they were typed."""

from __future__ import annotations

import re
from typing import Any

import griffe

COLUMNS = re.compile(r"\S {2,}\S")  # two or more spaces inside a line: a table of arguments, an equation


class Typed(griffe.Extension):
    """An extension of mkdocstrings: such paragraphs become text blocks."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The text with a fence around each paragraph that is aligned or indented; neighbours share one."""
    parts: list[str] = []
    typed: list[str] = []
    for paragraph in [*re.split(r"\n\s*\n", text), ""]:
        lines = paragraph.splitlines()
        if any(COLUMNS.search(line) for line in lines) or (lines and all(line.startswith("    ") for line in lines)):
            typed.append(paragraph)
            continue
        if typed:
            parts.append("```text\n" + "\n\n".join(typed) + "\n```")
            typed = []
        parts.append(paragraph)
    return "\n\n".join(parts).strip()
