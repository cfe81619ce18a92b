"""A table or figure of a paper as a value: what is trained, under which protocol, and what was published.

An `Entry` is a row of a table or a point of a figure, and a bench of one method. `Table.small` is the same experiment
on data and networks for a laptop; `Scaling` says in words what was scaled down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nearfield import losses, recipes
from nearfield.config import BenchConfig, MethodConfig, OptimizerConfig, RunConfig

PROTOCOLS = {"inshop": "query-gallery", "vehicleid": "vehicleid", "imagenet": "closed-set"}  # else classic
DIMS = {64: 16, 128: 32, 144: 36, 256: 64, 512: 128, 1024: 256}  # embedding sizes of the papers: a quarter
WIDTHS = {"googlenet": 12, "timm:resnet18": 16, "bn_inception": 16, "timm:resnet50": 24}  # of the small network


@dataclass(frozen=True)
class Entry:
    """A row of a table, or a point of a figure: `label` as the paper prints it, published scores in percent."""

    label: str
    bench: BenchConfig  # of one method
    published: Mapping[str, float] = field(default_factory=dict)  # metric -> percent; none for points of a plot

    @property
    def run(self) -> RunConfig:
        """The run, with its method."""
        return self.bench.run.model_copy(update={"method": self.bench.methods[0]})


@dataclass(frozen=True)
class Scaling:
    """How an experiment is scaled down: the small recipe that gives data, network and optimiser, and what is kept."""

    recipe: str
    words: str
    steps: int
    seeds: int = 3
    trials: int = 1
    most: int = 256  # images of a batch, at most
    network: bool = True  # whether embedding sizes and widths follow the paper's in proportion; False: as the recipe

    def entry(self, given: Entry) -> Entry:
        """The entry, scaled down."""
        base, run = recipes.recipe(self.recipe), given.run
        model = base.model
        if self.network and model.backbone == "conv":
            sizes = {"dim": DIMS.get(run.model.dim, run.model.dim), "width": WIDTHS.get(run.model.backbone, 16)}
            model = model.model_copy(update=sizes)
        elif self.network:
            model = model.model_copy(update={"dim": run.model.dim})
        own = {"batch_size": _fitting(run, self.most), "unlabelled": None, "repeats": None}  # of the paper's categories
        sampler = run.sampler.model_copy(update=own)
        changes: dict[str, Any] = {"method": run.method, "model": model, "sampler": sampler, "distance": run.distance}
        changes |= {"steps": self.steps, "eval_every": max(1, self.steps // 5), "ks": None, "chunk": None}
        shape = {"run": base.model_copy(update=changes), "seeds": tuple(range(self.seeds)), "trials": self.trials}
        protocol = "reality-check" if given.bench.protocol == "reality-check" else "classic"
        return replace(given, bench=given.bench.model_copy(update={**shape, "protocol": protocol}))


def _fitting(run: RunConfig, most: int) -> int:
    """The batch size, or the largest multiple of `per_class` (or of 2) that is at most `most`."""
    size, unit = run.sampler.batch_size, run.sampler.per_class
    unit = unit if run.sampler.name in ("m_per_class", "episodic", "auto") else 2
    return size if size <= most else most // unit * unit


@dataclass(frozen=True)
class Table:
    """A table or a figure of a paper."""

    name: str  # paper/table1
    paper: str
    where: str  # Table 1
    title: str
    columns: tuple[str, ...]  # metrics, in the paper's order
    entries: tuple[Entry, ...]
    scaling: Scaling
    axis: str = ""  # of a figure: what its points differ in; "step" for learning curves
    notes: tuple[str, ...] = ()  # what differs from the paper, or is wrong in it

    def small(self) -> Table:
        """The same experiment for a laptop, with the published numbers beside it.

        Of entries that are then alike, such as those of several datasets, the first stays.
        """
        unique: dict[str, Entry] = {}
        for given in self.entries:
            scaled = self.scaling.entry(given)
            unique.setdefault(scaled.bench.digest(), scaled)
        return replace(self, entries=tuple(unique.values()))

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the data it needs."""
        return tuple(dict.fromkeys(entry.run.data.name for entry in self.entries))

    @property
    def weights(self) -> tuple[str, ...]:
        """Files of pretrained weights it needs."""
        found = (entry.run.model.weights for entry in self.entries)
        return tuple(dict.fromkeys(weights for weights in found if weights is not None))


def entry(label: str, run: RunConfig, published: Mapping[str, float] | None = None, **bench: Any) -> Entry:
    """An entry by its run; protocol by its data, three seeds and no search unless given."""
    protocol = PROTOCOLS.get(run.data.name, "classic")
    given = {"protocol": protocol, "seeds": (0, 1, 2), **bench}
    return Entry(label, BenchConfig(methods=(run.method,), run=run, **given), published or {})


def scores(metrics: tuple[str, ...], text: str) -> dict[str, float]:
    """Published numbers, separated by spaces, by metric; "-" where the paper prints none."""
    numbers = text.split()
    return {m: float(number) for m, number in zip(metrics, numbers, strict=True) if number != "-"}


def recalls(*ks: int) -> tuple[str, ...]:
    """Names of recall@K."""
    return tuple(f"recall@{k}" for k in ks)


def change(run: RunConfig, **dotted: Any) -> RunConfig:
    """The run with some keys changed; `model__dim` is `model.dim`."""
    for key, value in dotted.items():
        table, _, name = key.partition("__")
        if not name:
            run = run.model_copy(update={table: value})
        else:
            run = run.model_copy(update={table: getattr(run, table).model_copy(update={name: value})})
    return RunConfig.model_validate(run.model_dump())


def as_published(run: RunConfig, name: str, preset: str | None = None, **params: Any) -> RunConfig:
    """The run with a method's published optimiser and one of its presets; what the publication leaves open stays."""
    method = losses.method(name)
    given = dict(method.presets[preset]) if preset is not None else {}
    changes: dict[str, Any] = {"method": MethodConfig(name=name, params={**given, **params})}
    if method.recipe is not None:
        shared = {key: getattr(run.optimizer, key) for key in ("schedule", "decay_every", "decay", "warmup_steps")}
        changes["optimizer"] = OptimizerConfig(**{**method.recipe.model_dump(), **shared})
    return run.model_copy(update=changes)
