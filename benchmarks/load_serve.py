"""Load on `nearfield serve`, from clients on the same machine.

    python -m benchmarks.load_serve shop.index photos/               latency and throughput for 1, 8 and 64 clients
    python -m benchmarks.load_serve shop.index photos/ --mixed 10000   good and hostile requests: no 500, no leak

The server is a process of its own. Every client waits for its answer before it asks again; answers 503 are counted
apart, and asked again after the time that the server names. Exit code 1 if an answer was a 500, if the server died, or
if its memory grew by more than --growth.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
WARM = 0.3  # share of mixed requests before memory is first looked at
TIMEOUT = 60.0
FORM = "multipart/form-data; boundary=x"


@contextmanager
def server(index: Path, options: list[str]) -> Iterator[tuple[str, int]]:
    """A server in a process of its own; its address."""
    command = [sys.executable, "-m", "nearfield", "serve", str(index), "--port", "0", "--quiet", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://([\d.]+):(\d+)/", process.stdout.readline())
            if found is None:
                raise SystemExit("the server did not start")
            yield found[1], int(found[2])
            if process.poll() is not None:
                raise SystemExit(f"the server died with exit code {process.returncode}")
        finally:
            process.terminate()


class Client:
    """A connection that is kept; each request waits for its answer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.connection = http.client.HTTPConnection(*address, timeout=TIMEOUT)

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> tuple[int, bytes]:
        """Status and body of an answer; a connection that the server has closed is opened again."""
        for attempt in range(3):
            try:
                self.connection.request(method, path, body, {"Content-Type": kind} if kind else {})
                answer = self.connection.getresponse()
                return answer.status, answer.read()
            except (http.client.HTTPException, OSError):
                self.connection.close()
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def metric(self, name: str) -> float:
        """A value of /metrics."""
        text = self.ask("GET", "/metrics")[1].decode()
        return float(re.findall(rf"^{name} (\S+)$", text, re.M)[0])


def form(image: bytes, **fields: str) -> bytes:
    """A form with an image and other fields, as FORM says."""
    parts = [b'--x\r\nContent-Disposition: form-data; name="image"; filename="q"\r\n\r\n' + image + b"\r\n"]
    for name, value in fields.items():
        parts.append(f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode())
    return b"".join(parts) + b"--x--\r\n"


# ---------------------------------------------------------------------------------------------------------------
# Latency and throughput


def measure(address: tuple[str, int], images: list[bytes], clients: int, seconds: float) -> dict[str, float]:
    """Latency of searches by image, in milliseconds, and answers a second, of clients that ask at the same time."""
    end = time.perf_counter() + seconds
    times: list[float] = []
    busy = Counter[int]()

    def run(seed: int) -> None:
        chance, client = random.Random(seed), Client(address)
        while time.perf_counter() < end:
            body = form(chance.choice(images))
            started = time.perf_counter()
            status, _ = client.ask("POST", "/search?k=10", body, FORM)
            if status == 200:
                times.append(1e3 * (time.perf_counter() - started))
            else:
                busy[status] += 1
                time.sleep(1.0)

    started = time.perf_counter()
    _together([lambda seed=seed: run(seed) for seed in range(clients)])  # type: ignore[misc]
    elapsed = time.perf_counter() - started
    p50, p99 = np.percentile(times, [50, 99])
    found = {
        "clients": clients,
        "answers": len(times),
        "p50 ms": p50,
        "p99 ms": p99,
        "per second": len(times) / elapsed,
    }
    return {**found, "refused (503)": busy[503], "other": sum(busy.values()) - busy[503]}


