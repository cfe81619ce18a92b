"""How long a bench takes: measured before it starts, and from its finished and running tasks while it runs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from itertools import islice
from statistics import fmean
from typing import NamedTuple

import torch

from nearfield.bench.plan import LONGER, Bench
from nearfield.config import RunConfig
from nearfield.data import Dataset
from nearfield.metrics import retrieval_metrics
from nearfield.metrics.dataset_scores import score_test
from nearfield.models import build_model, embed
from nearfield.samplers import SamplerWarning
from nearfield.training.batches import Supply
from nearfield.training.build import build_learner, build_sampler, distance_of, ensemble_size
from nearfield.training.optimizers import build_optimizer

Spent = Sequence[tuple[str, float]]  # label and seconds of every finished task


class Pace(NamedTuple):
    """How far a running task is, and how long all of it takes at its speed."""

    label: str
    share: float
    seconds: float | None  # None before there is a speed


def seconds_left(bench: Bench, spent: Spent, running: Sequence[Pace], workers: int) -> float | None:
    """Time for what is left; None as long as no task is finished and no running one has a speed.

    A task takes as long as the finished ones of its method on average, else as the running ones of its method will;
    where there are neither, as those of all methods.
    """
    expected = [(each.label, each.seconds) for each in running if each.seconds is not None]
    if not spent and not expected:
        return None
    usual = fmean(seconds for _, seconds in spent or expected)
    tested = (bench.total - sum(bench.trials)) / len(bench.labels)
    left = 0.0
    for label, trials in zip(bench.labels, bench.trials, strict=True):
        done = [seconds for name, seconds in spent if name == label]
        known = done or [seconds for name, seconds in expected if name == label]
        shares = sum(pace.share for pace in running if pace.label == label)
        left += max(0.0, trials + tested - len(done) - shares) * (fmean(known) if known else usual)
    return left / workers


def typical_seconds(label: str, spent: Spent) -> float:
    """How long a task of this method takes, judged by finished ones of its own, else of any method; 0 without any."""
    own = [seconds for name, seconds in spent if name == label]
    return max(own or [seconds for _, seconds in spent], default=0.0)


def estimate_seconds(bench: Bench, dataset: Dataset, jobs: int) -> float:
    """Time that all tasks will take, from a few training steps of every method, and one scoring, made now."""
    config, rules = bench.config, bench.protocol
    run = rules.runs(config.run)[0]
    looks = -(-run.steps // run.eval_every)
    val, test = time_scoring(run, dataset)
    trained = [run.steps * time_steps(start, dataset) + looks * val for _, start, _ in bench.starts]
    share = (config.trial_steps or run.steps) / run.steps
    tried = share * sum(trials * seconds for trials, seconds in zip(bench.trials, trained, strict=True))
    longer = (LONGER - 1) * len(bench.labels) * config.variant_seeds * ("longer" in config.variants)  # in usual runs
    tested = (bench.total - sum(bench.trials) + longer) * (fmean(trained) + test * (1 + looks * rules.oracle))
    return (rules.trial_folds * tried + rules.folds * tested) / max(1, jobs)


def time_steps(run: RunConfig, dataset: Dataset, steps: int = 4) -> float:
    """Seconds that one training step takes here, from a few made for the purpose."""
    run = run if ensemble_size(run) == 1 else run.model_copy(update={"member": 0})
    torch.set_num_threads(run.threads)
    supply = Supply(dataset, run.data)
    model, loss, forward = build_learner(run, supply.parts.fit_classes, supply.features)
    supply = supply.behind_frozen(model)
    optimizer = build_optimizer(model, loss, run.optimizer)
    begun = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)  # of classes that are left out: the bench says so
        sampler = build_sampler(run, supply.fit_labels, supply.categories, supply.category_names)
    batches = supply.batches(sampler, first=0, seed=run.seed)
    for step, batch in enumerate(islice(batches, steps + 1)):  # of one batch each, whatever an update has
        begun = time.monotonic() if step == 1 else begun  # the first one warms up
        optimizer.zero_grad()
        loss(forward(batch.images), batch.labels).backward()
        optimizer.step()
    return run.accumulate * (time.monotonic() - begun) / steps


def time_scoring(run: RunConfig, dataset: Dataset) -> tuple[float, float]:
    """Seconds that scoring the held-out classes, and the test classes, takes here."""
    supply = Supply(dataset, run.data)
    model = build_model(run.model, run.seed, supply.features)
    supply = supply.behind_frozen(model)
    begun = time.monotonic()
    retrieval_metrics(
        embed(model, supply.rows(supply.parts.val)), supply.labels[supply.parts.val], metrics=("map_at_r",)
    )
    between = time.monotonic()
    score_test(dataset, embed(model, supply.rows(supply.parts.test)), distance_of(run))
    return between - begun, time.monotonic() - between
