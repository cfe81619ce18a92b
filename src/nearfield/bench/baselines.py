"""Baselines, the test scores that need no training, and what makes the conditions of two methods unequal.

Axes: N images, F features, D embedding dims.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nearfield import losses
from nearfield.bench.results import Scores
from nearfield.config import BenchConfig, RunConfig
from nearfield.data import Dataset, pixels
from nearfield.metrics.dataset_scores import score_test
from nearfield.models import build_model, embed
from nearfield.training.batches import Supply
from nearfield.training.build import ensemble_size, loss_params

LARGEST = 64 * 64 * 3  # values of an image whose raw pixels are still compared
BATCHES = {
    "shuffle": "batches of any images, not of some from each class",
    "npairs": "batches of two images a class",
    "episodic": "batches are episodes of few classes",
    "fastap": "batches of whole classes, in random order",
    "fastap_hard": "batches of classes from two hard categories",
}


def baselines(config: BenchConfig, dataset: Dataset) -> dict[str, Scores]:
    """Test scores of the network before training, mean over seeds; of raw pixels or features; of features by PCA."""
    run, rows = config.run, dataset.test_rows()
    found = [_untrained(run.model_copy(update={"seed": seed}), dataset) for seed in config.seeds]
    scores = {"untrained network": {key: float(np.mean([each[key] for each in found])) for key in found[0]}}
    images = pixels(dataset) if run.data.augment is None else None
    if images is None or np.prod(images.shape[1:]) > LARGEST:
        return scores
    wanted: dict[str, Any] = {"metrics": run.metrics, "ks": run.ks}
    raw = torch.from_numpy(np.asarray(images[rows])).flatten(1).float()
    scores["raw features" if dataset.are_features else "raw pixels"] = score_test(dataset, raw, **wanted)[0]
    if dataset.are_features and run.model.dim < raw.shape[1]:
        train = torch.from_numpy(np.asarray(images[dataset.train_rows()])).float()  # (N, F)
        mean = train.mean(0)
        axes = torch.linalg.eigh((train - mean).T @ (train - mean))[1][:, -run.model.dim :]  # (F, D)
        scores["PCA"] = score_test(dataset, (raw - mean) @ axes, **wanted)[0]
    return scores


def _untrained(run: RunConfig, dataset: Dataset) -> Scores:
    supply = Supply(dataset, run.data)
    model = build_model(run.model, run.seed, supply.features)
    embeddings = embed(model, supply.rows(supply.parts.test))
    return score_test(dataset, embeddings, run.distance, metrics=run.metrics, ks=run.ks)[0]


def unequal(run: RunConfig, classes: int) -> list[str]:
    """What makes the conditions of the run's method differ from those of others, as text."""
    found = []
    method = losses.method(run.method.name)
    sampler = method.sampler_of(run.method.params)
    if run.sampler.name == "auto" and sampler in BATCHES:
        found.append(BATCHES[sampler])
    members = ensemble_size(run)
    if members > 1:
        found.append(f"{members} networks of {run.model.dim // members} dims, each with 1/{members} of the steps")
    if method.holds_head:
        found.append("a head of its own")
    learned = method.learned_numbers(loss_params(run, classes))
    if learned:
        found.append(f"{learned:,} learned numbers in the loss")
    return found
