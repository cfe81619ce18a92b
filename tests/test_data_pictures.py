"""Pictures: decoding, resizing as torchvision does, and the cache they are decoded into once."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from nearfield import data
from nearfield.data import Dataset, Pictures, Stored
from nearfield.data.pictures import BLOCK, Paths, decode, digests_of, map_in_order, resized
from nearfield.errors import InputError, RunError

SHAPES = [(40, 30), (30, 41), (32, 32), (64, 20)]  # width, height


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Dataset:
    """Six classes of four pictures of different shapes."""
    rng = np.random.default_rng(0)
    for label in range(6):
        (tmp_path / "photos" / f"{label}").mkdir(parents=True)
        for number, (width, height) in enumerate(SHAPES):
            pixels = rng.integers(0, 255, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"{label}" / f"{number}.png")
    return data.load(str(tmp_path / "photos"), size=24)


def at(dataset: Dataset, size: int | None = 24, resize: str = "square", colour: bool = True) -> Dataset:
    assert isinstance(dataset.images, Pictures)
    return replace(dataset, images=dataset.images.at(size, resize, colour))


def encoded(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format=kind, **options)
    return buffer.getvalue()


# Decoding


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_kind_of_picture_becomes_rgb_or_grey(mode: str) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5
    picture = Image.fromarray(pixels).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture).astype(np.uint16) << 8)
    content = encoded(picture, "TIFF" if mode == "CMYK" else "PNG")
    grey = np.asarray(Image.fromarray(pixels).convert("L")).astype(int)
    for colour, channels in ((True, (4, 4, 3)), (False, (4, 4))):
        found = np.asarray(decode(content, "x", colour))
        assert found.shape == channels
        if mode in ("L", "LA", "I;16"):  # 16 bits keep their upper eight
            assert np.array_equal(found[..., 0] if colour else found, grey)
        elif mode in ("RGB", "RGBA") and colour:
            assert np.array_equal(found, pixels)


def test_transparent_palettes_make_no_warning() -> None:
    picture = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)).convert("P")
    content = encoded(picture, transparency=b"\x00\x80")
    assert decode(content, "x", True).mode == "RGB"


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "BMP"]),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6),
    st.integers(0, 2000),
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_damage_is_an_input_error_or_harmless(kind: str, changes: list[tuple[int, int]], length: int) -> None:
    content = bytearray(encoded(Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)), kind))
    for place, value in changes:
        content[place % len(content)] = value
    with suppress(InputError):
        decode(bytes(content[: max(1, length)]), "x", True)


def test_a_picture_of_too_many_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(InputError, match="decompression bomb"):
        decode(encoded(Image.new("L", (30, 30))), "x", False)


# Resizing


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40))
def test_sizes_and_pixels_are_torchvisions(width: int, height: int, size: int) -> None:
    from nearfield.models.torchvision_shim import torchvision

    torchvision()
    from torchvision.transforms import v2

    pixels = np.random.default_rng(width * height).integers(0, 255, (height, width, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    wanted = {
        "square": v2.Resize((size, size)),
        "short": v2.Resize(size),
        "crop": v2.Compose([v2.Resize(size), v2.CenterCrop(size)]),
    }
    for rule, transform in wanted.items():
        assert np.array_equal(np.asarray(resized(picture, size, rule)), np.asarray(transform(picture))), rule
    assert resized(picture, None, "short") is picture


def test_rows_are_stacked_or_refused(photos: Dataset) -> None:
    assert photos.images[3].shape == (24, 24, 3)
    assert photos.images[[0, 3, 1]].shape == (3, 24, 24, 3)
    assert photos.images[:5].shape == (5, 24, 24, 3)
    assert at(photos, colour=False).images[np.array([1, 2])].shape == (2, 24, 24)
    short = at(photos, resize="short")
    assert [short.images[row].shape for row in range(4)] == [(24, 32, 3), (32, 24, 3), (24, 24, 3), (24, 76, 3)]
    with pytest.raises(
        InputError, match=r"must be square or crop to stack images, with a size; these are short side 24 RGB"
    ):
        short.images[:2]
    assert at(photos, size=None).images[0].shape == (30, 40, 3)


@pytest.mark.parametrize(("options", "words"), [({"resize": "long"}, "resize must be one of"), ({"size": 0}, "size")])
def test_nonsense_is_refused(photos: Dataset, options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        at(photos, **options)  # type: ignore[arg-type]


def test_work_is_done_in_order_and_reported() -> None:
    seen: list[tuple[int, int]] = []
    count = 2 * BLOCK + 3
    assert list(map_in_order(lambda i: i * i, count, lambda d, t: seen.append((d, t)))) == [i * i for i in range(count)]
    assert seen == [(BLOCK, count), (2 * BLOCK, count), (count, count)]


# The cache


@pytest.mark.parametrize("resize", ["square", "short", "crop", "whole"])
@pytest.mark.parametrize("colour", [True, False])
def test_the_cache_holds_exactly_what_decoding_gives(photos: Dataset, resize: str, colour: bool) -> None:
    lazy = at(photos, None, "short", colour) if resize == "whole" else at(photos, 24, resize, colour)
    cached = data.decoded(lazy)
    assert isinstance(cached.images, Stored)
    assert cached.fingerprint == photos.fingerprint
    assert cached.summary() == lazy.summary()
    for row in range(len(photos.labels)):
        assert np.array_equal(cached.images[row], lazy.images[row])
    assert np.array_equal(cached.images[-1], lazy.images[len(photos.labels) - 1])
    with pytest.raises(IndexError):
        cached.images[len(photos.labels)]
    if resize in ("square", "crop"):
        assert np.array_equal(data.pixels(lazy), lazy.images[:])
        assert np.array_equal(cached.images[[2, 5]], lazy.images[[2, 5]])
    else:
        with pytest.raises(InputError, match="must be square or crop to make one array"):
            data.pixels(lazy)


def test_it_is_decoded_once(photos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    first = data.decoded(photos, lambda done, total: seen.append((done, total)))
    assert seen == [(24, 24)]
    monkeypatch.setattr(Pictures, "read", lambda self, row: pytest.fail("decoded again"))
    again = data.decoded(photos)
    assert np.array_equal(again.images[:], first.images[:])
    assert data.decoded(first) is first
    digits = data.load("digits")
    assert data.decoded(digits) is digits
    assert data.pixels(digits) is digits.images


def test_tensors_can_be_made_of_it_and_written_to_without_harm(photos: Dataset) -> None:
    import torch

    tensor = torch.from_numpy(data.pixels(photos))
    before = tensor[0, 0, 0, 0].item()
    tensor[0, 0, 0, 0] = 255 - before
    assert data.decoded(photos).images[0][0, 0, 0] == before


def test_it_travels_between_processes_without_its_pixels(photos: Dataset) -> None:
    cached = data.decoded(at(photos, 200))
    cached.images[:]
    content = pickle.dumps(cached.images)
    assert len(content) < 5000
    assert np.array_equal(pickle.loads(content)[:], cached.images[:])


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "pixels.bin").write_bytes(b"short"),
        lambda folder: (folder / "pixels.bin").unlink(),
        lambda folder: (folder / "shapes.npy").write_bytes(b""),
        lambda folder: np.save(folder / "shapes.npy", np.zeros((3, 2), dtype=np.int64)),
    ],
)
def test_a_damaged_cache_is_made_again(photos: Dataset, cache: Path, damage: Callable[[Path], object]) -> None:
    expected = photos.images[:]
    data.decoded(photos)
    (folder,) = (cache / "pixels").iterdir()
    damage(folder)
    assert np.array_equal(data.pixels(photos), expected)


def test_a_failure_leaves_nothing(photos: Dataset, cache: Path) -> None:
    assert isinstance(photos.images, Pictures)
    Path(photos.images.files.name(7)).write_bytes(b"no picture")
    with pytest.raises(InputError, match="cannot read the image"):
        data.decoded(photos)
    assert not list((cache / "pixels").iterdir())


def test_a_full_disk_is_a_run_error(photos: Dataset, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(RunError, match="No space left on device"):
        data.decoded(photos)
    assert not list((cache / "pixels").iterdir())


def test_a_folder_that_cannot_be_written(photos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "file"))
    with pytest.raises(RunError, match="choose another folder"):
        data.decoded(photos)


def test_other_content_has_another_cache(photos: Dataset, tmp_path: Path, cache: Path) -> None:
    data.decoded(photos)
    Image.new("RGB", (30, 30)).save(tmp_path / "photos" / "0" / "0.png")
    changed = data.load(str(tmp_path / "photos"), size=24)
    assert changed.fingerprint != photos.fingerprint
    assert data.decoded(changed).images[0].max() == 0
    data.decoded(at(photos, 12))
    assert len(list((cache / "pixels").iterdir())) == 3


BUILD = """
import sys, hashlib
from nearfield import data
print(hashlib.sha256(data.pixels(data.load(sys.argv[1], size=24)).tobytes()).hexdigest())
"""


@pytest.mark.programs
def test_two_processes_may_build_it_at_once(photos: Dataset, tmp_path: Path, cache: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path / "photos")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) for _ in range(3)]
    found = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(found) == 1
    (folder,) = (cache / "pixels").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["pixels.bin", "shapes.npy"]


def test_the_slower_of_two_throws_its_own_away(photos: Dataset, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process decodes, another finishes the same cache."""
    once: list[Dataset] = []

    def other(done: int, total: int) -> None:
        if not once:
            once.append(data.decoded(photos))

    mine = data.decoded(photos, other)
    assert np.array_equal(mine.images[:], once[0].images[:])
    assert len(list((cache / "pixels").iterdir())) == 1


def test_digests_follow_content(tmp_path: Path) -> None:
    for name, content in {"ä.png": b"1", "b.png": b"1", "c.png": b"2"}.items():
        (tmp_path / name).write_bytes(content)
    digests = digests_of(Paths(tmp_path, ("ä.png", "b.png", "c.png")))
    assert np.array_equal(digests[0], digests[1])
    assert not np.array_equal(digests[0], digests[2])
    with pytest.raises(InputError, match=r"cannot read the image .*d.png: No such file"):
        digests_of(Paths(tmp_path, ("d.png",)))
