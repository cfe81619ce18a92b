"""The error for what pytorch-metric-learning has and the bridge does not."""

from __future__ import annotations

from typing import Any, Literal

from nearfield.errors import InputError

PAGE = "docs/bridge.md"
Version = Literal[2, 3]


class NotMapped(InputError):
    """A class or an argument of pytorch-metric-learning that nothing here equals; the message says why."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} is not mapped: {why} See {PAGE}.")


def check_version(version: Any) -> None:
    """InputError unless `version` is one whose meanings are known."""
    if version not in (2, 3):
        raise InputError(f"version must be 2 or 3, the meanings of pytorch-metric-learning to follow; got {version!r}.")


def refuse(name: str, module: str, reasons: dict[str, str]) -> Any:
    """For a module's `__getattr__`: NotMapped for a name with a reason, else AttributeError."""
    if name in reasons:
        raise NotMapped(f"{module.rpartition('.')[2]}.{name}", reasons[name])
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
