"""What a Dataset promises, the names that are known, and contact sheets."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from narrow import pixels_of
from PIL import Image

from nearfield import data
from nearfield.data import Dataset, dataset
from nearfield.errors import InputError


def toy(**changes: object) -> Dataset:
    fields: dict[str, object] = {
        "name": "toy",
        "images": np.zeros((6, 2, 3), dtype=np.uint8),
        "labels": np.array([0, 0, 1, 2, 2, 2]),
        "class_names": ("a", "b", "c"),
        "class_category": np.array([0, 0, 1]),
        "category_names": ("x", "y"),
        "train_classes": np.array([0, 2]),
        "test_classes": np.array([1]),
        "fingerprint": "0",
        "description": "",
    }
    return Dataset(**(fields | changes))  # type: ignore[arg-type]


# Dataset


def test_rows_and_counts() -> None:
    dataset = toy()
    assert dataset.indices_of([2, 0]).tolist() == [0, 1, 3, 4, 5]
    assert dataset.indices_of([]).tolist() == []
    summary = dataset.summary()
    assert (summary["images"], summary["classes"], summary["categories"]) == (6, 3, 2)
    assert [summary[f"images_per_class_{which}"] for which in ("min", "median", "max")] == [1, 2.0, 3]
    assert (summary["train_images"], summary["test_images"], summary["image_size"]) == (5, 1, "2x3")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": np.zeros((6, 2, 3))}, r"images .*uint8.*float64"),
        ({"images": np.zeros((6, 6), dtype=np.uint8)}, r"images .*\(6, 6\)"),
        ({"labels": np.array([0, 1, 2])}, r"labels must have 6 entries; got 3"),
        ({"labels": np.array([0, 0, 1, 2, 2, 3])}, r"labels must be in 0\.\.2; got values from 0 to 3"),
        ({"labels": np.array([0, 0, 1, 2, 2, 2], dtype=np.int32)}, r"labels .*int64.*int32"),
        ({"class_category": np.array([0, 0, -1])}, r"class_category must be in 0\.\.1"),
        ({"test_classes": np.array([1, 2])}, r"disjoint; got class 2 twice"),
        ({"train_classes": np.array([0])}, r"cover all 3 classes; got 2"),
    ],
)
def test_a_wrong_dataset_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        toy(**changes)


def test_features_and_colours_are_images_too() -> None:
    assert toy(images=np.zeros((6, 4), dtype=np.float16)).summary()["image_size"] == "4 features"
    assert toy(images=np.zeros((6, 4), dtype=np.float32)).are_features
    assert toy(images=np.zeros((6, 2, 3, 3), dtype=np.uint8)).summary()["image_size"] == "2x3 RGB"
    with pytest.raises(InputError, match="row 2 has a NaN"):
        toy(images=np.where(np.arange(12).reshape(6, 2) == 5, np.nan, 0.0))


CLOSED = {"train_classes": np.array([0, 1, 2]), "test_classes": np.array([0, 2])}


def test_a_closed_set_is_split_by_images() -> None:
    dataset = toy(**CLOSED, is_test=np.array([0, 1, 0, 0, 1, 1], dtype=bool))
    assert dataset.train_rows().tolist() == [0, 2, 3]
    assert dataset.train_rows([0, 2]).tolist() == [0, 3]
    assert dataset.test_rows().tolist() == [1, 4, 5]
    assert dataset.summary()["shared_classes"] == 2
    with pytest.raises(InputError, match="the test images by is_test must be exactly test_classes"):
        toy(**CLOSED, is_test=np.array([0, 1, 0, 0, 0, 0], dtype=bool))
    with pytest.raises(InputError, match="disjoint"):
        toy(**CLOSED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_query": [2]}, "together"),
        ({"is_query": [2], "is_gallery": [0]}, "test images only; row 0"),
        ({"is_query": [2], "is_gallery": []}, "each mark at least one"),
    ],
)
def test_queries_and_gallery_are_test_images(changes: dict[str, list[int]], words: str) -> None:
    flags = {name: np.isin(np.arange(6), rows) for name, rows in changes.items()}
    with pytest.raises(InputError, match=words):
        toy(**flags)
    with pytest.raises(InputError, match=r"is_query must be a bool array of shape \(6,\)"):
        toy(is_query=np.zeros(6))


def test_unknown_classes_are_refused() -> None:
    with pytest.raises(InputError, match=r"classes must be in 0\.\.2; got values from 0 to 3"):
        toy().indices_of([0, 3])


@given(st.sets(st.integers(0, 10_000), min_size=4, max_size=60), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_a_split_is_disjoint_complete_and_repeatable(classes: set[int], fraction: float, seed: int) -> None:
    kept, held = data.split_classes(sorted(classes), fraction, seed)
    assert not set(kept.tolist()) & set(held.tolist())
    assert set(kept.tolist()) | set(held.tolist()) == classes
    assert len(kept) > 1
    assert len(held) == min(max(round(fraction * len(classes)), 2), len(classes) - 2)
    again = data.split_classes(sorted(classes, reverse=True), fraction, seed)
    assert dataset.split_fingerprint(kept, held) == dataset.split_fingerprint(*again)


def test_split_seeds_differ_and_nonsense_is_refused() -> None:
    assert data.split_classes(range(50), 0.5, 0)[1].tolist() != data.split_classes(range(50), 0.5, 1)[1].tolist()
    with pytest.raises(InputError, match=r"fraction .*1\.0"):
        data.split_classes(range(4), 1.0, 0)
    with pytest.raises(InputError, match=r"classes .*got 1"):
        data.split_classes([7, 7], 0.5, 0)


def test_split_fingerprints_know_where_a_list_ends() -> None:
    assert dataset.split_fingerprint([1, 2], [3]) != dataset.split_fingerprint([1], [2, 3])
    assert dataset.split_fingerprint([1, 2]) == dataset.split_fingerprint(np.array([1, 2], dtype=np.int32))


@pytest.mark.parametrize("part", ["content", "labels", "train_classes"])
def test_the_fingerprint_covers_pixels_labels_and_split(part: str) -> None:
    parts = {
        "content": np.zeros((4, 2, 2), dtype=np.uint8),
        "labels": np.array([0, 0, 1, 1]),
        "train_classes": np.array([0]),
        "test_classes": np.array([1]),
    }
    before = dataset.fingerprint(**parts)
    parts[part].flat[0] += 1
    assert dataset.fingerprint(**parts) != before


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path))
    assert data.cache_dir() == tmp_path
    monkeypatch.delenv("NEARFIELD_CACHE")
    assert data.cache_dir().name == "nearfield"


# The registry


def test_names_and_unknown_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path))
    monkeypatch.delenv("NEARFIELD_DATA", raising=False)
    assert data.names() == ["digits", "glyphs"]
    with pytest.raises(InputError, match="unknown dataset 'glyph'; did you mean 'glyphs'"):
        data.load("glyph")


def test_importing_the_package_is_light() -> None:
    code = """
