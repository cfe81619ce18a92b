"""Laws of batch samplers, over many label patterns and seeds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfield.errors import InputError
from nearfield.samplers import BatchSampler, MPerClassSampler, ShuffleSampler


def labels_of(sizes: list[int]) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)) * 7, sizes))


class_sizes = st.lists(st.integers(1, 9), min_size=4, max_size=12)


@settings(deadline=None, max_examples=60)
@given(class_sizes, st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_m_per_class_composition(sizes: list[int], classes: int, per_class: int, seed: int) -> None:
    labels = labels_of(sizes)
    sampler = MPerClassSampler(labels, classes * per_class, per_class, seed)
    batches = list(sampler)
    assert len(batches) == len(sampler) == max(1, len(labels) // (classes * per_class))
    for batch in batches:
        counts = Counter(labels[batch].tolist())
        assert set(counts.values()) == {per_class}
        assert len(counts) == classes
        for label, rows in ((c, [i for i in batch if labels[i] == c]) for c in counts):
            if (labels == label).sum() >= per_class:
                assert len(set(rows)) == per_class


@settings(deadline=None, max_examples=40)
@given(class_sizes, st.integers(1, 6), st.integers(0, 10**6))
def test_shuffle_covers_without_repeats(sizes: list[int], batch_size: int, seed: int) -> None:
    labels = labels_of(sizes)
    if batch_size > len(labels):
        return
    sampler = ShuffleSampler(labels, batch_size, seed)
    drawn = np.concatenate([np.array(b) for b in sampler])
    assert len(drawn) == len(sampler) * batch_size
    assert len(set(drawn.tolist())) == len(drawn)
    assert len(labels) - len(drawn) < batch_size


def make(kind: str, seed: int = 3) -> BatchSampler:
    labels = labels_of([5] * 8)
    return MPerClassSampler(labels, 8, 2, seed) if kind == "m_per_class" else ShuffleSampler(labels, 8, seed)


@pytest.mark.parametrize("kind", ["m_per_class", "shuffle"])
def test_resume_in_the_middle_of_an_epoch(kind: str) -> None:
    whole = make(kind)
    expected = [batch for _ in range(3) for batch in whole]
    for stop in range(len(expected)):
        first, drawn = make(kind), []
        while len(drawn) < stop:
            for batch in first:
                drawn.append(batch)
                if len(drawn) == stop:
                    break
        second = make(kind, seed=99)
        second.load_state_dict(first.state_dict())
        while len(drawn) < len(expected):
            drawn += list(second)
        assert drawn == expected


@pytest.mark.parametrize("kind", ["m_per_class", "shuffle"])
def test_epochs_and_seeds_differ_and_repeat(kind: str) -> None:
    a, b = make(kind), make(kind)
    first, second = list(a), list(a)
    assert first != second
    assert first == list(b)
    assert list(make(kind, seed=4)) != first
    a.set_epoch(0)
    assert list(a) == first


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MPerClassSampler(labels_of([5] * 3), 8, 2, 0), "needs 4 classes; there are 3"),
        (lambda: MPerClassSampler(labels_of([5] * 3), 7, 2, 0), "multiple of per_class; got 7 and 2"),
        (lambda: ShuffleSampler(labels_of([2, 2]), 5, 0), "at most the number of images, 4; got 5"),
        (lambda: ShuffleSampler(np.zeros(4), 2, 0), "vector of integers"),
        (lambda: ShuffleSampler(np.zeros(0, dtype=np.int64), 2, 0), "non-empty"),
        (lambda: ShuffleSampler(labels_of([2, 2]), 0, 0), "at least 1; got 0"),
    ],
)
def test_impossible_batches_are_refused(build, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        build()
