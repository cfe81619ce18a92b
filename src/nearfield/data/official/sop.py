"""Stanford Online Products (Song et al., 2016): the official lists, and its 12 super-classes as categories."""

from __future__ import annotations

from pathlib import Path

from nearfield.data.official.listing import Expected, Listing, find, integer, lines

EXPECTED = Expected(
    images=120_053,
    classes=22_634,
    parts={"train": (59_551, 11_318), "test": (60_502, 11_316)},
    categories=12,
)


def read(folder: Path, expected: Expected = EXPECTED) -> Listing:
    """Read `Ebay_train.txt` and `Ebay_test.txt`: image_id class_id super_class_id path."""
    root = find(folder, "Ebay_train.txt").parent
    rows = [
        (part, integer(number, root / file), path)
        for part, file in (("train", "Ebay_train.txt"), ("test", "Ebay_test.txt"))
        for _, number, _, path in lines(root / file, 4, skip=1)
    ]
    ids = [number for _, number, _ in rows]
    return Listing(
        root=root,
        paths=[path for _, _, path in rows],
        ids=ids,
        parts=[part for part, _, _ in rows],
        names={number: f"product {number}" for number in set(ids)},
        categories={number: path.split("/")[0].removesuffix("_final") for _, number, path in rows},
    )
