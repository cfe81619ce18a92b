"""The datasets of the papers: every official layout, what can be wrong with one, and the real CUB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from miniatures import (
    CARS,
    EXPECTED,
    MAKE,
    Builder,
    add,
    jpeg,
    make_cars,
    make_cars_copy,
    make_cub,
    make_imagenet,
    make_inshop,
    make_sop,
    make_vehicleid,
    miniature,
    nothing_is_left,
    pack,
    write,
)
from narrow import narrow
from PIL import Image

from nearfield import data
from nearfield.cli.main import main
from nearfield.data import official
from nearfield.data.pictures import Pictures
from nearfield.errors import InputError


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every test has a cache of its own."""
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NEARFIELD_DATA", raising=False)
    return tmp_path / "cache"


# Layouts


@pytest.mark.parametrize("name", MAKE)
def test_a_miniature_is_read_registered_and_verified(name: str, tmp_path: Path) -> None:
    MAKE[name](tmp_path / "here")
    added = add(name, tmp_path / "here")
    dataset, expected = data.load(name), EXPECTED[name]
    assert name in data.names()
    assert (len(dataset.labels), len(dataset.class_names)) == (expected.images, expected.classes)
    assert (len(dataset.train_rows()), len(dataset.train_classes)) == expected.parts["train"]
    assert (len(dataset.test_rows()), len(dataset.test_classes)) == expected.parts["test"]
    assert not set(dataset.train_rows()) & set(dataset.test_rows())
    assert dataset.fingerprint == added.fingerprint
    assert dataset.images[:2].shape == (2, 256, 256, 3)
    assert data.verify(dataset) == []


@pytest.mark.parametrize("name", MAKE)
def test_the_published_numbers_are_asked_for_by_default(name: str, tmp_path: Path) -> None:
    MAKE[name](tmp_path / "here")
    with pytest.raises(InputError) as refused:
        data.add(name, tmp_path / "here")
    published = official.KINDS[name].expected
    found = EXPECTED[name]
    text = str(refused.value)
    assert f"  images: expected {published.images:,}, found {found.images}\n" in text
    for part in ("train", "test"):  # all of them, not the first only
        assert f"  {part} images: expected {published.parts[part][0]:,}, found " in text
    assert official.KINDS[name].address in text
    assert name not in data.names()


def test_cub_details(tmp_path: Path) -> None:
    make_cub(tmp_path)
    dataset = add("cub", tmp_path)
    assert dataset.class_names == ("Albatros à bec", "Auk", "Wren", "Żuraw")
    assert dataset.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert dataset.train_classes.tolist() == [0, 1]
    assert narrow(Pictures, dataset.images).files.name(0).endswith("vögel_0.jpg")


def test_cars_as_published_and_as_a_copy_with_folders_are_the_same(tmp_path: Path) -> None:
    make_cars(tmp_path / "a")
    make_cars_copy(tmp_path / "b")
    one, two = add("cars196", tmp_path / "a"), add("cars196", tmp_path / "b")
    assert one.class_names == two.class_names == tuple(CARS)
    assert one.train_classes.tolist() == two.train_classes.tolist() == [0, 1]
    same = [{(p.tobytes(), int(y)) for p, y in zip(d.images[:], d.labels, strict=True)} for d in (one, two)]
    assert same[0] == same[1]
    assert len(same[0]) == 10


def test_cars_in_another_order_of_classes_are_noticed(tmp_path: Path) -> None:
    make_cars_copy(tmp_path)
    (tmp_path / "car_data" / "train" / CARS[0]).rename(tmp_path / "car_data" / "train" / "Zastava")
    with pytest.raises(InputError, match=r"name of class 1: expected AM General…, found 'Audi S4'"):
        add("cars196", tmp_path)


def test_sop_categories(tmp_path: Path) -> None:
    make_sop(tmp_path)
    dataset = add("sop", tmp_path)
    assert dataset.category_names == ("bicycle", "toaster")
    assert dataset.class_category.tolist() == [1, 0, 1, 0, 1, 0]


def test_inshop_queries_and_gallery(tmp_path: Path) -> None:
    make_inshop(tmp_path)
    dataset = add("inshop", tmp_path)
    assert dataset.is_query is not None
    assert dataset.is_gallery is not None
    assert dataset.labels[dataset.is_query].tolist() == [2, 3]
    assert dataset.labels[dataset.is_gallery].tolist() == [2, 2, 3, 3]
    assert dataset.category_names == ("MEN/Denim", "WOMEN/Dresses")
    assert dataset.summary()["query_images"] == 2


