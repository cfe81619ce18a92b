"""Export: a model folder that needs neither its run nor its data, gives the same embeddings, and says what it is."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional

from nearfield import data
from nearfield.cli.main import main
from nearfield.config import RunConfig, build_config, load_config
from nearfield.data.input_spec import FeatureInput, PictureInput
from nearfield.data.pictures import Pictures
from nearfield.errors import InputError, RunError
from nearfield.export import Description, Embedder, description, export, load, write
from nearfield.export.embed_dataset import as_trained, embed_to_file, open_images, open_model
from nearfield.export.model import build_net
from nearfield.export.model_card import model_card
from nearfield.export.onnx import TOLERANCE, largest_difference, random_batches, write_onnx
from nearfield.models import Pretrained, backbones
from nearfield.training import batches
from nearfield.training.loop import train

SMALL = ["steps=2", "eval_every=2", "data.val_fraction=0.5", "model.width=4", "model.dim=8", "sampler.batch_size=4"]
SMALL += ["sampler.per_class=2"]
KINDS = ["conv", "hamming", "features", "drml", "dreml", "photos"]
Run = tuple[Path, Any]  # its folder, and its test images as anybody would give them


def photos(folder: Path) -> None:
    """Eight classes of four photographs each, of different shapes and kinds."""
    draw = np.random.default_rng(0)
    for name in "abcdefgh":
        (folder / name).mkdir(parents=True)
        for i in range(4):
            height, width = draw.integers(30, 60, 2)
            picture = Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8))
            picture.convert(("RGB", "L", "P", "RGBA")[i]).save(folder / name / f"{i}.png")


def features(path: Path) -> None:
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 6)
    centres = draw.standard_normal((8, 12))
    np.savez(path, features=(centres[labels] + draw.standard_normal((48, 12))).astype(np.float32), labels=labels)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """A finished run of each kind, trained when it is first asked for."""
    home = tmp_path_factory.mktemp("runs")
    photos(home / "photographs")
    features(home / "features.npz")
    of_features = [f"data.name={home / 'features.npz'}", "model.backbone=features"]
    overrides = {
        "conv": ["data.name=digits"],
        "hamming": ["data.name=digits", "distance=hamming", "method.name=proxy_softmax"],
        "features": [*of_features, "model.norm=layer_affine", "model.init=pca"],
        "drml": [*of_features, "method.name=drml"],
        "dreml": ["data.name=digits", "method.name=dreml", "method.params.members=2"],
        "photos": [f"data.name={home / 'photographs'}", "data.augment=small", "model.channels=3"],
    }

    @cache
    def run(kind: str) -> Run:
        config = load_config(RunConfig, None, [*SMALL, *overrides[kind]])
        train(config, home / kind)
        dataset = data.load(config.data.name, colour=True) if kind == "photos" else data.load(config.data.name)
        rows = dataset.test_rows()
        if isinstance(dataset.images, Pictures):
            return home / kind, [dataset.images.files.name(int(row)) for row in rows]
        return home / kind, dataset.images[rows]

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_model_gives_the_runs_test_embeddings(
    kind: str, runs: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, images = runs(kind)
    moved = tmp_path / "elsewhere"
    export(folder, tmp_path / "exported").rename(moved)
    direct = load(folder, normalize=False).embed(images, batch_size=256)
    monkeypatch.setattr(description, "open_data", lambda *_: pytest.fail("an exported model needs no data"))
    model = load(moved, normalize=False)
    found = model.embed(images, batch_size=256)
    assert found.shape == (len(images), model.dim) == (len(images), 8)
    assert torch.equal(found, direct)
    known = load_file(folder / "test.safetensors")["embeddings"].float()
    torch.testing.assert_close(found, known, rtol=2e-3, atol=1e-5)  # stored in half precision
    torch.testing.assert_close(model.embed(images, batch_size=5), found, rtol=1e-4, atol=1e-5)
    lengths = load(moved).embed(images).norm(dim=1)
    assert bool((lengths - 1).abs().max() < 1e-5) == (kind != "hamming")


def test_a_member_of_an_ensemble_is_a_model_too(runs: Callable[[str], Run], tmp_path: Path) -> None:
    folder, images = runs("dreml")
    whole, members = load(folder).embed(images), [load(folder / f"member-0{i}").embed(images) for i in (0, 1)]
    assert members[0].shape == (len(images), 4)
    torch.testing.assert_close(whole, torch.cat(members, 1) / 2**0.5)


def test_paths_pictures_and_arrays_are_the_same(runs: Callable[[str], Run]) -> None:
    folder, paths = runs("photos")
    model = load(folder)
    wanted = model.embed(paths[:8])
    opened = [Image.open(path) for path in paths[:8]]
    assert torch.equal(model.embed([Path(path) for path in paths[:8]]), wanted)
    assert torch.equal(model.embed(opened), wanted)
    arrays = [np.asarray(picture.convert("RGB")) for picture in opened]
    assert torch.equal(model.embed(arrays), wanted)
    assert torch.equal(model.embed([torch.from_numpy(array.copy()) for array in arrays]), wanted)
    stack = np.stack([arrays[0], arrays[0]])
    assert torch.equal(model.embed(stack)[0], wanted[0])
    assert torch.equal(model.embed(torch.from_numpy(stack).permute(0, 3, 1, 2))[1], wanted[0])
    assert model.embed([]).shape == (0, 8)


def test_a_grey_model_takes_any_picture(runs: Callable[[str], Run]) -> None:
    model = load(runs("conv")[0])
    colour = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    grey = np.asarray(colour.convert("L").resize((8, 8), Image.Resampling.BILINEAR))
    assert torch.equal(model.embed([colour]), model(torch.from_numpy(grey.copy())[None]).detach())
    deep = Image.fromarray(np.asarray(colour.convert("L")).astype(np.uint16) * 256 + 7)
    assert deep.mode == "I;16"
    assert torch.equal(model.embed([deep]), model.embed([colour.convert("L")]))


@settings(max_examples=30, deadline=None)
@given(height=st.integers(20, 90), width=st.integers(20, 90), size=st.integers(16, 40), crop=st.integers(1, 16))
def test_pictures_are_prepared_as_torchvision_does(height: int, width: int, size: int, crop: int) -> None:
    from nearfield.models.torchvision_shim import torchvision

    torchvision()
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    array = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    for rule, resize in (("short", v2.Resize(size)), ("exact", v2.Resize((size, size)))):
        taken = PictureInput(colour=True, rule=rule, resize=(size, size), crop=(crop, crop))  # type: ignore[arg-type]
        wanted = v2.Compose([resize, v2.CenterCrop(crop)])(Image.fromarray(array))
        np.testing.assert_array_equal(taken.picture(array), np.asarray(wanted))


def test_the_folder_says_what_the_model_is(runs: Callable[[str], Run], tmp_path: Path) -> None:
    folder, _ = runs("photos")
    export(folder, tmp_path / "model")
    assert {p.name for p in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    (tmp_path / "usual").mkdir()
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "usual").stat().st_mode
    result, config = json.loads((folder / "result.json").read_text()), load_config(RunConfig, folder / "config.toml")
    found = json.loads((tmp_path / "model" / "config.json").read_text())
    assert found["format"] == 1
    assert found["model"]["backbone"] == "conv"
    assert found["input"] == {
        "kind": "pictures", "colour": True, "rule": "short", "resize": [128, 128], "crop": [112, 112],
    }  # fmt: skip
    assert found["pixels"] == {"mean": [0.5] * 3, "std": [0.5] * 3, "scale": 1.0, "bgr": False}
    assert found["training"]["run"] == config.digest()
    assert found["training"]["fit_classes"] == result["fit_classes"] == 2
    assert found["test"] == result["test"]
    card = (tmp_path / "model" / "README.md").read_text()
    assert load(tmp_path / "model").card == card
    for text in (
        f"| map@r | {100 * result['test']['map@r']:.2f} |",
        found["training"]["fingerprint"],
        "RGB pictures, uint8, resized to a shorter side of 128, then the middle 112x112",
        "Multi-Similarity",
        f"commit {found['training']['commit']}",
        'nf.load("path/to/this/folder")',
        "`nearfield train run.toml`",
        "## Limits",
    ):
        assert text in card
    (tmp_path / "run.toml").write_text(card.split("```toml\n")[1].split("```")[0])
    assert load_config(RunConfig, tmp_path / "run.toml").digest() == config.digest()


def test_the_card_shows_names_and_not_what_they_would_do(runs: Callable[[str], Run]) -> None:
    name = "<script>alert(1)</script> & ```\n# photos"
    values = load(runs("conv")[0]).description.model_dump(mode="json")
    values["training"] |= {"data": name, "config": f"name = <{name}>\n"}
    values["training"]["pretrained"] = {"source": "<b>.pth", "sha256": "0", "unused": []}
    card = model_card(values, "images", (8, 8))
    text, quoted, rest = card.split("````")
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; ``` # photos" in text
    assert "&lt;b&gt;.pth" in text
    assert "<" not in text + rest
    assert quoted == "toml\n" + values["training"]["config"]


def test_a_run_that_wrote_down_its_input_needs_no_data(
    runs: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs("conv")[0], tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "environment.json").read_text())
    known = load(tmp_path / "run").input
    (tmp_path / "run" / "environment.json").write_text(json.dumps(facts | {"input": known.model_dump()}))
    monkeypatch.setattr(description, "open_data", lambda *_: pytest.fail("the run knows its input"))
    assert load(tmp_path / "run").input == known


def test_what_is_no_model_is_refused(runs: Callable[[str], Run], tmp_path: Path) -> None:
    folder, _ = runs("conv")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="must be an exported model or the folder of a finished run"):
            load(path)
        with pytest.raises(InputError, match=r"must be the folder of a finished run; found no result.json"):
            export(path, tmp_path / "out")
    out = export(folder, tmp_path / "out")
    with pytest.raises(InputError, match=r"out exists already; delete it or choose another"):
        export(folder, out)
    text = (out / "config.json").read_text()
    for damaged, message in (
        (text.replace('"format": 1', '"format": 2'), r"config.json must have format 1; got 2. Export again, or update"),
        (text[:100], r"config.json is damaged"),
        ("[]", "it must hold a JSON object"),
        (text.replace('"width"', '"widht"'), r"damaged: .*\n  model.widht is not a key here; did you mean 'width'"),
        (text.replace('"kind": "pictures"', '"kind": "sounds"'), r"damaged: .*\n  input"),
    ):
        assert damaged != text
        (out / "config.json").write_text(damaged)
        with pytest.raises(InputError, match=message):
            load(out)


@pytest.fixture(scope="module")
def exported(runs: Callable[[str], Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(runs("conv")[0], tmp_path_factory.mktemp("exported") / "whole")


@given(place=st.floats(0, 1), cut=st.booleans())
@settings(max_examples=30, deadline=None)
def test_damaged_weights_never_load(place: float, cut: bool, exported: Path) -> None:
    out = exported.with_name("damaged")
    shutil.copytree(exported, out, dirs_exist_ok=True)
    content = bytearray((out / "model.safetensors").read_bytes())
    at = min(int(place * len(content)), len(content) - 1)
    content[at] ^= 0x40
    (out / "model.safetensors").write_bytes(content[:at] if cut else content)
    with pytest.raises(InputError, match=r"model.safetensors"):
        load(out)


def test_what_cannot_be_embedded_is_refused(runs: Callable[[str], Run], tmp_path: Path) -> None:
    of_features, of_pictures = load(runs("features")[0]), load(runs("conv")[0])
    rows = np.zeros((3, 12), np.float32)
    for bad, message in (
        (rows[:, :11], r"takes features \(N, 12\); got float32 \(3, 11\)"),
        (rows[0], r"got float32 \(12,\)"),
        (["a.jpg"], r"takes features \(N, 12\); got <U5 \(1,\)"),
        ([[1.0], [1.0, 2.0]], r"takes features"),
        (rows * np.nan, r"all finite; found a NaN"),
    ):
        with pytest.raises(InputError, match=message):
            of_features.embed(bad)
    (tmp_path / "no.jpg").write_text("no picture")
    for bad, message in (
        ("a.jpg", r"a list of paths or images; got a single one, 'a.jpg'. Put it into a list"),
        (Image.new("L", (8, 8)), "Put it into a list"),
        (np.zeros((2, 8, 8), np.float32), r"uint8 \(N, H, W\) or \(N, H, W, 3\); got float32 \(2, 8, 8\)"),
        (np.zeros((8, 8), np.uint8), r"got uint8 \(8, 8\)"),
        ([np.zeros((8, 8))], r"a path, a Pillow image or a uint8 .* got float64 \(8, 8\)"),
        ([None], r"a path, a Pillow image or a uint8 .* got None"),
        ([tmp_path / "missing.jpg"], r"cannot read the image .*missing.jpg: No such file"),
        ([tmp_path / "no.jpg"], r"cannot read the image .*no.jpg"),
    ):
        with pytest.raises(InputError, match=message):
            of_pictures.embed(bad)
    with pytest.raises(InputError, match="batch_size must be at least 1; got 0"):
        of_pictures.embed([], batch_size=0)


def test_a_failed_export_leaves_nothing(
    runs: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "write_text", full)
    with pytest.raises(RunError, match="No space left on device"):
        export(runs("conv")[0], tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["conv", "dreml", "drml"])
def test_embed_opens_exported_models_and_ensembles(
    kind: str, runs: Callable[[str], Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = runs(kind)
    name = load_config(RunConfig, folder / "config.toml").data.name
    wanted = functional.normalize(load_file(folder / "test.safetensors")["embeddings"].float())
    for model in (folder, export(folder, tmp_path / "model")):
        out = tmp_path / f"{model.name}.npz"
        assert main(["embed", str(model), name, "--split", "test", "-o", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["dim"] == 8
        with np.load(out) as found:
            torch.testing.assert_close(torch.from_numpy(found["embeddings"]), wanted, rtol=2e-3, atol=1e-5)


def test_a_folder_of_pictures_is_prepared_for_the_model(runs: Callable[[str], Run], tmp_path: Path) -> None:
    folder, paths = runs("photos")
    name = load_config(RunConfig, folder / "config.toml").data.name
    dataset = open_images(name)
    assert isinstance(dataset.images, Pictures)
    model = open_model(str(folder), None, dataset)
    assert embed_to_file(model, as_trained(dataset, model), tmp_path / "out.npz", "test") == (16, 8)
    with np.load(tmp_path / "out.npz") as found:
        assert torch.equal(torch.from_numpy(found["embeddings"]), load(folder).embed(paths))
        assert [str(Path(name) / path) for path in found["paths"]] == paths
        assert "the middle 112x112" in json.loads(str(found["info"]))["images"]


def test_data_that_do_not_fit_the_model_are_refused(runs: Callable[[str], Run]) -> None:
    of_features = str(runs("features")[0])
    with pytest.raises(InputError, match="takes 12 features of an image, float32; digits holds images"):
        open_model(of_features, None, data.load("digits"))
    dataset = data.load(load_config(RunConfig, Path(of_features) / "config.toml").data.name)
    with pytest.raises(InputError, match=r"uint8 \(N, H, W\) or \(N, H, W, 3\); got float32 \(48, 12\)"):
        open_model(str(runs("conv")[0]), None, dataset)


# ---------------------------------------------------------------------------------------------------------------
# A head on frozen features, joined with their backbone


def small_backbone(folder: Path) -> list[str]:
    """Arguments that name a backbone: the small network with weights of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = backbones.conv(16).net
    save_file({name: value.contiguous() for name, value in net.state_dict().items()}, folder / "conv.safetensors")
    return ["--weights", str(folder / "conv.safetensors")]