def _together(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---------------------------------------------------------------------------------------------------------------
# Good and hostile requests


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG that says it is this large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def mixed_request(chance: random.Random, images: list[bytes], ids: list[int], dims: int) -> tuple[Any, ...]:
    """A request, about half of them good: method, path, body, type; or bytes for a bare connection."""
    image, id = chance.choice(images), chance.choice(ids)
    vector = [chance.gauss(0, 1) for _ in range(dims)]
    spoilt = bytearray(image)
    for _ in range(8):
        spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
    good = [
        ("POST", "/search?k=5", form(image), FORM),
        ("POST", "/search?k=5&collapse=true&vectors=true", form(image, crop="0.1,0.1,0.9,0.9"), FORM),
        ("POST", "/search?k=20", json.dumps({"vector": vector}).encode(), "application/json"),
        ("POST", "/search", json.dumps({"items": [id], "right": [id], "wrong": [id]}).encode(), "application/json"),
        ("GET", f"/items/{id}/thumbnail", None, ""),
        ("GET", f"/items/{id}/file", None, ""),
        ("GET", "/items?limit=20", None, ""),
        ("GET", "/index", None, ""),
    ]
    bad = [
        ("POST", "/search", form(bytes(spoilt)), FORM),
        ("POST", "/search", form(image[: chance.randrange(len(image))]), FORM),
        ("POST", "/search", form(chance.randbytes(2000)), FORM),
        ("POST", "/search", form(png(60_000, 60_000)), FORM),
        ("POST", "/search", form(png(64, 64, zlib.compress(b"\0" * 2_000_000))), FORM),
        ("POST", "/search", form(image, crop="1,1,0,nan"), FORM),
        ("POST", "/search", form(image)[:-9], FORM),
        ("POST", "/search", chance.randbytes(500), FORM),
        ("POST", "/search", chance.randbytes(500), "application/json"),
        ("POST", "/search", b"[" * 50_000, "application/json"),
        ("POST", "/search", json.dumps({"vector": vector[:-1]}).encode(), "application/json"),
        ("POST", "/search", b"{" + b'"x":1,' * 1000 + b'"y":1}', "application/json"),
        ("POST", f"/search?k={chance.choice([0, -5, 10**20, 'x', ''])}", form(image), FORM),
        ("POST", "/search?label=%F0%9F%92%A9%00", form(image), FORM),
        ("POST", "/items", form(image), FORM),
        ("DELETE", f"/items/{id}", None, ""),
        ("GET", "/items/../../../../etc/passwd", None, ""),
        ("GET", f"/items/{chance.choice([-1, 10**30, 'x', '%2e%2e'])}/file", None, ""),
        ("POST", "/heat?id=99999999", form(image), FORM),
        (b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999999999999\r\n\r\n",),
        (b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\nContent-Type: text/x\r\n\r\nabc",),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",),
        (chance.randbytes(300) + b"\r\n\r\n",),
    ]
    return chance.choice(good if chance.random() < 0.5 else bad)


def bare(address: tuple[str, int], content: bytes) -> int:
    """Send bytes, read a line of what comes back, and go away; the status, 0 without one."""
    with suppress(OSError), socket.create_connection(address, timeout=TIMEOUT) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        found = re.match(rb"HTTP/1.1 (\d+)", connection.recv(200))
        return int(found[1]) if found else 0
    return 0


def mix(address: tuple[str, int], images: list[bytes], total: int, clients: int) -> dict[str, Any]:
    """Statuses of `total` mixed requests, and the memory of the server before and after most of them."""
    first = Client(address)
    facts = json.loads(first.ask("GET", "/index")[1])
    ids = [item["id"] for item in json.loads(first.ask("GET", "/items?limit=200")[1])["items"]]
    statuses: Counter[int] = Counter()

    def run(seed: int, number: int) -> None:
        chance, client = random.Random(seed), Client(address)
        for _ in range(number):
            request = mixed_request(chance, images, ids, facts["dims"])
            status = bare(address, request[0]) if len(request) == 1 else client.ask(*request)[0]
            statuses[status] += 1
            if status == 503:
                time.sleep(0.2)

    def part(share: float, seed: int) -> float:
        number = int(total * share / clients)
        _together([lambda each=each: run(seed + each, number) for each in range(clients)])  # type: ignore[misc]
        return first.metric("process_resident_memory_bytes") / 2**20

    started = time.perf_counter()
    warm = part(WARM, 0)
    middle, after = part((1 - WARM) / 2, 1000), part((1 - WARM) / 2, 2000)
    return {
        "requests": sum(statuses.values()),
        "seconds": time.perf_counter() - started,
        "statuses": dict(sorted(statuses.items())),
        "MiB": [round(each, 1) for each in (warm, middle, after)],
        "growth MiB": round(after - warm, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("photos", type=Path, help="a folder of images to search")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--mixed", type=int, metavar="N", help="send N good and hostile requests instead")
    parser.add_argument("--growth", type=float, default=32.0, metavar="MIB", help="of memory that is allowed")
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    files = sorted(path for path in arguments.photos.rglob("*") if path.suffix.lower() in SUFFIXES)
    images = [path.read_bytes() for path in random.Random(0).sample(files, min(64, len(files)))]
    with server(arguments.index, ["--threads", str(arguments.threads)]) as address:
        if arguments.mixed:
            found = mix(address, images, arguments.mixed, 8)
            print(json.dumps(found, indent=1))
            return int(500 in found["statuses"] or found["growth MiB"] > arguments.growth)
        measure(address, images, 1, 2.0)  # warm up
        for clients in arguments.clients:
            found = measure(address, images, clients, arguments.seconds)
            print(", ".join(f"{name} {value:,.1f}" for name, value in found.items()), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
