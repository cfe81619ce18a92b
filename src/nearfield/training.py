"""The training loop, read from top to bottom.

Axes: B images of a batch, D embedding dims.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nearfield import losses
from nearfield.big_batch import backward_in_chunks
from nearfield.config import RunConfig
from nearfield.data import Dataset, decoded, load, pixels, split_classes, split_fingerprint
from nearfield.doctor import LOOK_EVERY, Doctor, Finding
from nearfield.errors import InputError, RunError
from nearfield.evaluation.inputs import Distance
from nearfield.losses.ensembles import DREML
from nearfield.metrics import retrieval_metrics
from nearfield.models import EmbeddingModel, build_model, embed
from nearfield.models.ensemble import Ensemble
from nearfield.optimizers import build_optimizer
from nearfield.runs import Busy, RunFolder
from nearfield.samplers import BatchSampler
from nearfield.samplers import build_sampler as sampler_by_name

KS = (1, 2, 4, 8)
METRICS = ("recall", "r_precision", "map_at_r")
Progress = Callable[[int, int, dict[str, float]], None]  # (step, steps, latest numbers)


class TrainingWarning(UserWarning):
    """Something goes wrong in training; see `nearfield.doctor`."""


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
    rows = (dataset.train_rows(fit), dataset.train_rows(val), dataset.test_rows())
    a, b, c = (torch.from_numpy(part) for part in rows)
    return Parts(a, b, c, len(fit), len(val), split_fingerprint(fit, val, dataset.test_classes))


def check(config: RunConfig) -> Dataset:
    """The run's dataset; InputError if the method, its parameters or the data do not exist."""
    loss = build_loss(config, num_classes=2)
    if config.member is not None and not (isinstance(loss, DREML) and 0 <= config.member < loss.members):
        raise InputError(f"member is for ensembles, and counts from 0; {config.method.name} has no {config.member}.")
    return decoded(load(config.data.name))


