"""`nearfield fit`: what it refuses to learn from, how it compares, what it promises, and that a kill costs nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from forks import killed_at
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

import nearfield as nf
from nearfield.cli.main import main
from nearfield.errors import InputError
from nearfield.fit import approaches, compare, fit_model, report_text, run
from nearfield.fit.check import Checked, check_data
from nearfield.fit.measure import expectation, over_classes
from nearfield.fit.split import LEAST, hold_out, thin
from nearfield.fit.work import Work, working
from nearfield.index.known_classes import trained_classes

CLASSES, EACH = 12, 8


def glyph_folder(home: Path, shuffled: bool = False) -> Path:
    """Glyphs as files, a folder for each class; `shuffled` between the classes there is nothing to learn."""
    glyphs = nf.data.load("glyphs")
    rows = np.concatenate([np.flatnonzero(glyphs.labels == 9 * name)[:EACH] for name in range(CLASSES)])
    rows = np.random.default_rng(0).permutation(rows) if shuffled else rows
    for place, row in enumerate(rows.tolist()):
        folder = home / f"class {place // EACH:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(glyphs.images[row])).save(folder / f"{row}.png")
    return home


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return glyph_folder(tmp_path / "photos")


@pytest.fixture
def no_pretrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package with the pretrained weights is not installed."""

    def missing(*given: object, **options: object) -> None:
        raise InputError("the weights are not installed.")

    monkeypatch.setattr(run, "untrained", missing)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, no_pretrained: None) -> None:
    """Two methods and few steps of the small network."""
    for room in (approaches, compare, run):
        monkeypatch.setattr(room, "METHODS", ("multi_similarity", "proxy_anchor"))
    small = approaches.small_network

    def short(*given: Any) -> approaches.Approach:
        return replace(small(*given), steps=(6, 6))

    monkeypatch.setattr(run, "small_network", short)


