"""What the grammars of the commands share: how a command is added, and the options that several of them take."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run = Callable[[argparse.Namespace], int | None]  # the exit code; None is 0


class Help(argparse.HelpFormatter):
    """Wraps the paragraphs of a description, and keeps the lines of what is indented: lists and examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            if lines and lines[-1] and line and not line.startswith(" ") and not lines[-1].startswith(" "):
                lines[-1] += f" {line}"
            else:
                lines.append(line)
        return "\n".join(line if line.startswith(" ") else textwrap.fill(line, width) for line in lines)


def add_command(
    commands: Commands, name: str, run: Run | None, summary: str, *, details: str = "", examples: str
) -> argparse.ArgumentParser:
    """A command that calls `run`, or one with commands of its own.

    `summary` is its line in the list of commands; `--help` adds the details, then the options, then the examples.
    """
    description = f"{summary[0].upper()}{summary[1:]}.\n\n{details.strip()}".rstrip()
    lines = examples.strip().splitlines()
    epilog = "\n".join([f"example{'s' * (len(lines) > 1)}:", *(f"  {line.strip()}" for line in lines)])
    parser = commands.add_parser(name, help=summary, description=description, epilog=epilog, formatter_class=Help)
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def add_out(parser: argparse.ArgumentParser, default: str) -> None:
    """The folder that a command writes."""
    parser.add_argument(
        "--out", type=Path, default=Path(default), metavar="DIR", help=f"folder to write (default: {default})"
    )


def add_set(parser: argparse.ArgumentParser, example: str, what: str = "key of the configuration") -> None:
    """Overrides of the configuration, or of a loss's parameters."""
    help = f"set a {what}, for example --set {example}; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=help)


def add_json(parser: argparse.ArgumentParser, what: str = "the result") -> None:
    """Output for programs."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def add_storage(parser: argparse.ArgumentParser) -> None:
    """The database of a bench."""
    help = "database: a file, or a URL such as postgresql+psycopg://user@host/name (default: results.sqlite in --out)"
    parser.add_argument("--storage", metavar="URL", help=help + "; or set NEARFIELD_STORAGE")
    help = "seconds after which a silent worker is thought dead and its task taken over (default: 60)"
    parser.add_argument("--patience", type=float, metavar="S", help=help)
