"""The training loop, read from top to bottom.

Started by torchrun, every process runs this same function with its share of each batch; the first one writes.

Axes: B images of a batch, D embedding dims.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nearfield.config import RunConfig, leaves
from nearfield.data import Dataset
from nearfield.errors import RunError
from nearfield.losses.proxy_loss import ProxyLoss
from nearfield.models import embed
from nearfield.samplers import BatchSampler, ShardedSampler
from nearfield.training.batches import Batch, Supply, grouped, open_data, supply_of
from nearfield.training.build import (
    Learner,
    build_learner,
    build_sampler,
    check_method,
    ensemble_size,
    run_seed,
    start_at_class_means,
    start_from_images,
)
from nearfield.training.checkpoint import Checkpoint, copy_weights
from nearfield.training.chunks import backward_in_chunks
from nearfield.training.distributed import (
    Place,
    any_rank,
    broadcast,
    of_all_ranks,
    on_first_rank,
    process_group,
    require_equal,
    sum_gradients,
)
from nearfield.training.doctor import LOOK_EVERY, Doctor, Finding
from nearfield.training.ensemble import train_ensemble
from nearfield.training.optimizers import build_optimizer, clip_gradients, learning_rate_factor
from nearfield.training.run import (
    METRICS,
    START,
    Interrupted,
    Progress,
    Run,
    Track,
    facts_of,
    finish,
    identity_of,
    result_of,
    score_on_test,
    score_start,
    validate,
)
from nearfield.training.run_folder import RunFolder
from nearfield.training.sharding import gradient_norm, share_overflow

__all__ = ["Diverged", "Interrupted", "Progress", "Track", "TrainingWarning", "check", "train"]

PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class TrainingWarning(UserWarning):
    """Something goes wrong in training; see `nearfield.training.doctor`."""


class Diverged(RunError):
    """The loss or its gradient became infinite or NaN."""


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
    """Train and test as `config` says in `folder`, resuming from its checkpoint if it has one; the result.

    `stop` is called after every step; when it returns True a checkpoint is written and `Interrupted` raised. `dataset`
    is the configuration's, if it is loaded already. Without `test` the test classes are never used. `track` is called
    with every record that goes into the folder's `metrics.jsonl`.
    """
    torch.set_num_threads(config.threads)
    check_method(config)
    with process_group() as place:
        data = dataset or open_data(config.data)
        run = Run(
            config,
            RunFolder(folder),
            data,
            place,
            progress if progress and place.rank == 0 else _no_progress,
            stop or _never,
            test,
            track or _no_tracking,
            identity_of(config, data),
        )
        require_equal({**leaves(config.model_dump(mode="json")), **run.identity, "test": test})
        members = 1 if config.member is not None else ensemble_size(config)
        return _train_alone(run) if members == 1 else train_ensemble(run, members, _train_alone)


def check(config: RunConfig) -> Dataset:
    """The run's dataset; InputError if the method, its parameters or the data do not exist."""
    check_method(config)
    return open_data(config.data)


def _train_alone(run: Run, timeout: float = 10.0) -> dict[str, Any]:
    """Train one network, unless the folder holds it already."""
    with run.locked(timeout):
        found = on_first_rank(lambda: result_of(run))
        return _train(run) if found is None else found


def _train(run: Run) -> dict[str, Any]:
    """Train one network to its last step, from the first or from a checkpoint, and test its best weights."""
    config, folder, place = run.config, run.folder, run.place
    supply = supply_of(run.dataset, config.data)
    sampler = _sampler(run, supply)
    (model, loss, forward), supply = _learner(run, supply)
    optimizer = build_optimizer(model, loss, config.optimizer)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.ema)) if config.ema else None
    scored = average.module if average else model
    scaler = torch.amp.GradScaler(place.device.type, enabled=config.precision == "fp16")
    autocast = torch.autocast(place.device.type, PRECISIONS[config.precision], config.precision != "float32")
    doctor = Doctor(loss, optimizer)
    modules = {"model": model, "loss": loss} | ({"average": average} if average else {})
    at = Checkpoint(modules, optimizer, sampler, scaler, doctor, best=copy_weights(scored))
    split = at.split

    on_first_rank(lambda: folder.begin(config, facts_of(run, supply.parts, model)))
    saved = at.load(folder)
    on_first_rank(lambda: folder.forget_after(at.step if saved else -1))
    for module in modules.values():
        broadcast(module, besides=split.parameters)
    if not saved:  # training may lose to its start, which is then what it returns
        _score(run, at, scored, supply)

    seen: list[Tensor] = []  # embeddings and labels of the whole batch, for the doctor

    def scaled(embeddings: Tensor, labels: Tensor) -> Tensor:
        seen[:] = [embeddings.detach(), labels]
        value: Tensor = scaler.scale(loss(embeddings, labels) / config.accumulate)
        return value

    def add_gradient(batch: Batch) -> Tensor:
        """Add a batch's share to all gradients; its share of the loss, scaled."""
        images, labels = batch.images.to(place.device), batch.labels  # which are laid out on the CPU
        with autocast:
            chunk = config.chunk or len(images)
            return backward_in_chunks(forward, of_all_ranks(scaled), images, labels, chunk, batch_norm="chunk")

    latest: dict[str, float] = {}
    begun = time.monotonic()
    model.freeze_backbone(at.step < config.optimizer.frozen_steps)
    first = at.step * config.accumulate
    for update in grouped(supply.batches(sampler, first, run_seed(config)), config.accumulate, config.steps - at.step):
        _seed_step(config, at.step, place)
        if at.step == config.optimizer.frozen_steps > 0:
            model.freeze_backbone(False)
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * learning_rate_factor(at.step, config.steps, config.optimizer)

        optimizer.zero_grad()
        value = torch.stack([add_gradient(batch) for batch in update]).sum()
        sum_gradients(model.parameters(), besides=loss.parameters())
        if scaler.is_enabled():
            share_overflow(split)
        scaler.unscale_(optimizer)
        norm = gradient_norm((p for group in optimizer.param_groups for p in group["params"]), split)
        clip_gradients(optimizer, config.optimizer, partial(gradient_norm, split=split))
        scaler.step(optimizer)
        at.step += 1
        latest["loss"] = _require_finite(at.step, value, norm, scaler.get_scale())
        scaler.update()
        if average is not None:
            average.update_parameters(model)

        if at.step % LOOK_EVERY == 0 and run.writes:
            _warn(folder, doctor.look(at.step, seen[0], seen[1], latest["loss"]))
        spent = time.monotonic() - begun
        at.seconds += spent
        rate = sum(len(batch.labels) for batch in update) * place.world_size / spent
        latest["images_per_second"] = 0.9 * latest.get("images_per_second", rate) + 0.1 * rate

        if at.step % config.eval_every == 0 or at.step == config.steps:
            broadcast(scored)  # batch norm in training mode has its own statistics on every rank
            latest[config.select_by] = _score(run, at, scored, supply, latest["loss"])
            at.save(folder, update[-1].after, run.writes)
        run.progress(at.step, config.steps, latest)
        if any_rank(run.stop()):
            at.save(folder, update[-1].after, run.writes)
            raise Interrupted
        begun = time.monotonic()

    if run.writes:
        _warn(folder, doctor.look_at_choice(at.step, at.best_step, at.best_score))
    scored.load_state_dict(at.best)
    return finish(run, supply, scored, at.best_step, at.best_val, at.seconds)


