"""Batch samplers: `build_sampler("m_per_class", labels, 128, per_class=4, seed=0)`, or a class by its own name."""

from nearfield.samplers.base import BatchSampler, Classes, Indices, SamplerWarning
from nearfield.samplers.build import build_sampler, names
from nearfield.samplers.hard import FastAPHardSampler
from nearfield.samplers.m_per_class import MPerClassSampler
from nearfield.samplers.sharded import ShardedSampler
from nearfield.samplers.shuffle import FastAPSampler, ShuffleSampler
from nearfield.samplers.tuples import EpisodicSampler, NPairsSampler

__all__ = [
    "BatchSampler",
    "Classes",
    "EpisodicSampler",
    "FastAPHardSampler",
    "FastAPSampler",
    "Indices",
    "MPerClassSampler",
    "NPairsSampler",
    "SamplerWarning",
    "ShardedSampler",
    "ShuffleSampler",
    "build_sampler",
    "names",
]
