"""The calibration of an index: which classes serve, which of its items are queries.

Axes: N items, Q queries, D dims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nearfield.config import RunConfig, build_config, parse_toml
from nearfield.errors import NearfieldError
from nearfield.export.description import Description
from nearfield.index.calibration import FEWEST_CLASSES, FEWEST_QUERIES, calibrate
from nearfield.index.measure import vector_blocks
from nearfield.index.open_set import Labelled, best_scores
from nearfield.index.store import Row, Store
from nearfield.training.batches import open_data

QUERIES = 2000


class Outcome(NamedTuple):
    """A calibration as JSON, or why there is none; and what to know about it."""

    facts: dict[str, Any] | None
    note: str


def calibrate_index(
    store: Store, rows: Sequence[Row], description: Description, false_accept: float, gallery_size: int | None
) -> Outcome:
    """Calibrate on the labelled items of an index, those of classes that its model was not trained on."""
    labelled = [row for row in rows if row.label is not None]
    contents = {digest: number for number, digest in enumerate(dict.fromkeys(row.digest for row in labelled))}
    several = _classes_with_two(labelled)
    trained = trained_classes(description)
    classes = several - trained
    held_out = len(classes) >= FEWEST_CLASSES
    candidates = [row for row in labelled if row.label in (classes if held_out else several)]
    if len(several) < FEWEST_CLASSES or len(candidates) < FEWEST_QUERIES:
        rule = f"{FEWEST_QUERIES} images of {FEWEST_CLASSES} classes with two images each"
        return Outcome(None, f"Not calibrated: that needs {rule}; got {len(candidates)} of {len(several)}.")
    names = {name: number for number, name in enumerate(dict.fromkeys(row.label for row in labelled))}

    def batch(part: Sequence[Row], vectors: Any) -> Labelled:
        return Labelled(
            vectors,
            np.array([names[row.label] for row in part], np.int64),
            np.array([contents[row.digest] for row in part], np.int64),
        )

    def gallery() -> Iterator[Labelled]:
        place = {row.id: row for row in labelled}
        for ids, vectors in vector_blocks(store, np.array([row.id for row in labelled], np.int64)):
            yield batch([place[item] for item in ids.tolist()], vectors)

    draw = np.random.default_rng(0).permutation(len(candidates))[:QUERIES]
    queries = [candidates[place] for place in np.sort(draw).tolist()]
    best = best_scores(batch(queries, store.vectors([row.id for row in queries])), gallery())
    found = calibrate(best, false_accept, gallery_size, held_out=held_out)
    note = "" if held_out else "Calibrated on classes that the model was trained on: new classes will do worse."
    return Outcome(found.facts(), note)


def trained_classes(description: Description) -> set[str]:
    """The names of the classes that a model was trained on, recorded with it or known from its data; else none."""
    made = description.training
    if made.classes is not None:
        return set(made.classes)
    if made.method == "none":
        return set()
    try:
        dataset = open_data(build_config(RunConfig, parse_toml(made.config)).data)
    except NearfieldError:
        return set()
    if dataset.fingerprint != made.fingerprint:
        return set()
    return {dataset.class_names[number] for number in dataset.train_classes.tolist()}


def _classes_with_two(rows: Sequence[Row]) -> set[str]:
    """The classes with two images of different content."""
    distinct = {(row.label, row.digest) for row in rows}
    counts = Counter(label for label, _ in distinct)
    return {label for label, count in counts.items() if label is not None and count > 1}