import sys, nearfield
before = set(sys.modules)
import nearfield.data
new = {name.split(".")[0] for name in set(sys.modules) - before}
assert not new & {"torch", "matplotlib", "sklearn"}, new
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_digits() -> None:
    digits = data.load("digits")
    assert pixels_of(digits).shape == (1797, 8, 8)
    assert (pixels_of(digits).min(), pixels_of(digits).max()) == (0, 255)
    assert digits.train_classes.tolist() == [0, 1, 2, 3, 4]
    assert digits.test_classes.tolist() == [5, 6, 7, 8, 9]


# The contact sheet


def test_a_contact_sheet_is_a_readable_image(tmp_path: Path) -> None:
    whole = data.load("digits")
    path = tmp_path / "sheet.png"
    data.contact_sheet(whole, path, classes=5, per_class=4, seed=1)
    with Image.open(path) as sheet:
        assert sheet.format == "PNG"
        pixels = np.asarray(sheet.convert("L"))
    assert pixels.shape[0] > 5 * 64
    assert pixels.shape[1] > 4 * 64
    names, images = pixels[:, :260], pixels[:, 280:]
    assert (names < 128).any()
    assert images.std() > 20
    data.contact_sheet(whole, tmp_path / "again.png", classes=5, per_class=4, seed=1)
    assert (tmp_path / "again.png").read_bytes() == path.read_bytes()


def test_a_contact_sheet_of_little_data(tmp_path: Path) -> None:
    dataset = replace(toy(), class_names=("a", "b " * 90, "c"))
    data.contact_sheet(dataset, tmp_path / "toy.png")
    assert (tmp_path / "toy.png").stat().st_size > 0
    with pytest.raises(InputError, match="classes and per_class must be at least 1; got 0 and 8"):
        data.contact_sheet(dataset, tmp_path / "none.png", classes=0)
