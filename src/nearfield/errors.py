"""The two ways Nearfield says no, and the exit code that each becomes at the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NearfieldError(Exception):
    """Anything Nearfield raises on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1


class InputError(NearfieldError, ValueError):
    """The caller's input breaks a rule: the message names the argument, the rule, the value and the remedy."""

    exit_code = 2


class RunError(NearfieldError, RuntimeError):
    """The input was fine but the work could not be done: a full disk, a corrupt file, a diverged run."""

    exit_code = 1


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint naming the valid word closest to `name`, or the whole list when none is close."""
    words = sorted(valid)
    close = difflib.get_close_matches(name, words, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(words)}."


def missing_package(what: str, package: str, extra: str) -> InputError:
    """The error for an optional package that is not installed, with the command that installs it."""
    return InputError(f'{what} needs the package {package}, which is not installed: pip install "nearfield[{extra}]".')


def require_positive(**values: float) -> tuple[float, ...]:
    """The values, or InputError naming the first that is not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise InputError(f"{name} must be above 0; got {value}.")
    return tuple(values.values())


def require_one_of(name: str, value: str, valid: tuple[str, ...]) -> str:
    """`value`, or InputError naming the nearest valid one."""
    if not isinstance(value, str) or value not in valid:
        raise InputError(f"{name} must be one of {', '.join(valid)}; got {value!r}, {nearest(str(value), valid)}")
    return value
