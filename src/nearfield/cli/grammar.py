"""What the grammars of the commands share: the parser, how a command is added, options that several of them take."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from nearfield.errors import InputError, nearest

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


class Parser(argparse.ArgumentParser):
    """Refuses what it does not know with an InputError that names the nearest valid word.

    Options cannot be abbreviated: `--seed` is not `--seeds`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": Help, **options})
        self.allow_abbrev = False

    def error(self, message: str) -> NoReturn:
        """Bad usage, said as all bad input is."""
        message = re.sub(r"^argument (\S+): ", r"\1 ", message).rstrip(".")
        raise InputError(f"{message}{'' if message.endswith('?') else '.'} See `{self.prog} --help`.")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse, refusing unknown options first: a misspelt one may be why a required one is missing."""
        self._check_options(words)
        return self.parse_args(words)

    def _check_options(self, words: Sequence[str]) -> None:
        """Check the options up to the name of a command, which checks those that follow, or up to `--`."""
        options = [text for action in self._actions for text in action.option_strings]
        children = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        for place, word in enumerate(words):
            name = word.partition("=")[0]
            is_option = name.startswith("-") and not name[1:2].isdigit() and name != "-" and " " not in name
            if word == "--":
                return
            if is_option and name not in options and (name.startswith("--") or name[:2] not in options):
                self.error(f"unknown option {name}; {nearest(name, options)}")
            if not is_option and children:
                child = children[0].choices.get(word)
                if isinstance(child, Parser):
                    child._check_options(words[place + 1 :])
                return

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or action.metavar or action.dest
            self.error(f"unknown {name} {value!r}; {nearest(str(value), map(str, action.choices))}")


def whole(minimum: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number from `minimum`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number; got {text!r}") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}; got {value}")
        return value

    return read


def add_command(
    commands: Commands, name: str, run: Run | None, summary: str, *, details: str = "", examples: str
) -> argparse.ArgumentParser:
    """A command that calls `run`, or one with commands of its own.

    `summary` is its line in the list of commands; `--help` adds the details, then the options, then the examples.
    """
    description = f"{summary[0].upper()}{summary[1:]}.\n\n{details.strip()}".rstrip()
    lines = examples.strip().splitlines()
    epilog = "\n".join([f"example{'s' * (len(lines) > 1)}:", *(f"  {line.strip()}" for line in lines)])
    parser = commands.add_parser(name, help=summary, description=description, epilog=epilog)
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


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Where the tasks of a bench run."""
    help = "worker processes with one thread each (default: the number of cores)"
    parser.add_argument("--jobs", type=whole(1), metavar="N", help=help)
    help = "run on this Dask cluster instead: tcp://host:8786 or a scheduler file (see docs/scale.md)"
    parser.add_argument("--cluster", metavar="ADDRESS", help=help)
