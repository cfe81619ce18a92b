"""How the images of a class are drawn: a font's mask, distorted at random.

Axes: K images of a class, S pixels of an image's side.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from nearfield.data.builtin.glyphs.fonts import Face, mask
from nearfield.data.builtin.glyphs.random_integers import RandomIntegers
from nearfield.data.builtin.glyphs.raster import blur, sample, stroke
from nearfield.data.dataset import Pixels

VERSION = 1  # increase it if any pixel changes
SIDE = 32  # S
IMAGES_PER_CLASS = 10  # K


def render_class(codepoint: int, faces: tuple[Face, ...]) -> Pixels:
    """The images of one class, (K, S, S), taken in turn from the font files that draw the character."""
    glyphs = [(face, mask(face, codepoint)) for face in faces if codepoint in face.characters]
    usable = [(face, glyph) for face, glyph in glyphs if glyph.size]
    order = RandomIntegers(VERSION, codepoint).order(len(usable))
    images = []
    for k in range(IMAGES_PER_CLASS):
        face, glyph = usable[order[k % len(order)]]
        images.append(_image(glyph, face, RandomIntegers(VERSION, codepoint, k)))
    return np.stack(images)


def _image(glyph: Pixels, face: Face, draws: RandomIntegers) -> Pixels:
    """One image (S, S): a mask made bolder or thinner, warped, shifted, blurred, lit and made noisy."""
    thick = stroke(glyph, draws.between(-1, 1) if face.bold else draws.between(0, 3))
    inverse, room = _warp(thick.shape, draws, lean=0 if face.slanted else 15)
    shift = (draws.between(-room[0], room[0]), draws.between(-room[1], room[1]))
    ink = sample(thick, inverse, SIDE, shift)
    for _ in range(draws.between(0, 2)):
        ink = blur(ink)
    return _light(ink, draws)


def _warp(shape: tuple[int, ...], draws: RandomIntegers, lean: int) -> tuple[npt.NDArray[np.int32], tuple[int, int]]:
    """Random size, aspect, shear and rotation: the inverse for `sample`, and how far `shift` may go.

    Rotation and shear together stay below 22.5 degrees, half the angle between an up arrow and an up-right arrow.
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


def _light(ink: npt.NDArray[np.int32], draws: RandomIntegers) -> Pixels:
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
