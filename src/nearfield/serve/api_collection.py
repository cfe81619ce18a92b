"""Routes about the whole collection, and about the server."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse

from nearfield._version import __version__
from nearfield.index import Index
from nearfield.serve import answers, metrics
from nearfield.serve.service import service_of

router = APIRouter()


@router.get("/index", response_model=answers.IndexFacts)
async def facts(request: Request) -> answers.IndexFacts:
    """What is served: items, classes, model, calibration."""
    service = service_of(request)

    def work(index: Index) -> answers.IndexFacts:
        rule, classes = index.calibration, index.classes
        return answers.IndexFacts(
            name=service.path.resolve().name,
            items=len(index),
            classes=classes,
            unlabelled=len(index) - sum(classes.values()),
            dims=index.dim,
            model=index.digest,
            engine=(index.measured or {}).get("engine"),
            threshold=None if rule is None else rule.threshold,
            false_accept=None if rule is None else rule.false_accept,
            note=index.note,
            writable=service.settings.token is not None,
            generation=service.worker.generation,
        )

    return await service.call(work)


@router.get("/duplicates", response_model=answers.DuplicateLists)
async def duplicates(request: Request) -> answers.DuplicateLists:
    """Two lists: items with the same content, and items that look almost the same."""
    service = service_of(request)
    found = await service.wait(service.overviews.duplicates(service.worker.generation), shared=True)
    near = [answers.Near(**vars(pair)) for pair in found.near]
    return answers.DuplicateLists(identical=[list(group) for group in found.identical], near=near)


@router.get("/atlas", response_model=answers.AtlasPoints)
async def atlas(request: Request) -> answers.AtlasPoints:
    """A map of the collection, by t-SNE; takes seconds when it is first asked for."""
    service = service_of(request)
    found = await service.wait(service.overviews.atlas(service.worker.generation), shared=True)
    return answers.AtlasPoints(**vars(found))


@router.get("/healthz", response_model=answers.Health)
async def health(request: Request) -> answers.Health:
    """Whether the server answers; needs no token."""
    return answers.Health(version=__version__, items=service_of(request).worker.items)


@router.get("/metrics", response_class=PlainTextResponse)
async def counters(request: Request) -> PlainTextResponse:
    """Counters in the text format of Prometheus."""
    service = service_of(request)
    worker, gate = service.worker, service.gate
    gauges: dict[str, tuple[str, float]] = {
        "nearfield_items": ("Items of the index.", worker.items),
        "nearfield_requests_inside": ("Requests with queries at work or waiting.", gate.inside),
        "nearfield_jobs_waiting": ("Jobs that wait for the thread of the index.", worker.waiting),
        "nearfield_body_bytes": ("Bytes of bodies held.", gate.bytes),
        "nearfield_batches_total": ("Calls of the network.", worker.batches),
        "nearfield_embedded_total": ("Images embedded.", worker.batched),
        "process_resident_memory_bytes": ("Memory in use.", metrics.resident_bytes()),
    }
    return PlainTextResponse(service.metrics.text(gauges), media_type="text/plain; version=0.0.4")