def train(
    config: RunConfig, folder: Path, progress: Progress | None = None, stop: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Train and test as `config` says, in `folder`, going on from its checkpoint if there is one; the result.

    `stop` is asked after every step; when it says so a checkpoint is written and `Interrupted` raised.
    """
    torch.set_num_threads(config.threads)
    dataset = check(config)
    parts = split(dataset, config)
    run = Run(config, RunFolder(folder), dataset, parts, progress or _silent, stop or _never)
    loss = build_loss(config, parts.fit_classes)
    if isinstance(loss, DREML) and config.member is None:
        return _train_ensemble(run, loss.members)
    return _train_alone(run)


class Run(NamedTuple):
    """Everything that a run works with."""

    config: RunConfig
    folder: RunFolder
    dataset: Dataset
    parts: Parts
    progress: Progress
    stop: Callable[[], bool]

    def begin(self) -> None:
        """Write down what the run is."""
        self.folder.begin(self.config, {"data": self.dataset.fingerprint, "split": self.parts.fingerprint})


def _train_alone(run: Run, patience: float = 10.0) -> dict[str, Any]:
    with run.folder.locked(patience):
        if run.folder.result is not None:
            return run.folder.result
        run.begin()
        return _train(*run)


def _train_ensemble(run: Run, members: int) -> dict[str, Any]:
    """Train every member for its share of the steps, then join them.

    Processes started on the same folder share the work: each takes the next member that nobody is training.
    """
    share = max(1, run.config.steps // members)
    every = max(1, min(share, run.config.eval_every // members))
    changes = {"steps": share, "eval_every": every}
    folders = [RunFolder(run.folder.path / f"member-{index:02d}") for index in range(members)]

    def report(step: int, steps: int, latest: dict[str, float]) -> None:
        done = sum(folder.result is not None for folder in folders)
        run.progress(min(done * share + step, members * share), members * share, latest)

    while missing := [index for index, folder in enumerate(folders) if folder.result is None]:
        for index in missing:
            config = run.config.model_copy(update={**changes, "member": index})
            try:
                _train_alone(run._replace(config=config, folder=folders[index], progress=report), patience=0)
            except Busy:
                if run.stop():
                    raise Interrupted from None
                time.sleep(0.2)
    with run.folder.locked():
        if run.folder.result is None:
            run.begin()
            _join(run, [run.config.model_copy(update={**changes, "member": i}) for i in range(members)], folders)
        found = run.folder.result
        assert found is not None
        return found


def _join(run: Run, configs: list[RunConfig], folders: list[RunFolder]) -> None:
    """Score the members' embeddings side by side, and finish the run."""
    images, labels = _tensors(run.dataset)
    fit = images[run.parts.fit]
    ensemble = Ensemble(build_parts(config, run.parts.fit_classes, fit)[0] for config in configs)
    for model, folder in zip(ensemble.members, folders, strict=True):
        model.load_state_dict(folder.weights())
    scores = evaluate(ensemble, images[run.parts.val], labels[run.parts.val], run.config.distance)
    results = [folder.result or {} for folder in folders]
    seconds = sum(result["train_seconds"] for result in results)
    run.folder.forget_after(0)
    run.folder.log({"step": run.config.steps, **{f"val_{k}": v for k, v in scores.items()}})
    _finish(run.config, run.folder, run.parts, ensemble, images, labels, run.config.steps, seconds)


def _train(
    config: RunConfig, run: RunFolder, dataset: Dataset, parts: Parts, progress: Progress, stop: Callable[[], bool]
) -> dict[str, Any]:
    images, labels = _tensors(dataset)
    fit_labels = torch.unique(labels[parts.fit], return_inverse=True)[1]  # renumbered from 0, for proxies
    categories = torch.from_numpy(dataset.class_category)[labels[parts.fit]]
    sampler = build_sampler(config, fit_labels, categories)
    model, loss, forward = build_parts(config, parts.fit_classes, images[parts.fit])
    optimizer = build_optimizer(model, loss, config.optimizer)
    doctor = Doctor(loss, optimizer)
    step, best_score, best_step, seconds = 0, -math.inf, 0, 0.0
    best = _copy(model)

    checkpoint = run.load()
    if checkpoint is not None:
        weights, best, state = checkpoint
        _restore({"model": model, "loss": loss}, weights)
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
        doctor.load_state_dict(state["doctor"])
        step, best_score, best_step, seconds = state["step"], state["best_score"], state["best_step"], state["seconds"]
    run.forget_after(step)

    def save() -> None:
        state: dict[str, Any] = {"optimizer": optimizer.state_dict(), "sampler": sampler.state_dict()}
        state |= {
            "doctor": doctor.state_dict(),
            "step": step,
            "best_score": best_score,
            "best_step": best_step,
            "seconds": seconds,
        }
        run.save(step, _weights({"model": model, "loss": loss}), best, state)

    latest: dict[str, float] = {}
    seen: list[Tensor] = []  # the embeddings of the step, for the doctor

    def watched(embeddings: Tensor, of: Tensor) -> Tensor:
        seen[:] = [embeddings.detach()]
        value: Tensor = loss(embeddings, of)
        return value

    while step < config.steps:
        for batch in sampler:
            begun = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * learning_rate_factor(step, config)
            rows = torch.tensor(batch)
            chosen, of = images[parts.fit[rows]], fit_labels[rows]
            optimizer.zero_grad()
            value = backward_in_chunks(forward, watched, chosen, of, config.chunk or len(rows), batch_norm="chunk")
            optimizer.step()
            step += 1
            latest["loss"] = value.item()
            if not math.isfinite(latest["loss"]):
                raise RunError(
                    f"the loss became {latest['loss']} at step {step}; lower optimizer.lr or check the data."
                )
            if step % LOOK_EVERY == 0:
                _warn(run, doctor.look(step, seen[0], of, latest["loss"]))
            seconds += time.monotonic() - begun

            if step % config.eval_every == 0 or step == config.steps:
                scores = evaluate(model, images[parts.val], labels[parts.val], config.distance)
                if scores[config.select_by] > best_score:
                    best, best_score, best_step = _copy(model), scores[config.select_by], step
                latest[config.select_by] = scores[config.select_by]
                _warn(run, doctor.look_at_scores(step, scores[config.select_by]))
                run.log({"step": step, "loss": latest["loss"], **{f"val_{k}": v for k, v in scores.items()}})
                save()
            progress(step, config.steps, latest)
            if stop():
                save()
                raise Interrupted
            if step == config.steps:
                break

    _restore({"": model}, best)
    return _finish(config, run, parts, model, images, labels, best_step, seconds)


def _warn(run: RunFolder, findings: list[Finding]) -> None:
    """Write down what the doctor found, and say it."""
    for code, step, message in findings:
        run.log({"step": step, "finding": code, "message": message})
        warnings.warn(f"step {step}: {message}", TrainingWarning, stacklevel=3)


def _finish(
    config: RunConfig, run: RunFolder, parts: Parts, model: nn.Module, images: Tensor, labels: Tensor, best_step: int,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Test the chosen weights and write the outcome."""
    embeddings = embed(model, images[parts.test])
    scores, queries = retrieval_metrics(
        embeddings, labels[parts.test], KS, metrics=(*METRICS, "nmi"), distance=config.distance, per_query=True
    )
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
    run.finish(_copy(model), {**test, "embeddings": embeddings.half()}, result)
    return result


def _tensors(dataset: Dataset) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(pixels(dataset)), torch.from_numpy(dataset.labels)


def time_steps(config: RunConfig, dataset: Dataset, steps: int = 4) -> float:
    """Seconds that one training step takes here, from a few made for the purpose."""
    images, parts = _tensors(dataset)[0], split(dataset, config)
    labels = torch.unique(torch.from_numpy(dataset.labels)[parts.fit], return_inverse=True)[1]
    categories = torch.from_numpy(dataset.class_category[dataset.labels])[parts.fit]
    config = config if _members(config) == 1 else config.model_copy(update={"member": 0})
    model, loss, forward = build_parts(config, parts.fit_classes, images[parts.fit])
    optimizer = build_optimizer(model, loss, config.optimizer)
    rows = torch.tensor(next(iter(build_sampler(config, labels, categories))))
    begun = 0.0
    for step in range(steps + 1):
        begun = time.monotonic() if step == 1 else begun  # the first one warms up
        optimizer.zero_grad()
        loss(forward(images[parts.fit[rows]]), labels[rows]).backward()
        optimizer.step()
    return (time.monotonic() - begun) / steps


def evaluate(model: nn.Module, images: Tensor, labels: Tensor, distance: Distance) -> dict[str, float]:
    """Retrieval scores of the model on some classes, each image a query against all others."""
    return retrieval_metrics(embed(model, images), labels, ks=KS, metrics=METRICS, distance=distance)


def build_sampler(config: RunConfig, labels: Tensor, categories: Tensor) -> BatchSampler:
    """The batch sampler that the configuration names, over items with these labels and categories."""
    chosen, seed = config.sampler, _seed(config)
    name = losses.method(config.method.name).sampler if chosen.name == "auto" else chosen.name
    given = (labels.numpy(), chosen.batch_size)
    return sampler_by_name(name, *given, per_class=chosen.per_class, seed=seed, categories=categories.numpy())


def build_parts(
    config: RunConfig, num_classes: int, images: Tensor
) -> tuple[EmbeddingModel, nn.Module, Callable[[Tensor], Tensor]]:
    """The model, the loss, and what gives the loss its input: the model, or its features where the loss has the head.

    Of an ensemble, those of the member that `config` names. `images`, to be fitted, may be features (N, F).
    """
    members = _members(config)
    sizes = {"dim": config.model.dim // members}
    features = images if images.ndim == 2 else None
    model = build_model(config.model.model_copy(update=sizes), _seed(config), features)
    loss = build_loss(config, num_classes, model.num_features)
    if isinstance(loss, DREML):
        assert config.member is not None
        loss = loss.member(config.member)
    embedder = getattr(loss, "embedder", None)
    if embedder is None:
        return model, loss, model
    model.head = embedder
    return model, loss, model.features


def build_loss(config: RunConfig, num_classes: int, features: int | None = None) -> nn.Module:
    """The method's loss; what it must know of the data is filled in, its parameters depend on the seed alone."""
    needed = losses.method(config.method.name).parameters
    known: dict[str, Any] = {"num_classes": num_classes, "dim": config.model.dim, "features": features}
    given = {name: value for name, value in known.items() if name in needed}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return losses.create(config.method.name, **{**given, **config.method.params})


def _members(config: RunConfig) -> int:
    loss = build_loss(config, num_classes=2)
    return loss.members if isinstance(loss, DREML) else 1


def _seed(config: RunConfig) -> int:
    """Of the network and its batches; members of an ensemble have their own."""
    return config.seed if config.member is None else (config.seed + 1) * 1000 + config.member


def learning_rate_factor(step: int, config: RunConfig) -> float:
    """Linear warm-up, then half a cosine down to 0 at the last step."""
    warm = config.optimizer.warmup_steps
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, config.steps - warm)))


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in _weights({"": model}).items()}


def _weights(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The state of several modules in one flat dict; what two of them share is there twice, as copies."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for prefix, module in modules.items():
        for name, value in module.state_dict().items():
            known = value.data_ptr() in seen
            seen.add(value.data_ptr())
            found[f"{prefix}.{name}".lstrip(".")] = value.clone() if known else value.contiguous()
    return found


def _restore(modules: dict[str, nn.Module], weights: dict[str, Tensor]) -> None:
    for prefix, module in modules.items():
        start = f"{prefix}." if prefix else ""
        module.load_state_dict({n[len(start) :]: v for n, v in weights.items() if n.startswith(start)})


def _silent(step: int, steps: int, latest: dict[str, float]) -> None:
    pass


def _never() -> bool:
    return False
