"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread is. If that is a hook of the garbage collector, of which Dask's
scheduler has one, or a finalizer, the exception is printed and dropped, and the program would go on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def heard() -> Iterator[Callable[[], bool]]:
    """Whether a signal has come that a handler answers; the handler is called as before.

    Only the main thread may set handlers; in another one, nothing is heard.
    """
    came: list[int] = []
    before: dict[int, Any] = {}

    def listen(number: int, frame: FrameType | None) -> None:
        came.append(number)
        before[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in SIGNALS if callable(signal.getsignal(number))}
        for number in before:
            signal.signal(number, listen)
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
