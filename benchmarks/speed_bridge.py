"""The bridge: a script written for pytorch-metric-learning, with its import lines as they are and changed.

    python -m benchmarks.speed_bridge [--threads N] [--only NAME ...] [--sizes N ...]

The same code is given the modules of `pytorch_metric_learning` and of `nearfield.compat.pml`. Steps: forward of the
loss, with its miner, and backward, at D = 128, four rows a class. Script: a linear head trained for 20 batches of 128
from `MPerClassSampler` and scored by `AccuracyCalculator`, all of it. Both run in one process, in turns; the ratio is
the median over neighbouring turns. Times include everything that the script does beside the loss.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.measure import cell, in_process, limit_memory, measure, print_table

DIM = 128
SIZES = (32, 256, 1024)
LIBRARIES = {"pml": "pytorch_metric_learning", "ours": "nearfield.compat.pml"}
STEPS: dict[str, Callable[[Any], tuple[Any, Any]]] = {  # a loss and a miner
    "TripletMarginLoss": lambda lib: (lib.losses.TripletMarginLoss(), None),
    "TripletMarginLoss, TripletMarginMiner semihard": lambda lib: (
        lib.losses.TripletMarginLoss(margin=0.2, distance=lib.distances.CosineSimilarity()),
        lib.miners.TripletMarginMiner(
            margin=0.2, distance=lib.distances.CosineSimilarity(), type_of_triplets="semihard"
        ),
    ),
    "TripletMarginLoss, MultiSimilarityMiner": lambda lib: (
        lib.losses.TripletMarginLoss(),
        lib.miners.MultiSimilarityMiner(),
    ),
    "MultiSimilarityLoss, MultiSimilarityMiner": lambda lib: (
        lib.losses.MultiSimilarityLoss(),
        lib.miners.MultiSimilarityMiner(),
    ),
    "ContrastiveLoss": lambda lib: (lib.losses.ContrastiveLoss(), None),
    "ContrastiveLoss of cosines (a list)": lambda lib: (
        lib.losses.ContrastiveLoss(1, 0, distance=lib.distances.CosineSimilarity()),
        None,
    ),
    "NTXentLoss": lambda lib: (lib.losses.NTXentLoss(), None),
    "NTXentLoss, BatchEasyHardMiner (a list)": lambda lib: (
        lib.losses.NTXentLoss(),
        lib.miners.BatchEasyHardMiner("all", "hard"),
    ),
    "CrossBatchMemory of 4,096, ContrastiveLoss": lambda lib: (
        lib.losses.CrossBatchMemory(lib.losses.ContrastiveLoss(), DIM, 4096),
        None,
    ),
}


def library(name: str) -> Any:
    """A namespace with the modules of one of the two libraries."""
    modules = ("losses", "miners", "distances", "reducers", "samplers", "utils.accuracy_calculator")
    found = {m.rpartition(".")[2]: importlib.import_module(f"{LIBRARIES[name]}.{m}") for m in modules}
    return argparse.Namespace(**found)


def step(lib: Any, name: str, size: int) -> Callable[[], Any]:
    """One forward and backward pass."""
    import torch

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size // 4).repeat_interleave(4)
    x = torch.randn(size // 4, DIM, generator=generator)[labels] + torch.randn(size, DIM, generator=generator)
    loss, miner = STEPS[name](lib)

    def call() -> None:
        given = x.clone().requires_grad_()
        value = loss(given, labels) if miner is None else loss(given, labels, miner(given, labels))
        value.backward()

    return call


def script(lib: Any, items: int) -> Callable[[], Any]:
    """A training script: sampler, miner, loss, optimiser, and a score at the end."""
    import torch

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(items // 8).repeat_interleave(8)
    data = torch.randn(items // 8, 256, generator=generator)[labels] + torch.randn(items, 256, generator=generator)
    dataset = torch.utils.data.TensorDataset(data, labels)

    def call() -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(256, DIM)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        distance = lib.distances.CosineSimilarity()
        loss_func = lib.losses.TripletMarginLoss(
            margin=0.2, distance=distance, reducer=lib.reducers.ThresholdReducer(low=0)
        )
        mining_func = lib.miners.TripletMarginMiner(margin=0.2, distance=distance, type_of_triplets="semihard")
        sampler = lib.samplers.MPerClassSampler(labels, 4, 128, 20 * 128)
        calculator = lib.accuracy_calculator.AccuracyCalculator(
            include=("precision_at_1", "mean_average_precision_at_r"), k="max_bin_count"
        )
        for images, known in torch.utils.data.DataLoader(dataset, batch_size=128, sampler=sampler):
            optimizer.zero_grad()
            embeddings = model(images)
            loss_func(embeddings, known, mining_func(embeddings, known)).backward()
            optimizer.step()
        with torch.no_grad():
            calculator.get_accuracy(model(data), labels)

    return call


def run_case(case: dict[str, Any]) -> dict[str, float]:
    """Both libraries in turns: milliseconds and the ratio."""
    import torch

    limit_memory()
    torch.set_num_threads(case["threads"])
    build = script if case["name"] == "script" else lambda lib, size: step(lib, case["name"], size)
    ours, theirs = (build(library(name), case["size"]) for name in ("ours", "pml"))
    ours()
    return measure(theirs, ours, 5, case["threads"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    args = parser.parse_args()
    cases = [(name, size) for name in STEPS for size in args.sizes] + [("script", 2048)]
    rows = []
    for name, size in cases:
        if args.only and name not in args.only:
            continue
        found = in_process(run_case, {"name": name, "size": size}, args.threads)
        keys = (("bare_ms", "{:,.1f}"), ("ms", "{:,.1f}"), ("ratio", "{:.1f}"))
        rows.append([name, f"{size:,}", *(cell(found, key, style) for key, style in keys)])
    print_table(["what", "rows", "bridge ms", "PML ms", "PML / bridge"], rows)


if __name__ == "__main__":
    main()
