"""`nearfield reproduce`: what is listed and planned, and the page with our numbers beside the paper's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from benches import fake_results

from nearfield.analysis.figures.svg import svg
from nearfield.analysis.reproduction import Reproduced, as_json, figure, page
from nearfield.bench.results import BenchResults
from nearfield.cli.main import main
from nearfield.recipes.tables import TABLES, Table


def results_of(table: Table) -> dict[str, BenchResults]:
    """Invented results, better from entry to entry."""
    return {entry.label: fake_results({"a": 0.2 + 0.02 * i}) for i, entry in enumerate(table.entries)}


def test_the_list_names_every_table_and_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(found) == set(TABLES)
    needed = {need["name"]: need for need in found["fastap/table1"]["needs"]}
    assert "nearfield data add sop" in needed["sop"]["remedy"]


def test_the_plan_of_a_small_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "drml/table1", "--small", "--dry-run", "--json", "--jobs", "1"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in plan["rows"]] == [entry.label for entry in TABLES["drml/table1"].entries]
    assert {row["networks"] for row in plan["rows"]} == {4 * (4 + 3)}  # folds x (trials + seeds)
    assert all(row["seconds"] >= 0 for row in plan["rows"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a table or figure"),
        (["fastap/tabel1"], "did you mean 'fastap/table1'"),
        (["ms/table2", "--set", "run.stps=3"], "did you mean 'steps'"),
        (["fastap/table1"], "use --small"),
    ],
)
def test_bad_input_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_page_has_every_cell_beside_the_papers() -> None:
    table = TABLES["ms/table2"].small()
    found = results_of(table)
    text = page(Reproduced(table, found, True, "nearfield reproduce ms/table2 --small"))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(table.entries)
    assert all("71.9" in row for row in rows if row.startswith("| Binomial "))
    assert "**Scaled down**" in text
    assert "Kendall's tau between our order and the paper's" in text
    assert "Not finished" not in text


def test_what_is_not_finished_is_said() -> None:
    table = TABLES["ms/table3"]
    first = table.entries[0]
    made = Reproduced(table, {first.label: fake_results({"a": 0.3})}, False, "nearfield reproduce ms/table3")
    assert made.missing == tuple(f"{entry.label}: not run yet" for entry in table.entries[1:])
    rows = as_json(made)["rows"]
    assert rows[first.label]["recall@1"]["published"] == 57.4
    assert rows[first.label]["recall@1"]["mean"] > 0
    assert rows[table.entries[1].label]["recall@1"]["mean"] is None


@pytest.mark.parametrize("name", ["ms/fig3", "unbiased/fig2", "fastap-supp/fig3"])
def test_figures_are_drawn(name: str) -> None:
    table = replace(TABLES[name].small(), columns=("map@r",))  # what invented learning curves hold
    drawn = figure(Reproduced(table, results_of(table), True, ""))
    assert drawn is not None
    assert table.axis in svg(drawn)
