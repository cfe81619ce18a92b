"""A table or figure of a paper as a value: what is trained, under which protocol, and what was published.

An `Entry` is a row of a table or a point of a figure, and a bench of one method. `Table.small` is the same experiment
on data and networks for a laptop; `Scaling` says in words what was scaled down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nearfield import recipes
from nearfield.config import COMPARED_BY, BenchConfig, RunConfig

PROTOCOLS = {"inshop": "query-gallery", "vehicleid": "vehicleid", "imagenet": "closed-set"}  # else classic
FEATURES = 1280  # of the images of `cub_lite0`: a head that starts from their principal axes has no more dims
DIMS = {64: 16, 128: 32, 144: 36, 256: 64, 512: 128, 1024: 256}  # embedding sizes of the papers: a quarter
WIDTHS = {"googlenet": 6, "timm:resnet18": 8, "bn_inception": 8, "timm:resnet50": 12}  # of the small network
LOOKS = {"": 2, "step": 10}  # evaluations on the way, the more for learning curves


@dataclass(frozen=True)
class Entry:
    """A row of a table, or a point of a figure: `label` as the paper prints it, published scores in percent."""

    label: str
    bench: BenchConfig  # of one method
    published: Mapping[str, float] = field(default_factory=dict)  # metric -> percent; none for points of a plot
    intervals: Mapping[str, float] = field(default_factory=dict)  # metric -> published ±

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

    def entry(self, given: Entry, ks: tuple[int, ...], looks: int) -> Entry:
        """The entry, scaled down, scored at these K and so many times on the way."""
        base, run = recipes.recipe(self.recipe), given.run
        model = base.model
        if self.network and model.backbone == "conv":
            sizes = {"dim": DIMS.get(run.model.dim, run.model.dim), "width": WIDTHS.get(run.model.backbone, 8)}
            model = model.model_copy(update=sizes)
        elif self.network:
            model = model.model_copy(update={"dim": min(run.model.dim, FEATURES)})
        own = {"batch_size": _fitting(run, self.most), "unlabelled": None, "repeats": None}  # of the paper's categories
        sampler = run.sampler.model_copy(update=own)
        changes: dict[str, Any] = {"method": run.method, "model": model, "sampler": sampler, "distance": run.distance}
        changes |= {"steps": self.steps, "eval_every": max(1, self.steps // looks), "ks": ks, "metrics": run.metrics}
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
    quoted: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # rows that the paper took from others

    def small(self) -> Table:
        """The same experiment for a laptop, with the published numbers beside it.

        Of entries that are then alike, such as those of several datasets, the first stays. Columns of a part of the
        test data get one of all of it beside them.
        """
        ks = tuple(sorted({int(name.rpartition("@")[2]) for name in self.columns if name[-1].isdigit()}))
        unique: dict[str, Entry] = {}
        for given in self.entries:
            scaled = self.scaling.entry(given, ks, LOOKS["step" if self.axis == "step" else ""])
            unique.setdefault(scaled.bench.digest(), scaled)
        whole = recalls(*ks) if any("/loo/" in name for name in self.columns) else ()
        return replace(self, entries=tuple(unique.values()), columns=tuple(dict.fromkeys(self.columns + whole)))

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the data it needs."""
        return tuple(dict.fromkeys(entry.run.data.name for entry in self.entries))

    @property
    def weights(self) -> tuple[str, ...]:
        """Files of pretrained weights it needs."""
        found = (entry.run.model.weights for entry in self.entries)
        return tuple(dict.fromkeys(weights for weights in found if weights is not None))


def entry(label: str, run: RunConfig, metrics: tuple[str, ...] = (), row: str = "", **bench: Any) -> Entry:
    """An entry by its run and its published row; protocol by its data, three seeds and no search unless given.

    NMI is measured where the table has it: on large data it takes longer than all other metrics.
    """
    if run.metrics is None and "nmi" not in metrics:
        run = change(run, metrics=COMPARED_BY)
    given = {"protocol": protocol_of(run.data.name), "seeds": (0, 1, 2), **bench}
    shaped = BenchConfig(methods=(run.method,), run=run, **given)
    return Entry(label, shaped, scores(metrics, row), scores(metrics, row, interval=True))


def protocol_of(data: str) -> str:
    """The protocol of a dataset: classic, unless its test part is of another kind."""
    return PROTOCOLS.get(data, "classic")


def scores(metrics: tuple[str, ...], row: str, interval: bool = False) -> dict[str, float]:
    """The numbers of a printed row by metric, or their intervals; "-" where the paper prints none, "67.2±.5" with one.

    An empty row has no numbers at all.
    """
    cells = [cell.partition("±")[2 if interval else 0] for cell in row.split()]
    pairs = zip(metrics, cells, strict=True) if cells else ()
    return {metric: float(cell) for metric, cell in pairs if cell not in ("-", "")}


def quoted(metrics: tuple[str, ...], rows: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Rows of other work that the paper prints beside its own."""
    return {label: scores(metrics, row) for label, row in rows.items()}


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
