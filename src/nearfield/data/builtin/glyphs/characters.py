"""The characters that may become classes, by category."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from nearfield.data.builtin.glyphs.fonts import Face

MIN_FACES = 4  # font files that must draw a character before it can be a class

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
# Words that distinguish the weights and sizes of one shape in Unicode names.
STYLE_WORDS = frozenset(
    {"HEAVY", "LIGHT", "MEDIUM", "SMALL", "LARGE", "BIG", "LONG", "BOLD", "ORNAMENT", "DINGBAT", "SANS-SERIF"}
)
# Too thin for their correlation to show it; a reader takes these for X / \ < > ( ) v 3 5 7 m % ¢ ς ǂ ■ ☆.
ALIKE_TO_THE_EYE = frozenset("×✖✗ᐟ١ᐠ‹›⎛⎝⟅⎠⟆νȜƼ⁊ⴇ℅⍧Ҫ‡∎✩")


def category_of(codepoint: int) -> int:
    """Index of the category that holds the code point."""
    for index, ranges in enumerate(CATEGORIES.values()):
        if any(low <= codepoint <= high for low, high in ranges):
            return index
    raise ValueError(f"U+{codepoint:04X} is in no category")


def candidates(faces: tuple[Face, ...]) -> Iterator[int]:
    """Code points that at least MIN_FACES font files draw and that are not a restyled copy of another character."""
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
