"""Pair weights of the losses of a bench: curves over similarity, and the weights of one real batch.

Axes: B items of the batch, T points of a curve.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.bench.results import BenchResults, MethodResult
from nearfield.data.dataset import Integers
from nearfield.errors import NearfieldError
from nearfield.report.cache import Arrays, Cache, digest
from nearfield.report.packing import pack

CLASSES, PER_CLASS = 8, 6
POINTS = 49
TRIALS = 20  # random neighbourhoods for measuring what a weight depends on
PREFIX = "method.params."


def choose_batch(labels: Integers, seed: int = 0) -> Integers:
    """Items of one batch: `PER_CLASS` of each of `CLASSES` classes, by class, or fewer if there are fewer."""
    rng = np.random.Generator(np.random.PCG64(seed))
    classes, counts = np.unique(labels, return_counts=True)
    usable = classes[counts >= 2]
    drawn = np.sort(rng.choice(usable, min(CLASSES, len(usable)), replace=False))
    own = [rng.permutation(np.flatnonzero(labels == each))[:PER_CLASS] for each in drawn]
    return np.concatenate(own) if own else np.zeros(0, dtype=np.int64)


def pair_weight_section(
    results: BenchResults, embeddings: NDArray[Any], labels: Integers, cache: Cache
) -> list[dict[str, Any]]:
    """The data that the page draws for each pair loss; `embeddings` (B, D) and `labels` (B,) are the batch."""
    found = []
    for number, method in enumerate(results.methods):
        loss = _loss(method)
        if loss is None:
            continue
        settings = json.dumps(_settings(method), sort_keys=True, default=str)
        key = digest(embeddings, labels, f"{method.name} {settings} {POINTS} {TRIALS}")
        arrays = cache.get("weights", key, lambda loss=loss, m=method: _measure(loss, m, embeddings, labels))  # type: ignore[misc]
        found.append({"method": number, **_facts(method), **_drawing(arrays)})
    return found


def _settings(method: MethodResult) -> dict[str, Any]:
    """The loss parameters of the chosen setting."""
    return {key.removeprefix(PREFIX): value for key, value in method.params.items() if key.startswith(PREFIX)}


def _loss(method: MethodResult) -> Any | None:
    """The method's loss if it is one over the pairs of a batch, as `nearfield weights` draws it."""
    from nearfield.inspection.pair_weighting import table_loss

    try:
        return table_loss(method.name, _settings(method))
    except NearfieldError:  # not registered here, or with parameters of another version
        return None


def _measure(loss: Any, method: MethodResult, embeddings: NDArray[Any], labels: Integers) -> Arrays:
    import torch

    from nearfield import losses
    from nearfield.inspection.pair_weighting import similarity_types, weight_curves
    from nearfield.pairs import pair_weights

    batch = torch.from_numpy(embeddings.astype(np.float64))
    arrays = {"batch": pair_weights(loss, batch, torch.from_numpy(labels)).numpy(), "types": np.array("")}
    if not losses.method(method.name).by_cluster:
        for kind, curves in weight_curves(loss, POINTS).items():
            arrays["similarity"] = curves[0][1].numpy()
            arrays[kind] = torch.stack([w for _, _, w in curves]).numpy()  # (3, T)
        arrays["types"] = np.array(similarity_types(loss, trials=TRIALS))
    return arrays


def _facts(method: MethodResult) -> dict[str, Any]:
    from nearfield import losses

    known = losses.method(method.name)
    settings = {key: str(value) for key, value in _settings(method).items()}
    return {
        "settings": settings,
        "paper": known.similarities,
        "note": known.disagreement,
    }


def _drawing(arrays: Arrays) -> dict[str, Any]:
    """Curves to three significant digits, the batch in 1/127 of its largest weight."""
    top = float(np.abs(arrays["batch"]).max()) or 1.0
    curves = {
        kind: [[float(f"{w:.3g}") for w in curve] for curve in arrays[kind].tolist()]
        for kind in ("negative", "positive")
        if kind in arrays
    }
    similarity = [round(s, 4) for s in arrays["similarity"].tolist()] if "similarity" in arrays else []
    heat = pack(np.round(arrays["batch"] / top * 127).astype(np.int8))
    return {"measured": str(arrays["types"]), "similarity": similarity, "curves": curves, "heat": heat, "top": top}
