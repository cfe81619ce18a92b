"""The evaluator: time as a multiple of the bare blocked product in the same process, and peak extra memory.

    python benchmarks/speed_eval.py [--quick] [--threads N] [--only SHAPE ...]

Beside ours: pytorch-metric-learning's AccuracyCalculator with faiss (P@1, R-precision and MAP@R; it has no R@K), and a
bare faiss search of as many neighbours as the same metrics need. Every case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # started as a script
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import benchmarks.measure
from benchmarks.measure import cell, in_process, limit_memory, measure, print_table

SHAPES = {  # items, classes, noise at D = 128 that makes recall about as hard as on the real data, cut-offs
    "CUB": (5_924, 100, 2.6, (1, 2, 4, 8)),
    "10k": (10_000, 100, 2.6, (1, 2, 4, 8)),
    "SOP": (60_502, 11_316, 1.35, (1, 10, 100, 1000)),
}
DIMS = (128, 512)
METHODS = {
    "product": "bare blocked product",
    "all": "ours: recall, R-precision, MAP@R, mAP, MRR",
    "usual": "ours: recall, R-precision, MAP@R",
    "recall": "ours: recall",
    "peer": "pytorch-metric-learning, faiss",
    "faiss": "bare faiss search",
}
OURS = {"usual": ("recall", "r_precision", "map_at_r"), "recall": ("recall",)}
OURS["all"] = (*OURS["usual"], "map", "mrr")


def embeddings(shape: str, dim: int) -> tuple[Any, Any]:
    """Unit vectors around class centres; how far an item strays varies, so that some matches rank far behind."""
    import torch

    items, classes, noise, _ = SHAPES[shape]
    generator = torch.Generator().manual_seed(0)
    spread = ((1 + noise**2) * (dim / 128) ** 0.5 - 1) ** 0.5  # the same overlap of classes in any dimension
    extra = torch.randint(classes, (max(0, items - 2 * classes),), generator=generator)
    labels = torch.cat([torch.arange(classes).repeat(2), extra])[:items]
    centres = torch.randn(classes, dim, generator=generator)
    strays = spread * torch.exp(0.5 * torch.randn(items, 1, generator=generator))
    points = centres[labels] + strays * torch.randn(items, dim, generator=generator)
    return torch.nn.functional.normalize(points), labels


def blocked_product(points: Any, block: int = 1024) -> None:
    """All similarities, block by block, none kept: what any exact evaluation must compute, less symmetry."""
    import torch

    buffer = torch.empty(block * block)
    for rows in points.split(block):
        for cols in points.split(block):
            torch.mm(rows, cols.T, out=buffer[: len(rows) * len(cols)].view(len(rows), len(cols)))


def subject(method: str, shape: str, points: Any, labels: Any) -> Callable[[], Any]:
    """The call to be measured."""
    cutoffs = SHAPES[shape][3]
    if method == "product":
        return lambda: blocked_product(points)
    if method == "faiss":
        import faiss

        matrix = points.numpy()
        neighbours = 1 + max(max(cutoffs), int(labels.bincount().max()) - 1)

        def search() -> None:
            index = faiss.IndexFlatIP(matrix.shape[1])
            index.add(matrix)
            index.search(matrix, neighbours)

        return search
    if method == "peer":
        import torch
        from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

        names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
        peer = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
        return lambda: peer.get_accuracy(points, labels)
    from nearfield import retrieval_metrics

    return lambda: retrieval_metrics(points, labels, cutoffs, metrics=OURS[method])


def run_case(case: dict[str, Any]) -> dict[str, float]:
    """Measure one case in this process."""
    import torch

    limit_memory()
    torch.set_num_threads(case["threads"])
    if case["method"] in ("faiss", "peer"):
        import faiss

        faiss.omp_set_num_threads(case["threads"])
    points, labels = embeddings(case["shape"], case["dim"])
    call = subject(case["method"], case["shape"], points, labels)
    return measure(call, lambda: blocked_product(points), case["rounds"], case["threads"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the small shapes at D = 128, once")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="SHAPE")
    arguments, _ = parser.parse_known_args()
    benchmarks.measure.TIME_LIMIT = 1800  # the largest shape takes minutes where the losses take seconds
    shapes = [name for name in arguments.only if not arguments.quick or name != "SOP"]
    rows = []
    for shape in shapes:
        for dim in DIMS[:1] if arguments.quick else DIMS:
            for method, title in METHODS.items():
                rounds = 1 if arguments.quick or shape == "SOP" else 3
                case = {"shape": shape, "dim": dim, "method": method, "rounds": rounds}
                found = in_process(run_case, case, arguments.threads)
                items, classes, _, _ = SHAPES[shape]
                where = f"{items:,} x {classes:,}, D = {dim}"
                times = cell(found, "ratio", "{:.2f}")
                rows.append([where, title, cell(found, "ms", "{:,.0f}"), times, cell(found, "mb", "{:,.0f}")])
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{arguments.threads} threads\n")
    print_table(["items x classes", "what", "ms", "x product", "peak MB"], rows)


if __name__ == "__main__":
    main()
