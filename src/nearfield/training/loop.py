"""The training loop, read from top to bottom.

Started by torchrun, every process runs this same function with its share of each batch, and the first one writes.

Axes: B images of a batch, D embedding dims.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nearfield.config import RunConfig
from nearfield.data import Dataset
from nearfield.data.input_spec import input_of
from nearfield.errors import RunError
from nearfield.metrics import retrieval_metrics
from nearfield.metrics.dataset_scores import score_test
from nearfield.models import EmbeddingModel, embed
from nearfield.models.ensemble import Ensemble
from nearfield.samplers import ShardedSampler
from nearfield.training.batches import Parts, Supply, open_data, supply_of
from nearfield.training.build import build_learner, build_sampler, check_method, ensemble_size, run_seed
from nearfield.training.chunks import backward_in_chunks
from nearfield.training.distributed import (
    Place,
    any_rank,
    broadcast,
    first_rank,
    gathered,
    of_all_ranks,
    process_group,
    share_of,
    sum_gradients,
)
from nearfield.training.doctor import LOOK_EVERY, Doctor, Finding
from nearfield.training.optimizers import build_optimizer, learning_rate_factor
from nearfield.training.run_folder import Busy, RunFolder

KS = (1, 2, 4, 8)
METRICS = ("recall", "r_precision", "map_at_r")
PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
Progress = Callable[[int, int, dict[str, float]], None]  # (step, steps, latest numbers)
Track = Callable[[int, Mapping[str, Any]], None]  # (step, its record)


class TrainingWarning(UserWarning):
    """Something goes wrong in training; see `nearfield.training.doctor`."""


class Diverged(RunError):
    """The loss became infinite or NaN."""


class Interrupted(BaseException):
    """The run was asked to stop; its checkpoint is written."""


def train(
    config: RunConfig,
    folder: Path,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    *,
    dataset: Dataset | None = None,
    test: bool = True,
    track: Track | None = None,
) -> dict[str, Any]:
    """Train as `config` says and test, in `folder`, going on from its checkpoint if there is one; the result.

    `stop` is asked after every step; when it says so a checkpoint is written and `Interrupted` raised. `dataset` is
    that of the configuration, where it is loaded already. Without `test` the test classes are not looked at. `track` is
    told every record that goes into the folder's `metrics.jsonl`.
    """
    torch.set_num_threads(config.threads)
    check_method(config)
    with process_group() as place:
        run = Run(
            config,
            RunFolder(folder),
            dataset or open_data(config.data),
            place,
            progress if progress and place.rank == 0 else _silent,
            stop or _never,
            test,
            track or _untold,
        )
        members = 1 if config.member is not None else ensemble_size(config)
        return _train_alone(run) if members == 1 else _train_ensemble(run, members)


def check(config: RunConfig) -> Dataset:
    """The run's dataset; InputError if the method, its parameters or the data do not exist."""
    check_method(config)
    return open_data(config.data)


