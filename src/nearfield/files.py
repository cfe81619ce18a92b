"""Writing files and folders so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nearfield.errors import NearfieldError, RunError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; move it over `path` when the block succeeds, delete it when it fails."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise _cannot_write(target, error) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes `folder` if the block succeeds, and vanishes if it fails.

    If another process made `folder` in the meantime, that one stays.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        yield temporary
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.is_dir():
                raise
    except OSError as error:
        raise _cannot_write(folder, error) from error
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
    except ValueError as problem:  # invalid JSON or UTF-8
        raise error(f"{path} is damaged: {problem}. Restore it, or delete its folder.") from problem
    if not isinstance(found, dict):
        raise error(f"{path} is damaged: it must hold a JSON object. Restore it, or delete its folder.")
    return found


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {error.strerror or error}. Free space or choose another folder.")
