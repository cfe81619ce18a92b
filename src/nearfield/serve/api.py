"""Routes that search, and say why a result is similar."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, ValidationError

from nearfield.errors import nearest
from nearfield.index import Index
from nearfield.serve import answers
from nearfield.serve.errors import ApiError
from nearfield.serve.heat import CELLS, Pixels, occluded, seen
from nearfield.serve.queries import LARGEST, LONGEST, Question, answer
from nearfield.serve.service import Service, service_of
from nearfield.serve.uploads import Form, parse_box, parse_form

router = APIRouter()
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.Problem, "description": text}
    for status, text in {
        413: "Too many bytes or pixels",
        415: "Not an image, or not a type that is taken",
        422: "Damaged or malformed",
        503: "Busy: try again after Retry-After seconds",
    }.items()
}


def _body(fields: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The description of a body that is a form or JSON."""
    image = {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "one image or several"}
    form = {"schema": {"type": "object", "properties": {"image": image, **fields}, "required": ["image"]}}
    return {
        "requestBody": {
            "required": True,
            "content": {"multipart/form-data": form, "application/json": {"schema": schema}},
        }
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


CROP = _text("left,top,right,bottom of the image, as fractions; once for each image, empty for all of it")
SEARCH = _body(
    {"crop": CROP, **{name: _text("ids, separated by commas") for name in ("items", "right", "wrong")}},
    answers.Asked.model_json_schema(),
)


@router.post("/search", response_model=answers.Searched, responses=PROBLEMS, openapi_extra=SEARCH)
async def search(
    request: Request,
    k: Annotated[int, Query(ge=1, le=LARGEST, description="neighbours")] = 10,
    label: Annotated[str | None, Query(max_length=LONGEST, description="search one class only")] = None,
    collapse: Annotated[bool, Query(description="show duplicates under the nearest of them")] = False,
    vectors: Annotated[bool, Query(description="answer with the vectors of the query too")] = False,
    model: Annotated[str | None, Query(max_length=64, description="digest of the model that made the vectors")] = None,
) -> answers.Searched:
    """The items most similar to an image, to several images together, to a vector, or to indexed items.

    With feedback (`right`, `wrong`: ids of items) the query moves towards the right ones and away from the wrong ones
    (Rocchio). Suggestion, probability and `is_new` are calibrated for one image; see `nearfield index --check`.
    """
    service, started = service_of(request), time.perf_counter()
    with service.gate.enter():
        async with service.gate.body(request) as body:
            asked, images, decoding = await _asked(service, request, body)
        decoded = time.perf_counter()
        made = await service.wait(service.worker.embed(images)) if images else np.zeros((0, 0), np.float32)
        embedded = time.perf_counter()
        twins = await service.known_duplicates() if collapse else None
        searching = time.perf_counter()

        def work(index: Index) -> Any:
            if model is not None and model != index.digest:
                raise ApiError(422, f"model must be the index's, {index.digest}; got {model!r}: vectors of two differ.")
            if label is not None and label not in index.classes:
                raise ApiError(422, f"label must be a class of the index; got {label!r}: {_hint(label, index)}")
            return answer(index, _question(index, asked, made, k, label), twins)

        found = await service.call(work)
    now = time.perf_counter()
    times = {"decode": decoding, "embed": embedded - decoded, "search": now - searching, "total": now - started}
    own = made.tolist() if vectors else None
    return answers.searched(found, twins is not None, own, {name: 1e3 * seconds for name, seconds in times.items()})


async def _asked(service: Service, request: Request, body: bytes) -> tuple[answers.Asked, list[Pixels], float]:
    """The query in a body, its images as the network takes them, and the seconds that decoding took."""
    kind = request.headers.get("content-type", "")
    if kind.split(";")[0].strip().lower() == "application/json":
        return _validated(answers.Asked, body), [], 0.0
    form = _form(body, kind)
    if not 1 <= len(form.images) <= answers.EXAMPLES:
        raise ApiError(422, f"image must be given 1 to {answers.EXAMPLES} times; got {len(form.images)}.")
    crops = form.fields.get("crop") or [""] * len(form.images)
    if len(crops) != len(form.images):
        raise ApiError(422, f"crop must be given for each image or not at all; got {len(crops)} of them.")
    ids = {name: _ids(form, name) for name in ("items", "right", "wrong")}
    started = time.perf_counter()
    boxes = [parse_box(crop) for crop in crops]
    images = [(await service.decode(image, box))[0] for image, box in zip(form.images, boxes, strict=True)]
    asked = _validated(answers.Asked, json.dumps(ids))
    return asked, images, time.perf_counter() - started


def _form(body: bytes, kind: str) -> Form:
    if kind.split(";")[0].strip().lower() != "multipart/form-data":
        raise ApiError(415, f"Content-Type must be multipart/form-data or application/json; got {kind[:80]!r}.")
    return parse_form(body, kind)


def _validated(model: Any, body: bytes | str) -> Any:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise ApiError(422, f"{where[:80]}: {first['msg']}.") from None


def _ids(form: Form, name: str) -> list[int]:
    text = form.one(name) or ""
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise ApiError(422, f"{name} must be ids, separated by commas; got {text[:80]!r}.") from None


def _question(index: Index, asked: answers.Asked, made: Any, k: int, label: str | None) -> Question:
    given = [*([asked.vector] if asked.vector is not None else []), *asked.vectors]
    wrong_size = next((len(each) for each in given if len(each) not in (index.dim, index.model.full)), None)
    if wrong_size is not None:
        raise ApiError(
            422, f"vectors must have {index.dim} numbers, as the index's model makes them; got {wrong_size}."
        )
    if not given and not len(made) and not asked.items:
        raise ApiError(422, "A query needs an image, a vector or an item; got none.")
    unknown = next((id for id in (*asked.items, *asked.right, *asked.wrong) if id not in index.labels), None)
    if unknown is not None:
        raise ApiError(422, f"items, right and wrong must be ids of the index; got {unknown}.")
    parts = [index.model_cut(np.array([each], np.float64)) for each in given]
    vectors = np.concatenate([made.reshape(-1, index.dim), *parts]) if parts else made.reshape(-1, index.dim)
    return Question(vectors, tuple(asked.items), tuple(asked.right), tuple(asked.wrong), k, label)


def _hint(label: str, index: Index) -> str:
    return nearest(label, list(index.classes)[:1000])[:200]


class _HeatAsked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    item: answers.Id


@router.post(
    "/heat",
    response_model=answers.Heat,
    responses=PROBLEMS,
    openapi_extra=_body({"crop": CROP}, _HeatAsked.model_json_schema()),
)
async def heat(request: Request, id: Annotated[int, Query(description="the item to compare with")]) -> answers.Heat:
    """Where a query resembles an item: how far the similarity falls when a part of the query is covered."""
    service, started = service_of(request), time.perf_counter()
    with service.gate.enter():
        async with service.gate.body(request) as body:
            content, box = await _heat_image(service, request, body)
        await service.item(id)
        image, size = await service.decode(content, parse_box(box))
        target = (await service.call(lambda index: index.vectors([id])))[0]
        images = [image, *occluded(image)]
        step = service.settings.batch
        parts = [
            await service.wait(service.worker.embed(images[start : start + step]))  # others get their turn in between
            for start in range(0, len(images), step)
        ]
    scores = np.concatenate(parts) @ target
    drops = (scores[0] - scores[1:]).reshape(CELLS, CELLS)
    return answers.Heat(
        score=float(scores[0]),
        drops=drops.astype(np.float64).round(6).tolist(),
        seen=seen(service.worker.model.input, *size),
        milliseconds=round(1e3 * (time.perf_counter() - started), 1),
    )


async def _heat_image(service: Service, request: Request, body: bytes) -> tuple[bytes, str | None]:
    """The image of a query, from the form or of an indexed item, and its crop."""
    kind = request.headers.get("content-type", "")
    if kind.split(";")[0].strip().lower() == "application/json":
        item = _validated(_HeatAsked, body).item
        return await service.original(item) or await service.thumbnail(item), None
    form = _form(body, kind)
    if len(form.images) != 1:
        raise ApiError(422, f"image must be given once; got {len(form.images)} of them.")
    return form.images[0], form.one("crop")
