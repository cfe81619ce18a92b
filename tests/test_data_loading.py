"""Augmentations, crops and batches: the same as torchvision's, the same on any number of workers, and resumable."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import pixels_of
from PIL import Image

from nearfield import data
from nearfield.data import Dataset, crops
from nearfield.data.augment import AUGMENTATIONS, Augmentation, augmentation, images_for
from nearfield.data.loader import Cropped, loader
from nearfield.errors import InputError
from nearfield.models.torchvision_shim import torchvision

torchvision()
from torchvision.transforms import v2  # noqa: E402

SMALL = Augmentation(24, "short", 16, "resized", 0.16)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for label in range(6):
        (tmp_path / "photos" / f"{label}").mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 255, (30 + 5 * number, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"{label}" / f"{number}.png")
    return images_for(data.load(str(tmp_path / "photos"), size=24), SMALL, train=True)


# torchvision


@pytest.mark.programs
def test_torchvision_and_timm_can_be_imported_after_the_guard() -> None:
    guard = "from nearfield.models.torchvision_shim import torchvision"
    code = f"{guard}; t = torchvision(); import timm; assert torchvision() is t"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.programs
def test_importing_the_guard_imports_nothing() -> None:
    code = "import sys, nearfield.models.torchvision_shim; sys.exit('torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Augmentations


def test_the_papers_numbers() -> None:
    assert AUGMENTATIONS["fastap"] == Augmentation(256, "square", 224, "random", 1.0)
    assert AUGMENTATIONS["multi_similarity"] == Augmentation(256, "short", 227, "resized", 0.16)
    assert AUGMENTATIONS["unbiased"].scale == 0.08
    assert augmentation("fastap") is AUGMENTATIONS["fastap"]


def test_an_unknown_augmentation() -> None:
    with pytest.raises(InputError, match="unknown augmentation 'fast'; did you mean 'fastap'"):
        augmentation("fast")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": 100}, "side must be at most size, 100"),
        ({"crop": "centre"}, "crop must be one of random, resized"),
        ({"rule": "wide"}, "rule must be one of"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(AUGMENTATIONS["fastap"], **changes)  # type: ignore[arg-type]


# Windows


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=9),
    st.floats(0.01, 1.0),
    st.integers(0, 99),
)
def test_windows_lie_inside(shapes: list[tuple[int, int]], scale: float, seed: int) -> None:
    where = np.asarray(shapes)
    found = crops.random_resized(where, scale, np.random.default_rng(seed))
    assert (found[:, :2] >= 0).all()
    assert (found[:, 2:] >= 1).all()
    assert (found[:, :2] + found[:, 2:] <= where).all()


@pytest.mark.parametrize("shape", [(120, 160), (100, 400), (301, 90)])
@pytest.mark.parametrize("scale", [0.08, 0.16])
def test_windows_are_distributed_as_torchvisions(shape: tuple[int, int], scale: float) -> None:
    draws = 3000
    found = crops.random_resized(np.tile(shape, (draws, 1)), scale, np.random.default_rng(0))
    usual = v2.RandomResizedCrop(10, scale=(scale, 1.0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = [usual.make_params([torch.empty(3, *shape)]) for _ in range(draws)]
    wanted = np.asarray([[m["top"], m["left"], m["height"], m["width"]] for m in made])
    from scipy.stats import ks_2samp

    for column in range(4):
        assert ks_2samp(found[:, column], wanted[:, column]).pvalue > 1e-4, column


def test_random_windows_reach_every_place() -> None:
    found = crops.uniform(np.tile((6, 5), (400, 1)), 4, np.random.default_rng(0))
    assert {tuple(w) for w in found.tolist()} == {(top, left, 4, 4) for top in range(3) for left in range(2)}


@given(st.integers(3, 60), st.integers(3, 60), st.integers(1, 60))
def test_the_centre_is_torchvisions(height: int, width: int, side: int) -> None:
    if side > min(height, width):
        with pytest.raises(InputError, match=f"at least {side} pixels"):
            crops.centre(np.array([[height, width]]), side)
        return
    ((top, left, h, w),) = crops.centre(np.array([[height, width]]), side).tolist()
    image = torch.arange(height * width).view(1, height, width)
    assert torch.equal(image[:, top : top + h, left : left + w], v2.functional.center_crop(image, [side, side]))


# Batches


def test_a_test_batch_is_what_torchvision_makes(photos: Dataset) -> None:
    batch = Cropped(photos.images, SMALL, train=False, seed=0)[(0, [0, 1, 2])]
    for row in range(3):
        image = torch.from_numpy(photos.images[row]).permute(2, 0, 1)
        assert torch.equal(batch[row], v2.functional.center_crop(image, [16, 16]))


def test_a_training_crop_is_what_torchvision_makes_of_the_same_window(photos: Dataset) -> None:
    batch = Cropped(photos.images, SMALL, train=True, seed=5)[(7, list(range(18)))]
    generator = np.random.default_rng([5, 7])
    images = [torch.from_numpy(photos.images[row]).permute(2, 0, 1) for row in range(18)]
    where = crops.random_resized(np.asarray([p.shape[1:] for p in images]), 0.16, generator)
    mirrored = generator.random(18) < 0.5
    assert 0 < mirrored.sum() < 18
    for row, (top, left, height, width) in enumerate(where.tolist()):
        usual = v2.functional.resized_crop(images[row], top, left, height, width, [16, 16], antialias=True)
        usual = usual.flip(-1) if mirrored[row] else usual
        assert (batch[row].int() - usual.int()).abs().max() <= 1


def test_a_random_window_is_cut_not_stretched(photos: Dataset) -> None:
    chosen = replace(SMALL, crop="random", rule="square")
    images = images_for(photos, chosen, train=True).images
    (found,) = Cropped(images, chosen, train=True, seed=0)[(0, [4])]
    whole = images[4].transpose(2, 0, 1)
    places = [whole[:, y : y + 16, x : x + 16] for y in range(9) for x in range(9)]
    assert any(np.array_equal(found, p) or np.array_equal(found, p[..., ::-1]) for p in places)


BATCHES = [[0, 5, 3], [2, 2, 17], [9, 1, 4], [8, 10, 11]]


def test_batches_do_not_depend_on_workers_caches_or_interruptions(photos: Dataset) -> None:
    plain = list(loader(photos, BATCHES, SMALL, train=True, seed=3))
    assert [batch.shape for batch in plain] == [(3, 3, 16, 16)] * 4
    torch.manual_seed(123)  # nor on the global generator
    ways = {
        "cached": loader(data.decoded(photos), BATCHES, SMALL, train=True, seed=3),
        "workers": loader(photos, BATCHES, SMALL, train=True, seed=3, workers=1),
        "resumed": [*plain[:2], *loader(photos, BATCHES[2:], SMALL, train=True, seed=3, first=2)],
    }
    for way, batches in ways.items():
        for one, two in zip(plain, batches, strict=True):
            assert torch.equal(one, two), way
    other = list(loader(photos, BATCHES, SMALL, train=True, seed=4))
    assert not torch.equal(plain[0], other[0])
    again = list(loader(photos, [BATCHES[0]] * 2, SMALL, train=True, seed=3))
    assert not torch.equal(again[0], again[1])


def test_workers_that_are_started_anew_can_be_used(photos: Dataset) -> None:
    import pickle

    made = pickle.loads(pickle.dumps(Cropped(data.decoded(photos).images, SMALL, train=True, seed=0)))
    (expected,) = loader(photos, [[1, 2]], SMALL, train=True)
    assert torch.equal(made[(0, [1, 2])], expected)


def test_grey_arrays_make_batches_too() -> None:
    digits = data.load("digits")
    (batch,) = loader(digits, [[0, 1]], Augmentation(8, "short", 6, "resized", 0.16), train=True)
    assert batch.shape == (2, 1, 6, 6)


def test_features_make_none() -> None:
    digits = data.load("digits")
    features = replace(digits, images=pixels_of(digits).reshape(1797, -1).astype(np.float32))
    assert images_for(features, SMALL, train=True) is features
    with pytest.raises(InputError, match="must have pixels to be cropped"):
        next(loader(features, [[0]], SMALL, train=True))
    with pytest.raises(InputError, match="workers must be at least 0"):
        next(loader(digits, [[0]], SMALL, train=True, workers=-1))
