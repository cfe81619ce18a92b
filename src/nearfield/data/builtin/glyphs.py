"""Glyphs: a few-shot retrieval set drawn from the fonts that matplotlib ships, so nothing is downloaded.

A class is a character, a category is a script or a family of symbols, and the images of a class differ in font, size,
slant, stroke, blur, noise, light and polarity. Characters that look like another one once size is ignored are left out,
by measurement: Latin A, Greek Alpha and Cyrillic A are one class, and so are c and C.

After the font rasteriser everything is integer arithmetic on raw PCG64 words, so the same font files and the same
FreeType give the same bytes on every machine.

Axes: C classes, K images of a class, H and W pixels of a glyph's mask, S pixels of an image's side, T of a thumbnail's.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nearfield.data.dataset import Dataset, DataWarning, Integers, Pixels, cache_dir, fingerprint
from nearfield.errors import RunError
from nearfield.files import atomic_write

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

VERSION = 1  # of the recipe below; a change of any pixel needs a new number
SIDE = 32  # S
IMAGES_PER_CLASS = 10  # K
MIN_FACES = 4  # font files that must have a character before it can be a class
EM = 96  # pixels per em of the masks that images are sampled from
MIN_EXTENT = 34  # pixels of EM: dots, quotes and other specks have no shape of their own
MAX_ASPECT = 5  # and neither have bars and dashes
THUMB = 24  # T
ALIKE = 0.80  # correlation of two thumbnails from which two characters count as one
ALIKE_CASES = 0.60  # the same for the two cases of one letter, which often differ in size and little else

PINNED = ("3.11.2", "13.0.0", "2.14.3")  # the matplotlib, Pillow and FreeType that give PINNED_FINGERPRINT
PINNED_FINGERPRINT = "8bc06f0e746ff449ad784280cece74d3a3567c7bb40ddc98b51bc10890241ccd"

# DejaVu and STIX draw what Unicode says. Computer Modern does so for ASCII letters and digits; elsewhere its files
# follow TeX's encodings. Not used: Last Resort (one placeholder for everything), STIX's private-use pieces, and TeX's
# symbol fonts.
DEJAVU_STIX = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
)
COMPUTER_MODERN = ("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10")
ASCII_WORDS = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
WEIGHED = "DejaVuSans"  # the face in which strokes of different weight are compared too
MEASURED = (WEIGHED, "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralItalic")

# Earlier categories win when two characters look alike. Left out: box drawing and blocks (they differ in weight and
# place only), dominoes, cards, hexagrams and emoticons (their differences do not survive at this size).
CATEGORIES: dict[str, tuple[tuple[int, int], ...]] = {
    "Basic Latin": ((0x21, 0x7E),),
    "Latin Supplement": ((0xA1, 0x17F),),
    "Latin Extended": ((0x180, 0x24F), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF)),
    "Phonetic": ((0x250, 0x2AF), (0x1D00, 0x1DBF)),
    "Greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "Cyrillic": ((0x400, 0x52F), (0xA640, 0xA69F)),
    "Armenian": ((0x531, 0x58F),),
    "Arabic": ((0x620, 0x6FF),),
    "Lao": ((0xE80, 0xEFF),),
    "Georgian": ((0x10A0, 0x10FF), (0x2D00, 0x2D2F)),
    "Canadian Syllabics": ((0x1401, 0x167F),),
    "Punctuation and Letterlike": ((0x2010, 0x205E), (0x20A0, 0x20CF), (0x2100, 0x214F), (0x2E00, 0x2E7F)),
    "Numbers": ((0x2150, 0x218F), (0x2460, 0x24FF)),
    "Arrows": ((0x2190, 0x21FF), (0x27F0, 0x27FF), (0x2900, 0x297F), (0x2B00, 0x2BFF)),
    "Mathematics": ((0x2200, 0x22FF), (0x27C0, 0x27EF), (0x2980, 0x2AFF)),
    "Technical": ((0x2300, 0x23FF),),
    "Geometric Shapes": ((0x25A0, 0x25FF),),
    "Symbols": ((0x2600, 0x26FF),),
    "Dingbats": ((0x2700, 0x27BF),),
    "Braille": ((0x2801, 0x28FF),),
}
# Words by which Unicode names tell apart the weights and sizes of one shape.
STYLE_WORDS = frozenset(
    {"HEAVY", "LIGHT", "MEDIUM", "SMALL", "LARGE", "BIG", "LONG", "BOLD", "ORNAMENT", "DINGBAT", "SANS-SERIF"}
)
# Thin strokes correlate too little for the measure; to the eye these repeat X / \ < > ( ) v 3 5 7 m % ¢ ς ǂ ■ ☆.
ALIKE_TO_THE_EYE = frozenset("×✖✗ᐟ١ᐠ‹›⎛⎝⟅⎠⟆νȜƼ⁊ⴇ℅⍧Ҫ‡∎✩")

Progress = Callable[[int, int], None]  # (classes drawn, classes in all)


@dataclass(frozen=True)
class Face:
    """One font file: its name, the characters it draws truthfully, and its rasteriser at EM pixels."""

    name: str
    characters: frozenset[int]
    font: FreeTypeFont

    @property
    def bold(self) -> bool:
        return "Bol" in self.name or self.name == "cmb10"

    @property
    def slanted(self) -> bool:
        return "Ita" in self.name or "Oblique" in self.name or self.name == "cmti10"


class Draws:
    """Small integers from raw PCG64 words: numpy promises the same words for ever, but not the same distributions."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def between(self, low: int, high: int) -> int:
        """An integer in low..high, both included."""
        return low + int(self._bits.random_raw()) % (high - low + 1)

    def noise(self, side: int) -> npt.NDArray[np.int32]:
        """(side, side) centred integers of standard deviation 147.8: sums of four bytes."""
        words = self._bits.random_raw(side * side // 2).astype("<u8")
        sums: npt.NDArray[np.int32] = words.view(np.uint8).reshape(side, side, 4).sum(axis=2, dtype=np.int32)
        return sums - 510

    def order(self, count: int) -> list[int]:
        """The numbers below `count` in a random order."""
        shuffled: list[int] = np.argsort(self._bits.random_raw(count), kind="stable").tolist()
        return shuffled


def load(progress: Progress | None = None) -> Dataset:
    """The dataset from the cache, or drawn (once, in well under a minute) and cached; a damaged file is drawn again."""
    versions, key = _provenance()
    expected = PINNED_FINGERPRINT if versions == PINNED else None
    path = cache_dir() / f"glyphs-{VERSION}-{key}.npz"
    dataset = _read(path, expected)
    if dataset is None:
        images, codepoints = _draw(progress)
        dataset = _dataset(images, codepoints)
        _check_drawn(dataset.fingerprint, expected)
        with atomic_write(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, images=images, codepoints=codepoints, fingerprint=dataset.fingerprint)
    if dataset.fingerprint != PINNED_FINGERPRINT:
        _warn_unpublished(versions)
    return dataset


def open_faces() -> tuple[Face, ...]:
    """Every usable font file of the installed matplotlib."""
    from matplotlib.ft2font import FT2Font
    from PIL import ImageFont

    faces = []
    for name, path in _font_files().items():
        characters = frozenset(FT2Font(str(path)).get_charmap())
        if name in COMPUTER_MODERN:
            characters &= ASCII_WORDS
        faces.append(Face(name, characters, ImageFont.truetype(str(path), EM, layout_engine=ImageFont.Layout.BASIC)))
    return tuple(faces)


def mask(face: Face, codepoint: int) -> Pixels:
    """The glyph's coverage at EM pixels, cut to its ink: (H, W), or (0, 0) when there is none."""
    from PIL import Image, ImageDraw

    left, top, right, bottom = (round(edge) for edge in face.font.getbbox(chr(codepoint)))
    canvas = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
    ImageDraw.Draw(canvas).text((-left, -top), chr(codepoint), fill=255, font=face.font)
    full = np.asarray(canvas)
    rows, columns = np.flatnonzero(full.any(axis=1)), np.flatnonzero(full.any(axis=0))
    if not len(rows):
        return np.zeros((0, 0), dtype=np.uint8)
    return full[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


# Which characters are classes


def select(faces: tuple[Face, ...]) -> list[int]:
    """Code points of the classes, in category order: drawn by MIN_FACES files, and unlike every class before them."""
    codepoints = sorted(_candidates(faces), key=_priority)
    likeness, drawn = _measure([face for face in faces if face.name in MEASURED], codepoints)
    alike = likeness >= ALIKE
    rows = {chr(codepoint): row for row, codepoint in enumerate(codepoints)}
    for upper, row in rows.items():
        other = rows.get(upper.lower(), row)
        alike[row, other] = alike[other, row] = likeness[row, other] >= ALIKE_CASES
    return sorted(_unlike(codepoints, drawn, alike), key=lambda codepoint: (category_of(codepoint), codepoint))


def category_of(codepoint: int) -> int:
    """Index of the category that holds the code point."""
    for index, ranges in enumerate(CATEGORIES.values()):
        if any(low <= codepoint <= high for low, high in ranges):
            return index
    raise ValueError(f"U+{codepoint:04X} lies in no category")


def thumbnail(glyph: Pixels) -> npt.NDArray[np.float32]:
    """(T*T,) whole numbers below 128: the glyph at a fixed size, its aspect drawn half-way to a square, blurred."""
    height, width = glyph.shape
    longer = max(height, width)
    steps = [math.isqrt((longer * side) << 32) // (6 * THUMB) for side in (height, width)]
    small = sample(glyph, np.diag(steps).astype(np.int32), THUMB)
    return (blur(small) // 2).reshape(-1).astype(np.float32)


def correlation(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Pearson correlation of the rows of a (n, T*T) with those of b (m, T*T): (n, m).

    Thumbnails are whole numbers below 128, so the float32 product is exact, whatever the order of its sums.
    """
    size = a.shape[1]
    sum_a, sum_b = a.sum(axis=1, dtype=np.float64), b.sum(axis=1, dtype=np.float64)
    spread_a = np.sqrt(size * np.square(a).sum(axis=1, dtype=np.float64) - sum_a**2)
    spread_b = np.sqrt(size * np.square(b).sum(axis=1, dtype=np.float64) - sum_b**2)
    covariance: npt.NDArray[np.float64] = size * (a @ b.T).astype(np.float64) - np.outer(sum_a, sum_b)
    return covariance / np.maximum(np.outer(spread_a, spread_b), 1.0)


def _candidates(faces: tuple[Face, ...]) -> Iterator[int]:
    for ranges in CATEGORIES.values():
        for low, high in ranges:
            for codepoint in range(low, high + 1):
                enough = sum(codepoint in face.characters for face in faces) >= MIN_FACES
                if enough and chr(codepoint) not in ALIKE_TO_THE_EYE and not _restyled(chr(codepoint)):
                    yield codepoint


def _restyled(character: str) -> bool:
    """Unassigned, blank, a mark, or Unicode's copy of one other character in another size, font or position."""
    category = unicodedata.category(character)
    if category[0] in "CZM" or category == "Sk":
        return True
    tag, _, mapping = unicodedata.decomposition(character).partition(" ")
    if tag in ("<circle>", "<square>", "<fraction>"):
        return False
    return len(mapping.split()) == 1 if tag.startswith("<") else bool(tag) and not mapping


def _priority(codepoint: int) -> tuple[bool, int, int]:
    # Letters with marks come last, so that the look-alikes among plain letters are known by then.
    return len(unicodedata.normalize("NFD", chr(codepoint))) > 1, category_of(codepoint), codepoint


def _measure(faces: list[Face], codepoints: list[int]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """The highest correlation of two characters in any one face (n, n), and which have a shape of their own (n,)."""
    likeness = np.zeros((len(codepoints), len(codepoints)), dtype=np.float32)
    shaped = np.zeros(len(codepoints), dtype=bool)
    for face in faces:
        rows = [row for row, codepoint in enumerate(codepoints) if codepoint in face.characters]
        glyphs = [mask(face, codepoints[row]) for row in rows]
        longer, shorter = np.asarray([(max(glyph.shape), min(glyph.shape)) for glyph in glyphs]).T
        shaped[rows] |= (longer >= MIN_EXTENT) & (longer <= MAX_ASPECT * shorter)
        plain = np.stack([thumbnail(glyph) for glyph in glyphs])
        pairs = correlation(plain, plain)
        if face.name == WEIGHED:
            heavy = correlation(plain, np.stack([thumbnail(_stroke(glyph, 3)) for glyph in glyphs]))
            pairs = np.maximum(pairs, np.maximum(heavy, heavy.T))
        block = np.ix_(rows, rows)
        likeness[block] = np.maximum(likeness[block], pairs)
    return likeness, shaped


def _unlike(codepoints: list[int], shaped: npt.NDArray[np.bool_], alike: npt.NDArray[np.bool_]) -> list[int]:
    """Greedily, the characters unlike every earlier one, and whose letter with the same marks is not there already."""
    kept: list[int] = []  # rows
    stands_for: dict[str, str] = {}  # a character that was left out -> the class that looks like it
    seen: dict[str, str] = {}  # a skeleton or a bare name -> its class
    for row, codepoint in enumerate(codepoints):
        character = chr(codepoint)
        skeleton = "".join(stands_for.get(part, part) for part in unicodedata.normalize("NFD", character))
        name = " ".join(word for word in unicodedata.name(character).split() if word not in STYLE_WORDS)
        twins = np.flatnonzero(alike[row, kept])
        twin = seen.get(skeleton) or seen.get(name) or (chr(codepoints[kept[twins[0]]]) if len(twins) else None)
        if twin is not None:
            stands_for[character] = twin
        elif shaped[row]:
            kept.append(row)
            seen[skeleton] = seen[name] = character
    return [codepoints[row] for row in kept]


# How an image is drawn


def render_class(codepoint: int, faces: tuple[Face, ...]) -> Pixels:
    """The images of one class: (K, S, S), from as many font files as draw the character."""
    glyphs = [(face, mask(face, codepoint)) for face in faces if codepoint in face.characters]
    usable = [(face, glyph) for face, glyph in glyphs if glyph.size]
    order = Draws(VERSION, codepoint).order(len(usable))
    images = []
    for k in range(IMAGES_PER_CLASS):
        face, glyph = usable[order[k % len(order)]]
        images.append(_image(glyph, face, Draws(VERSION, codepoint, k)))
    return np.stack(images)


def sample(
    glyph: Pixels, inverse: npt.NDArray[np.int32], side: int, shift: tuple[int, int] = (0, 0)
) -> npt.NDArray[np.int32]:
    """Draw a mask (H, W) into (side, side) levels 0..255: each the mean of 3x3 nearest pixels, in 16.16 fixed point.

    `inverse` (2, 2) takes (row, column) steps of a sixth of an image pixel to mask pixels; `shift` is such a step.
    """
    height, width = glyph.shape
    steps = 2 * np.arange(3 * side, dtype=np.int32) + 1 - 3 * side
    rows, columns = (steps - shift[0])[:, None], (steps - shift[1])[None, :]
    y = ((inverse[0, 0] * rows + (height << 15)) + inverse[0, 1] * columns) >> 16  # (3 side, 3 side)
    x = ((inverse[1, 0] * rows + (width << 15)) + inverse[1, 1] * columns) >> 16
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    fine = np.where(inside, glyph.ravel().take(y * width + x, mode="clip"), 0)
    sums: npt.NDArray[np.int32] = fine.reshape(side, 3, side, 3).sum(axis=(1, 3), dtype=np.int32)
    return sums // 9


def blur(image: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """One pass of the binomial kernel (1 2 1) x (1 2 1) / 16 over (S, S), empty outside."""
    p = np.pad(image, 1)
    p = p[:-2] + 2 * p[1:-1] + p[2:]
    return (p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]) // 16


def _image(glyph: Pixels, face: Face, draws: Draws) -> Pixels:
    """One image (S, S): a mask made bolder or thinner, warped, moved, blurred, lit and made noisy."""
    thick = _stroke(glyph, draws.between(-1, 1) if face.bold else draws.between(0, 3))
    inverse, room = _warp(thick.shape, draws, lean=0 if face.slanted else 15)
    shift = (draws.between(-room[0], room[0]), draws.between(-room[1], room[1]))
    ink = sample(thick, inverse, SIDE, shift)
    for _ in range(draws.between(0, 2)):
        ink = blur(ink)
    return _light(ink, draws)


def _stroke(glyph: Pixels, level: int) -> Pixels:
    """Grow (level > 0) or shrink the ink on every side by about `level` hundredths of the glyph's extent."""
    radius = (abs(level) * max(glyph.shape) + EM // 2) // EM
    result = np.pad(glyph, radius)
    extreme = np.maximum if level > 0 else np.minimum
    for axis in (0, 1):
        result = extreme.reduce([np.roll(result, step, axis) for step in range(-radius, radius + 1)])
    # Thin parts that shrinking would erase can be all that tells a shape from another.
    hairlines = 4 * result.sum(dtype=np.int64) < 3 * glyph.sum(dtype=np.int64)
    return glyph if hairlines else result


def _warp(shape: tuple[int, ...], draws: Draws, lean: int) -> tuple[npt.NDArray[np.int32], tuple[int, int]]:
    """Random size, aspect, shear and rotation: the inverse for `sample`, and how far `shift` may go.

    Rotation and shear together stay below 22.5 degrees, half the angle between an arrow up and an arrow up and right.
    """
    angle = math.radians(draws.between(-12, 12))
    shear = draws.between(-lean, lean) / 100
    narrow = math.sqrt(draws.between(88, 114) / 100)
    extent = draws.between(22, 30)
    cos, sin = math.cos(angle), math.sin(angle)
    # Forward matrix (a b; c d) on (row, column): the rotation times the shear times the change of aspect.
    a, b = (cos - sin * shear) / narrow, -sin * narrow
    c, d = (sin + cos * shear) / narrow, cos * narrow
    height, width = abs(a) * shape[0] + abs(b) * shape[1], abs(c) * shape[0] + abs(d) * shape[1]
    scale = extent / max(height, width)
    step = 65536 / (6 * scale * (a * d - b * c))
    inverse = np.asarray([[round(d * step), round(-b * step)], [round(-c * step), round(a * step)]], dtype=np.int32)
    return inverse, (int(2 * (SIDE - height * scale)), int(2 * (SIDE - width * scale)))


def _light(ink: npt.NDArray[np.int32], draws: Draws) -> Pixels:
    """Grey levels (S, S): faint to full contrast, dark on light or light on dark, uneven light, and noise."""
    contrast = draws.between(90, 220)
    paper = draws.between(0, 255 - contrast)
    if draws.between(0, 1):
        paper, contrast = paper + contrast, -contrast
    ramp = 2 * np.arange(SIDE, dtype=np.int32) + 1 - SIDE
    slope = draws.between(-30, 30) * ramp[:, None] + draws.between(-30, 30) * ramp[None, :]
    grain = draws.noise(SIDE) * draws.between(0, min(20, abs(contrast) // 8))
    levels = paper + (ink * contrast) // 255 + slope // (2 * SIDE) + grain // 148
    return np.clip(levels, 0, 255).astype(np.uint8)


# The dataset and its cache


def _draw(progress: Progress | None) -> tuple[Pixels, list[int]]:
    faces = open_faces()
    with _bar() if progress is None else nullcontext(progress) as report:
        codepoints = select(faces)
        images = np.empty((len(codepoints), IMAGES_PER_CLASS, SIDE, SIDE), dtype=np.uint8)
        for index, codepoint in enumerate(codepoints):
            images[index] = render_class(codepoint, faces)
            report(index + 1, len(codepoints))
    return images.reshape(-1, SIDE, SIDE), codepoints


def _dataset(images: Pixels, codepoints: list[int]) -> Dataset:
    labels = np.repeat(np.arange(len(codepoints), dtype=np.int64), IMAGES_PER_CLASS)  # (N,)
    category = np.asarray([category_of(codepoint) for codepoint in codepoints], dtype=np.int64)  # (C,)
    train, test = _halves(category)
    return Dataset(
        name="glyphs",
        images=images,
        labels=labels,
        class_names=tuple(unicodedata.name(chr(codepoint)) for codepoint in codepoints),
        class_category=category,
        category_names=tuple(CATEGORIES),
        train_classes=train,
        test_classes=test,
        fingerprint=fingerprint(images, labels, train, test),
        description="Characters of many scripts drawn with the fonts that matplotlib ships; a class is a character.",
    )


def _halves(category: Integers) -> tuple[Integers, Integers]:
    """Train and test classes: every second one of each category, in a fixed random order within the category."""
    shuffled = []
    for index in range(len(CATEGORIES)):
        members = np.flatnonzero(category == index)
        shuffled.append(members[Draws(VERSION, index).order(len(members))])
    order = np.concatenate(shuffled)
    return np.sort(order[0::2]).astype(np.int64), np.sort(order[1::2]).astype(np.int64)


def _read(path: Path, expected: str | None) -> Dataset | None:
    """The cached dataset, or None when the file is missing or does not hold what it must."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            written = str(archive["fingerprint"])
            dataset = _dataset(archive["images"], archive["codepoints"].tolist())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return dataset if dataset.fingerprint == written and expected in (None, written) else None


def _font_files() -> dict[str, Path]:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = {name: folder / f"{name}.ttf" for name in DEJAVU_STIX + COMPUTER_MODERN}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        raise RunError(f"the fonts {', '.join(missing)} are missing from {folder}: reinstall matplotlib.")
    return files


def _provenance() -> tuple[tuple[str, str, str], str]:
    """The versions of matplotlib, Pillow and FreeType, and a key of all that decides the pixels."""
    import matplotlib
    import PIL
    from PIL import features

    versions = (matplotlib.__version__, PIL.__version__, str(features.version("freetype2")))
    digest = hashlib.sha256(" ".join(versions[1:]).encode())
    for path in _font_files().values():
        digest.update(path.read_bytes())
    return versions, digest.hexdigest()[:16]


def _check_drawn(found: str, expected: str | None) -> None:
    if expected not in (None, found):
        raise RunError(
            f"the glyphs have fingerprint {found[:16]}, but matplotlib, Pillow and FreeType {', '.join(PINNED)} "
            f"must give {str(expected)[:16]}. Reinstall matplotlib and Pillow, and please report it."
        )


def _warn_unpublished(versions: tuple[str, str, str]) -> None:
    warnings.warn(
        f"the glyphs drawn with matplotlib, Pillow and FreeType {', '.join(versions)} differ from the published ones "
        f"({', '.join(PINNED)}): results are not comparable with published numbers.",
        DataWarning,
        stacklevel=4,
    )


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Drawing the glyphs, once", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
