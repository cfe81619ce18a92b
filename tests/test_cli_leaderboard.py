"""The leaderboard on the terminal: every name at every width."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from benches import fake_results
from rich.console import Console

from nearfield.analysis.leaderboard import Board, standings
from nearfield.bench.results import BenchResults
from nearfield.cli.leaderboard import leaderboard_table, notes_below

METHODS = {"multi_similarity": 0.5, "fastap(bins=20)": 0.45, "proxy_softmax(temperature=0.1)": 0.4}
TITLES = ["MAP@R", "R-precision", "R@1", "R@2", "R@4", "R@8", "NMI", "s/net"]


def bench(seeds: int = 3) -> tuple[Board, BenchResults]:
    """A bench with every metric that the terminal shows."""
    results = fake_results(METHODS, seeds=seeds, trials=0)
    more = {f"recall@{k}": 0.8 for k in (2, 4, 8)}
    methods = tuple(
        replace(m, seeds=tuple(replace(seed, separated=seed.separated | more) for seed in m.seeds))
        for m in results.methods
    )
    results = replace(results, methods=methods)
    return standings(results), results


def printed(width: int, seeds: int = 3) -> list[str]:
    board, results = bench(seeds)
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=True, color_system=None, highlight=False, markup=False)
    console.print(leaderboard_table(board, results, width))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(("width", "columns"), [(80, 2), (100, 4), (120, 5), (200, 8)])
def test_columns_are_left_out_but_never_a_name(width: int, columns: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    for name in (*METHODS, "untrained network", "raw pixels"):
        (row,) = [line for line in lines if f" {name} " in line]
        assert "." in row.split(name)[1].split("│")[1], "the board's metric is in every row"
    (head,) = [line for line in lines if " method " in line]
    shown = [title for title in TITLES if f" {title} " in head]
    assert len(shown) == columns
    assert shown[0] == "MAP@R"
    hidden = [title for title in TITLES if title not in shown]
    assert (f"Not shown at this width: {', '.join(hidden)}." in "\n".join(lines)) == bool(hidden)


def test_a_name_wider_than_the_terminal_is_wrapped() -> None:
    lines = printed(36)
    assert max(map(len, lines)) <= 36
    assert "proxy_softm" in "".join(lines)
    assert "MAP@R" in "".join(lines)


def test_pitfalls_of_the_bench_stand_below_the_table() -> None:
    board, results = bench()
    config = {"trials": 1, "seeds": [0, 1, 2], "methods": [{"name": "fastap"}, {"name": "triplet"}]}
    lines = notes_below(board, replace(results, config=config))
    after = lines[lines.index("Before you trust these numbers:") :]
    assert [line.split(":")[0].split()[0] for line in after[1:]] == ["few-seeds", "untuned"]
    clean = {**config, "trials": 8, "seeds": [0, 1, 2, 3, 4]}
    assert "Before you trust these numbers:" not in notes_below(board, replace(results, config=clean))


def test_no_star_below_an_untrained_baseline() -> None:
    results = bench()[1]
    assert "★" in "\n".join(printed(120))
    strong = standings(replace(results, baselines={"raw pixels": {"map@r": 0.606}}))
    table = leaderboard_table(strong, results, 200)
    assert list(table.columns[0].cells) == ["", "▽", "▽", "▽"]
    assert next(iter(table.columns[1].cells)) == "raw pixels"  # the baselines come first
    assert table.caption == "▽ not above the best untrained baseline."
    assert "no method exceeds it" in notes_below(strong, results)[1]


def test_one_seed_is_singular() -> None:
    assert "reality-check, 1 seed: percent" in printed(120, seeds=1)[0]
    assert "reality-check, 3 seeds: percent" in printed(120)[0]
