"""The papers' augmentations by name: how images are resized and cropped, at random for training, centrally for testing.

`images_for` resizes, once, by way of `Pictures`; `loader` crops and flips whole batches; the network normalizes pixel
values itself (`Preprocessing`).

Axes: H and W pixels, S the side of a crop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nearfield.data.dataset import Dataset
from nearfield.data.pictures import RULES, Pictures
from nearfield.errors import InputError, nearest, require_one_of

CROPS = ("random", "resized")


@dataclass(frozen=True)
class Augmentation:
    """How images are resized, then cropped: at random and flipped for training, centrally for testing."""

    size: int | None  # pixels that the image, or its shorter side, is resized to; None: not resized
    rule: str  # of resizing: square or short, see `Pictures`
    side: int  # S
    crop: str  # random: RandomCrop; resized: RandomResizedCrop
    scale: float = 1.0  # smallest area of a resized crop, as a share of the image
    test_rule: str | None = None  # of resizing for testing; None: `rule`

    def __post_init__(self) -> None:
        require_one_of("rule", self.rule, RULES)
        require_one_of("crop", self.crop, CROPS)
        if self.size is not None and self.crop == "random" and self.side > self.size:
            raise InputError(f"side must be at most size, {self.size}, for a random crop; got {self.side}.")


AUGMENTATIONS = {
    "fastap": Augmentation(256, "square", 224, "random"),
    "multi_similarity": Augmentation(256, "short", 227, "resized", 0.16),
    "reality_check": Augmentation(256, "short", 227, "resized", 0.16),
    "unbiased": Augmentation(256, "square", 224, "resized", 0.08, test_rule="short"),  # the iterator-based methods
    "unbiased_original": Augmentation(None, "short", 224, "resized", 0.08, test_rule="short"),
    "px128": Augmentation(128, "short", 128, "resized", 0.16),  # for photographs stored at 128 pixels
    "small": Augmentation(128, "short", 112, "resized", 0.16),  # for training on a CPU
}


def augmentation(name: str) -> Augmentation:
    """The augmentation called `name`; InputError names the nearest if there is none."""
    if name not in AUGMENTATIONS:
        raise InputError(f"unknown augmentation {name!r}; {nearest(name, AUGMENTATIONS)}")
    return AUGMENTATIONS[name]


def images_for(dataset: Dataset, chosen: Augmentation, train: bool) -> Dataset:
    """The dataset with its image files resized by the augmentation; arrays and features are unchanged."""
    if not isinstance(dataset.images, Pictures):
        return dataset
    size, rule = chosen.size, chosen.rule
    if not train and chosen.test_rule is not None:
        size, rule = size or 256, chosen.test_rule
    return replace(dataset, images=dataset.images.at(size, rule, colour=True))
