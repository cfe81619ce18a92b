"""The one thread that owns the index. Queries that wait together go through the network together.

An index must not be shared between threads, and several networks at once would fight for the cores: so all requests
hand their work to this thread and wait. Images of one request never fail those of another.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from nearfield.index import Index
from nearfield.index.model import IndexModel
from nearfield.index.store import FILE

LOOK_EVERY = 2.0  # seconds between two looks whether another process has changed the index
Result = TypeVar("Result")
Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class _Job:
    def __init__(self, images: Sequence[Pixels] | None, work: Callable[[Index], Any] | None) -> None:
        self.images, self.work = images, work
        self.future: Future[Any] = Future()


class Worker:
    """Embeds images and answers from the index, in a thread of its own."""

    def __init__(self, path: Path, batch: int, threads: int) -> None:
        self.path, self.batch, self.threads = path, batch, threads
        self.generation = 0  # grows when the items of the index change
        self.items = 0  # of the index
        self.batches = self.batched = 0  # calls of the network, images in them
        self.model: IndexModel
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._opened: Future[None] = Future()
        self._looked, self._stamp = 0.0, self._stamps()
        self._thread = threading.Thread(target=self._run, name="nearfield-index", daemon=True)

    def start(self) -> None:
        """Open index and model; whatever fails is raised here."""
        self._thread.start()
        self._opened.result()

    @property
    def is_started(self) -> bool:
        """Whether the thread runs, or has run."""
        return self._thread.ident is not None

    def close(self) -> None:
        """Finish what waits, then release the index."""
        self._jobs.put(None)
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Jobs that have not been taken up."""
        return self._jobs.qsize()

    def embed(self, images: Sequence[Pixels]) -> Future[Floats]:
        """Vectors of prepared images, embedded together with those of others."""
        return self._put(_Job(images, None))

    def call(self, work: Callable[[Index], Result]) -> Future[Result]:
        """The result of `work`, called with the index."""
        return self._put(_Job(None, work))

    def _put(self, job: _Job) -> Future[Any]:
        self._jobs.put(job)
        return job.future

    def _run(self) -> None:
        try:
            import faiss
            import torch

            torch.set_num_threads(self.threads)
            faiss.omp_set_num_threads(self.threads)
            index = Index.open(self.path)
            self.model, self.items = index.model, len(index)
        except BaseException as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        with index:
            running = True
            while running:
                jobs, running = self._next()
                self._embed([job for job in jobs if job.images is not None])
                for job in jobs:
                    if job.work is not None:
                        self._answer(index, job)

    def _next(self) -> tuple[list[_Job], bool]:
        """The jobs that wait, up to a batch of images; False if no more will come."""
        jobs: list[_Job] = []
        images = 0
        while not jobs or images < self.batch:
            try:
                job = self._jobs.get(block=not jobs)
            except queue.Empty:
                break
            if job is None:
                return jobs, False
            if job.future.set_running_or_notify_cancel():  # the client may have gone
                jobs.append(job)
                images += len(job.images or ())
        return jobs, True

    def _embed(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        self.batches += 1
        self.batched += sum(len(job.images or ()) for job in jobs)
        try:
            vectors = self.model.embed_prepared([image for job in jobs for image in job.images or ()])
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
            else:  # one of them is to blame
                for job in jobs:
                    self._embed([job])
            return
        start = 0
        for job in jobs:
            stop = start + len(job.images or ())
            job.future.set_result(vectors[start:stop])
            start = stop

    def _answer(self, index: Index, job: _Job) -> None:
        assert job.work is not None
        try:
            self._look(index)
            job.future.set_result(job.work(index))
        except Exception as error:
            job.future.set_exception(error)

    def _look(self, index: Index) -> None:
        """Read the index again if its file has changed."""
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY:
            self._looked = now
            stamp = self._stamps()
            if stamp != self._stamp:
                self.reload(index)
                self._stamp = stamp

    def reload(self, index: Index) -> None:
        """Read the index again."""
        before = index.labels
        index.reload()
        self.items = len(index)
        self.generation += before != index.labels

    def _stamps(self) -> list[tuple[int, int]]:
        files = (self.path / name for name in (FILE, f"{FILE}-wal"))
        return [(found.st_mtime_ns, found.st_size) for file in files if file.exists() for found in [file.stat()]]
