"""Ablations of the papers: one question, one axis, everything else equal. Each value of the axis is an ordinary bench.

An ablation is a typed value of `ABLATIONS`: what is asked, what the papers found, which keys of a run's configuration
take which values. `run_ablation` runs a bench for each value in a folder of its own, so that it can be interrupted and
resumed; `analysis.ablations` reads what came out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfield import recipes
from nearfield.bench.search import apply, scaled
from nearfield.config import BenchConfig, MethodConfig, RunConfig, build_config, merge
from nearfield.data.builtin.features import FEATURES
from nearfield.errors import InputError, nearest
from nearfield.recipes import comparisons
from nearfield.recipes.facts import BN_INCEPTION, RESNET50
from nearfield.recipes.tables.drml import imagenet
from nearfield.recipes.tables.fastap import fastap
from nearfield.recipes.tables.multi_similarity import ms
from nearfield.recipes.tables.table import protocol_of

if TYPE_CHECKING:
    from nearfield.bench.engine import Engine
    from nearfield.bench.results import BenchResults
    from nearfield.bench.run import Watched

Settings = dict[str, Any]  # dotted keys of a run's configuration
UNBIASED = "Unbiased Evaluation of Deep Metric Learning Algorithms (2019)"
FASTAP = "Deep Metric Learning to Rank (FastAP, 2019)"
MULTI_SIMILARITY = "Multi-Similarity Loss with General Pair Weighting (2019)"
SOFTMAX = MethodConfig(name="proxy_softmax", params={"temperature": 0.1})
PAIR_LOSSES: dict[str, Settings] = {
    "binomial": {"name": "binomial"},
    "lifted_star": {"name": "lifted_star"},
    "MS mining": {"name": "multi_similarity", "params": {"weight": False}},
    "bin_lifted": {"name": "bin_lifted"},
    "MS weighting": {"name": "multi_similarity", "params": {"mine": False}},
    "binomial + mining": {"name": "binomial", "params": {"miner": "multi_similarity"}},
    "lifted_star + mining": {"name": "lifted_star", "params": {"miner": "multi_similarity"}},
    "MS": {"name": "multi_similarity"},
}
SAMPLERS: dict[str, Settings] = {
    "random": {"sampler.name": "fastap", "sampler.repeats": None, "sampler.unlabelled": None},
    "category-hard": {"sampler.name": "fastap_hard"},
}
RECIPES = {"glyphs": "glyphs_conv", "omniglot": "omniglot_conv4"} | dict.fromkeys(FEATURES, "cub_lite0_features")
Runs = Mapping[str, Callable[[], RunConfig]]  # by data
BY_FASTAP: Runs = {data: partial(fastap, data, "timm:resnet18") for data in ("sop", "inshop", "vehicleid")}
BY_MS: Runs = {data: partial(ms, data, 512) for data in ("cub", "cars196", "sop", "inshop")}
BY_MS_64: Runs = {data: partial(ms, data, 64) for data in BY_MS}
OFFICIAL: Runs = {"imagenet": partial(imagenet, "PA"), **BY_MS, **BY_FASTAP}


@dataclass(frozen=True)
class Paper:
    """What a paper found, paraphrased; its numbers (percent, R@1) where it prints some: curve -> value -> number."""

    where: str
    found: str
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ablation:
    """A question and the benches that answer it.

    `settings` are what a value of the axis means for a run. Without `methods` the axis itself is the method.
    """

    name: str
    question: str
    axis: str
    values: tuple[str, ...]
    settings: Callable[[str, RunConfig], Settings]
    papers: tuple[Paper, ...]
    methods: tuple[MethodConfig, ...] = ()
    ordered: bool = True  # numbers, each about twice the one before
    base: Settings = field(default_factory=dict)  # besides the recipe of the data, unless it is the paper's
    recipes: Runs = field(default_factory=dict)  # of its own papers, for official data; else those of OFFICIAL
    official: tuple[str, ...] = ()  # values on official data, where they differ
    note: str = ""
    ranks: bool = False  # whether the question is about the order of the methods

    def config(
        self, data: str, methods: Sequence[str] = (), seeds: int | None = None, overrides: Sequence[str] = ()
    ) -> BenchConfig:
        """The bench that every value of the axis changes: the data's recipe, the base, the arguments, `a.b=value`.

        On official data the recipe is the paper's, with its network, images, batches, optimiser and protocol, and
        nothing is added to it.
        """
        if methods and not self.methods:
            raise InputError(f"{self.name} varies the method itself: leave --methods out; got {' '.join(methods)}.")
        papers = {**OFFICIAL, **self.recipes}
        if data in papers:
            run = papers[data]()
        else:
            run = recipes.recipe(RECIPES[data]) if data in RECIPES else RunConfig()
            run = apply(run, {**self.base, "data.name": data})
        chosen = [MethodConfig(name=name) for name in methods] or self.methods or [MethodConfig()]
        values = {
            "methods": [each.model_dump() for each in chosen],
            "seeds": list(range(3 if seeds is None else seeds)),
            "protocol": protocol_of(data),
        }
        return build_config(BenchConfig, merge({**values, "run": run.model_dump(mode="json")}, overrides))

    def benches(self, config: BenchConfig, values: Sequence[str] = ()) -> dict[str, BenchConfig]:
        """A bench for each value of the axis."""
        own = self.official if config.run.data.name in OFFICIAL and self.official else self.values
        return {value: self._bench(config, value) for value in values or own}

    def _bench(self, config: BenchConfig, value: str) -> BenchConfig:
        methods = config.methods if self.methods else (MethodConfig(),)
        runs = [apply(config.run.model_copy(update={"method": m}), self.settings(value, config.run)) for m in methods]
        shared = runs[0].model_copy(update={"method": config.run.method})
        return config.model_copy(update={"run": shared, "methods": tuple(run.method for run in runs)})


def run_ablation(
    benches: Mapping[str, BenchConfig], folder: Path, engine: Engine, watch: Callable[[str, Watched], None]
) -> Iterator[dict[str, BenchResults]]:
    """Run the bench of every value, or resume those that are not finished; after each, what was found so far."""
    from nearfield.bench.run import run_bench

    found: dict[str, BenchResults] = {}
    for value, bench in benches.items():
        found[value] = run_bench(bench, folder / folder_name(value), engine, partial(watch, value))
        yield found


def folder_name(value: str) -> str:
    """A value of the axis as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", value).strip("-")


