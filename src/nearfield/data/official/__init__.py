"""The datasets of the papers, read from their official archives or from the unpacked folders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from nearfield.data.archive import Bound, is_archive, md5_of, unpack
from nearfield.data.dataset import Dataset, cache_dir
from nearfield.data.official import cars196, cub, imagenet, inshop, sop, vehicleid
from nearfield.data.official.listing import Expected, Listing, problems, seek, to_dataset
from nearfield.data.pictures import Paths, digests_of, examine
from nearfield.errors import InputError
from nearfield.files import whole_folder
from nearfield.progress import reported

__all__ = ["KINDS", "Archive", "Expected", "Kind", "read"]

GIB = 1 << 30


@dataclass(frozen=True)
class Archive:
    """A published archive; its md5 is checked if it is known."""

    md5: str | None = None
    into: str = "."  # folder to unpack into
    nested: bool = False  # contains one tar file for each class


@dataclass(frozen=True)
class Kind:
    """An official dataset: where to download it, how to read it, and what it must contain."""

    title: str
    address: str
    parse: Callable[[Path, Expected], Listing]
    expected: Expected
    archives: dict[str, Archive]
    bytes: int  # upper limit of all archives unpacked
    ks: tuple[int, ...]  # of the recall@K that papers report
    beside: dict[str, str | None] = field(default_factory=dict)  # list files beside the archives, with their md5


KINDS = {
    "cub": Kind(
        "CUB-200-2011, birds",
        "https://www.vision.caltech.edu/datasets/cub_200_2011/",
        cub.read,
        cub.EXPECTED,
        {"CUB_200_2011.tgz": Archive("97eceeb196236b17998738112f37df78")},
        4 * GIB,
        (1, 2, 4, 8, 16, 32),
    ),
    "cars196": Kind(
        "Cars-196",
        "https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        cars196.read,
        cars196.EXPECTED,
        {"car_ims.tgz": Archive("d5c8f0aa497503f355e17dc7886c3f14")},
        8 * GIB,
        (1, 2, 4, 8, 16, 32),
        beside={"cars_annos.mat": "b407c6086d669747186bd1d764ff9dbc"},
    ),
    "sop": Kind(
        "Stanford Online Products",
        "https://cvgl.stanford.edu/projects/lifted_struct/",
        sop.read,
        sop.EXPECTED,
        {"Stanford_Online_Products.zip": Archive("7f73d41a2f44250d4779881525aea32e")},
        12 * GIB,
        (1, 10, 100, 1000),
    ),
    "inshop": Kind(
        "In-Shop Clothes Retrieval of DeepFashion",
        "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
        inshop.read,
        inshop.EXPECTED,
        {"img.zip": Archive()},
        24 * GIB,
        (1, 10, 20, 30, 40, 50),
        beside={"list_eval_partition.txt": None},
    ),
    "vehicleid": Kind(
        "PKU VehicleID V1.0",
        "https://www.pkuml.org/resources/pku-vehicleid.html",
        vehicleid.read,
        vehicleid.EXPECTED,
        {"VehicleID_V1.0.tar": Archive(), "VehicleID_V1.0.zip": Archive()},
        48 * GIB,
        (1, 5),
    ),
    "imagenet": Kind(
        "ImageNet (ILSVRC 2012), closed set",
        "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php",
        imagenet.read,
        imagenet.EXPECTED,
        {
            "ILSVRC2012_img_train.tar": Archive("1d675b47d978889d74fa0da5fadfb00e", "train", nested=True),
            "ILSVRC2012_img_val.tar": Archive("29b22e2961454d5413ddabcf34fc5622", "val"),
            "ILSVRC2012_devkit_t12.tar.gz": Archive("fa75699e90414af021442c21a62c3abf"),
        },
        300 * GIB,
        (1, 2),
    ),
}


def read(name: str, path: Path, kind: Kind, quick: bool = False) -> Dataset:
    """The official dataset at `path`, an archive or a folder; InputError lists everything that is not as published.

    `quick` skips decoding every image. Archives are unpacked once, into the cache.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist. Download {kind.title} from {kind.address}")
    archives = _archives(path, kind)
    if path.is_dir() and (not archives or _can_be_read(path, kind)):
        return _checked(name, path.resolve(), kind, quick)
    if not archives:
        wanted = " or ".join(kind.archives)
        raise InputError(
            f"{path} must be a folder or the archive {wanted}; it is neither. Download it from {kind.address}"
        )
    folder = _target(name, archives)
    fresh = not folder.is_dir()
    if fresh:
        _unpack(name, path if path.is_dir() else path.parent, archives, kind, folder)
    try:
        return _checked(name, folder, kind, quick)
    except InputError:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)  # the unpacked files are useless
        raise


