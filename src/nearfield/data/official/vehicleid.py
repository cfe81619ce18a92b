"""PKU VehicleID V1.0 (Liu et al., 2016): vehicles under surveillance cameras, with test lists of several sizes.

The expected numbers are those of the release; those in the paper are older. A category is the model of the vehicle,
where it is labelled.
"""

from __future__ import annotations

from pathlib import Path

from nearfield.data.official.listing import Expected, Listing, find, integer, lines
from nearfield.errors import InputError

TEST_SIZES = (800, 1600, 2400, 3200, 6000, 13164)
EXPECTED = Expected(
    images=221_567,
    classes=26_328,
    parts={"train": (113_346, 13_164), "test": (108_221, 13_164)},
    lists={"test_800": (6_493, 800), "test_1600": (13_377, 1_600), "test_2400": (19_777, 2_400)},
    ids_from_one=False,
)


def read(folder: Path, expected: Expected = EXPECTED) -> Listing:
    """Read `attribute/img2vid.txt`, `attribute/model_attr.txt` and the lists in `train_test_split/`."""
    root = find(folder, "train_test_split").parent
    vehicles = _pairs(root / "attribute" / "img2vid.txt")
    train_file = root / "train_test_split" / "train_list.txt"
    train = set(_pairs(train_file))
    foreign = train - vehicles.keys()
    if foreign:
        raise InputError(f"{train_file} lists {min(foreign)}, which is not in img2vid.txt.")
    names = sorted(vehicles)
    row = {name: place for place, name in enumerate(names)}
    models = {integer(v, root): m for v, m in lines(root / "attribute" / "model_attr.txt", 2)}
    known = set(vehicles.values())
    return Listing(
        root=root / "image",
        paths=[f"{name}.jpg" for name in names],
        ids=[vehicles[name] for name in names],
        parts=["train" if name in train else "test" for name in names],
        names={number: f"vehicle {number}" for number in known},
        categories={number: f"model {model}" for number, model in models.items() if number in known},
        other="unlabelled",
        lists={list_name: _rows(path, row) for list_name, path in _test_lists(root)},
    )


def _test_lists(root: Path) -> list[tuple[str, Path]]:
    """The test lists that are present."""
    paths = [(f"test_{size}", root / "train_test_split" / f"test_list_{size}.txt") for size in TEST_SIZES]
    return [(name, path) for name, path in paths if path.is_file()]


def _pairs(path: Path) -> dict[str, int]:
    """Image name and vehicle id of each line; names have seven digits, with or without `.jpg`."""
    return {name.removesuffix(".jpg"): integer(vehicle, path) for name, vehicle in lines(path, 2)}


def _rows(path: Path, row: dict[str, int]) -> list[int]:
    listed = _pairs(path)
    foreign = [name for name in listed if name not in row]
    if foreign:
        raise InputError(f"{path} lists {foreign[0]}, which is not in img2vid.txt.")
    return sorted(row[name] for name in listed)
