"""The engine of a PostgreSQL server with the extension pgvector.

Exact up to `EXACT_UP_TO` vectors, then a graph (HNSW) that is scanned iteratively: without that, a search that filters
by class returns fewer rows than exist, because the filter is applied to the first efSearch candidates only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nearfield.errors import RunError, missing_package
from nearfield.index.engines.contract import EXACT_UP_TO, Floats, Found, Ids, ordered

EFFORT = 100  # hnsw.ef_search


class PostgresEngine:
    """The table `collection` of a database: id, label and embedding of each vector."""

    snapshots = False

    def __init__(self, url: str, collection: str, dim: int, exact_up_to: int = EXACT_UP_TO) -> None:
        try:
            import psycopg
            from pgvector.psycopg import register_vector
            from psycopg import sql
        except ImportError as error:
            raise missing_package("an index in PostgreSQL", "psycopg and pgvector", "pgvector") from error
        self.dim, self.exact_up_to = dim, exact_up_to
        self._name = collection
        self._table = sql.Identifier(collection)
        self._graph = sql.Identifier(f"{collection}_hnsw")
        self._sql = sql.SQL
        try:
            self._base: Any = psycopg.connect(url, autocommit=True)
            self._base.execute("SET client_min_messages = warning")
            self._base.execute("CREATE EXTENSION IF NOT EXISTS vector")
            register_vector(self._base)
            self._run("CREATE TABLE IF NOT EXISTS {table} (id bigint PRIMARY KEY, label text, embedding vector({dim}))")
            self._run("CREATE INDEX IF NOT EXISTS {labels} ON {table} (label)")
        except psycopg.Error as error:
            raise RunError(
                f"cannot use the database {url}: {str(error).strip()}. Is it running, with pgvector?"
            ) from None

    def _run(self, text: str, values: Sequence[Any] | None = None) -> Any:
        parts = {"table": self._table, "graph": self._graph, "dim": self._sql(str(self.dim))}
        parts["labels"] = type(self._table)(f"{self._name}_label")
        return self._base.execute(self._sql(text).format(**parts), values)

    def __len__(self) -> int:
        return int(self._run("SELECT count(*) FROM {table}").fetchone()[0])

    def add(self, ids: Ids, vectors: Floats, labels: Sequence[str | None]) -> None:
        rows = zip(ids.tolist(), labels, np.asarray(vectors, np.float32), strict=True)
        text = self._sql(
            "INSERT INTO {table} VALUES (%s, %s, %s) "
            "ON CONFLICT (id) DO UPDATE SET label = EXCLUDED.label, embedding = EXCLUDED.embedding"
        ).format(table=self._table)
        with self._base.transaction(), self._base.cursor() as cursor:
            cursor.executemany(text, list(rows))

    def delete(self, ids: Ids) -> None:
        self._run("DELETE FROM {table} WHERE id = ANY(%s)", [np.asarray(ids).tolist()])

    def search(self, queries: Floats, k: int, label: str | None = None) -> Found:
        where = "" if label is None else "WHERE label = %s "
        text = "SELECT id, -(embedding <#> %s) FROM {table} " + where + "ORDER BY embedding <#> %s, id LIMIT %s"
        if self._has_graph():  # a second key of the order would keep the graph from being used
            text = text.replace(", id LIMIT", " LIMIT")
        ids = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        with self._base.transaction():
            self._base.execute(f"SET LOCAL hnsw.ef_search = {max(EFFORT, min(k, 1000))}")
            self._base.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            for place, query in enumerate(np.asarray(queries, np.float32)):
                found = self._run(text, [query, *([] if label is None else [label]), query, k]).fetchall()
                for column, (item, score) in enumerate(found):
                    ids[place, column], scores[place, column] = item, score
        return ordered(ids, scores, k)

    def save(self) -> str:
        if len(self) > self.exact_up_to:
            self._run("CREATE INDEX IF NOT EXISTS {graph} ON {table} USING hnsw (embedding vector_ip_ops)")
        self._run("ANALYZE {table}")
        return self._name

    def _has_graph(self) -> bool:
        return self._run("SELECT to_regclass(%s)", [f'"{self._name}_hnsw"']).fetchone()[0] is not None

    def drop(self) -> None:
        self._run("DROP TABLE IF EXISTS {table}")

    def close(self) -> None:
        self._base.close()

    def facts(self) -> dict[str, object]:
        size = self._run("SELECT pg_total_relation_size(%s)", [f'"{self._name}"']).fetchone()[0]
        kind = "hnsw" if self._has_graph() else "exact"
        return {
            "engine": f"pgvector {kind}",
            "effort": EFFORT if kind == "hnsw" else 0,
            "bytes_per_vector": round(size / max(1, len(self))),
        }
