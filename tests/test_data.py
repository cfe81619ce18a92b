"""The datasets: what a Dataset promises, and that the glyphs are varied, truthful and the same everywhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nearfield import data
from nearfield.data import Dataset, DataWarning, dataset
from nearfield.data.builtin import glyphs
from nearfield.errors import InputError, RunError

FEW = [ord(character) for character in "2Q&жЩӁ⠋⠧⡅"]  # three classes of each of three categories
SAMPLE = [ord(character) for character in "QЖ⇛"]

LOOK_ALIKES = [
    "AΑАᴀ", "BΒВ", "CcСсϲ", "EΕЕ", "HΗНʜ", "KΚК", "NΝ", "OoОоΟο0", "Ppρр", "SsЅѕ", "UuՍ", "Vvνѵ∨",
    "Ww", "Xx×ΧХх✕✖", "Zz", "3ЗȜƷ", "5Ƽ", "-–—−_", ".·•", "ÁΆ", "Çç", "Ẅẅ", "▶►▸", "♥❤", "✓✔", "✗✘",
    "µμ", "ΩΩ", "(❨", "<‹", "¢⍧", "ǂ‡", "ςҪ", "a𝑎𝐚", "2²₂", "│┃|ǀ",
]  # fmt: skip

DIGEST = """
import hashlib
from nearfield.data.builtin import glyphs
faces = glyphs.open_faces()
print(hashlib.sha256(b"".join(glyphs.render_class(c, faces).tobytes() for c in {})).hexdigest())
"""


@pytest.fixture(scope="module")
def faces() -> tuple[glyphs.Face, ...]:
    return glyphs.open_faces()


@pytest.fixture(scope="module")
def whole() -> Dataset:
    return data.load("glyphs")  # drawn once, then from the user's cache


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of its own, where `glyphs.load` draws nine classes and calls them the published ones."""
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glyphs, "select", lambda faces: FEW)
    monkeypatch.setattr(glyphs, "PINNED", ("0", "0", "0"))
    with pytest.warns(DataWarning):
        drawn = data.load("glyphs")
    monkeypatch.setattr(glyphs, "PINNED_FINGERPRINT", drawn.fingerprint)
    (path,) = (tmp_path / "cache").iterdir()
    return path


def codepoints(dataset: Dataset) -> list[int]:
    return [ord(unicodedata.lookup(name)) for name in dataset.class_names]


def toy(**changes: object) -> Dataset:
    fields: dict[str, object] = {
        "name": "toy",
        "images": np.zeros((6, 2, 3), dtype=np.uint8),
        "labels": np.array([0, 0, 1, 2, 2, 2]),
        "class_names": ("a", "b", "c"),
        "class_category": np.array([0, 0, 1]),
        "category_names": ("x", "y"),
        "train_classes": np.array([0, 2]),
        "test_classes": np.array([1]),
        "fingerprint": "0",
        "description": "",
    }
    return Dataset(**(fields | changes))  # type: ignore[arg-type]


# Dataset


def test_rows_and_counts() -> None:
    dataset = toy()
    assert dataset.indices_of([2, 0]).tolist() == [0, 1, 3, 4, 5]
    assert dataset.indices_of([]).tolist() == []
    summary = dataset.summary()
    assert (summary["images"], summary["classes"], summary["categories"]) == (6, 3, 2)
    assert [summary[f"images_per_class_{which}"] for which in ("min", "median", "max")] == [1, 2.0, 3]
    assert (summary["train_images"], summary["test_images"], summary["image_size"]) == (5, 1, "2x3")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": np.zeros((6, 2, 3))}, r"images .*uint8.*float64"),
        ({"images": np.zeros((6, 6), dtype=np.uint8)}, r"images .*\(6, 6\)"),
        ({"labels": np.array([0, 1, 2])}, r"labels must have 6 entries, got 3"),
        ({"labels": np.array([0, 0, 1, 2, 2, 3])}, r"labels must lie in 0\.\.2, got values from 0 to 3"),
        ({"labels": np.array([0, 0, 1, 2, 2, 2], dtype=np.int32)}, r"labels .*int64.*int32"),
        ({"class_category": np.array([0, 0, -1])}, r"class_category must lie in 0\.\.1"),
        ({"test_classes": np.array([1, 2])}, r"disjoint, got class 2 twice"),
        ({"train_classes": np.array([0])}, r"all 3 classes together, got 2"),
    ],
)
def test_a_wrong_dataset_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        toy(**changes)


def test_features_and_colours_are_images_too() -> None:
    assert toy(images=np.zeros((6, 4), dtype=np.float16)).summary()["image_size"] == "4 features"
    assert toy(images=np.zeros((6, 4), dtype=np.float32)).are_features
    assert toy(images=np.zeros((6, 2, 3, 3), dtype=np.uint8)).summary()["image_size"] == "2x3 RGB"
    with pytest.raises(InputError, match="row 2 has a NaN"):
        toy(images=np.where(np.arange(12).reshape(6, 2) == 5, np.nan, 0.0))


