"""A task as it travels: what the driver sends, what a worker checks and does, what comes back.

    job     key, task, protocol, code, data, weights, folder, mark, directory: all plain values
    answer  one of: refused (why this worker cannot do it), stopped, error (and whether it may be tried again), or
            outcome, queries, seconds, made_by and folder, with files where the bench's folder is not shared

A worker does only what its driver would: it compares source code, data and weights first. It trains in the folder of
the bench where that is shared, so that another worker resumes what it began; elsewhere in its own scratch space.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from nearfield._version import __version__
from nearfield.bench.plan import Bench, Task
from nearfield.bench.protocols import Protocol
from nearfield.bench.run_task import run_task
from nearfield.config import DataConfig, RunConfig, build_config
from nearfield.data import Dataset, decoded
from nearfield.errors import NearfieldError, RunError
from nearfield.training.batches import open_data
from nearfield.training.loop import Interrupted
from nearfield.training.run_folder import Busy, environment

MARK = ".driver"  # in the folder of a bench: how a worker knows that it sees the same folder
RUNS = "runs"
Job = dict[str, Any]
Answer = dict[str, Any]


# ---------------------------------------------------------------------------------------------------------------
# The driver's side


def job_of(task: Task, bench: Bench, folder: Path, mark: str) -> Job:
    """What a worker must know to do the task; `mark` is what the file MARK in `folder` holds."""
    return {
        "key": task.key,
        "task": task.to_json(),
        "protocol": bench.protocol.model_dump(mode="json"),
        "version": __version__,
        "code": code_digest(),
        "data": bench.data,
        "weights": bench.weights,
        "folder": str(folder.absolute()),
        "mark": mark,
        "directory": str(Path.cwd()),
    }


def receive(answer: Answer, folder: Path) -> int:
    """Unpack the files that came with an answer into the bench's folder; how many bytes there were."""
    files: dict[str, bytes] = answer.get("files") or {}
    if files:
        target = folder / answer["folder"]
        draft = target.with_name(f".{target.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        for name, content in files.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(draft, target)
    return sum(map(len, files.values()))


@cache
def code_digest() -> str:
    """A digest of the source of this package: with it and the version, a worker knows whether it is the same."""
    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def file_digest(path: str | None) -> str | None:
    """The sha256 of a file; None without one. RunError if it cannot be read."""
    if path is None:
        return None
    digest = hashlib.sha256()
    try:
        with Path(path).expanduser().open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()
    except OSError as error:
        raise RunError(f"cannot read the weights {path}: {error.strerror}. Check the path.") from error


# ---------------------------------------------------------------------------------------------------------------
# The worker's side


def work(job: Job, stop: Callable[[], bool], tell: Callable[[float], None], scratch: str) -> Answer:
    """Do a job, unless this worker must refuse it. `stop` is asked after every step, `tell` told the share done."""
    try:
        task, dataset = _checked(job)
    except RunError as error:
        return {"refused": f"{socket.gethostname()}: {error}"}
    shared = _reads(Path(job["folder"]) / MARK) == job["mark"]
    home = Path(job["folder"]) if shared else Path(scratch) / "nearfield"
    folder, begun = home / RUNS / folder_name(task), time.monotonic()
    rules = build_config(Protocol, job["protocol"])
    try:
        try:
            outcome, queries = run_task(task, rules, dataset, folder, stop, tell)
        except Busy:  # a worker that was thought dead still holds it
            folder = folder.with_name(f"{folder.name}-{socket.gethostname()}-{os.getpid()}")
            outcome, queries = run_task(task, rules, dataset, folder, stop, tell)
    except Interrupted:
        return {"stopped": True}
    except (OSError, NearfieldError, SafetensorError, MemoryError) as error:  # what was finished is good: keep it
        return {"error": f"{type(error).__name__}: {error}"}
    except Exception as error:  # whatever it is, the others continue
        _drop_unfinished(folder)
        return {"error": f"{type(error).__name__}: {error}"}
    answer = {"outcome": outcome, "queries": queries, "seconds": time.monotonic() - begun, "made_by": environment()}
    answer["folder"] = str(folder.relative_to(home))
    if not shared:
        answer["files"] = _files(folder) if task.kind == "seed" else None
        shutil.rmtree(folder, ignore_errors=True)
    return answer


def folder_name(task: Task) -> str:
    """A name for the task's folder that tells what it is; the key makes it unique."""
    what = f"{task.variant}-seed" if task.variant else task.kind
    return f"{re.sub(r'[^A-Za-z0-9_.=-]+', '-', task.label).strip('-')}-{what}{task.number}-{task.key}"


def _checked(job: Job) -> tuple[Task, Dataset]:
    """The task and its data; RunError if code, data or weights are not those of the driver."""
    if (job["version"], job["code"]) != (__version__, code_digest()):
        raise RunError(
            f"its Nearfield is {__version__} ({code_digest()}), the driver's {job['version']} ({job['code']}). "
            "Install the same there and restart the worker."
        )
    task = Task.from_json(job["task"])
    run = _located(task.run, Path(job["directory"]))
    if job["weights"] is not None and file_digest(run.model.weights) != job["weights"]:
        raise RunError(f"the weights {run.model.weights} differ from the driver's. Copy the same file there.")
    try:
        dataset = _data(run.data.name, run.data.augment, run.data.size)
        if dataset.fingerprint != job["data"]:  # the data may have changed since this worker read them
            _data.cache_clear()
            dataset = _data(run.data.name, run.data.augment, run.data.size)
    except (NearfieldError, OSError) as error:
        raise RunError(f"cannot read the data {run.data.name}: {error}") from error
    if dataset.fingerprint != job["data"]:
        raise RunError(
            f"its data {run.data.name} differ from the driver's: fingerprint {dataset.fingerprint[:12]}, not "
            f"{job['data'][:12]}. Copy the same data there."
        )
    return task if run == task.run else replace(task, run=run), dataset


def _located(run: RunConfig, directory: Path) -> RunConfig:
    """The run with its files where this worker finds them, and without processes where it may not have any."""
    here = _path(run.data.name, directory)
    workers = 0 if multiprocessing.current_process().daemon else run.data.workers
    data = run.data.model_copy(update={"name": here, "workers": workers})
    model = run.model
    if model.weights is not None:
        model = model.model_copy(update={"weights": _path(model.weights, directory)})
    return run.model_copy(update={"data": data, "model": model})


def _path(name: str, directory: Path) -> str:
    """A relative path as seen from the driver's directory, where it does not exist in that of this process."""
    elsewhere = directory / name
    return str(elsewhere) if not Path(name).exists() and elsewhere.exists() else name


@lru_cache(maxsize=2)
def _data(name: str, augment: str | None, size: int | None) -> Dataset:
    return bench_data(DataConfig(name=name, augment=augment, size=size))


def bench_data(config: DataConfig) -> Dataset:
    """The data of a bench, opened once for all of its runs; images are decoded, or those to be cropped will be."""
    dataset = open_data(config)
    return decoded(dataset) if config.augment is None else dataset


def _drop_unfinished(folder: Path) -> None:
    """Delete the folds that are not finished: whatever went wrong may be in their checkpoints."""
    for fold in folder.glob("fold-*"):
        if not (fold / "result.json").exists():
            shutil.rmtree(fold, ignore_errors=True)


def _files(folder: Path) -> dict[str, bytes]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _reads(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
