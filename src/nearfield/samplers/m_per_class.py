"""M-per-class batches, and the five rules by which published code draws them.

Axes: N images, C classes, T batches of an epoch, P classes of a batch, m images of a class in a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nearfield.errors import InputError, require_one_of
from nearfield.samplers.base import BatchSampler, Indices


class MPerClassSampler(BatchSampler):
    """`per_class` (m) images of each of P = batch_size / per_class classes, class by class.

    | rule | classes of a batch | images of a class | as in |
    |---|---|---|---|
    | distinct | distinct | distinct; with replacement if it has fewer than m | pytorch-metric-learning |
    | chunks | distinct | one of its chunks of m, none twice until all are rebuilt | Multi-Similarity's RandomIdentity |
    | replacement | with replacement | with replacement | Revisiting Deep Metric Learning |
    | images_with_replacement | distinct | with replacement | Classification is a Strong Baseline; Proxy-Anchor |
    | cover | distinct | one of its chunks, every image at least once an epoch | GeDML's full coverage |

    "chunks" cuts the shuffled images of each class into chunks of m, dropping the remainder and topping up classes with
    fewer than m with replacement; when fewer than P classes have chunks left, all chunks are redrawn. "cover" has no
    remainder: the last chunk of a class wraps around to its first images. "replacement" may put one class into a batch
    several times, even alone.

    An epoch has floor(N / batch_size) batches, at least one; with "cover" max(ceil(chunks / P), chunks of the largest
    class), the fewest that show every image while the classes of a batch are distinct.
    """

    def __init__(self, labels: Indices, batch_size: int, per_class: int, seed: int, *, rule: str = "distinct") -> None:
        super().__init__(labels, batch_size, seed)
        if per_class < 1 or batch_size % per_class:
            raise InputError(f"batch_size must be a multiple of per_class; got {batch_size} and {per_class}.")
        self.per_class, self.classes_per_batch = per_class, batch_size // per_class
        self.rule = require_one_of("rule", rule, tuple(RULES))
        if rule != "replacement":
            self._require_classes(self.classes_per_batch, "Lower batch_size or raise per_class.")

    def __len__(self) -> int:
        if self.rule == "cover":
            chunks = -(-self.classes.sizes // self.per_class)  # (C,)
            return max(-(-int(chunks.sum()) // self.classes_per_batch), int(chunks.max()))
        return max(1, len(self.labels) // self.batch_size)

    def draw_epoch(self, rng: np.random.Generator) -> list[Indices]:
        return list(RULES[self.rule](self, rng).reshape(len(self), self.batch_size))


def distinct_classes(classes: int, batches: int, per_batch: int, rng: np.random.Generator) -> Indices:
    """`per_batch` distinct classes for each batch, (T, P)."""
    return np.stack([rng.choice(classes, per_batch, replace=False) for _ in range(batches)])


def _distinct(sampler: MPerClassSampler, rng: np.random.Generator) -> Indices:
    known, m, batches = sampler.classes, sampler.per_class, []
    for _ in range(len(sampler)):
        chosen = rng.choice(len(known), sampler.classes_per_batch, replace=False)
        places = [rng.choice(size, m, replace=size < m) for size in known.sizes[chosen].tolist()]  # (P, m)
        batches.append(known.rows[known.starts[chosen][:, None] + np.stack(places)])
    return np.stack(batches)  # (T, P, m)


def _replacement(sampler: MPerClassSampler, rng: np.random.Generator) -> Indices:
    classes = rng.integers(0, len(sampler.classes), (len(sampler), sampler.classes_per_batch))  # (T, P)
    return _any_images(sampler, classes, rng)


def _images_with_replacement(sampler: MPerClassSampler, rng: np.random.Generator) -> Indices:
    classes = distinct_classes(len(sampler.classes), len(sampler), sampler.classes_per_batch, rng)
    return _any_images(sampler, classes, rng)


def _any_images(sampler: MPerClassSampler, classes: Indices, rng: np.random.Generator) -> Indices:
    """Images of the classes (T, P), drawn with replacement, (T, P, m)."""
    known, wanted = sampler.classes, classes[..., None]
    places = rng.integers(0, known.sizes[wanted], (*classes.shape, sampler.per_class))
    rows: Indices = known.rows[known.starts[wanted] + places]
    return rows


def _chunks(sampler: MPerClassSampler, rng: np.random.Generator) -> Indices:
    many, batches = np.maximum(sampler.classes.sizes // sampler.per_class, 1), []  # (C,) chunks of each class
    first, left = np.cumsum(many) - many, np.zeros_like(many)
    for _ in range(len(sampler)):
        if np.count_nonzero(left) < sampler.classes_per_batch:
            table, left = _cut(sampler, many, rng, top_up=True), many.copy()
        chosen = rng.choice(np.flatnonzero(left), sampler.classes_per_batch, replace=False)
        batches.append(table[first[chosen] + many[chosen] - left[chosen]])
        left[chosen] -= 1
    return np.stack(batches)  # (T, P, m)


def _cover(sampler: MPerClassSampler, rng: np.random.Generator) -> Indices:
    """Random classes in proportion to their remaining chunks, but first those with a chunk for every remaining batch.

    So no class ever has more chunks than there are batches left, and all chunks appear. Places that no chunk needs go
    to finished classes, which repeat one of their chunks.
    """
    many, batches = -(-sampler.classes.sizes // sampler.per_class), []  # (C,) chunks of each class
    table, first, left = _cut(sampler, many, rng), np.cumsum(many) - many, many.copy()
    for to_come in range(len(sampler), 0, -1):
        turn = rng.exponential(size=len(many)) / np.maximum(left, 1)  # (C,) the smallest come first
        turn += 1e6 * (left == 0) - 1e6 * (left == to_come)
        chosen = np.argpartition(turn, sampler.classes_per_batch - 1)[: sampler.classes_per_batch]
        chosen = chosen[np.argsort(turn[chosen])]  # the partition's own order is not the same on all machines
        again = rng.integers(0, many[chosen])
        batches.append(table[first[chosen] + np.where(left[chosen] > 0, many[chosen] - left[chosen], again)])
        left[chosen] = np.maximum(left[chosen] - 1, 0)
    return np.stack(batches)  # (T, P, m)


def _cut(sampler: MPerClassSampler, many: Indices, rng: np.random.Generator, *, top_up: bool = False) -> Indices:
    """`many` (C,) chunks of the shuffled images of each class, class after class, (sum of many, m).

    Where images run out, a chunk wraps around to the first ones or, with `top_up`, takes random ones.
    """
    classes = sampler.classes.shuffled(rng)
    owner = np.repeat(np.arange(len(many)), many)  # (chunks,)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(many) - many, many)
    places = nth[:, None] * sampler.per_class + np.arange(sampler.per_class)  # (chunks, m)
    sizes = classes.sizes[owner][:, None]
    extra = rng.integers(0, sizes, places.shape) if top_up else places % sizes
    return classes.rows[classes.starts[owner][:, None] + np.where(places < sizes, places, extra)]


RULES: dict[str, Callable[[MPerClassSampler, np.random.Generator], Indices]] = {
    "distinct": _distinct,
    "chunks": _chunks,
    "replacement": _replacement,
    "images_with_replacement": _images_with_replacement,
    "cover": _cover,
}
