"""Images a second: our pipeline, cached and on the fly, beside torchvision's ImageFolder with torch's DataLoader.

    python benchmarks/speed_data.py [--quick] [--threads N] [--workers N ...]

All three give float batches by the same augmentation (resize, random resized crop, flip, pixel values), in turns in one
process; times are ratios of neighbouring rounds. The pictures are CUB-200-2011 if NEARFIELD_DATA holds it, else JPEGs
of 500 x 375 generated for the purpose.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Subset

if not __package__:  # started as a script
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measure import print_table
from nearfield import data
from nearfield.data import augment, loader
from nearfield.data.augment import Augmentation
from nearfield.data.readers import folder as class_folders
from nearfield.models.torchvision_shim import torchvision

BATCH = 64
SIZES = {"128 to 112 px": (128, 112), "256 to 227 px": (256, 227)}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TITLES = {
    "torchvision": "torchvision ImageFolder + DataLoader",
    "fly": "ours, decoded on the fly",
    "cached": "ours, cached",
}


def pictures(scratch: Path) -> tuple[Path, str]:
    """A folder of class folders, and what is in it."""
    real = Path(os.environ.get("NEARFIELD_DATA", "")) / "CUB_200_2011" / "images"
    if real.is_dir():
        return real, "CUB-200-2011"
    rng = np.random.default_rng(0)
    for label in range(8):
        (scratch / f"class {label}").mkdir()
        for number in range(64):
            coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))  # as smooth as a photograph
            coarse.resize((500, 375), Image.Resampling.BICUBIC).save(scratch / f"class {label}" / f"{number}.jpg")
    return scratch, "generated JPEGs of 500 x 375"


def values(images: Tensor) -> Tensor:
    """From uint8 images (..., 3, S, S) to float32 of mean 0 and variance 1."""
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (MEAN, STD))
    return (images * (1 / 255 / std)).sub_(mean / std)


def peer_transform(chosen: Augmentation) -> Any:
    """The whole way from a Pillow image to a float32 tensor (3, S, S), by torchvision."""
    torchvision()
    from torchvision.transforms import v2

    window = v2.RandomResizedCrop(chosen.side, scale=(chosen.scale, 1.0), antialias=True)
    return v2.Compose(
        [v2.RGB(), v2.Resize(chosen.size), window, v2.RandomHorizontalFlip(), v2.PILToTensor(), v2.Lambda(values)]
    )


def pipelines(folder: Path, chosen: Augmentation, images: int, workers: int) -> dict[str, Callable[[], Iterator[Any]]]:
    """What is compared: functions that start one pass over the same `images` pictures."""
    plain = torchvision().datasets.ImageFolder(str(folder), transform=peer_transform(chosen))
    lazy = augment.images_for(class_folders.load(folder), chosen, train=True)
    cached = data.decoded(lazy)
    rows = np.random.default_rng(0).permutation(len(plain))[:images]
    batches = [part.tolist() for part in np.array_split(rows, len(rows) // BATCH)]

    def ours(dataset: data.Dataset) -> Iterator[torch.Tensor]:
        return (values(batch) for batch in loader.loader(dataset, batches, chosen, train=True, workers=workers))

    def peer() -> Iterator[torch.Tensor]:
        return (batch for batch, _ in DataLoader(Subset(plain, rows.tolist()), BATCH, num_workers=workers))

    return {"torchvision": peer, "fly": lambda: ours(lazy), "cached": lambda: ours(cached)}


def per_second(start: Callable[[], Iterator[Any]]) -> float:
    """Images a second after the first batch, which pays for starting the workers."""
    batches = start()
    next(batches)
    begun = time.perf_counter()
    images = sum(len(batch) for batch in batches)
    return images / (time.perf_counter() - begun)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer images, one round")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads in each process")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, os.cpu_count() or 1])
    arguments, _ = parser.parse_known_args()

    torch.set_num_threads(arguments.threads)
    images, rounds = (256, 1) if arguments.quick else (1024, 7)
    table = []
    with tempfile.TemporaryDirectory() as scratch:
        folder, title = pictures(Path(scratch))
        for name, (size, side) in SIZES.items():
            chosen = replace(augment.augmentation("small"), size=size, side=side)
            for workers in arguments.workers:
                starts = pipelines(folder, chosen, images, workers)
                found: dict[str, list[float]] = {key: [] for key in starts}
                for _ in range(rounds + 1):  # the first one warms up the page cache
                    for key, start in starts.items():
                        found[key].append(per_second(start))
                        print(".", end="", file=sys.stderr, flush=True)
                for key, speeds in found.items():
                    times = statistics.median(a / b for a, b in zip(speeds[1:], found["torchvision"][1:], strict=True))
                    row = [name, str(workers), TITLES[key], f"{statistics.median(speeds[1:]):,.0f}", f"{times:.1f}"]
                    table.append(row)
    print(f"\n{title}, batches of {BATCH}, {arguments.threads} thread(s) a process\n")
    print_table(["resize to crop", "workers", "pipeline", "images/s", "x torchvision"], table)


if __name__ == "__main__":
    main()
