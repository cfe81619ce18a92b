"""What a step, an evaluation and an index cost as the batch N, the classes C, the images N and the dims D grow.

python -m benchmarks.scale [--only step|evaluation|index]

Every line has three sizes of one axis, the others fixed. CPU seconds of one thread, the least of some rounds, so that
other processes matter little. The exponent is the slope of log time over log size; the constant is the time of the
largest size divided by the number of multiply-adds that the plain matrix products would need, or of images or queries.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.measure import print_table

ROUNDS = 3


class Line(NamedTuple):
    """One axis of one job: its sizes, and how to prepare it at a size."""

    what: str
    fixed: str
    axis: str
    sizes: tuple[int, int, int]
    prepare: Callable[[int], tuple[Callable[[], Any], float]]  # size -> what to run, how many units that is
    unit: str = "multiply-add"


def pair_step(batch: int, dim: int) -> tuple[Callable[[], Any], float]:
    """Multi-Similarity with its backward: S, W X and W^T X are three products."""
    from nearfield import losses

    loss, x = losses.create("multi_similarity"), torch.randn(batch, dim, requires_grad=True)
    labels = torch.arange(batch) // 4
    return lambda: loss(x, labels).backward(), 3.0 * batch * batch * dim


def proxy_step(batch: int, classes: int, dim: int) -> tuple[Callable[[], Any], float]:
    """CosFace with its backward, to the batch and to the proxies."""
    from nearfield import losses

    loss = losses.create("cosface", num_classes=classes, dim=dim)
    x, labels = torch.randn(batch, dim, requires_grad=True), torch.randint(classes, (batch,))
    return lambda: loss(x, labels).backward(), 3.0 * batch * classes * dim


def evaluation(images: int, dim: int) -> tuple[Callable[[], Any], float]:
    """Recall@K, R-precision and MAP@R of every image against all others, in classes of 5."""
    from nearfield.metrics import retrieval_metrics

    x, labels = torch.randn(images, dim), torch.arange(images) // 5
    metrics = ("recall", "r_precision", "map_at_r")
    return lambda: retrieval_metrics(x, labels, metrics=metrics), 1.0 * images * images * dim


def flat_search(images: int, dim: int, queries: int = 64) -> tuple[Callable[[], Any], float]:
    """The 10 nearest of each of 64 queries, exactly."""
    import faiss

    index = faiss.IndexFlatIP(dim)
    index.add(_vectors(images, dim))
    asked = _vectors(queries, dim)
    return lambda: index.search(asked, 10), 1.0 * queries * images * dim


def graph_build(images: int, dim: int) -> tuple[Callable[[], Any], float]:
    """A graph index (HNSW, 16 neighbours)."""
    import faiss

    vectors = _vectors(images, dim)

    def build() -> None:
        index = faiss.IndexHNSWFlat(dim, 16)
        index.hnsw.efConstruction = 40
        index.add(vectors)

    return build, float(images)


def graph_search(images: int, dim: int, queries: int = 256) -> tuple[Callable[[], Any], float]:
    """The 10 nearest of each of 256 queries, nearly."""
    import faiss

    index = faiss.IndexHNSWFlat(dim, 16)
    index.add(_vectors(images, dim))
    asked = _vectors(queries, dim)
    return lambda: index.search(asked, 10), float(queries)


def _vectors(rows: int, dim: int) -> Any:
    x = np.random.default_rng(0).standard_normal((rows, dim)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


LINES = {
    "step": [
        Line("pair loss", "D = 128", "N", (512, 1024, 2048), lambda n: pair_step(n, 128)),
        Line("pair loss", "N = 1024", "D", (64, 256, 1024), lambda d: pair_step(1024, d)),
        Line("proxy loss", "C = 16,384, D = 128", "N", (32, 128, 512), lambda n: proxy_step(n, 16_384, 128)),
        Line("proxy loss", "N = 64, D = 128", "C", (10_000, 40_000, 160_000), lambda c: proxy_step(64, c, 128)),
        Line("proxy loss", "N = 64, C = 16,384", "D", (64, 256, 1024), lambda d: proxy_step(64, 16_384, d)),
    ],
    "evaluation": [
        Line("evaluation", "D = 128", "N", (2000, 4000, 8000), lambda n: evaluation(n, 128)),
        Line("evaluation", "N = 4000", "D", (64, 256, 1024), lambda d: evaluation(4000, d)),
    ],
    "index": [
        Line("exact search", "D = 128, 64 queries", "N", (10_000, 40_000, 160_000), lambda n: flat_search(n, 128)),
        Line("exact search", "N = 40,000, 64 queries", "D", (64, 256, 1024), lambda d: flat_search(40_000, d)),
        Line("HNSW build", "D = 64", "N", (2000, 4000, 8000), lambda n: graph_build(n, 64), "image"),
        Line("HNSW search", "D = 64, 256 queries", "N", (2000, 4000, 8000), lambda n: graph_search(n, 64), "query"),
    ],
}


def measured(line: Line) -> list[str]:
    """The times at the three sizes, the exponent and the constant."""
    times = []
    for size in line.sizes:
        call, units = line.prepare(size)
        call()
        times.append(min(_cpu_seconds(call) for _ in range(ROUNDS)))
    slope = float(np.polyfit(np.log(line.sizes), np.log(times), 1)[0])
    shown = " / ".join(f"{size:,}" for size in line.sizes)
    each = " / ".join(f"{1e3 * t:,.1f}" for t in times)
    constant = f"{1e9 * times[-1] / units:,.3g} ns a {line.unit}"
    row = [line.what, line.fixed, line.axis, shown, each, f"{slope:.2f}", constant]
    print("  " + " ".join(row), flush=True)
    return row


def _cpu_seconds(call: Callable[[], Any]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


def chosen(only: str | None) -> Iterator[Line]:
    """The lines to measure."""
    for name, lines in LINES.items():
        if only in (None, name):
            yield from lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LINES)
    arguments, _ = parser.parse_known_args()
    import faiss

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    torch.manual_seed(0)
    rows = [measured(line) for line in chosen(arguments.only)]
    print_table(["what", "fixed", "axis", "sizes", "CPU ms", "exponent", "constant"], rows)


if __name__ == "__main__":
    main()
