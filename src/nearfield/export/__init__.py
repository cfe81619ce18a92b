"""A trained model that stands alone: `export` a run as a folder, `load` the folder or the run.

config.json          what the model is, what it takes as input, how it was trained: a `Description`
model.safetensors    its weights
README.md            its model card
model.onnx           optional; see `nearfield.export.onnx`
"""

from __future__ import annotations

from nearfield.export.description import Description
from nearfield.export.model import Embedder, load
from nearfield.export.write import export

__all__ = ["Description", "Embedder", "export", "load"]
