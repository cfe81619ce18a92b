"""Frozen stages: they never change, and training from their stored activations is training the whole network."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from nearfield.config import DataConfig, ModelConfig, RunConfig, build_config, load_config
from nearfield.data import cache_dir, decoded, load
from nearfield.data.input_spec import input_of
from nearfield.errors import InputError, RunError
from nearfield.export import load as load_model
from nearfield.models import EmbeddingModel, activations, build_model
from nearfield.training import batches
from nearfield.training.batches import Supply, open_data
from nearfield.training.build import build_learner
from nearfield.training.loop import Interrupted, train
from nearfield.training.run_folder import RunFolder

SMALL = [
    "data.name=digits", "data.val_fraction=0.4", "sampler.batch_size=12", "model.width=4", "model.dim=8",
    "model.frozen_stages=2", "steps=6", "eval_every=3", "optimizer.lr=0.02",
]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no supply from before."""
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    batches.supply_of.cache_clear()
    return cache_dir() / "activations"


def config_of(*overrides: str) -> RunConfig:
    return load_config(RunConfig, None, [*SMALL, *overrides])


def some_images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supply, "behind_frozen", lambda self, model: self)


@pytest.mark.parametrize(
    ("backbone", "side", "stages"), [("conv", 16, 4), ("timm:tf_efficientnet_lite0", 32, 7)], ids=["conv", "lite0"]
)
def test_stages_one_after_the_other_are_the_network(backbone: str, side: int, stages: int) -> None:
    images = some_images(3, side, side)
    whole = build_model(ModelConfig(backbone=backbone), seed=0).eval()
    for count in (1, stages // 2, stages):
        model = build_model(ModelConfig(backbone=backbone, frozen_stages=count), seed=0).eval()
        assert len(model.frozen) == count
        assert model.state_dict().keys() == whole.state_dict().keys()
        torch.testing.assert_close(model(images), whole(images))
        given = model.activations(images)
        model.takes_activations = True
        torch.testing.assert_close(model(given), whole(images))


def test_more_stages_than_there_are_is_an_error() -> None:
    with pytest.raises(InputError, match="at most the number of the backbone's stages; this one has 4, got 5"):
        build_model(ModelConfig(frozen_stages=5), seed=0)
    with pytest.raises(InputError, match="has none that are known, got 1"):
        build_model(ModelConfig(backbone="timm:resnet10t", frozen_stages=1), seed=0)


def test_an_old_configuration_keeps_its_digest() -> None:
    assert ModelConfig(frozen_stages=0).digest() == ModelConfig().digest() != ModelConfig(frozen_stages=1).digest()
    assert DataConfig(size=None).digest() == DataConfig().digest() != DataConfig(size=64).digest()


@pytest.mark.parametrize("more", [(), ("optimizer.frozen_steps=3",), ("ema=0.9",), ("chunk=5",)])
def test_frozen_stages_stay_and_the_others_learn(more: tuple[str, ...], tmp_path: Path) -> None:
    config, at = config_of(*more), [0]
    before = build_learner(config, 3).model
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", lambda step, *_: at.append(step), lambda: at[-1] == 5)
    saved = RunFolder(tmp_path / "run").load()
    assert saved is not None
    frozen = {id(value) for stage in before.frozen for value in (*stage.parameters(), *stage.buffers())}
    for name, value in (*before.named_parameters(), *before.named_buffers()):
        same = torch.equal(saved.weights[f"model.{name}"], value)
        if id(value) in frozen:
            assert same, name
        elif name.endswith("weight"):
            assert not same, name


@pytest.mark.parametrize("more", [(), ("model.init=pca",), ("ema=0.9", "method.name=drml", "model.dim=16")])
def test_training_from_activations_is_training_the_network(
    more: tuple[str, ...], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(*more)
    stored = train(config, tmp_path / "stored")
    assert len(list(cache.glob("*.npy"))) == 1
    without_cache(monkeypatch)
    plain = train(config, tmp_path / "plain")
    assert stored["val"] == pytest.approx(plain["val"], abs=2e-3)
    assert stored["test"] == pytest.approx(plain["test"], abs=2e-3)
    a, b = weights(tmp_path / "stored"), weights(tmp_path / "plain")
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-4)


def test_float16_changes_little(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = train(config_of(), tmp_path / "exact")
    (entry,) = cache.glob("*.npy")
    full = np.load(entry)
    entry.unlink()
    monkeypatch.setattr(activations, "LARGEST", 0)
    half = train(config_of(), tmp_path / "half")
    found = np.load(entry)
    assert (full.dtype, found.dtype) == (np.float32, np.float16)
    assert np.array_equal(found, full.astype(np.float16))
    assert half["val"] == pytest.approx(exact["val"], abs=0.02)


def test_what_float16_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "LARGEST", 0)
    model = build_model(ModelConfig(width=2, frozen_stages=1), seed=0)
    with torch.no_grad():
        model.frozen[0][1].weight.fill_(1e6)  # type: ignore[index]
    with pytest.raises(RunError, match="must be below 65504"):
        activations.activations_of(model, some_images(5, 8, 8), "some")


def test_it_resumes_after_a_stop(tmp_path: Path) -> None:
    config = config_of("ema=0.9", "model.dropout=0.2")
    train(config, tmp_path / "whole")
    at = {"step": 0}

    def progress(step: int, steps: int, latest: dict[str, float]) -> None:
        at["step"] = step

    for last in (2, 4):
        with pytest.raises(Interrupted):
            train(config, tmp_path / "stopped", progress, lambda last=last: at["step"] == last)  # type: ignore[misc]
    train(config, tmp_path / "stopped")
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "stopped")]
    assert results[0]["test"] == results[1]["test"]
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_an_exported_model_takes_images(tmp_path: Path) -> None:
    train(config_of(), tmp_path / "run")
    data = load("digits")
    rows = data.test_rows()[:20]
    found = load_model(tmp_path / "run", normalize=False).embed(data.images[rows])
    scored = load_file(tmp_path / "run" / "test.safetensors")["embeddings"][:20].float()
    torch.testing.assert_close(torch.as_tensor(found), scored, rtol=5e-3, atol=5e-3)  # stored in float16


