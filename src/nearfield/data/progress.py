"""How long work on many images shows how far it is: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]  # (done, total)


@contextmanager
def bar(text: str) -> Iterator[Progress]:
    """A progress bar on standard error that vanishes when the work is done."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(text, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
