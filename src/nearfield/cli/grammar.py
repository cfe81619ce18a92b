"""What the grammars of the commands share: how a command is added, and the options that several of them take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run = Callable[[argparse.Namespace], int | None]  # the exit code; None is 0
RawHelp = argparse.RawDescriptionHelpFormatter  # keeps the lines of examples


def add_command(commands: Commands, name: str, run: Run | None, summary: str, example: str) -> argparse.ArgumentParser:
    """A command that calls `run`, or one with commands of its own; its help ends with an example."""
    parser = commands.add_parser(
        name, help=summary, description=summary, epilog=f"example:\n  {example}", formatter_class=RawHelp
    )
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def add_out(parser: argparse.ArgumentParser, default: str) -> None:
    """The folder that a command writes."""
    parser.add_argument(
        "--out", type=Path, default=Path(default), metavar="DIR", help=f"folder to write (default: {default})"
    )


def add_set(parser: argparse.ArgumentParser, example: str) -> None:
    """Overrides of the configuration."""
    help = f"override a key of the configuration, for example {example}; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=help)


def add_json(parser: argparse.ArgumentParser, help: str = "print as JSON") -> None:
    """Output for programs."""
    parser.add_argument("--json", action="store_true", help=help)


def add_storage(parser: argparse.ArgumentParser) -> None:
    """The database of a bench."""
    help = "database: a file, or a URL such as postgresql+psycopg://user@host/name (default: results.sqlite in --out)"
    parser.add_argument("--storage", metavar="URL", help=help + "; or set NEARFIELD_STORAGE")
    help = "seconds after which a silent worker is thought dead and its task taken over (default: 60)"
    parser.add_argument("--patience", type=float, metavar="S", help=help)
