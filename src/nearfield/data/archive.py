"""Unpacking archives that may be hostile: nothing is written outside the target, nor more than a limit."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple

from nearfield.errors import InputError
from nearfield.progress import Progress

CHUNK = 1 << 20  # bytes
UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)


@dataclass(frozen=True)
class Bound:
    """Limits of an archive: bytes in total, bytes of one member, number of members."""

    total: int
    member: int = 512 << 20
    count: int = 3_000_000


class Member(NamedTuple):
    """A file inside an archive."""

    name: str
    stream: IO[bytes]


def is_archive(path: Path) -> bool:
    """Whether the content of `path` is that of a zip file or a tar file, compressed or not."""
    try:
        return path.is_file() and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))
    except (OSError, EOFError, zlib.error):
        return False


def md5_of(path: Path, progress: Progress | None = None) -> str:
    """The md5 of a file, to compare with the published one: protects against accidents, not against attacks."""
    digest, done, total = hashlib.md5(usedforsecurity=False), 0, path.stat().st_size
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    return digest.hexdigest()


def unpack(path: Path, target: Path, bound: Bound, nested: bool = False) -> None:
    """Write the files of a tar or zip below `target`; with `nested`, each inner tar becomes a folder.

    Refused: absolute paths, paths with "..", links, devices, and anything beyond the limits, measured while unpacking
    whatever sizes the archive declares. The `._*` and `__MACOSX` files of macOS are skipped.
    """
    written, count = 0, 0
    with _readable(path):
        for member in _members(path, nested):
            inside = _safe(member.name, path)
            if inside is None:
                continue
            count += 1
            room = min(bound.member, bound.total - written)
            if count > bound.count:
                raise InputError(
                    f"{path} must hold at most {bound.count:,} files; it holds more. Is it the right archive?"
                )
            destination = target / inside
            destination.parent.mkdir(parents=True, exist_ok=True)
            with destination.open("xb") as out:
                written += _copy(member, out, room, path)


def _copy(member: Member, out: IO[bytes], room: int, path: Path) -> int:
    size = 0
    while chunk := member.stream.read(CHUNK):
        size += len(chunk)
        if size > room:
            raise InputError(
                f"{path} exceeds its size limit: {member.name!r} passes {room:,} bytes. It is damaged or malicious."
            )
        out.write(chunk)
    return size


def _safe(name: str, path: Path) -> PurePosixPath | None:
    """The path of a member, inside the target; None for files to skip. InputError if it points elsewhere."""
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or PureWindowsPath(name).drive or "\0" in name:
        raise InputError(f"{path} would write outside its folder, to {name!r}. It is malicious, do not use it.")
    if not parts.parts or parts.parts[0] == "__MACOSX" or parts.name.startswith("._"):
        return None
    return parts


def _members(path: Path, nested: bool) -> Iterator[Member]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    with archive.open(info) as stream:
                        yield Member(info.filename, stream)
    else:
        with tarfile.open(path) as tar:
            yield from _tar_members(tar, path, nested)
            while tar.fileobj is not None and tar.fileobj.read(CHUNK):
                pass  # read to the end: the checksum of a compressed tar follows its last member


def _tar_members(tar: tarfile.TarFile, path: Path, nested: bool) -> Iterator[Member]:
    for info in tar:
        if info.isdir():
            continue
        stream = tar.extractfile(info) if info.isreg() else None
        if stream is None:
            raise InputError(f"{path} holds {info.name!r}, a link or a device; only regular files can be unpacked.")
        if nested and info.name.endswith(".tar"):
            with tarfile.open(fileobj=stream) as inner:
                for member in _tar_members(inner, path, nested=False):
                    yield Member(f"{info.name.removesuffix('.tar')}/{member.name}", member.stream)
        else:
            yield Member(info.name, stream)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise InputError(f"{path} holds the file {error.filename} twice. Is it the right archive?") from error
    except UNREADABLE as error:
        raise InputError(f"{path} cannot be unpacked: {error}. Download it again.") from error
    except RuntimeError as error:  # zipfile raises it for an encrypted member
        raise InputError(f"{path} cannot be unpacked: {error}. Unpack it yourself and give the folder.") from error
