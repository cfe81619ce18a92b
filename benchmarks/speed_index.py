"""Engines of an index: time to build, peak memory, size, recall@10 and latency on N synthetic vectors of D dims.

    python benchmarks/speed_index.py [--count N] [--dim D] [--threads N] [--only KIND ...]

Vectors are unit vectors around centres (100 to a centre) in a subspace of D / 4 dims, with noise in all of them.
Queries are vectors of the collection with noise, one at a time; recall is the share of the ten exact neighbours that
were found. Memory is the growth of the process while it builds, pages of mapped files included. Beside the engines of
`nearfield index`: product quantisation (IVF, PQ of D / 4 bytes) trained on a sample, as collections beyond memory need
it, without re-ranking and with the best 10 x 16 candidates scored again by the vectors on disk. Every engine is built
in a process of its own, and its row printed when it is measured.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if not __package__:  # started as a script
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import benchmarks.measure
from benchmarks.measure import cell, in_process, peak_megabytes, print_table, seconds

KINDS = {
    "exact": "exact",
    "hnsw": "HNSW32, SQ8, re-ranked x 4",
    "ivf": "IVF, SQ8, re-ranked x 4",
    "pq": "IVF, PQ on a sample",
}
BLOCK = 50_000
QUERIES = 500
K = 10
SAMPLE = 100_000  # vectors that product quantisation learns from
RERANK = 16


def vectors(count: int, dim: int) -> Iterator[Any]:
    """Blocks of vectors (BLOCK, D)."""
    import numpy as np

    draw = np.random.default_rng(0)
    basis = np.linalg.qr(draw.standard_normal((dim, max(2, dim // 4))))[0].astype(np.float32)
    centres = draw.standard_normal((max(1, count // 100), basis.shape[1]), dtype=np.float32)
    for start in range(0, count, BLOCK):
        rows = min(BLOCK, count - start)
        inside = centres[draw.integers(0, len(centres), rows)]
        inside = inside + 0.7 * draw.standard_normal(inside.shape, dtype=np.float32)
        x = inside @ basis.T + 0.05 * draw.standard_normal((rows, dim), dtype=np.float32)
        yield x / np.linalg.norm(x, axis=1, keepdims=True)


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Build one engine and measure each way to search it: {"rows": {what is added to its name: numbers}}."""
    import faiss
    import numpy as np

    faiss.omp_set_num_threads(case["threads"])
    count, dim, kind = case["count"], case["dim"], case["kind"]
    with tempfile.TemporaryDirectory() as folder:
        home, built = Path(folder), dict[str, Any]()

        def build() -> None:
            built["searches"], built["facts"] = (_product if kind == "pq" else _engine)(home, count, dim, kind)

        took: list[float] = []
        megabytes = peak_megabytes(lambda: took.append(seconds(build)))
        every = np.memmap(home / "all.f32", np.float32, "r", shape=(count, dim))
        rows = np.sort(np.random.default_rng(9).choice(count, QUERIES, replace=False))
        noise = np.random.default_rng(8).standard_normal((QUERIES, dim)).astype(np.float32)
        queries = every[rows] + noise * (0.3 / math.sqrt(dim))
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        exact = _exact(queries, every)
        size = sum(file.stat().st_size for file in home.rglob("*") if file.is_file() and file.name != "all.f32")
        facts = {"seconds": took[0], "mb": megabytes, "bytes": size / count, **built["facts"]}
        return {"rows": {name: facts | _asked(search, queries, exact) for name, search in built["searches"].items()}}


def _asked(search: Callable[[Any], Any], queries: Any, exact: Any) -> dict[str, float]:
    import numpy as np

    hits, times = [], []
    for query, best in zip(queries, exact, strict=True):
        begun = time.perf_counter()
        found = search(query[None])
        times.append(time.perf_counter() - begun)
        hits.append(len(set(best.tolist()) & set(found[0].tolist())) / K)
    median, most = np.quantile(times, (0.5, 0.99))
    return {"recall": float(np.mean(hits)), "ms": 1e3 * float(median), "p99": 1e3 * float(most)}


