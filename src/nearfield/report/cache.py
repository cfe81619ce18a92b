"""Results of slow computations, stored in the bench's folder, so that the next report takes seconds."""

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
    """Arrays by kind and by the content that they were computed from; without a folder nothing is stored."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def get(self, kind: str, key: str, compute: Callable[[], Arrays]) -> Arrays:
        """The result of `compute`, read from the folder if it is there. A damaged file is computed again."""
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
    """A short hash of arrays and text."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            found.update(f"{len(part)}:{part}".encode())
        else:
            found.update(f"{part.dtype}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()[:16]
