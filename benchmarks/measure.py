"""Time and peak memory of a call, each case in a process of its own, beside the bare matrix product in the same one."""

from __future__ import annotations

import gc
import os
import resource
import statistics
import time
import traceback
from collections.abc import Callable
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

MEMORY_LIMIT = 12 << 30  # bytes of address space a case may take before it counts as out of memory
TIME_LIMIT = 60  # seconds a case may take in all


def measure(call: Callable[[], Any], bare: Callable[[], Any] | None, rounds: int, threads: int) -> dict[str, float]:
    """Peak extra memory of the first call, then the median time of `call` and of `bare`, taken in turns.

    One thread never waits: then time is that of the processor, so that other work on the machine counts less.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    times: list[float] = []
    bare_times: list[float] = []
    deadline = time.monotonic() + TIME_LIMIT / 4
    megabytes = peak_megabytes(call)
    like_after_training()
    for done in range(rounds):
        if bare is not None:
            bare_times.append(seconds(bare, clock))
        times.append(seconds(call, clock))
        if time.monotonic() > deadline and done:
            break
    found = {"ms": 1e3 * statistics.median(times), "mb": megabytes}
    if bare is not None:
        found["bare_ms"] = 1e3 * statistics.median(bare_times)
        found["ratio"] = statistics.median(a / b for a, b in zip(times, bare_times, strict=True))
    return found


def seconds(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one call; by default wall time."""
    begun = clock()
    call()
    return clock() - begun


def peak_megabytes(call: Callable[[], Any]) -> float:
    """How far the process grows above where it stood while `call` runs (Linux; NaN elsewhere)."""
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        call()
        return float("nan")
    gc.collect()
    reset.write_text("5")  # forget the high-water mark
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def in_process(
    run_case: Callable[[dict[str, Any]], dict[str, Any]], case: dict[str, Any], threads: int
) -> dict[str, Any]:
    """What `run_case` finds in a process of its own, or why it found nothing.

    The process is forked from one that has loaded the libraries and used none of them: loading takes seconds.
    """
    context = _with_libraries(threads)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, run_case, {**case, "threads": threads}))
    process.start()
    there.close()
    try:
        if not here.poll(TIME_LIMIT):
            return {"failed": f"> {TIME_LIMIT} s"}
        found, error = here.recv()
    except EOFError:  # killed
        return {"failed": "out of memory"}
    finally:
        process.kill()
        process.join()
    if error is None:
        return dict(found)
    if any(word in error for word in ("MemoryError", "not enough memory", "can't allocate", "DefaultCPUAllocator")):
        return {"failed": "out of memory"}
    raise RuntimeError(f"{case}: {error[-2000:]}")


@cache
def _with_libraries(threads: int) -> ForkServerContext:
    """Where processes are forked from; what it is told here holds for all of them."""
    os.environ.update({"GOMP_SPINCOUNT": "0", "OMP_NUM_THREADS": str(threads)})
    for key in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):  # memory given back must count as given back
        os.environ.pop(key, None)
    context = get_context("forkserver")
    context.set_forkserver_preload(
        ["nearfield.losses", "nearfield.metrics", "nearfield.index", "pytorch_metric_learning.losses"]
    )
    return context


def _answer(pipe: Connection, run_case: Callable[[dict[str, Any]], dict[str, Any]], case: dict[str, Any]) -> None:
    try:
        pipe.send((run_case(case), None))
    except Exception:
        pipe.send((None, traceback.format_exc()))


def limit_memory() -> None:
    """Make this process fail rather than drive the machine out of memory."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))


def like_after_training() -> None:
    """Free a large array once, as any step of a network does: the allocator then keeps memory between calls.

    Without it, glibc returns the temporaries of a small case to the system after each call: page faults are measured.
    """
    import torch

    torch.zeros(31 << 18)


def cell(found: dict[str, Any] | None, key: str, style: str = "{:.1f}") -> str:
    """A table cell: the number, the reason why there is none, or nothing."""
    if found is None:
        return ""
    return str(found["failed"]) if "failed" in found else style.format(found[key])


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """A Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * w for w in widths], *rows]
    for line in lines:
        print(
            "| "
            + " | ".join(
                c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
            )
            + " |"
        )
