"""Nearfield: deep metric learning on a level field.

    import nearfield as nf
    loss = nf.losses.create("multi_similarity")
    value = loss(embeddings, labels)
    nf.retrieval_metrics(embeddings, labels)

Names are imported when they are first used, so that `import nearfield` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nearfield._version import __version__

if TYPE_CHECKING:
    from nearfield import data, losses, metrics, models, pairs, samplers
    from nearfield.config import BenchConfig, OptimizerConfig, RunConfig
    from nearfield.errors import InputError, NearfieldError, RunError
    from nearfield.export import load
    from nearfield.index import Index
    from nearfield.losses.memory import CrossBatchMemory
    from nearfield.metrics import retrieval_metrics
    from nearfield.pairs import mining, pair_weights
    from nearfield.training.loop import train
    from nearfield.training.optimizers import param_groups

_MODULES = {
    "data": "data",
    "losses": "losses",
    "metrics": "metrics",
    "mining": "pairs.mining",
    "models": "models",
    "pairs": "pairs",
    "samplers": "samplers",
}
_NAMES = {
    "BenchConfig": "config",
    "CrossBatchMemory": "losses.memory",
    "Index": "index",
    "InputError": "errors",
    "NearfieldError": "errors",
    "OptimizerConfig": "config",
    "RunConfig": "config",
    "RunError": "errors",
    "load": "export",
    "pair_weights": "pairs",
    "param_groups": "training.optimizers",
    "retrieval_metrics": "metrics",
    "train": "training.loop",
}

__all__ = [  # noqa: RUF022 - modules, then names
    "data", "losses", "metrics", "mining", "models", "pairs", "samplers",
    "BenchConfig", "CrossBatchMemory", "Index", "InputError", "NearfieldError", "OptimizerConfig", "RunConfig",
    "RunError", "load", "pair_weights", "param_groups", "retrieval_metrics", "train", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"nearfield.{_MODULES[name]}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"nearfield.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'nearfield' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
