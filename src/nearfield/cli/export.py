"""`nearfield export`: write a trained model as a folder that stands alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, whole
from nearfield.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from nearfield.export import Embedder

REAL = 16  # test images that both sides embed
DETAILS = """
The folder holds the weights, the configuration of the network and its input, and a model card. `nearfield.load` opens
it in Python, `nearfield embed` embeds with it; with --onnx, ONNX Runtime runs it without torch.
"""
EXAMPLES = """
nearfield export runs/train -o birds
nearfield export runs/train -o birds --onnx --verify
nearfield export runs/head -o birds --backbone efficientnet_lite0 --size 224
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "write a trained model as a folder: weights, model card, ONNX"
    parser = add_command(commands, "export", export, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("trained", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder to write")
    backbone = "join a head trained on features with the backbone that computed them, so that the model takes images"
    recorded = "(default: the one that the features file records; none: do not join)"
    parser.add_argument("--backbone", metavar="NAME", help=f"{backbone} {recorded}")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="pretrained weights of that backbone")
    parser.add_argument("--size", type=whole(1), metavar="PIXELS", help="side length of the images it saw")
    parser.add_argument("--resize", choices=("crop", "square"), help="how they were resized (default: crop)")
    parser.add_argument("--onnx", action="store_true", help="write model.onnx too")
    parser.add_argument("--verify", action="store_true", help="compare ONNX Runtime with torch; exit 1 if they differ")
    add_json(parser, "what was written")


def export(arguments: argparse.Namespace) -> int:
    """Write the model folder; with --verify, compare ONNX Runtime with torch."""
    from nearfield.export import export as write
    from nearfield.export import load
    from nearfield.export.onnx import TOLERANCE

    if arguments.verify and not arguments.onnx:
        raise InputError("--verify compares the ONNX file with torch; give --onnx too.")
    given = {key: getattr(arguments, key) for key in ("onnx", "backbone", "weights", "size", "resize")}
    out = write(arguments.trained, arguments.out, **given)
    model = load(out)
    found: dict[str, Any] = {"out": str(out), "dim": model.dim, "input": model.input.words, "onnx": arguments.onnx}
    differences = _differences(model, arguments) if arguments.verify else {}
    if arguments.json:
        show.say_json({**found, "difference": differences} if arguments.verify else found)
    else:
        show.say(f"Model: {out}, {model.dim} dimensions")
        for kind, value in differences.items():
            verdict = "equal" if value <= TOLERANCE else f"above {TOLERANCE:g}"
            show.say(f"ONNX Runtime and torch on {kind}: largest relative difference {value:.1e}, {verdict}")
    return 0 if max(differences.values(), default=0.0) <= TOLERANCE else 1


def _differences(model: Embedder, arguments: argparse.Namespace) -> dict[str, float]:
    from nearfield.export.onnx import largest_difference, random_batches

    path = arguments.out / "model.onnx"
    differences = {"noise": largest_difference(model, path, random_batches(model))}
    try:
        real = _real_batch(model, arguments)
    except InputError as error:  # a model can be exported where its data are not
        show.note(f"not compared on real images: {error}")
        return differences
    return {**differences, "test images": largest_difference(model, path, [real])}


def _real_batch(model: Embedder, arguments: argparse.Namespace) -> npt.NDArray[Any]:
    """Some test images of the run, prepared; InputError if its data are not here."""
    import numpy as np

    from nearfield.config import RunConfig, load_config
    from nearfield.export.embed_dataset import as_trained
    from nearfield.training.batches import open_data

    config = load_config(RunConfig, arguments.trained / "config.toml")
    dataset = as_trained(open_data(config.data), model)
    if dataset.are_features != (model.input.kind == "features"):
        raise InputError(f"the data are features, and the model takes {model.input.words}.")
    return np.asarray(dataset.images[dataset.test_rows()[:REAL]])
