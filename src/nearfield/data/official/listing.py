"""The content of the list files of an official dataset, compared with what was published.

A parser returns a `Listing`; `problems` compares it with the `Expected` numbers and reports all differences.

Axes: N images, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nearfield.data.dataset import Dataset, Flags, Integers, Pixels, fingerprint
from nearfield.data.pictures import Paths, Pictures
from nearfield.errors import InputError

DEPTH = 3  # levels of folders in which list files are searched
SHOWN = 3  # examples in a message
TEST = ("test", "query", "gallery")  # all parts but train


@dataclass(frozen=True)
class Expected:
    """The published numbers: images and classes in total, by part and by list; images per class; some class names."""

    images: int
    classes: int
    parts: Mapping[str, tuple[int, int]]  # part: images, classes
    per_class: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # part: fewest and most images of a class
    lists: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # list: images, classes
    categories: int | None = None
    names: Mapping[int, str] = field(default_factory=dict)  # class id: beginning of its name
    ids_from_one: bool = True  # whether class ids are 1..C


@dataclass(frozen=True)
class Listing:
    """One entry for each image, as the official files list them."""

    root: Path
    paths: list[str]  # N, below root
    ids: list[int]  # N, official class ids
    parts: list[str]  # N: train, test, query or gallery
    names: Mapping[int, str]  # class id: name
    categories: Mapping[int, str] = field(default_factory=dict)  # class id: category
    other: str = "all"  # category of classes without one
    lists: Mapping[str, list[int]] = field(default_factory=dict)  # named test list: rows
    closed: bool = False  # whether training and test share their classes

    def rows(self, *parts: str) -> Integers:
        """The rows of some parts."""
        return np.flatnonzero(np.isin(np.asarray(self.parts), parts)).astype(np.int64)

    def classes(self, *parts: str) -> set[int]:
        """The class ids in some parts."""
        return {self.ids[row] for row in self.rows(*parts)}


def problems(listing: Listing, expected: Expected) -> list[str]:
    """All differences from the published dataset, one line each."""
    return [*_counts(listing, expected), *_labels(listing, expected), *_files(listing)]


def to_dataset(name: str, listing: Listing, digests: Pixels, description: str) -> Dataset:
    """The dataset of a listing without problems; classes are numbered in the order of their ids."""
    ids = np.unique(np.asarray(listing.ids, dtype=np.int64))
    labels = np.searchsorted(ids, np.asarray(listing.ids)).astype(np.int64)
    categories = [listing.categories.get(int(i), listing.other) for i in ids]
    category_names = tuple(sorted(set(categories)))
    train, test = (np.unique(labels[rows]) for rows in (listing.rows("train"), listing.rows(*TEST)))
    flags = {part: _flags(listing, part) for part in ("test", "query", "gallery")}
    closed = flags["test"] if listing.closed else None
    lists = {name: np.asarray(rows, dtype=np.int64) for name, rows in listing.lists.items()}
    extra = [f for f in (closed, flags["query"], flags["gallery"]) if f is not None] + list(lists.values())
    return Dataset(
        name=name,
        images=Pictures(Paths(listing.root, tuple(listing.paths)), digests),
        labels=labels,
        class_names=tuple(listing.names.get(int(i), str(i)) for i in ids),
        class_category=np.asarray([category_names.index(c) for c in categories], dtype=np.int64),
        category_names=category_names,
        train_classes=train,
        test_classes=test,
        fingerprint=fingerprint(digests, labels, train, test, *extra),
        description=description,
        is_test=closed,
        is_query=flags["query"],
        is_gallery=flags["gallery"],
        test_lists=lists,
    )


def find(folder: Path, name: str) -> Path:
    """The file or folder called `name`, in `folder` or up to DEPTH levels below it; InputError if there is none."""
    found = seek(folder, name)
    if found is None:
        raise InputError(
            f"{name} was not found in {folder}, nor up to {DEPTH} levels below it. Is the dataset complete?"
        )
    return found


def seek(folder: Path, name: str) -> Path | None:
    """Like `find`, but None if there is none."""
    for depth in range(DEPTH + 1):
        found = sorted(folder.glob("*/" * depth + name))
        if found:
            return found[0]
    return None


def lines(path: Path, columns: int, skip: int = 0) -> Iterator[list[str]]:
    """The words of each line after the first `skip`; the last column may hold spaces. InputError names a bad line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the list file {path}: {error}.") from error
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split(maxsplit=columns - 1)
        if number <= skip or not words:
            continue
        if len(words) != columns:
            raise InputError(f"{path}, line {number}: expected {columns} columns; found {line!r}.")
        yield [word.strip() for word in words]


