"""Images in training and in test: identical and nearly identical ones are found, others are not."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import pixels_of
from PIL import Image

from nearfield import data
from nearfield.cli.main import main
from nearfield.data import Dataset, leaks
from nearfield.data.leaks import Leak, find_leaks
from nearfield.errors import InputError


def photograph(seed: int) -> Image.Image:
    """Something as smooth as a photograph."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((80, 60), Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight classes of three: 0 to 3 train, 4 to 7 test; three of the test images are of training images."""
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    for label in range(8):
        (tmp_path / "photos" / f"{label}").mkdir(parents=True)
        for number in range(3):
            photograph(10 * label + number).save(tmp_path / "photos" / f"{label}" / f"{number}.png")
    photograph(0).save(tmp_path / "photos" / "4" / "0.bmp")  # the same pixels in another file
    photograph(11).resize((41, 30)).save(tmp_path / "photos" / "5" / "3.jpg", quality=60)
    photograph(22).convert("L").point(lambda v: v * 0.9).save(tmp_path / "photos" / "7" / "3.png")
    photograph(70).save(tmp_path / "photos" / "6" / "3.png")  # twice in the test part is no leak
    return tmp_path / "photos"


def names(dataset: Dataset, found: list[Leak]) -> set[tuple[str, str, bool]]:
    paths = dataset.images.files.paths  # type: ignore[union-attr]
    return {(paths[leak.train_row], paths[leak.test_row], leak.distance is None) for leak in found}


def test_copies_are_found_and_nothing_else(photos: Path) -> None:
    dataset = data.load(str(photos), size=8)
    expected = {("0/0.png", "4/0.bmp", True), ("1/1.png", "5/3.jpg", False), ("2/2.png", "7/3.png", False)}
    assert names(dataset, find_leaks(dataset)) == expected
    assert names(dataset, find_leaks(data.resplit(dataset, [0, 1, 4, 5], [2, 3, 6, 7]), 0)) == set()


def test_they_are_listed(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.add("photos", photos)
    assert main(["data", "leaks", "photos", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["kind"] == "identical" for row in listed] == [True, False, False]
    assert listed[0]["train"].endswith("0.png")
    assert listed[0]["test"].endswith("0.bmp")
    assert main(["data", "leaks", "photos"]) == 0
    assert "photos: 3 pairs of identical or nearly identical train and test images" in capsys.readouterr().out
    assert main(["data", "leaks", "photos", "--distance", "40"]) == 2
    assert "distance must be in 0..31 bits; got 40" in capsys.readouterr().err


def test_arrays_and_features() -> None:
    digits = data.load("digits")
    images = pixels_of(digits).copy()
    train, test = digits.train_rows(), digits.test_rows()
    images[test[5]] = images[train[9]]
    copied = replace(digits, images=images)
    assert Leak(int(train[9]), int(test[5]), None) in find_leaks(copied, 0)
    features = replace(digits, images=images.reshape(len(images), -1).astype(np.float32))
    assert find_leaks(features) == [Leak(int(train[9]), int(test[5]), None)]
    assert find_leaks(replace(features, images=pixels_of(digits).reshape(len(images), -1).astype(np.float32))) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 31), st.integers(1, 25), st.integers(1, 25))
def test_every_near_pair_is_found_once(seed: int, distance: int, a: int, b: int) -> None:
    rng = np.random.default_rng(seed)
    train = rng.random((a, leaks.BITS)) < 0.5
    test = train[rng.integers(0, a, b)] ^ (rng.random((b, leaks.BITS)) < rng.choice([0.0, 0.05, 0.15]))
    found = list(leaks.near_pairs(train, test, distance))
    differing = (train[:, None] != test[None]).sum(axis=2)
    expected = [(i, j, int(differing[i, j])) for i in range(a) for j in range(b) if differing[i, j] <= distance]
    assert sorted(found) == expected


def test_the_hash_survives_compression_and_tells_photographs_apart() -> None:
    hashes = []
    for seed in range(30):
        image = photograph(seed)
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=40)
        buffer.seek(0)
        one, two = (leaks.difference_hash(np.asarray(p)) for p in (image, Image.open(buffer)))
        assert (one != two).sum() <= leaks.DISTANCE
        hashes.append(one)
    differing = (np.stack(hashes)[:, None] != np.stack(hashes)[None]).sum(axis=2)
    assert differing[np.triu_indices(30, 1)].min() > leaks.DISTANCE


def test_progress_is_reported() -> None:
    seen: list[int] = []
    find_leaks(data.load("digits"), 0, lambda done, total: seen.append(done))
    assert seen[-1] == 1797
    with pytest.raises(InputError, match="distance"):
        find_leaks(data.load("digits"), -1)


@pytest.mark.slow
def test_the_real_cub_has_a_photograph_in_both_halves(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path))
    dataset = data.add("cub", real_data / "CUB_200_2011", quick=True)
    found = names(dataset, find_leaks(dataset))
    train = "022.Chuck_will_Widow/Chuck_Will_Widow_0042_796983.jpg"
    assert found == {(train, "105.Whip_poor_Will/Whip_Poor_Will_0002_796427.jpg", False)}
