"""From a bench's database to its results as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.bench.database import FILE, Store
from nearfield.bench.plan import label, plain_of, trial_counts
from nearfield.bench.results import BenchResults, Floats, Fold, MethodResult, Part, Seed, Trial
from nearfield.config import BenchConfig, MethodConfig, build_config
from nearfield.errors import InputError, RunError

Entry = dict[str, Any]


def open_results(folder: str | Path, digest: str | None = None) -> BenchResults:
    """The results so far of the bench in a folder; of several that opened last, unless `digest` names another."""
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise InputError(f"{folder} holds no results of a bench; run `nearfield bench --out {folder}`.")
    store = Store(folder / FILE)
    known = store.benches()
    if not known:
        raise InputError(f"{store.path} holds no bench; run `nearfield bench --out {folder}`.")
    return read_results(store, digest or known[0], folder)


def open_suite(folder: Path) -> dict[str, BenchResults]:
    """The results so far of a suite in a folder, by dataset; those of a bench are a suite of one."""
    if (folder / FILE).is_file():
        only = open_results(folder)
        return {str(only.data.get("name", folder.name)): only}
    found = {path.parent.name: open_results(path.parent) for path in sorted(folder.glob(f"*/{FILE}"))}
    if not found:
        raise InputError(f"{folder} must be the folder of a bench or a suite; it holds no {FILE}, nor do its folders.")
    own = {name: str(each.data.get("fingerprint")) for name, each in found.items()}
    if len(set(own.values())) < len(own):
        raise InputError(
            f"{folder} holds several benches on the same data ({', '.join(own)}), as an ablation does; name one of its "
            "folders."
        )
    return found


def read_results(store: Store, digest: str, folder: Path | None = None) -> BenchResults:
    """The results so far of one bench of a database."""
    facts = store.facts(digest)
    config = build_config(BenchConfig, facts["config"])
    entries = store.entries(digest)
    own = {each: [entry for entry in entries if entry["label"] == each] for each in _labels(config)}
    methods = [_method(method, own[name], facts) for name, method in zip(own, config.methods, strict=True)]
    seeds = {name: _done(found, "seed") for name, found in own.items()}

    def queries(name: str, metric: str, part: Part) -> Floats:
        return np.stack([_query_scores(store, entry, metric, part) for entry in seeds[name]])

    def embeddings(name: str) -> NDArray[np.float16] | None:
        from nearfield.bench.run_task import joined_embeddings

        if folder is None or not seeds[name]:
            return None
        outcome = seeds[name][0]["outcome"]
        try:
            networks = 1 if outcome["concatenated"] is None else len(outcome["folds"])
            return joined_embeddings(folder / outcome["folder"], networks).astype(np.float16)
        except OSError:
            return None

    return BenchResults(
        config=facts["config"],
        digest=digest,
        protocol=facts["protocol"],
        data=facts["data"],
        environment=_environment(facts["environment"], entries),
        split=facts["split"],
        baselines=facts["floors"],
        methods=tuple(method for method in methods if method.trials or method.seeds),
        missing=tuple(_missing(config, own)),
        queries=queries,
        embeddings=embeddings,
        query_classes=np.asarray(facts["query_classes"]) if "query_classes" in facts else None,
    )


def _environment(opened: dict[str, Any], entries: list[Entry]) -> dict[str, Any]:
    """Where the bench was opened, with the versions and commits of all its tasks where they differ from it."""
    made = [opened, *(entry["made_by"] for entry in entries)]
    found = {key: list(dict.fromkeys(each[key] for each in made[1:] if each.get(key))) for key in opened}
    return {
        key: ", ".join(values) if len(values) > 1 else (values or [opened[key]])[0] for key, values in found.items()
    }


def _labels(config: BenchConfig) -> list[str]:
    return [label(method.name, method.params) for method in config.methods]


def _done(entries: Iterable[Entry], kind: str, variant: str = "") -> list[Entry]:
    return [
        e for e in entries if e["kind"] == kind and e["variant"] == variant and e["outcome"] is not None
    ]  # ascending


def _method(method: MethodConfig, entries: list[Entry], facts: dict[str, Any]) -> MethodResult:
    select_by = facts["protocol"]["select_by"]
    trials = tuple(_trial(entry, select_by) for entry in _done(entries, "trial"))
    seeds = _done(entries, "seed")
    given = {f"method.params.{key}": value for key, value in method.params.items()}
    name = label(method.name, method.params)
    complete = [trial for trial in trials if trial.value is not None]
    chosen = max(complete, key=lambda trial: (trial.value, -trial.number)).params if complete else {}
    variants = {entry["variant"] for entry in entries if entry["variant"]}
    return MethodResult(
        label=name,
        name=method.name,
        params={**given, **chosen},
        trials=trials,
        seeds=tuple(_seed(entry) for entry in seeds),
        variants={v: tuple(_seed(entry) for entry in _done(entries, "variant", v)) for v in sorted(variants)},
        unequal=tuple(facts["unequal"].get(name, ())),
    )


def _trial(entry: Entry, select_by: str) -> Trial:
    outcome = entry["outcome"]
    complete = outcome["state"] == "complete"
    value = fmean(fold["best_val"][select_by] for fold in outcome["folds"]) if complete else None
    folds = tuple(map(_fold, outcome["folds"]))
    return Trial(entry["number"], entry["setting"], folds, value, "complete" if complete else "pruned")


def _seed(entry: Entry) -> Seed:
    outcome = entry["outcome"]
    folds = tuple(map(_fold, outcome["folds"]))
    return Seed(entry["number"], folds, outcome["separated"], outcome["concatenated"])


def _fold(fold: dict[str, Any]) -> Fold:
    curves = {name: tuple((step, scores) for step, scores in fold[name]) for name in ("val", "oracle")}
    known: dict[str, Any] = {**fold, **curves}
    del known["best_val"]
    return Fold(**known)


def _query_scores(store: Store, entry: Entry, metric: str, part: Part) -> NDArray[np.floating[Any]]:
    if part == "concatenated":
        if entry["outcome"]["concatenated"] is None:
            raise RunError(
                f"{entry['label']} has no concatenated scores: its protocol does not join the folds' embeddings."
            )
        return store.query_scores(entry["key"], "concatenated", metric)
    return store.mean_query_scores(entry["key"], metric)


def _missing(config: BenchConfig, own: dict[str, list[Entry]]) -> Iterable[str]:
    """What is not finished, human-readable: method by method, and why if it failed."""
    for name, method, trials in zip(own, config.methods, trial_counts(config), strict=True):
        wanted = {("trial", "", number) for number in range(trials)}
        wanted |= {("seed", "", seed) for seed in config.seeds}
        kinds = [v for v in config.variants if v != "plain" or plain_of(method.name)]
        wanted |= {("variant", variant, seed) for variant in kinds for seed in range(config.variant_seeds)}
        there = {(e["kind"], e["variant"], e["number"]): e for e in own[name]}
        open_ones = {key for key in wanted if key not in there or there[key]["outcome"] is None}
        for kind, variant in sorted(
            {key[:2] for key in open_ones}, key=lambda k: ("trial", "seed", "variant").index(k[0])
        ):
            numbers = sorted(number for a, b, number in open_ones if (a, b) == (kind, variant))
            errors = [there[kind, variant, n]["error"] for n in numbers if (kind, variant, n) in there]
            why = next((f": {error}" for error in errors if error), "")
            words = f"{variant} seed" if variant else kind
            yield f"{name}: {words}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}{why}"
