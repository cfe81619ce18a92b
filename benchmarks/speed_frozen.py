"""What a training step of EfficientNet-Lite0 costs when its first stages are frozen and their activations stored.

    python -m benchmarks.speed_frozen

CPU milliseconds for an image: the later stages forward, and forward and backward; the fastest of a few repetitions.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from benchmarks.measure import print_table
from nearfield.config import ModelConfig
from nearfield.models import build_model

IMAGES = 64
REPEATS = 3


def cost(work: Callable[[], object]) -> float:
    """CPU milliseconds of `work` for one of its images."""
    work()
    spent = []
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return 1000 * min(spent) / IMAGES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", type=int, nargs="+", default=[128, 112, 96], help="pixels (default: 128 112 96)")
    parser.add_argument("--stages", type=int, nargs="+", default=[4, 5, 6], help="frozen stages (default: 4 5 6)")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)  # of `make speed`; one is used
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for side in given.sides:
        images = torch.randint(0, 256, (IMAGES, side, side, 3), dtype=torch.uint8)
        for stages in given.stages:
            config = ModelConfig(backbone="timm:tf_efficientnet_lite0", freeze_bn=True, dim=128, frozen_stages=stages)
            model = build_model(config, seed=0)
            batch = model.activations(images) if stages else images
            model.takes_activations = stages > 0
            trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
            with torch.no_grad():
                forward = cost(lambda model=model, batch=batch: model(batch))  # type: ignore[misc]
            both = cost(lambda model=model, batch=batch: model(batch).square().mean().backward())  # type: ignore[misc]
            rows.append([str(side), str(stages or "none"), f"{trained:,}", f"{forward:.2f}", f"{both:.2f}"])
            print(f"  {' '.join(rows[-1])}", flush=True)
    print()
    print_table(["pixels", "frozen stages of 7", "numbers that train", "forward", "forward and backward"], rows)


if __name__ == "__main__":
    main()
