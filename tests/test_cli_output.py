"""What the commands print: any text as it is, the right numbers."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearfield.cli import show
from nearfield.cli.main import main
from nearfield.metrics import METRICS

SMALL = ["--set", "data.name=digits", "--set", "data.val_fraction=0.4", "--set", "sampler.batch_size=12"]
SMALL += ["--set", "model.width=4", "--set", "steps=1"]


def table_of_images(folder: Path, categories: str) -> Path:
    """Six classes of two images each; the category of every class."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    with (folder / "images.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["path", "label", "category"])
        for label in "abcdef":
            for i in range(2):
                name = f"{label}{i}.png"
                Image.fromarray(draw.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / name)
                rows.writerow([name, label, categories])
    return folder / "images.csv"


@pytest.mark.parametrize("name", ["[/b]", "[bold]x", ":smile:", "[link=x]"])
def test_names_are_printed_as_they_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    assert main(["data", "add", "mine", str(table_of_images(tmp_path / "photos", name))]) == 0
    assert f"{name} 6" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["we[/]", "[red]"])
def test_folders_are_printed_as_they_are(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", str(tmp_path / folder / "run"), *SMALL]) == 0
    assert f"Folder: {tmp_path / folder / 'run'}\n" in capsys.readouterr().out


@pytest.mark.parametrize("progress", ["bar", "none"])
def test_training_prints_its_result(progress: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), "--progress", progress, *SMALL]) == 0
    shown = capsys.readouterr()
    assert re.match(r"multi_similarity seed 0, step \d+: test recall@1 \d", shown.out)
    assert (shown.err == "") == (progress == "none")


def test_json_progress_keeps_to_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), "--progress", "json", *SMALL]) == 0
    assert [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines()][-1] == 1


def test_a_plan_has_singulars(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["run.sampler.batch_size=8", "run.data.name=digits", "run.steps=1"]
    call = ["bench", "--methods", "fastap", "--seeds", "1", "--trials", "1", "--dry-run"]
    assert main([*call, *(word for option in options for word in ("--set", option))]) == 0
    assert "1 seed; 1 network of 1 step in all." in capsys.readouterr().out


def test_every_metric_is_explained_and_only_shares_are_percentages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    help = capsys.readouterr().out.split()
    assert [name for name in METRICS if name not in help] == []
    np.savez(tmp_path / "x.npz", embeddings=np.eye(6)[[0, 0, 1, 1]], labels=np.array([0, 0, 1, 1]))
    assert main(["eval", str(tmp_path / "x.npz"), "--metrics", "recall", "effective_rank", "counts"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {words[1]: words[3] for words in lines if len(words) > 3}
    assert (found["recall@1"], found["queries"], found["effective_rank"]) == ("100.00", "4", "2")


def test_counts_have_a_plural() -> None:
    assert [show.count(n, "image") for n in (0, 1, 2, 1797)] == ["0 images", "1 image", "2 images", "1,797 images"]
