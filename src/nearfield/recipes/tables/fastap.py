"""FastAP: Cakir et al., Deep Metric Learning to Rank, CVPR 2019, and its supplement.

Where a plot prints no numbers, its points have none here. The paper's numbers are the best test epoch's.
"""

from __future__ import annotations

from typing import Any

from nearfield.config import RunConfig, SamplerConfig
from nearfield.recipes import pairs
from nearfield.recipes.facts import GOOGLENET, RESNET18, RESNET50
from nearfield.recipes.tables.table import Scaling, Table, change, entry, recalls, scores

PAPER = "Deep Metric Learning to Rank (FastAP, 2019)"
SUPPLEMENT = PAPER + ", supplement"
SOP = recalls(1, 10, 100, 1000)
INSHOP = recalls(1, 10, 20, 30, 40, 50)
VEHICLEID = tuple(f"{size}/loo/recall@{k}" for size in ("small", "medium", "large") for k in (1, 5))
BATCHES = {"timm:resnet18": 256, "timm:resnet50": 96, "googlenet": 320}
WEIGHTS = {"timm:resnet18": RESNET18, "timm:resnet50": RESNET50, "googlenet": GOOGLENET}
SAMPLERS: dict[str, dict[str, Any]] = {  # five and two batches for each pair of categories; every labelled image
    "sop": {"repeats": 5},
    "inshop": {"repeats": 2},
    "vehicleid": {"unlabelled": "unlabelled"},
}
EPOCHS = {"sop": 330, "inshop": 506, "vehicleid": 443}  # batches
OMNIGLOT = Scaling(
    "omniglot_conv4",
    "Omniglot's characters (alphabets are the categories) in place of products, clothes and vehicles; four "
    "convolutions from scratch, wider where the paper's network is larger; a quarter of the dims; batches of at most "
    "256; 400 steps of the small recipe's AdamW in place of 50 epochs of Adam.",
    steps=400,
)
LOO = "VehicleID is scored leaving one out, as the released code does: much easier than one gallery image a vehicle."


def fastap(data: str, backbone: str, batch: int | None = None, hard: bool = True, **changes: object) -> RunConfig:
    """FastAP as published, on any of its three datasets."""
    size = batch or BATCHES[backbone]
    chunked = size > BATCHES[backbone]
    sampler: dict[str, Any] = {"name": "fastap_hard", **SAMPLERS[data]} if hard else {"name": "fastap"}
    run = change(
        pairs.fastap_resnet18_sop(),
        data__name=data,
        model__backbone=backbone,
        model__weights=WEIGHTS[backbone],
        model__freeze_bn=chunked,  # chunks need the same network in both passes
        sampler=SamplerConfig(batch_size=size, **sampler),
        chunk=64 if chunked else None,
        steps=50 * EPOCHS[data],
        eval_every=EPOCHS[data],
    )
    return change(run, **changes)


