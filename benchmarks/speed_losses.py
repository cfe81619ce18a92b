"""Every pair loss: our time and peak memory, pytorch-metric-learning's, both beside the bare X X^T with its backward.

python -m benchmarks.speed_losses [--sizes 256 1024 4096] [--only NAME ...] [--no-peer] [--compile NAME ...]

With one thread time is that of the processor, so that other work on the machine counts less.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from benchmarks.measure import cell, in_process, limit_memory, measure, print_table

DIM, PER_CLASS = 128, 4
SIZES = (256, 1024, 4096, 16384)
PEER_SIZES = (256, 1024, 4096)  # larger ones do not fit into memory for most of its losses
COMPILED = (  # those that are also measured with compile=True, which takes half a minute a case
    "contrastive", "fastap", "histogram", "margin", "multi_similarity", "nt_xent", "snr", "triplet",
)  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "contrastive (hinge)": ("contrastive", {"form": "hinge"}),
    "triplet (semihard)": ("triplet", {"mining": "semihard"}),
    "triplet (hard)": ("triplet", {"mining": "hard"}),
    "multi_similarity (no mining)": ("multi_similarity", {"mine": False}),
    "recall_at_k (SiMix)": ("recall_at_k", {"simix": True}),
    "tcm (multi_similarity, no mining)": ("tcm", {"base_params": {"mine": False}}),
    "matryoshka (multi_similarity, no mining)": ("matryoshka", {"base_params": {"mine": False}}),
}


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """What is measured: every registered loss within a batch with its defaults, and some variants."""
    from nearfield import losses

    pair_losses = [name for name in losses.names() if not losses.method(name).needs]
    return dict(sorted({**{name: (name, {}) for name in pair_losses}, **VARIANTS}.items()))


def peer(name: str) -> Any:
    """pytorch-metric-learning's loss (and miner) of the same kind, or None."""
    from pytorch_metric_learning import distances, losses, miners

    def mined(loss: Any, miner: Any) -> Any:
        return lambda x, y: loss(x, y, miner(x, y))

    def summed(*parts: Any) -> Any:
        return lambda x, y: sum(part(x, y) for part in parts)

    built = {
        "contrastive (hinge)": lambda: losses.ContrastiveLoss(),
        "triplet": lambda: losses.TripletMarginLoss(margin=0.1),
        "triplet (semihard)": lambda: mined(
            losses.TripletMarginLoss(margin=0.1), miners.TripletMarginMiner(margin=0.1, type_of_triplets="semihard")
        ),
        "triplet (hard)": lambda: mined(losses.TripletMarginLoss(margin=0.1), miners.BatchHardMiner()),
        "margin": lambda: mined(losses.MarginLoss(), miners.DistanceWeightedMiner()),
        "lifted": lambda: losses.LiftedStructureLoss(),
        "lifted_generalized": lambda: losses.GeneralizedLiftedStructureLoss(),
        "npairs": lambda: losses.NPairsLoss(),
        "angular": lambda: losses.AngularLoss(alpha=45),
        "ranked_list": lambda: losses.RankedListLoss(margin=0.4, Tn=10),
        "histogram": lambda: losses.HistogramLoss(n_bins=100),
        "nca": lambda: losses.NCALoss(),
        "multi_similarity": lambda: mined(losses.MultiSimilarityLoss(), miners.MultiSimilarityMiner()),
        "multi_similarity (no mining)": lambda: losses.MultiSimilarityLoss(),
        "fastap": lambda: losses.FastAPLoss(num_bins=10),
        "snr": lambda: losses.ContrastiveLoss(distance=distances.SNRDistance()),
        "supcon": lambda: losses.SupConLoss(),
        "nt_xent": lambda: losses.NTXentLoss(temperature=0.1),
        "circle": lambda: losses.CircleLoss(),
        "smooth_ap": lambda: losses.SmoothAPLoss(),
        "sincere": lambda: losses.NTXentLoss(temperature=0.1),
        "tuplet_margin": lambda: losses.TupletMarginLoss(),
        "tcm (multi_similarity, no mining)": lambda: summed(
            losses.MultiSimilarityLoss(), losses.ThresholdConsistentMarginLoss()
        ),
    }
    return built[name]() if name in built else None


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """One loss at one size, in this process."""
    import torch

    limit_memory()
    torch.set_num_threads(case["threads"])
    torch.manual_seed(0)
    n = case["size"]
    x = torch.randn(n, DIM, requires_grad=True)
    y = torch.arange(n) // PER_CLASS
    y = y if case["name"] == "smooth_ap" and case["who"] == "peer" else y[torch.randperm(n)]  # its rows must be sorted
    if case["who"] == "peer":
        loss = peer(case["name"])
    else:
        from nearfield import losses

        name, params = cases()[case["name"]]
        loss = losses.create(name, **params, compile=case["who"] == "compiled")
    upstream = torch.ones(n, n) if n <= 4096 else None

    def call() -> None:
        torch.autograd.grad(loss(x, y), x)

    def bare() -> None:
        torch.autograd.grad(x @ x.T, x, upstream)

    small = torch.randn(8, DIM, requires_grad=True)
    torch.autograd.grad(loss(small, torch.arange(8) // 2), small)  # load every library before memory is watched
    if case["who"] == "compiled":
        call()
    return measure(call, bare if upstream is not None else None, 5 if n <= 4096 else 1, case["threads"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--no-peer", action="store_true", help="leave pytorch-metric-learning out")
    parser.add_argument("--compile", nargs="*", metavar="NAME", default=COMPILED, help="also with compile=True")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    print(f"D = {DIM}, {PER_CLASS} rows a class, {arguments.threads} threads, forward and backward.")
    print("x: time as a multiple of the bare X X^T with its backward in the same process. MB: peak extra memory.\n")
    rows = []
    for name in arguments.only or cases():
        failed: dict[str, Any] | None = None  # of the peer: what fails at one size is not tried at the next
        for size in sorted(arguments.sizes):
            row, failed = _row(name, size, arguments, failed)
            rows.append(row)
            print(f"  {' '.join(rows[-1])}", flush=True)
    print()
    print_table(["loss", "N", "bare ms", "ours x", "compiled x", "PML x", "PML / ours", "ours MB", "PML MB"], rows)


def _row(
    name: str, size: int, arguments: argparse.Namespace, failed: dict[str, Any] | None
) -> tuple[list[str], dict[str, Any] | None]:
    def run(who: str) -> dict[str, Any]:
        return in_process(run_case, {"name": name, "size": size, "who": who}, arguments.threads)

    ours = run("ours")
    compiled = run("compiled") if name in arguments.compile and size <= 4096 else None
    theirs = (failed or run("peer")) if not arguments.no_peer and size in PEER_SIZES and peer(name) else None
    bare = f"{ours['bare_ms']:.1f}" if "bare_ms" in ours else ""
    factor = f"{theirs['ms'] / ours['ms']:.1f}" if theirs and "ms" in theirs and "ms" in ours else ""
    times = [cell(found, "ratio") if size <= 4096 else "" for found in (ours, compiled, theirs)]
    if size > 4096:
        times[0] = f"{ours['ms'] / 1e3:.1f} s" if "ms" in ours else cell(ours, "ms")
    row = [name, str(size), bare, *times, factor, cell(ours, "mb", "{:.0f}"), cell(theirs, "mb", "{:.0f}")]
    return row, theirs if theirs and "failed" in theirs else None


if __name__ == "__main__":
    main()
