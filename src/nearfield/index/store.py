"""The items of an index in an SQLite file: what they are, their vectors and thumbnails, and facts about the index.

A change of the index is one transaction, so that readers, and a crash, see all of it or nothing. Images are embedded
before, as pending items, which no reader sees and a second attempt finds again by the hash of their content.

Axes: N items, D dims.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nearfield.errors import InputError, RunError
from nearfield.index.answers import Item

FORMAT = 1
FILE = "items.sqlite"
PENDING, LIVE, GONE = 0, 1, 2  # embedded but not shown yet; shown; not shown, but perhaps still in the engine
CHUNK = 500  # ids in one statement
SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS items (
    id INTEGER PRIMARY KEY AUTOINCREMENT, root TEXT, path TEXT NOT NULL, label TEXT,
    digest BLOB NOT NULL, hash BLOB NOT NULL, state INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS images (id INTEGER PRIMARY KEY, vector BLOB NOT NULL, thumbnail BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS items_digest ON items (digest);
CREATE INDEX IF NOT EXISTS items_state ON items (state);
"""


class Embedded(NamedTuple):
    """An image as it enters the store."""

    root: str | None
    path: str
    label: str | None
    digest: bytes
    hash: bytes  # difference hash, packed bits
    vector: npt.NDArray[np.float32]  # (D,)
    thumbnail: bytes


class Row(NamedTuple):
    """An item without its image."""

    id: int
    root: str | None
    path: str
    label: str | None
    digest: bytes
    hash: bytes


class Store:
    """The SQLite file of the index folder `home`."""

    def __init__(self, home: Path, create: bool = False) -> None:
        self.file = home / FILE
        if not create and not self.file.is_file():
            raise InputError(f"{home} must be an index; found no {FILE} in it. Make one: nearfield index MODEL PHOTOS.")
        try:
            home.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self.file, timeout=60, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(home, create)
            except BaseException:
                self.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise RunError(f"cannot open {self.file}: {error}. Restore the index, or make it again.") from error

    def _prepare(self, home: Path, create: bool) -> None:
        """Make the tables of a new file; InputError if the file is not a finished index of this format."""
        if create:
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = FULL")
            self._base.executescript(SCHEMA)
        found = self.fact("format")
        if found is None and not create:
            raise InputError(f"{home} is an index that was never finished. Run the command that makes it again.")
        if found not in (None, FORMAT):
            raise InputError(f"{home} must have format {FORMAT}; got {found!r}. Index again, or update nearfield.")

    def close(self) -> None:
        """Release the file."""
        self._base.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes inside the block, or none."""
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside the block see the same moment."""
        self._base.execute("BEGIN")
        try:
            yield
        finally:
            self._base.execute("COMMIT")

    def fact(self, name: str) -> Any:
        """A stored fact; None if there is none."""
        found = self._base.execute("SELECT value FROM facts WHERE name = ?", [name]).fetchone()
        return None if found is None else json.loads(found[0])

    def set_fact(self, name: str, value: Any) -> None:
        """Store a fact, as JSON."""
        text = json.dumps(value, ensure_ascii=False)
        self._base.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", [name, text])

    def rows(self, state: int = LIVE) -> list[Row]:
        """All items in a state, by id."""
        text = "SELECT id, root, path, label, digest, hash FROM items WHERE state = ? ORDER BY id"
        return [Row(*row) for row in self._base.execute(text, [state])]

    def labels(self) -> tuple[npt.NDArray[np.int64], list[str | None]]:
        """Ids (N,) and labels of the live items."""
        found = self._base.execute("SELECT id, label FROM items WHERE state = ? ORDER BY id", [LIVE]).fetchall()
        return np.array([item for item, _ in found], np.int64), [label for _, label in found]

    def items(self, ids: Iterable[int]) -> dict[int, Item]:
        """The items with these ids, as far as there are any that were shown once."""
        found = {}
        for row in self._select("SELECT id, root, path, label, digest FROM items WHERE state > 0 AND id IN", ids):
            found[row[0]] = Item(row[0], row[3], row[2], row[1], row[4].hex())
        return found

    def thumbnail(self, item: int) -> bytes | None:
        """The thumbnail of an item, a WebP file."""
        found = self._base.execute("SELECT thumbnail FROM images WHERE id = ?", [item]).fetchone()
        return None if found is None else bytes(found[0])

    def vectors(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The vectors (N, D) of items, in the order of `ids`; InputError names an id that is unknown."""
        known = {row[0]: row[1] for row in self._select("SELECT id, vector FROM images WHERE id IN", ids)}
        missing = next((item for item in ids if item not in known), None)
        if missing is not None:
            raise InputError(f"id must be one of the index; got {missing}.")
        return np.stack([np.frombuffer(known[item], "<f4") for item in ids]) if len(ids) else np.zeros((0, 0), "f4")

    def insert(self, images: Iterable[Embedded]) -> None:
        """Store embedded images as pending items."""
        for each in images:
            values = [each.root, each.path, each.label, each.digest, each.hash, PENDING]
            text = "INSERT INTO items (root, path, label, digest, hash, state) VALUES (?, ?, ?, ?, ?, ?)"
            item = self._base.execute(text, values).lastrowid
            vector = np.ascontiguousarray(each.vector, "<f4").tobytes()
            self._base.execute("INSERT INTO images VALUES (?, ?, ?)", [item, vector, each.thumbnail])

    def image(self, item: int) -> tuple[npt.NDArray[np.float32], bytes]:
        """Vector (D,) and thumbnail of an item."""
        found = self._base.execute("SELECT vector, thumbnail FROM images WHERE id = ?", [item]).fetchone()
        return np.frombuffer(found[0], "<f4"), bytes(found[1])

    def set_state(self, ids: Iterable[int], state: int) -> None:
        """Show items, or mark them as gone."""
        self._base.executemany("UPDATE items SET state = ? WHERE id = ?", ((state, item) for item in ids))

    def relabel(self, labels: Iterable[tuple[str | None, int]]) -> None:
        """Give items (label, id) other labels."""
        self._base.executemany("UPDATE items SET label = ? WHERE id = ?", labels)

    def erase(self, ids: Iterable[int]) -> None:
        """Delete items for good."""
        ids = list(ids)
        for table in ("items", "images"):
            self._base.executemany(f"DELETE FROM {table} WHERE id = ?", ((item,) for item in ids))

    def check(self) -> str:
        """What SQLite says about the file: "ok", or what is wrong with it."""
        return str(self._base.execute("PRAGMA quick_check").fetchone()[0])

    def _select(self, text: str, ids: Iterable[int]) -> Iterator[Any]:
        wanted = [int(item) for item in ids]
        for start in range(0, len(wanted), CHUNK):
            chunk = wanted[start : start + CHUNK]
            yield from self._base.execute(f"{text} ({', '.join('?' * len(chunk))})", chunk)


@contextmanager
def writing(home: Path) -> Iterator[Store]:
    """The store, open for changes; RunError if another process changes it. A process that dies lets go of it."""
    home.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(home / "lock.sqlite", timeout=0, isolation_level=None)) as lock:
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            raise RunError(f"{home} is being changed by another process. Wait until it has finished.") from error
        with closing(Store(home, create=True)) as store:
            yield store
