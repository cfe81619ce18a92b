"""Run the server with uvicorn, until it is interrupted."""

from __future__ import annotations

import importlib.util
import logging
import socket
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

from nearfield.errors import RunError, missing_package
from nearfield.serve.settings import Settings

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}
IDLE = 5  # seconds that a connection without a request is kept
CONNECTIONS = 512  # at most; more are answered 503


def serve(
    path: str | PathLike[str], settings: Settings | None = None, ready: Callable[[str], None] = lambda address: None
) -> None:
    """Serve the index in the folder `path`; `ready` is called with the address when it can be asked."""
    missing = next((name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None), None)
    if missing is not None:
        raise missing_package("nearfield serve", missing, "serve")
    from nearfield.serve.app import create_app

    settings = settings or Settings()
    app = create_app(path, settings)
    app.state.service.start()  # a bad index fails here, before a port is taken
    listening = listen(settings)
    for name in ("uvicorn", "python_multipart"):  # the log has a line for every request already
        logging.getLogger(name).setLevel(logging.ERROR)
    with listening:
        host, port = listening.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        server_of(app, settings).run(sockets=[listening])


def server_of(app: FastAPI, settings: Settings) -> uvicorn.Server:
    """The server of an application."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=IDLE,
        limit_concurrency=max(CONNECTIONS, 2 * settings.queue),
        h11_max_incomplete_event_size=32_768,
        http="h11",
        ws="none",
    )
    return uvicorn.Server(config)


def listen(settings: Settings) -> socket.socket:
    """A socket at the address of the settings; RunError if it is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # without the protocol asyncio does not set TCP_NODELAY, and every answer waits 40 ms for an acknowledgement
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((settings.host, settings.port))
        found.listen(128)
    except OSError as error:
        found.close()
        where = f"{settings.host}:{settings.port}"
        raise RunError(f"cannot listen on {where}: {error.strerror or error}. Choose another --port.") from error
    return found
