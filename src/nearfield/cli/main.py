"""The command line: `nearfield COMMAND`.

Every command is a module of this package that holds its grammar (`add_parser`) and its function. Heavy imports (torch,
numpy, pydantic, rich) are inside functions, so that `nearfield --help` answers at once.

Exit codes: 0 success, 1 failure, 2 bad input or configuration, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence

from nearfield._version import __version__
from nearfield.cli import (
    ablate,
    bench,
    data,
    embed,
    evaluate,
    export,
    fit,
    gradients,
    index,
    lint,
    methods,
    recipes,
    report,
    reproduce,
    results,
    serve,
    show,
    suite,
    train,
    weights,
)
from nearfield.cli.grammar import Parser
from nearfield.errors import NearfieldError
from nearfield.progress import shown_by

# in the order of the help
COMMANDS = (
    fit, bench, suite, ablate, reproduce, train, embed, export, index, serve, evaluate, methods, recipes, weights,
    gradients, data, report, results, lint,
)  # fmt: skip
DESCRIPTION = (
    "Deep metric learning on a level field: train embedding models, compare methods fairly, see why one works."
)
EPILOG = """examples:
  nearfield bench                        compare three methods on the built-in glyphs, with a report
  nearfield bench --dry-run              what that would run, and how long it would take
  nearfield fit photos/ --out model      a model for your own photographs, and what to expect of it
  nearfield train --set method.name=fastap --out runs/fastap
  nearfield export runs/fastap -o model  the trained model as a folder that stands alone
  nearfield embed model photos/ -o photos.npz
  nearfield index model photos/ --out shop.index
  nearfield serve shop.index             a search page and an API on this machine
  nearfield eval photos.npz --ks 1 10 100
  nearfield methods multi_similarity     equation, defaults and source of a method

`nearfield COMMAND --help` explains a command.
Exit codes: 0 success, 1 failure, 2 bad input, 130 interrupted (run the same command again to resume)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    os.environ.setdefault("GOMP_SPINCOUNT", "0")  # threads that spin while they wait slow each other down
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # no file name may end a command when it is printed
    signal.signal(signal.SIGTERM, _interrupt)
    arguments = argparse.Namespace()
    try:
        arguments = build_parser().parse(sys.argv[1:] if argv is None else argv)
        with shown_by(show.passing_bar):
            return int(arguments.run(arguments) or 0)
    except NearfieldError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("Interrupted. Run the same command again to resume.", 130)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return _fail(f"a path is too long for this file system: {str(error.filename)[:60]}... Shorten it.", 2)
        from nearfield.cli.crash import describe

        return _fail(describe(error, getattr(arguments, "out", None)), 1)


def _fail(message: str, exit_code: int) -> int:
    print(f"nearfield: {message}", file=sys.stderr)
    return exit_code


def _interrupt(number: int, frame: object) -> None:
    """Treat SIGTERM like Ctrl-C: what is running saves first."""
    raise KeyboardInterrupt


def build_parser() -> Parser:
    """The grammar of all commands; imports nothing heavy."""
    parser = Parser("nearfield", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"nearfield {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser
