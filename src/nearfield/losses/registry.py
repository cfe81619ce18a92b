"""One record per method, declared at its class by `@register(...)`: everything that is known about it.

`nearfield methods` prints it, `losses.create` builds from it, training, search, bench and report ask it.
Methods of your own are registered by modules that the environment variable NEARFIELD_METHODS names, separated by spaces
or commas; they may be files in the current folder. Worker processes of a bench read it too.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from torch import nn

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError, nearest
from nearfield.losses.parameters import Params, check_values, own_parameters, shown, validated
from nearfield.losses.protocols import Compares, Learns, Ranked
from nearfield.losses.proxy_loss import ProxyLoss, within_batch
from nearfield.pairs import PairLoss


@dataclass(frozen=True)
class Real:
    """A real hyper-parameter to search between `low` and `high`, on a log scale if `log`."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Whole:
    """An integer hyper-parameter to search between `low` and `high`, both included, on a log scale if `log`."""

    low: int
    high: int
    log: bool = False


@dataclass(frozen=True)
class Choice:
    """A hyper-parameter to choose from a few values."""

    values: tuple[str | int, ...]


Range = Real | Whole | Choice


class Claim(NamedTuple):
    """A result as published: recall at 1, in percent, and where it was printed."""

    dataset: str  # as the catalog of datasets calls it, such as "cub"
    backbone: str  # with the embedding size where it is known, such as "R50-512"
    r_at_1: float
    source: str = ""  # where it was printed, if not in the method's own publication


class Compared(NamedTuple):
    """A check of value and gradient beside released code: of the authors, or a well-known reimplementation."""

    code: str  # the repository, and which file or loss of it where that is not plain
    difference: str  # the largest relative difference, and what is different by design
    commit: str  # of that code, or its version

    def __str__(self) -> str:
        return f"{self.code} ({self.commit}): {self.difference}"


@dataclass(frozen=True)
class Method:
    """A method: its name, its class, and the facts that it was registered with."""

    name: str
    build: type[nn.Module]
    source: str
    year: int = 0  # of the publication
    claims: tuple[Claim, ...] = ()  # its results as published
    # how it is tuned and trained
    space: Mapping[str, Real | Whole] = field(default_factory=dict)
    presets: Mapping[str, Params] = field(default_factory=dict)  # published settings by name
    plain: Params = field(default_factory=dict)  # settings of a run (dotted keys) without what papers call a detail
    sampler: str = "m_per_class"  # that of its base if it is "base"
    recipe: OptimizerConfig | None = None  # the published optimiser, where there is one
    no_recipe: str = ""  # why there is none
    alias_of: str = ""  # the method that it is another name of
    # how it is built
    members: str = ""  # of an ensemble: the parameter that holds the number of its networks
    holds_head: bool = False  # whether it takes the backbone's features and embeds them itself
    base_params: Mapping[str, Params] = field(default_factory=dict)  # published parameters of its base, by its name
    compared: tuple[Compared, ...] = ()  # with which released code its value and gradient were compared
    uncompared: str = ""  # why with none
    # General Pair Weighting (Multi-Similarity paper, Table 1)
    similarities: str = ""  # of S, P, N: what the weight of a negative depends on, by that paper or its own equation
    disagreement: str = ""  # why a measurement finds others
    table_params: Params = field(default_factory=dict)  # with which it is measured
    by_cluster: bool = False  # whether its weights follow from a clustering, not from the similarities of a query

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The method's own parameters, without the options that all of its family share."""
        return own_parameters(self.build)  # type: ignore[arg-type]

    @property
    def needs(self) -> list[str]:
        """The parameters without a default: what it must know about the data."""
        return [name for name, p in self.parameters.items() if p.default is p.empty]

    @property
    def idea(self) -> str:
        """The method's docstring."""
        return inspect.cleandoc(self.build.__doc__ or "")

    @property
    def where(self) -> str:
        """File and line of the class."""
        try:
            return f"{inspect.getsourcefile(self.build)}:{inspect.getsourcelines(self.build)[1]}"
        except (OSError, TypeError):  # a class that was not read from a file
            return self.build.__module__

    @property
    def within_batch(self) -> bool:
        """Whether it is a loss over pairs of a batch's items, with nothing learned to compare them with."""
        return within_batch(self.build)

    @property
    def has_proxies(self) -> bool:
        """Whether it compares a batch with learned proxies of the classes, and holds them itself."""
        return issubclass(self.build, ProxyLoss)

    def takes_references(self, params: Params) -> bool:
        """Whether, with all these parameters, it can compare with other references, such as a memory of embeddings."""
        if issubclass(self.build, Compares):
            return self.build.compares_references(params)
        return issubclass(self.build, PairLoss) and not self.build.own_batch

    @property
    def shards(self) -> bool:
        """Whether it learns proxies that can be split over processes (`shard`)."""
        return issubclass(self.build, ProxyLoss) and self.build.splits

    def base(self, params: Params) -> tuple[str, dict[str, Any]] | None:
        """Of a method made of another loss: that loss's name and all its parameters that differ from its defaults."""
        if "base" not in self.parameters:
            return None
        name = params.get("base", self.parameters["base"].default)
        return name, {**self.base_params.get(name, {}), **(params.get("base_params") or {})}

    def sampler_of(self, params: Params) -> str:
        """The sampler that it was published with, with these parameters."""
        if self.sampler != "base":
            return self.sampler
        name, own = self.base(params) or ("", {})
        return _METHODS[name].sampler_of(own) if name in _METHODS else "shuffle"

    def recipe_of(self, params: Params) -> OptimizerConfig | None:
        """The optimiser that it was published with; where it has none of its own, that of its base."""
        base = self.base(params)
        if self.recipe is not None or base is None or base[0] not in _METHODS:
            return self.recipe
        return _METHODS[base[0]].recipe_of(base[1])

    def searched(self, params: Params) -> dict[str, tuple[Range, Any]]:
        """What a search varies, without what `params` set: range and published value, a base's as base_params.KEY."""
        own: dict[str, tuple[Range, Any]] = {
            key: (each, self.parameters[key].default) for key, each in self.space.items() if key not in params
        }
        name, given = self.base(params) or ("", {})
        if name not in _METHODS:
            return own
        base, fixed = _METHODS[name], params.get("base_params") or {}
        start = {key: given.get(key, parameter.default) for key, parameter in base.parameters.items()}
        return own | {f"base_params.{key}": (base.space[key], start[key]) for key in base.space if key not in fixed}

    def networks(self, params: Params) -> int:
        """How many networks it trains, with all these parameters; 1 unless it is an ensemble."""
        return int(params[self.members]) if self.members else 1

    def ranked_by(self, params: Params) -> str:
        """The distance that its embeddings are ranked by, with these parameters and defaults for the others."""
        known = {name: parameter.default for name, parameter in self.parameters.items()}
        return self.build.ranked_by({**known, **params}) if issubclass(self.build, Ranked) else "cosine"

    def learned_numbers(self, params: Params) -> int:
        """How many numbers it learns besides the network, with all these parameters."""
        return self.build.learned_numbers(params) if issubclass(self.build, Learns) else 0


