"""`retrieval_metrics` on hostile input: an InputError in plain words or finite scores, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from nearfield.errors import InputError
from nearfield.metrics import METRICS, KMeans, nearest_neighbours, retrieval_metrics

ODD = [0.0, -0.0, 1.0, -3.0, math.nan, math.inf, -math.inf, 5e-324, 1e-310, 1e-200, 1e-44, 1e-30, 6e4, 1e30, 1e200]
JUNK = [None, True, 0, 5, -1, 2**70, 0.5, math.nan, math.inf, "", "1", "recall", b"x", (), [], {}, {1: 2}, object()]
JUNK += [[1, 2], [[1, 2]], [[1], [1, 2]], ["a"], [None], (True,), ("1",), (2**70,), (1.5,), (math.nan,), ([1],)]
JUNK += [np.zeros(3), np.ones((2, 2), dtype=int), np.array("x"), torch.ones(2), torch.tensor(3), Fraction(1, 3), 1j]
TENSORS = [
    torch.ones(4, 3, device="meta"),
    torch.eye(4).to_sparse(),
    torch.ones(4, 3, dtype=torch.bfloat16),
    torch.ones(4, 3).to(torch.float8_e4m3fn),
    torch.ones(4, 3, dtype=torch.complex64),
    torch.ones(4),
    torch.ones(4, 3, 2),
    torch.ones(0, 3),
    torch.ones(4, 0),
]
DTYPES = ["float16", "float32", "float64", "int8", "int64", "uint8", "bool", ">f4", "longdouble"]


@st.composite
def matrices(draw: st.DrawFn, count: int, dim: int) -> Any:
    """A matrix of odd numbers, of ordinary ones, or of one number, in any type and container."""
    number = draw(st.sampled_from([st.sampled_from(ODD), st.integers(-2, 2), st.just(draw(st.sampled_from(ODD)))]))
    rows = draw(st.lists(st.lists(number, min_size=dim, max_size=dim), min_size=count, max_size=count))
    with np.errstate(all="ignore"):
        array = np.array(rows, dtype=np.float64).reshape(count, dim)
        kind = draw(st.sampled_from(DTYPES))
        array = (np.nan_to_num(array).clip(-100, 100) if np.dtype(kind).kind in "iub" else array).astype(kind)
    container = draw(st.sampled_from(["array", "list", "tensor"]))
    if container == "tensor" and array.dtype.isnative and kind != "longdouble":
        return torch.from_numpy(array)
    return array.tolist() if container == "list" else array


def labels(count: int) -> st.SearchStrategy[Any]:
    values = [st.integers(0, 2), st.integers(-(2**63), 2**63 - 1), st.sampled_from(["a", "b", "ü"]), st.booleans()]
    return st.sampled_from(values).flatmap(lambda value: st.lists(value, min_size=count, max_size=count))


def finite_or_refused(*arguments: Any, **options: Any) -> None:
    try:
        found = retrieval_metrics(*arguments, **options)
    except InputError:
        return
    scores, per_query = found if isinstance(found, tuple) else (found, None)
    assert all(type(value) is float and math.isfinite(value) for value in scores.values()), scores
    if per_query is not None:
        known = per_query.relevant > 0
        assert all(bool(torch.isfinite(score[known]).all()) for score in per_query.scores.values())


@settings(max_examples=400, deadline=None)
@given(data=st.data(), count=st.integers(0, 7), dim=st.integers(0, 3), own_gallery=st.booleans())
def test_odd_numbers_labels_and_types(data: Any, count: int, dim: int, own_gallery: bool) -> None:
    arguments = [data.draw(matrices(count, dim)), data.draw(labels(count))]
    if own_gallery:
        size = data.draw(st.integers(0, 4))
        arguments += [(1, 3), data.draw(matrices(size, dim)), data.draw(labels(size))]
    finite_or_refused(
        *arguments,
        metrics=data.draw(st.lists(st.sampled_from(METRICS), min_size=1, unique=True)),
        distance=data.draw(st.sampled_from(["cosine", "euclidean", "hamming"])),
        ties=data.draw(st.sampled_from(["expected", "optimistic", "pessimistic"])),
        denominator=data.draw(st.sampled_from(["matched", "all"])),
        per_query=data.draw(st.booleans()),
    )


ARGUMENTS = [
    "embeddings", "labels", "ks", "gallery", "gallery_labels", "metrics", "distance", "ties", "denominator", "protocol",
    "repeats", "seed", "categories", "kmeans", "fmr", "max_memory_mb", "distributed", "no_such_option",
]  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(
    argument=st.sampled_from(ARGUMENTS),
    value=st.one_of(st.sampled_from(JUNK), st.sampled_from(TENSORS), st.integers(), st.floats(), st.text(max_size=3)),
    protocol=st.sampled_from(["loo", "gallery1"]),
)
@example("ks", (True,), "loo")
@example("ks", ("1",), "loo")
@example("ks", None, "loo")
@example("ks", 5, "loo")
@example("ks", (2**70,), "loo")
@example("kmeans", None, "loo")
@example("no_such_option", 1, "loo")
@example("seed", 2**70, "gallery1")
@example("seed", torch.tensor(3), "gallery1")
@example("repeats", np.int64(3), "gallery1")
@example("max_memory_mb", math.inf, "loo")
@example("fmr", 0.1, "loo")
def test_one_hostile_argument(argument: str, value: Any, protocol: str) -> None:
    assume(not (argument == "repeats" and isinstance(value, int) and value > 100))  # slow, not wrong
    given: dict[str, Any] = {
        "embeddings": np.random.default_rng(0).standard_normal((8, 3)),
        "labels": [0, 0, 1, 1, 2, 2, 2, 1],
        "metrics": METRICS,
        "protocol": protocol,
        argument: value,
    }
    if argument in ("gallery", "gallery_labels"):
        other = {"gallery": "gallery_labels", "gallery_labels": "gallery"}[argument]
        given |= {other: given["labels"] if argument == "gallery" else given["embeddings"], "protocol": "loo"}
    finite_or_refused(**given)


@pytest.mark.parametrize("k", [True, "1", None, 1.5, 0, 9, 2**70])
def test_hostile_counts_of_neighbours(k: Any) -> None:
    with pytest.raises(InputError, match="k must"):
        nearest_neighbours(np.eye(4), k=k)


@pytest.mark.parametrize("field", ["seed", "restarts", "iterations", "average"])
@pytest.mark.parametrize("value", [None, True, "x", -1, 1.5, 2**70, [1]])
def test_hostile_settings_of_the_clustering(field: str, value: Any) -> None:
    if (field, value) == ("restarts", None):  # as many as the number of classes calls for
        return
    with pytest.raises(InputError, match=f"{field} must"):
        KMeans(**{field: value})


def test_whole_numbers_of_other_libraries_are_numbers() -> None:
    points, classes = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 4
    known = retrieval_metrics(points, classes, kmeans=KMeans(seed=3, restarts=2), seed=3, protocol="gallery1")
    numbers: list[Callable[[int], Any]] = [np.int32, np.uint64, torch.tensor]
    for number in numbers:
        settings: Any = {"kmeans": KMeans(seed=number(3), restarts=number(2)), "seed": number(3)}
        assert retrieval_metrics(points, classes, protocol="gallery1", **settings) == known


def test_messages_say_what_to_do() -> None:
    points, classes = np.eye(4), [0, 0, 1, 1]
    for options, message in (
        ({"ks": 5}, r"ks must be a sequence; got 5. For a single value write \(5,\)"),
        ({"ks": (True,)}, r"ks must be a whole number from 1 to 9007199254740992; got True"),
        ({"metrics": "recall"}, r"metrics must be a sequence; got 'recall'. For a single value write \('recall',\)"),
        ({"kmeans": None}, r"kmeans must be a nearfield.metrics.KMeans; got None"),
        ({"max_memory": 3}, r"unknown option 'max_memory': did you mean 'max_memory_mb'\?"),
        ({"fmr": ("x",)}, r"fmr must be a number from 0 up to, not including, 1; got 'x'"),
    ):
        with pytest.raises(InputError, match=message):
            retrieval_metrics(points, classes, **options)