def integer(word: str, path: Path) -> int:
    """`word` as a number; InputError names the file."""
    try:
        return int(word)
    except ValueError:
        raise InputError(f"{path}: expected a number; found {word!r}.") from None


def some(items: list[str]) -> str:
    """The first SHOWN items of a list, and how many more there are."""
    more = len(items) - SHOWN
    return ", ".join(items[:SHOWN] or ["none"]) + (f" and {more:,} more" if more > 0 else "")


def _counts(listing: Listing, expected: Expected) -> Iterator[str]:
    found = {"images": len(listing.paths), "classes": len(set(listing.ids))}
    wanted = {"images": expected.images, "classes": expected.classes}
    for part, (images, classes) in expected.parts.items():
        chosen = TEST if part == "test" else (part,)
        wanted |= {f"{part} images": images, f"{part} classes": classes}
        found |= {f"{part} images": len(listing.rows(*chosen)), f"{part} classes": len(listing.classes(*chosen))}
    for part, (fewest, most) in expected.per_class.items():
        chosen = TEST if part == "test" else (part,)
        counts = np.unique(np.asarray(listing.ids)[listing.rows(*chosen)], return_counts=True)[1]
        wanted |= {f"fewest images of a {part} class": fewest, f"most images of a {part} class": most}
        extremes = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
        found |= dict(
            zip((f"fewest images of a {part} class", f"most images of a {part} class"), extremes, strict=True)
        )
    for name, (images, classes) in expected.lists.items():
        rows = listing.lists.get(name, [])
        wanted |= {f"{name} images": images, f"{name} classes": classes}
        found |= {f"{name} images": len(rows), f"{name} classes": len({listing.ids[row] for row in rows})}
    if expected.categories is not None:
        wanted["categories"], found["categories"] = expected.categories, len(set(listing.categories.values()))
    for key, count in wanted.items():
        if found[key] != count:
            yield f"{key}: expected {count:,}, found {found[key]:,}"


def _labels(listing: Listing, expected: Expected) -> Iterator[str]:
    ids = set(listing.ids)
    if expected.ids_from_one and ids != set(range(1, expected.classes + 1)):
        absent = sorted(set(range(1, expected.classes + 1)) - ids)
        foreign = sorted(ids - set(range(1, expected.classes + 1)))
        yield (
            f"class ids: expected 1 to {expected.classes:,}; "
            f"absent: {some([str(i) for i in absent])}; unexpected: {some([str(i) for i in foreign])}"
        )
    shared = sorted(listing.classes("train") & listing.classes(*TEST))
    if shared and not listing.closed:
        yield f"classes in training and test: expected none, found {some([str(i) for i in shared])}"
    for number, begins in expected.names.items():
        if not listing.names.get(number, "").startswith(begins):
            yield f"name of class {number}: expected {begins}…, found {listing.names.get(number)!r}"


def _files(listing: Listing) -> Iterator[str]:
    repeated = [path for path, count in Counter(listing.paths).items() if count > 1]
    if repeated:
        yield f"paths: expected each once, found more than once: {some(repeated)}"
    missing = Paths(listing.root, tuple(listing.paths)).missing()
    if missing:
        yield f"missing files in {listing.root}: {len(missing):,}: {some(missing)}"


def _flags(listing: Listing, part: str) -> Flags | None:
    chosen: Flags = np.asarray(listing.parts) == part
    return chosen if chosen.any() else None
