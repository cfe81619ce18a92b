"""Every command of the command line, for tests over all of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from nearfield.cli.main import build_parser

Words = tuple[str, ...]


def _commands(parser: argparse.ArgumentParser, words: Words = ()) -> Iterator[tuple[Words, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield (*words, name), child
                yield from _commands(child, (*words, name))


COMMANDS = dict(_commands(build_parser()))  # the words of a command -> its parser
OPTIONS = [(words, action) for words, parser in COMMANDS.items() for action in parser._actions]
