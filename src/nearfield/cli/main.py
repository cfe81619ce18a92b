"""The command line: `nearfield COMMAND`. Only the chosen command imports what it needs.

Exit codes: 0 fine, 1 the work failed, 2 usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from nearfield._version import __version__
from nearfield.errors import NearfieldError

DESCRIPTION = (
    "Deep metric learning on a level field: train embedding models, compare methods fairly, see why one works."
)
EPILOG = """examples:
  nearfield bench                        compare three methods on the built-in glyphs, with a report
  nearfield bench --dry-run              what that would run, and how long it would take
  nearfield train --set method.name=fastap --out runs/fastap
  nearfield eval embeddings.npy labels.npy --ks 1 10 100
  nearfield methods multi_similarity     the idea, the equation, the defaults, the source

`nearfield COMMAND --help` explains a command. Exit codes: 0 fine, 1 failed, 2 usage, 130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    os.environ.setdefault("GOMP_SPINCOUNT", "0")  # threads that spin while they wait slow each other down
    arguments = build_parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(arguments.run(arguments) or 0)
    except NearfieldError as error:
        print(f"nearfield: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("nearfield: interrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _interrupt(number: int, frame: object) -> None:
    """Being told to end is being interrupted: what is running saves first."""
    raise KeyboardInterrupt


def build_parser() -> argparse.ArgumentParser:
    """The whole grammar; importing nothing heavy."""
    parser = argparse.ArgumentParser("nearfield", description=DESCRIPTION, epilog=EPILOG, formatter_class=_Raw)
    parser.add_argument("--version", action="version", version=f"nearfield {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_bench(commands)
    _add_worker(commands)
    _add_ablate(commands)
    _add_train(commands)
    _add_embed(commands)
    _add_export(commands)
    _add_eval(commands)
    _add_methods(commands)
    _add_recipes(commands)
    _add_weights(commands)
    _add_check_gradients(commands)
    _add_data(commands)
    _add_report(commands)
    _add_lint(commands)
    return parser


_Raw = argparse.RawDescriptionHelpFormatter
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add(commands: Commands, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name, help=summary, description=summary, epilog=f"example:\n  {example}", formatter_class=_Raw
    )


def _add_bench(commands: Commands) -> None:
    example = "nearfield bench --methods multi_similarity fastap --seeds 3 --set run.steps=800"
    parser = _add(commands, "bench", "compare methods under equal conditions; leaderboard and report", example)
    parser.add_argument(
        "config", nargs="?", type=Path, help="TOML file of a bench; defaults compare three methods on glyphs"
    )
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", help="compare these methods (see `nearfield methods`), or `all`"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="run every method with seeds 0 to N-1")
    parser.add_argument("--data", metavar="NAME", help="train and test on this data (see `nearfield data list`)")
    parser.add_argument("--protocol", metavar="NAME", help="classic, reality-check, ... or a TOML file of one's own")
    parser.add_argument("--trials", type=int, metavar="N", help="settings tried for every method; 1: no search")
    help = "workers on this machine, one thread each (default: the cores); 0: only watch workers elsewhere"
    parser.add_argument("--jobs", type=int, metavar="N", help=help)
    _add_storage(parser)
    _add_out(parser, "runs/bench")
    _add_set(parser, "run.steps=800")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and an estimate of the time, run nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the leaderboard as JSON")
    parser.set_defaults(run=_lazy("bench", "nearfield.cli.bench"))


def _add_worker(commands: Commands) -> None:
    summary = "take tasks of a bench from its database and do them, until none is left; start any number, anywhere"
    parser = _add(commands, "worker", summary, "nearfield worker --storage postgresql+psycopg://me@host/benches")
    _add_storage(parser)
    _add_out(parser, "runs/bench")
    parser.add_argument("--bench", metavar="DIGEST", help="work on this bench of the database (default: on all)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a run (default: as the bench says)")
    parser.add_argument("--once", action="store_true", help="do one task and end")
    parser.add_argument("--tied", action="store_true", help=argparse.SUPPRESS)  # end when the starting process does
    parser.set_defaults(run=_lazy("worker", "nearfield.cli.bench"))


def _add_ablate(commands: Commands) -> None:
    summary = "repeat an ablation of the papers: one thing varied, all else equal; table, figure and verdicts"
    parser = _add(commands, "ablate", summary, "nearfield ablate bins --data omniglot --seeds 5 --set run.steps=400")
    sizes = ("batch-size", "batch-size-equal-steps", "embedding-size")
    names = (*sizes, "bins", "similarity-types", "sampling", "backbone")
    parser.add_argument("name", choices=names, help="what is varied")
    parser.add_argument("--values", nargs="+", metavar="VALUE", help="values of the axis (default: the ablation's own)")
    parser.add_argument(
        "--data", default="glyphs", metavar="NAME", help="train and test on this data (default: glyphs)"
    )
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="vary these methods (default: the ablation's own)")
    parser.add_argument("--seeds", type=int, metavar="N", help="run every value with seeds 0 to N-1 (default: 3)")
    help = "workers on this machine, one thread each (default: the cores)"
    parser.add_argument("--jobs", type=int, metavar="N", help=help)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write (default: runs/ablate-NAME-DATA)")
    _add_set(parser, "run.steps=800")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and an estimate of the time, run nothing"
    )
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    parser.set_defaults(run=_lazy("ablate", "nearfield.cli.ablate"))


