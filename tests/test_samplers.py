"""Laws of batch samplers, over many label patterns and seeds."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from nearfield import data
from nearfield.errors import InputError
from nearfield.samplers import (
    BatchSampler,
    Classes,
    EpisodicSampler,
    FastAPHardSampler,
    FastAPSampler,
    MPerClassSampler,
    NPairsSampler,
    SamplerWarning,
    ShardedSampler,
    ShuffleSampler,
    build_sampler,
    names,
)

DISTINCT_RULES = ("distinct", "chunks", "images_with_replacement", "cover")


def labels_of(sizes: list[int]) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)) * 7, sizes))


def quietly(build: Callable[..., BatchSampler], *args: object, **options: object) -> BatchSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)
        return build(*args, **options)


def counts_of(labels: np.ndarray, batch: list[int]) -> Counter[int]:
    return Counter(labels[batch].tolist())


class_sizes = st.lists(st.integers(1, 9), min_size=4, max_size=12)
category_sizes = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=2, max_size=5)
seeds = st.integers(0, 10**6)
laws = settings(deadline=None, max_examples=60)


# M-per-class


@laws
@given(class_sizes, st.integers(1, 4), st.integers(1, 4), seeds, st.sampled_from(DISTINCT_RULES))
def test_m_per_class_composition(sizes: list[int], classes: int, per_class: int, seed: int, rule: str) -> None:
    labels = labels_of(sizes)
    sampler = MPerClassSampler(labels, classes * per_class, per_class, seed, rule=rule)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    if rule != "cover":
        assert len(batches) == max(1, len(labels) // (classes * per_class))
    for batch in batches:
        counts = counts_of(labels, batch)
        assert set(counts.values()) == {per_class}
        assert len(counts) == classes
        for chunk in np.array(batch).reshape(classes, per_class):
            assert len(set(labels[chunk])) == 1
            size = (labels == labels[chunk[0]]).sum()
            if rule == "cover":
                assert max(Counter(chunk.tolist()).values()) <= math.ceil(per_class / size)
            elif rule == "chunks":
                assert len(set(chunk.tolist())) == min(size, per_class)
            elif rule == "distinct" and size >= per_class:
                assert len(set(chunk.tolist())) == per_class


@laws
@given(class_sizes, st.integers(1, 4), st.integers(1, 4), seeds)
def test_cover_shows_every_image_in_the_fewest_batches(
    sizes: list[int], classes: int, per_class: int, seed: int
) -> None:
    labels = labels_of(sizes)
    sampler = MPerClassSampler(labels, classes * per_class, per_class, seed, rule="cover")
    for _ in range(2):
        batches = list(sampler)
        assert {i for batch in batches for i in batch} == set(range(len(labels)))
        chunks = [math.ceil(size / per_class) for size in sizes]
        assert len(batches) == max(math.ceil(sum(chunks) / classes), max(chunks))


@laws
@given(st.lists(st.integers(3, 9), min_size=4, max_size=12), st.integers(1, 4), seeds)
def test_chunks_repeat_no_image_until_they_are_made_anew(sizes: list[int], classes: int, seed: int) -> None:
    labels, left, seen = labels_of(sizes), Counter[int](), set[int]()
    for batch in MPerClassSampler(labels, classes * 3, 3, seed, rule="chunks"):
        if sum(n > 0 for n in left.values()) < classes:
            left, seen = Counter({7 * c: size // 3 for c, size in enumerate(sizes)}), set()
        assert not seen & set(batch)
        seen |= set(batch)
        left -= Counter(set(labels[batch].tolist()))
        assert all(n >= 0 for n in left.values())


@laws
@given(class_sizes, st.integers(1, 20), st.integers(1, 4), seeds)
def test_replacement_draws_classes_again(sizes: list[int], classes: int, per_class: int, seed: int) -> None:
    labels = labels_of(sizes)
    sampler = MPerClassSampler(labels, classes * per_class, per_class, seed, rule="replacement")
    batches = list(sampler)
    assert len(batches) == len(sampler) == max(1, len(labels) // (classes * per_class))
    for batch in batches:
        assert len(batch) == classes * per_class
        assert all(count % per_class == 0 for count in counts_of(labels, batch).values())


def test_rules_that_replace_do_repeat() -> None:
    labels = labels_of([5] * 4)
    for rule in ("replacement", "images_with_replacement"):
        assert any(len(set(b)) < len(b) for b in MPerClassSampler(labels, 12, 4, 0, rule=rule))
    together = [counts_of(labels, b) for s in range(20) for b in MPerClassSampler(labels, 12, 4, s, rule="replacement")]
    assert {len(counts) for counts in together} == {1, 2, 3}


def test_chunks_top_up_small_classes_at_random() -> None:
    labels = np.repeat([0, 1], 2)
    most = {max(Counter(b[:5]).values()) for s in range(50) for b in MPerClassSampler(labels, 5, 5, s, rule="chunks")}
    assert most == {3, 4}  # both images and three more draws


def test_cover_spreads_large_classes_over_the_epoch() -> None:
    labels, middle = labels_of([40] + [4] * 60), []
    for seed in range(20):
        batches = list(MPerClassSampler(labels, 8, 4, seed, rule="cover"))
        assert len(batches) == 35
        middle.append(np.mean([t for t, batch in enumerate(batches) if 0 in labels[batch]]))
    assert abs(np.mean(middle) - 17) < 2.5


def test_distinct_draws_are_those_of_the_first_release() -> None:
    sampler = MPerClassSampler(np.repeat(np.arange(9) * 7, range(1, 10)), 12, 4, 11)
    assert list(sampler) == [
        [0, 0, 0, 0, 35, 28, 32, 31, 2, 1, 2, 1],
        [15, 16, 20, 17, 36, 43, 38, 41, 30, 33, 35, 34],
        [0, 0, 0, 0, 4, 5, 4, 5, 2, 2, 1, 2],
    ]
    assert next(iter(sampler)) == [5, 3, 4, 5, 2, 2, 2, 1, 42, 43, 38, 44]
    assert next(iter(ShuffleSampler(np.arange(60) % 13, 8, 5))) == [27, 31, 38, 26, 11, 29, 12, 57]


# Pairs and episodes


@laws
@given(class_sizes, st.integers(1, 4), seeds, st.sampled_from([0.0, 0.3, 1.0]))
def test_npairs_composition(sizes: list[int], classes: int, seed: int, p_same: float) -> None:
    labels, usable = labels_of(sizes), [size for size in sizes if size > 1]
    assume(len(usable) >= classes)
    sampler = quietly(NPairsSampler, labels, 2 * classes, seed, p_same=p_same)
    batches = list(sampler)
    assert len(batches) == len(sampler) == max(1, sum(usable) // (2 * classes))
    assert sampler.left_out.tolist() == [7 * c for c, size in enumerate(sizes) if size < 2]
    for batch in batches:
        assert set(counts_of(labels, batch).values()) == {2}
        anchors, positives = batch[::2], batch[1::2]
        assert labels[anchors].tolist() == labels[positives].tolist()
        if p_same in (0.0, 1.0):
            assert all((a == p) == (p_same == 1) for a, p in zip(anchors, positives, strict=True))


def test_npairs_are_uniform_and_same_as_often_as_asked() -> None:
    labels = np.repeat(np.arange(4), 3)
    pairs = [tuple(b[:2]) for s in range(600) for b in NPairsSampler(labels, 2, s)]  # 6 batches of one pair
    tally = Counter(pairs)
    assert len(tally) == 4 * 6
    assert all(abs(n - 150) < 5 * math.sqrt(150) for n in tally.values())
    same = [b[0] == b[1] for s in range(600) for b in NPairsSampler(labels, 2, s, p_same=0.1)]
    assert abs(np.mean(same) - 0.1) < 5 * math.sqrt(0.09 / 3600)


@laws
@given(class_sizes, st.integers(1, 3), st.integers(2, 5), seeds)
def test_episodes_have_distinct_images_of_sorted_classes(
    sizes: list[int], classes: int, per_class: int, seed: int
) -> None:
    labels, usable = labels_of(sizes), [size for size in sizes if size >= per_class]
    assume(len(usable) >= classes)
    sampler = quietly(EpisodicSampler, labels, classes * per_class, per_class, seed)
    batches = list(sampler)
    assert len(batches) == len(sampler) == max(1, sum(usable) // (classes * per_class))
    assert sampler.left_out.tolist() == [7 * c for c, size in enumerate(sizes) if size < per_class]
    for batch in batches:
        assert len(set(batch)) == len(batch)
        assert labels[batch].tolist() == sorted(labels[batch])
        assert set(counts_of(labels, batch).values()) == {per_class}


def test_support_and_query_make_up_a_class() -> None:
    labels = labels_of([9] * 4)
    halves, other = EpisodicSampler(labels, 10, 5, 0), EpisodicSampler(labels, 10, 5, 0, support=4)
    assert (halves.support, halves.query, other.support, other.query) == (2, 3, 4, 1)


# Every image once an epoch


@laws
@given(class_sizes, st.integers(1, 6), seeds, st.booleans(), st.sampled_from([ShuffleSampler, FastAPSampler]))
def test_rows_of_images_are_cut_without_repeats(
    sizes: list[int], batch_size: int, seed: int, drop_last: bool, kind: Callable[..., BatchSampler]
) -> None:
    labels = labels_of(sizes)
    assume(batch_size <= len(labels))
    sampler = kind(labels, batch_size, seed, drop_last=drop_last)
    batches = list(sampler)
    drawn = [i for batch in batches for i in batch]
    assert len(batches) == len(sampler)
    assert len(set(drawn)) == len(drawn) == (len(labels) // batch_size * batch_size if drop_last else len(labels))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert sampler.full_batches == all(len(batch) == batch_size for batch in batches)
    if kind is FastAPSampler:
        runs = np.count_nonzero(np.diff(labels[drawn])) + 1
        assert runs == len(set(labels[drawn].tolist()))


@laws
@given(class_sizes, st.integers(3, 20), seeds)
def test_fastap_keeps_classes_whole(sizes: list[int], batch_size: int, seed: int) -> None:
    labels, fitting = labels_of(sizes), [size for size in sizes if size <= batch_size]
    assume(fitting)
    sampler = quietly(FastAPSampler, labels, batch_size, seed, keep_class_whole=True)
    assert sampler.left_out.tolist() == [7 * c for c, size in enumerate(sizes) if size > batch_size]
    for epoch in range(3):
        assert sampler.epoch == epoch
        expected, batches = len(sampler), list(sampler)
        assert len(batches) == expected
        assert sorted(i for b in batches for i in b) == np.flatnonzero(~np.isin(labels, sampler.left_out)).tolist()
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            assert all(n == (labels == label).sum() for label, n in counts_of(labels, batch).items())
            assert len(batch) <= batch_size
            if following is not None:  # its first class had no room here
                assert len(batch) + (labels == labels[following[0]]).sum() > batch_size


# Category pairs


def in_categories(categories: int, classes: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(np.arange(categories * classes), size)
    return labels, labels // classes


@pytest.mark.parametrize(("categories", "repeats", "batches"), [(12, 5, 330), (23, 2, 506)])
def test_published_epoch_lengths(categories: int, repeats: int, batches: int) -> None:
    labels, category = in_categories(categories, 4, 5)
    sampler = FastAPHardSampler(labels, 32, category, 0, repeats=repeats)
    assert len(sampler) == len(list(sampler)) == batches


@laws
@given(category_sizes, st.integers(1, 9), st.integers(1, 3), seeds, st.booleans())
def test_category_pairs(groups: list[list[int]], half: int, repeats: int, seed: int, whole: bool) -> None:
    labels = labels_of([size for sizes in groups for size in sizes])
    of_class = np.repeat(np.arange(len(groups)), [len(sizes) for sizes in groups])
    category = of_class[labels // 7]
    usable = [c for c, sizes in enumerate(groups) if not whole or min(sizes) <= half]
    assume(len(usable) > 1)
    options = {"repeats": repeats, "keep_class_whole": whole}
    sampler = quietly(FastAPHardSampler, labels, 2 * half, category, seed, **options)
    batches = list(sampler)
    assert len(batches) == len(sampler) == math.comb(len(usable), 2) * repeats
    pairs = Counter(tuple(sorted(set(category[batch].tolist()))) for batch in batches)
    assert set(pairs.values()) == {repeats}
    assert all(len(pair) == 2 for pair in pairs)
    shown: dict[int, Counter[int]] = {c: Counter() for c in usable}
    for batch in batches:
        for c in set(category[batch].tolist()):
            rows = [i for i in batch if category[i] == c]
            shown[c].update(rows)
            if whole:
                assert len(set(rows)) == len(rows) <= half
                assert all(n == (labels == label).sum() for label, n in counts_of(labels, rows).items())
            else:
                assert len(rows) == half
    for c, tally in shown.items():  # a circle: no image comes round twice before another does once
        often = [tally[i] for i in np.flatnonzero((category == c) & ~np.isin(labels, sampler.left_out)).tolist()]
        assert max(often) - min(often) <= 1


def test_categories_and_their_classes_come_in_random_order() -> None:
    labels, category = in_categories(4, 5, 2)
    sampler = FastAPHardSampler(labels, 4, category, 0)
    epochs = [list(sampler) for _ in range(30)]
    assert len({tuple(sorted(set(category[batches[0]].tolist()))) for batches in epochs}) == 6  # every pair comes first
    first = [next(i for batch in batches for i in batch if category[i] == 0) for batches in epochs]
    assert set(labels[first].tolist()) == {0, 1, 2, 3, 4}
    assert {i % 2 for i in first} == {0, 1}


@laws
@given(category_sizes, class_sizes, st.integers(1, 9), seeds, st.booleans())
def test_labelled_halves(groups: list[list[int]], rest: list[int], half: int, seed: int, whole: bool) -> None:
    labels = labels_of([size for sizes in [*groups, rest] for size in sizes])
    of_class = np.repeat([*range(len(groups)), -1], [len(sizes) for sizes in [*groups, rest]])
    category = of_class[labels // 7]
    assume(not whole or all(min(sizes) <= half for sizes in [*groups, rest]))
    sampler = quietly(FastAPHardSampler, labels, 2 * half, category, seed, unlabelled=-1, keep_class_whole=whole)
    batches = list(sampler)
    images = [sum(size for size in sizes if not whole or size <= half) for sizes in groups]
    assert len(batches) == len(sampler) == sum(math.ceil(2 * n / (2 * half)) for n in images)
    for batch in batches:
        labelled = [i for i in batch if category[i] >= 0]
        assert len(set(category[labelled].tolist())) == 1
        assert 0 < len(labelled) < len(batch)
        assert len(labelled) == len(batch) - len(labelled) == half or whole
    if not whole:
        assert {i for b in batches for i in b} >= set(np.flatnonzero(category >= 0).tolist())


def check_hard_batches(labels: np.ndarray, category: np.ndarray, sampler: BatchSampler) -> None:
    """Every batch has two categories, half and half, and most of its images have a positive beside them."""
    for batch in sampler:
        assert sorted(Counter(category[batch].tolist()).values()) == [sampler.batch_size // 2] * 2
        alone = sum(n for n in counts_of(labels, batch).values() if n == 1)
        assert alone <= 4  # a class is cut at either end of either half


def test_hard_batches_of_glyphs() -> None:
    glyphs = data.load("glyphs")
    rows = glyphs.indices_of(glyphs.train_classes)
    labels, category = glyphs.labels[rows], glyphs.class_category[glyphs.labels[rows]]
    sampler = build_sampler("fastap_hard", labels, 128, categories=category)
    assert len(sampler) == math.comb(len(set(category.tolist())), 2)
    check_hard_batches(labels, category, sampler)


def test_hard_batches_of_omniglot(real_data: Path) -> None:
    with np.load(real_data / "omniglot.npz") as file:
        alphabet = file["class_alphabet"].astype(np.int64)
    labels = np.repeat(np.arange(len(alphabet)), 20)
    sampler = build_sampler("fastap_hard", labels, 256, categories=alphabet[labels])
    assert len(sampler) == 50 * 49 // 2
    check_hard_batches(labels, alphabet[labels], sampler)


# Laws of all


def named(kind: str) -> tuple[str, dict[str, object]]:
    """The name and the options that `kind` stands for."""
    name, _, option = kind.partition(":")
    return name, {} if not option else {"rule": option} if name == "m_per_class" else {option: True}


def make(kind: str, seed: int = 3) -> BatchSampler:
    name, options = named(kind)
    labels = labels_of([3, 4, 2, 4] * 4)
    return build_sampler(name, labels, 8, per_class=2, seed=seed, categories=labels // 28, **options)


EVEN = [
    "m_per_class:distinct",
    "m_per_class:chunks",
    "m_per_class:replacement",
    "m_per_class:images_with_replacement",
    "m_per_class:cover",
    "npairs",
    "episodic",
    "fastap",
    "fastap_hard",
    "shuffle",
]
KINDS = [*EVEN, "fastap:keep_class_whole", "fastap_hard:keep_class_whole"]


@pytest.mark.parametrize("kind", KINDS)
def test_resume_in_the_middle_of_an_epoch(kind: str) -> None:
    whole = make(kind)
    expected = [batch for _ in range(3) for batch in whole]
    for stop in range(len(expected)):
        first = make(kind)
        drawn: list[list[int]] = []
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


def test_an_epoch_ends_with_its_last_batch_even_if_nobody_asks_for_another() -> None:
    """As Lightning reads a loader: it takes as many batches as the loader has, and leaves the iterator there."""
    labels = np.repeat(np.arange(6), 4)
    whole, partial = (MPerClassSampler(labels, 6, 2, seed=0) for _ in range(2))
    for _ in range(3):
        batches = iter(partial)
        assert [next(batches) for _ in range(len(partial))] == list(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_and_seeds_differ_and_repeat(kind: str) -> None:
    a, b = make(kind), make(kind)
    first, second = list(a), list(a)
    assert first != second
    assert first == list(b)
    assert list(make(kind, seed=4)) != first
    a.set_epoch(0)
    assert list(a) == first
    a.set_epoch(0, position=2)
    assert list(a) == first[2:]


@pytest.mark.parametrize("kind", EVEN)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_the_global_batch(kind: str, world_size: int) -> None:
    whole = make(kind)
    next(iter(whole))  # ranks go on from where the sampler is
    ranks = [ShardedSampler(whole, rank, world_size) for rank in range(world_size)]
    for _ in range(2):
        for expected, *shares in zip(whole, *ranks, strict=True):
            assert all(len(share) == 8 // world_size for share in shares)
            assert [i for share in shares for i in share] == expected
    assert all(rank.state_dict() == whole.state_dict() for rank in ranks)


@pytest.mark.parametrize("kind", KINDS)
def test_a_data_loader_takes_it(kind: str) -> None:
    sampler = make(kind)
    loader: DataLoader[int] = DataLoader(range(1000), batch_sampler=sampler)  # type: ignore[arg-type]
    assert len(loader) == len(sampler)
    assert [batch.tolist() for batch in loader] == list(make(kind))
    assert sampler.epoch == 1


@laws
@given(class_sizes, st.data())
def test_classes_are_taken_and_shuffled_with_their_images(sizes: list[int], data: st.DataObject) -> None:
    labels, rng = labels_of(sizes), np.random.default_rng(0)
    chosen = data.draw(st.lists(st.integers(0, len(sizes) - 1), unique=True, min_size=1))
    taken = Classes.of(labels).take(np.array(chosen)).shuffled(rng)
    for c, label, rows in zip(chosen, taken.labels, np.split(taken.rows, taken.starts[1:]), strict=True):
        assert label == 7 * c
        assert sorted(rows.tolist()) == np.flatnonzero(labels == label).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_of_online_products_are_drawn_quickly(kind: str) -> None:
    rng = np.random.default_rng(0)
    sizes = 2 + np.bincount(rng.integers(0, 11_318, 59_551 - 2 * 11_318), minlength=11_318)
    name, options = named(kind)
    labels = np.repeat(np.arange(11_318), sizes)
    sampler = quietly(build_sampler, name, labels, 128, categories=labels % 12, **options)
    begun = time.process_time()
    sampler.draw_epoch(rng)
    assert time.process_time() - begun < 1.5  # 0.01 to 0.4 s on one core


# What cannot be


def test_classes_left_out_are_reported_once() -> None:
    labels = labels_of([1, 5, 1, 5, 5])
    with pytest.warns(SamplerWarning, match="2 of 5 classes are left out: they have fewer than 2 images") as caught:
        sampler = NPairsSampler(labels, 6, 0)
    list(sampler)  # a second warning would be an error
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert sampler.left_out.tolist() == [0, 14]
    with pytest.warns(SamplerWarning, match="3 of 5 classes are left out: they have more than 4 images"):
        assert FastAPSampler(labels, 4, 0, keep_class_whole=True).left_out.tolist() == [7, 21, 28]
    assert ShardedSampler(sampler, 0, 2).left_out.tolist() == [0, 14]
    assert MPerClassSampler(labels, 4, 2, 0).left_out.tolist() == []


def test_small_categories_are_reported() -> None:
    labels, category = in_categories(3, 2, 4)
    with pytest.warns(SamplerWarning, match="3 of 3 categories have fewer than batch_size / 2 = 9 images"):
        FastAPHardSampler(labels, 18, category, 0)
    FastAPHardSampler(labels, 18, category, 0, keep_class_whole=True)
    FastAPHardSampler(labels, 16, category, 0)


FIVE = labels_of([5] * 3)
ONES = np.arange(4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MPerClassSampler(FIVE, 8, 2, 0), "needs 4 classes; got 3. Lower"),
        (lambda: MPerClassSampler(FIVE, 7, 2, 0), "multiple of per_class; got 7 and 2"),
        (lambda: MPerClassSampler(FIVE, 6, 2, 0, rule="chunk"), "got 'chunk', did you mean 'chunks'"),
        (lambda: NPairsSampler(FIVE, 5, 0), "must be even, for pairs; got 5"),
        (lambda: NPairsSampler(FIVE, 6, 0, p_same=1.5), r"p_same must lie in 0..1; got 1.5"),
        (lambda: NPairsSampler(FIVE, 8, 0), "needs 4 classes; got 3. Lower"),
        (lambda: NPairsSampler(ONES, 4, 0), "got 0. 4 of 4 classes are left out: they have fewer than 2 images"),
        (lambda: EpisodicSampler(FIVE, 6, 1, 0), "at least 2; got 6 and 1"),
        (lambda: EpisodicSampler(FIVE, 6, 3, 0, support=3), r"support must lie in 1..2, .* got 3"),
        (lambda: EpisodicSampler(FIVE, 12, 6, 0), "got 0. 3 of 3 classes are left out: they have fewer than 6"),
        (lambda: FastAPSampler(FIVE, 16, 0), "at most the number of images, 15; got 16"),
        (lambda: FastAPSampler(FIVE, 4, 0, keep_class_whole=True), "more than 4 images. Raise batch_size"),
        (lambda: FastAPHardSampler(FIVE, 5, FIVE, 0), "must be even, half for each category; got 5"),
        (lambda: FastAPHardSampler(FIVE, 4, FIVE, 0, repeats=0), "repeats must be above 0; got 0"),
        (lambda: FastAPHardSampler(FIVE, 4, None, 0), "each of the 15 labels; got none"),
        (lambda: FastAPHardSampler(FIVE, 4, FIVE[:3], 0), r"each of the 15 labels; got int64 \(3,\)"),
        (lambda: FastAPHardSampler(FIVE, 4, np.arange(15), 0), "class 0 has several"),
        (lambda: FastAPHardSampler(FIVE, 4, FIVE * 0, 0), "at least 2, to form pairs; got 1"),
        (lambda: FastAPHardSampler(FIVE, 4, FIVE, 0, unlabelled=-1), "got -1, which no class has"),
        (lambda: ShuffleSampler(labels_of([2, 2]), 5, 0), "at most the number of images, 4; got 5"),
        (lambda: ShuffleSampler(np.zeros(4), 2, 0), "vector of integers"),  # type: ignore[arg-type]
        (lambda: ShuffleSampler(np.zeros(0, dtype=np.int64), 2, 0), "non-empty"),
        (lambda: ShuffleSampler(labels_of([2, 2]), 0, 0), "at least 1; got 0"),
        (lambda: ShuffleSampler(FIVE, 5, -1), "seed must be at least 0; got -1"),
        (lambda: ShuffleSampler(FIVE, 5, 0).set_epoch(-1), "epoch must be at least 0; got -1"),
        (lambda: ShuffleSampler(FIVE, 5, 0).set_epoch(0, 4), r"position must lie in 0..3, .* got 4"),
        (lambda: ShuffleSampler(FIVE, 5, 0).load_state_dict({"seed": 1}), "it lacks epoch, position"),
        (lambda: ShardedSampler(ShuffleSampler(FIVE, 5, 0), 0, 2), "multiple of world_size, .* got 5 and 2"),
        (lambda: ShardedSampler(ShuffleSampler(FIVE, 5, 0), 5, 5), "got rank 5 of 5"),
        (lambda: ShardedSampler(ShuffleSampler(FIVE, 4, 0, drop_last=False), 0, 2), "batches of one size"),
        (lambda: ShardedSampler(FastAPSampler(FIVE, 6, 0, keep_class_whole=True), 0, 2), "batches of one size"),
        (lambda: build_sampler("n_pairs", FIVE, 4), "unknown sampler 'n_pairs'; did you mean 'npairs'"),
        (lambda: build_sampler("shuffle", FIVE, 4, drop_lst=True), "no option 'drop_lst'; did you mean 'drop_last'"),
        (lambda: build_sampler("fastap_hard", FIVE, 4), "categories must be integers"),
    ],
)
def test_impossible_batches_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_names_are_built() -> None:
    assert names() == ["episodic", "fastap", "fastap_hard", "m_per_class", "npairs", "shuffle"]
    positional = MPerClassSampler(FIVE, 6, 2, 5)
    assert list(build_sampler("m_per_class", FIVE, 6, per_class=2, seed=5)) == list(positional)