def test_inshop_in_high_resolution(tmp_path: Path) -> None:
    make_inshop(tmp_path)
    (tmp_path / "Img" / "img").rename(tmp_path / "Img" / "img_highres")
    assert "img_highres" in narrow(Pictures, add("inshop", tmp_path).images).files.name(0)


def test_vehicleid_lists_and_models(tmp_path: Path) -> None:
    make_vehicleid(tmp_path)
    dataset = add("vehicleid", tmp_path)
    assert dataset.class_names == ("vehicle 11", "vehicle 30", "vehicle 52", "vehicle 70")
    assert dataset.category_names == ("model 0", "model 3", "unlabelled")
    assert dataset.class_category.tolist() == [0, 2, 1, 2]
    assert {name: rows.tolist() for name, rows in dataset.test_lists.items()} == {
        "test_800": [7, 8],
        "test_13164": [4, 5, 6, 7, 8],
    }


def test_imagenet_is_a_closed_set_and_its_validation_ids_are_its_own(tmp_path: Path) -> None:
    make_imagenet(tmp_path)
    dataset = add("imagenet", tmp_path)
    assert dataset.train_classes.tolist() == dataset.test_classes.tolist() == [0, 1, 2]
    assert dataset.class_names == ("word of n01", "word of n02", "word of n03")
    assert dataset.labels[dataset.test_rows()].tolist() == [2, 0, 1, 2, 0, 1]
    assert dataset.summary()["shared_classes"] == 3


# What can be wrong with a folder


def break_list(root: Path) -> None:
    (root / "CUB_200_2011" / "image_class_labels.txt").unlink()


def drop_image(root: Path) -> None:
    (root / "CUB_200_2011" / "images" / "002.Auk" / "vögel_1.jpg").unlink()


