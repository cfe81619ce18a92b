"""Official layouts with classes enough for the papers' batches: hundreds of tiny images in the official files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from miniatures import jpeg, miniature, write

from nearfield import data
from nearfield.data.official import Expected


def cub(root: Path) -> Expected:
    """80 classes of ten images to train, 80 of two to test."""
    sizes = [10] * 80 + [2] * 80
    labels = [label for label, size in enumerate(sizes, 1) for _ in range(size)]
    paths = [f"{label:03d}.Bird_{label}/{i}.jpg" for i, label in enumerate(labels)]
    folder = root / "CUB_200_2011"
    for seed, path in enumerate(paths):
        write(folder / "images" / path, jpeg(seed, 8, 8))
    write(folder / "images.txt", "".join(f"{i} {path}\n" for i, path in enumerate(paths, 1)))
    write(folder / "image_class_labels.txt", "".join(f"{i} {label}\n" for i, label in enumerate(labels, 1)))
    write(folder / "classes.txt", "".join(f"{label} {label:03d}.Bird_{label}\n" for label in range(1, 161)))
    return Expected(960, 160, {"train": (800, 80), "test": (160, 80)})


def cars196(root: Path) -> Expected:
    """The same, in folders of classes."""
    for label in range(1, 161):
        for i in range(10 if label <= 80 else 2):
            write(root / "car_data" / ("test" if i % 2 else "train") / f"Car {label:03d}" / f"{i}.jpg", jpeg(i, 8, 8))
    return Expected(960, 160, {"train": (800, 80), "test": (160, 80)})


def sop(root: Path) -> Expected:
    """260 products of four images to train, 20 of two to test; three categories."""
    folder, number = root / "Stanford_Online_Products", 0
    lists = dict.fromkeys(("Ebay_train.txt", "Ebay_test.txt"), "image_id class_id super_class_id path\n")
    for item in range(1, 281):
        for view in range(4 if item <= 260 else 2):
            number += 1
            path = f"kind{item % 3}_final/{item:09d}_{view}.JPG"
            write(folder / path, jpeg(number, 8, 8))
            lists["Ebay_train.txt" if item <= 260 else "Ebay_test.txt"] += f"{number} {item} {item % 3 + 1} {path}\n"
    for name, text in lists.items():
        write(folder / name, text)
    return Expected(1080, 280, {"train": (1040, 260), "test": (40, 20)}, categories=3)


def inshop(root: Path) -> Expected:
    """260 items of three images to train, 20 with a query and a gallery image; three categories."""
    rows = []
    for item in range(1, 281):
        for view in range(3 if item <= 260 else 2):
            path = f"img/WOMEN/Kind{item % 3}/id_{item:08d}/0{view}_1_front.jpg"
            write(root / "Img" / path, jpeg(10 * item + view, 8, 8))
            part = "train" if item <= 260 else ("query", "gallery")[view]
            rows.append(f"{path}   id_{item:08d}   {part}\n")
    text = f"{len(rows)}\nimage_name item_id evaluation_status\n" + "".join(rows)
    write(root / "Eval" / "list_eval_partition.txt", text)
    parts = {"train": (780, 260), "test": (40, 20), "query": (20, 20), "gallery": (20, 20)}
    return Expected(820, 280, parts, categories=3)


def vehicleid(root: Path) -> Expected:
    """120 vehicles of four images to train, every second of one of three models, 20 of two to test."""
    folder = root / "VehicleID_V1.0"
    vehicles = [vehicle for vehicle in range(1, 141) for _ in range(4 if vehicle <= 120 else 2)]
    lines = [f"{i:07d} {vehicle}" for i, vehicle in enumerate(vehicles, 1)]
    for i in range(len(vehicles)):
        write(folder / "image" / f"{i + 1:07d}.jpg", jpeg(i, 8, 8))
    write(folder / "attribute" / "img2vid.txt", "\n".join(lines))
    write(folder / "attribute" / "model_attr.txt", "".join(f"{v} {v % 3}\n" for v in range(2, 141, 2)))
    write(folder / "train_test_split" / "train_list.txt", "\n".join(lines[:480]))
    write(folder / "train_test_split" / "test_list_800.txt", "\n".join(lines[480:500]))
    parts = {"train": (480, 120), "test": (40, 20)}
    return Expected(520, 140, parts, lists={"test_800": (20, 10)})


def imagenet(root: Path) -> Expected:
    """50 synsets of six images to train and two to test, in folders."""
    for synset in range(50):
        for i in range(8):
            part = "train" if i < 6 else "val"
            write(root / part / f"n{synset:08d}" / f"n{synset:08d}_{i}.JPEG", jpeg(8 * synset + i, 8, 8))
    return Expected(400, 50, {"train": (300, 50), "test": (100, 50)})


LAYOUTS: dict[str, Callable[[Path], Expected]] = {
    "cub": cub,
    "cars196": cars196,
    "sop": sop,
    "inshop": inshop,
    "vehicleid": vehicleid,
    "imagenet": imagenet,
}


def add_all(root: Path) -> None:
    """Write and add all of them, checked like the real ones but for their numbers."""
    for name, make in LAYOUTS.items():
        expected = make(root / name)
        data.add(name, root / name, kind=replace(miniature(name), expected=expected))
