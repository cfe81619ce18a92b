"""The model card of an exported folder, in Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nearfield.losses.registry import method


def model_card(description: Mapping[str, Any], taken: str, shape: Sequence[int], onnx_opset: int | None = None) -> str:
    """The card of the model that config.json describes; `taken` is its input in words.

    `shape` is the shape of one prepared input; `onnx_opset` the opset of model.onnx, if there is one.
    """
    made, dim = _escaped(description["training"]), description["model"]["dim"]
    description = {**description, "training": made}
    title = made["backbone"] if made["method"] == "none" else f"{made['method']}, {made['backbone']}"
    parts = [f"# {title}, {dim} dims", _what(description), "## Use", _use(description)]
    parts += ["## Input", _input(description, taken)]
    if onnx_opset is not None:
        parts += ["## ONNX", _onnx(description, shape, onnx_opset)]
    parts += [
        "## Test",
        _test(description),
        "## Training",
        _training(made, description.get("joined")),
        "## Limits",
        _limits(made),
    ]
    return "\n\n".join(parts) + "\n"


def _what(description: Mapping[str, Any]) -> str:
    members = f" of {description['members']} networks" if description["members"] else ""
    thing = "images" if description["pixels"] else "features of images"
    return (
        f"An embedding model{members}: it maps {thing} to vectors of {description['model']['dim']} numbers, so that "
        f"those of the same class are close by {description['distance']} distance."
    )


def _use(description: Mapping[str, Any]) -> str:
    dim, count = description["model"]["dim"], description["features"]
    length = ", of length 1" if description["distance"] == "cosine" else ""
    if description["pixels"]:
        call = f'vectors = model.embed(["a.jpg", "b.jpg"])  # (2, {dim}){length}; arrays and Pillow images work too'
    else:
        call = f"vectors = model.embed(features)  # (N, {dim}){length}, of features (N, {count})"
    return (
        f'```python\nimport nearfield as nf\n\nmodel = nf.load("path/to/this/folder")\n{call}\n```\n\n'
        "`nearfield embed path/to/this/folder DATA --part all -o vectors.npz` embeds a whole dataset."
    )


def _input(description: Mapping[str, Any], taken: str) -> str:
    pixels = description["pixels"]
    if pixels is None:
        return f"{taken[0].upper()}{taken[1:]}."
    order = "blue, green, red" if pixels["bgr"] else "red, green, blue" if len(pixels["mean"]) == 3 else "grey"
    return (
        f"{taken[0].upper()}{taken[1:]} (bilinear, antialiased). The network then computes "
        f"(pixel x {pixels['scale']:g} / 255 - mean) / std with mean {_numbers(pixels['mean'])} and std "
        f"{_numbers(pixels['std'])}, channels {order}."
    )


def _onnx(description: Mapping[str, Any], shape: Sequence[int], opset: int) -> str:
    kind = "uint8" if description["pixels"] else "float32"
    already = ", resized and cropped as above; the pixel values are computed inside" if description["pixels"] else ""
    length = ", of length 1" if description["distance"] == "cosine" else ""
    return (
        f"`model.onnx`, opset {opset}, any number of images at a time: input `images` {kind} "
        f"(batch, {', '.join(map(str, shape))}){already}; output `embedding` float32 "
        f"(batch, {description['model']['dim']}){length}."
    )


def _test(description: Mapping[str, Any]) -> str:
    made, scores = description["training"], description["test"]
    if not scores:
        return "Not tested."
    before = (made.get("start") or {}).get("test", {})
    rows = "\n".join(
        f"| {name} | {100 * value:.2f} | {f'{100 * before[name]:.2f}' if name in before else ''} |"
        for name, value in scores.items()
    )
    return (
        f"On the test part of {made['data']}, used neither for training nor for selection; ranked by "
        f"{description['distance']}, one seed.\n\n| metric | percent | before training |\n|---|---:|---:|\n{rows}"
    )


def _training(made: Mapping[str, Any], joined: str | None) -> str:
    start = made.get("pretrained")
    if made["method"] == "none":
        weights = f"weights of {start['source']} (sha256 {start['sha256']})" if start else "random weights"
        return f"None: {made['backbone']} as it is, {weights}."
    origin = f"weights of {start['source']} (sha256 {start['sha256']})" if start else "random weights"
    frozen = "; frozen: the head was trained on its features" if joined else ""
    facts = {
        "method": f"{made['method']}: {method(made['method']).source}",
        "backbone": f"{made['backbone']}, from {origin}{frozen}",
        "data": f"{made['data']}, fingerprint {made['fingerprint']}",
        "classes": f"{made.get('fit_classes')} for training, {made.get('val_classes')} for validation",
        "steps": f"{made.get('best_step')} of {made.get('steps')}, seed {made.get('seed')}",
        "made with": f"nearfield {made['nearfield']}, commit {made['commit']}, torch {made['torch']}",
        "run": made["run"],
    }
    lines = "\n".join(f"- {key}: {text}" for key, text in facts.items())
    fence = "`" * (1 + max([2, *(len(ticks) for ticks in re.findall("`+", made["config"]))]))  # longer than any inside
    again = "`nearfield train run.toml` trains it again, where run.toml is:"
    if made.get("classes") is not None:
        again = f"`nearfield fit {made['data']}` made it; the configuration of its last training:"
    return f"{lines}\n\n{again}\n\n{fence}toml\n{made['config']}{fence}"


def _escaped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Text that may come from file names: on one line, without HTML. The configuration is quoted, so it stays."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found[key] = _escaped(value)
        elif isinstance(value, str) and key != "config":
            found[key] = html.escape(" ".join(value.split()), quote=False)
        else:
            found[key] = value
    return found


def _limits(made: Mapping[str, Any]) -> str:
    purpose = "It was not trained on your images."
    if made["method"] != "none":
        purpose = f"It was trained to tell the classes of {made['data']} apart."
    return (
        f"- {purpose} Evaluate it before using it on other images: `nearfield eval`.\n"
        "- Its vectors can be compared with each other, but not with those of another model.\n"
        "- Close vectors mean similar classes. They do not prove that two images show the same object.\n"
        "- The scores are of one run. Whether its method is better than another needs a comparison: `nearfield bench`."
    )


def _numbers(values: Sequence[float]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)})"
