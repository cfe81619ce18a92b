"""The results of benches in a SQLite file that one process writes, the driver, and any number may read.

meta          key, value: schema_version
benches       digest, opened (when, in seconds), facts as JSON: configuration, protocol, data, environment, floors (the
              baselines) ...
tasks         one row for each finished task: key, state (done, failed), name, task and outcome as JSON, error, seconds,
              made_by as JSON: version, commit and platform that did it
entries       which task is what in a bench: bench, label, kind (trial, seed, variant), variant, number -> key
query_scores  key, part ("fold 0" ..., "concatenated"; in published results "separated", the mean over folds), metric,
              scores: zlib of float32 little-endian, one for each query in the order of the test images; NaN for a
              query without any match
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.bench.plan import Bench, Outcome, Task
from nearfield.errors import InputError, RunError

SCHEMA_VERSION = 3
FILE = "results.sqlite"
Queries = dict[tuple[str, str], NDArray[np.float32]]  # (part, metric) -> scores of every query
Row = dict[str, Any]

TASKS = """CREATE TABLE IF NOT EXISTS tasks (key TEXT PRIMARY KEY, state TEXT NOT NULL, name TEXT NOT NULL,
    task TEXT NOT NULL, outcome TEXT, error TEXT, seconds REAL, made_by TEXT)"""
TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE IF NOT EXISTS benches (digest TEXT PRIMARY KEY, opened REAL NOT NULL, facts TEXT NOT NULL)",
    TASKS,
    """CREATE TABLE IF NOT EXISTS entries (bench TEXT, label TEXT, kind TEXT, variant TEXT, number INTEGER,
    key TEXT NOT NULL, PRIMARY KEY (bench, label, kind, variant, number))""",
    """CREATE TABLE IF NOT EXISTS query_scores (key TEXT, part TEXT, metric TEXT, scores BLOB NOT NULL,
    PRIMARY KEY (key, part, metric))""",
)
FROM_VERSION_2 = (  # there the table was a queue too: who does what, until when
    "ALTER TABLE tasks RENAME TO tasks_2",
    TASKS,
    """INSERT INTO tasks (key, state, name, task, outcome, error, seconds)
    SELECT key, state, name, task, outcome, error, seconds FROM tasks_2 WHERE state IN ('done', 'failed')""",
    "DROP TABLE tasks_2",
)


class Store:
    """Reads and writes the results of benches; every write is one transaction."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write the results {self.path}: {error.strerror}. Choose another --out.") from error
        self._create()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection for one read or write, so that nothing is held open between them."""
        try:
            with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as db:
                db.row_factory = sqlite3.Row
                yield db
        except sqlite3.Error as error:
            raise RunError(f"cannot use the results in {self.path}: {error}.") from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: an exception, or the end of the process, undoes it."""
        with self._connected() as db:
            db.execute("PRAGMA journal_mode = WAL")  # readers beside the writer
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")

    def _read(self, query: str, *values: Any) -> list[Row]:
        with self._connected() as db:
            return [dict(row) for row in db.execute(query, values)]

    def _create(self) -> None:
        if self._version() == SCHEMA_VERSION:
            return
        with self._writing() as db:
            version = self._version()  # another process may have been quicker
            if version not in (0, 2, SCHEMA_VERSION):
                raise RunError(
                    f"{self.path} has schema version {version}, this Nearfield reads 2 and {SCHEMA_VERSION}; "
                    "use another --out."
                )
            for change in FROM_VERSION_2 if version == 2 else TABLES:
                db.execute(change)
            db.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))

    def _version(self) -> int:
        """Of the schema; 0 if the file is new."""
        if not self.path.exists() or not self._read("SELECT name FROM sqlite_master WHERE name = 'meta'"):
            return 0
        return int(self._read("SELECT value FROM meta WHERE key = 'schema_version'")[0]["value"])

    # Benches

    def open_bench(self, bench: Bench, facts: dict[str, Any]) -> None:
        """Write down a bench, or that it is run again."""
        with self._writing() as db:
            new = "INSERT INTO benches VALUES (?, ?, ?) ON CONFLICT (digest) DO UPDATE SET opened = excluded.opened"
            db.execute(f"{new}, facts = excluded.facts", (bench.digest, time.time(), json.dumps(facts)))

    def benches(self) -> list[str]:
        """The digests of all benches, the one opened last first."""
        return [row["digest"] for row in self._read("SELECT digest FROM benches ORDER BY opened DESC")]

    def facts(self, digest: str) -> dict[str, Any]:
        """What was written down of a bench."""
        found = self._read("SELECT facts FROM benches WHERE digest = ?", digest)
        if not found:
            raise InputError(f"{self.path} holds no bench {digest!r}; it holds: {', '.join(self.benches()) or 'none'}.")
        facts: dict[str, Any] = json.loads(found[0]["facts"])
        return facts

    # Tasks

    def finished(self) -> dict[str, Outcome]:
        """The outcome of every task that is done, of all benches, by key."""
        return {
            row["key"]: json.loads(row["outcome"])
            for row in self._read("SELECT key, outcome FROM tasks WHERE state = 'done'")
        }

    def record(self, task: Task, outcome: Outcome, queries: Queries, seconds: float, made_by: dict[str, Any]) -> None:
        """The task is done."""
        values = (json.dumps(outcome), None, seconds, json.dumps(made_by))
        blobs = [(task.key, part, metric, encoded(scores)) for (part, metric), scores in queries.items()]
        with self._writing() as db:
            self._put(db, task, "done", *values)
            db.executemany("INSERT OR REPLACE INTO query_scores VALUES (?, ?, ?, ?)", blobs)

    def fail(self, task: Task, error: str) -> None:
        """The task failed, and is left out; the next run of a bench that needs it tries again."""
        with self._writing() as db:
            self._put(db, task, "failed", None, error, None, None)

    def _put(self, db: sqlite3.Connection, task: Task, state: str, *values: Any) -> None:
        row = (task.key, state, task.name, json.dumps(task.to_json()), *values)
        db.execute("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    # Results

    def enter(self, bench: str, tasks: Iterable[Task]) -> None:
        """Write down which tasks make up a bench."""
        rows = [(bench, task.label, task.kind, task.variant, task.number, task.key) for task in tasks]
        if rows:
            with self._writing() as db:
                db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)", rows)

    def entries(self, bench: str) -> list[Row]:
        """Every finished task of a bench, with label, kind, variant, number, setting, and its outcome or error."""
        columns = "entries.*, state, error, task, outcome, seconds, made_by"
        query = f"SELECT {columns} FROM entries JOIN tasks USING (key) WHERE bench = ? ORDER BY number"
        rows = self._read(query, bench)
        for row in rows:
            row["setting"] = json.loads(row.pop("task"))["setting"]
            row["outcome"] = json.loads(row["outcome"]) if row["state"] == "done" else None
            row["made_by"] = json.loads(row["made_by"] or "{}")
        return rows

    def seconds_spent(self, bench: str) -> list[tuple[str, float]]:
        """Label and seconds of every task of a bench that is done."""
        query = "SELECT label, seconds FROM entries JOIN tasks USING (key) WHERE bench = ? AND state = 'done'"
        return [(row["label"], row["seconds"]) for row in self._read(query, bench)]

    def query_scores(self, key: str, part: str, metric: str) -> NDArray[np.float32]:
        """Test scores of a task, one for each query."""
        query = "SELECT scores FROM query_scores WHERE key = ? AND part = ? AND metric = ?"
        found = self._read(query, key, part, metric)
        if not found:
            raise RunError(f"{self.path} holds no {metric} of single queries, {part}, of task {key}.")
        return _decoded(found[0]["scores"])

    def mean_query_scores(self, key: str, metric: str) -> NDArray[np.float32]:
        """Test scores of a task, one for each query, mean over its networks."""
        query = "SELECT part, scores FROM query_scores WHERE key = ? AND metric = ? AND part != 'concatenated'"
        parts = {row["part"]: row["scores"] for row in self._read(query, key, metric)}
        if not parts:
            raise RunError(f"{self.path} holds no {metric} of single queries of task {key}.")
        if "separated" in parts:
            return _decoded(parts["separated"])
        return np.asarray(np.mean([_decoded(scores) for _, scores in sorted(parts.items())], axis=0))


def encoded(scores: NDArray[np.float32]) -> bytes:
    """Scores as they are stored."""
    return zlib.compress(scores.astype("<f4").tobytes())


def _decoded(scores: bytes) -> NDArray[np.float32]:
    return np.frombuffer(zlib.decompress(scores), dtype="<f4")
