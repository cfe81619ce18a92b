"""The database of a bench: its queue of tasks and its results. A SQLite file, or PostgreSQL for many machines.

meta          key, value: schema_version
benches       digest, opened (when, in seconds), facts as JSON: configuration, protocol, data, environment, floors ...
tasks         one row a task that somebody took: key, state (running, open, failed, done), owner and expires (of its
              claim), failures, share (done so far), name, task and outcome as JSON, error, seconds it took
entries       which task is what in a bench: bench, label, kind (trial, seed, variant), variant, number -> key
query_scores  key, part ("fold 0" ..., "concatenated"), metric, scores: zlib of float32 little-endian, one for each
              query in the order of the test images; NaN for a query without any match
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from nearfield.bench.plan import Bench, Outcome, Task
from nearfield.errors import InputError, RunError

SCHEMA_VERSION = 2
FILE = "results.sqlite"
STORAGE = "NEARFIELD_STORAGE"  # the environment variable that names a database, where a password must not be seen
TRIES = 2  # of a task that fails, before the bench goes on without it
Queries = dict[tuple[str, str], NDArray[np.float32]]  # (part, metric) -> scores of every query

_schema = sa.MetaData()
_meta = sa.Table("meta", _schema, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text))
_benches = sa.Table(
    "benches",
    _schema,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("opened", sa.Double, nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
)
_tasks = sa.Table(
    "tasks",
    _schema,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("expires", sa.Double, nullable=False, default=0.0),
    sa.Column("failures", sa.Integer, nullable=False, default=0),
    sa.Column("share", sa.Double, nullable=False, default=0.0),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("seconds", sa.Double),
)
_entries = sa.Table(
    "entries",
    _schema,
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("bench", "label", "kind", "variant")),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("key", sa.Text, nullable=False),
)
_queries = sa.Table(
    "query_scores",
    _schema,
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("key", "part", "metric")),
    sa.Column("scores", sa.LargeBinary, nullable=False),
)


class Store:
    """Reads and writes a bench's database; every write is one transaction, and many processes may write."""

    def __init__(self, storage: str | Path) -> None:
        """`storage` is a URL, or the path of a SQLite file."""
        text = str(storage)
        try:
            self.url = sa.make_url(text if "://" in text else f"sqlite:///{text}")
            self._engine = sa.create_engine(self.url, **_connection(self.url))
        except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
            raise InputError(
                f"storage must be a file or a URL such as postgresql+psycopg://user@host/name; got {text!r}: {error}."
            ) from error
        if self.url.get_backend_name() == "sqlite":
            _prepare_sqlite(self._engine)
            self._insert = sqlite.insert
            self._now: Any = sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)")
        else:
            self._insert = postgresql.insert  # type: ignore[assignment]
            self._now = sa.extract("epoch", sa.func.clock_timestamp())
        with self._using():
            self._create()

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SQLAlchemyError) as error:
            reason = getattr(error, "orig", None) or error
            raise RunError(f"cannot use the results in {self.name}: {str(reason).strip()}.") from error

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._using(), self._engine.connect() as db:
            yield db.execution_options(reading=True)

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._using(), self._engine.begin() as db:
            yield db

    def _create(self) -> None:
        if self.url.get_backend_name() == "sqlite" and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        with self._engine.begin() as db:
            if db.dialect.name == "postgresql":  # two workers that start together must not both create the tables
                db.execute(sa.text("SELECT pg_advisory_xact_lock(20190831)"))
            _schema.create_all(db)
            db.execute(
                self._insert(_meta).values(key="schema_version", value=str(SCHEMA_VERSION)).on_conflict_do_nothing()
            )
            version = db.execute(sa.select(_meta.c.value).where(_meta.c.key == "schema_version")).scalar_one()
        if int(version) != SCHEMA_VERSION:
            raise RunError(
                f"{self.name} has schema version {version}, this Nearfield reads {SCHEMA_VERSION}; use another --out."
            )

    # Benches

    def open_bench(self, bench: Bench, facts: dict[str, Any]) -> None:
        """Remember a bench, or that it goes on; what had failed may be tried again."""
        new = self._insert(_benches).values(digest=bench.digest, opened=self._now, facts=json.dumps(facts))
        values = {"opened": new.excluded.opened, "facts": new.excluded.facts}
        with self._writing() as db:
            db.execute(new.on_conflict_do_update(index_elements=["digest"], set_=values))
            db.execute(sa.update(_tasks).where(_tasks.c.state == "failed").values(failures=0))

    def benches(self) -> list[str]:
        """The digests of all benches, the one opened last first."""
        with self._reading() as db:
            return list(db.execute(sa.select(_benches.c.digest).order_by(_benches.c.opened.desc())).scalars())

    def facts(self, digest: str) -> dict[str, Any]:
        """What was remembered of a bench."""
        with self._reading() as db:
            found = db.execute(sa.select(_benches.c.facts).where(_benches.c.digest == digest)).scalar_one_or_none()
        if found is None:
            raise InputError(f"{self.name} holds no bench {digest!r}; it holds: {', '.join(self.benches()) or 'none'}.")
        facts: dict[str, Any] = json.loads(found)
        return facts

    # The queue

    def update(self, known: dict[str, Outcome]) -> bool:
        """Bring `known`, outcomes by key, up to date; whether it changed. What failed too often counts as finished."""
        over = sa.or_(_tasks.c.state == "done", sa.and_(_tasks.c.state == "failed", _tasks.c.failures >= TRIES))
        with self._reading() as db:
            keys = set(db.execute(sa.select(_tasks.c.key).where(over)).scalars())
            new, again = list(keys - known.keys()), known.keys() - keys
            for key in again:
                del known[key]
            for start in range(0, len(new), 500):
                columns = (_tasks.c.key, _tasks.c.state, _tasks.c.outcome, _tasks.c.error)
                for row in db.execute(sa.select(*columns).where(_tasks.c.key.in_(new[start : start + 500]))):
                    failed = {"state": "failed", "error": row.error}
                    known[row.key] = json.loads(row.outcome) if row.state == "done" else failed
        return bool(new or again)

    def claim(self, task: Task, owner: str, seconds: float) -> bool:
        """Take the task for so many seconds; False if somebody else has it, or it is finished."""
        mine = {"state": "running", "owner": owner, "expires": self._now + seconds, "share": 0.0}
        free = sa.or_(
            _tasks.c.state == "open",
            sa.and_(_tasks.c.state == "running", _tasks.c.expires < self._now),
            sa.and_(_tasks.c.state == "failed", _tasks.c.failures < TRIES),
        )
        new = self._insert(_tasks).values(key=task.key, name=task.name, task=json.dumps(task.to_json()), **mine)
        with self._writing() as db:
            db.execute(new.on_conflict_do_update(index_elements=["key"], set_=mine, where=free))
            return bool(db.execute(sa.select(_tasks.c.owner).where(_tasks.c.key == task.key)).scalar_one() == owner)

    def taken(self) -> dict[str, tuple[str, float]]:
        """Tasks that somebody is doing: key -> its name and the share that is done."""
        held = sa.and_(_tasks.c.state == "running", _tasks.c.expires >= self._now)
        with self._reading() as db:
            rows = db.execute(sa.select(_tasks.c.key, _tasks.c.name, _tasks.c.share).where(held))
            return {row.key: (row.name, row.share) for row in rows}

    def beat(self, key: str, owner: str, seconds: float, share: float) -> bool:
        """Keep the task for so many seconds more; False if it was lost to somebody else."""
        return self._change(key, owner, expires=self._now + seconds, share=share)

    def release(self, key: str, owner: str) -> bool:
        """Give the task back, to be gone on with."""
        return self._change(key, owner, state="open", owner=None)

    def fail(self, key: str, owner: str, error: str) -> bool:
        """The task failed."""
        return self._change(key, owner, state="failed", owner=None, error=error, failures=_tasks.c.failures + 1)

    def record(self, key: str, owner: str, outcome: Outcome, queries: Queries, seconds: float) -> bool:
        """The task is done; False, and nothing is written, if it was lost to somebody else."""
        blobs = [
            {"key": key, "part": part, "metric": metric, "scores": zlib.compress(values.astype("<f4").tobytes())}
            for (part, metric), values in queries.items()
        ]
        done = {"state": "done", "owner": None, "outcome": json.dumps(outcome), "seconds": seconds, "share": 1.0}
        with self._writing() as db:
            if db.execute(self._mine(key, owner).values(**done, error=None)).rowcount != 1:
                return False
            if blobs:
                db.execute(sa.insert(_queries), blobs)
            return True

    def _mine(self, key: str, by: str) -> sa.Update:
        here = (_tasks.c.key == key, _tasks.c.owner == by, _tasks.c.state == "running")
        return sa.update(_tasks).where(*here)

    def _change(self, key: str, by: str, **values: Any) -> bool:
        with self._writing() as db:
            return db.execute(self._mine(key, by).values(**values)).rowcount == 1

    # Results

    def enter(self, bench: str, tasks: Iterable[Task]) -> None:
        """Write down which tasks make up a bench."""
        rows = [
            {"bench": bench, "label": t.label, "kind": t.kind, "variant": t.variant, "number": t.number, "key": t.key}
            for t in tasks
        ]
        if not rows:
            return
        new = self._insert(_entries)
        names = [column.name for column in _entries.primary_key]
        with self._writing() as db:
            db.execute(new.on_conflict_do_update(index_elements=names, set_={"key": new.excluded.key}), rows)

    def entries(self, bench: str) -> list[dict[str, Any]]:
        """Every task of a bench that was begun: label, kind, variant, number, key, state, error, setting, outcome."""
        columns = (_entries, _tasks.c.state, _tasks.c.error, _tasks.c.task, _tasks.c.outcome, _tasks.c.seconds)
        query = sa.select(*columns).join(_tasks, _tasks.c.key == _entries.c.key).where(_entries.c.bench == bench)
        with self._reading() as db:
            rows = [dict(row) for row in db.execute(query.order_by(_entries.c.number)).mappings()]
        for row in rows:
            row["setting"] = json.loads(row.pop("task"))["setting"]
            row["outcome"] = json.loads(row["outcome"]) if row["state"] == "done" else None
        return rows

    def entries_seconds(self, bench: str) -> list[tuple[str, float]]:
        """Label and seconds of every finished task of a bench."""
        query = sa.select(_entries.c.label, _tasks.c.seconds).join(_tasks, _tasks.c.key == _entries.c.key)
        with self._reading() as db:
            rows = db.execute(query.where(_entries.c.bench == bench, _tasks.c.state == "done"))
            return [(row.label, row.seconds) for row in rows]

    def query_scores(self, key: str, part: str, metric: str) -> NDArray[np.float32]:
        """Test scores of a task, one for each query."""
        here = (_queries.c.key == key, _queries.c.part == part, _queries.c.metric == metric)
        with self._reading() as db:
            found = db.execute(sa.select(_queries.c.scores).where(*here)).scalar_one_or_none()
        if found is None:
            raise RunError(f"{self.name} holds no {metric} of single queries, {part}, of task {key}.")
        return np.frombuffer(zlib.decompress(found), dtype="<f4")


def _connection(url: sa.URL) -> dict[str, Any]:
    return {"connect_args": {"timeout": 60}} if url.get_backend_name() == "sqlite" else {"pool_pre_ping": True}


def _prepare_sqlite(engine: sa.Engine) -> None:
    """Readers beside a writer, and writers that wait for each other from the start of their transaction."""

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver thinks fit
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
