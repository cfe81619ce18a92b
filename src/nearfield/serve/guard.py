"""What every request passes: host, origin and token are checked, the answer gets safe headers, the log gets a line.

Reads are free on this machine; if others reach the server, they need the token (or the cookie that the page gets for
it). Changes need the token in a header, always. A page of another site can neither read answers (no CORS, unless asked)
nor, by a name of its own for this address, pretend to be this one (the Host header is checked).
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import time
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect

from nearfield.serve.errors import ApiError
from nearfield.serve.metrics import Metrics
from nearfield.serve.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("nearfield.serve")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
COOKIE = "nearfield"
OPEN = ("/", "/app.js", "/style.css", "/docs", "/docs.js", "/openapi.json", "/healthz", "/session")  # hold no data
LOCAL = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, session: str) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self.session = session  # what the cookie of a page must hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; whatever goes wrong becomes an answer too."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                found = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "X-Request-Id": request_id}.items():
                    found.setdefault(name, value)
            await send(message)

        try:
            check(scope["method"], scope["path"], headers, self.settings, self.session)
            await self.app(scope, receive, answer)
        except ApiError as error:
            await refuse(answer, request_id, error)
        except ClientDisconnect:
            status = 499  # the client has gone; nobody reads an answer
        except Exception:
            LOG.exception("%s failed", request_id)
            if not status:
                await refuse(answer, request_id, ApiError(500, "The server failed; its log says why."))
        finally:
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "other"
            self.metrics.count(method, route, status, seconds)
            who = (scope.get("client") or ("?",))[0]
            LOG.info("%s %s %s %a %d %.1f ms", request_id, who, method, scope["path"][:200], status, 1e3 * seconds)


def check(method: str, path: str, headers: Headers, settings: Settings, session: str) -> None:
    """Host, origin and token of a request; ApiError 421, 403 or 401."""
    host = headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if settings.is_local and name not in (*LOCAL, settings.host):
        raise ApiError(421, f"This server is for {settings.host} alone; got the host {name[:80]!r}.")
    origin = headers.get("origin")
    if method not in ("GET", "HEAD", "OPTIONS") and origin is not None:
        try:
            own = urlsplit(origin).netloc == host
        except ValueError:
            own = False
        if not own and origin not in settings.cors:
            raise ApiError(403, "Pages of other sites may not use this server; see --cors.")
    if method == "OPTIONS" or path in OPEN:
        return
    writes = method not in ("GET", "HEAD") and path.startswith("/items")
    if writes and settings.token is None:
        raise ApiError(403, "Changes need a token, and this server has none: start it with --token.")
    if (writes or not settings.is_local) and not is_trusted(headers, settings, None if writes else session):
        raise ApiError(401, "A valid token is needed: Authorization: Bearer TOKEN.", {"WWW-Authenticate": "Bearer"})


def is_trusted(headers: Headers, settings: Settings, session: str | None) -> bool:
    """Whether a request carries the token, or the cookie if one is accepted; compared in constant time."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and same(token.strip(), settings.token):
        return True
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        cookie = None
    return session is not None and cookie is not None and same(cookie.value, session)


def same(given: str, expected: str | None) -> bool:
    """Whether two secrets are equal, in a time that does not depend on where they differ."""
    return expected is not None and hmac.compare_digest(given.encode(errors="replace"), expected.encode())


async def refuse(send: Any, request_id: str, error: ApiError) -> None:
    """Send an error as JSON."""
    body = error_body(error.status, error.message, request_id)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def error_body(status: int, message: str, request_id: str) -> bytes:
    """The JSON of an error."""
    return json.dumps({"error": {"status": status, "message": message, "request_id": request_id}}).encode()
