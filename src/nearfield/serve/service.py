"""What the routes share: the worker, the gate, threads for decoding and for changes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from nearfield.data.pictures import digest_of
from nearfield.index import Changes, Duplicates, Index, Item
from nearfield.serve.errors import ApiError, overloaded
from nearfield.serve.heat import Pixels
from nearfield.serve.metrics import Metrics
from nearfield.serve.overviews import Overviews
from nearfield.serve.settings import Settings
from nearfield.serve.uploads import Box, Gate, cropped, open_image
from nearfield.serve.worker import Worker

if TYPE_CHECKING:
    from starlette.requests import Request

SOON = 0.3  # seconds that a search waits for the duplicates of the collection
Result = TypeVar("Result")


class Service:
    """An index being served."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        self.gate, self.metrics, self.session = Gate(settings), Metrics(), secrets.token_urlsafe(32)
        self.worker = Worker(path, settings.batch, settings.workers)
        self.overviews = Overviews(path)
        self._decoders = ThreadPoolExecutor(settings.workers, thread_name_prefix="nearfield-decode")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="nearfield-write")

    def start(self) -> None:
        """Open index and model; a second call does nothing."""
        if not self.worker.is_started:
            self.worker.start()
            self.overviews.duplicates(self.worker.generation)

    def close(self) -> None:
        """Finish what is at work."""
        for pool in (self._decoders, self._writer):
            pool.shutdown(wait=True, cancel_futures=True)
        self.overviews.close()
        self.worker.close()

    async def wait(self, future: Future[Result], shared: bool = False) -> Result:
        """The result of other threads; ApiError 503 if it takes too long. What others wait for too goes on then."""
        result = asyncio.wrap_future(future)
        try:
            with anyio.fail_after(self.settings.patience):
                return await (asyncio.shield(result) if shared else result)
        except TimeoutError:
            raise overloaded(f"no answer within {self.settings.patience:g} s") from None

    async def known_duplicates(self) -> Duplicates | None:
        """The duplicates of the collection; None while they are being looked for."""
        future = asyncio.wrap_future(self.overviews.duplicates(self.worker.generation))
        done, _ = await asyncio.wait([future], timeout=SOON)
        return future.result() if done else None

    async def call(self, work: Callable[[Index], Result]) -> Result:
        """Work on the index, in the thread that owns it."""
        return await self.wait(self.worker.call(work))

    async def decode(self, content: bytes, box: Box | None) -> tuple[Pixels, tuple[int, int]]:
        """An image as the network takes it, and its width and height before."""
        taken, limit = self.worker.model.input, self.settings.max_pixels

        def work() -> tuple[Pixels, tuple[int, int]]:
            image = cropped(open_image(content, limit, taken.colour), box)
            return taken.picture(image), image.size

        return await self.wait(self._decoders.submit(work))

    async def change(self, work: Callable[[], Changes]) -> tuple[Changes, set[int], set[int]]:
        """Change the index while it goes on answering; the change, and the ids that came and went."""

        def reload(index: Index) -> set[int]:
            self.worker.reload(index)
            return set(index.ids)

        before = await self.call(lambda index: set(index.ids))
        changes = await asyncio.wrap_future(self._writer.submit(work))
        after = await self.call(reload)
        return changes, after - before, before - after

    async def original(self, id: int) -> bytes | None:
        """The content that was indexed, if it is in a file still: no other content is ever read for a client."""
        item, path = await self.item(id), await self.call(lambda index: index.file(id))
        if path is None or item.root is None:
            return None
        return await self.wait(self._decoders.submit(read_original, item, path, self.settings.memory))

    async def item(self, id: int) -> Item:
        """An item; ApiError 404 without one."""
        found = await self.call(lambda index: index.item(id) if id in index.labels else None)
        if found is None:
            raise ApiError(404, f"There is no item {id}.")
        return found

    async def thumbnail(self, id: int) -> bytes:
        """The thumbnail of an item, a WebP file."""
        await self.item(id)
        return await self.call(lambda index: index.thumbnail(id))


def read_original(item: Item, path: Path, limit: int) -> bytes | None:
    """The file of an item; None if it is not below the item's folder, is too large, or has changed."""
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(Path(str(item.root)).resolve()) or real.stat().st_size > limit:
            return None
        content = real.read_bytes()
    except OSError:
        return None
    return content if digest_of(content).tobytes().hex() == item.digest else None


def service_of(request: Request) -> Service:
    """The service that answers a request."""
    found: Any = request.app.state.service
    assert isinstance(found, Service)
    return found
