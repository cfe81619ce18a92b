"""What the frozen stages of a network make of a dataset: computed once, kept in a memory-mapped file for later runs.

An entry of the cache is a file `activations/KEY.npy`; the key is a digest of the data, of how images are prepared, and
of the frozen stages with their weights. It gets its name when it is complete: a reader never sees half of one.

Axes: N images, C channels and h x w places of an activation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearfield.data import cache_dir
from nearfield.errors import RunError
from nearfield.files import atomic_write
from nearfield.models.embed_images import Rows, as_tensor
from nearfield.models.embedding_model import EmbeddingModel
from nearfield.progress import reported

VERSION = 1  # of the layout of an entry
LARGEST = 2**30  # bytes of an entry in float32; a larger one is in float16
BATCH = 64


def activations_of(model: EmbeddingModel, images: Rows, data: str) -> Tensor:
    """Activations (N, C, h, w) of all images behind the frozen stages of `model`, in float32 or float16.

    `data` tells these images from all others. They are read from the cache, or computed and written to it.
    """
    path = cache_dir() / "activations" / f"{_key(model, data)}.npy"
    stored = _open(path, len(images))
    if stored is None:
        _build(path, model, images)
        stored = _open(path, len(images))
    if stored is None:
        raise RunError(f"the cache {path} cannot be read back. Free space, or set NEARFIELD_CACHE to another folder.")
    return torch.from_numpy(stored).permute(0, 3, 1, 2)  # channels last, as the network has them


def _key(model: EmbeddingModel, data: str) -> str:
    return digest_of(model.frozen, f"{VERSION} {data} {model.preprocessing}")


def digest_of(modules: Iterable[nn.Module], told: str) -> str:
    """A digest of what modules are and of their weights, and of what else is told."""
    digest = hashlib.sha256(told.encode())
    for module in modules:
        digest.update(repr(module).encode())
        for name, value in module.state_dict().items():
            raw = value.detach().cpu().contiguous().flatten().view(torch.uint8)  # NumPy does not know bfloat16
            digest.update(f"{name} {value.dtype}".encode() + raw.numpy().tobytes())
    return digest.hexdigest()[:32]


def _open(path: Path, rows: int) -> npt.NDArray[Any] | None:
    """The entry (N, h, w, C), or None if it does not exist or is damaged. Copy-on-write: the file does not change."""
    try:
        found = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return np.asarray(found) if found.ndim == 4 and len(found) == rows else None


@torch.no_grad()
def _build(path: Path, model: EmbeddingModel, images: Rows) -> None:
    device = next(model.parameters()).device

    def batch(start: int) -> npt.NDArray[np.float32]:
        found = model.activations(as_tensor(images[start : start + BATCH]).to(device))
        return found.permute(0, 2, 3, 1).float().cpu().numpy()

    first = batch(0)
    shape = (len(images), *first.shape[1:])
    dtype = np.float32 if 4 * np.prod(shape, dtype=np.int64) <= LARGEST else np.float16
    with (
        reported(f"Computing {len(model.frozen)} frozen stages, once") as report,
        atomic_write(path) as temporary,
    ):
        written = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        for start in range(0, len(images), BATCH):
            found = batch(start) if start else first
            if dtype == np.float16 and np.abs(found).max() > np.finfo(dtype).max:
                raise RunError(
                    "activations behind frozen_stages must be below 65504 to be kept in float16; found "
                    f"{np.abs(found).max():.3g}. Freeze another number of stages."
                )
            written[start : start + BATCH] = found
            report(min(start + BATCH, len(images)), len(images))
        written.flush()
