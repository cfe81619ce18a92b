"""Protocols are frozen, named and hashed; what they hold out is counted on the real lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from miniatures import MAKE, add
from pydantic import ValidationError

from nearfield import data
from nearfield.bench.protocols import PROTOCOLS, Protocol, kind_of_test, protocol
from nearfield.config import DataConfig, RunConfig
from nearfield.data import Dataset
from nearfield.data.dataset import fingerprint
from nearfield.data.splits import held_out
from nearfield.errors import InputError

DIGESTS = {  # a changed protocol is another protocol: give it another name
    "classic": "c2a0cf241139",
    "reality-check": "cf2a3f5e31bd",
    "reality-check-light": "abf86956e596",
    "closed-set": "4c9f0b14b647",
    "query-gallery": "ce2fbdeed485",
    "vehicleid": "d3ff08903914",
}


def made(labels: list[int], *, train: list[int] | None = None, is_test: list[bool] | None = None) -> Dataset:
    """Random features of these labels; the first half of the classes trains unless said otherwise."""
    values = np.asarray(labels, dtype=np.int64)
    classes = int(values.max()) + 1
    features = np.random.default_rng(0).normal(size=(len(values), 6)).astype(np.float32)
    first = np.arange((classes + 1) // 2, dtype=np.int64) if train is None else np.asarray(train, dtype=np.int64)
    second = np.arange(classes, dtype=np.int64) if is_test else np.setdiff1d(np.arange(classes, dtype=np.int64), first)
    first = second if is_test else first
    return Dataset(
        name="made",
        images=features,
        labels=values,
        class_names=tuple(f"class {i}" for i in range(classes)),
        class_category=np.zeros(classes, dtype=np.int64),
        category_names=("all",),
        train_classes=first,
        test_classes=second,
        fingerprint=fingerprint(features, values, first, second),
        description="made",
        is_test=np.asarray(is_test) if is_test else None,
    )


def closed(classes: int = 3, images: int = 12, tested: int = 4) -> Dataset:
    labels = [c for c in range(classes) for _ in range(images)]
    return made(labels, is_test=[i % images < tested for i in range(len(labels))])


def test_protocols_are_what_they_were() -> None:
    assert {name: known.digest() for name, known in PROTOCOLS.items()} == DIGESTS
    assert all(known.description.endswith(".") for known in PROTOCOLS.values())


def test_the_digest_depends_on_every_field_but_the_words() -> None:
    base = Protocol(name="mine", folds=4, val_fraction=0.25)
    others: list[dict[str, Any]] = [
        {"name": "other"}, {"folds": 2, "val_fraction": 0.5}, {"split_seed": 1}, {"select_by": "recall@1"},
        {"concatenate": True}, {"oracle": False}, {"test": "query-gallery"}, {"search_folds": 2},
    ]  # fmt: skip
    changed = {field for other in others for field in other}
    assert changed == set(Protocol.model_fields) - {"description"}
    assert len({base.model_copy(update=other).digest() for other in others} | {base.digest()}) == len(others) + 1
    assert base.model_copy(update={"description": "words"}).digest() == base.digest()
    with pytest.raises(ValidationError):
        base.folds = 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"folds": 4}, "val_fraction must be 0.25"),
        ({"folds": 2, "val_fraction": 0.5, "test": "closed"}, "single fold"),
        ({"concatenate": True}, "several folds"),
        ({"folds": 2, "val_fraction": 0.5, "search_folds": 3}, "search_folds must be at most folds, 2; got 3"),
    ],
)
def test_a_protocol_agrees_with_itself(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Protocol.model_validate({"name": "mine", **values})


def test_unknown_names_are_told_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'reality-check'"):
        protocol("realitycheck")


def test_a_file_is_a_protocol_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "two-folds"\nfolds = 2\nval_fraction = 0.5\ndescription = "Two."\n')
    assert protocol(str(path)) == Protocol(name="two-folds", folds=2, val_fraction=0.5, description="Two.")
    path.write_text('name = "classic"\nval_fraction = 0.5\n')
    with pytest.raises(InputError, match="another name"):
        protocol(str(path))
    path.write_text(PROTOCOLS["classic"].to_toml())
    assert protocol(str(path)).digest() == DIGESTS["classic"]
    with pytest.raises(InputError, match="cannot read"):
        protocol(str(tmp_path / "nowhere.toml"))


def test_runs_change_what_the_protocol_freezes_and_nothing_else() -> None:
    base = RunConfig(select_by="recall@1", seed=3, data=DataConfig(name="digits", split_seed=7, augment="crop"))
    runs = PROTOCOLS["reality-check"].runs(base)
    assert [run.data.fold for run in runs] == [0, 1, 2, 3]
    assert len({run.digest() for run in runs}) == 4
    for run in runs:
        assert (run.data.folds, run.data.val_fraction, run.data.split_seed) == (4, 0.25, 0)
        assert (run.select_by, run.oracle) == ("map@r", True)
        assert RunConfig.model_validate(run.model_dump()) == run
        same = {"select_by": "recall@1", "oracle": False, "data": base.data}
        assert run.model_copy(update=same) == base
        assert (run.data.name, run.data.augment) == ("digits", "crop")
    (run,) = PROTOCOLS["vehicleid"].runs(base)
    assert (run.data.folds, run.data.val_fraction, run.oracle) == (1, 0.2, False)


def test_the_reality_check_counts_of_cub(real_data: Path) -> None:
    cub = data.load(str(real_data / "cub200_efficientnet_lite0_224.npz"))
    reality = protocol("reality-check")
    reality.check(cub)
    images, last = [], -1
    for run in reality.runs(RunConfig()):
        fit, val = held_out(cub, run.data)
        classes = [np.unique(cub.labels[rows]) for rows in (fit, val)]
        assert [len(each) for each in classes] == [75, 25]
        assert not np.intersect1d(classes[0], classes[1]).size
        assert np.array_equal(classes[1], np.arange(last + 1, last + 26))
        assert np.array_equal(np.union1d(*classes), cub.train_classes)
        images.append((len(fit), len(val)))
        last = int(classes[1][-1])
    assert images == [(4462, 1402), (4377, 1487), (4380, 1484), (4373, 1491)]


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=8).filter(lambda sizes: max(sizes) >= 4),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_a_closed_set_holds_out_images_of_every_class_that_can_spare_them(
    sizes: list[int], fraction: float, seed: int
) -> None:
    labels = [c for c, size in enumerate(sizes) for _ in range(size + 1)]
    tested = [i == 0 or labels[i] != labels[i - 1] for i in range(len(labels))]
    dataset = made(labels, is_test=tested)
    fit, val = held_out(dataset, DataConfig(val_fraction=fraction, split_seed=seed))
    assert np.array_equal(np.sort(np.concatenate([fit, val])), dataset.train_rows())
    for label, size in enumerate(sizes):
        held = int((dataset.labels[val] == label).sum())
        assert held == (0 if size < 4 else max(2, round(fraction * size)))


def test_what_is_held_out_depends_on_the_seed_alone() -> None:
    dataset = closed(classes=4, images=40, tested=10)
    draws = [held_out(dataset, DataConfig(val_fraction=0.2, split_seed=seed))[1].tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    with pytest.raises(InputError, match="at least 4 images"):
        held_out(closed(images=6, tested=3), DataConfig())


def test_each_protocol_fits_its_data_and_refuses_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    found = {}
    for name in ("inshop", "vehicleid", "imagenet"):
        MAKE[name](tmp_path / name)
        found[name] = add(name, tmp_path / name)
    kinds = {name: kind_of_test(dataset) for name, dataset in found.items()}
    assert kinds == {"inshop": "query-gallery", "vehicleid": "vehicleid", "imagenet": "closed"}
    with pytest.raises(InputError, match=r"protocol classic is for data where .*; use one of: query-gallery"):
        protocol("classic").check(found["inshop"])
    with pytest.raises(InputError, match="use one of: closed-set"):
        protocol("reality-check").check(found["imagenet"])
    with pytest.raises(InputError, match="use one of: vehicleid"):
        protocol("query-gallery").check(found["vehicleid"])
    many = made([c for c in range(32) for _ in range(3)])
    for name in ("classic", "reality-check"):
        protocol(name).check(many)
    with pytest.raises(InputError, match="use one of: classic, reality-check"):
        protocol("query-gallery").check(many)
    flags = np.isin(many.labels, many.test_classes)
    first = flags & (np.arange(len(flags)) % 3 == 0)
    protocol("query-gallery").check(replace(many, is_query=first, is_gallery=flags & ~first))
    protocol("vehicleid").check(replace(many, test_lists={"test_800": many.test_rows()[:9]}))
    protocol("closed-set").check(closed())


def test_too_few_classes_are_refused() -> None:
    with pytest.raises(InputError, match="k must be in"):
        protocol("reality-check").check(made([c for c in range(12) for _ in range(3)]))
    with pytest.raises(InputError, match="at least 4 different classes"):
        protocol("classic").check(made([c for c in range(6) for _ in range(3)]))
