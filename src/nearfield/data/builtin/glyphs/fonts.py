"""The font files that glyphs are drawn with, and the rasterised mask of one character.

Axes: H and W pixels of a mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nearfield.data.dataset import Pixels
from nearfield.errors import RunError

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

EM = 96  # pixels per em of the masks that images are sampled from

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
RECENT = (
    "cmti10",
)  # since matplotlib 3.11, which needs Python 3.11; glyphs drawn without it are not the published ones
ASCII_WORDS = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True)
class Face:
    """One font file: its name, the characters it draws as Unicode defines them, and its rasteriser at EM pixels."""

    name: str
    characters: frozenset[int]
    font: FreeTypeFont

    @property
    def bold(self) -> bool:
        return "Bol" in self.name or self.name == "cmb10"

    @property
    def slanted(self) -> bool:
        return "Ita" in self.name or "Oblique" in self.name or self.name == "cmti10"


def open_faces() -> tuple[Face, ...]:
    """Every usable font file of the installed matplotlib."""
    from matplotlib.ft2font import FT2Font
    from PIL import ImageFont

    faces = []
    for name, path in font_files().items():
        characters = frozenset(FT2Font(str(path)).get_charmap())
        if name in COMPUTER_MODERN:
            characters &= ASCII_WORDS
        faces.append(Face(name, characters, ImageFont.truetype(str(path), EM, layout_engine=ImageFont.Layout.BASIC)))
    return tuple(faces)


def mask(face: Face, codepoint: int) -> Pixels:
    """The glyph's coverage at EM pixels, cropped to its ink: (H, W), or (0, 0) if it has none."""
    from PIL import Image, ImageDraw

    left, top, right, bottom = (round(edge) for edge in face.font.getbbox(chr(codepoint)))
    canvas = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
    ImageDraw.Draw(canvas).text((-left, -top), chr(codepoint), fill=255, font=face.font)
    full = np.asarray(canvas)
    rows, columns = np.flatnonzero(full.any(axis=1)), np.flatnonzero(full.any(axis=0))
    if not len(rows):
        return np.zeros((0, 0), dtype=np.uint8)
    return full[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def font_files() -> dict[str, Path]:
    """Name and path of every font file used; RunError if one is missing that every matplotlib has."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = {name: folder / f"{name}.ttf" for name in DEJAVU_STIX + COMPUTER_MODERN}
    here = {name: path for name, path in files.items() if path.is_file()}
    missing = [path.name for name, path in files.items() if name not in (*here, *RECENT)]
    if missing:
        raise RunError(f"the fonts {', '.join(missing)} are missing from {folder}. Reinstall matplotlib.")
    return here
