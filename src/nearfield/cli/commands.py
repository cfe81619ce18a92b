"""What each command of the command line does: read the arguments, call the library, print."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from nearfield.cli.show import StopFlag, report_progress
from nearfield.config import RunConfig, build_config, merge
from nearfield.errors import InputError
from nearfield.recipes import config_values

if TYPE_CHECKING:
    from nearfield.losses.registry import Method

console = Console(highlight=False)
notes = Console(stderr=True, highlight=False)


def train(arguments: argparse.Namespace) -> None:
    """Train one run; see `nearfield.training.loop`."""
    from nearfield.training.loop import Interrupted, check
    from nearfield.training.loop import train as run_training
    from nearfield.training.trackers import tracker

    values = config_values(arguments.config) if arguments.config else {}
    if arguments.batch_size is not None:
        values.setdefault("sampler", {})["batch_size"] = arguments.batch_size
    if arguments.chunk is not None:
        values["chunk"] = arguments.chunk
    config = build_config(RunConfig, merge(values, arguments.overrides))
    dataset = check(config)
    stopping = StopFlag().listen()
    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun started
    kind = arguments.progress if first else "none"
    try:
        with (
            report_progress(kind, config.method.name, stopping) as report,
            tracker(arguments.track if first else [], arguments.out, config) as trackers,
        ):
            result = run_training(config, arguments.out, report, stopping, dataset=dataset, track=trackers.log)
    except Interrupted:
        raise KeyboardInterrupt from None
    if first and arguments.json:
        console.print_json(json.dumps(result))
    elif first and arguments.progress == "bar":
        scores = ", ".join(f"{k} {100 * v:.2f}" for k, v in result["test"].items())
        console.print(
            f"{result['method']} seed {result['seed']}, step {result['best_step']}: test {scores}", soft_wrap=True
        )
        console.print(f"Folder: {arguments.out}", soft_wrap=True)


def embed(arguments: argparse.Namespace) -> None:
    """Embed a dataset into a file; see `nearfield.export.embed_dataset`."""
    from nearfield.export.embed_dataset import as_trained, at_size, embed_to_file, open_images, open_model

    dataset = open_images(arguments.data)
    model = open_model(arguments.model, arguments.weights, dataset)
    dataset = at_size(dataset, arguments.size, arguments.resize) if arguments.size else as_trained(dataset, model)
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
    """Metrics of embeddings on disk; see `nearfield.metrics.from_files`."""
    from nearfield.metrics.from_files import evaluate_files

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
    """General Pair Weighting by measurement; see `nearfield.inspection.pair_weighting`."""
    from nearfield import losses
    from nearfield.inspection.pair_weighting import BY_CLUSTER, DISAGREEMENTS, TABLE_PARAMS, similarity_types
    from nearfield.pairs import PairLoss

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
    from nearfield.inspection.pair_weighting import plot_weights
    from nearfield.samplers import MPerClassSampler

    dataset = data.load(arguments.data)
    classes = min(8, len(dataset.class_names))
    rows = next(iter(MPerClassSampler(dataset.labels, 6 * classes, 6, seed=0)))
    pixels = torch.from_numpy(dataset.images[rows]).flatten(1).double()
    out = plot_weights(loss, name, pixels - pixels.mean(0), torch.from_numpy(dataset.labels[rows]), arguments.plot)
    console.print(f"Plot: {out}", soft_wrap=True)


def check_gradients(arguments: argparse.Namespace) -> int:
    """Certify a loss; see `nearfield.inspection.gradients`."""
    from nearfield.inspection.gradients import TOLERANCE, certify, find_loss

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
    """Write a bench's report: a page, or text where the file's name ends in .md."""
    from rich.markup import escape

    from nearfield.report import write_markdown, write_report

    out = arguments.out or arguments.bench / "report.html"
    if out.suffix == ".md":
        if arguments.pictures:
            raise InputError(f"--pictures is for pages, and {out} is text; leave it out, or write a .html file.")
        for file in write_markdown(arguments.bench, out):
            console.print(f"Written: {file}", soft_wrap=True)
        return
    with notes.status("Reading the results") as status:
        write_report(arguments.bench, out, arguments.pictures, lambda line: status.update(escape(line)))
    console.print(f"Report: {out}", soft_wrap=True)


# ---------------------------------------------------------------------------------------------------------------
# Showing


def _defaults(method: Any) -> dict[str, Any]:
    return {n: None if p.default is p.empty else p.default for n, p in method.parameters.items()}


def _numbers(latest: dict[str, float]) -> str:
    return "  ".join(f"{k} {v:.3f}" for k, v in latest.items() if k != "step")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[info]}"), console=notes)
