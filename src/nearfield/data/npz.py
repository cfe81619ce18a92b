"""Reading .npz and .npy files that may be damaged or hostile."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfield.errors import InputError

Arrays = dict[str, npt.NDArray[Any]]


def read_npz(path: Path, skip: Collection[str] = ()) -> Arrays:
    """The arrays of an .npz file, except those called as in `skip`; InputError if anything in it cannot be read."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files if name not in skip}
    except Exception as error:
        raise _unreadable(path, error) from error


def read_npy(path: Path) -> npt.NDArray[Any]:
    """The array of an .npy file; InputError if it cannot be read."""
    try:
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
        return array
    except Exception as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InputError:
    """NumPy, zipfile and zlib raise a dozen types for a damaged file, MemoryError for a header that claims too much."""
    return InputError(f"{path} cannot be read as {path.suffix}: {error or type(error).__name__}.")
