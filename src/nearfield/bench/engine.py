"""The engine of a bench: a Dask cluster, started here or found elsewhere, in the shape of `concurrent.futures`.

This file alone knows Dask. A job is a plain dictionary (`bench.job`); what comes back is one, too. Jobs are submitted
only as fast as there are free threads, so that a dying worker takes nothing with it but what it was doing; Dask does a
lost job again, on another worker, until it has lost `allowed-failures` workers to it.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from nearfield.errors import InputError, RunError

PATIENCE = 30.0  # seconds in which a cancelled job may save its checkpoint
LOST = 60.0  # seconds without the scheduler before the cluster counts as lost
LOGGERS = ("distributed", "tornado", "asyncio")
Job = dict[str, Any]
Answer = dict[str, Any]


class WorkerDied(RunError):
    """Every worker that did a job died of it."""


class Sign(NamedTuple):
    """The latest sign of life of a running job."""

    worker: str  # address
    share: float  # done so far
    at: float  # time.monotonic()


class Engine:
    """Runs jobs on a cluster; nothing is started before `start`, which may be called again."""

    def __init__(self, jobs: int = 1, cluster: str | None = None) -> None:
        """`jobs` worker processes here, with one thread each; or the address or scheduler file of a Dask cluster."""
        self.jobs, self.cluster = jobs, cluster
        self.signs: dict[str, Sign] = {}  # of running jobs, by the key of their task
        self._refused: dict[str, str] = {}  # addresses of workers that cannot do these jobs, and why
        self._limits: dict[Future[Answer], set[str]] = {}  # workers that a job is limited to, once some refused
        self._topic = f"nearfield-{uuid.uuid4().hex}"
        self._client: Any = None
        self._executor: Any = None
        self._local: Any = None
        self._undo = ExitStack()
        self._seen = 0.0  # when the scheduler was last there

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, log: Path) -> None:
        """Start the workers, whose output goes to the file `log`, or connect to the cluster."""
        if self._client is not None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # versions are compared by the jobs themselves
            for logger in map(logging.getLogger, LOGGERS):
                self._undo.callback(logger.setLevel, logger.level)
                logger.setLevel(logging.CRITICAL + 1)
            try:
                self._client = self._connect() if self.cluster else self._start_here(log)
            except (OSError, RuntimeError, ValueError) as error:
                self.close()
                if self.cluster:
                    raise InputError(
                        f"--cluster must name a running Dask scheduler, tcp://host:8786, or its scheduler file; got "
                        f"{self.cluster}: {error}. Start one with `dask scheduler`."
                    ) from error
                raise RunError(f"cannot start worker processes: {error}.") from error
        self._client.subscribe_topic(self._topic, self._hear)
        self._executor = self._client.get_executor(pure=False)
        self._seen = time.monotonic()

    def _start_here(self, log: Path) -> Any:
        import dask
        from distributed import Client, LocalCluster, WorkerPlugin

        class Local(WorkerPlugin):
            """A worker of ours: Ctrl-C is for the driver, and what it prints is for the log."""

            name = "nearfield-local"

            def setup(self, worker: Any) -> None:
                import os
                import signal

                signal.signal(signal.SIGINT, signal.SIG_IGN)
                target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                for stream in (1, 2):
                    os.dup2(target, stream)
                os.close(target)

        path = str(log.absolute())
        log.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            "distributed.worker.daemon": False,  # so that runs may have processes that prepare batches
            "distributed.nanny.pre-spawn-environ": worker_environment(),
            "distributed.deploy.lost-worker-timeout": "10s",
            "distributed.worker.profile.enabled": False,  # it would stop a training thread every 10 ms
        }
        self._undo.enter_context(dask.config.set(settings))  # for workers that are started again, too
        self._local = LocalCluster(
            n_workers=self.jobs,
            threads_per_worker=1,
            memory_limit=0,  # a paused worker would wait for memory that torch keeps
            dashboard_address="127.0.0.1:0" if find_spec("bokeh") else None,
            silence_logs=logging.CRITICAL + 1,
        )
        client = Client(self._local, set_as_default=False)
        client.register_plugin(Local())
        return client

    def _connect(self) -> Any:
        from distributed import Client

        assert self.cluster is not None
        if "://" in self.cluster:
            return Client(self.cluster, set_as_default=False, timeout=10)
        if not Path(self.cluster).is_file():
            raise OSError("there is no such file")
        return Client(scheduler_file=self.cluster, set_as_default=False, timeout=10)

    @property
    def dashboard(self) -> str | None:
        """The address of Dask's dashboard, where bokeh is installed."""
        found = self._client.dashboard_link if self._client is not None and find_spec("bokeh") else None
        return found or None

    def slots(self) -> int:
        """How many jobs can run at once now; RunError if the cluster is lost, or every worker refused."""
        if self._client.status != "running":
            if self._client.status == "closed" or time.monotonic() - self._seen > LOST:
                raise RunError(f"lost the cluster {self.cluster or 'of this machine'}. Run the same command to resume.")
            return 0
        self._seen = time.monotonic()
        threads: dict[str, int] = self._client.nthreads()
        if self._local is not None and len(threads) < self.jobs:
            self._local.scale(self.jobs)  # a worker that died while it was starting has nobody else to replace it
        for future, limit in list(self._limits.items()):
            if not limit & threads.keys():
                future.cancel()  # those that could do it are gone: it is submitted again
        if threads and threads.keys() <= self._refused.keys():
            reasons = "\n  ".join(f"{address}: {self._refused[address]}" for address in threads)
            raise RunError(f"no worker of the cluster can run this bench:\n  {reasons}")
        return sum(count for address, count in threads.items() if address not in self._refused)

    def submit(self, job: Job) -> Future[Answer]:
        """Run a job on some worker."""
        if not self._refused:
            future: Future[Answer] = self._executor.submit(_on_worker(), job, self._topic)
            return future
        others = sorted(self._client.nthreads().keys() - self._refused.keys())
        future = self._executor.submit(_on_worker(), job, self._topic, workers=others, allow_other_workers=False)
        self._limits[future] = set(others)
        return future

    def exclude(self, worker: str, why: str) -> None:
        """Give no further job to this worker."""
        self._refused[worker] = why

    def wait(self, futures: Iterable[Future[Answer]], seconds: float) -> set[Future[Answer]]:
        """Futures that are done, as soon as there is one, or after so many seconds."""
        return wait(futures, timeout=seconds, return_when=FIRST_COMPLETED).done

    def answer(self, future: Future[Answer], key: str) -> Answer | None:
        """What a job returned; None if it was cancelled. WorkerDied if it killed its workers."""
        from distributed import KilledWorker

        self._limits.pop(future, None)
        self.signs.pop(key, None)
        if future.cancelled():
            return None
        try:
            return future.result()
        except KilledWorker as error:
            raise WorkerDied(
                f"{error.allowed_failures + 1} workers died while running it, the last at {error.last_worker.address}: "
                "out of memory, or a crash"
            ) from None

    def cancel(self, futures: Collection[Future[Answer]], patience: float = PATIENCE) -> None:
        """Stop jobs; returns when the running ones have saved their checkpoints, or after `patience` seconds."""
        for future in futures:
            future.cancel()
        deadline = time.monotonic() + patience
        while self.signs and time.monotonic() < deadline:
            alive = self._client.nthreads() if self._client.status == "running" else {}
            for key, sign in list(self.signs.items()):
                if sign.worker not in alive:
                    self.signs.pop(key, None)
            time.sleep(0.05)

    def restart(self, worker: str) -> None:
        """Kill a worker process whose job hangs; the nanny beside it starts another. Without a nanny, avoid it."""
        try:
            self._client.restart_workers([worker], timeout=PATIENCE, raise_for_error=False)
        except (OSError, ValueError):
            self.exclude(worker, "a task hangs there")

    def close(self) -> None:
        """Leave the cluster; end the workers that were started here."""
        client, local = self._client, self._local
        self._client = self._local = None
        for each in (client, local):
            if each is not None:
                each.close()
        self._undo.close()

    def _hear(self, event: tuple[float, Any]) -> None:
        message = event[1]
        if message.get("ended"):
            self.signs.pop(message["key"], None)
        else:
            self.signs[message["key"]] = Sign(message["worker"], message["share"], time.monotonic())


