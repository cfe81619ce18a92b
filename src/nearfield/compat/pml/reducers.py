"""Reducers: tokens that say over what a loss is averaged. The average itself is part of each loss.

Mapped are the mean over losses above 0 (`AvgNonZeroReducer`, `ThresholdReducer(low=0)`) and, for contrastive and
triplet losses, the mean over all (`MeanReducer`).
"""

from __future__ import annotations

from typing import Any

from nearfield.compat.pml.errors import NotMapped, refuse


class BaseReducer:
    """What a loss is averaged over."""

    kind = "default"

    def __init__(self, collect_stats: bool | None = None) -> None:
        self.collect_stats = collect_stats


class MeanReducer(BaseReducer):
    """The mean over all pairs, triplets or elements."""

    kind = "mean"


class AvgNonZeroReducer(BaseReducer):
    """The mean over those whose loss is above 0."""

    kind = "nonzero"


class ThresholdReducer(AvgNonZeroReducer):
    """The mean over those whose loss is between `low` and `high`; only low=0 is mapped."""

    def __init__(self, low: float | None = None, high: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if low != 0 or high is not None:
            raise NotMapped(f"ThresholdReducer(low={low}, high={high})", "losses here average what is above 0, or all.")


class DivisorReducer(BaseReducer):
    """The loss's own divisor: what `MarginLoss` and `ProxyAnchorLoss` use anyway."""

    kind = "divisor"


def __getattr__(name: str) -> Any:
    why = "a loss here carries its own average; compute others from nearfield.pair_weights or your own formula."
    names = ("ClassWeightedReducer", "DoNothingReducer", "MultipleReducers", "PerAnchorReducer", "SumReducer")
    return refuse(name, __name__, dict.fromkeys(names, why))
