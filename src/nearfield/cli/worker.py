"""`nearfield worker`: do tasks of benches, beside others."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from nearfield.cli.grammar import Commands, add_command, add_out, add_storage, whole
from nearfield.cli.progress import StopFlag
from nearfield.errors import InputError


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "take tasks of a bench from its database and do them, until none is left; start any number, anywhere"
    example = "nearfield worker --storage postgresql+psycopg://me@host/benches"
    parser = add_command(commands, "worker", worker, summary, examples=example)
    add_storage(parser)
    add_out(parser, "runs/bench")
    parser.add_argument("--bench", metavar="DIGEST", help="work on this bench of the database (default: on all)")
    parser.add_argument("--threads", type=whole(1), metavar="N", help="threads of a run (default: as the bench says)")
    parser.add_argument("--once", action="store_true", help="do one task and end")
    parser.add_argument("--tied", action="store_true", help=argparse.SUPPRESS)  # end when the starting process does


def worker(arguments: argparse.Namespace) -> None:
    """Do tasks of benches; see `nearfield.bench.worker`."""
    from nearfield.bench.database import FILE, STORAGE, Store
    from nearfield.bench.worker import PATIENCE, Worker

    storage = arguments.storage or os.environ.get(STORAGE) or str(arguments.out / FILE)
    if "://" not in storage and not Path(storage).is_file():
        raise InputError(f"there is no bench in {storage}; start one with `nearfield bench`, or give its --storage.")
    parent, stopping = os.getppid(), StopFlag().listen()

    def stop() -> bool:
        return stopping() or (arguments.tied and os.getppid() != parent)

    store = Store(storage)
    done = 0
    for digest in [arguments.bench] if arguments.bench else store.benches():
        one = Worker(store, digest, arguments.out, stop, _line, arguments.patience or PATIENCE, arguments.threads)
        done += one.work(arguments.once)
        if stop() or (arguments.once and done):
            break
    store.close()
    _line(f"{done} tasks")
    if stop():
        raise KeyboardInterrupt


def _line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
