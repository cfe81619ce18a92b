"""In-Shop Clothes Retrieval of DeepFashion (Liu et al., 2016): official training, query and gallery parts."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from nearfield.data.official.listing import Expected, Listing, find, integer, lines, seek
from nearfield.errors import InputError

EXPECTED = Expected(
    images=52_712,
    classes=7_982,
    parts={
        "train": (25_882, 3_997),
        "test": (26_830, 3_985),
        "query": (14_218, 3_985),
        "gallery": (12_612, 3_985),
    },
    categories=23,
)


def read(folder: Path, expected: Expected = EXPECTED) -> Listing:
    """Read `list_eval_partition.txt`: a count, a header, then image_name item_id evaluation_status.

    Images are in `img/` (256 pixels) or else in `img_highres/`. A category is a folder such as WOMEN/Dresses.
    """
    path = find(folder, "list_eval_partition.txt")
    rows = list(lines(path, 3, skip=2))
    for name, item, status in rows:
        if not item.startswith("id_") or status not in expected.parts or not name.startswith("img/"):
            raise InputError(f"{path}: expected img/… id_… train, query or gallery; found {name} {item} {status}.")
    ids = [integer(item.removeprefix("id_"), path) for _, item, _ in rows]
    images = seek(folder, "img") or find(folder, "img_highres")
    categories: dict[int, str] = {}
    for number, (name, _, _) in zip(ids, rows, strict=True):
        categories.setdefault(number, "/".join(PurePosixPath(name).parts[1:3]))
    return Listing(
        root=images.parent,
        paths=[f"{images.name}/{name.removeprefix('img/')}" for name, _, _ in rows],
        ids=ids,
        parts=[status for _, _, status in rows],
        names={number: f"item {number}" for number in set(ids)},
        categories=categories,
    )
