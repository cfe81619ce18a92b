"""Training an ensemble: its members one by one, or side by side in several processes, then all of them joined."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nearfield.config import OptimizerConfig
from nearfield.models.ensemble import Ensemble
from nearfield.training.batches import supply_of
from nearfield.training.build import build_learner
from nearfield.training.distributed import on_first_rank
from nearfield.training.run import Interrupted, Run, facts_of, finish, result_of, validate
from nearfield.training.run_folder import Busy, RunFolder


def train_ensemble(run: Run, members: int, train_alone: Callable[[Run, float], dict[str, Any]]) -> dict[str, Any]:
    """Train every member for its share of the steps, then join them.

    `train_alone` trains one member in a folder of its own; it gets the seconds to wait for that folder's lock. Several
    processes started on the same folder share the work: each takes the next member that nobody is training.
    """
    finished = on_first_rank(lambda: result_of(run))
    if finished is not None:
        return finished
    share = max(1, run.config.steps // members)
    every = max(1, min(share, run.config.eval_every // members))
    changes = {"steps": share, "eval_every": every, "optimizer": shared(run.config.optimizer, members)}

    def report(step: int, steps: int, latest: dict[str, float]) -> None:
        done = sum(member.folder.result is not None for member in runs)
        run.progress(min(done * share + step, members * share), members * share, latest)

    runs = [
        run._replace(
            config=run.config.model_copy(update={**changes, "member": index}),
            folder=RunFolder(run.folder.path / f"member-{index:02d}"),
            progress=report,
        )
        for index in range(members)
    ]
    together = run.place.world_size > 1  # then no other process trains a member
    while missing := on_first_rank(lambda: [index for index in range(members) if result_of(runs[index]) is None]):
        for index in missing:
            try:
                train_alone(runs[index], 10.0 if together else 0.0)
            except Busy:
                if run.stop():
                    raise Interrupted from None
                report(0, share, {})  # another process trains it: show the progress of all
                time.sleep(0.2)
    with run.locked():
        finished = on_first_rank(lambda: result_of(run))  # by another process
        return _join(run, runs) if finished is None else finished


def shared(recipe: OptimizerConfig, members: int) -> OptimizerConfig:
    """The optimiser of one of so many members: what is counted in steps is divided among them, as the steps are."""
    counted = {"warmup_steps": recipe.warmup_steps // members, "frozen_steps": recipe.frozen_steps // members}
    if recipe.decay_every is not None:
        counted["decay_every"] = max(1, recipe.decay_every // members)
    return recipe.model_copy(update=counted)


def _join(run: Run, members: list[Run]) -> dict[str, Any]:
    """Score the members' embeddings side by side, and finish the run."""
    supply = supply_of(run.dataset, run.config.data)
    classes = supply.parts.fit_classes
    ensemble = Ensemble(build_learner(member.config, classes, supply.features).model for member in members)
    ensemble.to(run.place.device)
    for model, member in zip(ensemble.members, members, strict=True):
        model.load_state_dict(member.folder.weights())
    scores = validate(run, ensemble, supply)
    seconds = sum((member.folder.result or {})["train_seconds"] for member in members)
    if run.writes:
        run.folder.begin(run.config, facts_of(run, supply.parts))
        run.folder.forget_after(0)
        run.folder.log({"step": run.config.steps, **{f"val_{key}": value for key, value in scores.items()}})
    return finish(run, supply, ensemble, run.config.steps, scores, seconds)
