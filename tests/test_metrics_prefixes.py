"""Embeddings that are cut short, and thresholds that suit all classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_metrics as reference

from nearfield.cli.main import main
from nearfield.errors import InputError
from nearfield.metrics import prefix_metrics, retrieval_metrics
from nearfield.metrics.prefixes import halves

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(10), 6)
POINTS = (RNG.standard_normal((10, 16))[LABELS] + RNG.standard_normal((60, 16))).astype(np.float32)
GALLERY, NAMES = POINTS[::2] + RNG.standard_normal((30, 16)).astype(np.float32), LABELS[::2]
ONLY: dict[str, Any] = {"metrics": ("recall", "map_at_r")}


def unit(x: Any) -> Any:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("own_gallery", [False, True])
def test_prefixes_are_normalised_again(own_gallery: bool) -> None:
    others: dict[str, Any] = {"gallery": GALLERY, "gallery_labels": NAMES} if own_gallery else {}
    found = prefix_metrics(POINTS, LABELS, (16, 4, 4, 9), **others, **ONLY)
    assert list(found) == [4, 9, 16]
    for d, scores in found.items():
        cut = {"gallery": unit(GALLERY[:, :d]), "gallery_labels": NAMES} if own_gallery else {}
        expected = retrieval_metrics(unit(POINTS[:, :d]), LABELS, **cut, distance="euclidean", **ONLY)
        assert scores == pytest.approx(expected)
    assert found[16] == retrieval_metrics(POINTS, LABELS, **others, **ONLY)


def test_halves_end_at_eight() -> None:
    assert halves(64) == (8, 16, 32, 64)
    assert halves(100) == (12, 25, 50, 100)
    assert halves(15) == (15,)
    assert halves(3) == (3,)


def test_wrong_prefixes_are_refused() -> None:
    for dims, message in (
        ((17,), "dims.*from 1 to 16; got 17"),
        ((0,), "got 0"),
        ((), "at least one"),
        ((2.5,), "2.5"),
    ):
        with pytest.raises(InputError, match=message):
            prefix_metrics(POINTS, LABELS, dims, **ONLY)  # type: ignore[arg-type]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", embeddings=POINTS, labels=LABELS)
    np.savez(tmp_path / "g.npz", embeddings=GALLERY, labels=NAMES)
    command = ["eval", str(tmp_path / "x.npz"), "--dims", "4", "16", "--metrics", "recall", "map_at_r"]
    assert main([*command, "--json"]) == 0
    expected = prefix_metrics(POINTS, LABELS, (4, 16), **ONLY)
    assert json.loads(capsys.readouterr().out) == [{"dims": d, "bytes": 4 * d, **expected[d]} for d in (4, 16)]
    assert main([*command, "--json", "--gallery", str(tmp_path / "g.npz")]) == 0
    against = prefix_metrics(POINTS, LABELS, (4, 16), GALLERY, NAMES, **ONLY)
    assert [row["recall@1"] for row in json.loads(capsys.readouterr().out)] == [s["recall@1"] for s in against.values()]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "bytes a vector" in shown
    assert f"{100 * expected[4]['map@r']:.2f} %" in shown
    assert main([*command, "--distance", "euclidean"]) == 2
    assert "--dims normalises each prefix" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ OPIS


@pytest.mark.parametrize("own_gallery", [False, True])
def test_opis_equals_the_slow_formula(own_gallery: bool) -> None:
    scores = reference.score_matrix(POINTS, GALLERY if own_gallery else POINTS, "cosine")
    expected = reference.opis(scores, LABELS, NAMES if own_gallery else None)
    others: dict[str, Any] = {"gallery": GALLERY, "gallery_labels": NAMES} if own_gallery else {}
    assert expected > 1e-3
    assert retrieval_metrics(POINTS, LABELS, metrics=("opis",), **others)["opis"] == pytest.approx(expected, abs=1e-9)


def test_opis_is_0_where_one_threshold_suits_all_and_grows_where_classes_differ() -> None:
    axes = np.eye(4)
    same = np.repeat(axes, 5, axis=0)
    labels = np.repeat(np.arange(4), 5)
    assert retrieval_metrics(same, labels, metrics=("opis",))["opis"] == 0
    noise = np.random.default_rng(1).standard_normal(same.shape)
    even, uneven = same + 0.3 * noise, same + np.where(labels < 2, 0.05, 0.8)[:, None] * noise
    first, second = (retrieval_metrics(x, labels, metrics=("opis",))["opis"] for x in (even, uneven))
    assert second > 2 * first


def test_opis_needs_a_class_with_both_kinds_of_pairs() -> None:
    """Of queries of two classes and a gallery of one, each class has one kind."""
    with pytest.raises(InputError, match="opis; no class has both"):
        retrieval_metrics(np.eye(2), [0, 1], gallery=np.ones((1, 2)), gallery_labels=[0], metrics=("opis",))


def test_opis_counts_classes_of_one_item_by_nothing() -> None:
    """They have no matching pair; a hamming code has few thresholds."""
    points, labels = np.concatenate([POINTS, POINTS[:1] * -1]), np.append(LABELS, 99)
    assert 0 <= retrieval_metrics(points, labels, metrics=("opis",))["opis"] <= 0.25
    assert 0 <= retrieval_metrics(points, labels, metrics=("opis",), distance="hamming")["opis"] <= 0.25
    with pytest.raises(InputError, match="verification; one kind is missing"):
        retrieval_metrics(POINTS, np.zeros(60, int), metrics=("opis",))
