"""FastAP's hard batches: half of a batch from one category, half from another, so that negatives are similar.

Axes: N images, C classes, K categories.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Iterator

import numpy as np

from nearfield.errors import InputError, require_positive
from nearfield.samplers.base import BatchSampler, Classes, Indices, SamplerWarning


class FastAPHardSampler(BatchSampler):
    """Category pairs of Cakir et al., Deep Metric Learning to Rank, CVPR 2019, supplement.

    `categories` holds one category for each image, beside `labels`; all images of a class have the same. (From one for
    each class: `class_category[labels]`.) Each epoch the classes of a category, and the images of a class, are shuffled
    and arranged in a circle. Then every pair of categories, in random order, makes `repeats` batches: the next
    batch_size / 2 images of each of the two circles. An epoch has K (K - 1) / 2 * repeats batches: 330 for Stanford
    Online Products (K = 12, 5 repeats), 506 for In-Shop (K = 23, 2 repeats).

    For data in which few classes have a category (VehicleID), `unlabelled` is the category that means none: then each
    other category c, in random order, makes ceil(2 N_c / batch_size) batches, half of c and half of the circle of
    unlabelled images, and every image of a labelled category appears at least once an epoch (`repeats` is ignored).

    The circles of the released code split classes, and repeat images in a batch if a category has fewer than
    batch_size / 2 (with a warning). With `keep_class_whole` a half has as many whole classes as fit, no image twice:
    batches have at most `batch_size` images, and classes with more than batch_size / 2 are left out. The number of
    batches is the same, so that an epoch may miss some labelled images.
    """

    def __init__(
        self,
        labels: Indices,
        batch_size: int,
        categories: Indices | None,
        seed: int,
        *,
        repeats: int = 1,
        unlabelled: int | None = None,
        keep_class_whole: bool = False,
    ) -> None:
        super().__init__(labels, batch_size, seed)
        if batch_size % 2:
            raise InputError(f"batch_size must be even, half for each category; got {batch_size}.")
        require_positive(repeats=repeats)
        self.half, self.keep_class_whole = batch_size // 2, keep_class_whole
        self.repeats, self.unlabelled = repeats, unlabelled
        of_image = _check_categories(self.labels, categories)  # (N,)
        if keep_class_whole:
            self.full_batches = False
            too_big, why = self.classes.sizes > self.half, f"more than batch_size / 2 = {self.half} images"
            self._leave_out(too_big, why, 2, "Raise batch_size.")
        self.class_category = of_image[self.classes.rows[self.classes.starts]]  # (C,)
        owner = np.repeat(self.class_category, self.classes.sizes)
        values, images = np.unique(owner, return_counts=True)
        self.images: dict[int, int] = dict(zip(values.tolist(), images.tolist(), strict=True))  # of each category
        self._check_partners()
        if not keep_class_whole:
            self._warn_of_repeats()

    def __len__(self) -> int:
        if self.unlabelled is None:
            return len(self.images) * (len(self.images) - 1) // 2 * self.repeats
        return sum(self._batches_of(category) for category in self.images if category != self.unlabelled)

    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        circles = {category: self._circle(category, rng) for category in self.images}
        return [np.concatenate([next(circles[a]), next(circles[b])]) for a, b in self._visits(rng)]

    def _visits(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """The two categories of each batch."""
        if self.unlabelled is None:
            pairs = list(itertools.combinations(self.images, 2))
            return [pairs[i] for i in rng.permutation(len(pairs)) for _ in range(self.repeats)]
        labelled = [category for category in self.images if category != self.unlabelled]
        order = [labelled[i] for i in rng.permutation(len(labelled))]
        return [(category, self.unlabelled) for category in order for _ in range(self._batches_of(category))]

    def _batches_of(self, category: int) -> int:
        return -(-self.images[category] // self.half)

    def _circle(self, category: int, rng: np.random.Generator) -> Iterator[Indices]:
        members = np.flatnonzero(self.class_category == category)
        classes = self.classes.take(rng.permutation(members)).shuffled(rng)
        return whole_classes(classes, self.half) if self.keep_class_whole else consecutive(classes, self.half)

    def _check_partners(self) -> None:
        if len(self.images) < 2:
            raise InputError(f"categories must be at least 2, to form pairs; got {len(self.images)}.")
        if self.unlabelled is not None and self.unlabelled not in self.images:
            raise InputError(f"unlabelled must be one of the categories; got {self.unlabelled}, which no class has.")

    def _warn_of_repeats(self) -> None:
        few = sum(images < self.half for images in self.images.values())
        if few:
            warnings.warn(
                f"{few} of {len(self.images)} categories have fewer than batch_size / 2 = {self.half} images, so that "
                "batches repeat some; lower batch_size, or set keep_class_whole.",
                SamplerWarning,
                stacklevel=3,
            )


def consecutive(classes: Classes, count: int) -> Iterator[Indices]:
    """The next `count` images, endlessly."""
    for turn in itertools.count():
        yield classes.rows[(turn * count + np.arange(count)) % len(classes.rows)]


def whole_classes(classes: Classes, room: int) -> Iterator[Indices]:
    """The next classes that fit into `room` images, endlessly, none twice in a batch; no class has more than `room`."""
    circle = deque(np.split(classes.rows, classes.starts[1:]))
    while True:
        taken: list[Indices] = []
        left = room
        while len(taken) < len(circle) and len(circle[0]) <= left:
            taken.append(circle[0])
            left -= len(circle[0])
            circle.rotate(-1)
        yield np.concatenate(taken)


def _check_categories(labels: Indices, categories: Indices | None) -> Indices:
    """One category for each image, (N,); InputError if a class has several."""
    found = np.asarray(categories)
    if categories is None or found.shape != labels.shape or not np.issubdtype(found.dtype, np.integer):
        given = "none" if categories is None else f"{found.dtype} {found.shape}"
        raise InputError(
            f"categories must be integers, one for each of the {len(labels)} labels; got {given}. "
            "From one for each class: class_category[labels]."
        )
    pairs = np.unique(np.stack([labels, found]), axis=1)  # (2, C) if every class has one category
    split = pairs[0, 1:][pairs[0, 1:] == pairs[0, :-1]]
    if len(split):
        raise InputError(f"categories must be the same for all images of a class; class {split[0]} has several.")
    return found
