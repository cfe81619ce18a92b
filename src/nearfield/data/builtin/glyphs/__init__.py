"""Glyphs: a few-shot retrieval set drawn from the fonts that matplotlib ships, so nothing is downloaded.

A class is a character, a category is a script or a family of symbols, and the images of a class differ in font, size,
slant, stroke, blur, noise, light and polarity. Characters that look like another one once size is ignored are left out,
by measurement: Latin A, Greek Alpha and Cyrillic A are one class, and so are c and C.

After the font rasteriser everything is integer arithmetic on raw PCG64 words, so the same font files and the same
FreeType give the same bytes on every machine.

`fonts` opens the font files, `characters` lists the candidates, `selection` decides which of them are classes,
`drawing` draws a class, `cache` draws all of them once and keeps them.
"""

from nearfield.data.builtin.glyphs.cache import load

__all__ = ["load"]