# ---------------------------------------------------------------------------------------------------------------
# What the values of each axis mean


def number(value: str, axis: str) -> int:
    """A value of an axis of whole numbers."""
    if not value.isdigit() or int(value) < 1:
        raise InputError(f"{axis} must be whole numbers of at least 1; got {value!r}.")
    return int(value)


def _one_of(value: str, axis: str, known: Mapping[str, Any]) -> Any:
    if value not in known:
        raise InputError(f"unknown value {value!r} of {axis}; {nearest(value, known)}")
    return known[value]


def _budget(value: str, run: RunConfig) -> Settings:
    """So many steps, looked at as often as `run` is, with its schedule."""
    return scaled(run, number(value, "budget") / run.steps)


def _batch_size(value: str, run: RunConfig) -> Settings:
    """As many images as `run` sees, in other batches; between two evaluations and in the schedule of the rates too."""
    size = number(value, "batch-size")
    return _batches(size, run) | scaled(run, run.sampler.batch_size / size)


def _batch_size_alone(value: str, run: RunConfig) -> Settings:
    """As many steps as `run` makes, with other batches."""
    return _batches(number(value, "batch-size-equal-steps"), run)


def _batches(size: int, run: RunConfig) -> Settings:
    return {"sampler.batch_size": size, "chunk": min(size, run.chunk or size)}


def _backbone(value: str, run: RunConfig) -> Settings:
    """NAME, NAME=FILE with pretrained weights, or features=DATA for frozen features from anywhere, a dataset."""
    name, _, source = value.partition("=")
    if name == "features" and source:
        return {"model.backbone": name, "data.name": source, "model.weights": None}
    return {"model.backbone": name, "model.weights": source or None}


def _by_name(items: Sequence[Ablation]) -> dict[str, Ablation]:
    return {item.name: item for item in items}


def _column(values: Sequence[float], at: Sequence[int]) -> dict[str, float]:
    return {str(place): value for place, value in zip(at, values, strict=True)}


