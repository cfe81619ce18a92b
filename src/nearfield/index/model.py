"""The model that is stored with an index: a folder that `nearfield.load` reads, or its ONNX file.

    MODEL   an exported folder or the folder of a finished run; model.onnx of an exported folder, which ONNX Runtime
            runs; or a backbone with pretrained weights: efficientnet_lite0, timm:NAME

Its digest is that of weights and input, the same through torch and through ONNX. Vectors have length 1 and are compared
by cosine; `dims` keeps the first of them (for models whose prefixes are embeddings too).

Axes: N images, B images of a batch, D dims.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfield.data.input_spec import PictureInput
from nearfield.data.pictures import digest_of
from nearfield.errors import InputError, missing_package
from nearfield.export import load
from nearfield.export.description import WEIGHTS, Description, read_description
from nearfield.export.untrained import untrained
from nearfield.files import whole_folder, write_json
from nearfield.models.embed_images import as_tensor
from nearfield.training.checkpoint import copy_weights
from nearfield.training.run_folder import write_tensors

ONNX = "model.onnx"
SIZE = 224  # pixels of images for a backbone by name
BATCH = 32
Floats = npt.NDArray[np.float32]
Forward = Callable[[npt.NDArray[np.uint8]], npt.NDArray[Any]]  # prepared images (B, H, W[, 3]) to (B, D)


class IndexModel:
    """A model that embeds images for an index."""

    def __init__(self, description: Description, forward: Forward, write: Callable[[Path], None], dims: int | None):
        if not isinstance(description.input, PictureInput):
            raise InputError(
                f"an index needs a model that takes images; this one takes {description.input.words}. Export it joined "
                "with its backbone: nearfield export RUN --backbone NAME."
            )
        full = description.model.dim
        if dims is not None and not 1 <= dims <= full:
            raise InputError(f"dims must be in 1..{full}, the dims of the model; got {dims}.")
        self.description, self.input = description, description.input
        self.full, self.dim = full, dims or full
        self._forward, self._write = forward, write

    @property
    def digest(self) -> str:
        """The sha256 of weights, input and dims: vectors of equal digests can be compared."""
        facts = [self.description.sha256, self.input.model_dump(mode="json"), self.dim]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def embed(self, images: Any) -> Floats:
        """Vectors (N, D) of images: paths, Pillow images or uint8 arrays (H, W) or (H, W, 3)."""
        items = self.input.items(images)
        return self.embed_prepared([self.input.picture(item) for item in items])

    def embed_prepared(self, images: list[npt.NDArray[np.uint8]]) -> Floats:
        """Vectors (N, D) of prepared images."""
        parts = [self._forward(np.stack(images[start : start + BATCH])) for start in range(0, len(images), BATCH)]
        return self.cut(np.concatenate(parts)) if parts else np.zeros((0, self.dim), np.float32)

    def cut(self, vectors: npt.NDArray[Any]) -> Floats:
        """The first D dims of vectors (N, D or more), scaled to length 1; zeros stay zeros."""
        if vectors.ndim != 2 or vectors.shape[1] not in (self.dim, self.full):
            raise InputError(f"vectors must be (N, {self.dim}), of this index's model; got {vectors.shape}.")
        if not np.isfinite(vectors).all():
            raise InputError("vectors must be finite; found a NaN or an infinity.")
        kept = vectors[:, : self.dim].astype(np.float64)
        unit = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12)
        return np.asarray(unit, np.float32)

    def save(self, folder: Path) -> None:
        """Store the model as a folder, complete or not at all."""
        with whole_folder(folder, flush=True) as draft:
            write_json(draft / "config.json", self.description.values())
            self._write(draft)


def open_model(spec: str | Path, dims: int | None = None, weights: Path | None = None, size: int = SIZE) -> IndexModel:
    """The model that `spec` names; `weights` and `size` are for a backbone by name."""
    path = Path(spec)
    if path.suffix == ".onnx":
        return _of_onnx(path, dims)
    if path.is_dir() and not (path / WEIGHTS).is_file() and (path / ONNX).is_file():
        return _of_onnx(path / ONNX, dims)
    if path.is_dir():
        if weights is not None:
            raise InputError(f"weights are for a backbone by name, but the model {spec} has its own. Leave them out.")
        model = load(path, normalize=True)
        write = lambda draft: _copy(path / WEIGHTS, draft / WEIGHTS)  # noqa: E731
    else:
        model = untrained(str(spec), weights, size)
        write = lambda draft: write_tensors(copy_weights(model.net), draft / WEIGHTS)  # noqa: E731

    def forward(images: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        import torch

        with torch.inference_mode():
            return np.asarray(model(as_tensor(images)).float().cpu().numpy())

    return IndexModel(model.description, forward, write, dims)


def _of_onnx(path: Path, dims: int | None) -> IndexModel:
    try:
        runtime: Any = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise missing_package(f"the model {path}", "onnxruntime", "onnx") from error
    description = read_description(path.parent / "config.json")
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base class
        raise InputError(f"{path} is not an ONNX file that ONNX Runtime can open: {error}") from error
    forward = lambda images: session.run(["embedding"], {"images": images})[0]  # noqa: E731
    return IndexModel(description, forward, lambda draft: _copy(path, draft / ONNX), dims)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    if not np.array_equal(digest_of(source.read_bytes()), digest_of(target.read_bytes())):
        raise InputError(f"{source} changed while it was copied. Run the command again.")
