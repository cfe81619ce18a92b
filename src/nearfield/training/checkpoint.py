"""All that a run needs to resume, as one value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nearfield.samplers import BatchSampler
from nearfield.training.doctor import Doctor
from nearfield.training.run_folder import RunFolder, Saved
from nearfield.training.sharding import Split, gather_split, load_split, split_of

Weights = dict[str, Tensor]
COUNTS = ("step", "seconds", "best_score", "best_step", "best_val")


@dataclass
class Checkpoint:
    """The live parts of a run and how far it is; `save` and `restore` are to the bit."""

    modules: dict[str, nn.Module]  # "model", "loss" and, if weights are averaged, "average"
    optimizer: torch.optim.Optimizer
    sampler: BatchSampler
    scaler: torch.amp.GradScaler
    doctor: Doctor
    best: Weights  # those with the highest validation score so far
    step: int = 0
    seconds: float = 0.0  # of training, validation excluded
    best_score: float = -math.inf
    best_step: int = 0
    best_val: dict[str, float] = field(default_factory=dict)

    @property
    def split(self) -> Split:
        """What of all this is split over processes."""
        return split_of(self.modules, self.optimizer)

    def save(self, folder: RunFolder, sampler: dict[str, Any], writes: bool = True) -> None:
        """Write everything; `sampler` is the sampler's state after the last batch that was used, not fetched.

        All processes of a run call it, and the one that `writes` collects what is split over them.
        """
        if not writes and not self.split.weights:
            return
        state: dict[str, Any] = {"sampler": sampler}
        state |= {name: getattr(self, name).state_dict() for name in ("optimizer", "scaler", "doctor")}
        state |= {name: getattr(self, name) for name in COUNTS}
        weights = flat_weights(self.modules)
        gather_split(self.split, weights, state["optimizer"])
        if writes:
            folder.save(self.step, weights, self.best, state)

    def load(self, folder: RunFolder) -> bool:
        """Continue from the newest checkpoint, which the first process reads; False if there is none."""
        saved = load_split(self.split, folder.load)
        if saved is not None:
            self.restore(saved)
        return saved is not None

    def restore(self, saved: Saved) -> None:
        """Continue from what `save` wrote."""
        for prefix, module in self.modules.items():
            start = f"{prefix}."
            module.load_state_dict({n.removeprefix(start): v for n, v in saved.weights.items() if n.startswith(start)})
        self.best = saved.best
        for name in ("optimizer", "sampler", "scaler", "doctor"):
            getattr(self, name).load_state_dict(saved.state[name])
        for name in COUNTS:
            setattr(self, name, saved.state[name])


def flat_weights(modules: dict[str, nn.Module]) -> Weights:
    """The state of several modules in one dict, as `prefix.name`; a tensor that two of them share is copied."""
    found: Weights = {}
    seen: set[int] = set()
    for prefix, module in modules.items():
        for name, value in module.state_dict().items():
            known = value.data_ptr() in seen
            seen.add(value.data_ptr())
            found[f"{prefix}.{name}"] = _copy(value) if known else value.contiguous()
    return found


def copy_weights(model: nn.Module) -> Weights:
    """A copy of the model's state that later steps do not change."""
    return {name: _copy(value) for name, value in model.state_dict().items()}


def _copy(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format)  # the only one that safetensors writes
