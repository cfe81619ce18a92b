"""Results that travel: the databases of a bench, or of a suite, as one zip file that anybody can analyse or resume.

The file holds `results.sqlite` of a bench, or `DATASET/results.sqlite` for each dataset of a suite: every bench, task,
outcome and entry as it is. Of the scores of single queries it keeps what analysis reads, unrounded: of every seed the
mean over its networks, and the scores of joined embeddings, by `METRICS`. Images, embeddings and networks stay behind.

A file from elsewhere is data, never code: names, sizes, schema and content are checked before any of it gets a name.
"""

from __future__ import annotations

import json
import re
import sqlite3
import zipfile
import zlib
from contextlib import closing
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from nearfield.bench.database import FILE, Store, encoded
from nearfield.config import BenchConfig, build_config
from nearfield.data.archive import Bound, unpack
from nearfield.errors import InputError, NearfieldError
from nearfield.files import atomic_write, whole_folder

METRICS = ("map@r", "recall@1")  # of single queries
NAME = re.compile(rf"((?!\.{{1,2}}/)[\w.-]+/)?{re.escape(FILE)}")
LIMITS = Bound(total=4 << 30, member=1 << 30, count=1000)
QUERIES = 10_000_000  # of one test, at most
COPIED = ("benches", "tasks", "entries")
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member, so that equal results make equal files


def pack_results(folder: Path, file: Path) -> list[str]:
    """Write the results in the folder of a bench or suite, so far, to one zip file; the names inside."""
    found = {FILE: folder / FILE} if (folder / FILE).is_file() else {}
    found |= {f"{path.parent.name}/{FILE}": path for path in sorted(folder.glob(f"*/{FILE}"))}
    if not found:
        raise InputError(f"{folder} must be the folder of a bench or a suite; it holds no {FILE}, nor do its folders.")
    with (
        atomic_write(file) as temporary,
        TemporaryDirectory() as scratch,
        zipfile.ZipFile(temporary, "w") as archive,
    ):
        for number, (name, path) in enumerate(found.items()):
            copy = Path(scratch) / f"{number}.sqlite"
            _copy(Store(path), copy)
            archive.writestr(zipfile.ZipInfo(name, EPOCH), copy.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return list(found)


def unpack_results(file: Path, folder: Path) -> list[str]:
    """Put the results of a packed file into a new folder; the names inside. InputError if any of it is not results."""
    if not zipfile.is_zipfile(file):
        raise InputError(f"{file} must be a file that `nearfield results pack` wrote; it is missing or no zip file.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} must be a new or empty folder, so that no results are lost. Choose another --out.")
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    wrong = [name for name in names if not NAME.fullmatch(name)]
    if wrong or not names:
        raise InputError(f"{file} must hold only {FILE} and DATASET/{FILE}; it holds {(wrong or ['nothing'])[0]!r}.")
    with whole_folder(folder) as temporary:
        unpack(file, temporary, LIMITS)
        for name in names:
            try:
                _check(temporary / name)
            except (
                sqlite3.Error,
                ValueError,
                TypeError,
                KeyError,
                AttributeError,
                zlib.error,
                NearfieldError,
            ) as error:
                raise InputError(f"{file}: {name} does not hold the results of benches: {error}.") from error
    return names


def _copy(store: Store, path: Path) -> None:
    """What is published of a database, as a new one."""
    Store(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("ATTACH ? AS source", (str(store.path),))
        db.execute("BEGIN")  # one snapshot of a database that may be growing
        for table in COPIED:
            db.execute(f"INSERT INTO main.{table} SELECT * FROM source.{table} ORDER BY rowid")
        kept = f"metric IN ({', '.join('?' * len(METRICS))}) AND key IN (SELECT key FROM entries WHERE kind = 'seed')"
        rows = db.execute(f"SELECT DISTINCT key, metric FROM source.query_scores WHERE {kept}", METRICS).fetchall()
        for key, metric in sorted(rows):
            scores = encoded(store.mean_query_scores(key, metric))
            db.execute("INSERT INTO main.query_scores VALUES (?, 'separated', ?, ?)", (key, metric, scores))
        joined = f"SELECT * FROM source.query_scores WHERE part = 'concatenated' AND {kept} ORDER BY key, metric"
        db.execute(f"INSERT INTO main.query_scores {joined}", METRICS)
        db.execute("COMMIT")
        db.execute("DETACH source")
        db.execute("VACUUM")


def _check(path: Path) -> None:
    """An error unless the file is a sound database of this schema whose every value can be read."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db, TemporaryDirectory() as scratch:
        db.execute("PRAGMA trusted_schema = OFF")
        own = Path(scratch) / FILE
        Store(own)
        with closing(sqlite3.connect(own)) as fresh:
            if _schema(db) != _schema(fresh):  # triggers and views, too, would be another schema
                raise InputError("its tables are not those of this version")
            version = "SELECT * FROM meta"
            if db.execute(version).fetchall() != fresh.execute(version).fetchall():
                raise InputError("its schema version is not that of this version")
        if (state := db.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
            raise InputError(f"it is damaged, {state}")
        for (facts,) in db.execute("SELECT facts FROM benches"):
            build_config(BenchConfig, json.loads(facts)["config"])
        for task, outcome in db.execute("SELECT task, outcome FROM tasks"):
            dict(json.loads(task)["setting"])
            _check_folder(json.loads(outcome or "{}").get("folder", ""))
        for (scores,) in db.execute("SELECT scores FROM query_scores"):
            _check_scores(scores)


def _schema(db: sqlite3.Connection) -> set[tuple[Any, ...]]:
    return {*db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")}


def _check_folder(folder: str) -> None:
    """The folder of a task's networks is looked for below that of the bench."""
    parts = PurePosixPath(folder)
    if parts.is_absolute() or ".." in parts.parts:
        raise InputError(f"the folder of a task must be inside that of the bench; got {folder!r}")


def _check_scores(scores: bytes) -> None:
    """One float32 for each query, and no more than a test can have."""
    reader = zlib.decompressobj()
    size = len(reader.decompress(scores, 4 * QUERIES))
    if not reader.eof or size % 4:
        raise InputError(f"scores of queries must be whole, of at most {QUERIES:,} queries")
