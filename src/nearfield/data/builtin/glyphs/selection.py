"""Which characters become classes: those whose thumbnails do not correlate with those of an earlier class.

Axes: T pixels of a thumbnail's side.
"""

from __future__ import annotations

import math
import unicodedata

import numpy as np
import numpy.typing as npt

from nearfield.data.builtin.glyphs.characters import STYLE_WORDS, candidates, category_of
from nearfield.data.builtin.glyphs.fonts import Face, mask
from nearfield.data.builtin.glyphs.raster import blur, sample, stroke
from nearfield.data.dataset import Pixels

MIN_EXTENT = 34  # pixels of EM: dots, quotes and other specks have no distinctive shape
MAX_ASPECT = 5  # nor do bars and dashes
THUMB = 24  # T
ALIKE = 0.80  # thumbnails that correlate at least this much make two characters one class
ALIKE_CASES = 0.60  # the same for upper and lower case of a letter, which often differ in size and little else
WEIGHED = "DejaVuSans"  # the face in which bold strokes are compared with normal ones too
MEASURED = (WEIGHED, "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralItalic")


def select(faces: tuple[Face, ...]) -> list[int]:
    """Code points of the classes, in category order: drawn by MIN_FACES files, and unlike every class before them."""
    codepoints = sorted(candidates(faces), key=_priority)
    likeness, drawn = _measure([face for face in faces if face.name in MEASURED], codepoints)
    alike = likeness >= ALIKE
    rows = {chr(codepoint): row for row, codepoint in enumerate(codepoints)}
    for upper, row in rows.items():
        other = rows.get(upper.lower(), row)
        alike[row, other] = alike[other, row] = likeness[row, other] >= ALIKE_CASES
    return sorted(_unlike(codepoints, drawn, alike), key=lambda codepoint: (category_of(codepoint), codepoint))


def thumbnail(glyph: Pixels) -> npt.NDArray[np.float32]:
    """(T*T,) whole numbers below 128: the glyph at a fixed size, its aspect moved halfway towards a square, blurred."""
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


def _priority(codepoint: int) -> tuple[bool, int, int]:
    # Letters with diacritics come last: the look-alikes among plain letters are known by then.
    return len(unicodedata.normalize("NFD", chr(codepoint))) > 1, category_of(codepoint), codepoint


def _measure(faces: list[Face], codepoints: list[int]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """The highest correlation of two characters in any one face (n, n), and which have a distinctive shape (n,)."""
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
            heavy = correlation(plain, np.stack([thumbnail(stroke(glyph, 3)) for glyph in glyphs]))
            pairs = np.maximum(pairs, np.maximum(heavy, heavy.T))
        block = np.ix_(rows, rows)
        likeness[block] = np.maximum(likeness[block], pairs)
    return likeness, shaped


def _unlike(codepoints: list[int], shaped: npt.NDArray[np.bool_], alike: npt.NDArray[np.bool_]) -> list[int]:
    """The characters that look like no earlier one, chosen greedily; look-alikes with equal diacritics are alike."""
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
