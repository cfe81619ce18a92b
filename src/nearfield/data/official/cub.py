"""CUB-200-2011 (Wah et al., 2011): birds. Classes 1 to 100 train, 101 to 200 test; the official split is not used."""

from __future__ import annotations

from pathlib import Path

from nearfield.data.official.listing import Expected, Listing, find, integer, lines
from nearfield.errors import InputError

EXPECTED = Expected(
    images=11_788,
    classes=200,
    parts={"train": (5_864, 100), "test": (5_924, 100)},
    per_class={"train": (41, 60), "test": (49, 60)},
)


def read(folder: Path, expected: Expected = EXPECTED) -> Listing:
    """Read `images.txt`, `image_class_labels.txt` and `classes.txt`; CUB-200 of 2010 has none of the three."""
    root = find(folder, "images.txt").parent
    image_file, label_file, class_file = (root / f"{n}.txt" for n in ("images", "image_class_labels", "classes"))
    paths = {integer(number, image_file): path for number, path in lines(image_file, 2)}
    ids = {integer(n, label_file): integer(i, label_file) for n, i in lines(label_file, 2)}
    if paths.keys() != ids.keys():
        odd = min(paths.keys() ^ ids.keys())
        raise InputError(
            f"{image_file.name} and {label_file.name} must list the same images; image {odd} is in only one of them."
        )
    order = sorted(paths)
    return Listing(
        root=root / "images",
        paths=[paths[n] for n in order],
        ids=[ids[n] for n in order],
        parts=["train" if ids[n] <= expected.classes // 2 else "test" for n in order],
        names={integer(i, class_file): _title(name) for i, name in lines(class_file, 2)},
    )


def _title(name: str) -> str:
    """`001.Black_footed_Albatross` as Black footed Albatross."""
    return name.split(".", 1)[-1].replace("_", " ")
