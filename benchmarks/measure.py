"""Time and peak memory of a call, each case in a process of its own, beside the bare matrix product in the same one."""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
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


def in_process(module: str, case: dict[str, Any], threads: int) -> dict[str, Any]:
    """Run `python -m module --case JSON` alone and return the JSON it prints, or why there is none."""
    command = [sys.executable, "-m", module, "--case", json.dumps({**case, "threads": threads})]
    env = {**os.environ, "GOMP_SPINCOUNT": "0", "OMP_NUM_THREADS": str(threads)}
    for key in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):  # memory given back must count as given back
        env.pop(key, None)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, env=env)
    except subprocess.TimeoutExpired:
        return {"failed": f"> {TIME_LIMIT} s"}
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    memory = any(
        word in done.stderr for word in ("MemoryError", "not enough memory", "can't allocate", "DefaultCPUAllocator")
    )
    if memory or done.returncode < 0:
        return {"failed": "out of memory"}
    raise RuntimeError(f"{case}: {done.stderr[-2000:]}")


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
