"""Progress of long work: reported to whoever asked for it, on a terminal as a bar, and nowhere otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from miniatures import add, make_cub, pack
from rich.console import Console

from nearfield import data
from nearfield.cli import show
from nearfield.cli.main import main
from nearfield.data.leaks import find_leaks
from nearfield.progress import Progress, reported, shown_by

Seen = list[tuple[str, int, int]]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))


def recorded(seen: Seen):  # type: ignore[no-untyped-def]
    @contextmanager
    def display(title: str) -> Iterator[Progress]:
        yield lambda done, total: seen.append((title, done, total))

    return display


def test_long_work_is_shown_by_the_display_in_use(tmp_path: Path) -> None:
    make_cub(tmp_path / "here")
    seen: Seen = []
    with shown_by(recorded(seen)):
        dataset = add("cub", pack(tmp_path / "here", tmp_path / "CUB_200_2011.tgz"))
        data.decoded(dataset)
        find_leaks(dataset)
    size = (tmp_path / "CUB_200_2011.tgz").stat().st_size
    assert seen == [
        ("Checking CUB_200_2011.tgz", size, size),
        ("Unpacking cub", 1, 1),
        ("Decoding cub", 12, 12),
        ("Decoding cub, once", 12, 12),
        ("Hashing cub", 12, 12),
    ]


def test_a_callback_goes_before_the_display() -> None:
    shown: Seen = []
    own: list[tuple[int, int]] = []
    with shown_by(recorded(shown)), reported("work", lambda done, total: own.append((done, total))) as report:
        report(1, 2)
    assert (shown, own) == ([], [(1, 2)])


def test_a_display_ends_with_its_block() -> None:
    outer: Seen = []
    inner: Seen = []
    with shown_by(recorded(outer)):
        with pytest.raises(KeyError), shown_by(recorded(inner)):
            raise KeyError
        with reported("work") as report:
            report(1, 1)
    with reported("work") as report:
        report(1, 1)
    assert (outer, inner) == ([("work", 1, 1)], [])


def test_the_command_line_shows_a_bar_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_cub(tmp_path)
    add("cub", tmp_path)
    assert capsys.readouterr().err == ""  # no display outside the command line
    assert main(["data", "verify", "cub"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(show, "notes", lambda: Console(stderr=True, force_terminal=True))
    assert main(["data", "verify", "cub"]) == 0
    assert "Decoding cub" in capsys.readouterr().err
