"""`nearfield eval`: retrieval metrics of embeddings on disk."""

from __future__ import annotations

import argparse
from pathlib import Path

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, whole
from nearfield.errors import InputError

DETAILS = """
Every item is a query and searches all other items; with --gallery, queries search the gallery instead.

Metrics:
  retrieval       recall precision r_precision map_at_r map mrr
  clustering      nmi ami f1 (k-means)
  verification    roc_auc eer opis tar fnmr (all pairs; the last two at the false-accept rates of --far)
  diagnostics     distance_ratio effective_rank uniformity counts

Formats:
  .npy            a matrix (N, D)
  .npz            arrays `embeddings` and, if there, `labels` and `ids`; what `nearfield embed` writes
  .safetensors    tensors with the same names
  .csv, .parquet  columns `label` and `id` if there, every other column a dimension
"""
DEFAULT = ("recall", "r_precision", "map_at_r", "nmi")
NOT_SHARES = ("distance_ratio", "effective_rank", "uniformity", "opis", "queries", "queries_without_match")
WARNING = (
    "holds images of the training part too, and a model scores higher on classes that it was trained on. "
    "`nearfield embed --part test` embeds the test part alone."
)
EXAMPLES = """
nearfield eval embeddings.npy labels.npy --ks 1 10 100 1000 --metrics recall map_at_r
nearfield eval queries.npz --gallery gallery.npz --per-query scores.csv
nearfield eval test.npz --dims 16 32 64 128 --metrics recall map_at_r
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "compute retrieval metrics of embeddings on disk, from any model"
    parser = add_command(commands, "eval", evaluate, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("embeddings", type=Path, help="file of (N, D) embeddings")
    labels = "file of (N,) labels, .txt with one label per line too; not needed if the embeddings' file holds them"
    parser.add_argument("labels", nargs="?", type=Path, help=labels)
    parser.add_argument("--gallery", type=Path, metavar="FILE", help="search these embeddings")
    parser.add_argument("--gallery-labels", type=Path, metavar="FILE", help="labels of the gallery")
    ks = "cut-offs of recall@K (default: 1 2 4 8)"
    parser.add_argument("--ks", nargs="+", type=whole(1), default=[1, 2, 4, 8], metavar="K", help=ks)
    parser.add_argument("--metrics", nargs="+", default=DEFAULT, metavar="NAME", help=f"default: {' '.join(DEFAULT)}")
    far = "false-accept rates of tar and fnmr (default: 0.001)"
    parser.add_argument("--far", nargs="+", type=float, default=[1e-3], metavar="RATE", help=far)
    help = "how items are ranked: cosine (default), euclidean, hamming, or hyperbolic, for another ball :C:CLIP"
    parser.add_argument("--distance", default="cosine", metavar="NAME", help=help)
    help = "how equal distances are ranked (default: expected, the mean over all orders)"
    parser.add_argument("--ties", choices=("expected", "optimistic", "pessimistic"), default="expected", help=help)
    help = "write the scores of every query to a .csv or .parquet file"
    parser.add_argument("--per-query", type=Path, metavar="FILE", help=help)
    help = "score embeddings cut to their first D dims and normalised again, for each D, with the bytes of a vector"
    parser.add_argument("--dims", nargs="+", type=whole(1), metavar="D", help=help)
    add_json(parser, "the metrics")


def evaluate(arguments: argparse.Namespace) -> None:
    """Metrics of embeddings on disk; see `nearfield.metrics.from_files`."""
    from nearfield.metrics.from_files import evaluate_files, holds_training

    for path in filter(None, (arguments.embeddings, arguments.gallery)):
        if holds_training(path):
            show.note(f"nearfield: {path} {WARNING}")
    if arguments.dims:
        return _prefixes(arguments)
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
        fmr=tuple(arguments.far),
    )
    if arguments.json:
        show.say_json(scores)
    else:
        rows = [(name, _cell(name, value)) for name, value in scores.items()]
        show.say(show.table(("metric", "value"), rows, right=(1,)))
    return None


def _prefixes(arguments: argparse.Namespace) -> None:
    """Scores of embeddings that are cut short."""
    from nearfield.metrics.from_files import evaluate_prefixes
    from nearfield.metrics.prefixes import BYTES

    if arguments.distance != "cosine" or arguments.per_query:
        raise InputError("--dims normalises each prefix and compares cosines; remove --distance and --per-query.")
    found = evaluate_prefixes(
        arguments.embeddings,
        arguments.labels,
        dims=arguments.dims,
        gallery=arguments.gallery,
        gallery_labels=arguments.gallery_labels,
        ks=tuple(arguments.ks),
        metrics=tuple(arguments.metrics),
        ties=arguments.ties,
    )
    if arguments.json:
        return show.say_json([{"dims": d, "bytes": BYTES * d, **scores} for d, scores in found.items()])
    names = list(next(iter(found.values())))
    rows = [("bytes a vector", *(f"{BYTES * d:,}" for d in found))]
    rows += [(name, *(_cell(name, scores[name]) for scores in found.values())) for name in names]
    show.say(show.table(("dims", *map(str, found)), rows, right=range(1, len(found) + 1)))
    return None


def _cell(name: str, value: float) -> str:
    return f"{value:.6g}" if name in NOT_SHARES else f"{100 * value:.2f} %"
