"""Miniatures of the official datasets' layouts, a few tiny images each, and what they must count to."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from nearfield import data
from nearfield.data import Dataset, official
from nearfield.data.official import Expected, Kind

Builder = Callable[[Path], None]


def jpeg(seed: int, width: int = 20, height: int = 16) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG")
    return buffer.getvalue()


def write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def make_cub(root: Path) -> None:
    """Four classes of three images; the names of a class and of an image are not ASCII."""
    names = ["001.Albatros_à_bec", "002.Auk", "003.Wren", "004.Żuraw"]
    paths = [f"{name}/vögel_{i}.jpg" for name in names for i in range(3)]
    for seed, path in enumerate(paths):
        write(root / "CUB_200_2011" / "images" / path, jpeg(seed))
    write(root / "CUB_200_2011" / "images" / names[0] / "._vögel_0.jpg", b"finder")
    write(root / "CUB_200_2011" / "images.txt", "".join(f"{i} {p}\n" for i, p in enumerate(paths, 1)))
    write(root / "CUB_200_2011" / "image_class_labels.txt", "".join(f"{i} {(i - 1) // 3 + 1}\n" for i in range(1, 13)))
    write(root / "CUB_200_2011" / "classes.txt", "".join(f"{i} {n}\n" for i, n in enumerate(names, 1)))


CARS = ["AM General Hummer", "Audi S4", "FIAT 500 Abarth", "smart fortwo"]


def make_cars(root: Path) -> None:
    from scipy.io import savemat

    kinds = [("relative_im_path", object), ("class", object), ("test", object)]
    rows = np.zeros(10, dtype=kinds)
    for i in range(10):
        path = f"car_ims/{i + 1:06d}.jpg"
        write(root / path, jpeg(i))
        rows[i] = (path, i % 4 + 1, i % 2)
    names = np.array(CARS, dtype=object)
    savemat(root / "cars_annos.mat", {"annotations": rows, "class_names": names})


def make_cars_copy(root: Path) -> None:
    for i in range(10):
        part = "test" if i % 2 else "train"
        write(root / "car_data" / part / CARS[i % 4] / f"{i:05d}.jpg", jpeg(i))


def make_sop(root: Path) -> None:
    header = "image_id class_id super_class_id path\n"
    files = {"Ebay_train.txt": header, "Ebay_test.txt": header}
    number = 0
    for item in range(1, 7):
        category = ("bicycle", "toaster")[item % 2]
        for view in range(2):
            number += 1
            path = f"{category}_final/{item:09d}_{view}.JPG"
            write(root / "Stanford_Online_Products" / path, jpeg(number))
            files["Ebay_train.txt" if item <= 3 else "Ebay_test.txt"] += f"{number} {item} {item % 2 + 1} {path}\n"
    for name, text in files.items():
        write(root / "Stanford_Online_Products" / name, text)


def make_inshop(root: Path) -> None:
    rows = []
    for item, status in ((1, "train"), (2, "train"), (3, "test"), (4, "test")):
        category = ("WOMEN/Dresses", "MEN/Denim")[item % 2]
        for view in range(1 if item == 2 else 3):  # an item of one image is official there
            path = f"img/{category}/id_{item:08d}/0{view}_1_front.jpg"
            write(root / "Img" / path, jpeg(10 * item + view))
            part = status if status == "train" else ("query" if view == 0 else "gallery")
            rows.append(f"{path}   id_{item:08d}   {part}\n")
    text = f"{len(rows)}\nimage_name item_id evaluation_status\n" + "".join(rows)
    write(root / "Eval" / "list_eval_partition.txt", text)


def make_vehicleid(root: Path) -> None:
    folder, vehicles = root / "VehicleID_V1.0", [11, 11, 30, 30, 52, 52, 52, 70, 70]
    lines = [f"{i:07d} {vehicle}" for i, vehicle in enumerate(vehicles, 1)]
    for i in range(len(vehicles)):
        write(folder / "image" / f"{i + 1:07d}.jpg", jpeg(i))
    write(folder / "attribute" / "img2vid.txt", "\n".join(lines))
    write(folder / "attribute" / "model_attr.txt", "11 0\n52 3\n")
    write(folder / "train_test_split" / "train_list.txt", "\n".join(lines[:4]))
    write(folder / "train_test_split" / "test_list_800.txt", "\n".join(lines[7:]))
    write(folder / "train_test_split" / "test_list_13164.txt", "\n".join(lines[4:]))


SYNSETS = {1: "n03", 2: "n01", 3: "n02", 4: "n09"}  # ILSVRC id, which is not the order of names; n09 is an ancestor


def imagenet_devkit(root: Path) -> None:
    from scipy.io import savemat

    kinds = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object), ("num_children", object)]
    rows = np.zeros(len(SYNSETS), dtype=kinds)
    for place, (number, synset) in enumerate(SYNSETS.items()):
        rows[place] = (number, synset, f"word of {synset}", 2 if synset == "n09" else 0)
    (root / "data").mkdir(parents=True)
    savemat(root / "data" / "meta.mat", {"synsets": rows})
    write(root / "data" / "ILSVRC2012_validation_ground_truth.txt", "1\n2\n3\n1\n2\n3\n")


def make_imagenet(root: Path) -> None:
    for seed, (synset, i) in enumerate((s, i) for s in ("n01", "n02", "n03") for i in range(3)):
        write(root / "train" / synset / f"{synset}_{i}.JPEG", jpeg(seed))
    for i in range(1, 7):
        write(root / "val" / f"ILSVRC2012_val_{i:08d}.JPEG", jpeg(100 + i))
    imagenet_devkit(root / "ILSVRC2012_devkit_t12")


EXPECTED = {
    "cub": Expected(12, 4, {"train": (6, 2), "test": (6, 2)}, {"train": (3, 3), "test": (3, 3)}),
    "cars196": Expected(
        10,
        4,
        {"train": (6, 2), "test": (4, 2)},
        {"train": (3, 3), "test": (2, 2)},
        names={1: "AM General", 3: "FIAT 500", 4: "smart"},
    ),
    "sop": Expected(12, 6, {"train": (6, 3), "test": (6, 3)}, categories=2),
    "inshop": Expected(10, 4, {"train": (4, 2), "test": (6, 2), "query": (2, 2), "gallery": (4, 2)}, categories=2),
    "vehicleid": Expected(9, 4, {"train": (4, 2), "test": (5, 2)}, lists={"test_800": (2, 1)}, ids_from_one=False),
    "imagenet": Expected(15, 3, {"train": (9, 3), "test": (6, 3)}),
}
MAKE: dict[str, Builder] = {
    "cub": make_cub,
    "cars196": make_cars,
    "sop": make_sop,
    "inshop": make_inshop,
    "vehicleid": make_vehicleid,
    "imagenet": make_imagenet,
}


def miniature(name: str) -> Kind:
    kind = official.KINDS[name]
    archives = {n: replace(a, md5=None) for n, a in kind.archives.items()}
    return replace(kind, expected=EXPECTED[name], archives=archives, beside=dict.fromkeys(kind.beside))


def add(name: str, path: Path, **options: bool) -> Dataset:
    return data.add(name, path, kind=miniature(name), **options)


def pack(folder: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
            for path in sorted(folder.rglob("*")):
                out.write(path, path.relative_to(folder).as_posix())
    else:
        with tarfile.open(target, "w" if target.suffix == ".tar" else "w:gz") as out:
            out.add(folder, arcname=".")
    return target


def nothing_is_left(cache: Path) -> bool:
    left = [path for path in cache.rglob("*") if path.is_file()] if cache.exists() else []
    return not left and not any((cache / "unpacked").glob("*")) and data.names() == ["digits", "glyphs"]