def worker_environment() -> dict[str, str]:
    """What the environment of a worker needs: one thread, threads that sleep while they wait, arrays that are kept.

    Dask calls a task in a thread, and glibc gives a thread an arena of small heaps, which cannot keep large arrays: a
    whole network trains half as fast again from the one arena of the main thread. What is set already stays as it is.
    """
    wanted = {
        "GOMP_SPINCOUNT": "0",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 31),
        "OMP_NUM_THREADS": "1",
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def _on_worker() -> Callable[[Job, str], Answer]:
    """What runs on a worker. Sent by value, so that a worker without this package can say so."""

    def call(job: Job, topic: str) -> Answer:
        import time

        from distributed import get_worker

        worker = get_worker()
        current, told = worker.get_current_task(), 0.0

        def tell(share: float) -> None:
            nonlocal told
            if time.monotonic() - told >= 0.5:
                told = time.monotonic()
                worker.log_event(topic, {"key": job["key"], "worker": worker.address, "share": share})

        def stop() -> bool:  # the driver cancelled the job, or is gone
            state = worker.state.tasks.get(current)
            return state is None or state.state == "cancelled"

        tell(0.0)
        try:
            try:
                from nearfield.bench.job import work
            except ImportError as error:
                return {"worker": worker.address, "refused": f"it cannot import nearfield: {error}"}
            if worker.state.nthreads != 1:  # torch's random numbers belong to the process
                why = f"it has {worker.state.nthreads} threads; start it with --nthreads 1"
                return {"worker": worker.address, "refused": why}
            return {"worker": worker.address, **work(job, stop, tell, worker.local_directory)}
        finally:
            worker.log_event(topic, {"key": job["key"], "worker": worker.address, "ended": True})

    return call
