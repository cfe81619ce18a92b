"""A bench as a pure function: from the tasks that are finished to the tasks that can be done next.

    trial     one setting of a method, trained on every fold, scored on the held-out classes; never tested
    seed      one repetition of the best setting, tested
    variant   the same with one classical sin, for the bias ledger, or with a longer budget

A task's key is a digest of everything its outcome depends on, so that the outcome is the same whoever does it, whenever
and wherever. Two tasks with one key are done once. Nothing here looks at a clock, a file or a random number.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Any, Literal

from nearfield import losses
from nearfield.bench.protocols import Protocol
from nearfield.bench.search import (
    STARTUP,
    Setting,
    Space,
    Tried,
    apply,
    as_key,
    best_of,
    draw,
    published,
    scaled,
    space_of,
    suggest,
)
from nearfield.config import BenchConfig, MethodConfig, RunConfig, build_config
from nearfield.errors import InputError

TRIAL_SEED = 1000  # added to the bench's own for trials: the setting is chosen by other seeds than it is reported with
RIVALS = 3  # complete trials that must exist before one can be pruned
MANY = 3  # parameters to search from which `many_trials` count
LONGER = 2  # times the steps of the variant "longer"
SLACK = 0.2  # a trial is pruned if it is this share behind the median of the earlier ones
Outcome = dict[str, Any]  # "state": complete, pruned or failed; "folds"; of seeds and variants "separated" and more


@dataclass(frozen=True)
class Task:
    """A unit of work: one run on every fold of the protocol."""

    label: str
    kind: Literal["trial", "seed", "variant"]
    number: int  # of the trial, or the seed
    run: RunConfig  # before the protocol makes folds of it
    key: str
    variant: str = ""
    setting: Setting = field(default_factory=dict)  # what the search chose
    bounds: tuple[float, ...] = ()  # of the mean over the first 1, 2, ... folds: below it, the trial is pruned

    @property
    def name(self) -> str:
        """Human-readable."""
        return (
            f"{self.label} {self.variant} seed {self.number}"
            if self.variant
            else f"{self.label} {self.kind} {self.number}"
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values; `from_json` reads it again."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {**fields, "name": self.name, "run": self.run.model_dump(mode="json"), "bounds": list(self.bounds)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Task:
        """A task from plain values."""
        known = {key: value for key, value in values.items() if key != "name"}
        return cls(**{**known, "run": build_config(RunConfig, known["run"]), "bounds": tuple(known["bounds"])})


SHAPE = ("schedule", "decay_every", "decay", "warmup_steps", "frozen_steps")  # of the rates: as long as the run is
Done = tuple[Task, Outcome | None]  # None: it can be done now


@dataclass
class Course:
    """The progress of one method: every task that can be named, with its outcome if it is finished."""

    label: str
    trials: list[Done] = field(default_factory=list)
    seeds: list[Done] = field(default_factory=list)
    variants: list[Done] = field(default_factory=list)

    def __iter__(self) -> Iterator[Done]:
        yield from (*self.trials, *self.seeds, *self.variants)


@dataclass(frozen=True)
class Bench:
    """A comparison, the protocol that its configuration names, and the fingerprints of its data and weights."""

    config: BenchConfig
    protocol: Protocol
    data: str
    weights: str | None = None  # sha256 of the file `run.model.weights`, if the configuration names one

    @cached_property
    def digest(self) -> str:
        """Of everything that the bench depends on."""
        return digest(_brief(self.config), *self._conditions)

    @property
    def _conditions(self) -> tuple[Any, ...]:
        """What every task depends on beside its run."""
        return (_brief(self.protocol), self.data, *([self.weights] if self.weights else []))

    @cached_property
    def starts(self) -> list[tuple[MethodConfig, RunConfig, Space]]:
        """For every method its published run and the space of its search."""
        runs = [(method, start_of(self.config, method)) for method in self.config.methods]
        return [(method, run, space_of(run)) for method, run in runs]

    @cached_property
    def trials(self) -> list[int]:
        """Of each method, in the configuration's order."""
        return trial_counts(self.config)

    @property
    def labels(self) -> list[str]:
        """Of the methods, in the configuration's order."""
        return [label(method.name, method.params) for method in self.config.methods]

    @property
    def networks(self) -> int:
        """How many networks all tasks train."""
        tuned = sum(self.trials)
        return tuned * self.protocol.trial_folds + (self.total - tuned) * self.protocol.folds

    @property
    def total(self) -> int:
        """How many tasks there are, including those that cannot be named yet."""
        c = self.config
        tuned = sum(self.trials)
        plain = sum(bool(plain_of(method.name)) for method in c.methods) if "plain" in c.variants else 0
        variants = len(c.methods) * sum(name != "plain" for name in c.variants) + plain
        return tuned + len(c.methods) * len(c.seeds) + variants * c.variant_seeds

    def course(self, index: int, finished: Mapping[str, Outcome]) -> Course:
        """The progress of method number `index`."""
        method, start, space = self.starts[index]
        course = Course(label(method.name, method.params))
        chosen: Setting | None = {}
        trials = self.trials[index]
        if trials:
            chosen = self._search(course, start, space, trials, finished)
        if chosen is None:
            return course
        for seed in self.config.seeds:
            course.seeds.append(self._tested(course, "seed", "", chosen, apply(start, chosen), seed, finished))
        for seed in range(self.config.variant_seeds):
            for variant in self.config.variants:
                run = vary(variant, start, chosen)
                if run is not None:
                    course.variants.append(self._tested(course, "variant", variant, chosen, run, seed, finished))
        return course

    def _search(
        self, course: Course, start: RunConfig, space: Space, trials: int, finished: Mapping[str, Outcome]
    ) -> Setting | None:
        """Name the trials that can be named; the best setting once all of them are finished."""
        tried: dict[int, Tried] = {}
        start = start.model_copy(update={"seed": start.seed + TRIAL_SEED})
        if self.config.trial_steps:
            start = apply(start, scaled(start, self.config.trial_steps / start.steps))
        identity = digest(_brief(start), *self._conditions)
        for number in range(trials):
            if number >= STARTUP and len(tried) < number:
                return None
            seed = f"{identity} {number}"
            earlier = tuple(tried[n] for n in sorted(tried))
            bounds: tuple[float, ...] = ()
            if number == 0:
                setting = published(start, space)
            elif number < STARTUP:
                setting = draw(space, seed)
            else:
                setting = suggest(space, earlier, seed)
                bounds = self._bounds(earlier)
            run = apply(start, setting) if number else start
            key = digest("trial", _brief(run), *self._conditions, bounds)
            task = Task(course.label, "trial", number, run, key, "", setting, bounds)
            outcome = finished.get(key)
            course.trials.append((task, outcome))
            if outcome is not None:
                tried[number] = as_tried(setting, outcome, self.protocol)
        if len(tried) < trials:
            return None
        best = best_of(tried)
        return course.trials[best][0].setting if best else {}

    def _bounds(self, earlier: tuple[Tried, ...]) -> tuple[float, ...]:
        """What the mean of a trial's first folds must reach: the median of the earlier complete trials, less some."""
        rivals = [each.folds for each in earlier if each.complete]
        if not self.config.prune or len(rivals) < RIVALS:
            return ()
        return tuple(
            (1 - SLACK) * median(fmean(each[:count]) for each in rivals)
            for count in range(1, self.protocol.trial_folds)
        )

    def _tested(
        self, course: Course, kind: Literal["seed", "variant"], variant: str, setting: Setting, run: RunConfig,
        seed: int, finished: Mapping[str, Outcome],
    ) -> Done:  # fmt: skip
        run = run.model_copy(update={"seed": seed})
        key = digest("test", _brief(run), *self._conditions)
        return Task(course.label, kind, seed, run, key, variant, setting), finished.get(key)


