"""`nearfield eval`: metrics of embeddings on disk."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json


def add_parser(commands: Commands) -> None:
    """The grammar."""
    example = "nearfield eval embeddings.npy labels.npy --ks 1 10 100 1000 --metrics recall map_at_r"
    parser = add_command(commands, "eval", evaluate, "retrieval metrics of anybody's embeddings", example)
    parser.add_argument("embeddings", type=Path, help="(N, D) embeddings: npy, npz, csv, parquet or safetensors")
    parser.add_argument("labels", nargs="?", type=Path, help="(N,) integer labels; may be inside the embeddings' file")
    parser.add_argument("--gallery", type=Path, help="search these embeddings instead of the queries themselves")
    parser.add_argument("--gallery-labels", type=Path, help="labels of the gallery")
    parser.add_argument("--ks", nargs="+", type=int, default=[1, 2, 4, 8], metavar="K", help="cut-offs of recall@K")
    parser.add_argument("--metrics", nargs="+", default=["recall", "r_precision", "map_at_r", "nmi"], metavar="NAME")
    parser.add_argument("--distance", default="cosine", help="cosine, euclidean or hamming")
    parser.add_argument("--ties", default="expected", help="expected, optimistic or pessimistic")
    parser.add_argument(
        "--per-query", type=Path, metavar="FILE", help="write every query's scores to a csv or parquet file"
    )
    add_json(parser, "print the metrics as JSON")


def evaluate(arguments: argparse.Namespace) -> None:
    """Metrics of embeddings on disk; see `nearfield.metrics.from_files`."""
    from rich.table import Table

    from nearfield.metrics.from_files import evaluate_files

    scores = evaluate_files(
        arguments.embeddings,
        arguments.labels,
        gallery=arguments.gallery,
        gallery_labels=arguments.gallery_labels,
        ks=tuple(arguments.ks),
        metrics=tuple(arguments.metrics),
        distance=arguments.distance,
        ties=arguments.ties,
        per_query=arguments.per_query,
    )
    if arguments.json:
        show.results().print_json(json.dumps(scores))
        return
    table = Table("metric", "percent")
    table.columns[1].justify = "right"
    for name, value in scores.items():
        table.add_row(name, f"{100 * value:.2f}")
    show.results().print(table)
