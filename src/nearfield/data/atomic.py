"""Folders that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearfield.errors import RunError


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


def _cannot_write(folder: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {folder}: {error.strerror or error}. Free space or choose another folder.")
