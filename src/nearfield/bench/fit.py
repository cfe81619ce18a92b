"""Fitting a bench to its data before it starts: a network for photographs, and batches that the classes can fill."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfield import losses, recipes
from nearfield.bench.plan import label, start_of
from nearfield.bench.protocols import Protocol
from nearfield.config import BenchConfig, DataConfig, RunConfig
from nearfield.data import Dataset, Pictures, load
from nearfield.data.builtin.features import FEATURES
from nearfield.data.catalog import BUILT_IN
from nearfield.data.readers import arrays
from nearfield.data.splits import held_out
from nearfield.errors import InputError
from nearfield.models.pretrained import lite0_weights
from nearfield.samplers import SamplerWarning
from nearfield.training.build import build_sampler

PHOTOGRAPHS = "cub_lite0_128px"  # the recipe whose network, images and rates photographs get


def for_photographs(values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The tables of a bench, with a pretrained network if its data are photographs and it names no backbone.

    Also a sentence that says so, empty if nothing changed.
    """
    run = dict(values.get("run", {}))
    name = run.get("data", {}).get("name", DataConfig().name)
    if "backbone" in run.get("model", {}) or not _are_photographs(name):
        return dict(values), ""
    try:
        lite0_weights()
    except InputError as error:
        return dict(values), f"{name} holds photographs, and the small network is trained from scratch: {error}"
    base = recipes.recipe(PHOTOGRAPHS).model_dump(mode="json", exclude_defaults=True, exclude={"method"})
    base["data"]["name"] = name
    said = f"{name} holds photographs: the network is a pretrained efficientnet_lite0 (recipe {PHOTOGRAPHS})."
    return {**values, "run": _over(base, run)}, said


def _are_photographs(name: str) -> bool:
    if name in (*BUILT_IN, *FEATURES, "omniglot") or Path(name).suffix in arrays.SUFFIXES:
        return False
    try:
        return isinstance(load(name, colour=True).images, Pictures)
    except InputError:  # arrays, or nothing that is known here, which is said later
        return False


def _over(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `values` over it, table by table."""
    tables = {key: _over(base[key], value) for key, value in values.items() if isinstance(base.get(key), dict)}
    return {**base, **values, **tables}


def fit_batch(config: BenchConfig, protocol: Protocol, dataset: Dataset) -> tuple[BenchConfig, str]:
    """The bench with the largest batch, up to its own, that every method can draw from the classes of every fold.

    Also a sentence that says so, empty if nothing changed. InputError if no batch of two classes or more will do.
    """
    try:
        check_batch(config, protocol, dataset)
        return config, ""
    except InputError as error:
        refused = error
    sampler = config.run.sampler
    for size in range(sampler.batch_size - sampler.batch_size % sampler.per_class, 0, -sampler.per_class):
        if not 2 * sampler.per_class <= size < sampler.batch_size:
            continue
        smaller = sampler.model_copy(update={"batch_size": size})
        fitted = config.model_copy(update={"run": config.run.model_copy(update={"sampler": smaller})})
        try:
            check_batch(fitted, protocol, dataset)
        except InputError:
            continue
        classes = min(len(np.unique(labels)) for labels, _ in _folds(config.run, protocol, dataset))
        said = (
            f"run.sampler.batch_size is {size} instead of {sampler.batch_size}: {config.run.data.name} has {classes} "
            f"classes to fit, and a batch holds {sampler.per_class} images of a class."
        )
        return fitted, said
    raise refused


def check_batch(config: BenchConfig, protocol: Protocol, dataset: Dataset) -> None:
    """InputError if a method cannot draw its batches from the classes of some fold."""
    folds = list(_folds(config.run, protocol, dataset))
    seen: set[str] = set()
    for method in config.methods:
        run = start_of(config, method)
        published = losses.method(method.name).sampler_of(method.params)
        kind = published if run.sampler.name == "auto" else run.sampler.name
        if kind in seen:
            continue
        seen.add(kind)
        for labels, categories in folds:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", SamplerWarning)
                    build_sampler(run, torch.from_numpy(labels), torch.from_numpy(categories), dataset.category_names)
            except InputError as error:
                raise InputError(f"{label(method.name, method.params)} on {config.run.data.name}: {error}") from None


def _folds(run: RunConfig, protocol: Protocol, dataset: Dataset) -> Iterator[tuple[Any, Any]]:
    """Labels and categories of the images to fit, fold by fold."""
    for fold in protocol.runs(run):
        rows = held_out(dataset, fold.data)[0]
        yield np.unique(dataset.labels[rows], return_inverse=True)[1], dataset.class_category[dataset.labels[rows]]