MANY_METHODS = (
    *(MethodConfig(name=name) for name in ("contrastive", "triplet", "margin", "multi_similarity", "fastap")),
    *(MethodConfig(name=name) for name in ("proxy_anchor", "arcface")),
    SOFTMAX,
)
EVEN_BATCHES: Settings = {"sampler.name": "m_per_class"}  # the same for every method
CHUNKED: Settings = {**EVEN_BATCHES, "chunk": 32, "model.freeze_bn": True, "model.norm": "layer"}
BATCH_SIZES = ("32", "64", "128", "256", "512", "1024")
BATCH_SIZE_PAPERS = (
    Paper(f"{FASTAP}, Figure 4a and Table 1", "R@1 rises with every larger batch, on all three data sets.",
          {"SOP, FastAP R50": {"96": 75.8, "256": 76.4}}),
    Paper(f"{MULTI_SIMILARITY}, supplement, Tables 1 and 2",
          "On CUB R@1 hardly changes and falls from 80 on; on SOP it rises up to 1000.",
          {"CUB, MS": _column((64.75, 65.07, 65.65, 65.43, 64.60), (20, 40, 80, 160, 240)),
           "SOP, MS": _column((71.40, 73.82, 75.61, 76.63, 77.59, 78.19, 78.35),
                              (20, 40, 80, 160, 320, 640, 1000))}),
    Paper(f"{UNBIASED}, Figure 2", "From 2 to 128 images on CUB, every method but Proxy-Softmax gains."),
)  # fmt: skip
ABLATIONS = _by_name(
    [
        Ablation(
            name="batch-size",
            question="Does a larger batch give a better embedding?",
            axis="images in a batch",
            values=BATCH_SIZES,
            settings=_batch_size,
            methods=(MethodConfig(name="fastap"), MethodConfig(name="multi_similarity"), SOFTMAX),
            base=CHUNKED,
            note="Every run sees equally many images: a batch twice as large makes half the steps. That is equal "
            "compute and equal epochs, by which the papers count too; but theirs train until nothing changes, and "
            "where training is short, few steps are a handicap of large batches that has nothing to do with what the "
            "loss compares. The learning rate is the same for all. Every batch goes through the network in chunks of "
            "32 images and has one gradient, which is exact: batch norm is frozen, and a layer norm before the head "
            "does its work.",
            papers=BATCH_SIZE_PAPERS,
        ),
        Ablation(
            name="batch-size-equal-steps",
            question="Does a larger batch give a better embedding, if it takes as many steps?",
            axis="images in a batch",
            values=BATCH_SIZES,
            settings=_batch_size_alone,
            methods=(MethodConfig(name="fastap"),),
            base=CHUNKED,
            note="Every run makes equally many steps: a batch twice as large sees twice as many images and costs "
            "twice as much. This is nearer to the papers' question, what a larger batch is worth once training is "
            "long enough; batch-size asks what it is worth at equal cost. Chunks as there.",
            papers=BATCH_SIZE_PAPERS,
        ),
        Ablation(
            name="embedding-size",
            question="Does a larger embedding retrieve better?",
            axis="embedding dims",
            values=("16", "32", "64", "128", "256", "512"),
            settings=lambda value, run: {"model.dim": number(value, "embedding-size")},
            recipes=BY_MS,
            methods=(MethodConfig(name="triplet"), MethodConfig(name="multi_similarity"), SOFTMAX),
            base=EVEN_BATCHES,
            papers=(
                Paper(f"{UNBIASED}, Figure 1", "Softmax losses gain from larger embeddings, hinge losses do not."),
                Paper(f"{MULTI_SIMILARITY}, Figure 3 and Table 3",
                      "MS on Cars gains with every doubling from 64 to 512, not at 1024.",
                      {"CUB, MS": {"64": 57.4, "512": 65.7},
                       "Cars, MS": {"64": 77.3, "512": 84.1}}),
            ),
        ),
        Ablation(
            name="bins",
            question="How many histogram bins are best for FastAP?",
            axis="histogram bins",
            values=("2", "5", "10", "20", "50"),
            settings=lambda value, run: {"method.params.bins": number(value, "bins")},
            methods=(MethodConfig(name="fastap"),),
            base=EVEN_BATCHES,
            papers=(
                Paper(f"{FASTAP}, Figure 4b",
                      "R@1 peaks around 10 bins on all three data sets, and is not overly sensitive to their number."),
            ),
        ),
        Ablation(
            name="similarity-types",
            question="Which similarities should the weight of a pair depend on: its own (S), that relative to the "
            "positives (P), that relative to the other negatives (N)?",
            axis="loss",
            values=tuple(PAIR_LOSSES),
            settings=lambda value, run: {"method": _one_of(value, "similarity-types", PAIR_LOSSES)},
            recipes=BY_MS_64,
            ordered=False,
            base=EVEN_BATCHES,
            note="binomial weighs by S, lifted_star by N, MS mining by P, bin_lifted and MS weighting by S and N, "
            "'+ mining' (the paper's Binomial_m and LiftedStruct*_m) by P too, MS by all three. The authors' code of "
            "Binomial_m also rescales the loss by 2/alpha and 2/beta, which is not done here.",
            papers=(
                Paper(f"{MULTI_SIMILARITY}, Table 2", "MS, which uses all three, is the best.",
                      {"Cars, 64 dims": {"binomial": 71.9, "lifted_star": 69.7, "MS mining": 67.0, "bin_lifted": 70.4,
                                         "MS weighting": 73.2, "binomial + mining": 74.6, "lifted_star + mining": 72.2,
                                         "MS": 77.3}}),
            ),
        ),
        Ablation(
            name="sampling",
            question="Are batches from two categories, where negatives are alike, better than random ones?",
            axis="batches",
            values=tuple(SAMPLERS),
            settings=lambda value, run: _one_of(value, "sampling", SAMPLERS),
            recipes=BY_FASTAP,
            methods=(MethodConfig(name="fastap"),),
            ordered=False,
            base={"sampler.batch_size": 256},
            note="random: classes in random order, all of their images. category-hard: half of a batch from one "
            "category, half from another.",
            papers=(
                Paper(f"{FASTAP}, supplement, Table 2",
                      "The hard batches are better on all data sets, with both networks.",
                      {"SOP, R18": {"random": 72.3, "category-hard": 73.2},
                       "SOP, R50": {"random": 74.2, "category-hard": 75.8},
                       "In-Shop, R18": {"random": 81.7, "category-hard": 89.0},
                       "In-Shop, R50": {"random": 84.1, "category-hard": 90.0},
                       "VehicleID, R18": {"random": 79.5, "category-hard": 85.3},
                       "VehicleID, R50": {"random": 82.8, "category-hard": 84.5}}),
            ),
        ),
        Ablation(
            name="budget",
            question="Does the order of the methods depend on how long they train?",
            axis="steps",
            values=("50", "100", "200", "400", "800"),
            settings=_budget,
            methods=MANY_METHODS,
            base=EVEN_BATCHES,
            ranks=True,
            note="Every budget is a run of its own, with its own warm-up and decay of the rates.",
            papers=(
                Paper(f"{UNBIASED}, Section 4", "Every method trains for the same number of epochs; whether the order "
                      "would change with more is not asked."),
            ),
        ),
        Ablation(
            name="backbone",
            question="Does a better network make every method better?",
            axis="backbone",
            values=("conv", "timm:resnet10t", "timm:resnet18"),
            settings=_backbone,
            recipes={"cub": comparisons.unbiased_bninception_cub},
            official=(f"bn_inception={BN_INCEPTION}", f"timm:resnet50={RESNET50}"),
            methods=(MethodConfig(name="margin"), MethodConfig(name="multi_similarity"), SOFTMAX),
            ordered=False,
            base=EVEN_BATCHES,
            note="Any backbone is a value, with pretrained weights as NAME=FILE; the paper's are bn_inception=FILE and "
            "timm:resnet50=FILE on photographs. features=DATA compares frozen features of the same images, from "
            "anywhere, each a dataset.",
            papers=(
                Paper(f"{UNBIASED}, Table 2 (CUB)",
                      "Most methods gain little or lose with ResNet-50; margin gains most.",
                      {name: {"bn_inception": small, "timm:resnet50": large} for name, small, large in (
                          ("triplet", 50.9, 48.2), ("lifted", 51.7, 50.0), ("npairs", 53.7, 56.1),
                          ("margin", 51.3, 59.6), ("angular", 53.2, 59.1), ("prototypical", 47.8, 54.4),
                          ("proxy_triplet", 50.5, 53.1), ("proxy_nca", 54.6, 58.1), ("proxy_softmax", 58.3, 63.5),
                          ("ranked_list", 51.4, 50.2))}),
            ),
        ),
    ]
)  # fmt: skip


def ablation(name: str) -> Ablation:
    """The ablation called `name`; InputError names the nearest."""
    found: Ablation = _one_of(name, "ablate", ABLATIONS)
    return found
