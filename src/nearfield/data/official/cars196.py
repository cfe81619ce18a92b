"""Cars-196 (Krause et al., 2013). Classes 1 to 98 train, 99 to 196 test; the official `test` flag is not used."""

from __future__ import annotations

from pathlib import Path

from nearfield.data.official.listing import Expected, Listing, find, seek
from nearfield.data.pictures import SUFFIXES
from nearfield.errors import InputError

EXPECTED = Expected(
    images=16_185,
    classes=196,
    parts={"train": (8_054, 98), "test": (8_131, 98)},
    per_class={"train": (59, 97), "test": (48, 136)},
    names={1: "AM General Hummer", 98: "Eagle Talon", 99: "FIAT 500 Abarth", 196: "smart fortwo"},
)


def read(folder: Path, expected: Expected = EXPECTED) -> Listing:
    """Read `cars_annos.mat` with `car_ims/`, or a copy with folders of classes below `train/` and `test/`, merged."""
    annotations, copy = seek(folder, "cars_annos.mat"), seek(folder, "train")
    if annotations is None and copy is not None:
        return _read_folders(copy.parent, expected)
    return _read_annotations(find(folder, "cars_annos.mat"), find(folder, "car_ims").parent, expected)


def _read_annotations(path: Path, root: Path, expected: Expected) -> Listing:
    from scipy.io import loadmat

    try:
        content = loadmat(path, squeeze_me=True)
        entries = [(str(a["relative_im_path"]), int(a["class"])) for a in content["annotations"]]
        names = {i: str(name) for i, name in enumerate(content["class_names"], start=1)}
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise InputError(f"cannot read the list file {path}: {error}.") from error
    return _listing(root, entries, names, expected)


def _read_folders(root: Path, expected: Expected) -> Listing:
    """Class ids are the positions of the folder names in ASCII order, as in the official list."""
    folders = [each for part in ("train", "test") for each in sorted((root / part).glob("*")) if each.is_dir()]
    names = dict(enumerate(sorted({folder.name for folder in folders}), start=1))
    number = {name: i for i, name in names.items()}
    entries = [
        (image.relative_to(root).as_posix(), number[folder.name])
        for folder in folders
        for image in sorted(folder.iterdir())
        if image.suffix.lower() in SUFFIXES and not image.name.startswith(".")
    ]
    return _listing(root, entries, names, expected)


def _listing(root: Path, entries: list[tuple[str, int]], names: dict[int, str], expected: Expected) -> Listing:
    ids = [number for _, number in entries]
    parts = ["train" if number <= expected.classes // 2 else "test" for number in ids]
    return Listing(root=root, paths=[path for path, _ in entries], ids=ids, parts=parts, names=names)