def start_of(config: BenchConfig, method: MethodConfig) -> RunConfig:
    """The run of a method before any search: the bench's own or, with `published`, with its published optimiser.

    Published are the optimiser, its rates and weight decay, and how batches are drawn. Batch size, number of steps and
    schedule of the rates stay the bench's, and all of them where nothing is published.
    """
    run = config.run.model_copy(update={"method": method})
    if not config.published:
        return run
    drawn = dict.fromkeys(run.sampler.options()) | {"name": "auto"}
    changes: dict[str, Any] = {"sampler": run.sampler.model_copy(update=drawn)}
    recipe = losses.method(method.name).recipe_of(method.params)
    if recipe is not None:
        shape = {key: getattr(run.optimizer, key) for key in SHAPE}
        changes["optimizer"] = recipe.model_copy(update=shape)
    return run.model_copy(update=changes)


def plan(bench: Bench, finished: Mapping[str, Outcome]) -> list[Task]:
    """The tasks that can be done now, in an order in which an unfinished table is already fair."""
    return to_do([bench.course(index, finished) for index in range(len(bench.config.methods))])


def to_do(courses: list[Course]) -> list[Task]:
    """The unfinished tasks: trial by trial, then seed by seed, then variants; within each, method by method."""
    stages = {"trial": 0, "seed": 1, "variant": 2}
    tasks = [task for course in courses for task, outcome in course if outcome is None]
    unique: dict[str, Task] = {}
    for task in sorted(tasks, key=lambda task: (stages[task.kind], task.number)):  # stable: methods keep their order
        unique.setdefault(task.key, task)
    return list(unique.values())


