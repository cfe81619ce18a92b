"""Scores of the same embeddings are computed once, and are what computing them again would give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from nearfield.metrics import remembered, retrieval_metrics
from nearfield.metrics.remembered import remembered_metrics

METRICS = ("recall", "map_at_r")


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    remembered.forget()
    yield
    remembered.forget()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The metrics of every ranking that is really computed."""
    seen: list[tuple[str, ...]] = []

    def counting(*arguments: Any, **options: Any) -> Any:
        seen.append(options["metrics"])
        return retrieval_metrics(*arguments, **options)

    monkeypatch.setattr(remembered, "retrieval_metrics", counting)
    return seen


def some(seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    return torch.randn(40, 6, generator=torch.Generator().manual_seed(seed)), np.arange(40) % 5


def test_the_same_again_is_looked_up(calls: list[tuple[str, ...]]) -> None:
    points, labels = some()
    once, queries = remembered_metrics(points, labels, METRICS, ks=(1, 2))
    assert once == retrieval_metrics(points, labels, (1, 2), metrics=METRICS)
    queries["map@r"][:] = 0  # what a caller does with them is their own affair
    again, fresh = remembered_metrics(points.clone(), labels.copy(), METRICS, ks=(1, 2))
    assert again == once
    assert fresh["map@r"].mean() == pytest.approx(once["map@r"])
    assert len(calls) == 1


def test_clustering_is_added_to_what_is_known(calls: list[tuple[str, ...]]) -> None:
    points, labels = some()
    remembered_metrics(points, labels, METRICS, ks=(1, 2))
    found, _ = remembered_metrics(points, labels, (*METRICS, "nmi"), ks=(1, 2))
    assert found == retrieval_metrics(points, labels, (1, 2), metrics=(*METRICS, "nmi"))
    assert list(found) == list(retrieval_metrics(points, labels, (1, 2), metrics=(*METRICS, "nmi")))
    assert calls == [METRICS, ("nmi",)]


def test_anything_else_is_computed(calls: list[tuple[str, ...]]) -> None:
    points, labels = some()
    near = points.clone()
    near[0, 0] = torch.nextafter(near[0, 0], torch.tensor(9.0))
    other = labels.copy()
    other[0] = 1
    gallery: Any = {"gallery": some(1)[0], "gallery_labels": labels}
    for arguments, options in (
        ((points, labels, METRICS), {"ks": (1, 2)}),
        ((near, labels, METRICS), {"ks": (1, 2)}),
        ((points, other, METRICS), {"ks": (1, 2)}),
        ((points, labels, ("recall",)), {"ks": (1, 2)}),
        ((points, labels, METRICS), {"ks": (1, 3)}),
        ((points, labels, METRICS), {"ks": (1, 2), "distance": "euclidean"}),
        ((points, labels, METRICS), {"ks": (1, 2), **gallery}),
        ((points.double(), labels, METRICS), {"ks": (1, 2)}),
        ((points.bfloat16(), labels, METRICS), {"ks": (1, 2)}),
    ):
        remembered_metrics(*arguments, **options)
    assert len(calls) == 9


def test_little_is_kept(monkeypatch: pytest.MonkeyPatch, calls: list[tuple[str, ...]]) -> None:
    monkeypatch.setattr(remembered, "MOST_BYTES", 2 * 4 * 40)  # two scores of 40 queries
    for seed in (0, 1, 2, 2, 1, 0):
        points, labels = some(seed)
        remembered_metrics(points, labels, ("map_at_r",), ks=(1,))
    assert len(calls) == 4  # 2 and 1 were known, 0 no longer


def test_no_ranking_no_memory(calls: list[tuple[str, ...]]) -> None:
    points, labels = some()
    assert list(remembered_metrics(points, labels, ("nmi",))[0]) == ["nmi"]
    assert not remembered._known
