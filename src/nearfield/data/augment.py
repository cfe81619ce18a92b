"""The papers' augmentations by name: how images are resized, cropped at random for training, centrally for testing.

An augmentation is a value. Resizing is left to `Pictures`, so that it is done once (`images_for`); `loading` crops and
flips whole batches; pixel values are the network's own (`Preprocessing`).

Axes: H and W pixels, S the side of a crop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from nearfield.data.dataset import Dataset
from nearfield.data.pictures import RULES, Pictures
from nearfield.errors import InputError, nearest, require_one_of

CROPS = ("random", "resized")


@dataclass(frozen=True)
class Augmentation:
    """How images are prepared: resized, for training cropped at random and flipped, for testing cropped centrally."""

    size: int | None  # pixels that the image, or its short side, is resized to; None leaves it
    rule: str  # square or short, see `Pictures`
    side: int  # S
    crop: str  # random: a window of the resized image; resized: a part of it, stretched to S x S
    scale: float = 1.0  # least area of that part
    test_rule: str | None = None  # how images are resized for testing, if otherwise

    def __post_init__(self) -> None:
        require_one_of("rule", self.rule, RULES)
        require_one_of("crop", self.crop, CROPS)
        if self.size is not None and self.crop == "random" and self.side > self.size:
            raise InputError(f"side must not be above size, {self.size}, for a random window; got {self.side}.")


AUGMENTATIONS = {
    "fastap": Augmentation(256, "square", 224, "random"),
    "multi_similarity": Augmentation(256, "short", 227, "resized", 0.16),
    "reality_check": Augmentation(256, "short", 227, "resized", 0.16),
    "unbiased": Augmentation(256, "square", 224, "resized", 0.08, test_rule="short"),  # the iterator-based methods
    "unbiased_original": Augmentation(None, "short", 224, "resized", 0.08, test_rule="short"),
    "px128": Augmentation(128, "short", 128, "resized", 0.16),  # for photographs kept at 128 pixels
    "small": Augmentation(128, "short", 112, "resized", 0.16),  # for training without an accelerator
}


def augmentation(name: str, **changes: Any) -> Augmentation:
    """The augmentation called `name`, with some of its numbers changed."""
    if name not in AUGMENTATIONS:
        raise InputError(f"there is no augmentation {name!r}; {nearest(name, AUGMENTATIONS)}")
    unknown = next((key for key in changes if key not in Augmentation.__dataclass_fields__), None)
    if unknown is not None:
        known = Augmentation.__dataclass_fields__
        raise InputError(f"{unknown} is not a part of an augmentation; {nearest(unknown, known)}")
    return replace(AUGMENTATIONS[name], **changes)


def images_for(dataset: Dataset, chosen: Augmentation, train: bool) -> Dataset:
    """The dataset with its images resized as the augmentation says; anything but images stays as it is."""
    if not isinstance(dataset.images, Pictures):
        return dataset
    size, rule = chosen.size, chosen.rule
    if not train and chosen.test_rule is not None:
        size, rule = size or 256, chosen.test_rule
    return replace(dataset, images=dataset.images.at(size, rule, colour=True))
