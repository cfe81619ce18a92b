"""The input of a trained model, stored beside its weights, and how any image is prepared for it.

Images are resized by one of two rules, then cropped at the centre: "exact" resizes to a height and width and ignores
the aspect ratio; "short" resizes the shorter side and keeps the aspect ratio. The pixels equal those of the run's test.

Axes: N images, B images of a batch, H and W pixels, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import Tensor

from nearfield.config import Config, Count, DataConfig
from nearfield.data import Dataset, Pictures, Stored
from nearfield.data.augment import augmentation, images_for
from nearfield.data.dataset import Pixels
from nearfield.data.pictures import converted, decode, resized
from nearfield.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[Count, Count]  # height, width


class FeatureInput(Config):
    """Features that were computed elsewhere."""

    kind: Literal["features"] = "features"
    features: Count  # F

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one item of a batch."""
        return (self.features,)

    @property
    def words(self) -> str:
        """A human-readable description."""
        return f"{self.features} features of an image, float32"

    def items(self, given: Any) -> npt.NDArray[np.float32]:
        """The given features as float32 (N, F); InputError if they are anything else."""
        try:
            found = np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
        except ValueError:  # rows of different lengths
            found = np.empty(0)
        rule = f"this model takes features (N, {self.features})"
        if found.dtype.kind not in "fiu" or found.ndim != 2 or found.shape[1] != self.features:
            raise InputError(f"{rule}; got {found.dtype} {found.shape}.")
        if not np.isfinite(found).all():
            raise InputError(f"{rule}, all finite; found a NaN or an infinity.")
        return found.astype(np.float32)

    def batch(self, items: Sequence[Any]) -> npt.NDArray[np.float32]:
        """A batch for the model, (B, F)."""
        return np.asarray(items, dtype=np.float32)


class PictureInput(Config):
    """Images, and how they are prepared."""

    kind: Literal["pictures"] = "pictures"  # as written in exported models
    colour: bool  # RGB or grey
    rule: Literal["exact", "short"]
    resize: Size  # "short": the length of the shorter side, twice
    crop: Size

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one item of a batch."""
        return (*self.crop, 3) if self.colour else self.crop

    @property
    def words(self) -> str:
        """A human-readable description; embedding files record it, so the words stay."""
        to = f"{self.resize[0]}x{self.resize[1]}" if self.rule == "exact" else f"a shorter side of {self.resize[0]}"
        cut = "" if self.rule == "exact" and self.crop == self.resize else f", then the middle {_times(self.crop)}"
        return f"{'RGB' if self.colour else 'grey'} pictures, uint8, resized to {to}{cut}"

    def items(self, given: Any) -> Sequence[Any]:
        """The given images as a list; InputError if they cannot be images."""
        if isinstance(given, str | PathLike) or hasattr(given, "getpixel"):
            raise InputError(
                f"images must be a list of paths or images; got a single one, {given!r}. Put it into a list."
            )
        found = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
        if isinstance(found, np.ndarray) and found.dtype.kind not in "OUST":
            planes = found.ndim == 4 and found.shape[1] == 3 and found.shape[3] != 3
            found = np.moveaxis(found, 1, 3) if planes else found
            if found.dtype != np.uint8 or not (found.ndim == 3 or (found.ndim == 4 and found.shape[3] == 3)):
                raise InputError(f"images must be uint8 (N, H, W) or (N, H, W, 3); got {found.dtype} {found.shape}.")
        return list(found)

    def batch(self, items: Sequence[Any]) -> Pixels:
        """A batch for the model, (B, H, W) or (B, H, W, 3)."""
        return np.stack([self.picture(item) for item in items])

    def picture(self, item: Any) -> Pixels:
        """One prepared image, from a path, a Pillow image, or a uint8 array (H, W) or (H, W, 3)."""
        image = self._opened(item)
        if self.rule == "exact":
            image = image.resize((self.resize[1], self.resize[0]), _BILINEAR)
        else:
            image = resized(image, self.resize[0], "short")
        top, left = round((image.height - self.crop[0]) / 2), round((image.width - self.crop[1]) / 2)
        return np.array(image.crop((left, top, left + self.crop[1], top + self.crop[0])), dtype=np.uint8)

    def _opened(self, item: Any) -> Image:
        from PIL import Image

        if isinstance(item, str | PathLike):
            return decode(_read(Path(fspath(item))), fspath(item), self.colour)
        if isinstance(item, Image.Image):
            return converted(item, self.colour)
        array = np.asarray(item.cpu() if isinstance(item, Tensor) else item)
        if array.dtype != np.uint8 or array.size == 0 or not (array.ndim == 2 or array.shape[2:] == (3,)):
            found = f"{array.dtype} {array.shape}" if array.dtype != object else repr(item)
            raise InputError(f"an image must be a path, a Pillow image or a uint8 (H, W) or (H, W, 3); got {found}.")
        return Image.fromarray(array).convert("RGB" if self.colour else "L")


Input = Annotated[FeatureInput | PictureInput, Field(discriminator="kind")]
_BILINEAR = 2  # Image.Resampling.BILINEAR


def input_of(dataset: Dataset, config: DataConfig) -> FeatureInput | PictureInput:
    """The input of a model trained on `dataset`: how its test images are prepared."""
    if dataset.are_features:
        return FeatureInput(features=dataset.images[0].shape[0])
    chosen = None if config.augment is None else augmentation(config.augment)
    images = dataset.images if chosen is None else images_for(dataset, chosen, train=False).images
    if isinstance(images, Pictures):
        if images.size is None or (images.resize == "short" and chosen is None):
            raise InputError(f"images must all have one size to be the input of a model; these are {images.looks}.")
        size, colour = (images.size, images.size), images.colour
        rule: Literal["exact", "short"] = "exact" if images.resize == "square" else "short"
    else:
        first = images[0]  # (H, W) or (H, W, 3)
        size, colour = (first.shape[0], first.shape[1]), first.ndim == 3
        rule = "short" if isinstance(images, Stored) and images.rule == "crop" else "exact"
    return PictureInput(
        colour=colour, rule=rule, resize=size, crop=size if chosen is None else (chosen.side, chosen.side)
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the image {path}: {error.strerror or error}. Check the path.") from error


def _times(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
