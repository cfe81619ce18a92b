"""Every table and figure of the papers builds its configurations, its data checks and its networks."""

from __future__ import annotations

import pytest

from nearfield import losses
from nearfield.config import RunConfig
from nearfield.data.official import KINDS
from nearfield.errors import InputError
from nearfield.recipes.tables import TABLES, Table, table
from nearfield.recipes.tables.table import change, scores

WANTED = """
fastap/table1 fastap/table2 fastap/table3 fastap/fig4a fastap/fig4b
fastap-supp/table2 fastap-supp/fig3 fastap-supp/table3
ms/table2 ms/table3 ms/table4 ms/table5 ms/fig3 ms-supp/table1 ms-supp/table2
unbiased/table2 unbiased/table3 unbiased/table4 unbiased/fig1 unbiased/fig2
drml/table1 drml/table2 drml/table3
"""
each = pytest.mark.parametrize("made", TABLES.values(), ids=TABLES)


def test_every_table_and_figure_is_there() -> None:
    assert set(WANTED.split()) == set(TABLES)


@each
def test_labels_differ_and_columns_are_published(made: Table) -> None:
    labels = [entry.label for entry in made.entries]
    assert len(set(labels)) == len(labels)
    for entry in made.entries:
        assert set(entry.published) <= set(made.columns)
        assert all(0 < value < 100 for value in entry.published.values())
    assert made.axis or all(entry.published for entry in made.entries)


@each
def test_runs_are_of_official_data_and_known_methods(made: Table) -> None:
    for entry in made.entries:
        assert entry.run.data.name in KINDS
        losses.method(entry.run.method.name)
        ks = entry.run.ks or KINDS[entry.run.data.name].ks
        wanted = {int(name.split("@")[1]) for name in made.columns if "recall@" in name and name in entry.published}
        assert wanted <= set(ks)


@each
def test_the_small_form_is_the_same_experiment(made: Table) -> None:
    small = made.small()
    assert {entry.label for entry in small.entries} <= {entry.label for entry in made.entries}
    for entry in small.entries:
        whole = next(each for each in made.entries if each.label == entry.label)
        assert entry.run.method == whole.run.method
        assert entry.run.data.name not in KINDS
        assert entry.run.steps <= 400
    assert len({entry.bench.digest() for entry in small.entries}) == len(small.entries)
    assert len(small.entries) > 1


@each
def test_a_small_head_has_no_more_dims_than_its_features(made: Table) -> None:
    heads = [each.run.model for each in made.small().entries if each.run.model.backbone == "features"]
    assert all(head.dim <= 1280 for head in heads)


def test_map_at_r_never_exceeds_r_precision() -> None:
    for made in TABLES.values():
        for entry in made.entries:
            for prefix in ("", "concatenated/"):
                if f"{prefix}map@r" in entry.published:
                    assert entry.published[f"{prefix}map@r"] <= entry.published[f"{prefix}r_precision"]


def test_recall_rises_with_k_but_for_the_known_misprint() -> None:
    for made in TABLES.values():
        names = [name for name in made.columns if name.startswith("recall@")]
        for entry in made.entries:
            values = [entry.published[name] for name in names if name in entry.published]
            assert values == sorted(values)


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'fastap/table1'"):
        table("fastap/tabel1")


def test_scores_need_a_number_for_every_metric() -> None:
    assert scores(("a", "b"), "1 -") == {"a": 1.0}
    with pytest.raises(ValueError, match="zip"):
        scores(("a", "b"), "1")


def test_a_change_is_validated() -> None:
    assert change(RunConfig(), model__dim=7).model.dim == 7
    with pytest.raises(ValueError, match="greater than or equal"):
        change(RunConfig(), model__dim=0)
