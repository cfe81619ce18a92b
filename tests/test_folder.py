"""A folder of class folders as data."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from narrow import pixels_of
from PIL import Image

from nearfield import data
from nearfield.cli.main import main
from nearfield.errors import InputError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for c in range(8):
        (tmp_path / "photos" / f"clàss {c}").mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 255, (20 + c, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"clàss {c}" / f"{i}.png")
    return tmp_path / "photos"


def test_a_folder_is_a_dataset(photos: Path) -> None:
    dataset = data.load(str(photos))
    assert pixels_of(dataset).shape == (24, 32, 32)
    assert dataset.class_names == tuple(f"clàss {c}" for c in range(8))
    assert dataset.train_classes.tolist() == [0, 1, 2, 3]
    assert dataset.fingerprint == data.load(str(photos)).fingerprint
    (photos / "clàss 0" / "0.png").unlink()
    assert dataset.fingerprint != data.load(str(photos)).fingerprint


def test_an_unreadable_image_is_named(photos: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = photos / "clàss 3" / "1.png"
    broken.write_bytes(broken.read_bytes()[:60])
    small = ["--set", "run.model.backbone=conv"]  # reads all images at once
    assert main(["bench", "--data", str(photos), "--out", str(tmp_path / "out"), *small]) == 2
    assert f"nearfield: cannot read the image {broken}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_folder_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["data", "show", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("refused", ["", "clàss 3"], ids=["root", "class folder"])
@pytest.mark.parametrize("action", ["show", "add"])
def test_a_folder_that_may_not_be_read_is_named(
    photos: Path, refused: str, action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path == photos / refused:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    words = ["show", str(photos)] if action == "show" else ["add", "mine", str(photos)]
    assert main(["data", *words]) == 2
    message = f"nearfield: cannot read {photos / refused}: Permission denied. Check the path and its permissions.\n"
    assert capsys.readouterr().err == message


def test_a_path_that_no_file_system_takes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*: File name too long"):
        data.load(str(tmp_path / ("a" * 300)))


def test_too_few_classes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 6 class folders with images; found 0"):
        data.load(str(tmp_path))


def test_size_and_colour_are_options(photos: Path) -> None:
    small = data.load(str(photos))
    lazy = data.load(str(photos), size=20, resize="crop")
    assert lazy.images[:2].shape == (2, 20, 20, 3)
    assert lazy.labels.tolist() == small.labels.tolist()
    same = data.load(str(photos), size=32, colour=False)
    assert np.array_equal(same.images[:], pixels_of(small))


def test_a_run_on_photos_in_colour(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    data.add("mine", photos)
    sets = [
        "data.name=mine",
        "steps=2",
        "eval_every=1",
        "sampler.batch_size=4",
        "sampler.per_class=2",
        "model.channels=3",
    ]
    options = [word for each in sets for word in ("--set", each)]
    assert main(["train", "--out", str(tmp_path / "run"), "--progress", "none", "--json", *options]) == 0
    assert '"test"' in capsys.readouterr().out
