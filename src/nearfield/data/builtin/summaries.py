"""What `Dataset.summary` says of the built-in datasets, so that they can be listed without being loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearfield.data.builtin import omniglot
from nearfield.data.builtin.glyphs import cache as glyphs

Counts = tuple[int, int]  # classes, images
Summary = dict[str, object]


def _summary(
    name: str, size: str, categories: int, per_class: tuple[int, float, int], train: Counts, test: Counts, digest: str
) -> Summary:
    return {
        "name": name,
        "images": train[1] + test[1],
        "image_size": size,
        "classes": train[0] + test[0],
        "categories": categories,
        "images_per_class_min": per_class[0],
        "images_per_class_median": per_class[1],
        "images_per_class_max": per_class[2],
        "train_classes": train[0],
        "train_images": train[1],
        "test_classes": test[0],
        "test_images": test[1],
        "fingerprint": digest,
    }


DIGITS = _summary(
    "digits",
    "8x8",
    categories=1,
    per_class=(174, 180.5, 183),
    train=(5, 901),
    test=(5, 896),
    digest="16599915ad87ef2b6417fdd97afa765c28470246c7bd37ef106088224e28cb9e",
)
GLYPHS = _summary(
    "glyphs",
    "32x32",
    categories=20,
    per_class=(10, 10.0, 10),
    train=(798, 7_980),
    test=(797, 7_970),
    digest=glyphs.PINNED_FINGERPRINT,
)
OMNIGLOT = _summary(
    "omniglot",
    "28x28",
    categories=50,
    per_class=(20, 20.0, 20),
    train=(964, 19_280),
    test=(659, 13_180),
    digest="9d894b86bbed826fbbaa1917a150c124cb252552f133adb666d1edeadf616bd1",
)


def known(name: str) -> Summary | None:
    """The summary of a built-in dataset; None if what is here may differ from what was published."""
    if name == "glyphs" and glyphs.versions() != glyphs.PINNED:
        return None
    if name == "omniglot" and not _is_whole(omniglot.find()):
        return None
    return {"digits": DIGITS, "glyphs": GLYPHS, "omniglot": OMNIGLOT}.get(name)


def _is_whole(path: Path | None) -> bool:
    """Whether a file has the 1,623 characters of Omniglot; their images are not read."""
    try:
        with np.load(path, allow_pickle=False) as archive:  # type: ignore[arg-type]  # None is one more way to fail
            return len(archive["class_alphabet"]) == OMNIGLOT["classes"]
    except Exception:  # a damaged file, which loading it will name
        return False
