"""`make speed`: every table of docs/speed.md, one after the other, on one commit; run it again to resume.

    python -m benchmarks.speed [--out DIR] [--only NAME ...] [--threads N] [--write PAGE]

A table goes to a file of its own in --out once it is whole, below the command, the commit and the load of the machine
before it began and when it ended: with one thread on an otherwise idle machine these are about 0 and 1. One that is
there for the same commit is not measured again. --write measures nothing and puts the tables into a page, each between
`<!-- speed: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from nearfield.files import write_text

TABLES = {
    "losses": ["benchmarks.speed_losses"],
    "small": ["benchmarks.speed_small"],
    "proxies": ["benchmarks.speed_proxies"],
    "eval": ["benchmarks.speed_eval"],
    "data": ["benchmarks.speed_data"],
    "heads": ["benchmarks.speed_training", "--tables", "heads"],
    "seed_tasks": ["benchmarks.speed_training", "--tables", "seed_tasks"],
    "chunks": ["benchmarks.speed_training", "--tables", "chunks"],
    "several_heads": ["benchmarks.speed_training", "--tables", "several_heads"],
    "frozen": ["benchmarks.speed_frozen", "--sides", "128", "--stages", "0", "4", "5", "6"],
    "networks": ["benchmarks.speed_networks"],
    "bridge": ["benchmarks.speed_bridge"],
    "index": ["benchmarks.speed_index", "--only", "exact", "ivf", "pq"],
    "graph": ["benchmarks.speed_index", "--count", "100000", "--only", "hnsw", "ivf"],
}
PLACE = re.compile(r"(<!-- speed: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/speed"), help="folder of the tables")
    names = ", ".join(TABLES)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=TABLES, default=list(TABLES), help=names)
    parser.add_argument("--threads", type=int, default=1, help="threads of each process (default: 1)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables that are there into this page")
    arguments = parser.parse_args()
    if arguments.write:
        tables = {path.stem: path.read_text() for path in arguments.out.glob("*.md")}
        write_text(arguments.write, with_tables(arguments.write.read_text(), tables))
        return
    for name in arguments.only:
        found = arguments.out / f"{name}.md"
        if found.exists() and f"# commit {commit()}," in found.read_text():
            print(f"{name} is there", flush=True)
            continue
        print(f"\n## {name}\n", flush=True)
        arguments.out.mkdir(parents=True, exist_ok=True)
        write_text(found, measured([*TABLES[name], "--threads", str(arguments.threads)]))


def measured(arguments: list[str]) -> str:
    """What a benchmark prints as tables, below its command; everything else that it prints is only shown."""
    before = os.getloadavg()[0]
    lines = []
    with subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise SystemExit(process.returncode)
    table = "".join(line for line in lines if line.startswith("|"))
    load = f"load {before:.1f} before, {os.getloadavg()[0]:.1f} at the end"
    return f"```sh\npython -m {' '.join(arguments)}    # commit {commit()}, {load}\n```\n\n{table}"


def commit() -> str:
    """The commit of the working tree, marked if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=7", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """The page with what stands between the marks of each of these tables replaced."""

    def replaced(found: re.Match[str]) -> str:
        start, name, end = found.groups()
        return f"{start}\n{tables[name].rstrip()}\n\n{end}" if name in tables else found[0]

    return PLACE.sub(replaced, page)


if __name__ == "__main__":
    main()
