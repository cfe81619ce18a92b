"""The command line: quick help, right exit codes, one clear message."""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import COMMANDS, OPTIONS

from nearfield.cli.main import build_parser, main


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    call = [sys.executable, "-X", "importtime", "-m", "nearfield", "--help"]
    imported = subprocess.run(call, capture_output=True, text=True, check=True).stderr
    modules = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert "nearfield.cli.bench" in modules
    assert not {"torch", "numpy", "pydantic", "rich", "matplotlib", "sklearn", "sqlalchemy", "optuna"} & modules
    assert min(_cpu_seconds(["--help"]) for _ in range(3)) < 0.25


def _cpu_seconds(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "nearfield", *words], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_page_of_commands_is_up_to_date() -> None:
    page = (Path(__file__).parents[1] / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = {title: text for title, _, text in (part.partition("\n") for part in page.split("\n## "))}
    assert set(sections) == {"# Command line", "nearfield", *(f"nearfield {' '.join(words)}" for words in COMMANDS)}
    for words, action in OPTIONS:
        section = "".join(sections[f"nearfield {' '.join(words)}"].split())
        for text in (*action.option_strings, action.help or "") if action.help != argparse.SUPPRESS else ():
            assert "".join(text.split()) in section


@pytest.mark.parametrize("words", list(COMMANDS), ids=" ".join)
def test_every_command_explains_itself_with_an_example(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args([*words, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert re.search(r"examples?:\n  nearfield " + words[0], shown)
    assert max(len(line) for line in shown.partition("examples")[0].splitlines()) <= 110


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("nearfield 0.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "--set", "run.stepz=3"], "run.stepz is not a key here; did you mean 'steps'?"),
        (["bench", "--methods", "fastpa"], "unknown method 'fastpa'; did you mean 'fastap'?"),
        (["bench", "--seeds", "0"], "seeds"),
        (["bench", "--jobs", "-1"], "--jobs must be at least 1; got -1. See `nearfield bench --help`."),
        (["train", "nowhere.toml"], "cannot read the config nowhere.toml"),
        (["train", "--set", "data.name=glyph"], "did you mean 'glyphs'?"),
        (["methods", "triplets"], "did you mean 'triplet'?"),
        (["data", "show", "cup"], "dataset 'cup'"),
        (["report", "nowhere"], "nowhere"),
        (["report", "nowhere", "-o", "x.md", "--pictures", "cub"], "--images requires an HTML report"),
        (["eval", "nowhere.npy", "labels.npy"], "nowhere.npy"),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("nearfield: ")
    assert "Traceback" not in captured.err
    assert not list(tmp_path.glob("runs/**/*.toml"))


def test_labels_of_another_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(6, 3)))
    np.save(tmp_path / "y.npy", np.arange(5))
    assert main(["eval", str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]) == 2
    assert "6" in (message := capsys.readouterr().err)
    assert "5" in message


def test_methods_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "multi_similarity" in {m["name"] for m in listed}
    assert main(["methods", "fastap"]) == 0
    assert "bins = 10" in capsys.readouterr().out


def test_data_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 1797
    assert main(["data", "show", "digits"]) == 0
    assert "1797" in capsys.readouterr().out


def test_dry_run_prints_the_plan_and_runs_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [
        "bench",
        "--data",
        "digits",
        "--set",
        "run.sampler.batch_size=8",
        "--out",
        str(tmp_path / "b"),
        "--dry-run",
    ]
    assert main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["trials"], plan["seeds"]) == (24, 15)
    assert plan["seconds"] > 0
    assert not (tmp_path / "b").exists()
    assert main(words) == 0
    assert re.search(r"About \d:\d\d:\d\d with \d+ at a time", capsys.readouterr().out)
