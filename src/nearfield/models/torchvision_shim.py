"""torchvision that imports beside any build of torch.

PyPI's torchvision is compiled for one build of torch. Beside another one (a CPU-only torch, for example) its compiled
operators do not load, and `import torchvision`, and so `import timm`, ends with "operator torchvision::nms does not
exist". Nothing here uses those operators, but their names must exist: they are declared, only if the library failed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def torchvision() -> ModuleType:
    """The module torchvision; call it before `import timm` or any `import torchvision.…` too."""
    if "torchvision" not in sys.modules and not _operators_load():
        _declare_operators()
    return importlib.import_module("torchvision")


def _operators_load() -> bool:
    """Whether torchvision's compiled library fits this torch; torchvision loads it the same way, quietly."""
    found = importlib.util.find_spec("torchvision")
    folders = found.submodule_search_locations if found is not None else None
    for library in sorted(Path(folders[0]).glob("_C*.*")) if folders else []:
        try:
            torch.ops.load_library(library)
        except (ImportError, OSError):
            continue
        return True
    return False


@cache  # an operator lives as long as the library object that declared it
def _declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    return library
