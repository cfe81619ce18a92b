"""The protocol linter: the known pitfalls of a comparison, from its configuration alone.

`lint` reads the configuration of a bench, whose runs differ only in method and seed; `lint_results` a bench that was
run; `lint_runs` compares runs collected by hand; `lint_choice` checks that validation chose the step of a finished run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nearfield import losses
from nearfield.analysis.lint.catalogue import ENOUGH_CLASSES, ENOUGH_HELD_OUT, ENOUGH_SEEDS, EQUAL, Sin
from nearfield.bench.plan import start_of
from nearfield.bench.protocols import Protocol, protocol
from nearfield.bench.results import BenchResults
from nearfield.bench.search import space_of
from nearfield.config import BenchConfig, DataConfig, MethodConfig, RunConfig, build_config, leaves
from nearfield.data.dataset import Dataset
from nearfield.data.splits import held_out
from nearfield.errors import InputError


def lint(bench: BenchConfig, dataset: Dataset | None = None) -> list[Sin]:
    """The pitfalls of a bench; with `dataset`, also how much is held out and whether the protocol fits."""
    chosen = protocol(bench.protocol)
    sins = _configured(bench, chosen)
    if dataset is None and chosen.test == "closed":  # few images are held out, but of all classes
        return sins
    try:
        if dataset is not None:
            chosen.check(dataset)
    except InputError as error:
        return [*sins, Sin("wrong-protocol", "protocol", str(error))]
    return [*sins, *_validation(chosen.runs(bench.run)[0].data, dataset, "protocol")]


def lint_results(results: BenchResults) -> list[Sin]:
    """The pitfalls of a bench that was run; none if its configuration cannot be read by this version."""
    known = {key: value for key, value in results.protocol.items() if key in Protocol.model_fields}
    try:
        sins = _configured(build_config(BenchConfig, results.config), build_config(Protocol, known))
    except InputError:
        return []
    folds = [fold for method in results.methods for seed in method.seeds for fold in seed.folds]
    fewest = min((fold.val_classes for fold in folds), default=ENOUGH_CLASSES)
    return [*sins, *_few_classes(fewest, str(results.data.get("name")), "protocol")]


def lint_runs(runs: Sequence[RunConfig], dataset: Dataset | None = None) -> list[Sin]:
    """The pitfalls of comparing these runs with each other; members of ensembles are ignored."""
    runs = [run for run in runs if run.member is None]
    if not runs:
        return []
    settings = {name: {_setting(run) for run in of} for name, of in _by_method(runs).items()}
    counts = {name: len(found) for name, found in settings.items()}
    searched = min(counts.values()) > 1
    sins = [*_repeats(runs), *_unequal(runs, skip="unequal-optimizer" if searched else None)]
    if len(set(counts.values())) > 1:
        sins.append(Sin("uneven-tuning", "method.params, optimizer", _say(counts, "settings")))
    methods = list({_setting(run): run.method for run in runs}.values())
    sins += [*_borrowed(methods, "method.params"), *([] if searched else _settings(methods, "method.params"))]
    for select_by in sorted({run.select_by for run in runs}):
        sins += _choice(select_by, "select_by")
    held = {run.data.model_dump_json(exclude={"augment", "workers", "fold"}): run.data for run in runs}
    return sins + [sin for data in held.values() for sin in _validation(data, dataset, "data")]


def lint_choice(run: RunConfig, result: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> list[Sin]:
    """Whether a finished run used the step with the best validation score, from its log."""
    curves: dict[str, dict[int, float]] = {"val": {}, "test": {}}
    for record in records:
        for part, curve in curves.items():
            if (score := record.get(f"{part}_{run.select_by}")) is not None:
                curve[record["step"]] = score
    step, val, test = result["best_step"], curves["val"], curves["test"]
    if not val or val.get(step) == max(val.values()):
        return []
    best = max(val, key=lambda at: val[at])
    by_test = ", the best on the test classes" if test and test.get(step) == max(test.values()) else ""
    return [Sin("test-choice", "best_step", f"step {step}{by_test}; validation chose step {best}")]


# ---------------------------------------------------------------------------------------------------------------
# What a bench shows


def _configured(bench: BenchConfig, chosen: Protocol) -> list[Sin]:
    sins = [*_seeds(bench.seeds, "seeds"), *_search(bench), *_settings(bench.methods, "methods")]
    return [*sins, *_borrowed(bench.methods, "methods"), *_choice(chosen.select_by, "protocol")]


def _seeds(seeds: Sequence[int], where: str) -> Iterator[Sin]:
    unique = sorted(set(seeds))
    if len(unique) < len(seeds):
        yield Sin("repeated-seeds", where, f"{len(seeds)} seeds, {len(unique)} of them different")
    if len(unique) < ENOUGH_SEEDS:
        yield Sin("few-seeds", where, f"{len(unique)} seed{'s' * (len(unique) != 1)}")
    if unique != list(range(len(unique))):
        yield Sin("chosen-seeds", where, ", ".join(map(str, unique)))


def _search(bench: BenchConfig) -> Iterator[Sin]:
    if len(bench.methods) == 1:
        return
    if max(bench.trials, bench.many_trials or 1) == 1:
        yield Sin("untuned", "trials", "1 trial, the published setting")
    runs = [start_of(bench, method) for method in bench.methods]
    if bench.published:
        rates = {run.method.name: f"{run.optimizer.name} {run.optimizer.lr:g}" for run in runs}
        found = ", ".join(f"{name} by {rate}" for name, rate in rates.items())
        yield Sin("published-optimizers", "published", f"conditions are not equal: {found}")
    spaces = {run.method.name: len(space_of(run)) for run in runs}
    largest = max(spaces, key=lambda name: spaces[name])
    trials = max(bench.trials, bench.many_trials or 1)
    if 1 < trials <= spaces[largest]:
        found = f"{trials} trials, but {largest} has {spaces[largest]} parameters to search"
        yield Sin("few-trials", "trials", found)
    entries = Counter(method.name for method in bench.methods)
    if repeated := {name: count for name, count in entries.items() if count > 1}:
        yield Sin("several-entries", "methods", _say(repeated, "entries"))


def _settings(methods: Sequence[MethodConfig], where: str) -> Iterator[Sin]:
    given = [_title(method) for method in methods if method.params]
    if 0 < len(given) < len(methods):
        yield Sin("uneven-settings", where, f"{', '.join(given)}; the others use defaults")


def _borrowed(methods: Iterable[MethodConfig], where: str) -> Iterator[Sin]:
    """Settings equal to a published preset in all parameters that a search would vary."""
    for method in methods:
        known = losses.method(method.name)
        for name, preset in known.presets.items():
            tuned = {key: value for key, value in preset.items() if key in known.space}
            if tuned and tuned.items() <= method.params.items():
                yield Sin("borrowed-setting", where, f"{_title(method)} is the preset {name!r}")


def _choice(select_by: str, where: str) -> Iterator[Sin]:
    if select_by == "recall@1":
        yield Sin("choice-by-recall", where, f"select_by = {select_by}")


def _validation(data: DataConfig, dataset: Dataset | None, where: str) -> Iterator[Sin]:
    if dataset is None:
        share = 1 / data.folds if data.folds > 1 else data.val_fraction
        if share < ENOUGH_HELD_OUT:
            yield Sin("tiny-validation", where, f"{share:.1%} of the training part is held out")
        return
    yield from _few_classes(len(np.unique(dataset.labels[held_out(dataset, data)[1]])), dataset.name, where)


def _few_classes(count: int, name: str, where: str) -> Iterator[Sin]:
    if count == 1:
        yield Sin("tiny-validation", where, f"1 class of {name} is held out, so every validation neighbour is correct")
    elif count < ENOUGH_CLASSES:
        yield Sin("tiny-validation", where, f"{count} classes of {name} are held out")


# ---------------------------------------------------------------------------------------------------------------
# What several runs show


def _by_method(runs: Sequence[RunConfig]) -> dict[str, list[RunConfig]]:
    found: dict[str, list[RunConfig]] = defaultdict(list)
    for run in runs:
        found[run.method.name].append(run)
    return dict(found)


def _repeats(runs: Sequence[RunConfig]) -> Iterator[Sin]:
    digests = {run.digest() for run in runs}
    if len(digests) < len(runs):
        yield Sin("repeated-seeds", "seed", f"{len(runs)} runs, {len(digests)} of them different")
    per_method = {name: {(run.seed, run.data.fold) for run in of} for name, of in _by_method(runs).items()}
    if len({frozenset(found) for found in per_method.values()}) > 1:
        yield Sin("unequal-seeds", "seed, data.fold", _say({n: len(f) for n, f in per_method.items()}, "repetitions"))
    yield from _seeds(sorted({run.seed for run in runs}), "seed")


def _unequal(runs: Sequence[RunConfig], skip: str | None) -> Iterator[Sin]:
    flat = [(_title(run.method), leaves(run.model_dump()) | {"model.dim": _size(run)}) for run in runs]
    for code, keys in EQUAL.items():
        for key in keys:
            values: dict[Hashable, set[str]] = defaultdict(set)
            for name, given in flat:
                values[given[key]].add(name)
            if len(values) > 1 and code != skip:
                found = "; ".join(f"{value}: {', '.join(sorted(names))}" for value, names in values.items())
                yield Sin(code, key, found)


def _size(run: RunConfig) -> str:
    """The size of an embedding: 1 bit for each sign, 32 for each float."""
    return f"{run.model.dim if run.distance == 'hamming' else 32 * run.model.dim:,} bits"


def _setting(run: RunConfig) -> str:
    """The part of a configuration that tuning varies."""
    return run.method.model_dump_json() + run.optimizer.model_dump_json()


def _title(method: MethodConfig) -> str:
    params = ", ".join(f"{key}={value}" for key, value in method.params.items())
    return method.name + (f"({params})" if params else "")


def _say(counts: Mapping[str, int], what: str) -> str:
    return f"{what}: " + ", ".join(f"{name} {count}" for name, count in counts.items())