def _sampler(run: Run, supply: Supply) -> BatchSampler:
    """The configuration's sampler; of several processes, this one's share of it."""
    sampler = build_sampler(run.config, supply.fit_labels, supply.categories, supply.category_names)
    return sampler if run.place.world_size == 1 else ShardedSampler(sampler, run.place.rank, run.place.world_size)


def _learner(run: Run, supply: Supply) -> tuple[Learner, Supply]:
    """Model and loss on this process's device, and the supply of what the model takes."""
    learner = build_learner(run.config, supply.parts.fit_classes, supply.features)
    supply = supply.behind_frozen(learner.model)
    if run.config.model.init == "pca" and supply.features is None:
        start_from_images(learner.model, supply.rows(supply.parts.fit), supply.name_of_fit)
    if run.config.proxy_start == "class_means":
        embeddings = embed(learner.model, supply.rows(supply.parts.fit))
        start_at_class_means(cast(ProxyLoss, learner.loss), embeddings, supply.fit_labels)
    device = run.place.device
    return learner._replace(model=learner.model.to(device), loss=learner.loss.to(device)), supply


def _score(run: Run, at: Checkpoint, model: nn.Module, supply: Supply, loss: float | None = None) -> float:
    """Validate, keep the weights if they are the best so far, and log it; the score that steps are chosen by.

    At the start there is no loss yet, and the test classes are scored for comparison with the end.
    """
    start = score_start(run, model, supply) if loss is None else None
    scores = start[0] if start else validate(run, model, supply)
    score = scores[run.config.select_by]
    if score > at.best_score:
        at.best, at.best_val, at.best_score, at.best_step = copy_weights(model), scores, score, at.step
    record = {"step": at.step, **({} if loss is None else {"loss": loss})}
    record |= {f"val_{key}": value for key, value in scores.items()}
    if run.test and (run.config.oracle or start):
        oracle = start[1] if start else score_on_test(run, model, supply, METRICS)[1]
        record |= {f"test_{key}": value for key, value in oracle.items()} if run.config.oracle else {}
        record |= {f"{START}{key}": value for key, value in oracle.items()} if start else {}
    if run.writes:
        _warn(run.folder, at.doctor.look_at_scores(at.step, score))
        run.folder.log(record)
        run.track(at.step, record)
    return score


def _warn(folder: RunFolder, findings: list[Finding]) -> None:
    """Log what the doctor found, and warn."""
    for code, step, message in findings:
        folder.log({"step": step, "finding": code, "message": message})
        warnings.warn(f"step {step}: {message}", TrainingWarning, stacklevel=3)


def _require_finite(step: int, value: Tensor, norm: Tensor, scale: float) -> float:
    """The loss without its scale; Diverged if it, or the gradient, is infinite or NaN. Waits for the device once.

    With fp16 a gradient overflows where the scale is too large: the scaler then skips the step and lowers the scale. A
    gradient that is not finite at a scale of 1 or less is so by itself. Without fp16 the scale is 1.
    """
    loss, size = torch.stack([value.double(), norm.to(value.device).double()]).tolist()
    if not math.isfinite(loss):
        raise Diverged(f"the loss became {loss / scale} at step {step}; lower optimizer.lr or check the data.")
    if not math.isfinite(size) and scale <= 1:
        raise Diverged(
            f"the loss is {loss / scale:.6g} but its gradient became {size} at step {step}; lower optimizer.lr, set "
            "optimizer.clip, or check the data."
        )
    return float(loss / scale)


def _seed_step(config: RunConfig, step: int, place: Place) -> None:
    """Make the network's randomness (dropout) a function of step and rank alone, so that a run can resume anywhere."""
    seed = (run_seed(config) * 1_000_003 + step) * 1009 + place.rank
    torch.default_generator.manual_seed(seed)
    if place.device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _no_progress(step: int, steps: int, latest: dict[str, float]) -> None:
    pass


def _no_tracking(step: int, record: Mapping[str, Any]) -> None:
    pass


def _never() -> bool:
    return False
