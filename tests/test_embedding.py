"""Embedding a dataset into a file: whole, or in as many attempts as it takes, it is the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional

from nearfield.cli.main import main
from nearfield.config import RunConfig, load_config
from nearfield.data import Dataset, load
from nearfield.data.pictures import Paths, Pictures, digests_of
from nearfield.errors import InputError
from nearfield.export import embed_dataset
from nearfield.export import load as load_trained
from nearfield.export.embed_dataset import at_size, embed_to_file, open_images, open_model
from nearfield.export.unlabelled import Unlabelled
from nearfield.metrics.from_files import holds_training
from nearfield.models import EmbeddingModel, embed, pretrained_backbone
from nearfield.training.loop import train

SMALL = ["data.name=digits", "data.val_fraction=0.4", "sampler.batch_size=12", "model.width=4", "model.dim=8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on digits."""
    folder = tmp_path_factory.mktemp("run")
    train(load_config(RunConfig, None, [*SMALL, "steps=2", "eval_every=2"]), folder)
    return folder


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_dataset, "PART", 200)


def pictures(folder: Path) -> Dataset:
    """Four classes of two photographs each, of different shapes."""
    paths, draw = [], np.random.default_rng(0)
    for name in "abcd":
        (folder / name).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(draw.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)).save(folder / name / f"{i}ä.png")
            paths.append(f"{name}/{i}ä.png")
    files = Paths(folder, tuple(paths))
    return Dataset(
        name="pictures",
        images=Pictures(files, digests_of(files)),
        labels=np.repeat(np.arange(4), 2),
        class_names=tuple("abcd"),
        class_category=np.zeros(4, dtype=np.int64),
        category_names=("all",),
        train_classes=np.arange(2),
        test_classes=np.arange(2, 4),
        fingerprint="0" * 64,
        description="",
    )


def test_a_runs_test_embeddings_come_out_again(run: Path, tmp_path: Path) -> None:
    dataset, out = load("digits"), tmp_path / "test.npz"
    assert embed_to_file(open_model(str(run), None, dataset), dataset, out, "test", batch_size=512) == (896, 8)
    with np.load(out) as found:
        assert set(found.files) == {"embeddings", "labels", "info"}
        known = functional.normalize(load_file(run / "test.safetensors")["embeddings"].float())
        torch.testing.assert_close(torch.from_numpy(found["embeddings"]), known, rtol=1e-3, atol=1e-3)
        assert found["embeddings"].dtype == np.float32
        np.testing.assert_array_equal(found["labels"], dataset.labels[dataset.test_rows()])
        info = json.loads(str(found["info"]))
    assert info["data"] == dataset.fingerprint
    assert info["normalized"] is True
    assert len(info["model"]["sha256"]) == 64
    assert list(tmp_path.iterdir()) == [out]


