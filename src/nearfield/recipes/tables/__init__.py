"""Every table and figure of the five papers that trains something, by name; `nearfield reproduce` runs them."""

from __future__ import annotations

from nearfield.errors import InputError, nearest
from nearfield.recipes.tables import drml, fastap, multi_similarity, unbiased
from nearfield.recipes.tables.table import Entry, Scaling, Table

__all__ = ["TABLES", "Entry", "Scaling", "Table", "table"]

TABLES: dict[str, Table] = {
    each.name: each for paper in (fastap, multi_similarity, unbiased, drml) for each in paper.TABLES
}


def table(name: str) -> Table:
    """The table or figure called `name`; InputError naming the nearest if there is none."""
    if name not in TABLES:
        raise InputError(f"unknown table or figure {name!r}; {nearest(name, TABLES)} See `nearfield reproduce --list`.")
    return TABLES[name]