class Run(NamedTuple):
    """Everything that a run works with."""

    config: RunConfig
    folder: RunFolder
    dataset: Dataset
    place: Place
    progress: Progress
    stop: Callable[[], bool]
    test: bool
    track: Track

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes."""
        return self.place.rank == 0

    def locked(self, patience: float = 10.0) -> AbstractContextManager[None]:
        """Hold the folder, for all processes of this run."""
        return self.folder.locked(patience) if self.writes else nullcontext()


def _train_alone(run: Run, patience: float = 10.0) -> dict[str, Any]:
    """Train one network, unless the folder holds it already."""
    with run.locked(patience):
        found = first_rank(run.folder.result if run.writes else None)
        if found is None:
            return _train(run)
        if run.test and "test" not in found:
            raise RunError(f"{run.folder.path} holds a run that was not tested; choose another --out or delete it.")
        result: dict[str, Any] = found
        return result


def _train(run: Run) -> dict[str, Any]:
    config, folder, place = run.config, run.folder, run.place
    supply = supply_of(run.dataset, config.data)
    parts = supply.parts
    sampler = build_sampler(config, supply.fit_labels, supply.categories)
    if place.world_size > 1:
        sampler = ShardedSampler(sampler, place.rank, place.world_size)
    seen_first = supply.rows(parts.fit) if config.model.init == "pca" and supply.features is None else None
    model, loss, forward = build_learner(config, parts.fit_classes, supply.features, seen_first)
    model, loss = model.to(place.device), loss.to(place.device)
    optimizer = build_optimizer(model, loss, config.optimizer)
    network = [p for group in optimizer.param_groups if group["name"] != "loss" for p in group["params"]]
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.ema)) if config.ema else None
    scored = average.module if average else model
    scaler = torch.amp.GradScaler(place.device.type, enabled=config.precision == "fp16")
    autocast = torch.autocast(place.device.type, PRECISIONS[config.precision], config.precision != "float32")
    doctor = Doctor(loss, optimizer)
    step, best_score, best_step, seconds = 0, -math.inf, 0, 0.0
    best_val: dict[str, float] = {}
    best = _copy(scored)
    modules = {"model": model, "loss": loss} | ({"average": average} if average else {})

    if run.writes:
        folder.begin(config, _facts(run, parts, model))
    checkpoint = first_rank(folder.load() if run.writes else None)
    if checkpoint is not None:
        weights, best, state = checkpoint
        _restore(modules, weights)
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
        scaler.load_state_dict(state["scaler"])
        doctor.load_state_dict(state["doctor"])
        step, seconds = state["step"], state["seconds"]
        best_score, best_step, best_val = state["best_score"], state["best_step"], state["best_val"]
    if run.writes:
        folder.forget_after(step)
    for module in modules.values():
        broadcast(module)

    def save(after: dict[str, Any]) -> None:
        if not run.writes:
            return
        state: dict[str, Any] = {"optimizer": optimizer.state_dict(), "sampler": after, "scaler": scaler.state_dict()}
        state |= {"doctor": doctor.state_dict(), "step": step, "seconds": seconds}
        state |= {"best_score": best_score, "best_step": best_step, "best_val": best_val}
        folder.save(step, _weights(modules), best, state)

    seen: list[Tensor] = []  # embeddings and labels of the whole batch, for the doctor

    def scaled(embeddings: Tensor, labels: Tensor) -> Tensor:
        seen[:] = [embeddings.detach(), labels]
        value: Tensor = scaler.scale(loss(embeddings, labels))
        return value

    latest: dict[str, float] = {}
    begun = time.monotonic()
    model.freeze_backbone(step < config.optimizer.frozen_steps)
    for batch in supply.batches(sampler, step, run_seed(config)) if step < config.steps else ():
        _seed_step(config, step, place)
        if step == config.optimizer.frozen_steps > 0:
            model.freeze_backbone(False)
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * learning_rate_factor(step, config.steps, config.optimizer)
        images, labels = batch.images.to(place.device), batch.labels.to(place.device)
        optimizer.zero_grad()
        with autocast:
            chunk = config.chunk or len(images)
            value = backward_in_chunks(forward, of_all_ranks(scaled), images, labels, chunk, batch_norm="chunk")
        sum_gradients(model.parameters(), besides=loss.parameters())
        scaler.unscale_(optimizer)
        if config.optimizer.clip is not None:
            nn.utils.clip_grad_norm_(network, config.optimizer.clip)
        scaler.step(optimizer)
        step += 1
        latest["loss"] = value.item() / scaler.get_scale()
        if not math.isfinite(latest["loss"]):
            raise Diverged(f"the loss became {latest['loss']} at step {step}; lower optimizer.lr or check the data.")
        scaler.update()
        if average is not None:
            average.update_parameters(model)
        if step % LOOK_EVERY == 0 and run.writes:
            _warn(folder, doctor.look(step, seen[0], seen[1], latest["loss"]))
        spent = time.monotonic() - begun
        seconds += spent
        rate = len(images) * place.world_size / spent
        latest["images_per_second"] = 0.9 * latest.get("images_per_second", rate) + 0.1 * rate

        if step % config.eval_every == 0 or step == config.steps:
            broadcast(scored)  # live batch norm has its own statistics on every rank
            scores = _scores(run, scored, supply, parts.val)
            if scores[config.select_by] > best_score:
                best, best_val, best_score, best_step = _copy(scored), scores, scores[config.select_by], step
            latest[config.select_by] = scores[config.select_by]
            record = {"step": step, "loss": latest["loss"], **{f"val_{key}": v for key, v in scores.items()}}
            if config.oracle and run.test:
                oracle = _test(run, scored, supply, METRICS)[1]
                record |= {f"test_{key}": v for key, v in oracle.items()}
            if run.writes:
                _warn(folder, doctor.look_at_scores(step, scores[config.select_by]))
                folder.log(record)
                run.track(step, record)
            save(batch.after)
        run.progress(step, config.steps, latest)
        if any_rank(run.stop()):
            save(batch.after)
            raise Interrupted
        if step == config.steps:
            break
        begun = time.monotonic()

    _restore({"": scored}, best)
    return _finish(run, supply, scored, best_step, best_val, seconds)


def _facts(run: Run, parts: Parts, model: EmbeddingModel | None = None) -> dict[str, Any]:
    """What the result depends on beside the configuration and the versions."""
    return {
        "data": run.dataset.fingerprint,
        "split": parts.fingerprint,
        "input": input_of(run.dataset, run.config.data).model_dump(mode="json"),
        "pretrained": model.pretrained._asdict() if model and model.pretrained else None,
        "processes": run.place.world_size,
        "device": run.place.device.type,
    }


def _warn(folder: RunFolder, findings: list[Finding]) -> None:
    """Write down what the doctor found, and say it."""
    for code, step, message in findings:
        folder.log({"step": step, "finding": code, "message": message})
        warnings.warn(f"step {step}: {message}", TrainingWarning, stacklevel=3)


def _finish(
    run: Run, supply: Supply, model: nn.Module, best_step: int, val: dict[str, float], seconds: float
) -> dict[str, Any]:
    """Test the chosen weights and write the outcome."""
    config, parts = run.config, supply.parts
    result: dict[str, Any] = {
        "method": config.method.name,
        "seed": config.seed,
        "config": config.digest(),
        "split": parts.fingerprint,
        "fit_classes": parts.fit_classes,
        "val_classes": parts.val_classes,
        "best_step": best_step,
        "steps": config.steps,
        "train_seconds": round(seconds, 3),
        "val": val,
    }
    arrays: dict[str, Tensor] = {}
    if run.test:
        embeddings, result["test"], queries = _test(run, model, supply)
        arrays = {f"score.{name}": torch.from_numpy(values) for name, values in queries.items()}
        arrays["embeddings"] = embeddings.half()
    if run.writes:
        run.folder.finish(_copy(model), arrays, result)
    return result


def _scores(run: Run, model: nn.Module, supply: Supply, part: Tensor) -> dict[str, float]:
    """Retrieval scores of the model on a part, each image a query against all others."""
    embeddings, labels = _embed(run, model, supply, part), supply.labels[part]
    return retrieval_metrics(embeddings, labels, KS, metrics=METRICS, distance=run.config.distance)


def _test(
    run: Run, model: nn.Module, supply: Supply, metrics: tuple[str, ...] | None = None
) -> tuple[Tensor, dict[str, float], dict[str, NDArray[np.float32]]]:
    """Embeddings of the test images, their scores by the data's own rules, and those of every query."""
    embeddings = _embed(run, model, supply, supply.parts.test).cpu()
    return embeddings, *score_test(run.dataset, embeddings, distance=run.config.distance, metrics=metrics)


