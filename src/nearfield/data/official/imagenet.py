"""ImageNet 2012 (Russakovsky et al., 2015) as a closed set, tested on the validation images.

The class ids of validation images are those of `meta.mat`, not positions in the sorted list of synsets.
"""

from __future__ import annotations

from pathlib import Path

from nearfield.data.official.listing import Expected, Listing, find, integer, lines, seek
from nearfield.errors import InputError

EXPECTED = Expected(images=1_331_167, classes=1_000, parts={"train": (1_281_167, 1_000), "test": (50_000, 1_000)})


def read(folder: Path, expected: Expected = EXPECTED) -> Listing:
    """Read `train/SYNSET/*.JPEG` and `val/`, in folders of synsets too, or flat and with the devkit."""
    train = find(folder, "train")
    root = train.parent
    images, tests = _by_synset(train), _by_synset(root / "val")
    synsets, words = _synsets(find(folder, "meta.mat")) if not tests or seek(folder, "meta.mat") else ({}, {})
    if not tests:
        tests = _flat(root / "val", find(folder, "ILSVRC2012_validation_ground_truth.txt"), synsets)
    ids = {synset: i for i, synset in enumerate(sorted({synset for _, synset in images}), start=1)}
    foreign = {synset for _, synset in tests} - ids.keys()
    if foreign:
        raise InputError(f"{root / 'val'} has the synset {min(foreign)}, which is not in {train}.")
    return Listing(
        root=root,
        paths=[path for path, _ in images + tests],
        ids=[ids[synset] for _, synset in images + tests],
        parts=["train"] * len(images) + ["test"] * len(tests),
        names={i: words.get(synset, synset) for synset, i in ids.items()},
        closed=True,
    )


def _by_synset(folder: Path) -> list[tuple[str, str]]:
    """Path and synset of each image in a folder of synset folders."""
    found = sorted(folder.glob("*/*.JPEG"))
    return [(f"{folder.name}/{path.parent.name}/{path.name}", path.parent.name) for path in found]


def _synsets(path: Path) -> tuple[dict[int, str], dict[str, str]]:
    """ILSVRC id to synset, and synset to words, of the 1,000 leaves; the other synsets are their ancestors."""
    from scipy.io import loadmat

    try:
        leaves = [s for s in loadmat(path, squeeze_me=True)["synsets"] if int(s["num_children"]) == 0]
        numbers = {int(s["ILSVRC2012_ID"]): str(s["WNID"]) for s in leaves}
        return numbers, {str(s["WNID"]): str(s["words"]) for s in leaves}
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise InputError(f"cannot read the list file {path}: {error}.") from error


def _flat(folder: Path, truth: Path, synsets: dict[int, str]) -> list[tuple[str, str]]:
    numbers = [integer(word, truth) for (word,) in lines(truth, 1)]
    unknown = next((n for n in numbers if n not in synsets), None)
    if unknown is not None:
        raise InputError(f"{truth} has the id {unknown}, which is not in meta.mat.")
    name = "ILSVRC2012_val_{:08d}.JPEG"
    return [(f"{folder.name}/{name.format(i)}", synsets[n]) for i, n in enumerate(numbers, start=1)]
