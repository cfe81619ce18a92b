"""Writing a trained model as a folder, whole or not at all."""

from __future__ import annotations

import shutil
from os import PathLike
from pathlib import Path

from nearfield.errors import InputError
from nearfield.export.description import WEIGHTS
from nearfield.export.model import load
from nearfield.export.model_card import model_card
from nearfield.export.onnx import OPSET, write_onnx
from nearfield.files import whole_folder, write_json, write_text
from nearfield.training.run_folder import RunFolder


def export(run_folder: str | PathLike[str], out: str | PathLike[str], onnx: bool = False) -> Path:
    """Write the trained model of a finished run as the folder `out`, whole or not at all; with `onnx`, as ONNX too."""
    run, target = RunFolder(Path(run_folder)), Path(out)
    if run.result is None:
        raise InputError(f"{run.path} must be the folder of a finished run; found no result.json in it.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists already; delete it or choose another folder.")
    model = load(run.path)
    with whole_folder(target, flush=True) as draft:
        shutil.copyfile(run.path / WEIGHTS, draft / WEIGHTS)
        write_json(draft / "config.json", model.description.model_dump(mode="json"))
        opset = None
        if onnx:
            write_onnx(model, draft / "model.onnx")
            opset = OPSET
        values = model.description.model_dump(mode="json")
        write_text(draft / "README.md", model_card(values, model.input.words, model.input.shape, opset))
    return target
