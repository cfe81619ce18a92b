"""Kill a fork of the test's process at a chosen call: work that is cut off at any point of its way."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any


def killed_at(
    call: int, work: Callable[[], object], counts: Callable[[str], bool], events: tuple[str, ...] = ("call",)
) -> bool:
    """Whether a fork that does `work`, killed with SIGKILL at its n-th call from a file that `counts`, was killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        left = call

        def count(frame: Any, event: str, argument: object) -> None:
            nonlocal left
            if event in events and counts(frame.f_code.co_filename):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)