CLOSED = {"train_classes": np.array([0, 1, 2]), "test_classes": np.array([0, 2])}


def test_a_closed_set_is_split_by_images() -> None:
    dataset = toy(**CLOSED, is_test=np.array([0, 1, 0, 0, 1, 1], dtype=bool))
    assert dataset.train_rows().tolist() == [0, 2, 3]
    assert dataset.train_rows([0, 2]).tolist() == [0, 3]
    assert dataset.test_rows().tolist() == [1, 4, 5]
    assert dataset.summary()["shared_classes"] == 2
    with pytest.raises(InputError, match="exactly the classes of test_classes for test"):
        toy(**CLOSED, is_test=np.array([0, 1, 0, 0, 0, 0], dtype=bool))
    with pytest.raises(InputError, match="disjoint"):
        toy(**CLOSED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_query": [2]}, "together"),
        ({"is_query": [2], "is_gallery": [0]}, "test images only, got row 0"),
        ({"is_query": [2], "is_gallery": []}, "each hold at least one"),
    ],
)
def test_queries_and_gallery_are_test_images(changes: dict[str, list[int]], words: str) -> None:
    flags = {name: np.isin(np.arange(6), rows) for name, rows in changes.items()}
    with pytest.raises(InputError, match=words):
        toy(**flags)
    with pytest.raises(InputError, match=r"is_query must be a bool array of shape \(6,\)"):
        toy(is_query=np.zeros(6))


def test_unknown_classes_are_refused() -> None:
    with pytest.raises(InputError, match=r"classes must lie in 0\.\.2, got values from 0 to 3"):
        toy().indices_of([0, 3])


@given(st.sets(st.integers(0, 10_000), min_size=4, max_size=60), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_a_split_is_disjoint_complete_and_repeatable(classes: set[int], fraction: float, seed: int) -> None:
    kept, held = data.split_classes(sorted(classes), fraction, seed)
    assert not set(kept.tolist()) & set(held.tolist())
    assert set(kept.tolist()) | set(held.tolist()) == classes
    assert len(kept) > 1
    assert len(held) == min(max(round(fraction * len(classes)), 2), len(classes) - 2)
    again = data.split_classes(sorted(classes, reverse=True), fraction, seed)
    assert dataset.split_fingerprint(kept, held) == dataset.split_fingerprint(*again)


def test_split_seeds_differ_and_nonsense_is_refused() -> None:
    assert data.split_classes(range(50), 0.5, 0)[1].tolist() != data.split_classes(range(50), 0.5, 1)[1].tolist()
    with pytest.raises(InputError, match=r"fraction .*1\.0"):
        data.split_classes(range(4), 1.0, 0)
    with pytest.raises(InputError, match=r"classes .*got 1"):
        data.split_classes([7, 7], 0.5, 0)


def test_split_fingerprints_know_where_a_list_ends() -> None:
    assert dataset.split_fingerprint([1, 2], [3]) != dataset.split_fingerprint([1], [2, 3])
    assert dataset.split_fingerprint([1, 2]) == dataset.split_fingerprint(np.array([1, 2], dtype=np.int32))


@pytest.mark.parametrize("part", ["content", "labels", "train_classes"])
def test_the_fingerprint_covers_pixels_labels_and_split(part: str) -> None:
    parts = {
        "content": np.zeros((4, 2, 2), dtype=np.uint8),
        "labels": np.array([0, 0, 1, 1]),
        "train_classes": np.array([0]),
        "test_classes": np.array([1]),
    }
    before = dataset.fingerprint(**parts)
    parts[part].flat[0] += 1
    assert dataset.fingerprint(**parts) != before


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path))
    assert data.cache_dir() == tmp_path
    monkeypatch.delenv("NEARFIELD_CACHE")
    assert data.cache_dir().name == "nearfield"


# The registry


def test_names_and_unknown_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path))
    monkeypatch.delenv("NEARFIELD_DATA", raising=False)
    assert data.names() == ["digits", "glyphs"]
    with pytest.raises(InputError, match="'glyph' is unknown; did you mean 'glyphs'"):
        data.load("glyph")


