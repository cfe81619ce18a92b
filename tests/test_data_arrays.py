"""Arrays as data: features, images that are decoded already, and the packed Omniglot."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from narrow import pixels_of

from nearfield import data
from nearfield.errors import InputError


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NEARFIELD_DATA", raising=False)
    return tmp_path / "cache"


X = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
Y = np.repeat(np.arange(1, 9), 3)


def test_features_in_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=X.astype(np.float16), labels=Y, paths=np.array(["a"] * 24))
    dataset = data.load(str(tmp_path / "x.npz"))
    assert dataset.are_features
    assert pixels_of(dataset).dtype == np.float16
    assert dataset.class_names == tuple("12345678")
    assert dataset.train_classes.tolist() == [0, 1, 2, 3]
    np.savez(tmp_path / "y.npz", embeddings=X, labels=Y, split=np.where(Y < 3, "test", "train"), category=Y % 2)
    other = data.load(str(tmp_path / "y.npz"))
    assert other.test_classes.tolist() == [0, 1]
    assert other.category_names == ("0", "1")
    assert other.fingerprint != dataset.fingerprint


def test_features_in_an_npy_with_labels_beside(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(InputError, match=r"has no labels: put x_labels.npy or labels.npy into the same folder"):
        data.load(str(tmp_path / "x.npy"))
    np.save(tmp_path / "labels.npy", Y)
    assert data.load(str(tmp_path / "x.npy")).labels.tolist() == (Y - 1).tolist()
    np.save(tmp_path / "x_labels.npy", Y[::-1])
    assert data.load(str(tmp_path / "x.npy")).labels.tolist() == (8 - Y).tolist()


def test_images_in_an_npz(tmp_path: Path) -> None:
    images = np.arange(24 * 4 * 4 * 3, dtype=np.uint8).reshape(24, 4, 4, 3)
    np.savez(tmp_path / "x.npz", images=images, labels=Y)
    assert data.load(str(tmp_path / "x.npz")).summary()["image_size"] == "4x4 RGB"
    with pytest.raises(InputError, match=r"size cannot be set for .*: its images are arrays, not files"):
        data.load(str(tmp_path / "x.npz"), size=8)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"features": X}, "must hold labels and exactly one of features, embeddings, images; found features"),
        ({"labels": Y}, "must hold labels and exactly one of"),
        ({"features": X, "embeddings": X, "labels": Y}, "must hold labels and exactly one of"),
        ({"features": X[:5], "labels": Y}, "one label for each image; got 24 labels for 5"),
        ({"features": X.astype(int), "labels": Y}, r"float matrix \(N, F\); got int64"),
        ({"features": X * np.nan, "labels": Y}, "finite"),
        ({"images": X, "labels": np.zeros(24)}, "at least 6 classes; got 1"),
        ({"features": X, "labels": Y, "split": Y[:3]}, "split must have 24 entries; got 3"),
        ({"features": X, "labels": Y, "is_query": Y[:3] > 0}, "is_query must be a bool array"),
        ({"features": np.array([{}]), "labels": Y}, "cannot be read"),
    ],
)
def test_what_is_wrong_with_arrays_is_named(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=words):
        data.load(str(tmp_path / "x.npz"))


def test_a_file_that_is_no_array(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read"):
        data.load(str(tmp_path / "x.npz"))
    with pytest.raises(InputError, match="does not exist"):
        data.load(str(tmp_path / "none.npz"))


def header_of(shape: tuple[int, ...]) -> bytes:
    """An .npy file that claims to hold `shape`, and holds nothing."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_a_header_that_claims_more_than_any_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    np.save(tmp_path / "labels.npy", Y)
    if path.suffix == ".npy":
        path.write_bytes(header_of((1 << 45, 5)))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("features.npy", header_of((1 << 45, 5)))
    with pytest.raises(InputError, match=r"x.np. cannot be read as .np.: Unable to allocate"):
        data.load(str(path))


