"""How long work reports its progress: to a callback of the caller, or to a display. The default shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

Progress = Callable[[int, int], None]  # (done, total)
Display = Callable[[str], AbstractContextManager[Progress]]  # of a title; open while the work runs


def _nowhere(title: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


_display: ContextVar[Display] = ContextVar("display", default=_nowhere)


@contextmanager
def shown_by(display: Display) -> Iterator[None]:
    """Show the progress of all long work inside the block with `display`, as the command line does with a bar."""
    before = _display.set(display)
    try:
        yield
    finally:
        _display.reset(before)


def reported(title: str, progress: Progress | None = None) -> AbstractContextManager[Progress]:
    """Where the work called `title` reports to: the caller's `progress` or, without one, the display in use."""
    return _display.get()(title) if progress is None else nullcontext(progress)
