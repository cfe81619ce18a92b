"""Figures of a suite: mean ranks, score against seconds, what a search still promises, calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nearfield.analysis.budgets import NOT_EXHAUSTED
from nearfield.analysis.figures.svg import COLORS, INK, LINE, SOFT, drawing, shorten
from nearfield.analysis.suite import OneDataset, Suite
from nearfield.analysis.tables import title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nearfield.analysis.calibration import Bin

ACROSS = 3  # panels beside each other


def suite_ranks_figure(suite: Suite) -> Figure:
    """Mean rank of every method, and its rank on each dataset."""
    count = len(suite.methods)
    with drawing(860, 90 + 20 * count, "Ranks on every dataset, and their mean") as figure:
        axes = figure.subplots()
        for number, each in enumerate(suite.datasets):
            order = sorted(suite.methods, key=lambda label: -each.means[label])
            places = [order.index(label) + 1 for label in suite.methods]
            color = COLORS[number % len(COLORS)]
            axes.plot(places, range(count), "o", ms=4, alpha=0.7, color=color, label=shorten(each.name, 24))
        axes.plot([suite.ranks[label] for label in suite.methods], range(count), "|", ms=14, mew=3, color=INK)
        axes.set_yticks(range(count), [shorten(label, 34) for label in suite.methods])
        axes.tick_params("y", length=0)
        axes.invert_yaxis()
        axes.set_xlabel("rank on a dataset (dots), mean rank (bar)")
        axes.grid(axis="x")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def pareto_figure(suite: Suite) -> Figure:
    """Score against seconds of training a network, one panel a dataset; the line joins methods that none dominates."""
    words = f"{title(suite.metric)} against seconds of training, one panel a dataset"
    with _panels(len(suite.datasets), words) as (figure, panels):
        for axes, each in zip(panels, suite.datasets, strict=False):
            points = {label: (each.efforts[label].seconds, 100 * each.means[label]) for label in suite.methods}
            front = pareto_front(points)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
            axes.plot(*zip(*points.values(), strict=True), "o", ms=5, color=SOFT)
            axes.plot(*zip(*(points[label] for label in front), strict=True), "o-", color=COLORS[0], lw=1)
            for label in front:
                axes.annotate(shorten(label, 18), points[label], (4, 6), textcoords="offset pixels", fontsize=10)
            _label(axes, each.name, "seconds of training a network", f"{title(suite.metric)}, %")
    return figure


def pareto_front(points: dict[str, tuple[float, float]]) -> list[str]:
    """Methods (seconds, score) that no other beats in both, the fastest first."""
    front: list[str] = []
    for label in sorted(points, key=lambda name: (points[name][0], -points[name][1])):
        if not front or points[label][1] > points[front[-1]][1]:
            front.append(label)
    return front


def search_figure(suite: Suite) -> Figure:
    """Best validation score to expect of so many trials; methods whose search is not exhausted in colour."""
    with _panels(len(suite.datasets), "Best validation score to expect, by trials") as (figure, panels):
        for axes, each in zip(panels, suite.datasets, strict=False):
            _draw_searches(axes, each)
    return figure


def _draw_searches(axes: Axes, each: OneDataset) -> None:
    rising = [one for one in each.efforts.values() if NOT_EXHAUSTED in one.flags]
    for one in each.efforts.values():
        if one.expected and one not in rising:
            axes.plot(range(1, len(one.expected) + 1), [100 * v for v in one.expected], color=LINE, lw=1)
    rising.sort(key=lambda one: one.noise - one.rise)
    for number, one in enumerate(rising):
        color = COLORS[number] if number < len(COLORS) else SOFT
        name = shorten(one.label, 18) if number < len(COLORS) else None
        axes.plot(range(1, len(one.expected) + 1), [100 * v for v in one.expected], color=color, lw=1.5, label=name)
    if rising:
        axes.legend(fontsize=9, loc="lower right")
    _label(axes, each.name, "trials", "validation score, %")


def reliability_figure(curves: dict[str, Sequence[Bin]]) -> Figure:
    """How often what was said with a probability came true, one panel for each way of asking."""
    with _panels(len(curves), "How often a verdict held, against its probability") as (figure, panels):
        for axes, (name, bins) in zip(panels, curves.items(), strict=False):
            axes.plot([0.5, 1], [0.5, 1], color=LINE, lw=1)
            if bins:
                low = [max(0.0, each.held - each.low) for each in bins]
                high = [max(0.0, each.high - each.held) for each in bins]
                said, held = [each.said for each in bins], [each.held for each in bins]
                axes.errorbar(said, held, [low, high], fmt="o-", capsize=3, color=COLORS[0], lw=1.5)
            axes.set(xlim=(0.48, 1.02), ylim=(0, 1.05))
            _label(axes, name, "probability that was said", "share that came true")
    return figure


def _label(axes: Axes, name: str, across: str, up: str) -> None:
    axes.set_title(shorten(name, 34))
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y")


@contextmanager
def _panels(count: int, words: str) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of `count` panels in rows of `ACROSS`."""
    rows, columns = -(-count // ACROSS), min(count, ACROSS)
    with drawing(380 * columns, 330 * rows, words) as figure:
        every = [axes for row in figure.subplots(rows, columns, squeeze=False) for axes in row]
        for axes in every[count:]:
            axes.axis("off")
        yield figure, every[:count]
