"""Unbiased Evaluation: Fehervari et al., Unbiased Evaluation of Deep Metric Learning Algorithms, 2019.

The common settings are those of `unbiased_bninception_cub`; each method has its own optimiser and batches, as in the
released scripts. The rows of Table 2 are named by the released logs. The paper averages ten runs, each at its best test
epoch.
"""

from __future__ import annotations

from typing import Any

from nearfield.config import RunConfig
from nearfield.recipes import comparisons
from nearfield.recipes.facts import RESNET50
from nearfield.recipes.tables.table import Entry, Scaling, Table, as_published, change, entry, recalls, scores

PAPER = "Unbiased Evaluation of Deep Metric Learning Algorithms (2019)"
COLUMNS = (*recalls(1, 2, 4, 8, 16), "nmi")
SEEDS = tuple(range(10))
FEATURES = Scaling(
    "cub_lite0_features",
    "A linear head on frozen EfficientNet-Lite0 features of CUB-200-2011 in place of whole networks on CUB, Cars-196 "
    "or SOP; embedding sizes as in the paper; 150 steps of one AdamW in place of each method's own optimiser; three "
    "seeds.",
    steps=150,
    most=128,
)
MXNET = "The Caffe weights of BN-Inception and torchvision's ResNet-50 in place of MXNet's; NMI by arithmetic mean."

METHODS: dict[str, tuple[str, str | None, dict[str, Any], dict[str, Any]]] = {  # method, preset, parameters, other keys
    "Triplet, semi-hard": ("triplet", "unbiased_evaluation", {}, {"sampler__name": "shuffle", "distance": "euclidean"}),
    "Lifted structure": ("lifted", None, {}, {"sampler__name": "shuffle", "distance": "euclidean"}),
    "N-pairs": (
        "npairs",
        None,
        {"l2": 5e-4},
        {"sampler__name": "npairs", "sampler__p_same": 0.1, "distance": "euclidean"},
    ),
    "Structured clustering": (
        "structured_clustering",
        None,
        {},
        {"sampler__name": "m_per_class", "sampler__batch_size": 125, "sampler__per_class": 5},
    ),
    "Margin": (
        "margin",
        None,
        {},
        {"sampler__name": "m_per_class", "sampler__batch_size": 125, "sampler__per_class": 5},
    ),
    "Angular": ("angular", "unbiased_evaluation", {}, {"sampler__name": "npairs", "distance": "euclidean"}),
    "Prototype": (
        "prototypical",
        "unbiased_evaluation",
        {},
        {
            "sampler__name": "episodic",
            "sampler__batch_size": 120,
            "sampler__per_class": 10,
            "sampler__support": 5,
            "distance": "euclidean",
        },
    ),
    "Proxy-Triplet": ("proxy_triplet", None, {}, {"sampler__name": "shuffle"}),
    "Proxy-NCA": ("proxy_nca", None, {}, {"sampler__name": "shuffle"}),
    "Proxy-Softmax": (
        "proxy_softmax",
        "unbiased_evaluation",
        {},
        {
            "sampler__name": "m_per_class",
            "sampler__batch_size": 75,
            "sampler__per_class": 3,
            "model__dim": 2048,
            "model__norm": "layer",
            "distance": "hamming",
        },
    ),
    "Ranked list": (
        "ranked_list",
        None,
        {},
        {"sampler__name": "m_per_class", "sampler__batch_size": 126, "sampler__per_class": 3},
    ),
    "DREML": ("dreml", "unbiased_evaluation", {}, {"sampler__name": "shuffle", "model__dim": 144}),
}
CUB = {  # Inception-BN, ResNet-50
    "Triplet, semi-hard": ("50.9 63.3 74.8 84.3 91.1 61.1", "48.2 60.9 72.1 82.1 89.6 60.0"),
    "Lifted structure": ("51.7 63.2 74.6 83.8 90.6 60.9", "50.0 62.8 74.0 83.3 90.3 60.5"),
    "N-pairs": ("53.7 65.9 76.4 85.2 91.9 63.6", "56.1 68.2 78.8 87.4 92.9 65.5"),
    "Structured clustering": ("56.4 67.8 78.2 86.5 92.2 64.0", "- - - - - -"),
    "Margin": ("51.3 63.2 74.3 83.4 90.4 61.1", "59.6 71.0 81.0 88.2 93.1 67.3"),
    "Angular": ("53.2 66.2 76.4 85.5 91.5 62.8", "59.1 71.6 81.2 88.2 93.2 66.3"),
    "Prototype": ("47.8 60.9 73.0 83.3 90.6 60.7", "54.4 67.2 78.0 86.2 92.6 64.8"),
    "Proxy-Triplet": ("50.5 62.4 73.4 82.6 89.5 59.6", "53.1 65.3 76.1 84.5 90.8 62.9"),
    "Proxy-NCA": ("54.6 66.5 77.0 85.7 91.7 63.2", "58.1 70.0 79.1 86.3 91.8 64.1"),
    "Proxy-Softmax": ("58.3 70.4 80.5 88.6 93.4 64.0", "63.5 74.3 82.6 89.7 94.1 69.5"),
    "Ranked list": ("51.4 64.0 74.5 84.2 90.1 61.8", "50.2 62.7 73.6 83.1 89.6 58.5"),
    "DREML": ("55.4 67.0 77.1 85.6 91.1 61.0", "59.0 71.0 80.5 87.5 92.7 63.2"),
}
CARS = {
    "Triplet, semi-hard": "60.94 72.93 82.95 89.57 94.08 57.55",
    "Lifted structure": "65.29 75.75 83.95 89.87 94.07 61.00",
    "N-pairs": "71.18 80.68 87.47 92.36 95.55 63.68",
    "Structured clustering": "73.26 82.41 88.8 93.37 96.21 64.84",
    "Margin": "70.38 79.84 87.02 92.18 95.51 61.32",
    "Angular": "68.86 78.92 86.35 91.18 94.65 59.75",
    "Prototype": "59.49 71.86 82.03 89.45 94.31 58.44",
    "Proxy-Triplet": "65.34 76.01 84.53 90.96 94.92 60.85",
    "Proxy-NCA": "71.90 81.68 87.94 92.29 95.82 62.45",
    "Proxy-Softmax": "76.98 85.33 90.83 94.88 97.36 61.34",
    "Ranked list": "69.83 79.66 87.00 92.19 95.68 62.28",
    "DREML": "75.93 84.44 90.00 94.11 96.85 61.23",
}
SOP = {
    "N-pairs": "61.24 67.18 72.36 77.02 81.27 67.31",
    "Structured clustering": "64.27 69.65 74.33 78.58 82.41 86.75",
    "Margin": "67.63 73.20 77.98 82.11 85.54 87.68",
    "Angular": "68.97 74.29 78.75 82.60 85.99 87.55",
    "Prototype": "61.82 67.76 73.28 77.94 82.18 85.76",
    "Proxy-Triplet": "61.41 67.15 72.31 77.00 81.31 86.91",
    "Proxy-NCA": "73.56 78.42 82.39 85.56 88.21 88.93",
    "Proxy-Softmax": "74.30 80.13 82.41 87.62 89.93 89.10",
}


