"""Splits over classes: folds, halves, fixed lists, a gallery of one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfield import data
from nearfield.errors import InputError


@given(st.sets(st.integers(0, 10_000), min_size=4, max_size=80), st.integers(2, 9), st.none() | st.integers(0, 99))
def test_folds_cover_every_class_once_and_are_repeatable(classes: set[int], k: int, seed: int | None) -> None:
    if k > len(classes) // 2:
        with pytest.raises(InputError, match=rf"k must be in 2\.\.{len(classes) // 2}"):
            data.k_folds(sorted(classes), k, seed)
        return
    folds = data.k_folds(sorted(classes), k, seed)
    assert sorted(c for _, val in folds for c in val.tolist()) == sorted(classes)
    for train, val in folds:
        assert set(train.tolist()) | set(val.tolist()) == classes
        assert not set(train.tolist()) & set(val.tolist())
        assert len(train) >= 2 <= len(val)
    sizes = [len(val) for _, val in folds]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    again = data.k_folds(sorted(classes, reverse=True), k, seed)
    assert [data.split_fingerprint(*f) for f in folds] == [data.split_fingerprint(*f) for f in again]


def test_contiguous_folds_are_those_of_scikit_learn() -> None:
    from sklearn.model_selection import KFold

    for count in (98, 100, 11_318):  # Cars, CUB, Stanford Online Products
        wanted = KFold(4).split(np.arange(count))
        for (train, val), (a, b) in zip(data.k_folds(range(count), 4), wanted, strict=True):
            assert np.array_equal(train, a)
            assert np.array_equal(val, b)
    assert [len(val) for _, val in data.k_folds(range(98), 4)] == [25, 25, 24, 24]


def test_seeded_folds_are_shuffled() -> None:
    folds = [data.k_folds(range(40), 4, seed)[0][1].tolist() for seed in (None, 0, 1)]
    assert folds[0] == list(range(10))
    assert folds[0] != folds[1] != folds[2]


def test_halves() -> None:
    assert [half.tolist() for half in data.halves(5)] == [[0, 1, 2], [3, 4]]


def test_a_fixed_list_changes_the_fingerprint_and_nothing_else() -> None:
    digits = data.load("digits")
    odd = data.resplit(digits, [1, 3, 5, 7, 9], [0, 2, 4, 6, 8])
    assert odd.train_classes.tolist() == [1, 3, 5, 7, 9]
    assert odd.images is digits.images
    assert odd.fingerprint != digits.fingerprint
    assert odd.fingerprint == data.resplit(digits, [9, 7, 5, 3, 1], [8, 6, 4, 2, 0]).fingerprint
    with pytest.raises(InputError, match="disjoint; got class 1 twice"):
        data.resplit(digits, [1, 2], [1])
    with pytest.raises(InputError, match="cover all 10 classes; got 2"):
        data.resplit(digits, [1], [2])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(0, 99))
def test_a_gallery_of_one_holds_one_of_each(labels: list[int], seed: int) -> None:
    queries, gallery = data.gallery_of_one(labels, np.random.default_rng(seed))
    values = np.asarray(labels)
    assert sorted(values[gallery].tolist()) == sorted(set(labels))
    assert sorted([*queries.tolist(), *gallery.tolist()]) == list(range(len(labels)))


def test_every_image_of_a_class_can_be_its_gallery() -> None:
    drawn = {tuple(data.gallery_of_one([0, 0, 0], np.random.default_rng(seed))[1].tolist()) for seed in range(50)}
    assert drawn == {(0,), (1,), (2,)}
