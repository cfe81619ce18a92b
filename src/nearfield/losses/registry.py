"""Names for methods: what `nearfield methods` prints, what `losses.create` builds, what a search may vary."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

from torch import nn

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError, nearest
from nearfield.pairs.mining import miner


@dataclass(frozen=True)
class Real:
    """A real hyper-parameter to search between `low` and `high`, on a log scale if `log`."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Whole:
    """A whole-number hyper-parameter to search between `low` and `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class Method:
    """A method by name: how to build it, where it comes from, and what may vary."""

    name: str
    build: type[nn.Module]
    source: str
    space: Mapping[str, Real | Whole] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    similarities: str = ""  # of S, P, N: what the Multi-Similarity paper (Table 1) says the weight of a negative uses
    sampler: str = "m_per_class"
    recipe: OptimizerConfig | None = None  # the published optimiser, where there is one

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The method's own parameters, without the options that all of its family share."""
        signature = inspect.signature(self.build)
        return {n: p for n, p in signature.parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}

    @property
    def idea(self) -> str:
        """The method's docstring."""
        return inspect.cleandoc(self.build.__doc__ or "")


_METHODS: dict[str, Method] = {}
_Loss = TypeVar("_Loss", bound=type[nn.Module])


def register(name: str, source: str, **facts: Any) -> Callable[[_Loss], _Loss]:
    """Class decorator: make a loss known as `name`; `facts` are the fields of `Method`."""

    def add(build: _Loss) -> _Loss:
        if name in _METHODS:
            raise InputError(f"method {name!r} is registered twice; choose another name.")
        _METHODS[name] = Method(name, build, source, **facts)
        return build

    return add


def names() -> list[str]:
    """Every registered name, sorted."""
    return sorted(_METHODS)


def method(name: str) -> Method:
    """The method called `name`; InputError naming the nearest if there is none."""
    if name not in _METHODS:
        raise InputError(f"there is no method {name!r}; {nearest(name, _METHODS)}")
    return _METHODS[name]


def create(name: str, *, preset: str | None = None, **params: Any) -> nn.Module:
    """Build the method `name`; `preset` fills in a published setting, `params` override it; a miner may be a name."""
    found = method(name)
    if preset is not None and preset not in found.presets:
        raise InputError(f"{name} has no preset {preset!r}; {nearest(preset, found.presets)}")
    params = {**(found.presets[preset] if preset else {}), **params}
    valid = _accepted(found)
    for key in params:
        if key not in valid:
            raise InputError(f"{name} has no parameter {key!r}; {nearest(key, valid)}")
    missing = [n for n, p in found.parameters.items() if p.default is p.empty and n not in params]
    if missing:
        raise InputError(f"{name} needs {' and '.join(missing)}; give {missing[0]}=... to create().")
    if params.get("miner") is not None:
        params["miner"] = miner(params["miner"])
    return found.build(**params)


def _accepted(found: Method) -> set[str]:
    """Keyword names that the method takes: its own, and the engine's if it passes them on."""
    open_ended = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(found.build).parameters.values())
    shared = getattr(found.build, "options", None) if open_ended else None
    return set(found.parameters) | (set(get_type_hints(shared)) if shared else set())
