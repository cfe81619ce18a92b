"""Hugging Face `datasets` saved with `save_to_disk`.

The first column of images and the column `label` (or the first column of class labels) are used. With several splits,
`train` is for training and `test`, or else `validation`, for testing; with one, its classes are split in half.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfield.data.dataset import Dataset
from nearfield.data.from_labels import assemble
from nearfield.data.pictures import Pictures, digests_of
from nearfield.errors import InputError, missing_package

MARKS = ("dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True)
class TableImages:
    """Encoded images in a column of a table, as bytes or as paths of files."""

    table: Any  # a datasets.Dataset with its images not decoded
    column: str

    def __len__(self) -> int:
        return len(self.table)

    def name(self, row: int) -> str:
        """The path of the file, or the number of the row if there is none."""
        path = self.table[row][self.column]["path"]
        return str(path or f"row {row}")

    def read(self, row: int) -> bytes:
        """The encoded image; InputError if its file cannot be read."""
        image = self.table[row][self.column]
        if image["bytes"] is not None:
            return bytes(image["bytes"])
        try:
            return Path(image["path"]).read_bytes()
        except OSError as error:
            raise InputError(f"cannot read the image {image['path']}: {error.strerror or error}.") from error


def is_one(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any((path / mark).is_file() for mark in MARKS)


def load(path: Path) -> Dataset:
    """The dataset in the folder `path`; InputError if it has no images or no labels."""
    table, split = _tables(path)
    image, label = _columns(path, table)
    numbers = table[label]
    if any(number is None for number in numbers):
        raise InputError(f"{path}: {label} must be given for every image; some rows have none. Fill or remove them.")
    names = getattr(table.features[label], "names", None)
    rows = TableImages(table, image)
    return assemble(
        str(path),
        Pictures(rows, digests_of(rows)),
        list(numbers),
        f"Images of {path}, saved by Hugging Face datasets.",
        split=split,
        class_names={str(number): name for number, name in enumerate(names)} if names else None,
    )


def _tables(path: Path) -> tuple[Any, list[str] | None]:
    """All rows in one table, and the part of each, train or test, if there are several splits."""
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise missing_package(str(path), "datasets", "datasets") from error
    try:
        found = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} cannot be read by Hugging Face datasets: {error}.") from error
    if not isinstance(found, datasets.DatasetDict):
        return _undecoded(found, datasets), None
    other = next((name for name in ("test", "validation") if name in found), None)
    if "train" not in found or other is None:
        raise InputError(f"{path} must have the splits train and test (or validation); found {', '.join(found)}.")
    parts = {"train": _undecoded(found["train"], datasets), "test": _undecoded(found[other], datasets)}
    split = [part for part, rows in parts.items() for _ in range(len(rows))]
    return datasets.concatenate_datasets(list(parts.values())), split


def _undecoded(table: Any, datasets: Any) -> Any:
    for name, kind in table.features.items():
        if isinstance(kind, datasets.Image):
            table = table.cast_column(name, datasets.Image(decode=False))
    return table


def _columns(path: Path, table: Any) -> tuple[str, str]:
    kinds = {name: type(kind).__name__ for name, kind in table.features.items()}
    image = next((name for name, kind in kinds.items() if kind == "Image"), None)
    label = "label" if "label" in kinds else next((n for n, kind in kinds.items() if kind == "ClassLabel"), None)
    if image is None or label is None:
        raise InputError(f"{path} must have a column of images and one of labels; found {', '.join(kinds)}.")
    return image, label
