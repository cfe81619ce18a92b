"""The page and its parts: files of this package, none from elsewhere. They hold no data; the API does."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import HTMLResponse, Response

from nearfield.serve.errors import ApiError
from nearfield.serve.guard import COOKIE, same
from nearfield.serve.service import service_of

SHARED = ("elements", "numbers", "atlas", "atlas_pointer")  # scripts of the report
SCRIPTS = ("state", "talk", "sources", "crop", "ask", "results", "why", "browse", "map", "duplicates", "main")
SHORT = 4096  # bytes of the request for a cookie
router = APIRouter(include_in_schema=False)


@cache
def asset(name: str) -> str:
    """A file of the page; "app.js" and "style.css" are joined from several."""
    own, report = files("nearfield.serve") / "assets", files("nearfield.report") / "assets"
    if name == "style.css":
        return "\n".join(part.read_text(encoding="utf-8") for part in (report / "report.css", own / "search.css"))
    if name in ("app.js", "docs.js"):
        shared, chosen = (SHARED, SCRIPTS) if name == "app.js" else (SHARED[:1], ("docs",))
        parts = [*(report / f"{each}.js" for each in shared), *(own / f"{each}.js" for each in chosen)]
        script = "\n".join(part.read_text(encoding="utf-8") for part in parts)
        return f'"use strict";\n(() => {{\n{script}}})();\n'
    return (own / name).read_text(encoding="utf-8")


@router.get("/")
async def page() -> HTMLResponse:
    """The search page."""
    return HTMLResponse(asset("search.html"))


@router.get("/docs")
async def docs() -> HTMLResponse:
    """The API, from /openapi.json."""
    return HTMLResponse(asset("docs.html"))


@router.get("/app.js")
async def script() -> Response:
    """The scripts of the search page."""
    return Response(asset("app.js"), media_type="text/javascript")


@router.get("/docs.js")
async def docs_script() -> Response:
    """The script of the page of the API."""
    return Response(asset("docs.js"), media_type="text/javascript")


@router.get("/style.css")
async def style() -> Response:
    """The style of the report, and what the search page adds."""
    return Response(asset("style.css"), media_type="text/css")


class Login(BaseModel):
    """What the page sends to be let in."""

    token: str


@router.post("/session")
async def session(request: Request) -> Response:
    """A cookie for the page in exchange for the token, since images of a page cannot send a header."""
    service = service_of(request)
    async with service.gate.body(request, SHORT) as body:
        try:
            login = Login.model_validate_json(body)
        except ValidationError:
            raise ApiError(422, 'The body must be JSON: {"token": "..."}.') from None
    if not same(login.token, service.settings.token):
        raise ApiError(401, "The token is not valid.", {"WWW-Authenticate": "Bearer"})
    answer = Response(status_code=204)
    answer.set_cookie(COOKIE, service.session, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return answer