def head_on(features: Path, out: Path, *overrides: str) -> Path:
    """A finished run that trained a head on a file of features."""
    on = [f"data.name={features}", "model.backbone=features", "model.pool=max", *overrides]
    train(load_config(RunConfig, None, [*SMALL, *on]), out)
    return out


def same_vectors(run: Path, features: Path, joined: Embedder, photographs: Path, tolerance: float) -> None:
    """What the joined model makes of the photographs is what the head makes of their features."""
    with np.load(features) as archive:
        wanted = load(run).embed(archive["embeddings"])
        images = [photographs / path for path in archive["paths"]]
    torch.testing.assert_close(joined.embed(images), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("resize", ["crop", "square"])
def test_a_head_and_the_backbone_of_its_features_are_one_model(resize: str, tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    features = tmp_path / "features.npz"
    options = ["--size", "64", "--resize", resize, "--part", "all"]
    assert main(["embed", "efficientnet_lite0", str(tmp_path / "photos"), *options, "-o", str(features)]) == 0
    run = head_on(features, tmp_path / "run", "model.norm=layer_affine")
    assert main(["export", str(run), "-o", str(tmp_path / "model")]) == 0  # all is recorded
    features.unlink()
    model = load(tmp_path / "model")
    assert model.input == PictureInput(
        colour=True, rule="short" if resize == "crop" else "exact", resize=(64, 64), crop=(64, 64)
    )
    assert model.description.joined == "efficientnet_lite0"
    assert (model.net.get_submodule("backbone").training, model.description.model.pool) == (False, "avg")
    card = (tmp_path / "model" / "README.md").read_text()
    assert card == model.card
    assert "efficientnet_lite0, from weights of efficientnet-lite0-57934424.pth" in card
    assert "frozen: the head was trained on its features" in card
    main(["embed", "efficientnet_lite0", str(tmp_path / "photos"), *options, "-o", str(features)])
    same_vectors(run, features, model, tmp_path / "photos", 1e-5)


@pytest.mark.parametrize("method", ["multi_similarity", "drml", "dreml"])
def test_any_head_can_be_joined(method: str, tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    weights, features = small_backbone(tmp_path), tmp_path / "features.npz"
    call = ["conv", str(tmp_path / "photos"), "--part", "all", "--size", "20", *weights]
    assert main(["embed", *call, "-o", str(features)]) == 0
    params = ["method.params.members=2"] if method == "dreml" else []
    run = head_on(features, tmp_path / "run", f"method.name={method}", "model.width=4", *params)
    assert main(["export", str(run), "-o", str(tmp_path / "model"), *weights]) == 0
    same_vectors(run, features, load(tmp_path / "model"), tmp_path / "photos", 1e-5)


def test_a_joined_model_becomes_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    photos(tmp_path / "photos")
    weights, features = small_backbone(tmp_path), tmp_path / "features.npz"
    main(["embed", "conv", str(tmp_path / "photos"), "--part", "all", "--size", "20", *weights, "-o", str(features)])
    run = head_on(features, tmp_path / "run")
    capsys.readouterr()
    assert main(["export", str(run), "-o", str(tmp_path / "model"), *weights, "--onnx", "--verify", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["difference"]["noise"] < TOLERANCE / 10
    assert "not compared on real images: the data are features" in shown.err


def test_what_does_not_fit_is_not_joined(
    runs: Callable[[str], Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos(tmp_path / "photos")
    weights, features = small_backbone(tmp_path), tmp_path / "features.npz"
    main(["embed", "conv", str(tmp_path / "photos"), "--part", "all", "--size", "20", *weights, "-o", str(features)])
    known = head_on(features, tmp_path / "run")
    unknown, own = runs("features")[0], runs("conv")[0]
    other = tmp_path / "other.safetensors"
    save_file({name: value + 1 for name, value in load_file(tmp_path / "conv.safetensors").items()}, other)
    lite0 = ["--backbone", "efficientnet_lite0"]
    for run, options, message in (
        (own, lite0, "backbone is for a head trained on features, but this model has its own"),
        (unknown, lite0, "size is missing: the features do not record how large their images were"),
        (unknown, [*lite0, "--size", "64"], "efficientnet_lite0 gives 1280 features, but the head takes 12"),
        (unknown, ["--size", "64"], "give --backbone too"),
        (known, lite0, "backbone must be conv, which computed the features; got efficientnet_lite0"),
        (known, [], "conv comes without weights"),
        (known, ["--weights", str(other)], "the features were computed with other weights of conv"),
        (known, [*weights, "--size", "30"], "size and resize must be those of the features, RGB"),
    ):
        assert main(["export", str(run), "-o", str(tmp_path / "model"), *options]) == 2
        assert message in capsys.readouterr().err
    assert main(["export", str(known), "-o", str(tmp_path / "alone"), "--backbone", "none"]) == 0
    assert load(tmp_path / "alone").input == FeatureInput(features=64)
    with np.load(features) as archive:  # another file under the same name says nothing about the run
        arrays = {**archive, "embeddings": archive["embeddings"] + 1}
    np.savez(features, **arrays)
    assert main(["export", str(known), "-o", str(tmp_path / "model"), *weights, "--backbone", "conv"]) == 2
    assert "size is missing" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------
# ONNX


def onnx_file(model: Embedder, path: Path) -> Path:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    write_onnx(model, path)
    return path


@pytest.mark.parametrize("kind", ["conv", "drml", "dreml"])
def test_onnx_runtime_gives_the_same(kind: str, runs: Callable[[str], Run], tmp_path: Path) -> None:
    folder, images = runs(kind)
    model = load(folder)
    path = onnx_file(model, tmp_path / "model.onnx")
    batches = [*random_batches(model), model.input.batch(images[:5])]
    assert largest_difference(model, path, batches) < TOLERANCE / 10
    other = load(folder, normalize=False)
    assert largest_difference(other, path, batches) > TOLERANCE  # so that it can be told apart


def test_the_command_exports_and_verifies(
    runs: Callable[[str], Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    folder, _ = runs("features")
    out = tmp_path / "model"
    assert main(["export", str(folder), "-o", str(out), "--onnx", "--verify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["difference"].keys() == {"noise", "test images"}
    assert max(found["difference"].values()) < 1e-5
    assert {p.name for p in out.iterdir()} == {"config.json", "model.safetensors", "README.md", "model.onnx"}
    assert "opset 20" in (out / "README.md").read_text()
    assert (
        "input `images` float32 (batch, 12); output `embedding` float32 (batch, 8)" in (out / "README.md").read_text()
    )
    assert main(["export", str(folder), "-o", str(tmp_path / "plain")]) == 0
    assert "8 dimensions" in capsys.readouterr().out
    assert main(["export", str(folder), "-o", str(tmp_path / "x"), "--verify"]) == 2
    assert "give --onnx too" in capsys.readouterr().err


def test_a_wrong_onnx_file_fails_the_command(
    runs: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")

    def slightly_wrong(model: Embedder, path: Path) -> None:
        with torch.no_grad():
            head = model.get_parameter("net.head.weight")
            head[0, 0] += 0.01
            write_onnx(model, path)
            head[0, 0] -= 0.01

    monkeypatch.setattr(write, "write_onnx", slightly_wrong)
    monkeypatch.setattr(batches, "open_data", no_data)
    assert main(["export", str(runs("features")[0]), "-o", str(tmp_path / "out"), "--onnx", "--verify"]) == 1
    shown = capsys.readouterr()
    assert "above 0.0001" in shown.out
    assert "not compared on real images: the data are elsewhere" in shown.err


def no_data(*_: Any) -> None:
    raise InputError("the data are elsewhere.")


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_packages_are_named(
    module: str, runs: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = runs("features")
    model = load(folder)
    monkeypatch.setitem(sys.modules, module, None)
    wanting = pytest.raises(InputError, match=rf'{module}, which is not installed: pip install "nearfield\[onnx\]"')
    if module == "onnxruntime":
        with wanting:
            largest_difference(model, tmp_path / "model.onnx", [])
    else:
        with wanting:
            export(folder, tmp_path / "out", onnx=True)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_onnx_is_refused(runs: Callable[[str], Run], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(InputError, match="is not an ONNX file"):
        largest_difference(load(runs("features")[0]), tmp_path / "model.onnx", [])


def fresh(backbone: str, side: int, **changes: Any) -> Embedder:
    """An untrained model, as if loaded."""
    taken = PictureInput(colour=True, rule="short", resize=(side, side), crop=(side, side))
    made = {"run": "", "config": "", "method": "", "backbone": backbone, "data": ""}
    values: dict[str, Any] = {"model": {"backbone": backbone, "dim": 16, **changes}, "features": 1}
    values |= {"input": taken.model_dump(), "distance": "cosine", "sha256": "", "training": made, "test": {}}
    description = build_config(Description, values)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Embedder(build_net(description), description, Pretrained("", "", ()), normalize=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "side", "changes"),
    [
        ("bn_inception", 112, {"pool": "max", "norm": "layer"}),
        ("googlenet", 112, {"pool": "avg_max"}),
        ("efficientnet_lite0", 112, {}),
        ("timm:resnet18", 64, {}),
        ("timm:vit_tiny_patch16_224", 224, {"norm": "layer_affine"}),
        ("conv", 28, {"channels": 3}),
    ],
)
def test_every_backbone_becomes_onnx(backbone: str, side: int, changes: dict[str, Any], tmp_path: Path) -> None:
    model = fresh(backbone, side, **changes)
    path = onnx_file(model, tmp_path / "model.onnx")
    assert largest_difference(model, path, random_batches(model)) < TOLERANCE


def test_inputs_in_words() -> None:
    def words(**changes: Any) -> str:
        return PictureInput(**{"colour": True, "rule": "exact", "resize": (8, 9), "crop": (8, 9), **changes}).words

    assert words() == "RGB pictures, uint8, resized to 8x9"
    assert words(crop=(4, 4), colour=False) == "grey pictures, uint8, resized to 8x9, then the middle 4x4"
    assert FeatureInput(features=5).words == "5 features of an image, float32"