TABLE1 = Table(
    "fastap/table1",
    PAPER,
    "Table 1",
    "Stanford Online Products",
    SOP,
    (
        entry("FastAP, ResNet-18, M = 256", fastap("sop", "timm:resnet18"), scores(SOP, "73.2 86.8 94.1 97.8")),
        entry(
            "FastAP, ResNet-50, M = 96, D = 128",
            fastap("sop", "timm:resnet50", model__dim=128),
            scores(SOP, "73.8 88.0 94.9 98.3"),
        ),
        entry("FastAP, ResNet-50, M = 96", fastap("sop", "timm:resnet50"), scores(SOP, "75.8 89.1 95.4 98.5")),
        entry("FastAP, ResNet-50, M = 256", fastap("sop", "timm:resnet50", 256), scores(SOP, "76.4 89.0 95.1 98.2")),
    ),
    OMNIGLOT,
)
TABLE2 = Table(
    "fastap/table2",
    PAPER,
    "Table 2",
    "In-Shop Clothes Retrieval",
    INSHOP,
    (
        entry(
            "FastAP, ResNet-18, M = 256",
            fastap("inshop", "timm:resnet18"),
            scores(INSHOP, "89.0 97.2 98.1 98.5 98.7 98.9"),
        ),
        entry(
            "FastAP, ResNet-50, M = 96",
            fastap("inshop", "timm:resnet50"),
            scores(INSHOP, "90.0 97.5 98.3 98.7 98.9 99.1"),
        ),
        entry(
            "FastAP, ResNet-50, M = 256",
            fastap("inshop", "timm:resnet50", 256),
            scores(INSHOP, "90.9 97.7 98.5 98.8 98.9 99.1"),
        ),
    ),
    OMNIGLOT,
)
TABLE3 = Table(
    "fastap/table3",
    PAPER,
    "Table 3",
    "PKU VehicleID, small, medium and large lists",
    VEHICLEID,
    (
        entry(
            "FastAP, ResNet-18, M = 256",
            fastap("vehicleid", "timm:resnet18"),
            scores(VEHICLEID, "90.9 96.0 88.9 95.2 85.3 93.9"),
        ),
        entry(
            "FastAP, ResNet-50, M = 96",
            fastap("vehicleid", "timm:resnet50"),
            scores(VEHICLEID, "90.4 96.5 88.0 95.4 84.5 93.9"),
        ),
        entry(
            "FastAP, ResNet-50, M = 256",
            fastap("vehicleid", "timm:resnet50", 256),
            scores(VEHICLEID, "91.9 96.8 90.6 95.9 87.5 95.1"),
        ),
    ),
    OMNIGLOT,
    notes=(LOO,),
)
FIGURE4A = Table(
    "fastap/fig4a",
    PAPER,
    "Figure 4a",
    "R@1 against the batch size, ResNet-18",
    recalls(1),
    tuple(
        entry(f"{data}, {size}", fastap(data, "timm:resnet18", size, steps=50 * EPOCHS[data] * 256 // size))
        for data in SAMPLERS
        for size in (32, 64, 128, 256)
    ),
    OMNIGLOT,
    axis="batch size",
    notes=("As many images for every size: fewer steps of larger batches.",),
)
FIGURE4B = Table(
    "fastap/fig4b",
    PAPER,
    "Figure 4b",
    "R@1 against the number of histogram bins, ResNet-18, batches of 256",
    recalls(1),
    tuple(
        entry(f"{data}, {bins}", change(fastap(data, "timm:resnet18"), method__params={"bins": bins}))
        for data in SAMPLERS
        for bins in (5, 10, 20, 50)
    ),
    OMNIGLOT,
    axis="bins",
)
RANDOM_HARD = {
    ("sop", "timm:resnet18"): (72.3, 73.2),
    ("sop", "timm:resnet50"): (74.2, 75.8),
    ("inshop", "timm:resnet18"): (81.7, 89.0),
    ("inshop", "timm:resnet50"): (84.1, 90.0),
    ("vehicleid", "timm:resnet18"): (79.5, 85.3),
    ("vehicleid", "timm:resnet50"): (82.8, 84.5),
}
SUPP_TABLE2 = Table(
    "fastap-supp/table2",
    SUPPLEMENT,
    "Table 2",
    "Random batches against pairs of categories, R@1",
    recalls(1),
    tuple(
        entry(
            f"{data}, {backbone.removeprefix('timm:')}, {kind}",
            fastap(data, backbone, hard=kind == "hard"),
            {"recall@1": value},
        )
        for (data, backbone), values in RANDOM_HARD.items()
        for kind, value in zip(("random", "hard"), values, strict=True)
    ),
    OMNIGLOT,
    notes=(LOO,),
)
SUPP_FIGURE3 = Table(
    "fastap-supp/fig3",
    SUPPLEMENT,
    "Figure 3",
    "Learning curves for different batch sizes, SOP, ResNet-18",
    recalls(1),
    tuple(entry(f"batches of {size}", fastap("sop", "timm:resnet18", size)) for size in (32, 64, 128, 256)),
    OMNIGLOT,
    axis="step",
)
BY_NETWORK = {  # SOP, In-Shop, VehicleID
    "googlenet": ("72.7 86.3 93.5 97.5", "88.9 97.1 97.9 98.3 98.6 98.7", "91.0 96.7 89.1 95.5 85.7 94.2"),
    "timm:resnet18": ("73.2 86.8 94.1 97.8", "89.0 97.2 98.1 98.5 98.7 98.9", "90.9 96.0 88.9 95.2 85.3 93.9"),
    "timm:resnet50": ("75.8 89.1 95.4 98.5", "90.0 97.5 98.3 98.5 98.7 98.9", "90.4 96.5 88.0 95.4 84.5 93.9"),
}
METRICS = {"sop": SOP, "inshop": INSHOP, "vehicleid": VEHICLEID}
SUPP_TABLE3 = Table(
    "fastap-supp/table3",
    SUPPLEMENT,
    "Table 3",
    "Three networks on the three datasets",
    tuple(dict.fromkeys(SOP + INSHOP + VEHICLEID)),
    tuple(
        entry(f"{data}, {network.removeprefix('timm:')}", fastap(data, network), scores(METRICS[data], row))
        for network, rows in BY_NETWORK.items()
        for data, row in zip(METRICS, rows, strict=True)
    ),
    OMNIGLOT,
    notes=(LOO, "For ResNet-50 on In-Shop this table and Table 2 of the paper print different R@30 to R@50."),
)

TABLES = (TABLE1, TABLE2, TABLE3, FIGURE4A, FIGURE4B, SUPP_TABLE2, SUPP_FIGURE3, SUPP_TABLE3)
