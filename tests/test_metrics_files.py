"""Embeddings from files of every format give the same metrics, and bad files are refused in plain words."""

from __future__ import annotations

import csv
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nearfield.errors import InputError
from nearfield.metrics import retrieval_metrics
from nearfield.metrics.from_files import evaluate_files

POINTS = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)
LABELS = np.arange(12) % 4
KNOWN = retrieval_metrics(POINTS, LABELS, metrics=("recall", "map"))
HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None


def write_csv(path: Path, names: list[str] | None, rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([names, *rows] if names else rows)
    return path


def evaluate(path: Path, labels: Path | None = None, **options: object) -> dict[str, float]:
    return evaluate_files(path, labels, metrics=("recall", "map"), **options)  # type: ignore[arg-type]


def test_every_format_gives_the_same_metrics(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", POINTS)
    np.save(tmp_path / "y.npy", LABELS)
    np.savez(tmp_path / "both.npz", features=POINTS, labels=LABELS, paths=np.array(["a"] * 12))
    np.savez(tmp_path / "y.npz", LABELS)
    save_file({"embeddings": torch.tensor(POINTS), "labels": torch.tensor(LABELS)}, tmp_path / "both.safetensors")
    (tmp_path / "y.txt").write_text("\n".join(f"class {label}" for label in LABELS))
    rows = [[f"img{i}", *POINTS[i].tolist(), LABELS[i]] for i in range(12)]
    write_csv(tmp_path / "both.csv", ["id", "d0", "d1", "d2", "d3", "label"], rows)
    write_csv(tmp_path / "plain.csv", None, [row[1:-1] for row in rows])
    write_csv(tmp_path / "y.csv", ["label"], [[row[-1]] for row in rows])
    for embeddings in ("x.npy", "both.npz", "both.safetensors", "both.csv", "plain.csv"):
        for labels in ("y.npy", "y.npz", "y.txt", "y.csv", "both.csv", "both.npz"):
            assert evaluate(tmp_path / embeddings, tmp_path / labels) == pytest.approx(KNOWN)
    for both in ("both.npz", "both.safetensors", "both.csv"):
        assert evaluate(tmp_path / both) == pytest.approx(KNOWN)
    against = evaluate(tmp_path / "both.npz", gallery=tmp_path / "x.npy", gallery_labels=tmp_path / "y.npy")
    assert against == retrieval_metrics(
        POINTS, LABELS, gallery=POINTS, gallery_labels=LABELS, metrics=("recall", "map")
    )


def test_scores_of_every_query_are_written(tmp_path: Path) -> None:
    labels = [f"{label}, bird" for label in LABELS[:11]] + ["alone"]
    rows = [[i + 100, label, *POINTS[i].tolist()] for i, label in enumerate(labels)]
    source = write_csv(tmp_path / "x.csv", ["id", "label", "a", "b", "c", "d"], rows)
    target = tmp_path / "new" / "scores.csv"
    evaluate(source, per_query=target)
    with target.open(newline="") as stream:
        found = list(csv.DictReader(stream))
    _, known = retrieval_metrics(POINTS, labels, metrics=("recall", "map"), per_query=True)
    assert [row["id"] for row in found] == [str(i + 100) for i in range(12)]
    assert [row["label"] for row in found] == labels
    assert [row["matches"] for row in found] == [str(count) for count in known.relevant.tolist()]
    assert [float(row["map"]) for row in found[:11]] == pytest.approx(known.scores["map"].tolist()[:11])
    assert found[11]["map"] == ""


def labelled_rows() -> list[list[object]]:
    """The label first, hundreds of times as large as any dimension."""
    return [[1000 * int(label), *point.tolist()] for point, label in zip(POINTS, LABELS, strict=True)]


@pytest.mark.parametrize("name", ["label", "Label", " LABELS", "\ufefflabel", "\ufeffid", "ID"])
def test_a_label_or_id_is_no_dimension_whatever_its_case_or_byte_order_mark(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "y.npy", LABELS)
    rows = [[i, *row[1:]] if "id" in name.lower() else row for i, row in enumerate(labelled_rows())]
    table = write_csv(tmp_path / "x.csv", [name, "d0", "d1", "d2", "d3"], rows)
    known = retrieval_metrics(POINTS, LABELS, metrics=("recall", "map"), distance="euclidean")
    assert evaluate(table, tmp_path / "y.npy", distance="euclidean") == pytest.approx(known)
    if "label" in name.lower():
        assert evaluate(table, distance="euclidean") == pytest.approx(known)


@pytest.mark.parametrize(
    "name", ["class", "Class", "class_id", "className", "target", "Category", "index", "", "Unnamed: 0", "image path"]
)
def test_columns_that_are_no_dimensions_are_refused(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "y.npy", LABELS)
    table = write_csv(tmp_path / "x.csv", [name, "d0", "d1", "d2", "d3"], labelled_rows())
    with pytest.raises(InputError, match=re.escape(f"every column of {table} but label and id is read as a dimension")):
        evaluate(table, tmp_path / "y.npy")


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    marked = [[f"\ufeff{POINTS[0, 0]}", *POINTS[0, 1:].tolist()], *POINTS[1:].tolist()]
    (tmp_path / "y.txt").write_text("\ufeff" + "\n".join(str(label) for label in LABELS))
    assert evaluate(write_csv(tmp_path / "x.csv", None, marked), tmp_path / "y.txt") == pytest.approx(KNOWN)


def test_a_file_of_labels_may_hold_other_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", POINTS)
    rows = [[i, f"{i}.jpg", label] for i, label in enumerate(LABELS)]
    assert evaluate(tmp_path / "x.npy", write_csv(tmp_path / "y.csv", ["index", "path", "label"], rows)) == KNOWN
    with pytest.raises(InputError, match="must have one column `label`; got 'label', 'Labels'"):
        evaluate(tmp_path / "x.npy", write_csv(tmp_path / "z.csv", ["label", "Labels"], [[0, 1]] * 12))


@pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is not installed")
def test_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"embedding": POINTS.tolist(), "label": LABELS}), tmp_path / "lists.parquet")
    columns = {f"d{k}": POINTS[:, k] for k in range(4)}
    pq.write_table(pa.table({**columns, "label": LABELS.astype(str)}), tmp_path / "columns.parquet")
    for name in ("lists", "columns"):
        target = tmp_path / f"{name}_scores.parquet"
        assert evaluate(tmp_path / f"{name}.parquet", per_query=target) == pytest.approx(KNOWN)
        assert pq.read_table(target).column("matches").to_pylist() == [2] * 12
    pq.write_table(pa.table({**columns, "Class": LABELS}), tmp_path / "odd.parquet")
    with pytest.raises(InputError, match="'Class' looks like something else"):
        evaluate(tmp_path / "odd.parquet", tmp_path / "lists.parquet")


