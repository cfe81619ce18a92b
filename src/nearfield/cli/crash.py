"""Errors that nobody foresaw: one line for the terminal, and the traceback in a log file."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from pathlib import Path

from nearfield._version import __version__

LONGEST = 300  # characters of the message


def describe(error: Exception, out: Path | None) -> str:
    """One line that names the error and the log file, which is in `out` if that is a folder, else a temporary file."""
    message = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")
    message = f"unexpected error, {message if len(message) <= LONGEST else message[:LONGEST] + ' ...'}."
    facts = f"nearfield {__version__}, Python {platform.python_version()}, {platform.platform()}"
    log = f"{facts}\n{' '.join(sys.argv)}\n\n{''.join(traceback.format_exception(error))}"
    for folder in ([out] if out is not None and out.is_dir() else []) + [Path(tempfile.gettempdir())]:
        try:
            handle, name = tempfile.mkstemp(".log", "nearfield-error-", folder)
            with open(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(log)
            return f"{message} The traceback is in {name}."
        except OSError:  # read-only, or the disk is full
            continue
    return f"{message} The traceback could not be written to a log file."
