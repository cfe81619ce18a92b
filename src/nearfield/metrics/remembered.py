"""Retrieval scores that were computed before in this process, for the same embeddings.

A run scores the same embeddings more than once: the step that it chooses was scored when it was reached, and heads that
start from principal components start alike whatever the method and the seed. Such scores are looked up by a digest of
the embeddings, to the bit, so that they are what computing them again would give.

Axes: Q queries, N gallery items, D dims.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfield.metrics.api import retrieval_metrics
from nearfield.metrics.settings import RETRIEVAL

Scored = tuple[dict[str, float], dict[str, NDArray[np.float32]]]  # means; scores of every query, (Q,) each
MOST_BYTES = 32 << 20  # of remembered scores of queries

_known: OrderedDict[str, Scored] = OrderedDict()


def remembered_metrics(embeddings: Any, labels: Any, metrics: tuple[str, ...], **options: Any) -> Scored:
    """`retrieval_metrics` with the scores of every query; what needs a ranking is looked up if it is known."""
    ranked = tuple(name for name in metrics if name in RETRIEVAL)
    if not ranked:
        return _scored(embeddings, labels, metrics, options)
    key = _digest(embeddings, labels, ranked, sorted(options.items()))
    if key not in _known:
        _known[key] = _scored(embeddings, labels, ranked, options)
    _known.move_to_end(key)
    while len(_known) > 1 and sum(_bytes(found) for found in _known.values()) > MOST_BYTES:
        _known.popitem(last=False)
    scores, queries = dict(_known[key][0]), {name: values.copy() for name, values in _known[key][1].items()}
    others = tuple(name for name in metrics if name not in RETRIEVAL)
    return (scores | _scored(embeddings, labels, others, options)[0] if others else scores), queries


def forget() -> None:
    """Forget all scores."""
    _known.clear()


def _scored(embeddings: Any, labels: Any, metrics: tuple[str, ...], options: dict[str, Any]) -> Scored:
    scores, queries = retrieval_metrics(embeddings, labels, metrics=metrics, per_query=True, **options)
    return scores, {name: values.cpu().numpy() for name, values in queries.scores.items()}


def _digest(*parts: Any) -> str:
    """Of arrays, by their bytes, and of plain values."""
    found = hashlib.blake2b(digest_size=20)

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            found.update(str(part.dtype).encode())
            part = part.detach().cpu().contiguous().view(torch.uint8).numpy()  # numpy has no bfloat16
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).data)
        elif isinstance(part, tuple | list):
            for each in part:
                add(each)
        else:
            found.update(f"{part!r};".encode())

    add(parts)
    return found.hexdigest()


def _bytes(found: Scored) -> int:
    return sum(values.nbytes for values in found[1].values())
