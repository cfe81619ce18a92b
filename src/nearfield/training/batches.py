"""The data of a run: class-disjoint parts, batches of images to train on, rows of images to score.

Axes: N images, B images of a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from copy import copy
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearfield.config import DataConfig
from nearfield.data import Dataset, decoded, load, pixels, split_fingerprint
from nearfield.data.augment import augmentation, images_for
from nearfield.data.dataset import Integers
from nearfield.data.input_spec import input_of
from nearfield.data.loader import Cropped, loader
from nearfield.data.splits import held_out
from nearfield.models import EmbeddingModel
from nearfield.models.activations import activations_of
from nearfield.models.embed_images import Rows
from nearfield.samplers import BatchSampler


def open_data(config: DataConfig) -> Dataset:
    """The dataset that the configuration names; images that will be cropped are loaded in colour and at full size."""
    if config.size is not None:
        return load(config.name, size=config.size, resize="crop")
    return load(config.name) if config.augment is None else load(config.name, colour=True)


class Parts(NamedTuple):
    """The data of a run: classes to train on, classes to choose the step by (validation), classes to report (test)."""

    fit: Tensor  # indices of images
    val: Tensor
    test: Tensor
    fit_classes: int
    val_classes: int
    fingerprint: str


def split(dataset: Dataset, config: DataConfig) -> Parts:
    """The parts of a dataset, the same for every method and seed."""
    fit, val = held_out(dataset, config)
    fit_classes, val_classes = (np.unique(dataset.labels[rows]) for rows in (fit, val))
    digest = split_fingerprint(fit_classes, val_classes, dataset.test_classes)
    if dataset.is_test is not None:  # a closed set: the parts share classes, so images tell them apart
        digest = split_fingerprint(fit, val, dataset.test_rows())
    a, b, c = (torch.from_numpy(part) for part in (fit, val, dataset.test_rows()))
    return Parts(a, b, c, len(fit_classes), len(val_classes), digest)


class Batch(NamedTuple):
    """A training batch."""

    images: Tensor  # (B, ...)
    labels: Tensor  # (B,) classes numbered from 0, as proxies need them
    after: dict[str, Any]  # the sampler's state after this batch, where a run resumes


def grouped(batches: Iterator[Batch], size: int, updates: int) -> Iterator[list[Batch]]:
    """The batches of each of so many updates, `size` of them each."""
    for _ in range(updates):
        yield [next(batches) for _ in range(size)]


class Supply:
    """Batches and rows of a dataset, prepared as the configuration says."""

    def __init__(self, dataset: Dataset, config: DataConfig) -> None:
        self.parts = split(dataset, config)
        self.labels = torch.from_numpy(dataset.labels)
        self.fit_labels = torch.unique(self.labels[self.parts.fit], return_inverse=True)[1]
        self.categories = torch.from_numpy(dataset.class_category)[self.labels[self.parts.fit]]
        self.category_names = dataset.category_names
        self.workers = config.workers
        self._augmentation = None if config.augment is None else augmentation(config.augment)
        self._of = f"{dataset.fingerprint} {input_of(dataset, config).digest()}"  # the images as they are scored
        if self._augmentation is None:
            self._images = torch.from_numpy(pixels(dataset))
        else:
            self._for_fit, self._for_test = (
                decoded(images_for(dataset, self._augmentation, train)) for train in (True, False)
            )

    def behind_frozen(self, model: EmbeddingModel) -> Supply:
        """This supply with activations in place of images, which `model` takes from now on; computed once, then read.

        Unchanged if no stage of the model is frozen, or images are augmented: then no two activations are the same.
        """
        if not model.frozen or self._augmentation is not None:
            return self
        found = copy(self)
        found._images = activations_of(model, self._images, self._of)
        model.takes_activations = True
        return found

    @property
    def name_of_fit(self) -> str:
        """What tells `rows(parts.fit)` from all other images."""
        return f"{self._of} {self.parts.fingerprint}"

    @cached_property
    def features(self) -> Tensor | None:
        """The training features (N, F) if the data are features: a head may be initialised from them."""
        plain = self._augmentation is None and self._images.ndim == 2
        return self._images[self.parts.fit] if plain else None

    def batches(self, sampler: BatchSampler, first: int, seed: int) -> Iterator[Batch]:
        """Endless batches from the sampler's position on; crops depend on the seed and the number of the batch."""
        asked: deque[tuple[list[int], dict[str, Any]]] = deque()  # worker processes fetch batches ahead of their use

        def rows() -> Iterator[Integers]:
            while True:
                for batch in sampler:
                    asked.append((batch, sampler.state_dict()))
                    yield self.parts.fit.numpy()[batch]

        for images in self._cropped(rows(), first, seed):
            batch, after = asked.popleft()
            yield Batch(images, self.fit_labels[batch], after)

    def _cropped(self, batches: Iterator[Integers], first: int, seed: int) -> Iterator[Tensor]:
        if self._augmentation is None:
            return (self._images[torch.from_numpy(rows)] for rows in batches)
        given = {"train": True, "seed": seed, "first": first, "workers": self.workers}
        return loader(self._for_fit, batches, self._augmentation, **given)  # type: ignore[arg-type]

    def rows(self, part: Tensor) -> Rows:
        """The images of a part as they are scored: whole, or cropped to the centre."""
        if self._augmentation is None:
            return self._images[part]
        return _Centres(Cropped(self._for_test.images, self._augmentation, train=False, seed=0), part.numpy())


@lru_cache(maxsize=8)
def supply_of(dataset: Dataset, config: DataConfig) -> Supply:
    """The supply of a run; cached, so that many runs in one process prepare the same data once."""
    return Supply(dataset, config)


class _Centres:
    """Images that are cropped when they are sliced."""

    def __init__(self, images: Cropped, part: Integers) -> None:
        self.images, self.part = images, part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, rows: slice) -> Any:
        part = self.part[rows]
        return self.images[0, part.tolist()] if len(part) else np.empty((0, 3, 1, 1), np.uint8)
