"""Every proxy loss: our time and peak memory, pytorch-metric-learning's, both beside the bare X P^T with its backward.

python -m benchmarks.speed_proxies [--only NAME ...] [--no-peer] [--threads N]
"""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

import benchmarks.measure
from benchmarks.measure import cell, in_process, limit_memory, measure, print_table

DIM = 128
SHAPES = ((256, 11_318), (1024, 11_318), (4096, 11_318), (256, 1_000_000))  # batch x classes: SOP, and very many
CENTERS = {"soft_triple": 10, "sub_center_arcface": 3, "potential_field": 2}
PARAMS: dict[str, dict[str, Any]] = {"potential_field": {"proxies_per_class": 2}}  # as published for many classes
SQUARE = {"potential_field"}  # compares proxies with each other too: not for very many


def names() -> list[str]:
    """Every registered loss against proxies, wrappers of them included; not those that bring networks."""
    from nearfield import losses

    methods = [losses.method(name) for name in losses.names()]
    return [m.name for m in methods if m.needs == ["num_classes", "dim"] and not m.holds_head and not m.members]


def peer(name: str, classes: int) -> Any:
    """pytorch-metric-learning's loss of the same kind, or None."""
    from pytorch_metric_learning import losses

    shape = {"num_classes": classes, "embedding_size": DIM}
    built = {
        "proxy_softmax": lambda: losses.NormalizedSoftmaxLoss(**shape),
        "proxy_nca": lambda: losses.ProxyNCALoss(**shape, softmax_scale=9),
        "proxy_anchor": lambda: losses.ProxyAnchorLoss(**shape),
        "cosface": lambda: losses.CosFaceLoss(**shape),
        "arcface": lambda: losses.ArcFaceLoss(**shape, margin=math.degrees(0.5)),
        "sub_center_arcface": lambda: losses.SubCenterArcFaceLoss(**shape, margin=math.degrees(0.5)),
        "soft_triple": lambda: losses.SoftTripleLoss(**shape),
    }
    return built[name]() if name in built else None


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """One loss at one shape, in this process."""
    import torch

    from nearfield import losses

    limit_memory()
    torch.set_num_threads(case["threads"])
    torch.manual_seed(0)
    batch, classes = case["batch"], case["classes"]
    x, y = torch.randn(batch, DIM, requires_grad=True), torch.randint(classes, (batch,))
    ours = case["who"] == "ours"
    known = {"num_classes": classes, "dim": DIM, **PARAMS.get(case["name"], {})}
    loss = losses.create(case["name"], **known) if ours else peer(case["name"], classes)
    weights = next(loss.parameters())
    columns = classes * CENTERS.get(case["name"], 1)
    proxies = torch.randn(columns, DIM, requires_grad=True)
    fits = batch * columns <= 1 << 28
    upstream = torch.ones(batch, columns) if fits else None

    def call() -> None:
        torch.autograd.grad(loss(x, y), (x, weights))

    def bare() -> None:
        torch.autograd.grad(x @ proxies.T, (x, proxies), upstream)

    small = torch.randn(4, DIM, requires_grad=True)
    torch.autograd.grad(loss(small, torch.arange(4)), small)  # load every library before memory is watched
    return measure(call, bare if fits else None, 5 if batch * columns < 1 << 26 else 2, case["threads"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--no-peer", action="store_true", help="leave pytorch-metric-learning out")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments, _ = parser.parse_known_args()
    benchmarks.measure.TIME_LIMIT = 240
    print(f"D = {DIM}, {arguments.threads} threads, forward and backward, to the batch and to the proxies.")
    print("x: time as a multiple of the bare X P^T with its backward in the same process. MB: peak extra memory.\n")
    rows = [_row(name, batch, classes, arguments) for name in arguments.only or names() for batch, classes in SHAPES]
    print_table(["loss", "batch x classes", "bare ms", "ours x", "PML x", "PML / ours", "ours MB", "PML MB"], rows)


def _row(name: str, batch: int, classes: int, arguments: argparse.Namespace) -> list[str]:
    def run(who: str) -> dict[str, Any]:
        case = {"name": name, "batch": batch, "classes": classes, "who": who}
        return in_process(run_case, case, arguments.threads)

    if classes * CENTERS.get(name, 1) > 1_000_000 or (name in SQUARE and classes > 100_000):
        return [name, f"{batch} x {classes:,}", "", "", "", "", "", ""]
    ours = run("ours")
    theirs = None if arguments.no_peer or peer(name, 2) is None else run("peer")
    factor = f"{theirs['ms'] / ours['ms']:.1f}" if theirs and "ms" in theirs and "ms" in ours else ""
    bare = cell(ours, "bare_ms", "{:,.0f}") if "bare_ms" in ours else ""
    times = [
        cell(found, "ratio", "{:.1f}") if found and "ratio" in found else cell(found, "ms", "{:,.0f} ms")
        for found in (ours, theirs)
    ]
    row = [name, f"{batch} x {classes:,}", bare, *times, factor, *(cell(f, "mb", "{:,.0f}") for f in (ours, theirs))]
    print("  " + " ".join(row), flush=True)
    return row


if __name__ == "__main__":
    main()