def test_importing_the_package_is_light() -> None:
    code = """
import sys, nearfield
before = set(sys.modules)
import nearfield.data
new = {name.split(".")[0] for name in set(sys.modules) - before}
assert not new & {"torch", "matplotlib", "sklearn"}, new
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_digits() -> None:
    digits = data.load("digits")
    assert digits.images.shape == (1797, 8, 8)
    assert (digits.images.min(), digits.images.max()) == (0, 255)
    assert digits.train_classes.tolist() == [0, 1, 2, 3, 4]
    assert digits.test_classes.tolist() == [5, 6, 7, 8, 9]


# The glyphs: how large, how varied, how hard


def test_counts_and_halves(whole: Dataset) -> None:
    assert whole.images.shape[1:] == (32, 32)
    assert len(whole.class_names) == len(set(whole.class_names)) >= 1500
    assert np.bincount(whole.labels).min() >= 6
    assert abs(len(whole.train_classes) - len(whole.test_classes)) <= 1
    for half in (whole.train_classes, whole.test_classes):
        per_category = np.bincount(whole.class_category[half], minlength=len(whole.category_names))
        assert len(per_category) >= 12
        assert per_category.min() >= 10
    assert whole.images.nbytes < 25e6
    assert not whole.images.reshape(len(whole.images), -1).std(axis=1).min() < 3.0


def test_raw_pixels_are_above_chance_and_far_from_enough(whole: Dataset) -> None:
    rows = whole.indices_of(whole.test_classes)
    pixels = whole.images[rows].reshape(len(rows), -1).astype(np.float32)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    queries = np.arange(0, len(rows), 7)
    similarity = pixels[queries] @ pixels.T
    similarity[np.arange(len(queries)), queries] = -1.0
    hits = whole.labels[rows][similarity.argmax(axis=1)] == whole.labels[rows][queries]
    assert 0.05 < hits.mean() < 0.40


def test_an_image_of_a_class_comes_from_many_fonts(whole: Dataset, faces: tuple[glyphs.Face, ...]) -> None:
    having = [sum(codepoint in face.characters for face in faces) for codepoint in codepoints(whole)]
    assert min(having) >= glyphs.MIN_FACES
    assert np.median(having) >= 8


def test_images_of_a_class_differ(whole: Dataset) -> None:
    digests = {hashlib.sha256(image.tobytes()).digest() for image in whole.images}
    assert len(digests) == len(whole.images)


# The glyphs: labels that do not lie


@pytest.mark.parametrize("group", LOOK_ALIKES)
def test_look_alikes_are_one_class_at_most(whole: Dataset, group: str) -> None:
    assert len(set(codepoints(whole)) & {ord(character) for character in group}) <= 1


@pytest.mark.parametrize("name", glyphs.MEASURED)
def test_no_two_classes_correlate_in_one_font(whole: Dataset, faces: tuple[glyphs.Face, ...], name: str) -> None:
    (face,) = (face for face in faces if face.name == name)
    drawn = [codepoint for codepoint in codepoints(whole) if codepoint in face.characters]
    thumbs = np.stack([glyphs.thumbnail(glyphs.mask(face, codepoint)) for codepoint in drawn])
    slow = np.corrcoef(thumbs) - np.eye(len(drawn))
    np.testing.assert_allclose(glyphs.correlation(thumbs, thumbs) - np.eye(len(drawn)), slow, atol=1e-9)
    assert slow.max() < glyphs.ALIKE


def test_every_glyph_is_drawn_and_is_not_the_missing_one(whole: Dataset, faces: tuple[glyphs.Face, ...]) -> None:
    for face in faces:
        missing = glyphs.mask(face, 0x10FFFF)
        for codepoint in codepoints(whole)[::5]:
            if codepoint in face.characters:
                glyph = glyphs.mask(face, codepoint)
                assert glyph.any(), (face.name, hex(codepoint))
                assert not np.array_equal(glyph, missing), (face.name, hex(codepoint))


def test_computer_modern_draws_letters_and_digits_only(faces: tuple[glyphs.Face, ...]) -> None:
    modern = [face for face in faces if face.name in glyphs.COMPUTER_MODERN]
    assert len(modern) == 5
    assert all(chr(codepoint).isalnum() for face in modern for codepoint in face.characters)
    assert not any("LastResort" in face.name for face in faces)


# The glyphs: the same bytes everywhere


@pytest.mark.slow
def test_the_same_classes_are_selected(whole: Dataset, faces: tuple[glyphs.Face, ...]) -> None:
    assert glyphs.select(faces) == codepoints(whole)


def test_the_same_plain_latin_classes_are_selected(
    whole: Dataset, faces: tuple[glyphs.Face, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    latin = {name: glyphs.CATEGORIES[name] for name in ("Basic Latin", "Latin Supplement")}
    expected = [c for c, category in zip(codepoints(whole), whole.class_category, strict=True) if category < len(latin)]
    monkeypatch.setattr(glyphs, "CATEGORIES", latin)

    def plain(classes: list[int]) -> list[str]:
        return [chr(codepoint) for codepoint in classes if not unicodedata.decomposition(chr(codepoint))]

    # Plain letters are chosen before all others, so later categories cannot have changed them.
    assert plain(glyphs.select(faces)) == plain(expected)


def test_drawing_again_gives_the_same_bytes(whole: Dataset, faces: tuple[glyphs.Face, ...]) -> None:
    for label, codepoint in list(enumerate(codepoints(whole)))[::100]:
        np.testing.assert_array_equal(glyphs.render_class(codepoint, faces), whole.images[whole.indices_of([label])])


@pytest.mark.parametrize("threads", ["1", "3"])
def test_another_process_gives_the_same_bytes(faces: tuple[glyphs.Face, ...], threads: str) -> None:
    here = hashlib.sha256(b"".join(glyphs.render_class(codepoint, faces).tobytes() for codepoint in SAMPLE)).hexdigest()
    environment = os.environ | {"OMP_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
    there = subprocess.run(
        [sys.executable, "-c", DIGEST.format(SAMPLE)], env=environment, check=True, capture_output=True, text=True
    )
    assert there.stdout.strip() == here


def test_draws_are_bounded_and_depend_on_the_whole_key() -> None:
    values = [glyphs.Draws(1, 2, k).between(-3, 3) for k in range(200)]
    assert set(values) == set(range(-3, 4))
    assert sorted(glyphs.Draws(1).order(9)) == list(range(9))
    noise = glyphs.Draws(5).noise(32)
    assert abs(noise.mean()) < 20
    assert 130 < noise.std() < 165


@given(st.integers(-1, 3), st.integers(1, 40), st.integers(1, 40))
def test_strokes_grow_shrink_and_never_vanish(level: int, height: int, width: int) -> None:
    glyph = np.full((height, width), 255, dtype=np.uint8)
    ink = int((glyphs._stroke(glyph, level) > 0).sum())
    assert ink > 0
    assert ink >= glyph.size if level >= 0 else ink <= glyph.size


# The cache


def test_the_cache_is_used(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "_draw", lambda progress: pytest.fail("drawn again"))
    dataset = data.load("glyphs")
    assert codepoints(dataset) == FEW
    assert few.name.startswith(f"glyphs-{glyphs.VERSION}-")
    assert [path.name for path in few.parent.iterdir()] == [few.name]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
        lambda content: b"",
        lambda content: b"not an archive",
    ],
    ids=["truncated", "one bit", "empty", "foreign"],
)
def test_a_damaged_cache_is_drawn_again(few: Path, damage: Callable[[bytes], bytes]) -> None:
    content = few.read_bytes()
    few.write_bytes(damage(content))
    assert data.load("glyphs").fingerprint == glyphs.PINNED_FINGERPRINT
    assert data.load("glyphs").fingerprint == glyphs.PINNED_FINGERPRINT
    with np.load(few) as archive:
        assert str(archive["fingerprint"]) == glyphs.PINNED_FINGERPRINT


def test_a_swapped_image_is_noticed(few: Path) -> None:
    with np.load(few) as archive:
        parts = dict(archive)
    parts["images"] = parts["images"][::-1]
    np.savez(few, **parts)
    assert data.load("glyphs").fingerprint == glyphs.PINNED_FINGERPRINT


def test_progress_is_reported(few: Path) -> None:
    few.unlink()
    seen: list[tuple[int, int]] = []
    glyphs.load(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(k + 1, len(FEW)) for k in range(len(FEW))]


def test_other_versions_warn_and_the_pinned_ones_fail(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "PINNED_FINGERPRINT", "f" * 64)
    with pytest.warns(DataWarning, match="not comparable with published numbers"):
        data.load("glyphs")
    monkeypatch.setattr(glyphs, "PINNED", glyphs._provenance()[0])
    with pytest.raises(RunError, match=r"ffffffff.*Reinstall matplotlib and Pillow"):
        data.load("glyphs")


# The contact sheet


def test_a_contact_sheet_is_a_readable_picture(whole: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    data.contact_sheet(whole, path, classes=5, per_class=4, seed=1)
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("L"))
    assert pixels.shape[0] > 5 * 64
    assert pixels.shape[1] > 4 * 64
    names, images = pixels[:, :260], pixels[:, 280:]
    assert (names < 128).any()
    assert images.std() > 20
    data.contact_sheet(whole, tmp_path / "again.png", classes=5, per_class=4, seed=1)
    assert (tmp_path / "again.png").read_bytes() == path.read_bytes()


def test_a_contact_sheet_of_little_data(tmp_path: Path) -> None:
    dataset = replace(toy(), class_names=("a", "b " * 90, "c"))
    data.contact_sheet(dataset, tmp_path / "toy.png")
    assert (tmp_path / "toy.png").stat().st_size > 0
    with pytest.raises(InputError, match="classes and per_class must be at least 1, got 0 and 8"):
        data.contact_sheet(dataset, tmp_path / "none.png", classes=0)