def saved(write: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    stream = io.BytesIO()
    write(stream, *arrays, **named)
    return stream.getvalue()


FILES = {
    "x.npz": saved(np.savez, features=X, labels=Y),
    "compressed.npz": saved(np.savez_compressed, features=X, labels=Y),
    "x.npy": saved(np.save, X),
}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    st.integers(0, 2000),
)
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::UserWarning")
def test_damage_is_an_input_error_or_harmless(
    tmp_path: Path, name: str, changes: list[tuple[int, int]], length: int
) -> None:
    content = bytearray(FILES[name])
    for place, value in changes:
        content[place % (150 if name == "x.npy" else len(content))] = value  # an array's numbers may be anything
    (tmp_path / name).write_bytes(content[:length])
    np.save(tmp_path / "labels.npy", Y)
    with suppress(InputError):
        data.load(str(tmp_path / name))


def test_the_real_features_of_cub(real_data: Path) -> None:
    path = real_data / "cub200_efficientnet_lite0_224.npz"
    if not path.is_file():
        pytest.skip("NEARFIELD_DATA has no features of CUB")
    dataset = data.load(str(path))
    assert pixels_of(dataset).shape == (11788, 1280)
    assert (len(dataset.train_rows()), len(dataset.test_rows())) == (5864, 5924)


# Omniglot


def packed_omniglot(path: Path) -> np.ndarray:
    """Six characters of three alphabets, four drawers each; returns the ink (24, 105, 105)."""
    ink = (np.random.default_rng(0).random((24, 105, 105)) < 0.2).astype(np.uint8)
    np.savez(
        path,
        bits=np.packbits(ink.reshape(6, 4, -1), axis=-1),
        shape=np.array([105, 105]),
        class_alphabet=np.array([0, 0, 1, 1, 2, 2], dtype=np.int16),
        class_character=np.array([1, 2, 1, 2, 1, 2], dtype=np.int16),
        alphabet_names=np.array(["Old_Norse", "Greek", "Tagalog"]),
        alphabet_is_background=np.array([True, False, True]),
    )
    return ink


def test_omniglot_is_split_by_alphabets_and_shrunk_by_area(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="set NEARFIELD_DATA to the folder"):
        data.load("omniglot")
    ink = packed_omniglot(tmp_path / "omniglot.npz")
    monkeypatch.setenv("NEARFIELD_DATA", str(tmp_path))
    assert "omniglot" in data.names()
    dataset = data.load("omniglot")
    assert pixels_of(dataset).shape == (24, 28, 28)
    assert dataset.category_names == ("Old Norse", "Greek", "Tagalog")
    assert dataset.class_names[0] == "Old Norse 1"
    assert dataset.train_classes.tolist() == [0, 1, 4, 5]
    exact = 255 * (1 - ink.reshape(24, 35, 3, 35, 3).mean(axis=(2, 4)))
    assert np.abs(data.load("omniglot", size=35).images - exact).max() <= 0.5
    whole = pixels_of(data.load("omniglot", size=105))
    assert np.array_equal(whole, 255 * (1 - ink))
    for size in (28, 40):  # no ink is lost
        shrunk = pixels_of(data.load("omniglot", size=size))
        assert abs((255 - shrunk.astype(float)).mean() - 255 * ink.mean()) < 0.2
    with pytest.raises(InputError, match=r"size must be in 1\.\.105"):
        data.load("omniglot", size=106)
    with pytest.raises(InputError, match="colour cannot be set"):
        data.load("omniglot", colour=True)


def test_omniglot_can_be_added(tmp_path: Path) -> None:
    packed_omniglot(tmp_path / "somewhere.npz")
    data.add("omniglot", tmp_path / "somewhere.npz")
    assert pixels_of(data.load("omniglot", size=35)).shape == (24, 35, 35)
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(InputError, match="is not the packed Omniglot"):
        data.add("omniglot", tmp_path / "other.npz")


def test_the_real_omniglot(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (real_data / "omniglot.npz").is_file():
        pytest.skip("NEARFIELD_DATA has no omniglot.npz")
    monkeypatch.setenv("NEARFIELD_DATA", str(real_data))
    dataset = data.load("omniglot")
    assert pixels_of(dataset).shape == (32460, 28, 28)
    assert len(dataset.category_names) == 50
    assert [len(np.unique(dataset.class_category[c])) for c in (dataset.train_classes, dataset.test_classes)] == [
        30,
        20,
    ]
    assert (len(dataset.train_classes), len(dataset.test_classes)) == (964, 659)
