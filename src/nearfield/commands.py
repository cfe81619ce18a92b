"""What each command of the command line does: read the arguments, call the library, print."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from nearfield.config import BenchConfig, RunConfig, build_config, merge, read_toml
from nearfield.errors import InputError

if TYPE_CHECKING:
    from nearfield.registry import Method

console = Console(highlight=False)
notes = Console(stderr=True, highlight=False)
SHORT = {
    "recall@1": "R@1",
    "recall@2": "R@2",
    "recall@4": "R@4",
    "recall@8": "R@8",
    "r_precision": "RP",
    "map@r": "MAP@R",
}


def bench(arguments: argparse.Namespace) -> None:
    """Compare methods; see `nearfield.bench`."""
    from nearfield.bench import Job, check_bench, estimate_seconds, plan, run_bench

    config = bench_config(arguments)
    jobs = arguments.jobs or os.cpu_count() or 1
    if jobs < 1:
        raise InputError(f"--jobs must be at least 1; got {jobs}.")
    dataset = check_bench(config)
    planned = plan(config, arguments.out)
    pending = [job for job in planned if not job.done]
    if arguments.dry_run:
        _print_plan(config, planned, estimate_seconds(config, dataset, jobs, pending), jobs, arguments.json)
        return
    notes.print(
        f"{len(planned)} runs, {len(planned) - len(pending)} finished before; {jobs} at a time, in {arguments.out}"
    )
    with _progress() as bar:
        total = bar.add_task("all runs", total=len(pending) * config.run.steps, info="")
        tasks = {job.folder: bar.add_task(job.name, total=config.run.steps, info="", visible=False) for job in pending}

        def watch(job: Job, step: int, latest: dict[str, float]) -> None:
            bar.update(tasks[job.folder], completed=step, visible=step < config.run.steps, info=_numbers(latest))
            bar.update(total, completed=sum(bar.tasks[t].completed for t in tasks.values()))

        standings = run_bench(config, arguments.out, jobs, watch)
    from nearfield.report import write_report

    report = write_report(arguments.out, arguments.out / "report.html")
    if arguments.json:
        console.print_json(json.dumps({"leaderboard": [asdict(s) for s in standings], "report": str(report)}))
        return
    wide = console if console.is_terminal else Console(highlight=False, width=140)
    wide.print(leaderboard_table(standings, arguments.out, config))
    console.print(f"Report: {report}", soft_wrap=True)


def bench_config(arguments: argparse.Namespace) -> BenchConfig:
    """The configuration file, then the shortcuts, then `--set`."""
    values = read_toml(arguments.config) if arguments.config else {}
    if arguments.methods:
        values["methods"] = [{"name": name} for name in _method_names(arguments.methods)]
    if arguments.seeds is not None:
        values["seeds"] = list(range(arguments.seeds))
    if arguments.data:
        values.setdefault("run", {}).setdefault("data", {})["name"] = arguments.data
    return build_config(BenchConfig, merge(values, arguments.overrides))


def _method_names(given: list[str]) -> list[str]:
    if given != ["all"]:
        return given
    from nearfield import losses

    return losses.names()


def leaderboard_table(standings: list[Any], folder: Path, config: BenchConfig) -> Table:
    """The leaderboard as a terminal table, in percent, with an untrained network and raw pixels as floors."""
    from nearfield.bench import COLUMNS
    from nearfield.store import Store

    title = f"{config.run.data.name}, test classes, {len(config.seeds)} seeds: percent, mean ± 95 % interval"
    heads = [SHORT.get(c, c.upper()) for c in COLUMNS]
    table = Table("method", *heads, "seconds", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for standing in standings:
        cells = [_percent(standing.mean[c], standing.half_width[c]) for c in COLUMNS]
        table.add_row(standing.method, *cells, f"{standing.train_seconds:.0f}")
    meta = Store(folder / "results.sqlite").meta()
    table.add_section()
    for title, scores in (("untrained network", meta["untrained"]), ("raw pixels", meta["pixels"])):
        table.add_row(title, *[_percent(scores[c], None) if c in scores else "" for c in COLUMNS], "")
    return table


def train(arguments: argparse.Namespace) -> None:
    """Train one run; see `nearfield.training`."""
    from nearfield.training import Interrupted, check
    from nearfield.training import train as run_training

    values = read_toml(arguments.config) if arguments.config else {}
    if arguments.batch_size is not None:
        values.setdefault("sampler", {})["batch_size"] = arguments.batch_size
    if arguments.chunk is not None:
        values["chunk"] = arguments.chunk
    config = build_config(RunConfig, merge(values, arguments.overrides))
    check(config)
    stopping = _StopFlag()
    try:
        with _report_progress(arguments.progress, config, stopping) as report:
            result = run_training(config, arguments.out, report, stopping)
    except Interrupted:
        raise KeyboardInterrupt from None
    if arguments.json:
        console.print_json(json.dumps(result))
    elif arguments.progress == "bar":
        scores = ", ".join(f"{k} {100 * v:.2f}" for k, v in result["test"].items())
        console.print(
            f"{result['method']} seed {result['seed']}, step {result['best_step']}: test {scores}", soft_wrap=True
        )
        console.print(f"Folder: {arguments.out}", soft_wrap=True)


def embed(arguments: argparse.Namespace) -> None:
    """Embed a dataset into a file; see `nearfield.embedding`."""
    from nearfield import data
    from nearfield.embedding import at_size, embed_to_file, open_model

    dataset = at_size(data.load(arguments.data), arguments.size, arguments.resize)
    model = open_model(arguments.model, arguments.weights, dataset)
    with _progress() as bar:
        task = bar.add_task("images", total=None, info="")
        images, dim = embed_to_file(
            model,
            dataset,
            arguments.out,
            arguments.split,
            arguments.batch_size,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    if arguments.json:
        console.print_json(json.dumps({"out": str(arguments.out), "images": images, "dim": dim}))
    else:
        console.print(f"Embeddings: {arguments.out}, {images} images, {dim} dims", soft_wrap=True)


def evaluate(arguments: argparse.Namespace) -> None:
    """Metrics of embeddings on disk; see `nearfield.evalfiles`."""
    from nearfield.evalfiles import evaluate_files

    scores = evaluate_files(
        arguments.embeddings,
        arguments.labels,
        gallery=arguments.gallery,
        gallery_labels=arguments.gallery_labels,
        ks=tuple(arguments.ks),
        metrics=tuple(arguments.metrics),
        distance=arguments.distance,
        ties=arguments.ties,
        per_query=arguments.per_query,
    )
    if arguments.json:
        console.print_json(json.dumps(scores))
        return
    table = Table("metric", "percent")
    table.columns[1].justify = "right"
    for name, value in scores.items():
        table.add_row(name, f"{100 * value:.2f}")
    console.print(table)


def methods(arguments: argparse.Namespace) -> None:
    """List the methods or explain one."""
    from nearfield import losses

    found = [losses.method(arguments.name)] if arguments.name else [losses.method(name) for name in losses.names()]
    if arguments.json:
        facts = [_facts(m) for m in found]
        console.print_json(json.dumps(facts[0] if arguments.name else facts))
        return
    if not arguments.name:
        table = Table("method", "source", "parameters", "sampler")
        for m in found:
            table.add_row(m.name, m.source, ", ".join(_defaults(m)), m.sampler)
        console.print(table)
        return
    (m,) = found
    console.print(f"[bold]{m.name}[/bold]  {m.source}\n", soft_wrap=True)
    console.print(m.idea, soft_wrap=True, markup=False)
    lines = {"defaults": _list(_defaults(m))}
    lines |= {f"variant {name}": _list(preset) for name, preset in m.presets.items()}
    for name, space in m.space.items():
        log = ", log scale" if getattr(space, "log", False) else ""
        lines[f"search {name}"] = f"{space.low} to {space.high}{log}"
    lines["sampler"] = m.sampler
    lines["recipe"] = _list(m.recipe.model_dump(exclude_defaults=True)) if m.recipe else "the run's own optimiser"
    console.print("\n" + "\n".join(f"{key}: {text}" for key, text in lines.items()), soft_wrap=True, markup=False)


def _list(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items()) or "none"


def _facts(m: Method) -> dict[str, Any]:
    return {
        "name": m.name,
        "source": m.source,
        "idea": m.idea,
        "defaults": _defaults(m),
        "presets": {name: dict(preset) for name, preset in m.presets.items()},
        "space": {name: asdict(space) for name, space in m.space.items()},
        "sampler": m.sampler,
        "recipe": m.recipe.model_dump(exclude_defaults=True) if m.recipe else None,
    }


def weights(arguments: argparse.Namespace) -> None:
    """General Pair Weighting by measurement; see `nearfield.weights`."""
    from nearfield import losses
    from nearfield.pairs import PairLoss
    from nearfield.weights import BY_CLUSTER, DISAGREEMENTS, TABLE_PARAMS, similarity_types

    params = merge({}, arguments.overrides)
    names = [arguments.name] if arguments.name else losses.names()
    rows = []
    for name in names:
        method = losses.method(name)
        if not issubclass(method.build, PairLoss) or "dim" in method.parameters or name in BY_CLUSTER:
            continue
        loss = losses.create(name, **{**TABLE_PARAMS.get(name, {}), **params}).eval()
        assert isinstance(loss, PairLoss)
        if arguments.plot:
            return _plot(loss, name, arguments)
        claim = method.similarities
        note = DISAGREEMENTS.get(name, "")
        rows.append({"loss": name, "measured": similarity_types(loss), "paper": claim, "note": note})
    if not rows:
        raise InputError(f"{arguments.name} is not a loss over pairs of a batch; see `nearfield methods`.")
    if arguments.json:
        console.print_json(json.dumps(rows))
        return None
    table = Table(
        "loss", "measured", "paper", "note", title="similarities that the weight of a negative pair responds to"
    )
    for row in rows:
        table.add_row(row["loss"], *(" ".join(row[k]) for k in ("measured", "paper")), row["note"])
    console.print(table)
    console.print("S: its own, all moving together. P: the positives'. N: the other negatives'.")
    return None


def _plot(loss: Any, name: str, arguments: argparse.Namespace) -> None:
    """Draw a loss's weights over a batch of raw pixels."""
    import torch

    from nearfield import data
    from nearfield.samplers import MPerClassSampler
    from nearfield.weights import plot_weights

    dataset = data.load(arguments.data)
    classes = min(8, len(dataset.class_names))
    rows = next(iter(MPerClassSampler(dataset.labels, 6 * classes, 6, seed=0)))
    pixels = torch.from_numpy(dataset.images[rows]).flatten(1).double()
    out = plot_weights(loss, name, pixels - pixels.mean(0), torch.from_numpy(dataset.labels[rows]), arguments.plot)
    console.print(f"Plot: {out}", soft_wrap=True)


