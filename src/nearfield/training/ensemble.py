"""Training an ensemble: its members one by one, or side by side in several processes, then all of them joined."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nearfield.config import RunConfig
from nearfield.models.ensemble import Ensemble
from nearfield.training.batches import supply_of
from nearfield.training.build import build_learner
from nearfield.training.distributed import first_rank
from nearfield.training.run import Interrupted, Run, facts_of, finish, validate
from nearfield.training.run_folder import Busy, RunFolder


def train_ensemble(run: Run, members: int, train_alone: Callable[[Run, float], dict[str, Any]]) -> dict[str, Any]:
    """Train every member for its share of the steps, then join them.

    `train_alone` trains one member in a folder of its own; it gets the seconds to wait for that folder's lock. Several
    processes started on the same folder share the work: each takes the next member that nobody is training.
    """
    share = max(1, run.config.steps // members)
    changes = {"steps": share, "eval_every": max(1, min(share, run.config.eval_every // members))}
    configs = [run.config.model_copy(update={**changes, "member": index}) for index in range(members)]
    folders = [RunFolder(run.folder.path / f"member-{index:02d}") for index in range(members)]

    def report(step: int, steps: int, latest: dict[str, float]) -> None:
        done = sum(folder.result is not None for folder in folders)
        run.progress(min(done * share + step, members * share), members * share, latest)

    together = run.place.world_size > 1  # then no other process trains a member
    while missing := first_rank([index for index, folder in enumerate(folders) if folder.result is None]):
        for index in missing:
            member = run._replace(config=configs[index], folder=folders[index], progress=report)
            try:
                train_alone(member, 10.0 if together else 0.0)
            except Busy:
                if run.stop():
                    raise Interrupted from None
                report(0, share, {})  # another process trains it: show the progress of all
                time.sleep(0.2)
    with run.locked():
        found: dict[str, Any] | None = first_rank(run.folder.result)
        return _join(run, configs, folders) if found is None else found


def _join(run: Run, configs: list[RunConfig], folders: list[RunFolder]) -> dict[str, Any]:
    """Score the members' embeddings side by side, and finish the run."""
    supply = supply_of(run.dataset, run.config.data)
    parts = supply.parts
    ensemble = Ensemble(build_learner(config, parts.fit_classes, supply.features).model for config in configs)
    ensemble.to(run.place.device)
    for model, folder in zip(ensemble.members, folders, strict=True):
        model.load_state_dict(folder.weights())
    scores = validate(run, ensemble, supply)
    seconds = sum((folder.result or {})["train_seconds"] for folder in folders)
    if run.writes:
        run.folder.begin(run.config, facts_of(run, parts))
        run.folder.forget_after(0)
        run.folder.log({"step": run.config.steps, **{f"val_{key}": value for key, value in scores.items()}})
    return finish(run, supply, ensemble, run.config.steps, scores, seconds)
