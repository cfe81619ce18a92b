"""FastAP: Cakir et al., Deep Metric Learning to Rank, CVPR 2019, and its supplement.

Where a plot prints no numbers, its points have none here. The paper's numbers are the best test epoch's.
"""

from __future__ import annotations

from typing import Any

from nearfield.config import RunConfig, SamplerConfig
from nearfield.recipes.facts import GOOGLENET, RESNET18, RESNET50
from nearfield.recipes.pairs import FASTAP_BATCHES, fastap_run
from nearfield.recipes.tables.table import Entry, Scaling, Table, change, entry, quoted, recalls

PAPER = "Deep Metric Learning to Rank (FastAP, 2019)"
SUPPLEMENT = PAPER + ", supplement"
SOP = recalls(1, 10, 100, 1000)
INSHOP = recalls(1, 10, 20, 30, 40, 50)
VEHICLEID = tuple(f"{size}/loo/recall@{k}" for size in ("small", "medium", "large") for k in (1, 5))
METRICS = {"sop": SOP, "inshop": INSHOP, "vehicleid": VEHICLEID}
R18, R50 = "timm:resnet18", "timm:resnet50"
BATCHES = {R18: 256, R50: 96, "googlenet": 320}  # the largest that fitted
WEIGHTS = {R18: RESNET18, R50: RESNET50, "googlenet": GOOGLENET}
GLYPHS = Scaling(
    "glyphs_conv",
    "The built-in glyphs (ten images of a character, blocks of characters are the categories) in place of products, "
    "clothes and vehicles; four convolutions from scratch, wider where the paper's network is larger; a quarter of the "
    "dims; batches of at most 256; 100 steps of AdamW in place of 50 epochs of Adam.",
    steps=100,
)
LOO = "VehicleID is scored leaving one out, as the released code does: much easier than one gallery image a vehicle."


def fastap(data: str, backbone: str, batch: int | None = None, hard: bool = True, **changes: Any) -> RunConfig:
    """FastAP as published, on any of its three datasets."""
    size = batch or BATCHES[backbone]
    chunked = size > BATCHES[backbone]  # chunks need the same network in both passes: frozen batch norm
    network = {"backbone": backbone, "weights": WEIGHTS[backbone], "freeze_bn": chunked}
    run = fastap_run(data, size, 64 if chunked else None, **network)
    if not hard:
        run = change(run, sampler=SamplerConfig(name="fastap", batch_size=size))
    return change(run, **changes)


def _rows(data: str, rows: dict[tuple[str, int], str]) -> tuple[Entry, ...]:
    """Rows of a network and a batch size."""
    names = {R18: "ResNet-18", R50: "ResNet-50"}
    return tuple(
        entry(f"FastAP, {names[backbone]}, M = {size}", fastap(data, backbone, size), METRICS[data], row)
        for (backbone, size), row in rows.items()
    )