def check_gradients(arguments: argparse.Namespace) -> int:
    """Certify a loss; see `nearfield.certify`."""
    from nearfield.certify import TOLERANCE, certify, find_loss

    checks = certify(find_loss(arguments.loss, num_classes=12, dim=16, **merge({}, arguments.overrides)))
    if arguments.json:
        console.print_json(json.dumps([{**c._asdict(), "passed": c.passed} for c in checks]))
    else:
        table = Table("check", "largest relative error", "", "what is compared", title=arguments.loss)
        for c in checks:
            table.add_row(c.name, f"{c.error:.1e}", "ok" if c.passed else f"above {TOLERANCE:g}", c.why)
        console.print(table)
    return 0 if all(c.passed for c in checks) else 1


def report(arguments: argparse.Namespace) -> None:
    """Write a bench's report."""
    from nearfield.report import write_report

    out = write_report(arguments.bench, arguments.out or arguments.bench / "report.html")
    console.print(f"Report: {out}", soft_wrap=True)


# ---------------------------------------------------------------------------------------------------------------
# Showing


def _defaults(method: Any) -> dict[str, Any]:
    return {n: None if p.default is p.empty else p.default for n, p in method.parameters.items()}


def _percent(value: float, half_width: float | None) -> str:
    return f"{100 * value:.1f}" + (f" ± {100 * half_width:.1f}" if half_width is not None else "")


