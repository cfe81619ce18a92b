"""Routes of single items: look at them, fetch their files, add and remove some."""

from __future__ import annotations

import io
import re
import unicodedata
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from PIL import Image
from starlette.responses import Response

from nearfield.data.pictures import digest_of
from nearfield.index import Index, add_images, remove_items
from nearfield.serve import answers
from nearfield.serve.errors import ApiError
from nearfield.serve.queries import LONGEST
from nearfield.serve.service import service_of
from nearfield.serve.uploads import FORMATS, parse_form

router = APIRouter(prefix="/items")
ItemId = Annotated[int, Path(ge=0, le=2**63 - 1)]
PAGE = 200  # items of one answer
KEPT = "private, max-age=86400"  # an id is never given to another image
FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {
                        "image": {"type": "string", "format": "binary"},
                        "label": {"type": "string", "description": "its class"},
                        "name": {"type": "string", "description": "an image of the same name is replaced"},
                    },
                }
            }
        },
    }
}
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": answers.Problem, "description": "No such item"}}
GUARDED: dict[int | str, dict[str, Any]] = {
    401: {"model": answers.Problem, "description": "No valid token"},
    403: {"model": answers.Problem, "description": "The server was started without a token"},
}


@router.get("", response_model=answers.Items)
async def items(
    request: Request,
    label: Annotated[str | None, Query(max_length=LONGEST, description="one class only")] = None,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 50,
) -> answers.Items:
    """A part of the collection, in order of id."""

    def work(index: Index) -> answers.Items:
        chosen = [id for id, name in index.labels.items() if label is None or name == label]
        shown = [index.item(id) for id in chosen[offset : offset + limit]]
        facts = [answers.item_facts(item, index.file(item.id) is not None) for item in shown]
        return answers.Items(total=len(chosen), items=facts)

    return await service_of(request).call(work)


@router.get("/{id}", response_model=answers.ItemFacts, responses=NOT_FOUND)
async def item(request: Request, id: ItemId) -> answers.ItemFacts:
    """An item."""
    service = service_of(request)
    found = await service.item(id)
    return answers.item_facts(found, await service.call(lambda index: index.file(id) is not None))


@router.get("/{id}/thumbnail", response_class=Response, responses=NOT_FOUND)
async def thumbnail(request: Request, id: ItemId) -> Response:
    """The thumbnail of an item, a WebP image."""
    return Response(await service_of(request).thumbnail(id), media_type="image/webp", headers={"Cache-Control": KEPT})


@router.get("/{id}/file", response_class=Response, responses=NOT_FOUND)
async def original(request: Request, id: ItemId) -> Response:
    """The original file of an item, if its content is still the one that was indexed."""
    service = service_of(request)
    found = await service.item(id)
    content = await service.original(id)
    if content is None:
        raise ApiError(404, f"The file of item {id} is not there any more, has changed, or never was a file.")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", found.path.rsplit("/", 1)[-1]) or "image"
    headers = {
        "Content-Disposition": f"inline; filename=\"{name}\"; filename*=UTF-8''{quote(found.path.rsplit('/', 1)[-1])}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": KEPT,
    }
    return Response(content, media_type=media_type(content), headers=headers)


def media_type(content: bytes) -> str:
    """The type of an image, from its content; a browser shall not guess."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            kind = "JPEG" if image.format == "MPO" else str(image.format)  # an MPO begins with a whole JPEG
            return Image.MIME[kind] if kind in FORMATS else "application/octet-stream"
    except Exception:  # whatever a decoder raises
        return "application/octet-stream"


@router.post("", response_model=answers.Change, status_code=201, responses=GUARDED, openapi_extra=FORM)
async def add(request: Request) -> answers.Change:
    """Add an image to the index; needs the token."""
    service = service_of(request)
    with service.gate.enter():
        async with service.gate.body(request) as body:
            kind = request.headers.get("content-type", "")
            if not kind.lower().startswith("multipart/form-data"):
                raise ApiError(415, f"Content-Type must be multipart/form-data; got {kind[:80]!r}.")
            form = parse_form(body, kind)
            if len(form.images) != 1:
                raise ApiError(422, f"image must be given once; got {len(form.images)} of them.")
            content, label = form.images[0], _text(form.one("label"), "label", 200) or None
            name = _text(form.one("name"), "name", 200) or f"upload-{digest_of(content).tobytes().hex()}"
            await service.decode(content, None)  # refuse what cannot be decoded before the index is touched
            model = service.worker.model
            changes, came, went = await service.change(
                lambda: add_images(service.path, [(name, label, content)], model)
            )
    if changes.problems:
        raise ApiError(422, changes.problems[0])
    return answers.Change(added=sorted(came), removed=sorted(went), items=service.worker.items)


@router.delete("/{id}", response_model=answers.Change, responses={**NOT_FOUND, **GUARDED})
async def remove(request: Request, id: ItemId) -> answers.Change:
    """Remove an item from the index; needs the token. Its file stays where it is."""
    service = service_of(request)
    with service.gate.enter():
        await service.item(id)
        _, came, went = await service.change(lambda: remove_items(service.path, [id]))
    return answers.Change(added=sorted(came), removed=sorted(went), items=service.worker.items)


def _text(given: str | None, name: str, longest: int) -> str | None:
    """A short line of text; ApiError 422 if it is something else."""
    if given is None:
        return None
    bad = any(unicodedata.category(character)[0] == "C" for character in given)
    if bad or len(given) > longest or (name == "name" and ({"", ".", ".."} & set(given.split("/")) or "\\" in given)):
        raise ApiError(422, f"{name} must be at most {longest} printable characters, no path; got {given[:40]!r}.")
    return given