def _embed(run: Run, model: nn.Module, supply: Supply, part: Tensor) -> Tensor:
    """Embeddings of a part, each process having made its share of them."""
    return gathered(embed(model, supply.rows(part[share_of(len(part), run.place)]), batch_size=256))


# ---------------------------------------------------------------------------------------------------------------
# Ensembles


def _train_ensemble(run: Run, members: int) -> dict[str, Any]:
    """Train every member for its share of the steps, then join them.

    Processes started on the same folder share the work: each takes the next member that nobody is training.
    """
    share = max(1, run.config.steps // members)
    changes = {"steps": share, "eval_every": max(1, min(share, run.config.eval_every // members))}
    configs = [run.config.model_copy(update={**changes, "member": index}) for index in range(members)]
    folders = [RunFolder(run.folder.path / f"member-{index:02d}") for index in range(members)]

    def report(step: int, steps: int, latest: dict[str, float]) -> None:
        done = sum(folder.result is not None for folder in folders)
        run.progress(min(done * share + step, members * share), members * share, latest)

    together = run.place.world_size > 1  # then nobody else has a member
    while missing := first_rank([index for index, folder in enumerate(folders) if folder.result is None]):
        for index in missing:
            member = run._replace(config=configs[index], folder=folders[index], progress=report)
            try:
                _train_alone(member, patience=10.0 if together else 0.0)
            except Busy:
                if run.stop():
                    raise Interrupted from None
                report(0, share, {})  # another process has it: show how far all of them are
                time.sleep(0.2)
    with run.locked():
        found = first_rank(run.folder.result)
        return _join(run, configs, folders) if found is None else found


def _join(run: Run, configs: list[RunConfig], folders: list[RunFolder]) -> dict[str, Any]:
    """Score the members' embeddings side by side, and finish the run."""
    supply = supply_of(run.dataset, run.config.data)
    parts = supply.parts
    ensemble = Ensemble(build_learner(config, parts.fit_classes, supply.features).model for config in configs)
    ensemble.to(run.place.device)
    for model, folder in zip(ensemble.members, folders, strict=True):
        model.load_state_dict(folder.weights())
    scores = _scores(run, ensemble, supply, parts.val)
    results = [folder.result or {} for folder in folders]
    seconds = sum(result["train_seconds"] for result in results)
    if run.writes:
        run.folder.begin(run.config, _facts(run, parts))
        run.folder.forget_after(0)
        run.folder.log({"step": run.config.steps, **{f"val_{key}": value for key, value in scores.items()}})
    return _finish(run, supply, ensemble, run.config.steps, scores, seconds)


# ---------------------------------------------------------------------------------------------------------------
# Small things


def _seed_step(config: RunConfig, step: int, place: Place) -> None:
    """Make what is random in the network (dropout) depend on the step and the rank alone, so that it can be resumed."""
    seed = (run_seed(config) * 1_000_003 + step) * 1009 + place.rank
    torch.default_generator.manual_seed(seed)
    if place.device.type == "cuda":
        torch.cuda.manual_seed(seed)


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


def _untold(step: int, record: Mapping[str, Any]) -> None:
    pass


def _never() -> bool:
    return False
