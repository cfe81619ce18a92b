"""Programs that cost no start: forks of a process that has imported torch and this library.

A new interpreter imports for three seconds before it does anything, and tests start hundreds of them.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from socket import socket

from nearfield.cli.main import main

PRELOADED = ["nearfield.cli.main", "nearfield.training.loop", "sklearn.datasets", "torch._dynamo"]


@cache
def forks() -> ForkServerContext:
    """Where processes are forked from: one for all tests of a process."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def free_port() -> int:
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Program:
    """A command that runs: like `subprocess.Popen`, with what it prints in a file.

    Args:
        words: the command: `nearfield` and its words, or `python` and a script.
        prints: a file for what it prints; what it prints to stderr goes beside it, as `.err`.
        environment: variables beside those of this process.
    """

    def __init__(self, words: Sequence[str], prints: Path, environment: dict[str, str] | None = None) -> None:
        self.prints, self.notes = prints, prints.with_suffix(".err")
        variables = {**os.environ, **(environment or {})}
        arguments = (list(words), variables, str(Path.cwd()), str(self.prints), str(self.notes))
        self._process = forks().Process(target=_run, args=arguments)
        self._process.start()
        self.pid = self._process.pid or 0
        atexit.register(self.kill)  # a test that failed may have left it: nobody shall wait for it

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Its exit code, negative for the signal that ended it."""
        self._process.join(timeout)
        assert self.returncode is not None, f"it still runs after {timeout} s: {self.printed()[1][-2000:]}"
        return self.returncode

    def printed(self) -> tuple[str, str]:
        """What it has printed so far, to stdout and to stderr."""
        out, notes = (file.read_text(encoding="utf-8") if file.exists() else "" for file in (self.prints, self.notes))
        return out, notes

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def ran(words: Sequence[str], prints: Path, environment: dict[str, str] | None = None) -> Program:
    """A command that has ended."""
    program = Program(words, prints, environment)
    program.wait(600.0)
    return program


def as_ranks(ranks: int, start: Callable[[int, dict[str, str]], Program]) -> list[Program]:
    """`start` with the number of each rank and the variables that torchrun sets for it; all have ended."""
    port = str(free_port())
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    programs = [start(rank, {**size, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
    for program in programs:
        program.wait(600.0)
    return programs


def _run(words: list[str], variables: dict[str, str], folder: str, prints: str, notes: str) -> None:
    """In the fork: become the command."""
    os.setsid()  # what a terminal would send to all of it reaches no one else
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    for number, name in ((1, prints), (2, notes)):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.argv = list(words)
    warnings.resetwarnings()
    if words[0] == "nearfield":
        sys.exit(main(words[1:]))
    sys.argv = words[1:]
    runpy.run_path(words[1], run_name="__main__")
