"""The benchmarks' page: tables are replaced between their marks, and nothing else is touched."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.speed import PLACE, TABLES, with_tables

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"


def test_tables_are_replaced_between_their_marks() -> None:
    page = "# Speed\n\n" + "".join(
        f"<!-- speed: {name} -->\n\nold\n\n<!-- end -->\n\ntext\n" for name in ("eval", "data")
    )
    found = with_tables(page, {"eval": "| new |\n", "losses": "| nowhere |"})
    assert found == page.replace("old", "| new |", 1)
    assert with_tables(found, {"eval": "| new |"}) == found


def test_the_marks_of_the_page_are_of_tables_that_can_be_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    marked = [name for _, name, _ in PLACE.findall(page)]
    assert len(marked) == len(set(marked)) == page.count("<!-- speed:")
    assert set(marked) <= set(TABLES)
    tables = {name: f"| {name} |" for name in marked}
    assert re.findall(r"\| (\w+) \|\n\n<!-- end -->", with_tables(page, tables)) == marked