def _add_train(commands: Commands) -> None:
    example = "nearfield train --set method.name=fastap --set method.params.bins=20 --out runs/fastap20"
    parser = _add(commands, "train", "train one method and test it; goes on where it was interrupted", example)
    parser.add_argument("config", nargs="?", help="a recipe (see `nearfield recipes`) or the TOML file of a run")
    _add_out(parser, "runs/train")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images of a batch (sampler.batch_size)")
    parser.add_argument(
        "--chunk", type=int, metavar="N", help="embed the batch in chunks of N: same gradient, memory of one chunk"
    )
    trackers = "send the numbers there too, where it is installed; may be repeated"
    choices = ("tensorboard", "mlflow", "wandb")
    parser.add_argument("--track", action="append", default=[], choices=choices, help=trackers)
    _add_set(parser, "optimizer.lr=1e-3")
    parser.add_argument("--progress", choices=("bar", "json", "none"), default="bar", help="how progress is shown")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=_lazy("train"))


def _add_embed(commands: Commands) -> None:
    example = "nearfield embed efficientnet_lite0 photos/ --split test -o photos.npz && nearfield eval photos.npz"
    parser = _add(commands, "embed", "embed a dataset into a file; goes on where it was interrupted", example)
    parser.add_argument("model", help="exported model, finished run, or backbone: efficientnet_lite0, timm:NAME, ...")
    parser.add_argument("data", help="a dataset (see `nearfield data list`) or the path of one")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="NPZ", help="file to write")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="pretrained weights of the backbone")
    parser.add_argument("--split", choices=("all", "train", "test"), default="all", help="images (default: all)")
    parser.add_argument("--size", type=int, metavar="PIXELS", help="resize pictures to this side")
    resize = "crop: the middle square; square: all of it, squeezed (default: crop)"
    parser.add_argument("--resize", choices=("crop", "square"), default="crop", help=resize)
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="images at a time (default: 64)")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(run=_lazy("embed"))


