"""A small index to serve: digits in folders, two of them twice, one class with a hostile name."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearfield import data
from nearfield.config import RunConfig, load_config
from nearfield.export import export
from nearfield.index import Options, build_index
from nearfield.training.loop import train

SMALL = ["data.name=digits", "data.val_fraction=0.4", "sampler.batch_size=12", "model.width=4", "model.dim=8"]
EACH = 6  # images of a class
EVIL = "<script>"
SCALE = 6  # times the pixels of a digit


def digit(name: int, number: int) -> Image.Image:
    """An image of a digit."""
    digits = data.load("digits")
    row = int(np.flatnonzero(digits.labels == name)[number])
    return Image.fromarray(np.asarray(digits.images[row]).repeat(SCALE, 0).repeat(SCALE, 1))


@cache
def encoded(name: int, number: int, kind: str = "PNG") -> bytes:
    """The same, as a file."""
    buffer = io.BytesIO()
    digit(name, number).save(buffer, format=kind)
    return buffer.getvalue()


def make_index(home: Path, name: str = "shop.index") -> Path:
    """An index of 10 classes; class 3 is called <script>, its first image is there twice."""
    photos = home / "photos"
    for label in range(10):
        folder = photos / (EVIL if label == 3 else f"class {label}")
        folder.mkdir(parents=True)
        for number in range(EACH):
            (folder / f"{number}.png").write_bytes(encoded(label, number))
    shutil.copy(photos / EVIL / "0.png", photos / EVIL / "copy of 0.png")
    digit(5, 0).save(photos / "class 5" / "near 0.jpg", quality=85)
    train(load_config(RunConfig, None, [*SMALL, "steps=10", "eval_every=10"]), home / "run")
    model = export(home / "run", home / "model")
    build_index(model, [str(photos)], home / name, options=Options(false_accept=0.1))
    return home / name


@contextmanager
def running(path: Path, **settings: Any) -> Iterator[str]:
    """A server of the index in this process; its address."""
    from nearfield.serve import Settings
    from nearfield.serve.app import create_app
    from nearfield.serve.run import listen, server_of

    given = Settings(**{"port": 0, "threads": 1, **settings})
    app = create_app(path, given)
    app.state.service.start()
    with listen(given) as listening:
        server = server_of(app, given)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
