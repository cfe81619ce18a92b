"""Writing files and folders so that a reader, or a crash, never sees half of one; reading JSON back."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nearfield.errors import NearfieldError, RunError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; move it over `path` when the block succeeds, delete it when it fails."""
    target = Path(path)
    temporary = _draft_of(target)
    with _reporting(target):
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            flush_to_disk(temporary)
            os.replace(temporary, target)
            flush_to_disk(target.parent)
        finally:
            with suppress(OSError):
                temporary.unlink()


@contextmanager
def whole_folder(folder: Path, flush: bool = False) -> Iterator[Path]:
    """Give a temporary folder that becomes `folder` when the block succeeds, and is deleted when it fails.

    If another process made `folder` in the meantime, that one stays. With `flush` the files directly in it are on disk
    before it gets its name, so that a power cut leaves all of them or none: not for folders of many files.
    """
    temporary = _draft_of(folder)
    with _reporting(folder):
        temporary.mkdir()
        try:
            yield temporary
            for path in (*temporary.iterdir(), temporary) if flush else ():
                flush_to_disk(path)
            try:
                os.rename(temporary, folder)
            except OSError:
                if not folder.is_dir():
                    raise
            flush_to_disk(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` atomically, in UTF-8."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` to `path` atomically as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, error: type[NearfieldError] = RunError) -> dict[str, Any]:
    """The JSON object in a file; `error` if the file cannot be read or is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror or problem}. Is the folder complete?") from problem
    except (ValueError, RecursionError) as problem:  # invalid JSON or UTF-8
        raise error(f"{path} is damaged: {problem}. Restore it, or delete its folder.") from problem
    if not isinstance(found, dict):
        raise error(f"{path} is damaged: it must hold a JSON object. Restore it, or delete its folder.")
    return found


def flush_to_disk(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on disk."""
    if path.is_dir():
        with suppress(OSError):  # not every platform and file system can
            _fsync(path, os.O_RDONLY)
    else:
        _fsync(path, os.O_RDWR)


def _fsync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _draft_of(target: Path) -> Path:
    """A name beside `target` that nobody else uses; what is created under it gets the usual permissions."""
    with _reporting(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")


@contextmanager
def _reporting(target: Path) -> Iterator[None]:
    """OSError becomes RunError, which names the path and, where the disk may be full, the space left."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            with suppress(OSError):
                reason += f" ({shutil.disk_usage(target.parent).free / 1e6:,.1f} MB free)"
        raise RunError(f"cannot write {target}: {reason}. Free space or choose another folder.") from error
