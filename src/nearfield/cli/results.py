"""`nearfield results`: raw results of a bench or suite as one file, and back."""

from __future__ import annotations

import argparse
from pathlib import Path

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json

DETAILS = """
Results that travel: one zip file holds every configuration, trial, seed and what analysis reads of single queries, so
that others can report, compare and resume without training again. Networks, embeddings and images are not in it.
"""
EXAMPLES = """
nearfield results pack runs/features -o features.zip
nearfield results unpack features.zip --out runs/theirs
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "publish the raw results of a bench or suite as one file, and read it back"
    parser = add_command(commands, "results", None, summary, details=DETAILS, examples=EXAMPLES)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    summary = "write the results so far of a bench or suite to one file"
    one = add_command(actions, "pack", pack, summary, examples=EXAMPLES.strip().splitlines()[0])
    one.add_argument("folder", type=Path, metavar="DIR", help="folder of a bench or a suite, its --out")
    one.add_argument("-o", "--out", type=Path, required=True, metavar="ZIP", help="file to write")
    add_json(one)
    summary = "put such a file into a new folder, where `bench --out`, `suite --out` and `report` find it"
    one = add_command(actions, "unpack", unpack, summary, examples=EXAMPLES.strip().splitlines()[1])
    one.add_argument("file", type=Path, metavar="ZIP", help="file that `nearfield results pack` wrote")
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="new or empty folder to write")
    add_json(one)


def pack(arguments: argparse.Namespace) -> None:
    """Results to a file; see `nearfield.bench.publish`."""
    from nearfield.bench.publish import pack_results

    with show.status("Packing"):
        names = pack_results(arguments.folder, arguments.out)
    _say(arguments, arguments.out, names, f"{arguments.out.stat().st_size / 1e6:.1f} MB")


def unpack(arguments: argparse.Namespace) -> None:
    """Results from a file; see `nearfield.bench.publish`."""
    from nearfield.bench.publish import unpack_results

    with show.status("Checking"):
        names = unpack_results(arguments.file, arguments.out)
    _say(arguments, arguments.out, names, "all checked")


def _say(arguments: argparse.Namespace, written: Path, names: list[str], fact: str) -> None:
    if arguments.json:
        show.say_json({"written": str(written), "results": names})
    else:
        show.say(f"Written: {written}, {show.count(len(names), 'database')}, {fact}")
