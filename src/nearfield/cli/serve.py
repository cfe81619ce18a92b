"""`nearfield serve`: search an index in a browser and over HTTP."""

from __future__ import annotations

import argparse
import logging
import os
from contextlib import suppress
from pathlib import Path

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, whole

DETAILS = """
Opens a page where an image is searched by upload, drag, paste, camera or an item of the index, and an API:
  curl -F image=@query.jpg 'http://127.0.0.1:8000/search?k=5'

Only this machine can reach 127.0.0.1. Another address needs a token, which every request must then carry; images are
added and removed with a token only. NEARFIELD_TOKEN in the environment is safer than --token, which others may see.

Needs the extra: pip install "nearfield[serve]".
"""
EXAMPLES = """
nearfield serve shop.index
nearfield serve shop.index --port 8080 --threads 2
NEARFIELD_TOKEN=$(openssl rand -hex 16) nearfield serve shop.index --host 0.0.0.0
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "a search page and an API for an index, on this machine"
    parser = add_command(commands, "serve", serve, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("index", type=Path, metavar="INDEX", help="the folder that `nearfield index` wrote")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=whole(0), default=8000, help="port; 0 takes any that is free (default: 8000)")
    parser.add_argument("--token", help="at least 16 characters (default: NEARFIELD_TOKEN, if it is set)")
    parser.add_argument("--threads", type=whole(0), default=0, metavar="N", help="of the network; 0: one per core")
    parser.add_argument("--batch", type=whole(1), default=16, metavar="N", help="images embedded at once (default: 16)")
    queue = "requests at work or waiting; more are told to come back (default: 64)"
    parser.add_argument("--queue", type=whole(1), default=64, metavar="N", help=queue)
    size = "megabytes of a request (default: 16)"
    parser.add_argument("--max-upload", type=whole(1), default=16, metavar="MB", help=size)
    pixels = "megapixels of an image (default: 50)"
    parser.add_argument("--max-pixels", type=whole(1), default=50, metavar="MP", help=pixels)
    cors = "a site whose pages may use the API, such as https://shop.example; may be repeated"
    parser.add_argument("--cors", action="append", default=[], metavar="ORIGIN", help=cors)
    parser.add_argument("--quiet", action="store_true", help="log warnings only, not every request")


def serve(arguments: argparse.Namespace) -> int:
    """Serve an index; see `nearfield.serve`."""
    from nearfield.serve import Settings
    from nearfield.serve.run import serve

    settings = Settings(
        host=arguments.host,
        port=arguments.port,
        token=arguments.token or os.environ.get("NEARFIELD_TOKEN") or None,
        threads=arguments.threads,
        batch=arguments.batch,
        queue=arguments.queue,
        max_bytes=arguments.max_upload * 2**20,
        max_pixels=arguments.max_pixels * 1_000_000,
        cors=tuple(arguments.cors),
    )
    level = logging.WARNING if arguments.quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(message)s")
    with suppress(KeyboardInterrupt):  # which the server may have answered itself by ending
        serve(arguments.index, settings, lambda address: show.say(f"Serving {arguments.index} at {address}"))
    show.note("Stopped.")
    return 0
