"""Baselines, the test scores that need no training, and what makes the conditions of two methods unequal.

Axes: N images, F features, D embedding dims.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nearfield import losses
from nearfield.bench.results import Scores
from nearfield.config import BenchConfig, RunConfig
from nearfield.data import Dataset, pixels
from nearfield.data.dataset import Integers
from nearfield.metrics.dataset_scores import score_test
from nearfield.models import build_model, embed
from nearfield.models.build import features_of, weights_file
from nearfield.training.batches import Supply
from nearfield.training.build import distance_of, ensemble_size, loss_params

_known: dict[tuple[str, str, tuple[int, ...]], dict[str, Scores]] = {}  # of this process
LARGEST = 64 * 64 * 3  # values of an image whose raw pixels are still compared
BATCHES = {
    "shuffle": "batches of any images, not of some from each class",
    "npairs": "batches of two images a class",
    "episodic": "batches are episodes of few classes",
    "fastap": "batches of whole classes, in random order",
    "fastap_hard": "batches of classes from two hard categories",
}


def baselines(config: BenchConfig, dataset: Dataset) -> dict[str, Scores]:
    """Test scores without any training, the strongest idea first.

    Of raw pixels; or of features, those of the data or of the pretrained backbone: raw, reduced by PCA to the
    embedding size, and whitened. Then those of the network before training, mean over seeds. Benches that follow each
    other with the same data, network and seeds, as those of an ablation do, share them.
    """
    same = config.run.model_dump_json(include={"model", "data", "distance", "ks", "metrics"})
    key = (dataset.fingerprint, same, config.seeds)
    if key not in _known:
        _known[key] = _baselines(config, dataset)
    return _known[key]


def _baselines(config: BenchConfig, dataset: Dataset) -> dict[str, Scores]:
    run, scores = config.run, dict[str, Scores]()

    def score(vectors: Tensor) -> Scores:
        return score_test(dataset, vectors, metrics=run.metrics, ks=run.ks)[0]

    features = _features(run, dataset)
    if features is not None:
        name, train, test = features
        scores[name] = score(test)
        scores |= {each: score(vectors) for each, vectors in projections(train, test, run.model.dim).items()}
    elif (raw := _raw(run, dataset, dataset.test_rows())) is not None:
        scores["raw pixels"] = score(raw)
    found = [_untrained(run.model_copy(update={"seed": seed}), dataset) for seed in config.seeds]
    scores["untrained network"] = {key: float(np.mean([each[key] for each in found])) for key in found[0]}
    return scores


def projections(train: Tensor, test: Tensor, dim: int) -> dict[str, Tensor]:
    """`test` (N, F) on the first `dim` principal axes of `train`, if that are fewer than F; and scaled to variance 1.

    Axes with less than 1e-6 of the largest variance are scaled as if they had that.
    """
    mean = train.mean(0)
    covariance = (train - mean).T @ (train - mean) / max(1, len(train) - 1)
    variances, axes = torch.linalg.eigh(covariance.double())  # in float32 it may not converge if many features are dead
    variances, axes = variances[-dim:].to(mean), axes[:, -dim:].to(mean)  # (D,), (F, D)
    inside = (test - mean) @ axes
    found = {"PCA": inside} if dim < test.shape[1] else {}
    least = (1e-6 * variances.max()).clamp(min=torch.finfo(variances.dtype).tiny)
    return {**found, "whitening": inside / variances.clamp(min=least).sqrt()}


def _features(run: RunConfig, dataset: Dataset) -> tuple[str, Tensor, Tensor] | None:
    """Name and features of training and test part: the data themselves, or what a pretrained backbone makes of them."""
    if dataset.are_features:
        train, test = (_raw(run, dataset, rows) for rows in (dataset.train_rows(), dataset.test_rows()))
        return None if train is None or test is None else ("raw features", train, test)
    if weights_file(run.model) is None:
        return None
    supply = Supply(dataset, run.data)
    model = build_model(run.model, run.seed)
    supply = supply.behind_frozen(model)
    parts = (torch.cat([supply.parts.fit, supply.parts.val]), supply.parts.test)
    train, test = (embed(features_of(model), supply.rows(part), batch_size=64).cpu() for part in parts)
    return "backbone features", train, test


def _raw(run: RunConfig, dataset: Dataset, rows: Integers) -> Tensor | None:
    """Images or features as vectors, (N, F); None if they are too large to compare."""
    images = pixels(dataset) if run.data.augment is None else None
    if images is None or np.prod(images.shape[1:]) > LARGEST:
        return None
    return torch.from_numpy(np.asarray(images[rows])).flatten(1).float()


def _untrained(run: RunConfig, dataset: Dataset) -> Scores:
    supply = Supply(dataset, run.data)
    model = build_model(run.model, run.seed, supply.features)
    supply = supply.behind_frozen(model)
    embeddings = embed(model, supply.rows(supply.parts.test))
    return score_test(dataset, embeddings, run.distance, metrics=run.metrics, ks=run.ks)[0]


def unequal(run: RunConfig, classes: int, published: bool = False) -> list[str]:
    """What makes the conditions of the run's method differ from those of others, as text."""
    found = []
    if published and losses.method(run.method.name).recipe is not None:
        found.append(f"its published optimiser, {run.optimizer.name} with learning rate {run.optimizer.lr:g}")
    method = losses.method(run.method.name)
    sampler = method.sampler_of(run.method.params)
    if run.sampler.name == "auto" and sampler in BATCHES:
        found.append(BATCHES[sampler])
    members = ensemble_size(run)
    if members > 1:
        found.append(f"{members} networks of {run.model.dim // members} dims, each with 1/{members} of the steps")
    own = distance_of(run)
    if own != run.distance:
        found.append(f"ranked by {own.partition(':')[0]} distance")
    if method.holds_head:
        found.append("a head of its own")
    learned = method.learned_numbers(loss_params(run, classes))
    if learned:
        found.append(f"{learned:,} learned numbers in the loss")
    return found
