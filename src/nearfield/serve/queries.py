"""Several examples and feedback as one query; duplicates collapsed in its answer.

Axes: M examples, R right and W wrong items, D dims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearfield.index import Duplicates, Index, Neighbour, SearchResult, Suggestion

RIGHT, WRONG = 0.75, 0.15  # weights of feedback
SPARE = 4  # times k: neighbours looked at, so that k remain after duplicates are collapsed
LARGEST = 1000  # neighbours of an answer
LONGEST = 255  # characters of a class to search
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Question:
    """What is searched: vectors and indexed items as examples, items that were right and wrong so far."""

    vectors: Floats  # (M, D), of length 1
    items: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    wrong: tuple[int, ...] = ()
    k: int = 10
    label: str | None = None

    @property
    def is_single(self) -> bool:
        """Whether it is one image from outside: what the calibration of the index is about."""
        return len(self.vectors) == 1 and not (self.items or self.right or self.wrong)


@dataclass(frozen=True)
class Hit:
    """A neighbour, and its duplicates that are not shown by themselves."""

    neighbour: Neighbour
    copies: tuple[int, ...] = ()  # the same content
    near: tuple[int, ...] = ()  # almost the same image


@dataclass(frozen=True)
class Answer:
    """The answer to a question."""

    hits: tuple[Hit, ...]
    suggestion: Suggestion | None
    is_new: bool | None
    p_value: float | None
    vector: Floats  # (D,) that was searched


def rocchio(examples: Floats, right: Floats, wrong: Floats) -> Floats:
    """q = mean(examples) + 0.75 mean(right) - 0.15 mean(wrong), of length 1.

    Rocchio (1971), Relevance feedback in information retrieval; weights as in Manning, Raghavan and Schütze (2008),
    Introduction to Information Retrieval, section 9.1.1.
    """
    parts = ((1.0, examples), (RIGHT, right), (-WRONG, wrong))
    total = sum(weight * rows.astype(np.float64).mean(axis=0) for weight, rows in parts if len(rows))
    return np.asarray(total / max(float(np.linalg.norm(total)), 1e-12), np.float32)


def answer(index: Index, question: Question, duplicates: Duplicates | None = None) -> Answer:
    """Search; with `duplicates`, those of a neighbour that is nearer to the query are collapsed into it.

    Example items are not among their own neighbours. The verdict is calibrated for single images from outside: other
    questions get the class of the nearest labelled neighbour, without a probability, and no verdict.
    """
    given = [question.vectors.reshape(-1, index.dim), index.vectors(question.items).reshape(-1, index.dim)]
    feedback = [index.vectors(ids).reshape(-1, index.dim) for ids in (question.right, question.wrong)]
    vector = question.vectors[0] if question.is_single else rocchio(np.concatenate(given), *feedback)
    wanted = min(LARGEST, SPARE * question.k if duplicates else question.k) + len(question.items)
    (found,) = index.search(vector[None], wanted, label=question.label)
    shown = [neighbour for neighbour in found.neighbours if neighbour.id not in question.items]
    hits = collapse(shown, duplicates) if duplicates else [Hit(neighbour) for neighbour in shown]
    verdict = found if question.is_single else _uncalibrated(shown)
    return Answer(tuple(hits[: question.k]), verdict.suggestion, verdict.is_new, verdict.p_value, vector)


def _uncalibrated(neighbours: Sequence[Neighbour]) -> SearchResult:
    label = next((neighbour.label for neighbour in neighbours if neighbour.label is not None), None)
    return SearchResult(tuple(neighbours), None if label is None else Suggestion(label, None), None, None)


def collapse(neighbours: Sequence[Neighbour], duplicates: Duplicates) -> list[Hit]:
    """Neighbours in order, without those that duplicate an earlier one; each hit names its duplicates."""
    copies: Mapping[int, tuple[int, ...]] = {id: group for group in duplicates.identical for id in group}
    first = {id: group[0] for group in duplicates.identical for id in group}  # which stands for its copies in `near`
    pairs: dict[int, list[int]] = {}
    for pair in duplicates.near:
        pairs.setdefault(pair.first, []).append(pair.second)
        pairs.setdefault(pair.second, []).append(pair.first)
    hidden: set[int] = set()
    hits = []
    for neighbour in neighbours:
        if neighbour.id in hidden:
            continue
        same = tuple(id for id in copies.get(neighbour.id, ()) if id != neighbour.id)
        alike = pairs.get(first.get(neighbour.id, neighbour.id), [])
        near = tuple(id for other in alike for id in copies.get(other, (other,)) if id not in hidden)
        hidden |= {*same, *near}
        hits.append(Hit(neighbour, same, near))
    return hits
