"""Ways to train: a head on frozen features, the whole network, a small network from scratch.

Within an approach all methods have the same network, batches, optimizer and steps, and their published parameters.

Axes: N images, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nearfield import recipes
from nearfield.config import DataConfig, MethodConfig, ModelConfig, OptimizerConfig, RunConfig, SamplerConfig
from nearfield.data import Dataset, Pictures
from nearfield.data.dataset import fingerprint
from nearfield.fit.check import Checked
from nearfield.models.build import LITE0

METHODS = ("multi_similarity", "smooth_ap", "proxy_anchor")  # over pairs, over rankings, with proxies
SIDE = 32  # pixels of images for the small network
PER_CLASS = 4
VALIDATION = 0.2  # share of the training classes that choose the step of the final training


@dataclass(frozen=True)
class Approach:
    """A way to train any method."""

    name: str
    words: str
    run: RunConfig
    dataset: Dataset
    folds: int  # over which methods are compared; 1: the method is not compared again
    steps: tuple[int, int]  # fewest that are worth it, most that help
    share: float  # of the time left that it may take


def head(dataset: Dataset, features: npt.NDArray[np.float32], source: Path, folds: int, threads: int) -> Approach:
    """A linear head of 128 dims on frozen features (N, F), initialised by their principal components."""
    content = fingerprint(features, dataset.labels, dataset.train_classes, dataset.test_classes)
    base = RunConfig(
        data=DataConfig(name=str(source), val_fraction=VALIDATION),
        model=ModelConfig(backbone="features", norm="layer", init="pca", dim=min(128, features.shape[1])),
        sampler=_sampler(dataset, folds, classes=40),
        optimizer=OptimizerConfig(lr=5e-4, weight_decay=1e-4),
        ks=(1,),
        threads=threads,
    )
    own = replace(dataset, images=features, fingerprint=content)
    return Approach("head", f"a head on frozen {LITE0} features", base, own, folds, (20, 150), 0.4)


def whole_network(dataset: Dataset, threads: int) -> Approach:
    """The pretrained network, trained end to end at 128 pixels."""
    base = recipes.recipe("cub_lite0_128px")
    assert isinstance(base, RunConfig)
    changes: dict[str, Any] = {
        "data": DataConfig(name=_absolute(dataset), val_fraction=VALIDATION, augment="px128"),
        "sampler": _sampler(dataset, 1, classes=12),
        "ks": (1,),
        "threads": threads,
    }
    run = base.model_copy(update=changes)
    return Approach("network", f"the whole {LITE0}, end to end", run, dataset, 1, (60, 400), 0.9)


def small_network(dataset: Dataset, checked: Checked, folds: int, threads: int) -> Approach:
    """Four convolutions from scratch, on images of 32 pixels; arrays keep their size."""
    if isinstance(dataset.images, Pictures):
        images = dataset.images.at(SIDE, "square", colour=checked.colour)[:]
        content = fingerprint(images, dataset.labels, dataset.train_classes, dataset.test_classes)
        dataset = replace(dataset, images=images, fingerprint=content)
    channels: Literal[1, 3] = 3 if np.asarray(dataset.images[0]).ndim == 3 else 1
    base = RunConfig(
        data=DataConfig(name=_absolute(dataset), val_fraction=VALIDATION),
        model=ModelConfig(backbone="conv", channels=channels),
        sampler=_sampler(dataset, folds, classes=32),
        ks=(1,),
        threads=threads,
    )
    return Approach("small", "a small network from scratch", base, dataset, folds, (50, 1500), 0.9)


def with_method(approach: Approach, method: str, steps: int, fold: int | None = None) -> RunConfig:
    """The run of a method on one of the folds, or, without `fold`, the final one."""
    data = approach.run.data
    if fold is not None:
        data = data.model_copy(update={"folds": approach.folds, "fold": fold})
    optimizer = approach.run.optimizer.model_copy(update={"warmup_steps": min(20, steps // 5)})
    return approach.run.model_copy(
        update={
            "method": MethodConfig(name=method),
            "data": data,
            "optimizer": optimizer,
            "steps": steps,
            "eval_every": max(1, -(-steps // 5)),
        }
    )


def _sampler(dataset: Dataset, folds: int, classes: int) -> SamplerConfig:
    """Batches of PER_CLASS images of as many classes as every fold has."""
    known = len(dataset.train_classes)
    held = max(-(-known // folds) if folds > 1 else 0, round(VALIDATION * known), 2)
    return SamplerConfig(
        name="m_per_class", batch_size=PER_CLASS * max(2, min(classes, known - held)), per_class=PER_CLASS
    )


def _absolute(dataset: Dataset) -> str:
    return str(Path(dataset.name).resolve()) if Path(dataset.name).exists() else dataset.name
