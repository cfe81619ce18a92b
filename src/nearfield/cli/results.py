"""`nearfield results`: two methods compared; raw results of a bench or suite as one file, and back."""

from __future__ import annotations

import argparse
from pathlib import Path

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json

DETAILS = """
Is method A better than B, and how far does that carry? `compare` says it of any two methods of a bench or a suite.

Results that travel: one zip file holds every configuration, trial, seed and what analysis reads of single queries, so
that others can report, compare and resume without training again. Networks, embeddings and images are not in it.
"""
EXAMPLES = """
nearfield results compare runs/features fastap triplet
nearfield results pack runs/features -o features.zip
nearfield results unpack features.zip --out runs/theirs
"""
COMPARE = """
Prints both scores and their difference on every dataset, with 95 % intervals for new test classes and for new seeds;
of three datasets or more also the probability that A is better on a new dataset. Choose the pair before you see its
scores: the tables of `report` and `suite` correct for all pairs of methods, this command does not.
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "compare two methods of a bench or suite; publish its raw results as one file, and read it back"
    parser = add_command(commands, "results", None, summary, details=DETAILS, examples=EXAMPLES)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    examples = EXAMPLES.strip().splitlines()
    summary = "is one method better than another, and how far does that carry?"
    one = add_command(actions, "compare", compare, summary, details=COMPARE, examples=examples[0])
    one.add_argument("folder", type=Path, metavar="DIR", help="folder of a bench or a suite, its --out")
    one.add_argument("first", metavar="A", help='a method, as its leaderboard names it: margin, "drml(base=margin)"')
    one.add_argument("second", metavar="B", help="another one")
    help = "what is compared: a metric that the bench measured for every query (default: map@r)"
    one.add_argument("--metric", default="map@r", metavar="NAME", help=help)
    add_json(one)
    summary = "write the results so far of a bench or suite to one file"
    one = add_command(actions, "pack", pack, summary, examples=examples[1])
    one.add_argument("folder", type=Path, metavar="DIR", help="folder of a bench or a suite, its --out")
    one.add_argument("-o", "--out", type=Path, required=True, metavar="ZIP", help="file to write")
    add_json(one)
    summary = "put such a file into a new folder, where `bench --out`, `suite --out` and `report` find it"
    one = add_command(actions, "unpack", unpack, summary, examples=examples[2])
    one.add_argument("file", type=Path, metavar="ZIP", help="file that `nearfield results pack` wrote")
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="new or empty folder to write")
    add_json(one)


def compare(arguments: argparse.Namespace) -> None:
    """Two methods at every level; see `nearfield.analysis.two_methods`."""
    from nearfield.analysis.suite import collect
    from nearfield.analysis.two_methods import facts, lines, table, two_methods
    from nearfield.bench.read_results import open_suite

    with show.status("Comparing"):
        suite = collect(open_suite(arguments.folder), arguments.metric)
        found = two_methods(suite, arguments.first, arguments.second)
    if arguments.json:
        show.say_json(facts(found))
        return
    rows = table(found)
    show.say(show.table(rows.head, rows.rows, right=tuple(range(rows.left, len(rows.head)))), rows.note, *lines(found))


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
