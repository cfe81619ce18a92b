"""Anybody's data: tables, Hugging Face folders, and names given to any data."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nearfield import data
from nearfield.cli.main import main
from nearfield.data import Dataset, Pictures, catalog
from nearfield.errors import InputError, RunError


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NEARFIELD_DATA", raising=False)
    return tmp_path / "cache"


X = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
Y = np.repeat(np.arange(1, 9), 3)


def write_image(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (9, 12, 3), dtype=np.uint8)).save(path)


Rows = list[dict[str, str]]


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """Eight labels of three images below `tables/`, labels and names not in order and not ASCII."""
    made = []
    for number in range(24):
        label = f"{10 - number % 8}"
        path = f"bílder/{number:02d}.png"
        write_image(tmp_path / "tables" / path, number)
        made.append({"path": path, "label": label})
    return made


def table(tmp_path: Path, rows: Rows, name: str = "list.csv") -> Path:
    path = tmp_path / "tables" / name
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


# Tables


def test_a_table_is_a_dataset(tmp_path: Path, rows: Rows) -> None:
    dataset = data.load(str(table(tmp_path, rows)))
    assert dataset.class_names == ("3", "4", "5", "6", "7", "8", "9", "10")  # as numbers
    assert dataset.train_classes.tolist() == [0, 1, 2, 3]
    assert [dataset.class_names[label] for label in dataset.labels] == [row["label"] for row in rows]
    assert isinstance(dataset.images, Pictures)
    assert dataset.images.looks == "256x256 RGB"
    assert data.load(str(table(tmp_path, rows)), size=20, colour=False, resize="crop").images[0].shape == (20, 20)


def test_words_are_sorted_as_words(tmp_path: Path, rows: Rows) -> None:
    named = [{**row, "label": f"class {row['label']}"} for row in rows]
    assert data.load(str(table(tmp_path, named))).class_names[:2] == ("class 10", "class 3")


def test_a_table_with_a_split_and_categories(tmp_path: Path, rows: Rows) -> None:
    for row in rows:
        row["split"] = "test" if int(row["label"]) < 5 else "train"
        row["category"] = "even" if int(row["label"]) % 2 == 0 else "odd"
    dataset = data.load(str(table(tmp_path, rows)))
    assert [dataset.class_names[c] for c in dataset.test_classes] == ["3", "4"]
    assert dataset.is_test is None
    assert dataset.category_names == ("even", "odd")
    assert dataset.class_category.tolist() == [1, 0] * 4


def test_a_split_that_shares_classes_is_a_closed_set(tmp_path: Path, rows: Rows) -> None:
    for number, row in enumerate(rows):
        row["split"] = "test" if number < 8 else "train"
    dataset = data.load(str(table(tmp_path, rows)))
    assert dataset.test_rows().tolist() == list(range(8))
    assert dataset.train_rows().tolist() == list(range(8, 24))


def test_a_table_with_queries_and_a_gallery(tmp_path: Path, rows: Rows) -> None:
    for number, row in enumerate(rows):
        row["split"] = "test" if int(row["label"]) < 5 else "train"
        test = row["split"] == "test"
        row["is_query"], row["is_gallery"] = str(int(test and number < 8)), str(test and number >= 8)
    dataset = data.load(str(table(tmp_path, rows)))
    assert dataset.is_query is not None
    assert dataset.is_gallery is not None
    assert (dataset.is_query.sum(), dataset.is_gallery.sum()) == (2, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: [{"path": r["path"]} for r in rows], "must have the columns path, label; found path"),
        (
            lambda rows: [{**r, "spilt": "train"} for r in rows],
            "unknown column 'spilt'; did you mean 'split'",
        ),
        (lambda rows: [*rows, {"path": "", "label": "3"}], "row 25: path must not be empty"),
        (lambda rows: [*rows, rows[0]], r"each image once; found bílder/00.png 2 times"),
        (
            lambda rows: [*rows, {"path": "none.png", "label": "3"}],
            r"missing images: 1 of 25, the first is none.png",
        ),
        (lambda rows: [{**r, "split": "val"} for r in rows], "split must be train or test .* got 'val'"),
        (lambda rows: [{**r, "split": "train"} for r in rows], "at least two classes for test; got 0"),
        (lambda rows: [{**r, "category": str(i)} for i, r in enumerate(rows)], "label '10' must have one category"),
        (lambda rows: [{**r, "is_query": "maybe"} for r in rows], "is_query must be 1 or 0, .*'maybe'"),
        (lambda rows: [r for r in rows if int(r["label"]) < 7], "at least 6 classes; got 4"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path: Path, rows: Rows, change, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=words):
        data.load(str(table(tmp_path, change(rows))))


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the table .*none.csv does not exist"):
        data.load(str(tmp_path / "none.csv"))
    (tmp_path / "a.csv").write_bytes(b"path,label\n\xff\xfe,1\n")
    with pytest.raises(InputError, match="cannot be read as CSV"):
        data.load(str(tmp_path / "a.csv"))
    (tmp_path / "b.csv").write_text("path,label\na,b,c\n")
    with pytest.raises(InputError, match="line 2: expected 2 columns; found 3"):
        data.load(str(tmp_path / "b.csv"))
    (tmp_path / "c.csv").write_text("")
    with pytest.raises(InputError, match="found none"):
        data.load(str(tmp_path / "c.csv"))


def test_a_column_must_not_be_there_twice(tmp_path: Path, rows: Rows) -> None:
    lines = table(tmp_path, rows).read_text(encoding="utf-8").splitlines()
    doubled = ["path,label, label", *(f"{line},{number}" for number, line in enumerate(lines[1:]))]
    (tmp_path / "tables" / "twice.csv").write_text("\n".join(doubled), encoding="utf-8")
    with pytest.raises(InputError, match=r"twice.csv has the column 'label' 2 times; keep one of them"):
        data.load(str(tmp_path / "tables" / "twice.csv"))


def test_a_parquet_table(tmp_path: Path, rows: Rows) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    from pyarrow import parquet

    numbers: list[dict[str, Any]] = [{**row, "label": int(row["label"]), "split": "train"} for row in rows]
    for row in numbers[:16]:
        row["split"] = "test" if row["label"] > 6 else "train"
    expected = data.load(str(table(tmp_path, [{k: str(v) for k, v in row.items()} for row in numbers])))
    parquet.write_table(pyarrow.Table.from_pylist(numbers), tmp_path / "tables" / "list.parquet")
    found = data.load(str(tmp_path / "tables" / "list.parquet"))
    assert found.fingerprint == expected.fingerprint
    twice = pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 3, names=["path", "label", "label"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(InputError, match=r"twice.parquet has the column 'label' 2 times"):
        data.load(str(tmp_path / "twice.parquet"))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        data.load(str(tmp_path / "bad.parquet"))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r'pyarrow, which is not installed: pip install "nearfield\[parquet\]"\.'):
        data.load(str(tmp_path / "a.parquet"))


# Hugging Face


def test_a_folder_of_hugging_face_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    names = [f"n{i}" for i in range(8)]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    images = [Image.fromarray(np.full((5, 6, 3), i, dtype=np.uint8)) for i in range(24)]
    whole = datasets.Dataset.from_dict({"image": images, "label": (Y - 1).tolist()}, features=kinds)
    whole.save_to_disk(str(tmp_path / "one"))
    one = data.load(str(tmp_path / "one"))
    assert one.class_names == tuple(names)
    assert one.train_classes.tolist() == [0, 1, 2, 3]
    assert [int(one.images[i][0, 0, 0]) for i in (0, 23)] == [0, 23]
    parts = {"train": whole.select(range(0, 24, 2)), "test": whole.select(range(1, 24, 2))}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "two"))
    two = data.load(str(tmp_path / "two"), size=3)
    assert two.is_test is not None
    assert two.is_test.sum() == 12
    assert data.pixels(two).shape == (24, 3, 3, 3)
    added = data.add("hub", tmp_path / "two")
    assert added.fingerprint == two.fingerprint == data.load("hub").fingerprint


def test_a_hugging_face_folder_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(InputError, match=r'datasets, which is not installed: pip install "nearfield\[datasets\]"\.'):
        data.load(str(tmp_path))


# Names


def folder(tmp_path: Path, counts: list[int]) -> Path:
    for label, count in enumerate(counts):
        for number in range(count):
            write_image(tmp_path / "mine" / f"ñ{label}" / f"{number}.png", 100 * label + number)
    return tmp_path / "mine"


def test_a_folder_gets_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path, [2, 3, 2, 2, 2, 2])
    assert main(["data", "add", "mine", str(path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["name"], summary["images"]) == ("mine", 13)
    dataset = data.load("mine", size=16)
    assert dataset.images[:].shape == (13, 16, 16, 3)
    assert dataset.class_names[0] == "ñ0"
    assert dataset.fingerprint == data.load(str(path), size=16).fingerprint
    assert data.names() == ["digits", "glyphs", "mine"]


def test_an_array_gets_a_name_and_must_not_change(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=X, labels=Y)
    assert data.add("features", tmp_path / "x.npz").name == "features"
    assert data.verify(data.load("features")) == []
    np.savez(tmp_path / "x.npz", features=X + 1, labels=Y)
    with pytest.raises(InputError, match=r"x.npz has changed since it was added as features; add it again"):
        data.load("features")


def test_what_cannot_be_added_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    path = folder(tmp_path, [2, 1, 2, 2, 2, 1])
    with pytest.raises(InputError, match=r"(?s)class 'ñ1' has a single image; .*class 'ñ5' has a single image"):
        data.add("mine", path)
    write_image(path / "ñ1" / "1.png", 5)
    write_image(path / "ñ5" / "1.png", 6)
    broken = path / "ñ2" / "0.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(InputError, match=r"cannot be added:\n  cannot read the image .*0.png"):
        data.add("mine", path)
    with pytest.raises(InputError, match="does not exist"):
        data.add("mine", tmp_path / "none")
    assert data.names() == ["digits", "glyphs"]
    assert not list(cache.rglob("*.npz"))


@pytest.mark.parametrize("name", ["digits", "a/b", "x.csv", "..", "a b", ""])
def test_names_that_cannot_be_given(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name"):
        data.add(name, folder(tmp_path, [2] * 6))


def test_names_go_before_folders_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path, [2] * 6)
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(data.load("digits").labels) == 1797
    assert len(data.load("mine").labels) == 12  # a folder by its bare name
    path.rename(tmp_path / "cub")
    with pytest.raises(InputError, match="has not been added yet"):
        data.load("cub")
    assert len(data.load("./cub").labels) == 12


def test_a_damaged_registration(tmp_path: Path, cache: Path) -> None:
    data.add("mine", folder(tmp_path, [2] * 6))
    known = cache / "datasets" / "mine.npz"
    known.write_bytes(known.read_bytes()[:100])
    with pytest.raises(RunError, match=r"the record of the dataset mine is damaged: .* Add it again"):
        data.load("mine")
    assert len(data.add("mine", tmp_path / "mine").labels) == 12


def test_everything_survives_registration(tmp_path: Path, rows: Rows) -> None:
    for number, row in enumerate(rows):
        row["split"] = "test" if number < 16 else "train"
        row["is_query"], row["is_gallery"] = str(int(number < 8)), str(int(8 <= number < 16))
        row["category"] = str(int(row["label"]) % 3)
    path = table(tmp_path, rows)
    expected, found = data.load(str(path)), data.add("closed", path)
    for name in Dataset.__dataclass_fields__:
        if name not in ("name", "images", "test_lists"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert np.array_equal(found.images[:], expected.images[:])
    assert catalog.names() == ["closed", "digits", "glyphs"]


def test_every_extra_that_a_message_names_exists() -> None:
    root = Path(__file__).parents[1]
    source = "\n".join(path.read_text(encoding="utf-8") for path in (root / "src").rglob("*.py"))
    found = re.findall(r"nearfield\[(\w+)\]|missing_package\(.*\"(\w+)\"\)", source)
    named = {in_text or in_call for in_text, in_call in found}
    listed = re.search(r"(?s)\[project.optional-dependencies\]\n(.*?)\n\[", (root / "pyproject.toml").read_text())
    assert listed is not None
    assert {"datasets", "parquet"} <= named <= set(re.findall(r"(?m)^(\w+) = \[", listed[1]))
