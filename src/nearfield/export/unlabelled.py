"""Images of which nobody has said what they show: single files, glob patterns, folders."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearfield.data.dataset import LazyImages
from nearfield.data.from_labels import MIN_CLASSES
from nearfield.data.pictures import SUFFIXES, Paths, Pictures, digests_of
from nearfield.data.readers import hub
from nearfield.errors import InputError


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Images without labels, as far as embedding them needs a dataset."""

    name: str
    images: LazyImages
    fingerprint: str  # sha256 of paths and contents
    are_features = False


def is_unlabelled(name: str) -> bool:
    """Whether a path means images without labels: an image, a pattern, or a folder with too few class folders."""
    path = Path(name)
    if path.is_dir():
        folders = (folder for folder in path.iterdir() if folder.is_dir())
        return not hub.is_one(path) and sum(any(map(_is_image, folder.iterdir())) for folder in folders) < MIN_CLASSES
    return path.suffix.lower() in SUFFIXES or glob.has_magic(name)


def find_images(names: Sequence[str]) -> Unlabelled:
    """All images that files, patterns and folders name, each once; those of folders below folders too.

    Their paths are as given; those of a single folder are relative to it.
    """
    folder = Path(names[0]) if len(names) == 1 and Path(names[0]).is_dir() else None
    found = list(dict.fromkeys(path for name in names for path in images_of(name)))
    if not found:
        raise InputError(f"there is no image in {', '.join(names)}; images end in {', '.join(SUFFIXES)}.")
    paths = tuple((path if folder is None else path.relative_to(folder)).as_posix() for path in found)
    files = Paths(Path() if folder is None else folder, paths)
    digests = digests_of(files)
    digest = hashlib.sha256("\0".join(paths).encode(errors="surrogateescape") + b"\0" + digests.tobytes())
    return Unlabelled(", ".join(names), Pictures(files, digests), digest.hexdigest())


def images_of(name: str) -> Iterator[Path]:
    """The image files that a file, a glob pattern or a folder names, those of folders below folders too."""
    path = Path(name)
    if path.is_dir():
        inside = (each for each in sorted(path.rglob("*")) if _is_image(each))
        yield from (each for each in inside if not any(part.startswith(".") for part in each.relative_to(path).parts))
    elif path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise InputError(f"an image must end in one of {', '.join(SUFFIXES)}; got {name}.")
        yield path
    elif glob.has_magic(name):
        for each in sorted(glob.glob(name, recursive=True)):
            yield from images_of(each) if Path(each).is_dir() or _is_image(Path(each)) else ()
    else:
        raise InputError(f"there is no image or folder {name}; check the path.")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