@pytest.mark.skipif(HAS_PYARROW, reason="pyarrow is installed")
def test_parquet_names_the_extra_it_needs(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=re.escape("pip install 'nearfield[parquet]'")):
        evaluate(tmp_path / "x.parquet")
    np.savez(tmp_path / "x.npz", embeddings=POINTS, labels=LABELS)
    with pytest.raises(InputError, match="requires pyarrow"):
        evaluate(tmp_path / "x.npz", per_query=tmp_path / "scores.parquet")


def test_bad_files_are_refused_in_plain_words(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", POINTS)
    np.save(tmp_path / "y.npy", LABELS)
    np.save(tmp_path / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    (tmp_path / "broken.npz").write_bytes(b"PK not really")
    with (tmp_path / "huge.npy").open("wb") as stream:  # a header that claims more than any memory
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (1 << 45, 9)})
    (tmp_path / "broken.safetensors").write_bytes(b"1234567890")
    (tmp_path / "empty.csv").write_text("")
    write_csv(tmp_path / "ragged.csv", ["a", "b"], [[1, 2], [3]])
    write_csv(tmp_path / "words.csv", ["a", "b", "label"], [[1, "x", 2]])
    write_csv(tmp_path / "twice.csv", ["id", "label", "a"], [[7, 0, 1], [7, 0, 2], [8, 1, 3]])
    for path, message in (
        ("none.npy", "is not a file; check the path"),
        ("x.mat", "must end in one of .npy, .npz, .csv"),
        ("x.npy", "labels must be given, because"),
        ("y.npy", "must hold a matrix of embeddings; got none"),
        ("objects.npy", "cannot be read as .npy"),
        ("broken.npz", "cannot be read as .npz"),
        ("huge.npy", "cannot be read as .npy: Unable to allocate"),
        ("broken.safetensors", "cannot be read as .safetensors"),
        ("empty.csv", "must hold at least one row"),
        ("ragged.csv", "cannot be read as .csv"),
        ("words.csv", "cannot be read as .csv"),
        ("twice.csv", "must hold each id once; got 7 2 times"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            evaluate(tmp_path / path)
    with pytest.raises(InputError, match="gallery_labels requires gallery"):
        evaluate(tmp_path / "x.npy", tmp_path / "y.npy", gallery_labels=tmp_path / "y.npy")
    with pytest.raises(InputError, match=r"per_query must end in \.csv or \.parquet"):
        evaluate(tmp_path / "x.npy", tmp_path / "y.npy", per_query=tmp_path / "scores.txt")
    with pytest.raises(InputError, match="must hold one label per item"):
        evaluate(tmp_path / "x.npy", tmp_path / "x.npy")