def _numbers(latest: dict[str, float]) -> str:
    return "  ".join(f"{k} {v:.3f}" for k, v in latest.items() if k != "step")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[info]}"), console=notes)


def _print_plan(config: BenchConfig, planned: list[Any], seconds: float, jobs: int, as_json: bool) -> None:
    rows = [
        {"method": j.config.method.name, "seed": j.config.seed, "folds": 1, "steps": j.config.steps, "done": j.done}
        for j in planned
    ]
    if as_json:
        console.print_json(json.dumps({"runs": rows, "digest": config.digest(), "estimated_seconds": seconds}))
        return
    table = Table(
        "method", "seed", "folds", "steps", "state", title=f"bench {config.digest()} on {config.run.data.name}"
    )
    for row in rows:
        state = "finished" if row["done"] else "to run"
        table.add_row(str(row["method"]), str(row["seed"]), str(row["folds"]), str(row["steps"]), state)
    console.print(table)
    console.print(f"about {seconds / 60:.1f} minutes, {jobs} runs at a time")


# ---------------------------------------------------------------------------------------------------------------
# Stopping and progress of a run


class _StopFlag:
    """Set by SIGINT or SIGTERM: the loop finishes its step and saves. A second signal stops at once."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def _report_progress(kind: str, config: RunConfig, stopping: _StopFlag) -> Iterator[Callable[..., None]]:
    """How a run's progress is shown: a bar, or a JSON line now and then for the process that started the run."""
    if kind == "json":
        last = 0.0

        def line(step: int, steps: int, latest: dict[str, float]) -> None:
            nonlocal last
            if time.monotonic() - last > 0.2 or step == steps:
                last = time.monotonic()
                try:
                    print(json.dumps({"step": step, **latest}), flush=True)
                except BrokenPipeError:  # whoever started us is gone: save and stop
                    stopping.asked = True

        yield line
    elif kind == "bar":
        with _progress() as bar:
            task = bar.add_task(config.method.name, total=config.steps, info="")
            yield lambda step, steps, latest: bar.update(task, completed=step, info=_numbers(latest))
    else:
        yield lambda step, steps, latest: None