# ---------------------------------------------------------------------------------------------------------------
# The cache


def made(model: EmbeddingModel, images: Tensor, data: str = "some") -> Tensor:
    return activations.activations_of(model, images, data)


def test_activations_are_computed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = build_model(ModelConfig(width=2, frozen_stages=2), seed=0), some_images(70, 8, 8)
    first = made(model, images)
    torch.testing.assert_close(first, model.activations(images))
    monkeypatch.setattr(EmbeddingModel, "activations", lambda self, images: pytest.fail("computed again"))
    again = made(model, images)
    assert torch.equal(again, first)
    again.zero_()  # changes the copy of this process only
    assert torch.equal(made(model, images), first)


def test_whatever_changes_them_has_another_entry(cache: Path) -> None:
    images = some_images(5, 8, 8)
    model = build_model(ModelConfig(width=2, frozen_stages=2), seed=0)
    made(model, images)
    made(model, images, data="others")
    made(build_model(ModelConfig(width=2, frozen_stages=1), seed=0), images)
    made(build_model(ModelConfig(width=2, frozen_stages=2), seed=1), images)
    other = copy.deepcopy(model)
    other.frozen[1][1].running_mean.add_(1)  # type: ignore[index]
    made(other, images)
    assert len(list(cache.glob("*.npy"))) == 5


@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 200), lambda path: path.write_bytes(b"")])
def test_a_damaged_entry_is_made_again(damage: object, cache: Path) -> None:
    model, images = build_model(ModelConfig(width=2, frozen_stages=2), seed=0), some_images(5, 8, 8)
    first = made(model, images).clone()
    (entry,) = cache.glob("*.npy")
    damage(entry)  # type: ignore[operator]
    assert torch.equal(made(model, images), first)


def test_a_failure_leaves_no_entry(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(ModelConfig(width=2, frozen_stages=2), seed=0)
    right, calls = EmbeddingModel.activations, []

    def fail_later(self: EmbeddingModel, images: Tensor) -> Tensor:
        calls.append(len(images))
        if len(calls) == 2:
            raise MemoryError
        return right(self, images)

    monkeypatch.setattr(EmbeddingModel, "activations", fail_later)
    with pytest.raises(MemoryError):
        made(model, some_images(100, 8, 8))
    assert list(cache.iterdir()) == []


# ---------------------------------------------------------------------------------------------------------------
# The size of images


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Eight classes of three colour images, wider than high."""
    draw = np.random.default_rng(0)
    for label in "abcdefgh":
        for number in range(3):
            path = tmp_path / "photographs" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photographs"


def test_a_size_resizes_and_keeps_the_centre(photographs: Path) -> None:
    config = DataConfig(name=str(photographs), size=20)
    dataset = open_data(config)
    assert dataset.images[0].shape == (20, 20, 3)
    for each in (dataset, decoded(dataset)):  # a model trained on stored images prepares files in the same way
        spec = input_of(each, config)
        assert spec.batch([photographs / "a" / "0.png"]).shape == (1, 20, 20, 3)
        assert np.array_equal(spec.batch([photographs / "a" / "0.png"])[0], dataset.images[0])


def test_augmented_images_have_their_own_size_and_no_cache(photographs: Path, cache: Path) -> None:
    with pytest.raises(InputError, match="size must be left out with augment"):
        build_config(DataConfig, {"size": 20, "augment": "small"})
    config = DataConfig(name=str(photographs), augment="small", val_fraction=0.5)
    supply = Supply(open_data(config), config)
    model = build_model(ModelConfig(channels=3, width=2, frozen_stages=2), seed=0)
    assert supply.behind_frozen(model) is supply
    assert not cache.exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_digest_tells_weights_of_every_type_apart(dtype: torch.dtype) -> None:
    def digest(last: float, told: str = "data") -> str:
        layer = torch.nn.Linear(2, 2).to(dtype)
        layer.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.tensor([0.0, last])})
        return activations.digest_of([layer, torch.nn.BatchNorm1d(2)], told)

    assert digest(1.0) == digest(1.0)
    assert len({digest(1.0), digest(2.0), digest(1.0, "other data")}) == 3
