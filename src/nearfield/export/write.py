"""Write a trained model as a folder, complete or not at all."""

from __future__ import annotations

import shutil
from os import PathLike
from pathlib import Path

from nearfield.errors import InputError
from nearfield.export.description import WEIGHTS
from nearfield.export.join import choose_backbone, join
from nearfield.export.model import Embedder, load
from nearfield.export.model_card import model_card
from nearfield.export.onnx import OPSET, write_onnx
from nearfield.files import whole_folder, write_json, write_text
from nearfield.models.pretrained import sha256_of
from nearfield.training.checkpoint import copy_weights
from nearfield.training.run_folder import RunFolder, write_tensors


def export(
    run_folder: str | PathLike[str],
    out: str | PathLike[str],
    onnx: bool = False,
    *,
    backbone: str | None = None,
    weights: Path | None = None,
    size: int | None = None,
    resize: str | None = None,
) -> Path:
    """Write the trained model of a finished run as the folder `out`, complete or not at all; with `onnx`, as ONNX too.

    A head trained on features is joined with the backbone that computed them, if the features file records it, or
    `backbone` names it: then `weights` is its file of pretrained weights, and images are resized to `size` by `resize`
    ("crop" or "square"), as they were for the features. With `backbone` "none" the model takes features.
    """
    run, target = RunFolder(Path(run_folder)), Path(out)
    if run.result is None:
        raise InputError(f"{run.path} must be the folder of a finished run; found no result.json. Check the path.")
    require_free(target)
    model = load(run.path)
    below = choose_backbone(model.description, backbone, size, resize)
    if below is not None:
        model = join(model, below, weights)
    return write_folder(model, target, onnx, run.path / WEIGHTS if below is None else None)


def require_free(target: Path) -> Path:
    """`target`; InputError if something is there already."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists already; delete it or choose another folder.")
    return target


def write_folder(model: Embedder, target: Path, onnx: bool, weights: Path | None = None) -> Path:
    """Write `model` as a folder; its weights are copied from the file `weights`, if there is one."""
    with whole_folder(target, flush=True) as draft:
        if weights is not None:
            shutil.copyfile(weights, draft / WEIGHTS)
        else:
            write_tensors(copy_weights(model.net), draft / WEIGHTS)
        values = {**model.description.values(), "sha256": sha256_of(draft / WEIGHTS)}
        write_json(draft / "config.json", values)
        if onnx:
            write_onnx(model, draft / "model.onnx")
        card = model_card(values, model.input.words, model.input.shape, OPSET if onnx else None)
        write_text(draft / "README.md", card)
    return target
