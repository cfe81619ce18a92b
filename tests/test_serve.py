"""The API of `nearfield serve`: what it answers, and what it refuses."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import TestCase

import numpy as np
import pytest
from PIL import Image
from serve_index import EACH, EVIL, encoded, make_index

import nearfield as nf
from nearfield.cli.main import main
from nearfield.data.input_spec import PictureInput
from nearfield.errors import InputError, RunError
from nearfield.export import export
from nearfield.index import Duplicates, NearDuplicate, Neighbour, add_photos, build_index
from nearfield.serve import Settings

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
from starlette.testclient import TestClient

from nearfield.serve.app import create_app
from nearfield.serve.heat import occluded, seen
from nearfield.serve.overviews import make_atlas
from nearfield.serve.queries import collapse, rocchio
from nearfield.serve.run import listen
from nearfield.serve.uploads import cropped, parse_box, parse_form
from nearfield.serve.worker import Worker

TOKEN = "a token of 22 letters."
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LOCAL = "http://127.0.0.1"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("serve"))


@contextmanager
def served(path: Path, base: str = LOCAL, **settings: Any) -> Iterator[TestClient]:
    given = Settings(**{"token": TOKEN, "threads": 1, **settings})
    with TestClient(create_app(path, given), base_url=base, raise_server_exceptions=True) as client:
        yield client


@pytest.fixture(scope="module")
def client(shop: Path) -> Iterator[TestClient]:
    with served(shop) as found:
        yield found


def ask(client: TestClient, content: bytes, **query: Any) -> Any:
    return client.post("/search", params=query, files={"image": content})


def message(response: Any, status: int) -> str:
    """The message of an error, which has the same form everywhere."""
    assert response.status_code == status, response.text
    found = response.json()["error"]
    assert found["status"] == status
    assert found["request_id"] == response.headers["x-request-id"]
    return str(found["message"])


# ---------------------------------------------------------------------------------------------------------------
# Answers


def test_an_image_is_answered_as_the_index_answers(client: TestClient, shop: Path) -> None:
    found = ask(client, encoded(4, 1), k=5).json()
    with nf.Index.open(shop) as index:
        (expected,) = index.search([Image.open(io.BytesIO(encoded(4, 1)))], k=5)
    assert found["version"] == 1
    assert [n["id"] for n in found["neighbours"]] == [n.id for n in expected.neighbours]
    assert [n["label"] for n in found["neighbours"]] == [n.label for n in expected.neighbours]
    assert [n["score"] for n in found["neighbours"]] == pytest.approx([n.score for n in expected.neighbours], abs=1e-5)
    assert found["neighbours"][0]["path"] == "class 4/1.png"
    assert expected.suggestion is not None
    assert found["suggestion"]["label"] == expected.suggestion.label
    assert found["suggestion"]["probability"] == pytest.approx(expected.suggestion.probability, abs=1e-3)
    assert found["is_new"] is expected.is_new
    assert set(found["milliseconds"]) == {"decode", "embed", "search", "total"}
    assert found["vector"] is None


def test_all_ways_to_ask_agree(client: TestClient) -> None:
    first = ask(client, encoded(4, 1), k=4, vectors=True).json()
    ids = [n["id"] for n in first["neighbours"]]
    by_vector = client.post("/search?k=4", json={"vector": first["vector"]}).json()
    assert [n["id"] for n in by_vector["neighbours"]] == ids
    assert by_vector["is_new"] == first["is_new"]
    by_vectors = client.post("/search?k=4", json={"vectors": first["vectors"]}).json()
    assert by_vectors["neighbours"] == by_vector["neighbours"]
    by_item = client.post("/search?k=3", json={"items": ids[:1]}).json()
    assert [n["id"] for n in by_item["neighbours"]] == ids[1:]  # an item is not its own neighbour
    assert by_item["is_new"] is None
    assert by_item["suggestion"]["probability"] is None
    whole = client.post("/search?k=4", files={"image": encoded(4, 1)}, data={"crop": "0,0,1,1"}).json()
    assert whole["neighbours"] == first["neighbours"]


def test_a_model_through_onnx_runtime_finds_the_same(client: TestClient, shop: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    exported = export(shop.parent / "run", tmp_path / "model", onnx=True)
    build_index(exported / "model.onnx", [str(shop.parent / "photos")], tmp_path / "onnx.index")
    assert not list(tmp_path.glob("onnx.index/model-*/*.safetensors"))
    with served(tmp_path / "onnx.index") as other:
        for name in range(10):
            found, expected = (ask(each, encoded(name, EACH + 1), k=8).json() for each in (other, client))
            paths, wanted = ([n["path"] for n in answer["neighbours"]] for answer in (found, expected))
            assert paths == wanted
            scores, wanted = ([n["score"] for n in answer["neighbours"]] for answer in (found, expected))
            assert scores == pytest.approx(wanted, abs=1e-4)


def test_vectors_of_another_model_are_refused(client: TestClient) -> None:
    model = client.get("/index").json()["model"]
    body = {"vector": [1.0] * 8}
    assert client.post("/search", params={"model": model}, json=body).status_code == 200
    assert model in message(client.post("/search", params={"model": "f" * 64}, json=body), 422)


def test_a_crop_is_searched_as_the_image_of_that_part(client: TestClient) -> None:
    image = Image.open(io.BytesIO(encoded(8, 2)))
    side = image.width
    part = io.BytesIO()
    image.crop((0, 0, side // 2, side)).save(part, format="PNG")
    sent = client.post("/search?k=4", files={"image": encoded(8, 2)}, data={"crop": "0,0,0.5,1"}).json()
    assert sent["neighbours"] == ask(client, part.getvalue(), k=4).json()["neighbours"]
    assert sent["neighbours"] != ask(client, encoded(8, 2), k=4).json()["neighbours"]


def test_one_class_is_searched(client: TestClient) -> None:
    found = ask(client, encoded(1, 0), k=50, label=EVIL).json()["neighbours"]
    assert {n["label"] for n in found} == {EVIL}
    assert len(found) == EACH + 1
    assert "did you mean 'class 4'" in message(ask(client, encoded(1, 0), label="class_4"), 422)


def test_feedback_moves_the_query(client: TestClient, shop: Path) -> None:
    with nf.Index.open(shop) as index:
        ids = index.ids
        rows = {id: index.vectors([id])[0].astype(np.float64) for id in ids}
    start = ask(client, encoded(4, 1), vectors=True).json()
    right, wrong = ids[-3:-1], ids[:2]
    body = {"vectors": start["vectors"], "right": right, "wrong": wrong}
    found = client.post("/search?k=5&vectors=true", json=body).json()
    moved = np.array(start["vectors"][0]) + 0.75 * (rows[right[0]] + rows[right[1]]) / 2
    moved -= 0.15 * (rows[wrong[0]] + rows[wrong[1]]) / 2
    moved /= np.linalg.norm(moved)
    np.testing.assert_allclose(found["vector"], moved, atol=1e-6)
    scores = {id: float(rows[id] @ moved) for id in ids}
    best = sorted(ids, key=lambda id: -scores[id])[:5]
    np.testing.assert_allclose([n["score"] for n in found["neighbours"]], [scores[id] for id in best], atol=1e-5)
    assert found["is_new"] is None
    several = client.post("/search", files=[("image", encoded(4, 1)), ("image", encoded(4, 2))], data={"right": "1,2"})
    assert several.status_code == 200


def test_rocchio_of_nothing_but_examples_is_their_mean() -> None:
    rows = np.eye(3, dtype=np.float32)[:2]
    none = np.zeros((0, 3), np.float32)
    np.testing.assert_allclose(rocchio(rows, none, none), [0.5**0.5, 0.5**0.5, 0], atol=1e-7)


def test_duplicates_are_two_lists_and_collapse(client: TestClient, shop: Path) -> None:
    lists = client.get("/duplicates").json()
    paths = {item["id"]: item["path"] for item in client.get("/items?limit=200").json()["items"]}
    assert [[paths[id] for id in group] for group in lists["identical"]] == [[f"{EVIL}/0.png", f"{EVIL}/copy of 0.png"]]
    near = {(paths[pair["first"]], paths[pair["second"]]) for pair in lists["near"]}
    assert ("class 5/0.png", "class 5/near 0.jpg") in near
    found = ask(client, encoded(3, 0), k=3, collapse=True).json()["neighbours"]
    assert found[0]["copies"] == [id for id, path in paths.items() if path.endswith("copy of 0.png")]
    assert len(found) == 3
    plain = ask(client, encoded(3, 0), k=2).json()["neighbours"]
    assert {n["path"] for n in plain} == {f"{EVIL}/0.png", f"{EVIL}/copy of 0.png"}
    assert all(n["copies"] == [] for n in plain)


def test_collapse_keeps_the_nearest_of_each_group() -> None:
    neighbours = [Neighbour(id, None, 1 - id / 10, str(id)) for id in (4, 1, 2, 5, 3)]
    twins = Duplicates(((1, 4), (2, 5)), (NearDuplicate(1, 2, 3, 0.99), NearDuplicate(3, 9, 3, 0.95)))
    hits = collapse(neighbours, twins)
    assert [(hit.neighbour.id, hit.copies, hit.near) for hit in hits] == [(4, (1,), (2, 5)), (3, (), (9,))]


def test_items_their_thumbnails_and_files(client: TestClient, shop: Path) -> None:
    page = client.get("/items", params={"label": EVIL, "limit": 2, "offset": 1}).json()
    assert page["total"] == EACH + 1
    assert [item["path"] for item in page["items"]] == [f"{EVIL}/1.png", f"{EVIL}/2.png"]
    item = page["items"][0]
    assert client.get(f"/items/{item['id']}").json() == item
    small = client.get(item["thumbnail"])
    assert small.headers["content-type"] == "image/webp"
    assert Image.open(io.BytesIO(small.content)).format == "WEBP"
    file = client.get(item["file"])
    assert file.content == encoded(3, 1)
    assert file.headers["content-type"] == "image/png"
    assert "sandbox" in file.headers["content-security-policy"]
    for path in ("/items/999999", "/items/999999/thumbnail", "/items/999999/file"):
        assert "no item 999999" in message(client.get(path), 404)
    message(client.get("/items/99999999999999999999"), 422)
    message(client.get("/items/..%2f..%2fetc%2fpasswd"), 404)


def test_the_map_and_the_facts(client: TestClient) -> None:
    points = client.get("/atlas").json()
    assert len(points["ids"]) == len(points["x"]) == len(points["y"]) == len(points["labels"]) == 10 * EACH + 2
    assert points["classes"][0] == EVIL
    assert min(points["x"]) >= 0
    assert max(points["y"]) <= 1
    facts = client.get("/index").json()
    assert (facts["name"], facts["items"], facts["classes"][EVIL]) == ("shop.index", 10 * EACH + 2, EACH + 1)
    assert facts["writable"] is True


def test_heat_falls_where_the_image_is_covered(client: TestClient, shop: Path) -> None:
    found = client.post("/heat?id=9", files={"image": encoded(4, 1)}).json()
    assert np.shape(found["drops"]) == (7, 7)
    with nf.Index.open(shop) as index:
        image = Image.open(io.BytesIO(encoded(4, 1)))
        prepared = index.model.input.picture(image)
        target = index.vectors([9])[0]
        images = [prepared, *occluded(prepared)]
        scores = index.model.embed_prepared(images) @ target
    np.testing.assert_allclose(found["drops"], (scores[0] - scores[1:]).reshape(7, 7), atol=2e-6)
    by_item = client.post("/heat?id=9", json={"item": 10})
    assert by_item.status_code == 200
    message(client.post("/heat?id=12345", files={"image": encoded(4, 1)}), 404)
    message(client.post("/heat?id=9", json={"item": 12345}), 404)


def test_each_cell_is_covered_once() -> None:
    image = np.random.default_rng(0).integers(0, 256, (10, 9, 3)).astype(np.uint8)
    image[0, 0] = 255  # differs from the mean
    covered = np.sum([(copy != image).any(axis=2) for copy in occluded(image, 3)], axis=0)
    same = (image == image.reshape(-1, 3).mean(axis=0).round().astype(np.uint8)).all(axis=2)
    np.testing.assert_array_equal(covered, np.where(same, 0, 1))


def test_what_the_network_sees() -> None:
    exact = PictureInput(colour=True, rule="exact", resize=(100, 200), crop=(50, 100))
    assert seen(exact, 640, 480) == (0.25, 0.25, 0.75, 0.75)
    short = PictureInput(colour=True, rule="short", resize=(100, 100), crop=(100, 100))
    assert seen(short, 400, 200) == (0.25, 0.0, 0.75, 1.0)


def test_health_metrics_and_openapi(client: TestClient) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    ask(client, encoded(1, 1))
    text = client.get("/metrics").text
    assert re.search(r'nearfield_requests_total\{method="POST",route="/search",status="200"\} [1-9]', text)
    assert 'nearfield_request_seconds_bucket{route="/search",le="+Inf"}' in text
    assert float(re.findall(r"^nearfield_items (\S+)$", text, re.M)[0]) == 10 * EACH + 2
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .+|\w+(\{(\w+="[^"]*",?)+\})? [-+.\de]+', line), line
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/search", "/heat", "/index", "/duplicates", "/atlas", "/healthz", "/metrics", "/items", "/items/{id}",
        "/items/{id}/thumbnail", "/items/{id}/file",
    }  # fmt: skip
    content = described["paths"]["/search"]["post"]["requestBody"]["content"]
    assert set(content) == {"multipart/form-data", "application/json"}


# ---------------------------------------------------------------------------------------------------------------
# Changes


def test_items_are_added_and_removed_with_the_token_alone(shop: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(shop, tmp_path / "shop.index")
    form: dict[str, Any] = {"files": {"image": encoded(7, 20)}, "data": {"label": "new class", "name": "seven"}}
    with served(copy) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            message(client.post("/items", **form, headers=headers), 401)
            message(client.delete("/items/1", headers=headers), 401)
        assert client.get("/index").json()["items"] == 10 * EACH + 2
        added = client.post("/items", **form, headers=BEARER)
        assert added.status_code == 201
        (id,) = added.json()["added"]
        best = ask(client, encoded(7, 20), k=1).json()["neighbours"][0]
        assert (best["id"], best["label"], best["path"]) == (id, "new class", "seven")
        assert "never was a file" in message(client.get(f"/items/{id}/file"), 404)
        again = client.post("/items", **form, headers=BEARER).json()
        assert again["added"] == []  # the same content under the same name
        assert client.delete(f"/items/{id}", headers=BEARER).json()["removed"] == [id]
        message(client.delete(f"/items/{id}", headers=BEARER), 404)
        assert ask(client, encoded(7, 20), k=1).json()["neighbours"][0]["id"] != id
        for name in ("../x", "/etc/passwd", "a\nb", "a\\b", "x" * 300):
            message(client.post("/items", **{**form, "data": {"name": name}}, headers=BEARER), 422)
        message(client.post("/items", files={"image": b"no image"}, headers=BEARER), 415)
        message(client.post("/items", json={}, headers=BEARER), 415)
    with served(copy, token=None) as client:
        assert "start it with --token" in message(client.post("/items", **form, headers=BEARER), 403)
        assert client.get("/index").json()["writable"] is False


def test_a_change_by_another_process_is_seen(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfield.serve.worker.LOOK_EVERY", 0.0)
    copy = shutil.copytree(shop, tmp_path / "shop.index")
    more = tmp_path / "more" / "later"
    more.mkdir(parents=True)
    (more / "six.png").write_bytes(encoded(6, 30))
    with served(copy) as client:
        first = client.get("/index").json()
        add_photos(copy, [str(more.parent)])
        second = client.get("/index").json()
        assert second["items"] == first["items"] + 1
        assert second["generation"] > first["generation"]
        assert ask(client, encoded(6, 30), k=1).json()["neighbours"][0]["label"] == "later"


# ---------------------------------------------------------------------------------------------------------------
# Hostile requests


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG that says it is this large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


BAD_IMAGES = {
    "empty": (b"", 415),
    "text": (b"GET / HTTP/1.1", 415),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", 415),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", 415),
    "bomb": (png(30_000, 30_000), 413),
    "large bomb": (png(2**31 - 1, 2**31 - 1), 413),
    "no pixels": (png(10, 0), 422),
    "no data": (png(64, 64), 422),
    "garbage": (png(64, 64, b"\xff" * 100), 422),
    "truncated": (encoded(1, 1, "JPEG")[:200], 422),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_bad_images_are_refused(client: TestClient, name: str) -> None:
    content, status = BAD_IMAGES[name]
    found = ask(client, content)
    if name == "no pixels":  # Pillow itself refuses some of these as no image at all
        assert found.status_code in (415, 422)
    else:
        message(found, status)
    assert ask(client, encoded(1, 1)).status_code == 200


BAD_JSON = [
    b"", b"{", b"[]", b"null", b'"x"', b"{}", b'{"vector": []}', b'{"vector": "abc"}', b'{"vector": [1, 2]}',
    b'{"vector": [1, NaN, 1, 1, 1, 1, 1, 1]}', b'{"vector": [1e999, 1, 1, 1, 1, 1, 1, 1]}', b'{"vectors": [[]]}',
    b'{"items": [-1]}', b'{"items": [123456]}', b'{"items": [1], "wrong": [123456]}', b'{"items": ["1"]}',
    b'{"items": [99999999999999999999999]}', b'{"unknown": 1}', b"[" * 100_000, b'{"items": [true]}', b"\xff\xfe",
    b'{"vector": [' + b"0," * 20_000 + b"0]}",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD_JSON)))
def test_bad_json_is_refused(client: TestClient, number: int) -> None:
    message(client.post("/search", content=BAD_JSON[number], headers={"Content-Type": "application/json"}), 422)


def test_a_vector_of_zeros_is_answered(client: TestClient) -> None:
    assert client.post("/search", json={"vector": [0.0] * 8}).status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        {"k": 0},
        {"k": -1},
        {"k": 10**9},
        {"k": "x"},
        {"k": "1e400"},
        {"label": "nothing"},
        {"label": "x" * 9999},
        {"collapse": "maybe"},
    ],
)
def test_bad_queries_are_refused(client: TestClient, query: dict[str, Any]) -> None:
    message(ask(client, encoded(1, 1), **query), 422)


@pytest.mark.parametrize("crop", ["0,0,1", "a,b,c,d", "0,0,0,1", "0.5,0,0.2,1", "-1,0,1,1", "0,0,nan,1", "0,0,2,2"])
def test_bad_crops_are_refused(client: TestClient, crop: str) -> None:
    message(client.post("/search", files={"image": encoded(1, 1)}, data={"crop": crop}), 422)


def test_a_crop_keeps_a_pixel() -> None:
    image = Image.new("L", (3, 2))
    for left, top in itertools.product((0.0, 0.3, 0.999999), repeat=2):
        found = cropped(image, (left, top, min(1.0, left + 1e-9), min(1.0, top + 1e-9)))
        assert min(found.size) >= 1
    assert parse_box("") is None


def test_bad_forms_are_refused(client: TestClient) -> None:
    def post(content: bytes, kind: str) -> Any:
        return client.post("/search", content=content, headers={"Content-Type": kind})

    form = "multipart/form-data; boundary=x"
    message(post(b"", "text/plain"), 415)
    message(post(b"a=1", "application/x-www-form-urlencoded"), 415)
    message(post(b"", "multipart/form-data"), 422)
    message(post(b"", form), 422)
    message(post(b"nothing", form), 422)
    message(post(b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\nabc', form), 422)  # no end
    message(post(b'--x\r\nContent-Disposition: form-data; name="other"\r\n\r\nabc\r\n--x--\r\n', form), 422)
    message(post(b'--x\r\nContent-Disposition: form-data; name="crop"\r\n\r\n\xff\r\n--x--\r\n', form), 422)
    part = b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\nabc\r\n'
    message(post(part * 100 + b"--x--\r\n", form), 422)
    message(post(part.replace(b"image", b"crop").replace(b"abc", b"a" * 5000) + b"--x--\r\n", form), 422)
    message(client.post("/search", files=[("image", encoded(1, 1))] * 17), 422)
    message(client.post("/search", files={"image": encoded(1, 1)}, data={"crop": ["", ""]}), 422)
    message(client.post("/search", files={"image": encoded(1, 1)}, data={"right": "1,x"}), 422)
    message(client.get("/search"), 405)


def test_a_form_keeps_its_parts() -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="image"; filename="../../x"\r\nContent-Type: image/png\r\n\r\n'
        b"\x00\r\n--not\r\n\xff\r\n--b\r\nContent-Disposition: form-data; name=crop\r\n\r\n0,0,1,1\r\n--b--\r\n"
    )
    form = parse_form(body, "multipart/form-data; boundary=b")
    assert form.images == [b"\x00\r\n--not\r\n\xff"]
    assert form.fields == {"crop": ["0,0,1,1"]}


def test_too_many_bytes_are_refused_before_they_are_read(shop: Path) -> None:
    with served(shop, max_bytes=1000, memory=3000) as client:
        assert "1,000" in message(ask(client, b"x" * 2000), 413)
        stream = (b"x" * 100 for _ in range(100))  # no Content-Length
        message(client.post("/search", content=stream, headers={"Content-Type": "application/json"}), 413)
        assert client.get("/metrics").text.count("nearfield_body_bytes 0\n") == 1
    with served(shop, memory=500) as client:
        refused = ask(client, b"x" * 2000)
        assert "memory" in message(refused, 503)
        assert refused.headers["retry-after"] == "1"


def test_too_many_pixels_are_refused(shop: Path) -> None:
    with served(shop, max_pixels=100) as client:
        assert "at most 100 pixels" in message(ask(client, encoded(1, 1)), 413)


def test_overload_is_answered_503_and_ends(shop: Path) -> None:
    with served(shop, queue=2) as client:
        worker = client.app.state.service.worker  # type: ignore[attr-defined]
        held, going = threading.Event(), threading.Event()

        def hold(index: Any) -> None:
            going.set()
            held.wait(30)

        worker.call(hold)
        going.wait(30)
        with ThreadPoolExecutor(6) as pool:
            waiting = [pool.submit(ask, client, encoded(1, 1)) for _ in range(6)]
            refused = _first(waiting, 4)
            held.set()
            answers = [each.result() for each in waiting]
        assert sorted(found.status_code for found in answers) == [200] * 2 + [503] * 4
        assert all(found.headers["retry-after"] == "1" for found in refused)
        assert ask(client, encoded(1, 1)).status_code == 200


def _first(futures: list[Any], count: int) -> list[Any]:
    """The results of those that finish first."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done = [each for each in futures if each.done()]
        if len(done) >= count:
            return [each.result() for each in done]
        time.sleep(0.01)
    raise AssertionError("requests hang")


