"""Which images and classes a fit uses: as many as fit into the time, and a share of the classes held out for the test.

Axes: N images, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nearfield.data import Dataset, Pictures, split_classes
from nearfield.data.dataset import Images, Integers, fingerprint
from nearfield.data.pictures import Files, Paths
from nearfield.fit.check import Checked

TEST = 0.3  # share of the classes that are held out
FEWEST = 10  # classes with two images each, from which a comparison says anything
LEAST = 4  # images that a class keeps when images are left out to save time


@dataclass(frozen=True)
class SomeFiles:
    """Some of the files of a dataset."""

    files: Files
    rows: Integers

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, row: int) -> str:
        """The name of the file."""
        return self.files.name(int(self.rows[row]))

    def read(self, row: int) -> bytes:
        """The content of the file."""
        return self.files.read(int(self.rows[row]))


def hold_out(dataset: Dataset, checked: Checked, most: int | None, seed: int = 0) -> tuple[Dataset, int]:
    """The usable part of a dataset, at most `most` images, its classes split at random; and how many images leak.

    An image of a held-out class that is a near-duplicate of a training image is left out: it would not be new.
    """
    rows = checked.rows if most is None else thin(checked.rows, dataset.labels, most, seed)
    train, _ = split_classes(dataset.labels[rows], TEST, seed)
    trained = np.isin(dataset.labels, train)
    chosen = set(rows.tolist())
    pairs = [(a, b) for a, b in checked.alike if a in chosen and b in chosen and trained[a] != trained[b]]
    leaking = {b if trained[a] else a for a, b in pairs}
    kept = np.array([row for row in rows.tolist() if row not in leaking], np.int64)
    counts = np.bincount(dataset.labels[kept], minlength=len(dataset.class_names))
    kept = kept[counts[dataset.labels[kept]] > 1]
    return some_rows(dataset, kept, train), len(leaking)


def thin(rows: Integers, labels: Integers, most: int, seed: int) -> Integers:
    """At most about `most` of the rows: the same cap for every class; if that is below LEAST, fewer classes."""
    if len(rows) <= most:
        return rows
    draw = np.random.Generator(np.random.PCG64(seed))
    classes, counts = np.unique(labels[rows], return_counts=True)
    caps = range(int(counts.max()), LEAST - 1, -1)
    cap = next((c for c in caps if np.minimum(counts, c).sum() <= most), LEAST)
    order = draw.permutation(len(classes))
    inside = np.cumsum(np.minimum(counts, cap)[order]) <= most
    inside[: 2 * FEWEST] = True
    kept = []
    for place in order[inside]:
        own = rows[labels[rows] == classes[place]]
        kept.append(draw.permutation(own)[:cap])
    return np.sort(np.concatenate(kept))


def some_rows(dataset: Dataset, rows: Integers, train: Integers) -> Dataset:
    """The dataset of some rows, classes numbered anew; `train` are the training classes by their old numbers."""
    classes, labels = np.unique(dataset.labels[rows], return_inverse=True)
    labels = labels.astype(np.int64)
    inside = np.isin(classes, train)
    parts = (np.flatnonzero(inside).astype(np.int64), np.flatnonzero(~inside).astype(np.int64))
    images = _some_images(dataset.images, rows)
    content = images.digests if isinstance(images, Pictures) else np.asarray(images)
    return replace(
        dataset,
        images=images,
        labels=labels,
        class_names=tuple(dataset.class_names[label] for label in classes.tolist()),
        class_category=dataset.class_category[classes],
        train_classes=parts[0],
        test_classes=parts[1],
        fingerprint=fingerprint(content, labels, *parts),
        is_test=None,
        is_query=None,
        is_gallery=None,
        test_lists={},
    )


def _some_images(images: Images, rows: Integers) -> Images:
    if not isinstance(images, Pictures):
        return np.asarray(images[rows])
    files: Files
    if isinstance(images.files, Paths):
        files = Paths(images.files.root, tuple(images.files.paths[row] for row in rows.tolist()))
    else:
        files = SomeFiles(images.files, rows)
    return replace(images, files=files, digests=images.digests[rows])
