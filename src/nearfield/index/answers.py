"""What a search answers: neighbours, a suggested class with its probability, and whether the query is new."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """An indexed image."""

    id: int  # never given to another image
    label: str | None  # None: nobody has said what it shows
    path: str  # below `root`; the name that an image without a file was added under
    root: str | None  # the folder, absolute; None for an image without a file
    digest: str  # hash of the file's content, in hexadecimal


@dataclass(frozen=True)
class Neighbour:
    """An indexed image that is similar to a query."""

    id: int
    label: str | None
    score: float  # cosine similarity
    path: str


@dataclass(frozen=True)
class Suggestion:
    """The class of the nearest labelled neighbour."""

    label: str
    probability: float | None  # that it is right; None if the index is not calibrated


@dataclass(frozen=True)
class SearchResult:
    """The answer to one query; neighbours are in descending order of score, those of equal score in order of id."""

    neighbours: tuple[Neighbour, ...]
    suggestion: Suggestion | None  # None: no labelled neighbour
    is_new: bool | None  # whether its class is not in the index; None if the index is not calibrated
    p_value: float | None  # share of queries of known classes whose best match is at most this similar (conformal)