def run_of(name: str, data: str = "cub", backbone: str = "bn_inception", **changes: Any) -> RunConfig:
    """A method of the paper under its common settings."""
    method, preset, params, own = METHODS[name]
    base = change(comparisons.unbiased_bninception_cub(), data__name=data, distance="cosine", ks=(1, 2, 4, 8, 16))
    if backbone == "resnet50":
        base = change(base, model__backbone="timm:resnet50", model__weights=RESNET50)
    return change(as_published(base, method, preset, **params), **{**own, **changes})


def _entry(label: str, run: RunConfig, row: str = "") -> Entry:
    return entry(label, run, scores(COLUMNS, row) if row else None, seeds=SEEDS)


TABLE2 = Table(
    "unbiased/table2",
    PAPER,
    "Table 2",
    "CUB-200-2011, Inception-BN and ResNet-50",
    COLUMNS,
    tuple(
        _entry(f"{name}, {title}", run_of(name, backbone=backbone), row)
        for name, rows in CUB.items()
        for title, backbone, row in zip(("Inception-BN", "ResNet-50"), ("bn_inception", "resnet50"), rows, strict=True)
        if row[0] != "-"
    ),
    FEATURES,
    notes=(
        MXNET,
        "The released logs of lifted structure and N-pairs show 49.8 and 51.6 where the table prints 51.7 and 53.7.",
    ),
)
TABLE3 = Table(
    "unbiased/table3",
    PAPER,
    "Table 3",
    "Cars-196, Inception-BN",
    COLUMNS,
    tuple(_entry(name, run_of(name, "cars196"), row) for name, row in CARS.items()),
    FEATURES,
    notes=(MXNET,),
)
TABLE4 = Table(
    "unbiased/table4",
    PAPER,
    "Table 4",
    "Stanford Online Products, Inception-BN",
    COLUMNS,
    tuple(_entry(name, run_of(name, "sop"), row) for name, row in SOP.items()),
    FEATURES,
    notes=(
        MXNET,
        "The released code ignores SOP's official lists and halves the classes in the order of their folders.",
        "The NMI of N-pairs and the R@4 of Proxy-Softmax look like misprints.",
    ),
)
COMPARED = ("Triplet, semi-hard", "Margin", "N-pairs", "Proxy-NCA", "Proxy-Softmax")
FIGURE1 = Table(
    "unbiased/fig1",
    PAPER,
    "Figure 1",
    "R@1 against the embedding size, CUB, Inception-BN",
    recalls(1),
    tuple(
        _entry(
            f"{name}, {dim}",
            run_of(
                name,
                model__dim=dim,
                distance="cosine" if name == "Proxy-Softmax" else METHODS[name][3].get("distance", "cosine"),
            ),
        )
        for name in COMPARED
        for dim in (64, 128, 256, 512)
    ),
    FEATURES,
    axis="embedding size",
)
FIGURE2 = Table(
    "unbiased/fig2",
    PAPER,
    "Figure 2",
    "R@1 against the batch size, CUB, Inception-BN",
    recalls(1),
    tuple(
        _entry(f"{name}, {size}", run_of(name, sampler__batch_size=size, sampler__per_class=4))
        for name in COMPARED
        for size in (8, 16, 32, 64, 128)
    ),
    FEATURES,
    axis="batch size",
    notes=("The paper starts at batches of 2, which hold no negative for losses over pairs; here from 8 on.",),
)

TABLES = (TABLE2, TABLE3, TABLE4, FIGURE1, FIGURE2)
