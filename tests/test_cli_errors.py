"""How a command fails: the right exit code, one line, and a traceback only in a log file."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import pytest
from commands import COMMANDS, OPTIONS, Words

from nearfield.cli import crash
from nearfield.cli.main import main


def failing(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `nearfield data list` and every training fail like this."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("nearfield.data.names", fail)
    monkeypatch.setattr("nearfield.training.loop.train", fail)


def test_an_unexpected_error_is_one_line_and_a_log_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(IndexError("list index\n  out of [/b] range" + 1000 * "x"), monkeypatch)
    assert main(["data", "list"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    start, _, file = line.rpartition(" The traceback is in ")
    assert start.startswith("nearfield: unexpected error, IndexError: list index out of [/b] rangexx")
    assert len(start) < 400
    log = Path(file.rstrip("."))
    assert log.parent == tmp_path
    assert log.stat().st_mode & 0o777 == 0o600
    text = log.read_text()
    assert text.startswith("nearfield 0.")
    assert "Traceback (most recent call last)" in text
    assert "x" * 1000 in text


def test_the_log_file_is_in_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    failing(ZeroDivisionError(), monkeypatch)
    call = ["train", "--set", "data.name=digits", "--set", "data.val_fraction=0.4", "--set", "sampler.batch_size=12"]
    assert main([*call, "--out", str(tmp_path / "new")]) == 1
    assert str(tmp_path / "temporary") in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    assert main([*call, "--out", str(tmp_path / "run")]) == 1
    assert str(tmp_path / "run" / "nearfield-error-") in capsys.readouterr().err


def test_no_place_for_a_log_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert crash.describe(KeyError("a"), None) == (
        "unexpected error, KeyError: 'a'. The traceback could not be written to a log file."
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt(), signal.SIGTERM])
def test_an_interruption_says_how_to_resume(
    error: BaseException | signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        if isinstance(error, BaseException):
            raise error
        os.kill(os.getpid(), error)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("nearfield.data.names", interrupt)
    try:
        assert main(["data", "list"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "nearfield: Interrupted. Run the same command again to resume.\n"


def test_a_file_name_that_cannot_be_encoded_is_printed_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "no\udcffwhere"]) == 2
    assert "no\\udcffwhere" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------
# Words that are no command, no option, no value


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The only line that the command prints before it ends with 2."""
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    return line


def named(options: list[tuple[Words, argparse.Action]]) -> list[object]:
    """Test cases named after command and option."""
    return [pytest.param(words, a, id=" ".join([*words, *(a.option_strings[-1:] or [a.dest])])) for words, a in options]


@pytest.mark.parametrize(("words", "action"), named([(w, a) for w, a in OPTIONS if a.option_strings]))
def test_a_misspelt_option_names_the_nearest(
    words: Words, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    option = action.option_strings[-1]
    for typo in (f"{option}{option[-1]}", f"{option[:-2]}{option[-1]}", f"{option[:-1]}={option[-1]}"):
        line = refused([*words, typo, "3"], capsys)
        assert line.startswith(f"nearfield: unknown option {typo.partition('=')[0]}; did you mean '-")
        assert line.endswith(f"See `nearfield {' '.join(words)} --help`.")
    assert f"'{option}'" in refused([*words, f"{option}{option[-1]}"], capsys)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_misspelt_command_names_the_nearest(words: Words, capsys: pytest.CaptureFixture[str]) -> None:
    typo = f"{words[-1]}{words[-1][-1]}"
    assert f"{typo!r}; did you mean {words[-1]!r}?" in refused([*words[:-1], typo], capsys)


@pytest.mark.parametrize(("words", "action"), named([(w, a) for w, a in OPTIONS if a.choices]))
def test_a_misspelt_choice_names_the_nearest(
    words: Words, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    for choice in map(str, action.choices or ()):
        line = refused([*words, *action.option_strings[-1:], f"{choice}{choice[-1]}"], capsys)
        assert f"{choice}{choice[-1]}'; did you mean {choice!r}?" in line


NUMBERS = [(w, a) for w, a in OPTIONS if getattr(a.type, "__qualname__", "").startswith("whole.")]


@pytest.mark.parametrize(("words", "action"), named(NUMBERS))
def test_a_number_must_be_one(words: Words, action: argparse.Action, capsys: pytest.CaptureFixture[str]) -> None:
    option = action.option_strings[-1]
    assert f"{option} must be a whole number; got 'three'." in refused([*words, option, "three"], capsys)
    assert f"{option} must be a whole number; got '1.5'." in refused([*words, option, "1.5"], capsys)
    assert f"{option} must be at least " in refused([*words, option, "-1"], capsys)


def test_what_is_missing_or_too_much_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "required: -o/--out. See `nearfield embed --help`." in refused(["embed", "conv", "digits"], capsys)
    assert "required: COMMAND" in refused([], capsys)
    assert "unknown option --seed; did you mean '--seeds'?" in refused(["bench", "--seed", "3"], capsys)
    assert "unrecognized arguments: c.npy" in refused(["eval", "a.npy", "b.npy", "c.npy"], capsys)
    assert "a.npy is not a file" in refused(["eval", "--json", "--", "a.npy", "--ks.npy"], capsys)


@pytest.mark.parametrize("words", [["report"], ["lint"], ["train"]])
def test_a_path_that_is_too_long_is_said_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "x" * 300]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
