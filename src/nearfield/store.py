"""The results of a bench in one SQLite file, for anybody's queries.

meta          key, value: the bench's configuration, data and split fingerprints, baselines, all as JSON
runs          one row a finished run: run (hash of its configuration), method, seed, folder, best_step, steps,
              train_seconds, config and environment as JSON
folds         one row a model of a run: run, fold, fit_classes, val_classes, best_step
scores        run, fold, part ("val" or "test"), step, metric, value: learning curves and final scores
query_scores  run, fold, part, metric, scores: float32 little-endian, one for each query in the order of the part's
              images; NaN for a query without any match
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.errors import RunError

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY, method TEXT NOT NULL, seed INTEGER NOT NULL, folder TEXT NOT NULL, best_step INTEGER NOT NULL,
    steps INTEGER NOT NULL, train_seconds REAL NOT NULL, config TEXT NOT NULL, environment TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS folds (
    run TEXT NOT NULL REFERENCES runs(run), fold INTEGER NOT NULL, fit_classes INTEGER NOT NULL,
    val_classes INTEGER NOT NULL, best_step INTEGER NOT NULL, PRIMARY KEY (run, fold));
CREATE TABLE IF NOT EXISTS scores (
    run TEXT NOT NULL REFERENCES runs(run), fold INTEGER NOT NULL, part TEXT NOT NULL, step INTEGER NOT NULL,
    metric TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (run, fold, part, step, metric));
CREATE TABLE IF NOT EXISTS query_scores (
    run TEXT NOT NULL REFERENCES runs(run), fold INTEGER NOT NULL, part TEXT NOT NULL, metric TEXT NOT NULL,
    scores BLOB NOT NULL, PRIMARY KEY (run, fold, part, metric));
"""


class Store:
    """Reads and writes the results file of a bench; every write is one transaction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as db:
            db.executescript(SCHEMA)
            db.execute("INSERT OR IGNORE INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
            (version,) = db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        if int(version) != SCHEMA_VERSION:
            raise RunError(
                f"{path} has schema version {version}, this Nearfield reads {SCHEMA_VERSION}; use another --out."
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=30)) as db, db:
                yield db
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"cannot use the results file {self.path}: {error}.") from error

    def set_meta(self, **values: Any) -> None:
        """Remember facts about the bench, as JSON."""
        with self._open() as db:
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in values.items()])

    def meta(self) -> dict[str, Any]:
        """Every remembered fact."""
        with self._open() as db:
            return {key: json.loads(value) for key, value in db.execute("SELECT key, value FROM meta")}

    def add_run(
        self,
        result: dict[str, Any],
        folder: str,
        config: dict[str, Any],
        environment: dict[str, Any],
        curve: list[dict[str, Any]],
        queries: dict[str, NDArray[np.float32]],
    ) -> None:
        """Add a finished run, or replace it."""
        run = result["config"]
        scores = [
            (run, 0, "val", record["step"], key.removeprefix("val_"), value)
            for record in curve
            for key, value in record.items()
            if key.startswith("val_")
        ]
        scores += [(run, 0, "test", result["best_step"], metric, value) for metric, value in result["test"].items()]
        blobs = [(run, 0, "test", metric, values.astype("<f4").tobytes()) for metric, values in queries.items()]
        row = (run, result["method"], result["seed"], folder, result["best_step"], result["steps"])
        with self._open() as db:
            db.execute(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, result["train_seconds"], json.dumps(config), json.dumps(environment)),
            )
            fold = (run, 0, result["fit_classes"], result["val_classes"], result["best_step"])
            db.execute("INSERT OR REPLACE INTO folds VALUES (?, ?, ?, ?, ?)", fold)
            db.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?)", scores)
            db.executemany("INSERT OR REPLACE INTO query_scores VALUES (?, ?, ?, ?, ?)", blobs)

    def runs(self) -> list[dict[str, Any]]:
        """Every run with its test scores, in the order of method and seed."""
        with self._open() as db:
            db.row_factory = sqlite3.Row
            rows = [dict(row) for row in db.execute("SELECT * FROM runs ORDER BY method, seed")]
            for row in rows:
                row["config"], row["environment"] = json.loads(row["config"]), json.loads(row["environment"])
                found = db.execute("SELECT metric, value FROM scores WHERE run = ? AND part = 'test'", (row["run"],))
                row["test"] = dict(found)
            return rows

    def curve(self, run: str, metric: str) -> list[tuple[int, float]]:
        """Validation scores of a run by step."""
        query = "SELECT step, value FROM scores WHERE run = ? AND part = 'val' AND metric = ? ORDER BY step"
        with self._open() as db:
            return [(int(step), float(value)) for step, value in db.execute(query, (run, metric))]

    def query_scores(self, run: str, metric: str) -> NDArray[np.float32]:
        """Test scores of a run, one for each query."""
        query = "SELECT scores FROM query_scores WHERE run = ? AND part = 'test' AND metric = ?"
        with self._open() as db:
            row = db.execute(query, (run, metric)).fetchone()
        if row is None:
            raise RunError(f"{self.path} holds no per-query {metric} of run {run}.")
        return np.frombuffer(row[0], dtype="<f4")
