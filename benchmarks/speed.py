"""`make speed`: every speed table, one after the other."""

from __future__ import annotations

import subprocess
import sys

TABLES = {
    "Pair losses": "benchmarks.speed_losses",
    "Small batches": "benchmarks.speed_small",
    "Proxy losses": "benchmarks.speed_proxies",
    "Evaluator": "benchmarks.speed_eval",
    "Data": "benchmarks.speed_data",
    "Training": "benchmarks.speed_training",
    "Bridge": "benchmarks.speed_bridge",
}


def main() -> None:
    for title, module in TABLES.items():
        print(f"\n## {title}\n", flush=True)
        subprocess.run([sys.executable, "-m", module, *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
