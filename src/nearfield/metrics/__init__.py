"""The evaluator: exact, streamed, independent of the order of rows; `retrieval_metrics` is the entry point.

What a metric means:       api.py (matches, galleries, means, options), formulas.py (the equation of each metric)
How it is computed:        ranking/ (places of matches in rankings that are never sorted as a whole)
Metrics of whole sets:     clustering.py, verification.py, diagnostics.py
Arguments and input:       settings.py, checks.py, sets.py; sharded.py for several processes
Built on it:               neighbours.py, prefixes.py (embeddings cut short), dataset_scores.py (test splits),
                           from_files.py, embedding_files.py
"""

from __future__ import annotations

from nearfield.metrics.api import retrieval_metrics
from nearfield.metrics.clustering import KMeans
from nearfield.metrics.formulas import PerQuery
from nearfield.metrics.neighbours import nearest_neighbours
from nearfield.metrics.prefixes import prefix_metrics
from nearfield.metrics.settings import METRICS

__all__ = ["METRICS", "KMeans", "PerQuery", "nearest_neighbours", "prefix_metrics", "retrieval_metrics"]
