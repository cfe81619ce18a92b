"""Official datasets in their archives, and archives that are damaged or hostile."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from miniatures import MAKE, add, make_cars, make_cub, make_imagenet, make_sop, miniature, nothing_is_left, pack

from nearfield import data
from nearfield.data import archive
from nearfield.data.official import Archive
from nearfield.errors import InputError


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every test has a cache of its own."""
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NEARFIELD_DATA", raising=False)
    return tmp_path / "cache"


@pytest.mark.parametrize(("name", "file"), [("cub", "CUB_200_2011.tgz"), ("sop", "Stanford_Online_Products.zip")])
def test_an_archive_is_unpacked_into_the_cache(name: str, file: str, tmp_path: Path, cache: Path) -> None:
    MAKE[name](tmp_path / "here")
    packed = pack(tmp_path / "here", tmp_path / "downloads" / file)
    from_archive, from_folder = add(name, packed), add(name, tmp_path / "here")
    assert from_archive.fingerprint == from_folder.fingerprint
    assert add(name, packed.parent).fingerprint == from_folder.fingerprint  # the folder that holds the archive
    (unpacked,) = (cache / "unpacked").iterdir()
    assert not list(unpacked.rglob("._*"))


def test_cars_from_the_archive_and_the_list_beside_it(tmp_path: Path) -> None:
    make_cars(tmp_path / "here")
    packed = pack(tmp_path / "here", tmp_path / "downloads" / "car_ims.tgz")
    packed.unlink()
    with tarfile.open(packed, "w:gz") as out:
        out.add(tmp_path / "here" / "car_ims", arcname="car_ims")
    with pytest.raises(InputError, match=r"cars_annos.mat was not found in .*; put it into the folder of car_ims.tgz"):
        add("cars196", packed)
    (tmp_path / "here" / "cars_annos.mat").rename(packed.with_name("cars_annos.mat"))
    assert len(add("cars196", packed).labels) == 10


def test_imagenet_from_its_archives(tmp_path: Path) -> None:
    make_imagenet(tmp_path / "here")
    expected = add("imagenet", tmp_path / "here").fingerprint
    downloads = tmp_path / "downloads"
    for synset in sorted((tmp_path / "here" / "train").iterdir()):
        with tarfile.open(tmp_path / "here" / f"{synset.name}.tar", "w") as out:
            for path in sorted(synset.iterdir()):
                out.add(path, arcname=path.name)
    downloads.mkdir()
    with tarfile.open(downloads / "ILSVRC2012_img_train.tar", "w") as out:
        for path in sorted((tmp_path / "here").glob("*.tar")):
            out.add(path, arcname=path.name)
    pack(tmp_path / "here" / "val", downloads / "ILSVRC2012_img_val.tar")
    pack(tmp_path / "here" / "ILSVRC2012_devkit_t12", downloads / "ILSVRC2012_devkit_t12.tar.gz")
    assert add("imagenet", downloads).fingerprint == expected


def test_a_wrong_md5_is_reported_with_both(tmp_path: Path) -> None:
    make_cub(tmp_path / "here")
    packed = pack(tmp_path / "here", tmp_path / "CUB_200_2011.tgz")
    found = hashlib.md5(packed.read_bytes()).hexdigest()
    with pytest.raises(InputError, match=rf"md5 {found}, but the official file has 97eceeb196236b17998738112f37df78"):
        data.add("cub", packed)
    right = replace(miniature("cub"), archives={packed.name: Archive(found)})
    assert len(data.add("cub", packed, kind=right).labels) == 12


def tar_of(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            out.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("name", ["../out.txt", "/out.txt", "a/../../out.txt", "C:\\out.txt", "..\\x"])
def test_an_archive_cannot_write_elsewhere(name: str, tmp_path: Path, cache: Path) -> None:
    packed = tar_of(tmp_path / "CUB_200_2011.tgz", {"images.txt": b"1 a\n", name: b"gotcha"})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="would write outside its folder"):
        add("cub", packed)
    assert nothing_is_left(cache)
    assert sorted(p for p in tmp_path.rglob("*") if cache not in (p, *p.parents)) == before
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as out:
        out.writestr(name, "gotcha")
    with pytest.raises(InputError, match="would write outside its folder"):
        archive.unpack(tmp_path / "evil.zip", tmp_path / "target", archive.Bound(1000))