def drop_line(root: Path) -> None:
    for name in ("images", "image_class_labels"):
        path = root / "CUB_200_2011" / f"{name}.txt"
        write(path, "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-2]))


def spoil_image(root: Path) -> None:
    path = root / "CUB_200_2011" / "images" / "002.Auk" / "vögel_1.jpg"
    path.write_bytes(path.read_bytes()[:200])


def bad_line(root: Path) -> None:
    write(root / "CUB_200_2011" / "image_class_labels.txt", "1 1\n2\n")


def bad_number(root: Path) -> None:
    write(root / "CUB_200_2011" / "image_class_labels.txt", "1 one\n")


def foreign_class(root: Path) -> None:
    path = root / "CUB_200_2011" / "image_class_labels.txt"
    write(path, path.read_text(encoding="utf-8").replace("12 4", "12 9"))


def repeat_path(root: Path) -> None:
    path = root / "CUB_200_2011" / "images.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    write(path, "\n".join([*lines[:-1], f"12 {lines[0].split()[1]}"]))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (break_list, r"cannot read the list file .*image_class_labels.txt"),
        (drop_image, r"missing files in .*: 1: 002.Auk/vögel_1.jpg"),
        (drop_line, r"images: expected 12, found 10\n.*test images: expected 6, found 4"),
        (drop_line, r"fewest images of a test class: expected 3, found 1"),
        (spoil_image, r"cannot read the image .*vögel_1.jpg: Truncated"),
        (bad_line, r"image_class_labels.txt, line 2: expected 2 columns; found '2'"),
        (bad_number, r"expected a number; found 'one'"),
        (foreign_class, r"class ids: expected 1 to 4; absent: none; unexpected: 9"),
        (repeat_path, r"paths: expected each once, found more than once: 001"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_registered(
    harm: Builder, words: str, tmp_path: Path, cache: Path
) -> None:
    make_cub(tmp_path / "here")
    harm(tmp_path / "here")
    with pytest.raises(InputError, match=f"(?s){words}"):
        add("cub", tmp_path / "here")
    assert nothing_is_left(cache)
    packed = pack(tmp_path / "here", tmp_path / "CUB_200_2011.tgz")
    with pytest.raises(InputError, match=f"(?s){words}"):
        add("cub", packed)
    assert nothing_is_left(cache)


def test_a_failed_attempt_keeps_what_was_registered_before(tmp_path: Path) -> None:
    make_cub(tmp_path / "good")
    before = add("cub", tmp_path / "good").fingerprint
    make_cub(tmp_path / "bad")
    spoil_image(tmp_path / "bad")
    with pytest.raises(InputError):
        add("cub", tmp_path / "bad")
    assert data.load("cub").fingerprint == before


def test_quick_does_not_decode(tmp_path: Path) -> None:
    make_cub(tmp_path)
    spoil_image(tmp_path)
    dataset = add("cub", tmp_path, quick=True)
    assert len(data.verify(dataset)) == 1


def test_training_and_test_must_not_share_classes(tmp_path: Path) -> None:
    make_sop(tmp_path)
    path = tmp_path / "Stanford_Online_Products" / "Ebay_test.txt"
    write(path, path.read_text().replace(" 6 1 ", " 3 1 ", 1))
    with pytest.raises(InputError, match="classes in training and test: expected none, found 3"):
        add("sop", tmp_path)


def test_vehicleid_with_an_unknown_image(tmp_path: Path) -> None:
    make_vehicleid(tmp_path)
    write(tmp_path / "VehicleID_V1.0" / "train_test_split" / "test_list_800.txt", "9999999 11\n")
    with pytest.raises(InputError, match=r"lists 9999999, which is not in img2vid.txt"):
        add("vehicleid", tmp_path)


def test_a_missing_path_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not exist.*https://cvgl.stanford.edu"):
        data.add("sop", tmp_path / "none")
    with pytest.raises(InputError, match=r"has not been added yet: get CUB_200_2011.tgz from https://www.vision"):
        data.load("cub")


# Later


def test_verify_finds_what_happened_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_cub(tmp_path)
    dataset = add("cub", tmp_path)
    images = tmp_path / "CUB_200_2011" / "images"
    (images / "001.Albatros_à_bec" / "vögel_0.jpg").unlink()
    (images / "002.Auk" / "vögel_0.jpg").write_bytes(jpeg(99))
    spoil_image(tmp_path)
    problems = data.verify(dataset)
    assert len(problems) == 3
    assert "No such file" in problems[0]
    assert "its content differs" in problems[1]
    assert "Truncated" in problems[2]
    assert main(["data", "verify", "cub"]) == 1
    assert "cub, 12 images: 3 problems" in capsys.readouterr().out


def test_images_that_moved_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_cub(tmp_path / "here")
    add("cub", tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(InputError, match="the images of cub are no longer in"):
        data.load("cub")
    assert main(["data", "list"]) == 0  # the others are still listed
    out = capsys.readouterr().out
    assert "digits" in out
    assert "no longer in" in out


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_cub(tmp_path / "here")
    monkeypatch.setitem(official.KINDS, "cub", miniature("cub"))
    assert main(["data", "add", "cub", str(tmp_path / "here")]) == 0
    assert "Added: cub" in capsys.readouterr().out
    assert main(["data", "show", "cub"]) == 0
    assert "256x256 RGB" in capsys.readouterr().out
    assert main(["data", "verify", "cub"]) == 0
    assert "cub, 12 images: all present, unchanged and readable" in capsys.readouterr().out
    assert main(["data", "sheet", "cub", "-o", str(tmp_path / "sheet.png")]) == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size[1] > 4 * 64
    capsys.readouterr()
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert "sop can be added with `nearfield data add sop PATH`" in out
    assert "cub can be added" not in out


# The real one


def test_the_real_cub(real_data: Path) -> None:
    folder = real_data / "CUB_200_2011"
    if not folder.is_dir():
        pytest.skip("NEARFIELD_DATA has no CUB_200_2011")
    dataset = data.add("cub", folder, quick=True)
    counts = np.bincount(dataset.labels)
    assert (len(dataset.train_rows()), len(dataset.test_rows())) == (5864, 5924)
    folds = data.k_folds(dataset.train_classes, 4)
    assert [int(counts[train].sum()) for train, _ in folds] == [4462, 4377, 4380, 4373]
    assert [int(counts[val].sum()) for _, val in folds] == [1402, 1487, 1484, 1491]
    assert [(len(train), len(val)) for train, val in folds] == [(75, 25)] * 4


@pytest.mark.slow
def test_every_photograph_of_the_real_cub_can_be_decoded(real_data: Path) -> None:
    dataset = data.add("cub", real_data / "CUB_200_2011")
    assert data.verify(dataset) == []