def _checked(name: str, folder: Path, kind: Kind, quick: bool) -> Dataset:
    listing = kind.parse(folder, kind.expected)
    found = problems(listing, kind.expected)
    if not found:
        files = Paths(listing.root, tuple(listing.paths))
        with reported(f"Reading {name}" if quick else f"Decoding {name}") as progress:
            digests, found = (digests_of(files, progress), []) if quick else examine(files, progress=progress)
    if found:
        raise InputError(_report(folder, kind, found))
    return replace(to_dataset(name, listing, digests, f"{kind.title}. {kind.address}"), ks=kind.ks)


def _report(folder: Path, kind: Kind, found: list[str]) -> str:
    shown, more = found[:20], len(found) - 20
    lines = [f"{folder} is not {kind.title} as published:", *(f"  {problem}" for problem in shown)]
    lines += [f"  and {more:,} more"] if more > 0 else []
    return "\n".join([*lines, f"  Download it from {kind.address}"])


def _archives(path: Path, kind: Kind) -> dict[Path, Archive]:
    """The published archives in a folder, or in the folder of the given one; a single archive may have any name."""
    if path.is_dir():
        found = {n: seek(path, n) for n in kind.archives}
        return {file: kind.archives[n] for n, file in found.items() if file is not None}
    if path.name not in kind.archives:
        return {path: next(iter(kind.archives.values()))} if is_archive(path) else {}
    return {path.parent / n: archive for n, archive in kind.archives.items() if (path.parent / n).is_file()}


def _can_be_read(folder: Path, kind: Kind) -> bool:
    """Whether a folder holds the dataset unpacked."""
    try:
        kind.parse(folder, kind.expected)
    except InputError:
        return False
    return True


def _target(name: str, archives: dict[Path, Archive]) -> Path:
    """The folder to unpack into, named by the md5 of the archives, which is checked."""
    digests = [_check_md5(file, archive.md5) for file, archive in archives.items()]
    return cache_dir() / "unpacked" / f"{name}-{'-'.join(digest[:8] for digest in digests)}"


def _unpack(name: str, source: Path, archives: dict[Path, Archive], kind: Kind, target: Path) -> None:
    beside = []
    for n, md5 in kind.beside.items():
        found = seek(source, n)
        if found is None:
            raise InputError(f"{n} was not found in {source}; put it into the folder of {next(iter(archives)).name}.")
        _check_md5(found, md5)
        beside.append(found)
    with reported(f"Unpacking {name}") as progress, whole_folder(target) as temporary:
        for found in beside:
            shutil.copyfile(found, temporary / found.name)
        for done, (file, archive) in enumerate(archives.items(), start=1):
            unpack(file, temporary / archive.into, Bound(total=kind.bytes), archive.nested)
            progress(done, len(archives))


def _check_md5(path: Path, md5: str | None) -> str:
    with reported(f"Checking {path.name}") as progress:
        found = md5_of(path, progress)
    if md5 is not None and found != md5:
        raise InputError(
            f"{path} has md5 {found}, but the official file has {md5}. Download it again, "
            f"or unpack it and add the folder: then its content is checked instead."
        )
    return found
