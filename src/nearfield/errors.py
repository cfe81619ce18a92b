"""The exceptions of Nearfield, each with the exit code of the command line, and checks of arguments."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NearfieldError(Exception):
    """Base of all exceptions that Nearfield raises deliberately; `exit_code` is that of the command line."""

    exit_code = 1


class InputError(NearfieldError, ValueError):
    """Invalid input: the message names the argument, the rule, the value and what to do."""

    exit_code = 2


class RunError(NearfieldError, RuntimeError):
    """Valid input, but the work failed: a full disk, a corrupt file, a diverged run."""

    exit_code = 1


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint: the valid word closest to `name`, or all valid words if none is close."""
    words = sorted(valid)
    close = difflib.get_close_matches(name, words, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(words)}."


def missing_package(what: str, package: str, extra: str) -> InputError:
    """The error for an optional package that is not installed, with the command that installs it."""
    return InputError(f'{what} needs the package {package}, which is not installed: pip install "nearfield[{extra}]".')


def require_positive(**values: float) -> tuple[float, ...]:
    """The values; InputError names the first that is not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise InputError(f"{name} must be above 0; got {value}.")
    return tuple(values.values())


def require_one_of(name: str, value: str, valid: tuple[str, ...]) -> str:
    """`value`, or InputError naming the nearest valid one."""
    if not isinstance(value, str) or value not in valid:
        raise InputError(f"{name} must be one of {', '.join(valid)}; got {value!r}, {nearest(str(value), valid)}")
    return value
