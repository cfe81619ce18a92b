"""Samplers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from nearfield.errors import InputError, nearest
from nearfield.samplers.base import BatchSampler, Indices
from nearfield.samplers.hard import FastAPHardSampler
from nearfield.samplers.m_per_class import MPerClassSampler
from nearfield.samplers.shuffle import FastAPSampler, ShuffleSampler
from nearfield.samplers.tuples import EpisodicSampler, NPairsSampler

_SAMPLERS: dict[str, Callable[..., BatchSampler]] = {
    "episodic": EpisodicSampler,
    "fastap": FastAPSampler,
    "fastap_hard": FastAPHardSampler,
    "m_per_class": MPerClassSampler,
    "npairs": NPairsSampler,
    "shuffle": ShuffleSampler,
}


def names() -> list[str]:
    """The names that `build_sampler` knows, sorted."""
    return sorted(_SAMPLERS)


def build_sampler(
    name: str,
    labels: Indices,
    batch_size: int,
    *,
    per_class: int = 4,
    seed: int = 0,
    categories: Indices | None = None,
    **options: Any,
) -> BatchSampler:
    """The sampler called `name`; `options` are those that its class takes by keyword.

    `per_class` is for "m_per_class" and "episodic"; `categories`, one for each label, for "fastap_hard". The other
    samplers ignore them.
    """
    if name not in _SAMPLERS:
        raise InputError(f"unknown sampler {name!r}; {nearest(name, names())}")
    parameters = inspect.signature(_SAMPLERS[name]).parameters
    known = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise InputError(f"sampler {name!r} has no option {option!r}; {nearest(option, known)}")
    common = {
        "labels": labels,
        "batch_size": batch_size,
        "per_class": per_class,
        "seed": seed,
        "categories": categories,
    }
    return _SAMPLERS[name](**{key: value for key, value in common.items() if key in parameters}, **options)