def _add_export(commands: Commands) -> None:
    summary = "write a trained model as a folder that embeds on its own: weights, model card, ONNX"
    parser = _add(commands, "export", summary, "nearfield export runs/train -o birds --onnx --verify")
    parser.add_argument("trained", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--onnx", action="store_true", help="write model.onnx too")
    parser.add_argument("--verify", action="store_true", help="compare ONNX Runtime with torch; exit 1 if they differ")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(run=_lazy("export", "nearfield.cli.export"))


def _add_eval(commands: Commands) -> None:
    example = "nearfield eval embeddings.npy labels.npy --ks 1 10 100 1000 --metrics recall map_at_r"
    parser = _add(commands, "eval", "retrieval metrics of anybody's embeddings", example)
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
    parser.add_argument("--json", action="store_true", help="print the metrics as JSON")
    parser.set_defaults(run=_lazy("evaluate"))


def _add_methods(commands: Commands) -> None:
    parser = _add(commands, "methods", "list the methods, or explain one", "nearfield methods fastap")
    parser.add_argument("name", nargs="?", help="explain this method")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.set_defaults(run=_lazy("methods"))


def _add_recipes(commands: Commands) -> None:
    summary = "list complete configurations, of the papers and for a small machine, or print one as TOML"
    parser = _add(commands, "recipes", summary, "nearfield recipes ms_bninception_cub > mine.toml")
    parser.add_argument("name", nargs="?", help="print this recipe with its notes")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.set_defaults(run=_lazy("recipes", "nearfield.cli.recipes"))


def _add_weights(commands: Commands) -> None:
    summary = "which similarities each loss's pair weights use, measured; or one loss's weights, drawn"
    parser = _add(commands, "weights", summary, "nearfield weights multi_similarity --plot weights.svg")
    parser.add_argument(
        "name", nargs="?", help="a pair loss; without it, Table 1 of the Multi-Similarity paper is measured"
    )
    parser.add_argument("--plot", type=Path, metavar="SVG", help="draw the weight curves and the weights over a batch")
    parser.add_argument("--data", default="digits", help="where the batch comes from (default: digits)")
    _add_set(parser, "beta=40")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.set_defaults(run=_lazy("weights"))


def _add_check_gradients(commands: Commands) -> None:
    summary = "certify a loss: is its gradient the derivative of its value, in blocks and chunks too?"
    example = "nearfield check-gradients pytorch_metric_learning.losses:CircleLoss --set m=0.25"
    parser = _add(commands, "check-gradients", summary, example)
    parser.add_argument(
        "loss", help="a name (see `nearfield methods`) or module:Class of any loss called with (x, labels)"
    )
    _add_set(parser, "alpha=2.0")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.set_defaults(run=_lazy("check_gradients"))


def _add_data(commands: Commands) -> None:
    parser = _add(commands, "data", "add, list, check and picture the data", "nearfield data add cub CUB_200_2011.tgz")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = _add(actions, "add", "read, check and remember data under a name", "nearfield data add mine photos/")
    listing = _add(actions, "list", "every known dataset", "nearfield data list")
    show = _add(actions, "show", "counts, splits and fingerprint of a dataset", "nearfield data show glyphs")
    verify = _add(actions, "verify", "look at every picture again: is it there and whole?", "nearfield data verify cub")
    leaks = _add(actions, "leaks", "images that are in training and in test, or nearly", "nearfield data leaks cub")
    sheet = _add(actions, "sheet", "write a contact sheet of a dataset", "nearfield data sheet glyphs -o glyphs.png")
    help = "cub, cars196, sop, inshop, vehicleid or imagenet for an official dataset, or any name for data of your own"
    add.add_argument("name", help=help)
    add.add_argument("path", type=Path, help="archive or folder; folder of class folders, .csv, .parquet, .npz or .npy")
    add.add_argument("--quick", action="store_true", help="do not decode every picture")
    for each in (show, verify, leaks, sheet):
        each.add_argument("name", help="a dataset (see `nearfield data list`) or a path")
    leaks.add_argument("--distance", type=int, default=12, metavar="BITS", help="of 128 that may differ (default: 12)")
    sheet.add_argument("-o", "--out", type=Path, help="PNG file to write (default: NAME.png)")
    sheet.add_argument("--classes", type=int, default=12, help="rows of the sheet")
    for each in (add, listing, show, verify, leaks):
        each.add_argument("--json", action="store_true", help="print as JSON")
    names = ("add", "list", "show", "verify", "leaks", "sheet")
    for name, each in zip(names, (add, listing, show, verify, leaks, sheet), strict=True):
        each.set_defaults(run=_lazy(f"data_{name}", "nearfield.cli.data"))


def _add_report(commands: Commands) -> None:
    example = "nearfield report runs/bench -o report.html"
    parser = _add(commands, "report", "write a bench's report: one HTML file that opens offline", example)
    parser.add_argument("bench", type=Path, help="folder of a bench")
    written = "file to write; NAME.md is the same as text, with two pictures (default: report.html in the folder)"
    parser.add_argument("-o", "--out", type=Path, help=written)
    pictures = "data with pictures of the same rows, for a bench that was run on features"
    parser.add_argument("--pictures", metavar="NAME", help=pictures)
    parser.set_defaults(run=_lazy("report"))


def _add_lint(commands: Commands) -> None:
    summary = "name the classical sins of a comparison: what makes it unfair, why, and what to do"
    parser = _add(commands, "lint", summary, "nearfield lint bench.toml runs/mine runs/theirs")
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="CONFIG_OR_FOLDER", help="TOML files and folders of benches or runs"
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.set_defaults(run=_lazy("lint", "nearfield.cli.lint"))


def _add_storage(parser: argparse.ArgumentParser) -> None:
    help = "database: a file, or a URL such as postgresql+psycopg://user@host/name (default: results.sqlite in --out)"
    parser.add_argument("--storage", metavar="URL", help=help + "; or set NEARFIELD_STORAGE")
    help = "seconds after which a silent worker is thought dead and its task taken over (default: 60)"
    parser.add_argument("--patience", type=float, metavar="S", help=help)


def _add_out(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path(default), metavar="DIR", help=f"folder to write (default: {default})"
    )


def _add_set(parser: argparse.ArgumentParser, example: str) -> None:
    help = f"override a key of the configuration, for example {example}; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=help)


def _lazy(command: str, module: str = "nearfield.cli.commands") -> Callable[[argparse.Namespace], int | None]:
    """The function of a module, imported when it is called."""

    def run(arguments: argparse.Namespace) -> int | None:
        import importlib

        result: int | None = getattr(importlib.import_module(module), command)(arguments)
        return result

    return run
