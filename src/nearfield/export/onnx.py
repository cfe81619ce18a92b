"""Write a trained model as an ONNX file, and verify that ONNX Runtime computes the same.

    input      images      uint8 (batch, H, W) grey or (batch, H, W, 3) RGB, resized and cropped; float32 (batch, F)
                           for models that take features. Pixel values are normalised inside the graph.
    output     embedding   float32 (batch, D), as the `Embedder` gives it: of length 1 if it normalises

Axes: B images of a batch, D embedding dims.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from nearfield.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearfield.export.model import Embedder

OPSET = 20
TOLERANCE = 1e-4  # relative
BATCHES = (1, 2, 7)  # batch sizes at which the two are compared: the axis is dynamic


def write_onnx(model: Embedder, path: Path) -> None:
    """Write `model` as one ONNX file."""
    _need("onnx", "onnxscript")
    example = torch.from_numpy(random_batch(model, 2, np.random.default_rng(0)))
    was_training = model.training
    with _quiet():
        program: Any = torch.onnx.export(
            model.eval(),
            (example,),
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["embedding"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
        program.save(str(path), external_data=False)
    model.train(was_training)


def largest_difference(model: Embedder, path: Path, batches: Iterable[npt.NDArray[Any]]) -> float:
    """The largest |torch - ONNX Runtime| / |torch| over the embeddings of prepared batches."""
    _need("onnxruntime")
    runtime: Any = importlib.import_module("onnxruntime")
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base class
        raise InputError(f"{path} is not an ONNX file that ONNX Runtime can open: {error}") from error
    worst = 0.0
    for batch in batches:
        with torch.no_grad():
            ours = model(torch.from_numpy(batch)).double().numpy()  # (B, D)
        theirs = session.run(["embedding"], {"images": batch})[0].astype(np.float64)
        if ours.shape != theirs.shape or not np.isfinite(theirs).all():
            return float("inf")
        lengths = np.maximum(np.linalg.norm(ours, axis=1), 1e-12)
        worst = max(worst, float((np.linalg.norm(ours - theirs, axis=1) / lengths).max()))
    return worst


def random_batches(model: Embedder, seed: int = 0) -> list[npt.NDArray[Any]]:
    """Prepared batches of random input, of several sizes."""
    generator = np.random.default_rng(seed)
    return [random_batch(model, size, generator) for size in BATCHES]


def random_batch(model: Embedder, size: int, generator: np.random.Generator) -> npt.NDArray[Any]:
    """A prepared batch of random input."""
    shape = (size, *model.input.shape)
    if model.input.kind == "features":
        return generator.standard_normal(shape, dtype=np.float32)
    return generator.integers(0, 256, shape, dtype=np.uint8)


def _need(*modules: str) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise InputError(
                f'ONNX needs the package {module}, which is not installed: pip install "nearfield[onnx]".'
            ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's log and warnings about its internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
