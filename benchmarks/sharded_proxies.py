"""Memory and time of a training step with very many classes, their proxies split over processes.

torchrun --standalone --nproc-per-node 4 -m benchmarks.sharded_proxies [--classes C] [--dim D] [--batch N] [--sample S]
python -m benchmarks.sharded_proxies     # the same, in one process
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.measure import _status, print_table
from nearfield import losses
from nearfield.training.distributed import Place, of_all_ranks, process_group, share_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--sample", type=int, help="compare with so many classes in a step")
    parser.add_argument("--method", default="cosface")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with process_group() as here:
        row = _measure(here, arguments)
        rows = [row] if here.world_size == 1 else [[""] * len(row)] * here.world_size
        if here.world_size > 1:
            dist.all_gather_object(rows, row)
        if here.rank == 0:
            shape = f"{arguments.classes:,} classes, D = {arguments.dim}, a batch of {arguments.batch} over all ranks"
            print(f"\n{arguments.method}, {shape}, Adam, float32, one thread a rank\n")
            print_table(
                ["rank", "classes", "proxies MB", "peak MB above start", "CPU s a step", "s a step", "loss"], rows
            )


def _measure(here: Place, arguments: argparse.Namespace) -> list[str]:
    """Build the loss, take some steps, and say what this rank needed."""
    generator, mine = torch.Generator().manual_seed(0), share_of(arguments.batch, here)
    x = torch.randn(arguments.batch, arguments.dim, generator=generator)[mine].requires_grad_()
    labels = torch.randint(arguments.classes, (arguments.batch,), generator=generator)[mine]
    size = {"dim": arguments.dim, "sample": arguments.sample, "shard": True}
    small = losses.create(arguments.method, num_classes=16, **{**size, "sample": None})
    _step(small, x, labels % 16, torch.optim.Adam(small.parameters(), fused=True))  # loads every library
    before = _status("VmRSS")
    torch.manual_seed(0)
    loss = losses.create(arguments.method, num_classes=arguments.classes, **size)
    proxies = next(loss.parameters())
    optimizer = torch.optim.Adam([proxies], lr=1e-3, fused=True)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(arguments.steps):
        value = _step(loss, x, labels, optimizer)
    spent = [
        (now - begun) / arguments.steps for now, begun in ((time.process_time(), cpu), (time.perf_counter(), wall))
    ]
    return [
        str(here.rank),
        f"{len(proxies):,}",
        f"{proxies.numel() * 4 / 1e6:,.0f}",
        f"{(_status('VmHWM') - before) / 1000:,.0f}",
        *(f"{seconds:.1f}" for seconds in spent),
        f"{value.item():.6f}",
    ]


def _step(loss: nn.Module, x: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    value = of_all_ranks(loss)(x, labels)
    value.backward()
    optimizer.step()
    return value.detach()


if __name__ == "__main__":
    main()
