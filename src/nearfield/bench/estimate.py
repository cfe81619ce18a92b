"""How long a bench takes: measured before it starts, and from its finished and running tasks while it runs."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import islice
from statistics import fmean

import torch

from nearfield.bench.plan import Bench
from nearfield.config import RunConfig
from nearfield.data import Dataset
from nearfield.metrics import retrieval_metrics
from nearfield.metrics.dataset_scores import score_test
from nearfield.models import build_model, embed
from nearfield.training.batches import Supply
from nearfield.training.build import build_learner, build_sampler, ensemble_size
from nearfield.training.optimizers import build_optimizer


def seconds_left(
    bench: Bench, spent: list[tuple[str, float]], running: tuple[tuple[str, float], ...], workers: int
) -> float | None:
    """Time for what is left: tasks of a method take as long as its finished ones on average; None if there are none."""
    if not spent:
        return None
    by_label: dict[str, list[float]] = defaultdict(list)
    for name, seconds in spent:
        by_label[name].append(seconds)
    each = bench.total / len(bench.labels)
    usual = fmean(seconds for _, seconds in spent)
    left = sum(
        max(0.0, each - len(by_label[name])) * (fmean(by_label[name]) if by_label[name] else usual)
        for name in bench.labels
    )
    return max(0.0, left - usual * sum(share for _, share in running)) / workers


def estimate_seconds(bench: Bench, dataset: Dataset, jobs: int) -> float:
    """Time that all tasks will take, from a few training steps of every method, and one scoring, made now."""
    config, rules = bench.config, bench.protocol
    run = rules.runs(config.run)[0]
    looks = -(-run.steps // run.eval_every)
    val, test = time_scoring(run, dataset)
    network = run.steps * fmean(time_steps(start, dataset) for _, start, _ in bench.starts) + looks * val
    trials = len(config.methods) * config.trials if config.trials > 1 else 0
    tested = network + test * (1 + looks * rules.oracle)
    return rules.folds * (trials * network + (bench.total - trials) * tested) / max(1, jobs)


def time_steps(run: RunConfig, dataset: Dataset, steps: int = 4) -> float:
    """Seconds that one training step takes here, from a few made for the purpose."""
    run = run if ensemble_size(run) == 1 else run.model_copy(update={"member": 0})
    torch.set_num_threads(run.threads)
    supply = Supply(dataset, run.data)
    model, loss, forward = build_learner(run, supply.parts.fit_classes, supply.features)
    optimizer = build_optimizer(model, loss, run.optimizer)
    begun = 0.0
    batches = supply.batches(build_sampler(run, supply.fit_labels, supply.categories), first=0, seed=run.seed)
    for step, batch in enumerate(islice(batches, steps + 1)):
        begun = time.monotonic() if step == 1 else begun  # the first one warms up
        optimizer.zero_grad()
        loss(forward(batch.images), batch.labels).backward()
        optimizer.step()
    return (time.monotonic() - begun) / steps


def time_scoring(run: RunConfig, dataset: Dataset) -> tuple[float, float]:
    """Seconds that scoring the classes held out, and the test classes, takes here."""
    supply = Supply(dataset, run.data)
    model = build_model(run.model, run.seed, supply.features)
    begun = time.monotonic()
    retrieval_metrics(
        embed(model, supply.rows(supply.parts.val)), supply.labels[supply.parts.val], metrics=("map_at_r",)
    )
    between = time.monotonic()
    score_test(dataset, embed(model, supply.rows(supply.parts.test)), run.distance)
    return between - begun, time.monotonic() - between
