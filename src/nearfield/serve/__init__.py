"""Search an index in a browser and over HTTP: `nearfield serve shop.index`.

settings.py   address, token and limits
guard.py      what every request passes: host, origin, token, headers, request id, log
uploads.py    bodies and images from strangers: limits before anything is decoded, nothing on disk
worker.py     the one thread that owns the index; embeds what waits together
answers.py    the JSON of the API
queries.py    examples and feedback as one query; duplicates collapsed
heat.py       where an image resembles another, by occlusion
overviews.py  duplicates and the atlas, computed aside
service.py    what the routes share
app.py        the application; its routes are in api.py, api_items.py, api_collection.py and page.py
metrics.py    counters for Prometheus
run.py        uvicorn
"""

from __future__ import annotations

from nearfield.serve.settings import Settings

__all__ = ["Settings"]
