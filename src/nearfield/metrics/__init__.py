"""The evaluator: exact, streamed, independent of the order of rows; `retrieval_metrics` is the way in."""

from __future__ import annotations

from nearfield.metrics.api import METRICS, KMeans, PerQuery, nearest_neighbours, retrieval_metrics

__all__ = ["METRICS", "KMeans", "PerQuery", "nearest_neighbours", "retrieval_metrics"]
