"""The training loop, read from top to bottom.

Axes: B images of a batch, D embedding dims.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nearfield import losses
from nearfield.config import RunConfig
from nearfield.data import Dataset, load, split_classes, split_fingerprint
from nearfield.errors import RunError
from nearfield.metrics import retrieval_metrics
from nearfield.models import build_model, embed
from nearfield.runs import RunFolder
from nearfield.samplers import BatchSampler, MPerClassSampler, ShuffleSampler

KS = (1, 2, 4, 8)
METRICS = ("recall", "r_precision", "map_at_r")
Progress = Callable[[int, int, dict[str, float]], None]  # (step, steps, latest numbers)


class Interrupted(BaseException):
    """The run was asked to stop; its checkpoint is written."""


class Parts(NamedTuple):
    """The data of a run: classes to fit, classes to choose the epoch by, classes to report."""

    fit: Tensor  # indices of images
    val: Tensor
    test: Tensor
    fit_classes: int
    val_classes: int
    fingerprint: str


def split(dataset: Dataset, config: RunConfig) -> Parts:
    """Class-disjoint parts; the same for every method and seed, as only `data.split_seed` decides."""
    fit, val = split_classes(dataset.train_classes, config.data.val_fraction, config.data.split_seed)
    a, b, c = (torch.from_numpy(dataset.indices_of(classes)) for classes in (fit, val, dataset.test_classes))
    return Parts(a, b, c, len(fit), len(val), split_fingerprint(fit, val, dataset.test_classes))


def check(config: RunConfig) -> Dataset:
    """The run's dataset; InputError if the method, its parameters or the data do not exist."""
    build_loss(config, num_classes=2)
    return load(config.data.name)


