"""The glyphs: varied, truthful, the same bytes everywhere, and drawn once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from narrow import pixels_of

from nearfield import data
from nearfield.data import Dataset, DataWarning
from nearfield.data.builtin.glyphs import cache, characters, drawing, fonts, random_integers, raster, selection
from nearfield.data.builtin.glyphs.fonts import Face
from nearfield.errors import RunError
from nearfield.progress import shown_by

FEW = [ord(character) for character in "2Q&жЩӁ⠋⠧⡅"]  # three classes of each of three categories
SAMPLE = [ord(character) for character in "QЖ⇛"]

LOOK_ALIKES = [
    "AΑАᴀ", "BΒВ", "CcСсϲ", "EΕЕ", "HΗНʜ", "KΚК", "NΝ", "OoОоΟο0", "Ppρр", "SsЅѕ", "UuՍ", "Vvνѵ∨",
    "Ww", "Xx×ΧХх✕✖", "Zz", "3ЗȜƷ", "5Ƽ", "-–—−_", ".·•", "ÁΆ", "Çç", "Ẅẅ", "▶►▸", "♥❤", "✓✔", "✗✘",
    "µμ", "ΩΩ", "(❨", "<‹", "¢⍧", "ǂ‡", "ςҪ", "a𝑎𝐚", "2²₂", "│┃|ǀ",
]  # fmt: skip

DIGEST = """
import hashlib
from nearfield.data.builtin.glyphs import drawing, fonts
faces = fonts.open_faces()
print(hashlib.sha256(b"".join(drawing.render_class(c, faces).tobytes() for c in {})).hexdigest())
"""


@pytest.fixture(scope="module")
def faces() -> tuple[Face, ...]:
    return fonts.open_faces()


@pytest.fixture(scope="module")
def whole() -> Dataset:
    return data.load("glyphs")  # drawn once, then from the user's cache


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of its own, where `cache.load` draws nine classes and calls them the published ones."""
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "select", lambda faces: FEW)
    monkeypatch.setattr(cache, "PINNED", ("0", "0", "0"))
    with pytest.warns(DataWarning):
        drawn = data.load("glyphs")
    monkeypatch.setattr(cache, "PINNED_FINGERPRINT", drawn.fingerprint)
    (path,) = (tmp_path / "cache").iterdir()
    return path


def codepoints(dataset: Dataset) -> list[int]:
    return [ord(unicodedata.lookup(name)) for name in dataset.class_names]


# How large, how varied, how hard


def test_counts_and_halves(whole: Dataset) -> None:
    assert pixels_of(whole).shape[1:] == (32, 32)
    assert len(whole.class_names) == len(set(whole.class_names)) >= 1500
    assert np.bincount(whole.labels).min() >= 6
    assert abs(len(whole.train_classes) - len(whole.test_classes)) <= 1
    for half in (whole.train_classes, whole.test_classes):
        per_category = np.bincount(whole.class_category[half], minlength=len(whole.category_names))
        assert len(per_category) >= 12
        assert per_category.min() >= 10
    assert pixels_of(whole).nbytes < 25e6
    assert not pixels_of(whole).reshape(len(whole.images), -1).std(axis=1).min() < 3.0


def test_raw_pixels_are_above_chance_and_far_from_enough(whole: Dataset) -> None:
    rows = whole.indices_of(whole.test_classes)
    pixels = whole.images[rows].reshape(len(rows), -1).astype(np.float32)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    queries = np.arange(0, len(rows), 7)
    similarity = pixels[queries] @ pixels.T
    similarity[np.arange(len(queries)), queries] = -1.0
    hits = whole.labels[rows][similarity.argmax(axis=1)] == whole.labels[rows][queries]
    assert 0.05 < hits.mean() < 0.40


def test_an_image_of_a_class_comes_from_many_fonts(whole: Dataset, faces: tuple[Face, ...]) -> None:
    having = [sum(codepoint in face.characters for face in faces) for codepoint in codepoints(whole)]
    assert min(having) >= characters.MIN_FACES
    assert np.median(having) >= 8


def test_images_of_a_class_differ(whole: Dataset) -> None:
    digests = {hashlib.sha256(image.tobytes()).digest() for image in pixels_of(whole)}
    assert len(digests) == len(whole.images)


# Labels that do not lie


@pytest.mark.parametrize("group", LOOK_ALIKES)
def test_look_alikes_are_one_class_at_most(whole: Dataset, group: str) -> None:
    assert len(set(codepoints(whole)) & {ord(character) for character in group}) <= 1


@pytest.mark.parametrize("name", selection.MEASURED)
def test_no_two_classes_correlate_in_one_font(whole: Dataset, faces: tuple[Face, ...], name: str) -> None:
    (face,) = (face for face in faces if face.name == name)
    drawn = [codepoint for codepoint in codepoints(whole) if codepoint in face.characters]
    thumbs = np.stack([selection.thumbnail(fonts.mask(face, codepoint)) for codepoint in drawn])
    slow = np.corrcoef(thumbs) - np.eye(len(drawn))
    np.testing.assert_allclose(selection.correlation(thumbs, thumbs) - np.eye(len(drawn)), slow, atol=1e-9)
    assert slow.max() < selection.ALIKE