_METHODS: dict[str, Method] = {}
_Loss = TypeVar("_Loss", bound=type[nn.Module])


def register(name: str, source: str, **facts: Any) -> Callable[[_Loss], _Loss]:
    """Class decorator: make a loss known as `name`; `facts` are the fields of `Method`, `compared` as plain tuples."""
    facts["compared"] = tuple(Compared(*each) for each in facts.get("compared", ()))

    def add(build: _Loss) -> _Loss:
        if name in _METHODS:
            raise InputError(f"the method {name!r} is already registered; choose another name.")
        _METHODS[name] = Method(name, build, source, **facts)
        return validated(name)(build)

    return add


def register_own() -> None:
    """Import the modules that NEARFIELD_METHODS names; InputError if one cannot be."""
    for module in os.environ.get("NEARFIELD_METHODS", "").replace(",", " ").split():
        sys.path.insert(0, "")  # for a file in the current folder
        try:
            importlib.import_module(module)
        except Exception as error:  # importing other people's code may raise anything
            raise InputError(
                f"NEARFIELD_METHODS must name modules that register methods; got {module!r}; importing it raised "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            sys.path.remove("")


def names() -> list[str]:
    """Every registered name, sorted."""
    return sorted(_METHODS)


def method(name: str) -> Method:
    """The method called `name`; InputError naming the nearest if it is unknown."""
    if not isinstance(name, str) or name not in _METHODS:
        raise InputError(f"unknown method {shown(name)}; {nearest(shown(name), _METHODS)}")
    return _METHODS[name]


def check_params(name: str, params: Params) -> dict[str, Any]:
    """All parameters of the method `name`, defaults filled in; InputError unless `params` are valid. Builds nothing."""
    return check_values(name, method(name).build, params)


def create(name: str, *, preset: str | None = None, **params: Any) -> nn.Module:
    """Build the method `name`; `preset` fills in a published setting, `params` override it; a miner may be a name."""
    found = method(name)
    if preset is not None and preset not in list(found.presets):
        raise InputError(f"{name} has no preset {shown(preset)}; {nearest(shown(preset), found.presets)}")
    return found.build(**{**(found.presets[preset] if preset else {}), **params})
