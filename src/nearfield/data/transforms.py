"""The papers' ways from a picture to the input of a network, by name: resize, crop, flip, pixel values.

A recipe is a value; its parts are torchvision transforms (v2). Resizing is left to `Pictures`, so that it is done once
(`images_for`); cropping and flipping work on uint8 tensors (C, H, W), picture by picture; pixel values on whole batches
(B, C, S, S). `transform` puts all of it together for anybody's own torchvision pipeline.

Axes: B pictures, C channels, H and W pixels, S the side of a crop.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nearfield.data.base import Dataset
from nearfield.data.pictures import RULES, Pictures
from nearfield.errors import InputError, nearest, require_one_of
from nearfield.vision import torchvision

Transform = Callable[[Any], Any]
CROPS = ("random", "resized")


@dataclass(frozen=True)
class Values:
    """Pixel values as a network wants them: (scale * pixel / 255 - mean) / std, channels in RGB or BGR order."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    scale: float = 1.0
    bgr: bool = False


VALUES = {
    "imagenet": Values((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "caffe": Values((104.0, 117.0, 128.0), (1.0, 1.0, 1.0), scale=255.0, bgr=True),  # BN-Inception's port
    "mxnet": Values((123.68, 116.78, 103.94), (1.0, 1.0, 1.0), scale=255.0),
    "half": Values((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),  # [-1, 1], EfficientNet-Lite
}


@dataclass(frozen=True)
class Recipe:
    """How pictures are prepared: resized, for training cropped at random and flipped, for testing cropped centrally."""

    size: int | None  # pixels that the picture, or its short side, is resized to; None leaves it
    rule: str  # square or short, see `Pictures`
    side: int  # S
    crop: str  # random: a window of the resized picture; resized: a part of it, stretched to S x S
    scale: float = 1.0  # least area of that part
    values: str = "imagenet"
    test_rule: str | None = None  # how pictures are resized for testing, if otherwise

    def __post_init__(self) -> None:
        require_one_of("rule", self.rule, RULES)
        require_one_of("crop", self.crop, CROPS)
        require_one_of("values", self.values, tuple(VALUES))
        if self.size is not None and self.crop == "random" and self.side > self.size:
            raise InputError(f"side must not be above size, {self.size}, for a random window; got {self.side}.")


RECIPES = {
    "fastap": Recipe(256, "square", 224, "random"),
    "multi_similarity": Recipe(256, "short", 227, "resized", 0.16, "caffe"),
    "reality_check": Recipe(256, "short", 227, "resized", 0.16, "caffe"),
    "unbiased": Recipe(256, "square", 224, "resized", 0.08, "mxnet", test_rule="short"),  # the iterator-based methods
    "unbiased_original": Recipe(None, "short", 224, "resized", 0.08, "mxnet", test_rule="short"),
    "px128": Recipe(128, "short", 128, "resized", 0.16, "half"),  # for photographs kept at 128 pixels
    "small": Recipe(128, "short", 112, "resized", 0.16, "half"),  # for training without an accelerator
}


def recipe(name: str, **changes: Any) -> Recipe:
    """The recipe called `name`, with some of its numbers changed."""
    if name not in RECIPES:
        raise InputError(f"there is no recipe {name!r}; {nearest(name, RECIPES)}")
    unknown = next((key for key in changes if key not in Recipe.__dataclass_fields__), None)
    if unknown is not None:
        raise InputError(f"{unknown} is not a part of a recipe; {nearest(unknown, Recipe.__dataclass_fields__)}")
    return replace(RECIPES[name], **changes)


def images_for(dataset: Dataset, chosen: Recipe, train: bool) -> Dataset:
    """The dataset with its pictures resized as the recipe says; anything but pictures stays as it is."""
    if not isinstance(dataset.images, Pictures):
        return dataset
    size, rule = _resize(chosen, train)
    return replace(dataset, images=dataset.images.at(size, rule, colour=True))


def crop(chosen: Recipe, train: bool) -> Transform:
    """From a resized uint8 picture (C, H, W) to (C, S, S): a random crop and flip, or the centre."""
    v2 = _v2()
    if not train:
        return v2.CenterCrop(chosen.side)  # type: ignore[no-any-return]
    if chosen.crop == "random":
        window = v2.RandomCrop(chosen.side, pad_if_needed=False)
    else:
        window = v2.RandomResizedCrop(chosen.side, scale=(chosen.scale, 1.0), antialias=True)
    return v2.Compose([window, v2.RandomHorizontalFlip()])  # type: ignore[no-any-return]


def pixel_values(name: str) -> Transform:
    """From uint8 batches (B, C, S, S) in RGB or grey to float32 as a kind of network wants them."""
    require_one_of("values", name, tuple(VALUES))
    return _ToValues(VALUES[name])


def transform(chosen: Recipe, train: bool) -> Transform:
    """The whole way from a Pillow picture to a float32 tensor (3, S, S), for a dataset of torchvision's."""
    v2 = _v2()
    size, rule = _resize(chosen, train)
    resize = [] if size is None else [v2.Resize((size, size) if rule == "square" else size)]
    return v2.Compose([v2.RGB(), *resize, crop(chosen, train), v2.PILToTensor(), pixel_values(chosen.values)])  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _ToValues:
    values: Values

    def __call__(self, images: Tensor) -> Tensor:
        x = images.flip(-3) if self.values.bgr else images
        if x.shape[-3] == 1:
            x = x.expand(*x.shape[:-3], 3, *x.shape[-2:])
        mean, std = (torch.tensor(v, device=x.device).view(3, 1, 1) for v in (self.values.mean, self.values.std))
        return (x * (self.values.scale / 255 / std)).sub_(mean / std)


def _resize(chosen: Recipe, train: bool) -> tuple[int | None, str]:
    if train or chosen.test_rule is None:
        return chosen.size, chosen.rule
    return chosen.size or 256, chosen.test_rule


def _v2() -> Any:
    torchvision()
    return importlib.import_module("torchvision.transforms.v2")
