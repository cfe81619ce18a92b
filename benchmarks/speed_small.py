"""Small batches: operations of torch in a step of a loss, and its time beside pytorch-metric-learning's.

    python -m benchmarks.speed_small [--sizes 32 64 128 256] [--only NAME ...]

A step is the value and the gradient, D = 128, four rows a class in random order, other labels in every step. N-pairs
has two rows a class and no penalty, since pytorch-metric-learning uses one pair of a class and has none. Operations are
those that reach torch's dispatcher, views included. Both libraries take turns of some steps in one process with one
thread; time is that of the processor and the fastest turn counts, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import print_table
from benchmarks.speed_losses import DIM, PER_CLASS, VARIANTS
from benchmarks.speed_losses import peer as pair_peer
from benchmarks.speed_proxies import peer as proxy_peer

SIZES = (32, 64, 128, 256)
NAMES = (
    "contrastive (hinge)", "triplet", "multi_similarity", "nt_xent", "supcon", "proxy_anchor", "proxy_softmax",
    "npairs", "nca", "fastap", "margin", "circle",
)  # fmt: skip
ALIKE: dict[str, tuple[str, dict[str, Any]]] = {**VARIANTS, "npairs": ("npairs", {"l2": 0.0})}
ROWS = {"npairs": 2}  # of a class
CLASSES = 128  # of losses with proxies
TURNS, SECONDS = 15, 0.05  # how many turns, and how long one takes
Step = Callable[[Tensor, Tensor], Tensor]


class Counted(TorchDispatchMode):
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def ours(name: str) -> Step:
    """Our loss."""
    from nearfield import losses

    known, params = ALIKE.get(name, (name, {}))
    needed: dict[str, Any] = {"num_classes": CLASSES, "dim": DIM}
    loss: Step = losses.create(known, **params, **{key: needed[key] for key in losses.method(known).needs})
    return loss


def theirs(name: str) -> Step | None:
    """That of pytorch-metric-learning; None where it has none."""
    found: Step | None = pair_peer(name) or proxy_peer(name, CLASSES)
    return found


def measure(steps: list[Step], size: int, rows: int) -> list[float]:
    """Milliseconds of a step of each, which take turns."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(size, DIM, generator=draw).requires_grad_()
    labels = [_labels(size, rows, draw) for _ in range(16)]

    def turn(step: Step, count: int) -> float:
        begun = time.process_time()
        for number in range(count):
            torch.autograd.grad(step(x, labels[number % len(labels)]), x)
        return (time.process_time() - begun) / count

    first = [min(turn(step, 1) for _ in range(3)) for step in steps]
    counts = [max(1, round(SECONDS / seconds)) for seconds in first]
    turns = TURNS if max(first) < 10 * SECONDS else 1  # a loss that takes seconds needs no precision
    taken = [[turn(step, count) for step, count in zip(steps, counts, strict=True)] for _ in range(turns)]
    return [1e3 * min(times) for times in zip(*taken, strict=True)]


def operations(step: Step, size: int, rows: int) -> int:
    """How many operations a step takes once it is warm."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(size, DIM, generator=draw).requires_grad_()
    torch.autograd.grad(step(x, _labels(size, rows, draw)), x)
    counted = Counted()
    with counted:
        torch.autograd.grad(step(x, _labels(size, rows, draw)), x)
    return counted.count


def _labels(size: int, rows: int, draw: torch.Generator) -> Tensor:
    classes = torch.randperm(CLASSES, generator=draw)[: size // rows]
    return classes.repeat_interleave(rows)[torch.randperm(size, generator=draw)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(NAMES))
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)  # of `make speed`; one is used
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in arguments.only:
        for size in arguments.sizes:
            both = [step for step in (ours(name), theirs(name)) if step is not None]
            of = size, ROWS.get(name, PER_CLASS)
            times, counts = measure(both, *of), [operations(step, *of) for step in both]
            more = [str(counts[1]), f"{times[1]:.2f}", f"{times[1] / times[0]:.1f}"] if len(both) > 1 else ["", "", ""]
            rows.append([name, str(size), str(counts[0]), f"{times[0]:.2f}", *more])
            print(f"  {' '.join(rows[-1])}", flush=True)
    print()
    print_table(["loss", "N", "operations", "ms", "PML operations", "PML ms", "PML / ours"], rows)


if __name__ == "__main__":
    main()
