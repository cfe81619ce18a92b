"""The application: routes, errors as JSON, and the guard around all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from nearfield._version import __version__
from nearfield.errors import InputError, RunError
from nearfield.serve import api, api_collection, api_items, page
from nearfield.serve.errors import ApiError
from nearfield.serve.guard import Guard, error_body
from nearfield.serve.service import Service
from nearfield.serve.settings import Settings


def create_app(path: str | PathLike[str], settings: Settings | None = None) -> FastAPI:
    """The ASGI application that serves the index in the folder `path`."""
    service = Service(Path(path), settings or Settings())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(
        title="Nearfield search",
        description="Search an index of images: which items are similar, which class is suggested, is it new?",
        version=__version__,
        docs_url=None,  # the pages that FastAPI brings load their scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    for module in (page, api, api_items, api_collection):
        app.include_router(module.router)
    handlers: dict[Any, Any] = {
        ApiError: lambda request, error: _problem(request, error.status, error.message, error.headers),
        HTTPException: lambda request, error: _problem(request, error.status_code, str(error.detail), error.headers),
        RequestValidationError: _invalid,
        InputError: lambda request, error: _problem(request, 422, str(error)),
        RunError: lambda request, error: _problem(request, 503, str(error), {"Retry-After": "1"}),
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, _awaited(handler))
    if service.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.cors,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
        )
    app.add_middleware(Guard, settings=service.settings, metrics=service.metrics, session=service.session)
    return app


def _awaited(handler: Any) -> Any:
    async def handle(request: Request, error: Exception) -> Response:
        found: Response = handler(request, error)
        return found

    return handle


def _invalid(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    where = str(first["loc"][-1]) if first["loc"] else "the request"
    return _problem(request, 422, f"{where}: {first['msg']}; got {str(first.get('input'))[:80]!r}.")


def _problem(request: Request, status: int, message: str, headers: Any = None) -> Response:
    body = error_body(status, message, request.scope["state"]["request_id"])
    return Response(body, status, dict(headers or {}), "application/json")
