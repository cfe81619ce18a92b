"""Where vectors are searched: files of our own with faiss, PostgreSQL with pgvector, Milvus.

`open_engine("faiss", ...)` chooses exact search, a graph or inverted lists by size; "faiss:exact", "faiss:hnsw" and
"faiss:ivf" force one. "postgresql://host/database" and "milvus:http://host:19530" (or "milvus:file.db") name a server.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from nearfield.errors import InputError
from nearfield.index.engines.contract import EXACT_UP_TO, Engine, Floats, Found, Ids, ordered, recall

__all__ = ["EXACT_UP_TO", "Engine", "Floats", "Found", "Ids", "check_engine", "open_engine", "ordered", "recall"]


def check_engine(spec: str) -> str:
    """`spec`; InputError if it names no engine, or holds a password, which does not belong into a file."""
    if urlsplit(spec.removeprefix("milvus:")).password:
        raise InputError(
            "engine must not hold a password, because it is stored with the index; set PGPASSWORD or ~/.pgpass for "
            "PostgreSQL, MILVUS_TOKEN for Milvus."
        )
    if not spec.startswith(("postgresql://", "postgres://", "milvus:")) and spec.split(":")[0] != "faiss":
        raise InputError(f"engine must be faiss, postgresql://... or milvus:URL; got {spec!r}.")
    return spec


def open_engine(spec: str, home: Path, dim: int, collection: str, name: str | None = None) -> Engine:
    """The engine that `spec` names. `home` is the folder of its files, `collection` its name on a server.

    `name` is the snapshot that `save` returned; without one the engine starts empty.
    """
    check_engine(spec)
    if spec.startswith("milvus:"):
        from nearfield.index.engines.milvus import MilvusEngine

        return MilvusEngine(spec.removeprefix("milvus:"), collection, dim)
    if spec.startswith("postgres"):
        from nearfield.index.engines.pgvector import PostgresEngine

        return PostgresEngine(spec, collection, dim)
    from nearfield.index.engines.faiss_files import FaissEngine

    return FaissEngine(home, dim, spec.partition(":")[2] or "auto", name)
