"""The engine of a Milvus server, or of a file of Milvus Lite.

Exact (FLAT) up to `EXACT_UP_TO` vectors, then a graph (HNSW). A class is stored as a hash of its name, so that no name
can be misread as part of a filter.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from nearfield.errors import RunError, missing_package
from nearfield.index.engines.contract import EXACT_UP_TO, Floats, Found, Ids, ordered

BATCH = 1000  # vectors in one request
LARGEST = 16_384  # neighbours that Milvus returns at most


class MilvusEngine:
    """The collection `collection`: id, hash of the label and vector of each vector."""

    snapshots = False

    def __init__(self, url: str, collection: str, dim: int, exact_up_to: int = EXACT_UP_TO) -> None:
        try:
            import pymilvus
        except ImportError as error:
            raise missing_package("an index in Milvus", "pymilvus", "milvus") from error
        self._name, self.dim, self.exact_up_to = collection, dim, exact_up_to
        try:
            self._base: Any = pymilvus.MilvusClient(url, token=os.environ.get("MILVUS_TOKEN", ""))
            if not self._base.has_collection(collection):
                self._create(pymilvus.DataType)
            self._base.load_collection(collection)
        except Exception as error:  # its errors have no common base class
            raise RunError(f"cannot use Milvus at {url}: {error}. Is it running?") from error

    def _create(self, kinds: Any) -> None:
        schema = self._base.create_schema(auto_id=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("label", kinds.VARCHAR, max_length=32)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=self.dim)
        self._base.create_collection(
            self._name, schema=schema, index_params=self._parameters("FLAT"), consistency_level="Strong"
        )

    def _parameters(self, kind: str) -> Any:
        made = self._base.prepare_index_params()
        params = {"M": 32, "efConstruction": 80} if kind == "HNSW" else {}
        made.add_index("vector", index_type=kind, metric_type="IP", params=params)
        return made

    def __len__(self) -> int:
        return int(self._base.query(self._name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def add(self, ids: Ids, vectors: Floats, labels: Sequence[str | None]) -> None:
        rows = [
            {"id": item, "label": _hash(label), "vector": vector}
            for item, label, vector in zip(ids.tolist(), labels, np.asarray(vectors, np.float32), strict=True)
        ]
        for start in range(0, len(rows), BATCH):
            self._base.upsert(self._name, rows[start : start + BATCH])

    def delete(self, ids: Ids) -> None:
        for start in range(0, len(ids), BATCH):
            self._base.delete(self._name, ids=np.asarray(ids)[start : start + BATCH].tolist())

    def search(self, queries: Floats, k: int, label: str | None = None) -> Found:
        ids = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        where = "" if label is None else f'label == "{_hash(label)}"'
        found = self._base.search(
            self._name, data=list(np.asarray(queries, np.float32)), limit=min(k, LARGEST), filter=where,
            anns_field="vector", consistency_level="Strong",
        )  # fmt: skip
        for place, hits in enumerate(found):
            for column, hit in enumerate(hits):
                ids[place, column], scores[place, column] = hit["id"], hit["distance"]
        return ordered(ids, scores, k)

    def save(self) -> str:
        self._base.flush(self._name)
        if len(self) > self.exact_up_to and self._kind() == "FLAT":
            self._base.release_collection(self._name)
            self._base.drop_index(self._name, "vector")
            self._base.create_index(self._name, self._parameters("HNSW"))
            self._base.load_collection(self._name)
        return self._name

    def _kind(self) -> str:
        return str(self._base.describe_index(self._name, "vector").get("index_type", "FLAT"))

    def drop(self) -> None:
        self._base.drop_collection(self._name)

    def close(self) -> None:
        self._base.close()

    def facts(self) -> dict[str, object]:
        return {
            "engine": f"milvus {self._kind().lower()}",
            "effort": 0,
            "bytes_per_vector": 4 * self.dim + 40,
        }


def _hash(label: str | None) -> str:
    return "" if label is None else hashlib.blake2b(label.encode(), digest_size=16).hexdigest()
