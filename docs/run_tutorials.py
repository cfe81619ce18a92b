"""Execute tutorials: every block of a page in order, in an empty folder; `make tutorials` writes what they print.

    python docs/run_tutorials.py docs/tutorials/evaluate.md           write the outputs into the page
    python docs/run_tutorials.py --check docs/tutorials/evaluate.md   exit 1 if a block fails, or prints other words

A block is a fence of `python`, run in one interpreter for the page, or `sh`, run by bash; with a title, ```python
title="my_loss.py", it is a file to write. What a block prints follows it in a fence ```text title="Output". Numbers may
differ from the page when it is checked, words may not. A comment before a block says more of it:

    <!-- varies -->             its words may differ too: an order, a verdict
    <!-- needs: lightning -->   it is left out where that package is not installed
    <!-- slow -->               at the top of a page: it takes minutes
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FENCE = re.compile(
    r"^(?:<!-- (?P<note>[^>]*?) -->\n)?"
    r'^```(?P<kind>python|sh)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```\n'
    r'(?:\n```text title="Output"\n(?P<output>.*?)^```\n)?',
    re.M | re.S,
)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
SLOW = "<!-- slow -->"
WIDTH = "100"  # columns of a terminal


@dataclass(frozen=True)
class Block:
    """One fence of a page."""

    kind: str
    title: str | None
    code: str
    output: str  # as the page has it
    note: str
    line: int

    @property
    def missing(self) -> str | None:
        """The package that it needs and that is not installed."""
        name = self.note.removeprefix("needs: ") if self.note.startswith("needs: ") else ""
        return name if name and find_spec(name) is None else None


def blocks(text: str) -> Iterator[tuple[re.Match[str], Block]]:
    """The blocks of a page, with where they are."""
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        found = (match["kind"], match["title"], match["code"], match["output"] or "", match["note"] or "")
        yield match, Block(*found, line)


def run_page(page: Path) -> list[tuple[Block, str | None]]:
    """Run the blocks of a page with an empty folder as the current one; what each printed, None if it was left out."""
    text = page.read_text(encoding="utf-8")
    os.environ["COLUMNS"] = WIDTH
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same numbers, and no crawling, on a machine that is busy
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    names: dict[str, Any] = {"__name__": "__tutorial__"}
    found: list[tuple[Block, str | None]] = []
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            for _, block in blocks(text):
                found.append((block, _printed(block, names, page)))
        finally:
            sys.path.remove(folder)
            os.chdir(before)
    return found


def _printed(block: Block, names: dict[str, Any], page: Path) -> str | None:
    if block.missing:
        return None
    if block.title:
        Path(block.title).write_text(block.code, encoding="utf-8")
        return ""
    run = _shell if block.kind == "sh" else _python
    try:
        printed = run(block.code, names)
    except Exception as error:  # whatever a page does
        raise RuntimeError(f"{page.name}, line {block.line}: {error}") from error
    return "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())


def _python(code: str, names: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "<tutorial>", "exec"), names)
    return printed.getvalue()


def _shell(code: str, names: dict[str, Any]) -> str:
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def filled(text: str, printed: list[str | None]) -> str:
    """The page with the outputs of its blocks; None leaves that of a block as it is."""
    parts, end = [], 0
    for (match, block), output in zip(blocks(text), printed, strict=True):
        shown = block.output if output is None else output
        fence_end = match.end("code") + len("```\n")
        parts += [text[end:fence_end], f'\n```text title="Output"\n{shown}```\n' if shown else ""]
        end = match.end()
    return "".join([*parts, text[end:]])


def words(output: str) -> list[str]:
    """What a check compares: words, numbers alike, without the spaces and lines of a table."""
    return re.sub(r"[─━│┃┏┓┡┩└┘├┤┬┴┼╇╈|]+", " ", NUMBER.sub("#", output)).split()


def differences(found: list[tuple[Block, str | None]]) -> list[str]:
    """The blocks that printed other words than the page has."""
    return [
        f"line {block.line}: the page has\n{block.output}\nbut the block printed\n{printed}"
        for block, printed in found
        if printed is not None and block.note != "varies" and words(printed) != words(block.output)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing it")
    arguments = parser.parse_args()
    page = arguments.page.resolve()
    found = run_page(page)
    for block, printed in found:
        if printed is None:
            print(f"{page.name}, line {block.line}: left out, {block.missing} is not installed")
    if arguments.check:
        problems = differences(found)
        sys.exit("\n".join(["`make tutorials` writes what blocks print into the page:", *problems]) if problems else 0)
    text = page.read_text(encoding="utf-8")
    page.write_text(filled(text, [printed for _, printed in found]), encoding="utf-8")
    print(f"{page.name}: {len(found)} blocks")


if __name__ == "__main__":
    main()