def test_every_glyph_is_drawn_and_is_not_the_missing_one(whole: Dataset, faces: tuple[Face, ...]) -> None:
    for face in faces:
        missing = fonts.mask(face, 0x10FFFF)
        for codepoint in codepoints(whole)[::5]:
            if codepoint in face.characters:
                glyph = fonts.mask(face, codepoint)
                assert glyph.any(), (face.name, hex(codepoint))
                assert not np.array_equal(glyph, missing), (face.name, hex(codepoint))


def test_computer_modern_draws_letters_and_digits_only(faces: tuple[Face, ...]) -> None:
    modern = [face for face in faces if face.name in fonts.COMPUTER_MODERN]
    assert len(modern) == 5
    assert all(chr(codepoint).isalnum() for face in modern for codepoint in face.characters)
    assert not any("LastResort" in face.name for face in faces)


# The same bytes everywhere


@pytest.mark.slow
def test_the_same_classes_are_selected(whole: Dataset, faces: tuple[Face, ...]) -> None:
    assert selection.select(faces) == codepoints(whole)


def test_the_same_plain_latin_classes_are_selected(
    whole: Dataset, faces: tuple[Face, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    latin = {name: characters.CATEGORIES[name] for name in ("Basic Latin", "Latin Supplement")}
    expected = [c for c, category in zip(codepoints(whole), whole.class_category, strict=True) if category < len(latin)]
    monkeypatch.setattr(characters, "CATEGORIES", latin)

    def plain(classes: list[int]) -> list[str]:
        return [chr(codepoint) for codepoint in classes if not unicodedata.decomposition(chr(codepoint))]

    # Plain letters are chosen before all others, so later categories cannot have changed them.
    assert plain(selection.select(faces)) == plain(expected)


def test_drawing_again_gives_the_same_bytes(whole: Dataset, faces: tuple[Face, ...]) -> None:
    for label, codepoint in list(enumerate(codepoints(whole)))[::100]:
        np.testing.assert_array_equal(drawing.render_class(codepoint, faces), whole.images[whole.indices_of([label])])


@pytest.mark.parametrize("threads", ["1", "3"])
def test_another_process_gives_the_same_bytes(faces: tuple[Face, ...], threads: str) -> None:
    here = hashlib.sha256(
        b"".join(drawing.render_class(codepoint, faces).tobytes() for codepoint in SAMPLE)
    ).hexdigest()
    environment = os.environ | {"OMP_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
    there = subprocess.run(
        [sys.executable, "-c", DIGEST.format(SAMPLE)], env=environment, check=True, capture_output=True, text=True
    )
    assert there.stdout.strip() == here


def test_draws_are_bounded_and_depend_on_the_whole_key() -> None:
    values = [random_integers.RandomIntegers(1, 2, k).between(-3, 3) for k in range(200)]
    assert set(values) == set(range(-3, 4))
    assert sorted(random_integers.RandomIntegers(1).order(9)) == list(range(9))
    noise = random_integers.RandomIntegers(5).noise(32)
    assert abs(noise.mean()) < 20
    assert 130 < noise.std() < 165


@given(st.integers(-1, 3), st.integers(1, 40), st.integers(1, 40))
def test_strokes_grow_shrink_and_never_vanish(level: int, height: int, width: int) -> None:
    glyph = np.full((height, width), 255, dtype=np.uint8)
    ink = int((raster.stroke(glyph, level) > 0).sum())
    assert ink > 0
    assert ink >= glyph.size if level >= 0 else ink <= glyph.size


# The cache


def test_the_cache_is_used(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_draw", lambda: pytest.fail("drawn again"))
    dataset = data.load("glyphs")
    assert codepoints(dataset) == FEW
    assert few.name.startswith(f"glyphs-{drawing.VERSION}-")
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
    assert data.load("glyphs").fingerprint == cache.PINNED_FINGERPRINT
    assert data.load("glyphs").fingerprint == cache.PINNED_FINGERPRINT
    with np.load(few) as archive:
        assert str(archive["fingerprint"]) == cache.PINNED_FINGERPRINT


def test_a_swapped_image_is_noticed(few: Path) -> None:
    with np.load(few) as archive:
        parts = dict(archive)
    parts["images"] = parts["images"][::-1]
    np.savez(few, **parts)
    assert data.load("glyphs").fingerprint == cache.PINNED_FINGERPRINT


def test_progress_is_reported(few: Path) -> None:
    few.unlink()
    seen: list[tuple[int, int]] = []
    with shown_by(lambda title: nullcontext(lambda done, total: seen.append((done, total)))):
        cache.load()
    assert seen == [(k + 1, len(FEW)) for k in range(len(FEW))]


def test_other_versions_warn_and_the_pinned_ones_fail(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PINNED_FINGERPRINT", "f" * 64)
    with pytest.warns(DataWarning, match="not comparable with published numbers"):
        data.load("glyphs")
    monkeypatch.setattr(cache, "PINNED", cache._provenance()[0])
    with pytest.raises(RunError, match=r"ffffffff.*Reinstall matplotlib and Pillow"):
        data.load("glyphs")


def test_a_matplotlib_without_its_most_recent_font_draws_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    every, there = fonts.font_files(), Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: path.stem != "cmti10" and there(path))
    assert fonts.font_files().keys() == every.keys() - {"cmti10"}
    monkeypatch.setattr(Path, "is_file", lambda path: path.stem != "cmr10" and there(path))
    with pytest.raises(RunError, match=r"the fonts cmr10\.ttf are missing"):
        fonts.font_files()