def test_there_is_one_scale(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file, `nf.load` and ONNX give the same vectors; raw ones are marked, and not compared with these."""
    unit, raw = tmp_path / "unit.npz", tmp_path / "raw.npz"
    assert main(["embed", str(run), "digits", "--split", "test", "-o", str(unit)]) == 0
    assert main(["embed", str(run), "digits", "--split", "test", "-o", str(raw), "--raw"]) == 0
    dataset, model = load("digits"), load_trained(run)
    with np.load(unit) as a, np.load(raw) as b:
        vectors = model.embed(dataset.images[dataset.test_rows()])
        torch.testing.assert_close(torch.from_numpy(a["embeddings"]), vectors, rtol=1e-5, atol=1e-6)
        assert [json.loads(str(each["info"]))["normalized"] for each in (a, b)] == [True, False]
        lengths = np.linalg.norm(b["embeddings"], axis=1, keepdims=True)
        assert abs(lengths - 1).max() > 0.1
        np.testing.assert_allclose(b["embeddings"] / lengths, a["embeddings"], rtol=1e-4, atol=1e-6)
    assert main(["eval", str(unit), "--gallery", str(unit)]) == 0
    assert main(["eval", str(unit), "--gallery", str(raw)]) == 2
    assert "normalized (all vectors of length 1) is True in" in capsys.readouterr().err


def test_models_are_not_mixed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(load_config(RunConfig, None, [*SMALL, "steps=2", "eval_every=2", "seed=1"]), tmp_path / "other")
    for model, out in ((run, "a.npz"), (tmp_path / "other", "b.npz")):
        assert main(["embed", str(model), "digits", "--split", "test", "-o", str(tmp_path / out)]) == 0
    assert main(["eval", str(tmp_path / "a.npz"), "--gallery", str(tmp_path / "b.npz")]) == 2
    assert "cannot be compared: made by model is" in capsys.readouterr().err


def test_interruptions_cost_one_part_and_change_nothing(
    run: Path, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load("digits")
    model = open_model(str(run), None, dataset)
    embed_to_file(model, dataset, tmp_path / "whole.npz")
    out, parts = tmp_path / "stopped.npz", tmp_path / "stopped.npz.parts"
    embedded: list[int] = []

    def counting(model: EmbeddingModel, images: Any, *rest: Any) -> torch.Tensor:
        embedded.append(len(images))
        return embed(model, images, *rest)

    monkeypatch.setattr(embed_dataset, "embed", counting)
    for stop in (1, 450, 700, 1797):

        def interrupt(done: int, total: int, stop: int = stop) -> None:
            assert total == 1797
            if done >= stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            embed_to_file(model, dataset, out, progress=interrupt)
        assert not out.exists()
        assert not list(parts.glob(".*"))
    assert sum(embedded) < 1797 + 4 * 200
    done: list[int] = []
    embed_to_file(model, dataset, out, progress=lambda images, total: done.append(images))
    assert done[:8] == [200 * i for i in range(1, 9)]  # all of these were there
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()
    assert not parts.exists()


def test_parts_of_something_else_and_damaged_parts_are_made_again(run: Path, tmp_path: Path, small_parts: None) -> None:
    dataset = load("digits")
    model = open_model(str(run), None, dataset)
    embed_to_file(model, dataset, tmp_path / "whole.npz", "test")
    out, parts = tmp_path / "out.npz", tmp_path / "out.npz.parts"

    def interrupt(done: int, total: int) -> None:
        if done >= 500:
            raise KeyboardInterrupt

    for split in ("train", "test"):
        with pytest.raises(KeyboardInterrupt):
            embed_to_file(model, dataset, out, split, progress=interrupt)
    first, second = sorted(parts.glob("*.npy"))
    first.write_bytes(first.read_bytes()[:1000])
    np.save(second, np.zeros((3, 8), np.float32))
    embed_to_file(model, dataset, out, "test")
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_pictures_are_resized_and_their_paths_kept(tmp_path: Path) -> None:
    dataset = at_size(pictures(tmp_path / "photos"), 64, "crop")
    model = pretrained_backbone("efficientnet_lite0")
    embed_to_file(model, dataset, tmp_path / "out.npz", "test")
    with np.load(tmp_path / "out.npz") as found:
        assert found["paths"].tolist() == ["c/0ä.png", "c/1ä.png", "d/0ä.png", "d/1ä.png"]
        assert found["labels"].tolist() == [2, 2, 3, 3]
        embeddings, info = torch.from_numpy(found["embeddings"]), json.loads(str(found["info"]))
    assert info["images"] == "64x64 of the middle RGB"
    assert info["model"]["source"] == "efficientnet-lite0-57934424.pth"
    with torch.no_grad():
        direct = model.eval()(torch.from_numpy(dataset.images[np.arange(4, 8)]))
    torch.testing.assert_close(embeddings, direct, rtol=1e-4, atol=1e-4)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """new/: three photographs, one of them deeper, and files that are none; it is in the current folder."""
    draw, folder = np.random.default_rng(0), tmp_path / "new"
    for name in ("b.png", "A.JPG", "deep/er/c.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / name)
    for name in ("notes.txt", ".hidden.png", ".cache/d.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("no image")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        (["new"], ["A.JPG", "b.png", "deep/er/c.png"]),
        (["new/"], ["A.JPG", "b.png", "deep/er/c.png"]),
        (["new/b.png"], ["new/b.png"]),
        (["new/*"], ["new/A.JPG", "new/b.png", "new/deep/er/c.png"]),
        (["new/**/*.png"], ["new/b.png", "new/deep/er/c.png"]),
        (["new/b.png", "new/deep", "new/b.png"], ["new/b.png", "new/deep/er/c.png"]),
    ],
)
def test_new_photographs_need_no_labels(
    given: list[str], paths: list[str], run: Path, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.npz"
    assert main(["embed", str(run), *given, "-o", str(out)]) == 0
    with np.load(out) as found:
        assert set(found.files) == {"embeddings", "paths", "info"}
        assert found["paths"].tolist() == paths
        where = photos if given in (["new"], ["new/"]) else tmp_path
        vectors = load_trained(run).embed([where / path for path in paths])
        torch.testing.assert_close(torch.from_numpy(found["embeddings"]), vectors)


def test_a_folder_with_too_few_classes_is_embedded_without_labels(run: Path, tmp_path: Path) -> None:
    pictures(tmp_path / "four")
    assert isinstance(open_images(str(tmp_path / "four")), Unlabelled)
    pictures(tmp_path / "eight")
    for name in "abcd":
        (tmp_path / "eight" / name).rename(tmp_path / "eight" / f"{name}2")
    pictures(tmp_path / "eight")
    assert isinstance(open_images(str(tmp_path / "eight")), Dataset)


def test_wrong_paths_are_named(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "empty").mkdir()
    for given, message in (
        (["new/x.png"], "there is no image or folder new/x.png; check the path"),
        (["new/b.png", "glyphs"], "there is no image or folder glyphs"),
        (["new/b.png", "new/notes.txt"], "an image must end in one of .png, .jpg"),
        (["new/empty"], "there is no image in new/empty"),
        (["new/*.gif"], "there is no image in new/*.gif"),
        (["new/b.png", "--split", "test"], "split must be all for images without labels; got test for new/b.png"),
    ):
        assert main(["embed", str(run), *given, "-o", "out.npz"]) == 2
        assert message in capsys.readouterr().err
    assert main(["embed", str(run), "new", "-o", "out.npz"]) == 0
    assert main(["eval", "out.npz"]) == 2
    assert "labels must be given" in capsys.readouterr().err


def test_what_cannot_be_embedded_is_refused(run: Path, tmp_path: Path) -> None:
    dataset = load("digits")
    with pytest.raises(InputError, match=r"a finished run, or a backbone; got 'googlnet', did you mean 'googlenet'"):
        open_model("googlnet", None, dataset)
    with pytest.raises(InputError, match=r"folder of a finished run; found no config.json and no result.json"):
        open_model(str(tmp_path), None, dataset)
    with pytest.raises(InputError, match="has its own"):
        open_model(str(run), tmp_path / "a.pth", dataset)
    with pytest.raises(InputError, match="size is for images in files"):
        at_size(dataset, 64, "crop")
    model = open_model(str(run), None, dataset)
    with pytest.raises(InputError, match=r"out must end in .npz"):
        embed_to_file(model, dataset, tmp_path / "out.npy")
    with pytest.raises(InputError, match="batch_size must be at least 1; got 0"):
        embed_to_file(model, dataset, tmp_path / "out.npz", batch_size=0)
    assert not list(tmp_path.iterdir())


def test_the_command_resumes_after_an_interruption(
    run: Path, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "digits.npz"
    call = ["embed", str(run), "digits", "--part", "all", "-o", str(out), "--json"]
    calls: list[Any] = []

    def interrupted(*args: Any) -> torch.Tensor:
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return embed(*args)

    monkeypatch.setattr(embed_dataset, "embed", interrupted)
    assert main(call) == 130
    assert len(list((tmp_path / "digits.npz.parts").glob("*.npy"))) == 3
    assert "Run the same command again to resume" in capsys.readouterr().err
    assert main(call) == 0
    assert len(calls) == 4 + 6  # nine parts, three of them from before
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "part": "all", "images": 1797, "dim": 8}


def test_the_test_part_is_the_default_and_eval_warns_of_training_images(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = {part: tmp_path / f"of-{part}.npz" for part in ("", "test", "train", "all")}
    for part, file in out.items():
        assert main(["embed", str(run), "digits", "-o", str(file), *(["--split", part] if part else [])]) == 0
        shown = capsys.readouterr()
        assert ("all digits" if part == "all" else f"the {part or 'test'} part of digits") in shown.out
        assert ("--part all embeds every image" in shown.err) == (part == "")
    assert out[""].read_bytes() == out["test"].read_bytes()
    for part, file in out.items():
        assert main(["eval", str(file), "--json"]) == 0
        shown = capsys.readouterr()
        assert 0 < json.loads(shown.out)["recall@1"] <= 1
        assert ("holds images of the training part too" in shown.err) == (part in ("train", "all"))
    assert main(["eval", str(out["test"]), "--gallery", str(out["all"]), "--json"]) == 0
    assert f"{out['all']} holds images of the training part too" in capsys.readouterr().err


def test_files_of_somebody_else_say_nothing_about_training(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    arrays: dict[str, Any] = {"embeddings": np.eye(4), "labels": np.array([0, 0, 1, 1])}
    for info in ("", "{", "[1]", '{"split": "test"}', '{"split": "all", "train_images": 0}'):
        np.savez(path, info=np.array(info), **arrays)
        assert not holds_training(path)
    np.savez(path, **arrays)
    assert not holds_training(path)
    assert not holds_training(tmp_path / "none.csv")
    np.savez(path, info=np.array('{"split": "all"}'), **arrays)  # before files counted their training images
    assert holds_training(path)


@pytest.mark.slow
def test_lite0_at_128_pixels_finds_birds_it_was_not_trained_for(real_data: Path, tmp_path: Path) -> None:
    import nearfield as nf

    with np.load(real_data / "cub200_efficientnet_lite0_224.npz") as archive:
        test = archive["labels"] > 100
        paths, labels = archive["paths"][test], torch.from_numpy(archive["labels"][test].astype(np.int64))
    files = Paths(real_data / "CUB_200_2011" / "images", tuple(paths.tolist()))
    images = Pictures(files, np.zeros((len(files), 16), np.uint8), 128, "crop")
    found = embed(pretrained_backbone("efficientnet_lite0"), images, 64)
    scores = nf.retrieval_metrics(found, labels, (1,), metrics=("recall", "map_at_r"))
    assert 100 * scores["recall@1"] == pytest.approx(36.4, abs=1.5)
    assert 100 * scores["map@r"] == pytest.approx(8.4, abs=0.7)
