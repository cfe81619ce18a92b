"""Frozen features of public photographs, found in the folder $NEARFIELD_DATA by the name of their file.

Each row is the pooled output (1,280 numbers) of an ImageNet EfficientNet-Lite0 at 224 pixels. The first half of the
classes in order, rounded down, is for training, the second for the test. The files are not part of Nearfield: the
photographs belong to their publishers.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nearfield.data.dataset import Dataset
from nearfield.data.readers import arrays
from nearfield.data.splits import resplit


class Source(NamedTuple):
    """Where the photographs come from, and on which terms."""

    file: str
    title: str
    address: str
    licence: str


FEATURES = {
    "cub_lite0": Source(
        "cub200_efficientnet_lite0_224.npz",
        "CUB-200-2011, photographs of 200 species of birds (Wah et al., 2011)",
        "https://www.vision.caltech.edu/datasets/cub_200_2011/",
        "research data, not for redistribution",
    ),
    "flowers102_lite0": Source(
        "flowers102_efficientnet_lite0_224.npz",
        "Oxford Flowers-102, photographs of 102 kinds of flowers (Nilsback and Zisserman, 2008)",
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        "research data of Oxford VGG",
    ),
    "grocery81_lite0": Source(
        "grocery81_efficientnet_lite0_224.npz",
        "Grocery Store, photographs of 81 kinds of groceries in 43 coarse classes (Klasson et al., 2019)",
        "https://github.com/marcusklasson/GroceryStoreDataset",
        "MIT",
    ),
    "chimpanzees102_lite0": Source(
        "chimpanzees102_efficientnet_lite0_224.npz",
        "C-Tai and C-Zoo, faces of 102 chimpanzees, a re-identification set (Freytag et al., 2016)",
        "https://github.com/cvjena/chimpanzee_faces",
        "non-commercial, with citation",
    ),
}


def find(name: str) -> Path | None:
    """The file of the features called `name` in the folder $NEARFIELD_DATA, or None."""
    folder = os.environ.get("NEARFIELD_DATA")
    if not folder or name not in FEATURES:
        return None
    path = Path(folder) / FEATURES[name].file
    return path if path.is_file() else None


def load(name: str, path: Path) -> Dataset:
    """The features called `name` in a file, the classes split into halves."""
    source, dataset = FEATURES[name], arrays.load(path)
    classes = np.arange(len(dataset.class_names))
    half = len(classes) // 2
    if len(dataset.train_classes) != half:  # an odd number of classes, which other data round up
        dataset = resplit(dataset, classes[:half], classes[half:])
    words = f"Frozen EfficientNet-Lite0 features of {source.title}. {source.address}, {source.licence}."
    return replace(dataset, name=name, description=words)
