"""Results of long computations, kept beside the bench: a second report is written in seconds."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.files import atomic_write

Arrays = dict[str, NDArray[Any]]


class Cache:
    """Arrays by kind and content of what they were computed from; without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def get(self, kind: str, key: str, compute: Callable[[], Arrays]) -> Arrays:
        """What `compute` gives; read from the folder if it was computed before. A damaged file is made again."""
        if self.folder is None:
            return compute()
        path = self.folder / f"{kind}-{key}.npz"
        try:
            with np.load(path, allow_pickle=False) as found:
                return dict(found)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            arrays = compute()
        with atomic_write(path) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]  # numpy's stubs
        return arrays


def digest(*parts: NDArray[Any] | str) -> str:
    """A short hash of arrays and words."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            found.update(f"{len(part)}:{part}".encode())
        else:
            found.update(f"{part.dtype}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()[:16]
