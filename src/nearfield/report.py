"""The report of a bench: one HTML file that opens offline.

Axes: M methods, Q queries (every test image is one), D embedding dims, H and W pixels.
"""

from __future__ import annotations

import base64
import io
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nearfield.bench import COLUMNS, Standing, label, leaderboard, plan
from nearfield.charts import Series, line_chart
from nearfield.config import BenchConfig, build_config
from nearfield.data import Dataset, load, split_classes
from nearfield.errors import InputError, RunError
from nearfield.files import write_text
from nearfield.metrics import nearest_neighbours
from nearfield.runs import RunFolder
from nearfield.store import Store

HEADS = {"r_precision": "R-precision", "map@r": "MAP@R", "nmi": "NMI"}
PER_GROUP = 4  # queries of the gallery: worst, median and best, so many each
NEIGHBOURS = 5
CHARTS = {"wide": (1080, 400), "narrow": (360, 300)}  # pixels; text must not shrink with the window


def write_report(bench: Path, out: Path) -> Path:
    """Write the report of the bench in folder `bench` to the file `out`; what is not finished is listed as such."""
    store, config = _open(bench)
    methods = _methods(store, config)
    if not methods:
        raise RunError(f"no run of the bench in {bench} has finished; finish it with `nearfield bench --out {bench}`.")
    meta = store.meta()
    page = {
        "data": meta["data"],
        "config": config,
        "methods": methods,
        "val_classes": _val_classes(meta, config),
        "select_by": _head(config.run.select_by),
        "finding": _finding([m["standing"] for m in methods], meta["pixels"]),
        "notices": _notices(methods, _val_classes(meta, config)),
        "board": _board([m["standing"] for m in methods], meta["pixels"], meta["untrained"]),
        "unfinished": _unfinished(store, config, bench),
        "charts": _charts(store, methods),
        "gallery": _gallery(bench, store, methods, config),
        "provenance": _provenance(methods, config),
        "command": command(config),
        "toml": config.to_toml(),
    }
    templates = Environment(
        loader=PackageLoader("nearfield"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    write_text(out, templates.get_template("report.html.j2").render(page))
    return out


def _open(bench: Path) -> tuple[Store, BenchConfig]:
    """The results file of a bench and its configuration; InputError if there is none."""
    missing = f"bench must be the folder of a bench, {bench} holds no results; run `nearfield bench --out {bench}`."
    if not (bench / "results.sqlite").is_file():
        raise InputError(missing)
    store = Store(bench / "results.sqlite")
    meta = store.meta()
    if not {"config", "data", "pixels", "untrained"} <= meta.keys():
        raise InputError(missing)
    return store, build_config(BenchConfig, meta["config"])


def _methods(store: Store, config: BenchConfig) -> list[dict[str, Any]]:
    """Methods with a finished run, best first: label, standing, and finished runs in the order of the seeds."""
    finished = {row["run"]: row for row in store.runs()}
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in config.runs():
        if run.digest() in finished:
            runs.setdefault(label(run.method.name, run.method.params), []).append(finished[run.digest()])
    return [{"label": s.method, "standing": s, "runs": runs[s.method]} for s in leaderboard(store, config)]


def _val_classes(meta: dict[str, Any], config: BenchConfig) -> int:
    classes = np.arange(meta["data"]["train_classes"])
    return len(split_classes(classes, config.run.data.val_fraction, config.run.data.split_seed)[1])


def _unfinished(store: Store, config: BenchConfig, bench: Path) -> list[dict[str, Any]]:
    """Runs without a result and the last step that each has logged."""
    finished = {row["run"] for row in store.runs()}
    found = []
    for job in plan(config, bench):
        if job.config.digest() not in finished:
            records = RunFolder(job.folder).records()
            step = records[-1]["step"] if records else 0
            name = label(job.config.method.name, job.config.method.params)
            found.append({"label": name, "seed": job.config.seed, "step": step, "steps": job.config.steps})
    return found


# ---------------------------------------------------------------------------------------------------------------
# What the numbers say


def _board(standings: Sequence[Standing], pixels: dict[str, float], untrained: dict[str, float]) -> dict[str, Any]:
    """Heads and rows of the leaderboard in percent; a mean that prints like the highest of its column is `best`."""
    every = [*(s.mean for s in standings), untrained, pixels]
    best = {c: _percent(max(scores.get(c, 0.0) for scores in every)) for c in COLUMNS}

    def cell(column: str, mean: float, half: float | None) -> dict[str, Any]:
        text = _percent(mean)
        width = None if half is None else _percent(half)
        return {"value": mean, "mean": text, "half": width, "best": text == best[column]}

    rows = [
        {
            "label": s.method,
            "seeds": s.seeds,
            "cells": [cell(c, s.mean[c], s.half_width[c]) for c in COLUMNS],
            "seconds": s.train_seconds,
        }
        for s in standings
    ]
    floors = {
        title: [cell(c, scores[c], None) if c in scores else None for c in COLUMNS]
        for title, scores in (("untrained network", untrained), ("raw pixels", pixels))
    }
    return {"heads": [{"key": c, "text": _head(c)} for c in COLUMNS], "rows": rows, "floors": floors}


def _finding(standings: Sequence[Standing], pixels: dict[str, float]) -> str:
    """What the leaderboard shows, in a sentence or two, by mean MAP@R and its intervals."""
    first, *others = standings
    text = f"{first.method} has the highest mean test MAP@R, {_interval(first)}"
    if first.half_width["map@r"] is None:
        text += "; one seed gives no interval, so no difference is shown"
    elif others:
        level = [f"that of {s.method}" for s in others if _overlap(first, s)]
        apart = "; its interval overlaps no other"
        text += f"; its interval overlaps {_join(level)}, so no difference between them is shown" if level else apart
    floor = pixels["map@r"]
    beaten = "which no method exceeds" if floor >= first.mean["map@r"] else "without any training"
    return f"{text}. Raw pixels reach {_percent(floor)} %, {beaten}."


def _overlap(one: Standing, other: Standing) -> bool:
    """Whether two intervals of MAP@R overlap; a single seed leaves everything possible."""
    a, b = one.half_width["map@r"], other.half_width["map@r"]
    return a is None or b is None or abs(one.mean["map@r"] - other.mean["map@r"]) <= a + b


def _notices(methods: Sequence[dict[str, Any]], val_classes: int) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = []
    if val_classes == 1:
        found.append(
            "There is a single validation class, so every validation neighbour is right, validation scores are always "
            "100 % and the step was not really chosen. Use data with more training classes or raise data.val_fraction."
        )
    facts = ("data", "split", "nearfield", "commit", "torch")
    differing = [fact for fact in facts if len(_distinct(methods, fact)) > 1]
    if differing:
        found.append(f"The runs differ in {_join(differing)} (see Provenance), so their scores may not be comparable.")
    return found


def _charts(store: Store, methods: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Validation MAP@R by step: mean over seeds, with a band from the lowest seed to the highest."""
    series = []
    for method in methods:
        at: dict[int, list[float]] = {}
        for run in method["runs"]:
            for step, value in store.curve(run["run"], "map@r"):
                at.setdefault(step, []).append(100 * value)
        points = [(step, min(v), sum(v) / len(v), max(v)) for step, v in sorted(at.items())]
        series.append(Series(method["label"], points))
    return {name: line_chart(series, *size) for name, size in CHARTS.items()}


# ---------------------------------------------------------------------------------------------------------------
# Retrieval gallery


def _gallery(bench: Path, store: Store, methods: Sequence[dict[str, Any]], config: BenchConfig) -> dict[str, Any]:
    """The same queries for every method's first seed with their nearest neighbours, or why there are none."""
    try:
        dataset = _same_data(methods, config)
        embeddings = [_embeddings(bench / m["runs"][0]["folder"]) for m in methods]  # M x (Q, D)
    except RunError as error:
        return {"missing": str(error), "groups": []}
    rows = dataset.test_rows()  # (Q,)
    labels = dataset.labels[rows]
    scores = np.stack([store.query_scores(m["runs"][0]["run"], "map@r") for m in methods])  # (M, Q)
    groups = choose_queries(scores.mean(axis=0), labels, PER_GROUP)
    chosen = [query for queries in groups.values() for query in queries]
    near = [dict(zip(chosen, _neighbours(e, chosen), strict=True)) for e in embeddings]  # M x {query: neighbours}
    pictures = {int(i): _picture(dataset, int(rows[i])) for n in near for q, found in n.items() for i in [q, *found]}

    def strip(number: int, query: int) -> dict[str, Any]:
        found = [{**pictures[i], "right": bool(labels[i] == labels[query])} for i in near[number][query]]
        return {"score": _percent(float(scores[number, query])), "neighbours": found}

    def shown(query: int) -> dict[str, Any]:
        return {**pictures[query], "strips": [strip(number, query) for number in range(len(methods))]}

    return {"missing": None, "groups": [{"title": t, "queries": [shown(q) for q in qs]} for t, qs in groups.items()]}


def choose_queries(
    scores: npt.NDArray[np.floating[Any]], labels: npt.NDArray[np.int64], count: int
) -> dict[str, list[int]]:
    """`count` queries each with the worst, the most ordinary and the best scores (Q,), from as many classes as can be.

    A fixed shuffle decides between equal scores; a query without any match (NaN) is never chosen.
    """
    usable = np.random.Generator(np.random.PCG64(0)).permutation(np.flatnonzero(~np.isnan(scores)))
    values = scores[usable]
    distances = {"Worst": values, "Median": np.abs(values - np.median(values)), "Best": -values}
    chosen: dict[str, list[int]] = {}
    taken: set[int] = set()
    for group, distance in distances.items():
        order = [q for q in usable[np.argsort(distance, kind="stable")].tolist() if q not in taken]
        chosen[group] = _classes_in_turn(order, labels)[:count]
        taken.update(chosen[group])
    return chosen


def _classes_in_turn(order: Sequence[int], labels: npt.NDArray[np.int64]) -> list[int]:
    """The first query of every class in the order given, then the second of every class, and so on."""
    seen: Counter[int] = Counter()
    turns = []
    for query in order:
        turns.append(seen[int(labels[query])])
        seen[int(labels[query])] += 1
    return [order[i] for i in np.argsort(turns, kind="stable")]


def _same_data(methods: Sequence[dict[str, Any]], config: BenchConfig) -> Dataset:
    """The data that the runs were made on; RunError if what is here now differs."""
    dataset = load(config.run.data.name)
    if _distinct(methods, "data") != [dataset.fingerprint]:
        raise RunError(
            f"the data {dataset.name} on this machine ({dataset.fingerprint[:12]}) is not what the runs were made on; "
            "write the report where the bench was run."
        )
    return dataset


def _embeddings(folder: Path) -> Tensor:
    """Test embeddings (Q, D) of a finished run."""
    try:
        return load_file(folder / "test.safetensors")["embeddings"].float()
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot read the test embeddings of {folder.name}: {error}; run the bench again.") from error


def _neighbours(embeddings: Tensor, queries: Sequence[int]) -> Iterator[list[int]]:
    """The nearest other items of each query, nearest first; the query itself is left out by its index."""
    k = min(NEIGHBOURS + 1, len(embeddings))
    found = nearest_neighbours(embeddings[list(queries)], embeddings, k=k)[1]  # (len(queries), k)
    for query, items in zip(queries, found.tolist(), strict=True):
        yield [item for item in items if item != query][:NEIGHBOURS]


def _picture(dataset: Dataset, row: int) -> dict[str, str]:
    """An image as a data URI with its class and category."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(dataset.images[row])).save(buffer, format="PNG", optimize=True)  # (H, W)
    kind = int(dataset.labels[row])
    return {
        "uri": f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}",
        "name": dataset.class_names[kind],
        "category": dataset.category_names[int(dataset.class_category[kind])],
    }


# ---------------------------------------------------------------------------------------------------------------
# Provenance


def command(config: BenchConfig) -> str:
    """The command line that runs this bench: every key that differs from its default."""
    default = dict(_leaves(BenchConfig().model_dump(mode="json")))
    changed = [(k, v) for k, v in _leaves(config.model_dump(mode="json")) if k not in default or default[k] != v]
    return " ".join(["nearfield bench", *(f"--set {shlex.quote(f'{key}={_toml(value)}')}" for key, value in changed)])


def _leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _toml(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _provenance(methods: Sequence[dict[str, Any]], config: BenchConfig) -> dict[str, str]:
    """What the numbers depend on, from the finished runs themselves; several values where the runs differ."""
    names = {
        "data": "Data fingerprint",
        "split": "Split fingerprint",
        "nearfield": "Nearfield",
        "commit": "Commit",
        "python": "Python",
        "torch": "PyTorch",
        "numpy": "NumPy",
        "platform": "Platform",
    }
    facts = {"Configuration hash": config.digest(), "Seeds": ", ".join(map(str, config.seeds))}
    return facts | {title: ", ".join(_distinct(methods, key)) for key, title in names.items()}


def _distinct(methods: Sequence[dict[str, Any]], fact: str) -> list[str]:
    """The values that a fact about the environment takes over all finished runs."""
    values = {run["environment"].get(fact) for method in methods for run in method["runs"]}
    return sorted("unknown" if value is None else str(value) for value in values)


# ---------------------------------------------------------------------------------------------------------------
# Words


def _head(metric: str) -> str:
    return HEADS.get(metric, metric.replace("recall", "R"))


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _interval(standing: Standing) -> str:
    half = standing.half_width["map@r"]
    return f"{_percent(standing.mean['map@r'])}{'' if half is None else f' ± {_percent(half)}'} %"


def _join(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