def test_an_answer_that_takes_too_long_is_503(shop: Path) -> None:
    with served(shop, patience=0.2) as client:
        held = threading.Event()
        client.app.state.service.worker.call(lambda index: held.wait(30))  # type: ignore[attr-defined]
        assert "within 0.2 s" in message(client.get("/index"), 503)
        held.set()


def test_a_map_that_takes_long_is_finished_for_the_next(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, calls = threading.Event(), []

    def slow(index: Any) -> Any:
        calls.append(index)
        held.wait(30)
        return make_atlas(index)

    monkeypatch.setattr("nearfield.serve.overviews.make_atlas", slow)
    with served(shop, patience=0.3) as client:
        message(client.get("/atlas"), 503)
        message(client.get("/atlas"), 503)
        held.set()
        _first([client.app.state.service.overviews.atlas(0)], 1)  # type: ignore[attr-defined]
        assert client.get("/atlas").status_code == 200
    assert len(calls) == 1


def test_queries_that_wait_go_through_the_network_together(shop: Path) -> None:
    worker = Worker(shop, batch=16, threads=1)
    worker.start()
    try:
        held = threading.Event()
        worker.call(lambda index: held.wait(30))
        shape = worker.model.input.shape
        image = np.zeros(shape, np.uint8)
        jobs = [worker.embed([image, image]) for _ in range(6)]
        bad = worker.embed([np.zeros((*shape, 2), np.uint8)])
        gone = worker.embed([image])
        gone.cancel()
        held.set()
        assert [job.result(30).shape for job in jobs] == [(2, 8)] * 6
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            bad.result(30)  # fails alone
        held.clear()
        worker.call(lambda index: held.wait(30))
        batches, images = worker.batches, worker.batched
        jobs = [worker.embed([image, image]) for _ in range(6)]
        held.set()
        assert [job.result(30).shape for job in jobs] == [(2, 8)] * 6
        assert (worker.batches, worker.batched) == (batches + 1, images + 12)  # one call for all of them
    finally:
        worker.close()


def test_a_failure_is_a_500_with_an_id_and_the_server_goes_on(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise ZeroDivisionError("secret detail")

    with monkeypatch.context() as patch, TestCase().assertLogs("nearfield.serve") as log:
        patch.setattr("nearfield.serve.api.answer", fail)
        text = message(ask(client, encoded(1, 1)), 500)
    assert "secret" not in text
    assert "secret detail" in "\n".join(log.output)
    assert ask(client, encoded(1, 1)).status_code == 200


# ---------------------------------------------------------------------------------------------------------------
# Who may ask


def test_another_address_needs_a_token() -> None:
    with pytest.raises(InputError, match="needs a token"):
        Settings(host="0.0.0.0")
    with pytest.raises(InputError, match="at least 16"):
        Settings(host="0.0.0.0", token="short")
    assert not Settings(host="0.0.0.0", token=TOKEN).is_local
    assert Settings(host="::1").is_local
    assert Settings(host="localhost").is_local
    for bad in ({"port": 70_000}, {"queue": 0}, {"cors": ("shop.example",)}):
        with pytest.raises(InputError, match="got"):
            Settings(**bad)


def test_others_need_the_token_for_everything(shop: Path) -> None:
    with served(shop, "http://shop.example", host="0.0.0.0") as client:
        for path in ("/index", "/items", "/items/1/thumbnail", "/items/1/file", "/metrics", "/atlas", "/duplicates"):
            found = client.get(path)
            message(found, 401)
            assert found.headers["www-authenticate"] == "Bearer"
            assert client.get(path, headers=BEARER).status_code == 200
        message(ask(client, encoded(1, 1)), 401)
        assert client.get("/healthz").status_code == 200
        message(client.post("/session", json={"token": "wrong"}), 401)
        for bad in (b"", b"{}", b"[" * 4000, b'{"token": 1}', b'{"token": "\\ud800"}'):
            assert client.post("/session", content=bad).status_code in (401, 422)
        message(client.post("/session", json={"token": "x" * 10_000}), 413)
        assert client.post("/session", json={"token": TOKEN}).status_code == 204
        cookie = client.cookies["nearfield"]
        assert TOKEN not in cookie
        assert client.get("/index").status_code == 200  # by the cookie
        assert ask(client, encoded(1, 1)).status_code == 200
        message(client.delete("/items/1"), 401)  # for which a cookie is not enough


def test_pages_of_other_sites_are_refused(client: TestClient, shop: Path) -> None:
    message(client.get("/index", headers={"Host": "evil.example"}), 421)
    message(client.get("/index", headers={"Host": "127.0.0.1.evil.example:8000"}), 421)
    assert client.get("/index", headers={"Host": "localhost:8000"}).status_code == 200
    other = {"Origin": "https://evil.example"}
    message(client.post("/search", files={"image": encoded(1, 1)}, headers=other), 403)
    message(client.post("/search", files={"image": encoded(1, 1)}, headers={"Origin": "null"}), 403)
    assert "access-control-allow-origin" not in client.get("/index", headers=other).headers
    with served(shop, cors=("https://shop.example",)) as asked:
        friend = {"Origin": "https://shop.example"}
        found = asked.post("/search", files={"image": encoded(1, 1)}, headers=friend)
        assert found.headers["access-control-allow-origin"] == "https://shop.example"
        message(asked.post("/search", files={"image": encoded(1, 1)}, headers=other), 403)
        assert "access-control-allow-origin" not in asked.get("/index", headers=other).headers


def test_every_answer_has_safe_headers_and_an_id(client: TestClient) -> None:
    for path in ("/", "/index", "/nothing", "/items/x", "/style.css"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert re.fullmatch("[0-9a-f]{16}", headers["x-request-id"])
    assert client.get("/healthz", headers={"X-Request-Id": "my.id-1"}).headers["x-request-id"] == "my.id-1"
    assert client.get("/healthz", headers={"X-Request-Id": "x" * 100}).headers["x-request-id"] != "x" * 100
    with TestCase().assertLogs("nearfield.serve") as log:
        client.get("/items/%0a%1b[31mforged", headers={"X-Request-Id": "log"})
    (line,) = [record.getMessage() for record in log.records]
    assert line.startswith("log testclient GET ")
    assert "\n" not in line
    assert "\x1b" not in line


def test_only_the_content_that_was_indexed_is_sent(shop: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    photos = home / "photos"
    photos.mkdir(parents=True)
    secret = tmp_path / "secret.png"
    secret.write_bytes(encoded(9, 40))
    for number in range(3):
        (photos / f"{number}.png").write_bytes(encoded(2, number))
    copy = shutil.copytree(shop, home / "shop.index")
    add_photos(copy, [str(photos)])
    with served(copy) as client:
        ids = {item["path"]: item["id"] for item in client.get("/items?offset=50&limit=200").json()["items"]}
        (photos / "0.png").write_bytes(b"something else")
        (photos / "1.png").unlink()
        os.symlink(secret, photos / "1.png")
        outside = tmp_path / "2.png"
        shutil.move(photos / "2.png", outside)
        os.symlink(outside, photos / "2.png")  # the same content, but elsewhere
        for name in ("0.png", "1.png", "2.png"):
            message(client.get(f"/items/{ids[name]}/file"), 404)


@pytest.mark.programs
def test_the_command_serves_until_it_is_stopped(shop: Path) -> None:
    command = [sys.executable, "-m", "nearfield", "serve", str(shop), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"at (http://127\.0\.0\.1:\d+/)$", process.stdout.readline().strip())
        assert found is not None
        with urllib.request.urlopen(f"{found[1]}healthz", timeout=60) as answer:
            assert json.load(answer)["items"] == 10 * EACH + 2
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
    assert re.search(r"[0-9a-f]{16} 127\.0\.0\.1 GET '/healthz' 200 [\d.]+ ms", log)
    assert log.endswith("Stopped.\n")


def test_answers_do_not_wait_for_acknowledgements() -> None:
    with listen(Settings(port=0)) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # or asyncio leaves Nagle's algorithm on
        with pytest.raises(RunError, match=r"cannot listen on 127\.0\.0\.1:"):
            listen(Settings(port=listening.getsockname()[1]))


def test_the_command_refuses_what_is_not_safe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in {
        ("serve", str(tmp_path)): "must be an index",
        ("serve", str(tmp_path), "--host", "0.0.0.0"): "needs a token",
        ("serve", str(tmp_path), "--token", "short"): "at least 16",
    }.items():
        assert main(words) == 2
        assert text in capsys.readouterr().err


def test_uploads_are_not_written(client: TestClient, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = os.open

    def watch(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            opened.append(path)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", watch)  # what tempfile opens with
    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", lambda self: opened.append("spooled"))
    before = sorted(path.name for path in shop.iterdir())
    large = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (1200, 1200, 3)).astype(np.uint8)).save(large, "PNG")
    assert len(large.getvalue()) > 2**20  # more than other parsers keep in memory
    assert ask(client, large.getvalue()).status_code == 200
    assert opened == []
    assert sorted(path.name for path in shop.iterdir()) == before