TABLE1 = Table(
    "fastap/table1",
    PAPER,
    "Table 1",
    "Stanford Online Products",
    SOP,
    (
        *_rows("sop", {(R18, 256): "73.2 86.8 94.1 97.8"}),
        entry("FastAP, ResNet-50, M = 96, D = 128", fastap("sop", R50, model__dim=128), SOP, "73.8 88.0 94.9 98.3"),
        *_rows("sop", {(R50, 96): "75.8 89.1 95.4 98.5", (R50, 256): "76.4 89.0 95.1 98.2"}),
    ),
    GLYPHS,
    quoted=quoted(
        SOP,
        {
            "LiftStruct, D = 512": "62.1 79.8 91.3 97.4",
            "Histogram, D = 512": "63.9 81.7 92.2 97.7",
            "Clustering, D = 64": "67.0 83.7 93.2 -",
            "Spectral, D = 512": "67.6 83.7 93.3 -",
            "Hard-aware Cascade, D = 384": "70.1 84.9 93.2 97.8",
            "Margin, D = 128": "72.7 86.2 93.8 98.0",
            "BIER, D = 512": "72.7 86.5 94.0 98.0",
            "Proxy NCA, D = 64": "73.7 - - -",
            "A-BIER, D = 512": "74.2 86.9 94.8 98.2",
            "Hierarchical Triplets, D = 512": "74.8 88.3 94.8 98.4",
            "ABE-8, D = 512": "76.3 88.4 94.8 98.2",
        },
    ),
)
TABLE2 = Table(
    "fastap/table2",
    PAPER,
    "Table 2",
    "In-Shop Clothes Retrieval",
    INSHOP,
    _rows(
        "inshop",
        {
            (R18, 256): "89.0 97.2 98.1 98.5 98.7 98.9",
            (R50, 96): "90.0 97.5 98.3 98.7 98.9 99.1",
            (R50, 256): "90.9 97.7 98.5 98.8 98.9 99.1",
        },
    ),
    GLYPHS,
    quoted=quoted(
        INSHOP,
        {
            "FashionNet, D = 4096": "53.0 73.0 76.0 77.0 79.0 80.0",
            "Hard-aware Cascade, D = 384": "62.1 84.9 89.0 91.2 92.3 93.1",
            "BIER, D = 512": "76.9 92.8 95.2 96.2 96.7 97.1",
            "DREML, D = 9216": "78.4 93.7 95.8 96.7 - -",
            "Hard Triplet Generation": "80.3 93.9 95.8 96.6 97.1 -",
            "Hierarchical Triplets, D = 128": "80.9 94.3 95.8 97.2 97.4 97.8",
            "A-BIER, D = 512": "83.1 95.1 96.9 97.5 97.8 98.0",
            "ABE-8, D = 512": "87.3 96.7 97.9 98.2 98.5 98.7",
        },
    ),
)
TABLE3 = Table(
    "fastap/table3",
    PAPER,
    "Table 3",
    "PKU VehicleID, small, medium and large lists",
    VEHICLEID,
    _rows(
        "vehicleid",
        {
            (R18, 256): "90.9 96.0 88.9 95.2 85.3 93.9",
            (R50, 96): "90.4 96.5 88.0 95.4 84.5 93.9",
            (R50, 256): "91.9 96.8 90.6 95.9 87.5 95.1",
        },
    ),
    GLYPHS,
    notes=(LOO,),
    quoted=quoted(
        VEHICLEID,
        {
            "Mixed Diff+CCL, D = 1024": "49.0 73.5 42.8 66.8 38.2 61.6",
            "GS-TRS, D = 1024": "75.0 83.0 74.1 82.6 73.2 81.9",
            "BIER, D = 512": "82.6 90.6 79.3 88.3 76.0 86.4",
            "A-BIER, D = 512": "86.3 92.7 83.3 88.7 81.9 88.7",
            "DREML, D = 2304": "88.5 94.8 87.2 94.2 83.1 92.4",
        },
    ),
)
FIGURE4A = Table(
    "fastap/fig4a",
    PAPER,
    "Figure 4a",
    "R@1 against the batch size, ResNet-18",
    recalls(1),
    tuple(entry(f"{data}, {size}", fastap(data, R18, size)) for data in FASTAP_BATCHES for size in (32, 64, 128, 256)),
    GLYPHS,
    axis="batch size",
    notes=("On SOP and In-Shop an epoch has as many batches whatever their size; on VehicleID as many images.",),
)
FIGURE4B = Table(
    "fastap/fig4b",
    PAPER,
    "Figure 4b",
    "R@1 against the number of histogram bins, ResNet-18, batches of 256",
    recalls(1),
    tuple(
        entry(f"{data}, {bins}", change(fastap(data, R18), method__params={"bins": bins}))
        for data in FASTAP_BATCHES
        for bins in (5, 10, 20, 50)
    ),
    GLYPHS,
    axis="bins",
)
RANDOM_HARD = {
    ("sop", R18): ("72.3", "73.2"),
    ("sop", R50): ("74.2", "75.8"),
    ("inshop", R18): ("81.7", "89.0"),
    ("inshop", R50): ("84.1", "90.0"),
    ("vehicleid", R18): ("79.5", "85.3"),
    ("vehicleid", R50): ("82.8", "84.5"),
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
            recalls(1),
            value,
        )
        for (data, backbone), values in RANDOM_HARD.items()
        for kind, value in zip(("random", "hard"), values, strict=True)
    ),
    GLYPHS,
    notes=(LOO,),
)
SUPP_FIGURE3 = Table(
    "fastap-supp/fig3",
    SUPPLEMENT,
    "Figure 3",
    "Learning curves for different batch sizes, SOP, ResNet-18",
    recalls(1),
    tuple(entry(f"batches of {size}", fastap("sop", R18, size)) for size in (32, 64, 128, 256)),
    GLYPHS,
    axis="step",
)
BY_NETWORK = {  # SOP, In-Shop, VehicleID
    "googlenet": ("72.7 86.3 93.5 97.5", "88.9 97.1 97.9 98.3 98.6 98.7", "91.0 96.7 89.1 95.5 85.7 94.2"),
    R18: ("73.2 86.8 94.1 97.8", "89.0 97.2 98.1 98.5 98.7 98.9", "90.9 96.0 88.9 95.2 85.3 93.9"),
    R50: ("75.8 89.1 95.4 98.5", "90.0 97.5 98.3 98.5 98.7 98.9", "90.4 96.5 88.0 95.4 84.5 93.9"),
}
SUPP_TABLE3 = Table(
    "fastap-supp/table3",
    SUPPLEMENT,
    "Table 3",
    "Three networks on the three datasets",
    tuple(dict.fromkeys(SOP + INSHOP + VEHICLEID)),
    tuple(
        entry(f"{data}, {network.removeprefix('timm:')}", fastap(data, network), METRICS[data], row)
        for network, rows in BY_NETWORK.items()
        for data, row in zip(METRICS, rows, strict=True)
    ),
    GLYPHS,
    notes=(LOO, "For ResNet-50 on In-Shop this table and Table 2 of the paper print different R@30 to R@50."),
)

TABLES = (TABLE1, TABLE2, TABLE3, FIGURE4A, FIGURE4B, SUPP_TABLE2, SUPP_FIGURE3, SUPP_TABLE3)
