"""`nearfield reproduce`: what is listed and planned, and the page with our numbers beside the paper's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from benches import fake_results
from layouts import add_all

from nearfield.analysis.figures.svg import svg
from nearfield.analysis.reproduction import Reproduced, as_json, figure, page
from nearfield.bench.results import BenchResults
from nearfield.cli.main import build_parser, main
from nearfield.cli.reproduce import _command
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


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All official datasets, in their layouts, added; none of the papers' weights."""
    root = tmp_path_factory.mktemp("official")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARFIELD_CACHE", str(root / "cache"))
        patch.chdir(root)
        add_all(root)
        yield


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.usefixtures("official")
def test_a_dry_run_builds_configuration_data_checks_and_network(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", name, "--dry-run", "--json", "--jobs", "1"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    made = TABLES[name]
    assert [row["label"] for row in plan["rows"]] == [entry.label for entry in made.entries]
    assert {row["checked"] for row in plan["rows"]} == {"network, loss, data, batches"}
    assert all(row["seconds"] > 0 for row in plan["rows"])
    needed = {need["name"]: need["here"] for need in plan["needs"]}
    assert needed == {**dict.fromkeys(made.datasets, True), **dict.fromkeys(made.weights, False)}


@pytest.mark.usefixtures("official")
def test_a_dry_run_says_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "ms/table4", "--dry-run", "--set", "run.sampler.batch_size=5000"]) == 2
    said = capsys.readouterr().err
    assert "ms/table4 cannot run:" in said
    assert "MS, 128 dims: multi_similarity" in said
    assert main(["reproduce", "ms/table4", "--dry-run", "--set", "protocol=classic"]) == 2
    assert "protocol classic is for data where" in capsys.readouterr().err


def test_the_plan_of_a_small_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "drml/table1", "--small", "--dry-run", "--json", "--jobs", "1"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in plan["rows"]] == [entry.label for entry in TABLES["drml/table1"].entries]
    assert {row["networks"] for row in plan["rows"]} == {4 * (4 + 3)}  # folds x (trials + seeds)
    assert all(row["seconds"] >= 0 for row in plan["rows"])
    assert plan["scaled_down"] == TABLES["drml/table1"].scaling.words


def test_the_list_and_the_plan_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    assert "drml/table3" in capsys.readouterr().out
    assert main(["reproduce", "ms/fig3", "--small", "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Scaled down: A linear head on frozen EfficientNet-Lite0 features" in said
    assert "Built or checked without training: network, loss" in said


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


def test_the_command_on_the_page_is_what_was_asked_for() -> None:
    words = ["reproduce", "ms/table5", "--small", "--seeds", "2", "--set", "run.steps=5", "--jobs", "1"]
    asked = build_parser().parse_args(words)
    assert _command(TABLES["ms/table5"], asked) == "nearfield reproduce ms/table5 --small --seeds 2 --set run.steps=5"


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


def test_quoted_rows_and_intervals_are_on_the_page() -> None:
    table = TABLES["drml/table1"]
    text = page(Reproduced(table, results_of(table), False, ""))
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert "67.2 ± 0.5" in rows["Contrastive"]
    assert "51.1" in rows["*Pretrained*"]
    assert "Rows in italics are other work's numbers" in text
    assert as_json(Reproduced(table, {}, False, ""))["quoted"]["Pretrained"]["map@r"] == 14.5


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
