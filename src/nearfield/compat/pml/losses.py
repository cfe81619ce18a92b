"""Every loss that is mapped, under its name in pytorch-metric-learning; others raise `NotMapped` and say why."""

from __future__ import annotations

from typing import Any

from nearfield.compat.pml.errors import refuse
from nearfield.compat.pml.items import FastAPLoss, HistogramLoss, NCALoss
from nearfield.compat.pml.lifted import GeneralizedLiftedStructureLoss, LiftedStructureLoss
from nearfield.compat.pml.memory import CrossBatchMemory, SelfSupervisedLoss
from nearfield.compat.pml.pairs import (
    CircleLoss,
    ContrastiveLoss,
    MultiSimilarityLoss,
    NTXentLoss,
    SignalToNoiseRatioContrastiveLoss,
    SupConLoss,
)
from nearfield.compat.pml.proxies import (
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
)
from nearfield.compat.pml.triplets import MarginLoss, TripletMarginLoss

__all__ = [
    "ArcFaceLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "CrossBatchMemory",
    "FastAPLoss",
    "GeneralizedLiftedStructureLoss",
    "HistogramLoss",
    "LiftedStructureLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NCALoss",
    "NTXentLoss",
    "NormalizedSoftmaxLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "SelfSupervisedLoss",
    "SignalToNoiseRatioContrastiveLoss",
    "SoftTripleLoss",
    "SubCenterArcFaceLoss",
    "SupConLoss",
    "TripletMarginLoss",
]

DIFFERS = {
    "AngularLoss": "PML leaves the negatives unnormalised, so that its value grows with their norm; use `angular`.",
    "NPairsLoss": "PML uses one pair of each class and drops the rest; use `npairs`.",
    "RankedListLoss": "PML differentiates weights that are constants, and adds 1e-5 a column; use `ranked_list`.",
    "SmoothAPLoss": "PML is right only for as many classes as items a class, in order; use `smooth_ap`.",
    "ThresholdConsistentMarginLoss": "PML ignores its references; use `tcm`.",
    "TupletMarginLoss": "`tuplet_margin` has not been compared with PML's yet; use it by that name.",
}
ABSENT = (
    "DynamicSoftMarginLoss", "InstanceLoss", "IntraPairVarianceLoss", "LargeMarginSoftmaxLoss", "ManifoldLoss",
    "MultipleLosses", "P2SGradLoss", "PNPLoss", "SphereFaceLoss", "VICRegLoss",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    return refuse(name, __name__, DIFFERS | dict.fromkeys(ABSENT, "Nearfield has no such loss."))