def vary(variant: str, start: RunConfig, chosen: Setting) -> RunConfig | None:
    """The run of a variant; None where the method has no such variant."""
    if variant == "untuned":
        return start
    if variant == "longer":
        run = apply(start, chosen)
        return apply(run, scaled(run, LONGER))
    if variant == "plain":
        plain = plain_of(start.method.name)
        return apply(start, {**chosen, **plain}) if plain else None
    return apply(start, {**chosen, "model.dim": int(variant.removeprefix("dim"))})


def plain_of(name: str) -> Mapping[str, Any]:
    """The settings of a method without its own trick; none if it has no such trick, or is not registered here."""
    return losses.method(name).plain if name in losses.names() else {}


def as_tried(setting: Setting, outcome: Outcome, protocol: Protocol) -> Tried:
    """A trial's outcome as the search sees it."""
    folds = tuple(fold["best_val"][protocol.select_by] for fold in outcome.get("folds", ()))
    return Tried(as_key(setting), folds, outcome["state"] == "complete")


def trial_counts(config: BenchConfig) -> list[int]:
    """How many settings are tried for each method; 0 without a search. One rule for all methods."""
    found = []
    for method in config.methods:
        count = config.trials
        if config.many_trials is not None and method.name in losses.names():
            space = space_of(config.run.model_copy(update={"method": method}))
            count = config.many_trials if len(space) >= MANY else count
        found.append(count if count > 1 else 0)
    return found


def label(name: str, params: Mapping[str, Any]) -> str:
    """A method's name with the parameters that the configuration gives it."""
    return name + (f"({', '.join(f'{k}={v}' for k, v in params.items())})" if params else "")


def check_labels(config: BenchConfig) -> None:
    """InputError if two methods are the same."""
    labels = [label(method.name, method.params) for method in config.methods]
    for each in labels:
        if labels.count(each) > 1:
            raise InputError(f"methods must differ; got {each} {labels.count(each)} times. Remove the duplicates.")


def digest(*parts: Any) -> str:
    """A short hash, the same on every machine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _brief(config: BenchConfig | RunConfig | Protocol) -> Any:
    """What differs from the defaults: a key stays the same when a later version adds an option."""
    return config.model_dump(mode="json", exclude_defaults=True)
