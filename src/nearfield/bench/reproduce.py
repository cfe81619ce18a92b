"""What the papers' tables need, whether they could start, and how long they would take here.

Each entry is a bench, run as an ablation's are.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from nearfield import data
from nearfield.bench.fit import check_batch
from nearfield.bench.job import bench_data
from nearfield.bench.protocols import protocol
from nearfield.config import DataConfig, ModelConfig, RunConfig
from nearfield.data import Dataset
from nearfield.data.augment import AUGMENTATIONS
from nearfield.data.official import KINDS
from nearfield.errors import InputError
from nearfield.models import build_model
from nearfield.recipes.tables import Entry, Table
from nearfield.training.batches import split
from nearfield.training.build import build_loss, check_method

IMAGES = 2  # that are timed at once
TIMES = 3  # that a light network is timed; the best counts
CLASSES = 100  # for which a loss is built where the data are not here
FEATURES = "cub_lite0"  # the data of the small recipe cub_lite0_features
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
    if name == FEATURES:
        embed = "nearfield embed efficientnet_lite0 cub --part all --size 224 -o cub_lite0.npz"
        return f"with CUB-200-2011 added as cub, run `{embed}` and `nearfield data add {name} cub_lite0.npz`"
    return f"see `nearfield data list`; `nearfield data add {name} PATH`"


def checked(table: Table) -> dict[str, str]:
    """By label: what of each entry was built or checked without training anything; InputError names what cannot work.

    Always the configuration, the protocol, the network (with random weights) and the loss; where the data are here,
    also their kind of test part and the batches that every fold can draw.
    """
    opened: dict[DataConfig, Dataset] = {}
    known, found, problems = data.names(), {}, []
    for entry in table.entries:
        run = entry.run
        try:
            if run.data.name in known and run.data not in opened:
                opened[run.data] = bench_data(run.data)
            found[entry.label] = _check(entry, opened.get(run.data))
        except InputError as error:
            problems.append(f"{entry.label}: {error}")
    if problems:
        raise InputError(f"{table.name} cannot run:\n  " + "\n  ".join(problems))
    return found


def _check(entry: Entry, dataset: Dataset | None) -> str:
    run, rules = entry.run, protocol(entry.bench.protocol)
    check_method(run)
    classes = CLASSES
    if dataset is not None:
        rules.check(dataset)
        check_batch(entry.bench, rules, dataset)
        classes = split(dataset, rules.runs(run)[0].data).fit_classes
    build_loss(run, classes, tried_network(run.model, _side(run), run.threads).features)
    return "network, loss" + (", data, batches" if dataset is not None else "")


def networks(entry: Entry) -> int:
    """How many networks an entry trains, in trials and in repetitions."""
    trials = entry.bench.trials if entry.bench.trials > 1 else 0
    rules = protocol(entry.bench.protocol)
    return trials * rules.trial_folds + len(entry.bench.seeds) * rules.folds


def training_seconds(entry: Entry, jobs: int) -> float:
    """Seconds that training an entry would take here, from the network's speed on a few random images; no data needed.

    Reading, augmenting and scoring images is not in it.
    """
    run = entry.run
    per_image = tried_network(run.model, _side(run), run.threads).seconds
    images = run.sampler.batch_size * run.accumulate * run.steps
    return per_image * images * networks(entry) / max(1, jobs)


def _side(run: RunConfig) -> int:
    return run.data.size or SIDE if run.data.augment is None else AUGMENTATIONS[run.data.augment].side


class Tried(NamedTuple):
    """What is known of a network once it was built and run on a few images."""

    features: int  # that its head, or a loss that has the head, takes
    seconds: float  # of a forward and a backward pass, for one image


@lru_cache(maxsize=64)
def tried_network(model: ModelConfig, side: int, threads: int) -> Tried:
    """Build a network and time it; random weights take as long as pretrained ones."""
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
    for _ in range(TIMES if size > IMAGES else 1):
        begun = time.perf_counter()
        net(batch).square().sum().backward()
        best = min(best, time.perf_counter() - begun)
    return Tried(net.num_features, best / size)