@pytest.mark.parametrize(
    "member",
    [link("x", "/etc/passwd", tarfile.SYMTYPE), link("x", "y", tarfile.LNKTYPE), link("x", "", tarfile.FIFOTYPE)],
)
def test_links_and_devices_are_refused(member: tarfile.TarInfo, tmp_path: Path, cache: Path) -> None:
    packed = tar_of(tmp_path / "CUB_200_2011.tgz", {"y": b"1", "x": member})
    with pytest.raises(InputError, match="a link or a device"):
        add("cub", packed)
    assert nothing_is_left(cache)


def test_bombs_are_refused_by_what_they_really_hold(tmp_path: Path, cache: Path) -> None:
    bomb = tmp_path / "CUB_200_2011.tgz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("images.txt", bytes(20 << 20))
    assert bomb.stat().st_size < 1 << 16
    kind = replace(miniature("cub"), bytes=10 << 20)
    with pytest.raises(InputError, match=r"exceeds its size limit: 'images.txt' passes 10,485,760 bytes"):
        data.add("cub", bomb, kind=kind)
    assert nothing_is_left(cache)
    for bound, words in (
        (archive.Bound(1 << 30, member=1000), "'images.txt' passes 1,000 bytes"),
        (archive.Bound(1 << 30, count=0), "at most 0 files"),
    ):
        with pytest.raises(InputError, match=words):
            archive.unpack(bomb, tmp_path / str(bound.member), bound)


def test_many_small_members_are_a_bomb_too(tmp_path: Path) -> None:
    packed = tar_of(tmp_path / "a.tgz", {f"{i}": bytes(100) for i in range(30)})
    with pytest.raises(InputError, match="exceeds its size limit"):
        archive.unpack(packed, tmp_path / "target", archive.Bound(2000))
    assert sum(p.stat().st_size for p in (tmp_path / "target").iterdir()) <= 2000


@pytest.mark.parametrize("damage", ["cut short", "one byte", "not an archive", "empty"])
def test_an_unreadable_archive(damage: str, tmp_path: Path, cache: Path) -> None:
    make_cub(tmp_path / "here")
    packed = pack(tmp_path / "here", tmp_path / "CUB_200_2011.tgz")
    content = bytearray(packed.read_bytes())
    content[len(content) // 2] ^= 255
    changed: dict[str, bytes | bytearray] = {
        "cut short": content[: len(content) // 2],
        "one byte": content,
        "not an archive": b"<html>404</html>",
        "empty": b"",
    }
    packed.write_bytes(changed[damage])
    with pytest.raises(InputError, match=r"cannot be unpacked|must be a folder or"):
        add("cub", packed)
    assert nothing_is_left(cache)


def test_an_encrypted_archive(tmp_path: Path, cache: Path) -> None:
    make_sop(tmp_path / "here")
    packed = pack(tmp_path / "here", tmp_path / "Stanford_Online_Products.zip")
    content = bytearray(packed.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # set the bit that says so
        place = content.find(mark)
        while place >= 0:
            content[place + offset] |= 1
            place = content.find(mark, place + 4)
    packed.write_bytes(content)
    with pytest.raises(InputError, match=r"password.*Unpack it yourself and give the folder"):
        add("sop", packed)
    assert nothing_is_left(cache)


def test_a_file_twice_in_an_archive(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        for _ in range(2):
            out.addfile(tarfile.TarInfo("x"), io.BytesIO(b""))
    with pytest.raises(InputError, match=r"holds the file .* twice"):
        archive.unpack(tmp_path / "a.tar", tmp_path / "target", archive.Bound(1000))
