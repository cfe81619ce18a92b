"""What the papers' tables need, and how long they would take here; each entry is a bench, run as an ablation's are."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from nearfield import data
from nearfield.bench.protocols import protocol
from nearfield.config import ModelConfig, RunConfig
from nearfield.data.augment import AUGMENTATIONS
from nearfield.data.official import KINDS
from nearfield.models import build_model
from nearfield.recipes.tables import Entry, Table

IMAGES = 4  # that are timed at once
SIDE = 28  # pixels of images that are not augmented: those of the built-in data


class Need(NamedTuple):
    """Data or weights that a table cannot do without."""

    name: str
    here: bool
    remedy: str


def needs(table: Table) -> list[Need]:
    """What a table needs, and whether it is here; nothing is loaded."""
    known = data.names()
    found = [Need(name, name in known, _get_data(name)) for name in table.datasets]
    for name in table.weights:
        how = f"get {name} from its publisher and run in its folder, or give its path with --set run.model.weights=PATH"
        found.append(Need(name, Path(name).expanduser().is_file(), how))
    return found


def _get_data(name: str) -> str:
    if name in KINDS:
        return f"get it from {KINDS[name].address} and run `nearfield data add {name} PATH`"
    return f"see `nearfield data list`; `nearfield data add {name} PATH`"


def networks(entry: Entry) -> int:
    """How many networks an entry trains, in trials and in repetitions."""
    trials = entry.bench.trials if entry.bench.trials > 1 else 0
    return (trials + len(entry.bench.seeds)) * protocol(entry.bench.protocol).folds


def training_seconds(entry: Entry, jobs: int) -> float:
    """Seconds that training an entry would take here, from the network's speed on a few random images; no data needed.

    Reading, augmenting and scoring images is not in it.
    """
    run = entry.run
    per_image = image_seconds(run.model, _side(run), run.threads)
    return per_image * run.sampler.batch_size * run.steps * networks(entry) / max(1, jobs)


def _side(run: RunConfig) -> int:
    return SIDE if run.data.augment is None else AUGMENTATIONS[run.data.augment].side


@lru_cache(maxsize=32)
def image_seconds(model: ModelConfig, side: int, threads: int) -> float:
    """Seconds of a forward and a backward pass for one image; random weights take as long as pretrained ones."""
    torch.set_num_threads(threads)
    bare = model.model_copy(update={"weights": None, "init": "default"})
    features = torch.randn(64, 1280) if model.backbone == "features" else None
    if model.backbone in ("features", "conv"):
        size = 64  # light networks: more images for a steady clock
        batch = features if features is not None else torch.randint(0, 255, (size, side, side), dtype=torch.uint8)
    else:
        size, batch = IMAGES, torch.randint(0, 255, (IMAGES, side, side, 3), dtype=torch.uint8)
    net = build_model(bare, 0, features)
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        net(batch).square().sum().backward()
        best = min(best, time.perf_counter() - begun)
    return best / size