def train(
    config: RunConfig, folder: Path, progress: Progress | None = None, stop: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Train and test as `config` says, in `folder`, going on from its checkpoint if there is one; the result.

    `stop` is asked after every step; when it says so a checkpoint is written and `Interrupted` raised.
    """
    run = RunFolder(folder)
    with run.locked():
        if run.result is not None:
            return run.result
        torch.set_num_threads(config.threads)
        dataset = check(config)
        parts = split(dataset, config)
        run.begin(config, {"data": dataset.fingerprint, "split": parts.fingerprint})
        return _train(config, run, dataset, parts, progress or _silent, stop or _never)


def _train(
    config: RunConfig, run: RunFolder, dataset: Dataset, parts: Parts, progress: Progress, stop: Callable[[], bool]
) -> dict[str, Any]:
    images, labels = torch.from_numpy(np.asarray(dataset.images)), torch.from_numpy(dataset.labels)
    fit_labels = torch.unique(labels[parts.fit], return_inverse=True)[1]  # renumbered from 0, for proxies
    sampler = build_sampler(config, fit_labels)
    model = build_model(config.model, config.seed)
    loss = build_loss(config, num_classes=parts.fit_classes)
    optimizer = build_optimizer(config, model, loss)
    step, best_score, best_step, seconds = 0, -math.inf, 0, 0.0
    best = _copy(model)

    checkpoint = run.load()
    if checkpoint is not None:
        weights, best, state = checkpoint
        _restore({"model": model, "loss": loss}, weights)
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
        step, best_score, best_step, seconds = state["step"], state["best_score"], state["best_step"], state["seconds"]
    run.forget_after(step)

    def save() -> None:
        state: dict[str, Any] = {"optimizer": optimizer.state_dict(), "sampler": sampler.state_dict()}
        state |= {"step": step, "best_score": best_score, "best_step": best_step, "seconds": seconds}
        run.save(step, _weights({"model": model, "loss": loss}), best, state)

    latest: dict[str, float] = {}
    while step < config.steps:
        for batch in sampler:
            begun = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * learning_rate_factor(step, config)
            rows = torch.tensor(batch)
            value = loss(model(images[parts.fit[rows]]), fit_labels[rows])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            step += 1
            latest["loss"] = value.item()
            if not math.isfinite(latest["loss"]):
                raise RunError(
                    f"the loss became {latest['loss']} at step {step}; lower optimizer.lr or check the data."
                )
            seconds += time.monotonic() - begun

            if step % config.eval_every == 0 or step == config.steps:
                scores = evaluate(model, images[parts.val], labels[parts.val])
                if scores[config.select_by] > best_score:
                    best, best_score, best_step = _copy(model), scores[config.select_by], step
                latest[config.select_by] = scores[config.select_by]
                run.log({"step": step, "loss": latest["loss"], **{f"val_{k}": v for k, v in scores.items()}})
                save()
            progress(step, config.steps, latest)
            if stop():
                save()
                raise Interrupted
            if step == config.steps:
                break

    _restore({"": model}, best)
    embeddings = embed(model, images[parts.test])
    scores, queries = retrieval_metrics(embeddings, labels[parts.test], KS, metrics=(*METRICS, "nmi"), per_query=True)
    result = {
        "method": config.method.name,
        "seed": config.seed,
        "config": config.digest(),
        "split": parts.fingerprint,
        "fit_classes": parts.fit_classes,
        "val_classes": parts.val_classes,
        "best_step": best_step,
        "steps": config.steps,
        "train_seconds": round(seconds, 3),
        "test": scores,
    }
    test = {f"score.{name}": value.float().contiguous() for name, value in queries.scores.items()}
    run.finish(best, {**test, "embeddings": embeddings.half()}, result)
    return result


def time_steps(config: RunConfig, dataset: Dataset, steps: int = 4) -> float:
    """Seconds that one training step takes here, from a few made for the purpose."""
    images, parts = torch.from_numpy(np.asarray(dataset.images)), split(dataset, config)
    labels = torch.unique(torch.from_numpy(dataset.labels)[parts.fit], return_inverse=True)[1]
    model, loss = build_model(config.model, 0), build_loss(config, parts.fit_classes)
    optimizer = build_optimizer(config, model, loss)
    rows = torch.tensor(next(iter(build_sampler(config, labels))))
    begun = 0.0
    for step in range(steps + 1):
        begun = time.monotonic() if step == 1 else begun  # the first one warms up
        optimizer.zero_grad()
        loss(model(images[parts.fit[rows]]), labels[rows]).backward()
        optimizer.step()
    return (time.monotonic() - begun) / steps


def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Retrieval scores of the model on some classes, each image a query against all others."""
    return retrieval_metrics(embed(model, images), labels, ks=KS, metrics=METRICS)


def build_sampler(config: RunConfig, labels: Tensor) -> BatchSampler:
    """The batch sampler that the configuration names."""
    chosen = config.sampler
    name = losses.method(config.method.name).sampler if chosen.name == "auto" else chosen.name
    if name == "shuffle":
        return ShuffleSampler(labels.numpy(), chosen.batch_size, config.seed)
    return MPerClassSampler(labels.numpy(), chosen.batch_size, chosen.per_class, config.seed)


def build_loss(config: RunConfig, num_classes: int) -> nn.Module:
    """The method's loss; what it must know of the data is filled in, its parameters depend on the seed alone."""
    needed = losses.method(config.method.name).parameters
    known: dict[str, Any] = {"num_classes": num_classes, "dim": config.model.dim}
    given = {name: value for name, value in known.items() if name in needed}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return losses.create(config.method.name, **{**given, **config.method.params})


def build_optimizer(config: RunConfig, model: nn.Module, loss: nn.Module) -> torch.optim.Optimizer:
    """AdamW over the network and, at a rate of their own and without decay, the parameters inside the loss."""
    chosen = config.optimizer
    groups = [{"params": list(model.parameters()), "base_lr": chosen.lr, "weight_decay": chosen.weight_decay}]
    if any(True for _ in loss.parameters()):
        groups.append({"params": list(loss.parameters()), "base_lr": chosen.loss_lr, "weight_decay": 0.0})
    return torch.optim.AdamW(groups, lr=chosen.lr)


def learning_rate_factor(step: int, config: RunConfig) -> float:
    """Linear warm-up, then half a cosine down to 0 at the last step."""
    warm = config.optimizer.warmup_steps
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, config.steps - warm)))


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in _weights({"": model}).items()}


def _weights(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The state of several modules in one flat dict."""
    return {
        f"{prefix}.{name}".lstrip("."): value.contiguous()
        for prefix, module in modules.items()
        for name, value in module.state_dict().items()
    }


def _restore(modules: dict[str, nn.Module], weights: dict[str, Tensor]) -> None:
    for prefix, module in modules.items():
        start = f"{prefix}." if prefix else ""
        module.load_state_dict({n[len(start) :]: v for n, v in weights.items() if n.startswith(start)})


def _silent(step: int, steps: int, latest: dict[str, float]) -> None:
    pass


def _never() -> bool:
    return False