def noise(seed: int, size: int = 80) -> Image.Image:
    """An image that resembles no other."""
    small = np.random.default_rng(seed).integers(0, 255, (9, 9, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((size, size), Image.Resampling.BICUBIC)


def test_what_would_make_scores_wrong_is_left_out(tmp_path: Path) -> None:
    for name in range(8):
        (tmp_path / str(name)).mkdir()
        for number in range(4):
            noise(10 * name + number).save(tmp_path / str(name) / f"{number}.png")
    (tmp_path / "0" / "bad.jpg").write_bytes(b"no image")
    shutil.copy(tmp_path / "1" / "0.png", tmp_path / "2" / "torn.png")
    shutil.copy(tmp_path / "3" / "0.png", tmp_path / "3" / "copy.png")
    for number in range(1, 4):
        (tmp_path / "4" / f"{number}.png").unlink()
    noise(50).save(tmp_path / "6" / "alike.jpg", quality=60)  # as 5/0.png
    noise(51).save(tmp_path / "5" / "burst.jpg", quality=60)  # as 5/1.png
    dataset = nf.data.load(str(tmp_path), colour=True)
    found = check_data(dataset)
    assert isinstance(dataset.images, nf.data.Pictures)
    names = [dataset.images.files.name(row) for row in range(len(dataset.images))]
    kept = {str(Path(names[row]).relative_to(tmp_path.resolve())) for row in found.rows.tolist()}
    assert kept.isdisjoint({"0/bad.jpg", "1/0.png", "2/torn.png", "3/copy.png", "4/0.png"})
    assert len(kept) == 8 * 4 - 3 - 1 - 1 + 2
    facts = found.facts
    assert {key: facts[key]["count"] for key in facts if isinstance(facts[key], dict)} == {
        "unreadable": 1,
        "classes_with_one_image": 1,
        "classes_without_images": 0,
        "identical_across_classes": 2,
        "copies_within_classes": 1,
        "near_duplicates_across_classes": 1,
    }
    assert facts["classes_with_one_image"]["first"] == ["4"]
    assert facts["near_duplicates_across_classes"]["first"] == ["5/0.png and 6/alike.jpg"]
    assert facts["near_duplicates_within_classes"] == 1
    assert (facts["usable_classes"], found.side, found.colour) == (7, 80, True)
    again = Checked.of(json.loads(json.dumps(found.values())))
    assert np.array_equal(again.rows, found.rows)
    assert (again.alike, again.facts) == (found.alike, found.facts)

    seen = set()
    for seed in range(8):  # until the two classes are on different sides, and on one
        part, leaking = hold_out(dataset, found, None, seed)
        sides = {name: label in part.test_classes for label, name in enumerate(part.class_names)}
        assert leaking == (sides["5"] != sides["6"])
        assert len(part.images) == len(found.rows) - leaking
        assert set(part.class_names) == {"0", "1", "2", "3", "5", "6", "7"}
        assert isinstance(part.images, nf.data.Pictures)
        for row in range(len(part.images)):
            assert Path(part.images.files.name(row)).parent.name == part.class_names[part.labels[row]]
        if leaking:  # the held-out one is gone
            inside = [Path(part.images.files.name(row)) for row in range(len(part.images))]
            gone = ("6", "alike.jpg") if sides["6"] else ("5", "0.png")
            assert gone not in [(path.parent.name, path.name) for path in inside]
        seen.add(leaking)
    assert seen == {0, 1}


@given(st.lists(st.integers(2, 30), min_size=10, max_size=60), st.integers(100, 600), st.integers(0, 3))
def test_images_are_left_out_evenly(counts: list[int], most: int, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    rows = np.arange(len(labels))
    found = thin(rows, labels, most, seed)
    assert np.array_equal(found, np.unique(found))
    assert np.array_equal(found, thin(rows, labels, most, seed))
    assert len(found) <= max(most, min(len(rows), 20 * LEAST))
    kept = np.bincount(labels[found], minlength=len(counts))
    cap = kept.max()
    full = np.minimum(counts, cap)
    assert np.array_equal(kept[kept > 0], full[kept > 0])
    if np.minimum(counts, LEAST).sum() <= most:
        assert (kept > 0).all()
    if len(rows) <= most:
        assert len(found) == len(rows)


def test_the_interval_is_over_classes() -> None:
    draw = np.random.default_rng(0)
    means = draw.uniform(0.3, 0.6, 9)
    scores = np.repeat(means, 7) + draw.normal(0, 0.01, 63)
    classes = np.repeat(np.arange(9), 7)
    own = scores.reshape(9, 7).mean(1)
    low, high = stats.t.interval(0.95, 8, own.mean(), own.std(ddof=1) / 3)
    found = over_classes(scores, classes)
    assert (found.mean, found.low, found.high) == pytest.approx((scores.mean(), low, high), abs=1e-12)
    holes = np.append(scores, [np.nan, np.nan])
    assert over_classes(holes, np.append(classes, [3, 77])) == found  # queries without a match do not count
    assert over_classes(scores[:7], classes[:7]).facts() == {"mean": scores[:7].mean(), "low": 0.0, "high": 1.0}
    assert over_classes(np.full(63, 1.0), classes).facts() == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0})


def test_decisions_are_made_once(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), working(tmp_path / "model", "data", 1.0) as work:
        assert work.decide("steps", lambda: [1, 2]) == [1, 2]
        assert not work.resumed
        assert not work.is_late()
        raise KeyboardInterrupt
    with pytest.raises(InputError, match="unfinished fit of other data"):
        Work(tmp_path / "model.work", "other data", 1.0)
    with working(tmp_path / "model", "data", 1.0) as work:
        assert work.resumed
        assert work.decide("steps", lambda: [3]) == [1, 2]
        assert 0 < work.spent < 60
        assert work.left == pytest.approx(60 - work.spent, abs=0.1)
        work._facts["seconds"] = 200.0
        assert work.is_late()
        assert work.left == 0
    assert not (tmp_path / "model.work").exists()


def test_a_trained_model_is_exported_with_what_to_expect(
    photos: Path, tmp_path: Path, no_pretrained: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network from scratch beats random weights, and says by how much."""
    out, told = tmp_path / "model", list[str]()
    facts = fit_model(str(photos), out, minutes=0.02, say=told.append)
    assert facts["exported"] == "trained"
    assert facts["new_classes"]["classes"] == len(facts["split"]["test_class_names"]) == 4
    assert facts["new_classes"]["difference"]["map@r"]["low"] > 0
    assert {row["method"] for row in facts["tried"]} == set(approaches.METHODS)
    assert len(facts["tried"]) == 4  # three methods, and the best of them again
    best = max(facts["tried"][:3], key=lambda row: row["map@r"])
    assert facts["tried"][3]["method"] == best["method"]
    assert any("not installed" in reason for reason in facts["skipped"])
    assert any("fold 2 of 2" in line for line in told)
    assert not (tmp_path / "model.work").exists()
    report = (out / "report.md").read_text()
    assert report == report_text(facts)
    assert "ranks better than the untrained network" in report

    model = nf.load(out)
    assert trained_classes(model.description) == {f"class {name:02d}" for name in range(CLASSES)} - set(
        facts["split"]["test_class_names"]
    )
    files = sorted(path for name in facts["split"]["test_class_names"] for path in (photos / name).iterdir())
    labels = [path.parent.name for path in files]
    again = nf.retrieval_metrics(model.embed(files), labels, metrics=["map_at_r"])["map@r"]
    assert again == pytest.approx(facts["new_classes"]["trained"]["map@r"]["mean"], abs=1e-4)

    begun = time.monotonic()
    assert fit_model(str(photos), out, minutes=5) == json.loads(json.dumps(facts))  # finished: nothing is trained again
    assert time.monotonic() - begun < 5
    (photos / "class 00" / "more.png").write_bytes(
        (photos / "class 01" / next(iter(os.listdir(photos / "class 01")))).read_bytes()
    )
    assert main(["fit", str(photos), "--out", str(out)]) == 2
    assert "holds a model of other data" in capsys.readouterr().err


def test_it_does_not_boast(tmp_path: Path, quick: None) -> None:
    """Labels that mean nothing: the network is exported as it was before training."""
    photos, out = glyph_folder(tmp_path / "photos", shuffled=True), tmp_path / "model"
    facts = fit_model(str(photos), out, minutes=0.01)
    assert facts["exported"] == "untrained"
    assert "did not beat the untrained network" in facts["reason"]
    report = (out / "report.md").read_text()
    assert "Exported: the untrained network" in report
    assert "ranks better" not in report
    model = nf.load(out)
    assert trained_classes(model.description) == set()
    files = sorted(path for name in facts["split"]["test_class_names"] for path in (photos / name).iterdir())
    scores = nf.retrieval_metrics(model.embed(files), [path.parent.name for path in files], metrics=["map_at_r"])
    assert scores["map@r"] == pytest.approx(facts["new_classes"]["untrained"]["map@r"]["mean"], abs=1e-4)


def test_a_further_approach_is_begun_only_in_time(tmp_path: Path) -> None:
    """Measuring the pace of a network takes time itself, which a budget that is used up does not have."""
    network: Any = SimpleNamespace(name="network", words="the network", folds=1, steps=(60, 400), share=0.9)
    facts: dict[str, Any] = {"skipped": []}
    with working(tmp_path / "slow", "data", 10.0) as work:
        work.decide("network pace", lambda: [20.0, 5.0, 2.0])
        assert run._whole(work, network, "triplet", facts, print) == []
    with working(tmp_path / "late", "data", 10.0) as work:
        work._facts["seconds"] = 541.0
        assert run._whole(work, network, "triplet", facts, print) == []
        assert "network pace" not in work._facts["decisions"]
    assert facts["skipped"] == [
        "the network: not enough time; --minutes 25 allows a short one",
        "the network: no time was left; give more --minutes",
    ]


def test_with_the_pretrained_network(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads on frozen features; the joined model takes images, and an index calibrates on what it has not seen."""
    for name in list(os.listdir(photos))[:-1]:
        for path in sorted((photos / name).iterdir())[5:]:
            path.unlink()
    for room in (approaches, compare, run):
        monkeypatch.setattr(room, "METHODS", ("multi_similarity",))
    monkeypatch.setattr(run, "FOLDS", {"head": 2, "small": 2})
    monkeypatch.setattr(run, "validation_score", lambda *given: 0.0)
    out = tmp_path / "model"

    def better(*given: Any) -> dict[str, Any]:  # few images prove nothing; the joined model is what is tested here
        found = expectation(*given)
        found["difference"]["map@r"]["low"] = 0.01
        return found

    monkeypatch.setattr(run, "expectation", better)
    facts = fit_model(str(photos), out, minutes=0.01)
    assert facts["exported"] == "trained"
    assert facts["model"] == "a head on frozen efficientnet_lite0 features, multi_similarity"
    assert any("small network" in reason and "--minutes" in reason for reason in facts["skipped"])
    model = nf.load(out)
    assert (model.dim, model.input.shape) == (128, (96, 96, 3))
    files = sorted(path for name in facts["split"]["test_class_names"] for path in (photos / name).iterdir())
    scores = nf.retrieval_metrics(model.embed(files), [path.parent.name for path in files], metrics=["map_at_r"])
    assert scores["map@r"] == pytest.approx(facts["new_classes"]["trained"]["map@r"]["mean"], abs=1e-3)


def test_the_whole_network_if_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photographs, and a budget that allows a few steps end to end: validation decides between head and network."""
    for name in range(10):
        (tmp_path / "photos" / str(name)).mkdir(parents=True)
        for number in range(3):
            noise(10 * name + number).save(tmp_path / "photos" / str(name) / f"{number}.png")
    for room in (approaches, compare, run):
        monkeypatch.setattr(room, "METHODS", ("multi_similarity",))
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run, "FOLDS", {"head": 2})
    monkeypatch.setattr(run, "SIZES", (64, 64))
    monkeypatch.setattr(compare, "PACE", 1)
    head, network = approaches.head, approaches.whole_network
    monkeypatch.setattr(run, "head", lambda *given: replace(head(*given), steps=(3, 3)))
    monkeypatch.setattr(run, "whole_network", lambda *given: replace(network(*given), steps=(2, 2)))
    facts = fit_model(str(tmp_path / "photos"), tmp_path / "model", minutes=30)
    assert [(row["approach"], row["steps"]) for row in facts["tried"]] == [
        ("a head on frozen efficientnet_lite0 features", 3),
        ("a head on frozen efficientnet_lite0 features, final", 3),
        ("the whole efficientnet_lite0, end to end, final", 2),
    ]
    assert facts["skipped"] == []
    assert all(row["note"] == "" for row in facts["tried"])
    assert nf.load(tmp_path / "model").embed([noise(1)]).shape == (1, facts["dims"])


def test_photographs_without_classes(tmp_path: Path, photos: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for place, path in enumerate(sorted(photos.rglob("*.png"))[:3]):
        shutil.copy(path, flat / f"{place}.png")
    (flat / "bad.jpg").write_bytes(b"nothing")
    facts = fit_model(str(flat), tmp_path / "model")
    assert (facts["exported"], facts["check"]["unreadable"]["count"]) == ("untrained", 1)
    assert "no classes to learn from" in (tmp_path / "model" / "report.md").read_text()
    assert nf.load(tmp_path / "model").embed([flat / "0.png"]).shape == (1, 1280)


def test_too_few_classes_are_not_compared(tmp_path: Path, photos: Path) -> None:
    for name in range(8, CLASSES):
        for path in sorted((photos / f"class {name:02d}").iterdir())[1:]:
            path.unlink()
    facts = fit_model(str(photos), tmp_path / "model")
    assert (facts["exported"], facts["tried"]) == ("untrained", [])
    assert "needs 10 classes with two images each; got 8" in facts["reason"]
    assert facts["check"]["classes_with_one_image"]["count"] == 4


def test_names_are_shown_as_they_are() -> None:
    found = {"count": 1, "first": ["<script>`x`\n| a"]}
    facts = {
        "exported": "untrained", "model": "m", "dims": 2, "input": "i", "reason": "r", "tried": [], "skipped": [],
        "check": {"images": 3, "unreadable": found}, "seconds": 60.0, "minutes": 10.0,
    }  # fmt: skip
    assert "- unreadable: 1 (`<script>'x' | a`)" in report_text(facts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing/"], "does not exist"),
        (["digits", "--minutes", "0"], "minutes must be above 0; got 0.0"),
        (["digits", "--minutes", "-1"], "minutes must be above 0"),
        (["no_such_dataset"], "unknown dataset"),
    ],
)
def test_errors(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *words, "--out", str(tmp_path / "model")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_features_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", embeddings=np.eye(20, dtype=np.float32), labels=np.arange(20) // 2)
    assert main(["fit", str(tmp_path / "x.npz"), "--out", str(tmp_path / "model")]) == 2
    assert "fit needs images" in capsys.readouterr().err


def test_a_table_and_json(photos: Path, tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{path.relative_to(photos)},{path.parent.name}" for path in sorted(photos.rglob("*.png"))]
    (photos / "table.csv").write_text("path,label\n" + "\n".join(lines))
    words = ["fit", str(photos / "table.csv"), "--out", str(tmp_path / "model"), "--minutes", "0.01", "--json"]
    assert main(words) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads((tmp_path / "model" / "fit.json").read_text())
    assert facts["check"]["usable_classes"] == CLASSES
    assert main(words) == 0  # finished already
    assert json.loads(capsys.readouterr().out) == facts


def of_fit(file: str) -> bool:
    """Whether a file's calls count when fit is killed."""
    return "/nearfield/fit/" in file or file.endswith(("nearfield/files.py", "run_folder.py"))


@pytest.mark.programs
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_point_it_resumes(photos: Path, tmp_path: Path, quick: None) -> None:
    """The same command again ends with the same model, and nothing is ever half there."""

    def work(out: Path) -> dict[str, Any]:
        return fit_model(str(photos), out, minutes=0.01)

    def outcome(facts: dict[str, Any], out: Path) -> tuple[Any, ...]:
        scores = [(row["approach"], row["method"], row["map@r"]) for row in facts["tried"]]
        return facts["exported"], facts["new_classes"], scores, (out / "model.safetensors").read_bytes()

    whole = tmp_path / "whole"
    expected = outcome(work(whole), whole)
    out = tmp_path / "model"
    kills, step = 0, 40
    while killed_at(
        step, partial(work, out), of_fit
    ):  # each attempt comes further than the last, or dies in the same place
        kills += 1
        assert not out.exists() or (out / "report.md").is_file()
        step = step + 40 if kills % 2 else 2 * step
        assert kills < 30
    assert kills >= 3
    assert outcome(work(out), out) == expected
    assert not (tmp_path / "model.work").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "photos", "whole"]


@pytest.mark.slow
def test_three_commands_survive_kill_9(photos: Path, tmp_path: Path) -> None:
    """The real commands, killed with SIGKILL after more and more seconds, until they are done."""
    model, shop, more = tmp_path / "model", tmp_path / "shop.index", tmp_path / "more"
    shutil.copytree(photos / "class 01", more / "class 99")

    def until_done(*words: str) -> int:
        seconds, kills = 2.0, 0
        while True:
            process = subprocess.Popen([sys.executable, "-m", "nearfield", *words], stderr=subprocess.PIPE)
            try:
                _, problem = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills, seconds = kills + 1, seconds * 1.4
                continue
            assert process.returncode == 0, problem.decode()
            return kills

    assert until_done("fit", str(photos), "--out", str(model), "--minutes", "0.2") > 0
    assert nf.load(model).dim > 0
    until_done("index", str(model), str(photos), "--out", str(shop))
    until_done("index", "--out", str(shop), "--add", str(more))
    with nf.Index.open(shop) as index:
        assert index.check() == []
        assert index.classes == {**{f"class {name:02d}": EACH for name in range(CLASSES)}, "class 99": EACH}
