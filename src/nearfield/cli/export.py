"""What `nearfield export` does: read the arguments, call `nearfield.export`, print."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from nearfield.config import RunConfig, load_config
from nearfield.errors import InputError
from nearfield.export import Embedder, load
from nearfield.export import export as write
from nearfield.export.embed_dataset import as_trained
from nearfield.export.onnx import TOLERANCE, largest_difference, random_batches
from nearfield.training.batches import open_data

console = Console(highlight=False)
REAL = 16  # test images that both sides embed


def export(arguments: argparse.Namespace) -> int:
    """Write the model folder; with --verify, compare ONNX Runtime with torch."""
    if arguments.verify and not arguments.onnx:
        raise InputError("--verify compares the ONNX file with torch; give --onnx too.")
    out = write(arguments.trained, arguments.out, onnx=arguments.onnx)
    model = load(out)
    found: dict[str, Any] = {"out": str(out), "dim": model.dim, "input": model.input.words, "onnx": arguments.onnx}
    if arguments.verify:
        found["difference"] = _differences(model, arguments)
    worst = max(found.get("difference", {}).values(), default=0.0)
    if arguments.json:
        console.print_json(json.dumps(found))
    else:
        console.print(f"Model: {out}, {model.dim} dims", soft_wrap=True, markup=False)
        for kind, value in found.get("difference", {}).items():
            verdict = "the same" if value <= TOLERANCE else f"above {TOLERANCE:g}"
            text = f"ONNX Runtime and torch on {kind}: largest relative difference {value:.1e}, {verdict}"
            console.print(text, soft_wrap=True)
    return 0 if worst <= TOLERANCE else 1


def _differences(model: Embedder, arguments: argparse.Namespace) -> dict[str, float]:
    path = arguments.out / "model.onnx"
    differences = {"noise": largest_difference(model, path, random_batches(model))}
    try:
        real = _real_batch(model, arguments)
    except InputError as error:  # a model can be exported where its data are not
        Console(stderr=True).print(f"not compared on real images: {error}", soft_wrap=True, markup=False)
        return differences
    return {**differences, "test images": largest_difference(model, path, [real])}


def _real_batch(model: Embedder, arguments: argparse.Namespace) -> npt.NDArray[Any]:
    """Some test images of the run, prepared; InputError if its data are not here."""
    config = load_config(RunConfig, arguments.trained / "config.toml")
    dataset = as_trained(open_data(config.data), model)
    return np.asarray(dataset.images[dataset.test_rows()[:REAL]])