def _engine(home: Path, count: int, dim: int, kind: str) -> tuple[dict[str, Callable[[Any], Any]], dict[str, Any]]:
    import numpy as np

    from nearfield.index.engines.faiss_files import FaissEngine

    engine, start = FaissEngine(home, dim, kind), 0
    with (home / "all.f32").open("wb") as stream:
        for block in vectors(count, dim):
            engine.add(np.arange(start, start + len(block)), block, ["a"] * len(block))
            stream.write(block.tobytes())
            start += len(block)
    engine.save()
    return {"": lambda query: engine.search(query, K).ids}, {"effort": engine.facts()["effort"]}


def _product(home: Path, count: int, dim: int, _: str) -> tuple[dict[str, Callable[[Any], Any]], dict[str, Any]]:
    import faiss
    import numpy as np

    with (home / "all.f32").open("wb") as stream:
        for block in vectors(count, dim):
            stream.write(block.tobytes())
    every = np.memmap(home / "all.f32", np.float32, "r", shape=(count, dim))
    lists = max(1, min(2 ** round(math.log2(4 * math.sqrt(count))), SAMPLE // 39, count // 39))
    index: Any = faiss.index_factory(dim, f"IVF{lists},PQ{dim // 4}", faiss.METRIC_L2)
    sample = np.sort(np.random.default_rng(0).choice(count, min(SAMPLE, count), replace=False))
    trained = seconds(lambda: index.train(np.ascontiguousarray(every[sample])))
    for start in range(0, count, BLOCK):
        index.add(np.ascontiguousarray(every[start : start + BLOCK]))
    index.nprobe = 32
    faiss.write_index(index, str(home / "product.faiss"))

    def again(query: Any) -> Any:
        _, rows = index.search(query, K * RERANK)
        scores = every[rows[0]] @ query[0]
        return rows[:, np.argsort(-scores, kind="stable")[:K]]

    searches: dict[str, Callable[[Any], Any]] = {"": lambda query: index.search(query, K)[1]}
    return searches | {f", re-ranked x {RERANK}": again}, {"effort": index.nprobe, "training": trained}


def _exact(queries: Any, every: Any) -> Any:
    import faiss
    import numpy as np

    best, rows = np.full((len(queries), K), -np.inf, np.float32), np.full((len(queries), K), -1)
    for start in range(0, len(every), BLOCK):
        scores, places = faiss.knn(queries, every[start : start + BLOCK], K, faiss.METRIC_INNER_PRODUCT)
        both, names = np.hstack([best, scores]), np.hstack([rows, places + start])
        order = np.argsort(-both, axis=1, kind="stable")[:, :K]
        best, rows = np.take_along_axis(both, order, 1), np.take_along_axis(names, order, 1)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="30,000 vectors")
    parser.add_argument("--count", type=int, default=1_000_000, metavar="N", help="vectors (default: 1,000,000)")
    parser.add_argument("--dim", type=int, default=128, metavar="D")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    arguments, _ = parser.parse_known_args()
    benchmarks.measure.TIME_LIMIT = 4 * 3600
    count, rows = 30_000 if arguments.quick else arguments.count, []
    for kind in arguments.only:
        case = {"count": count, "dim": arguments.dim, "kind": kind}
        found = in_process(run_case, case, arguments.threads)
        styles = ("{:,.0f}", "{:,.0f}", "{:,.0f}", "{:.0f}", "{:.3f}", "{:.2f}", "{:.2f}")
        keys = ("seconds", "mb", "bytes", "effort", "recall", "ms", "p99")
        for name, numbers in found.get("rows", {"": found}).items():
            row = [KINDS[kind] + name, *(cell(numbers, key, style) for key, style in zip(keys, styles, strict=True))]
            print("; ".join(row), file=sys.stderr, flush=True)
            rows.append(row)
            if "training" in numbers and not name:
                print(f"of which {numbers['training']:.0f} s of learning on {SAMPLE:,} vectors", file=sys.stderr)
    print(f"{count:,} vectors, D = {arguments.dim}, {arguments.threads} threads\n")
    print_table(
        ["engine", "build s", "peak MB", "bytes a vector", "effort", "recall@10", "ms, median", "ms, 99 %"], rows
    )


if __name__ == "__main__":
    main()
