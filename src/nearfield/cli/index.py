"""`nearfield index`: make a collection of images searchable, change it, check it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, whole
from nearfield.errors import InputError

if TYPE_CHECKING:
    from nearfield.index import Calibration, Changes, Index

DETAILS = """
The class of an image is the name of the folder that holds it; files directly in PHOTOS have none. The same command
again embeds only what changed. Interrupt it at any time: the index stays as it was, and the same command resumes.

Whether a query is of a new class is calibrated on classes that the model was not trained on: --false-accept names the
share of queries of new classes that may be taken for known ones.

Engines:
  faiss                   files in the index: exact up to 200,000 images, then approximate (recall measured)
  faiss:exact, faiss:hnsw, faiss:ivf
  postgresql://host/db    PostgreSQL with pgvector; needs nearfield[pgvector]
  milvus:http://host:19530, milvus:file.db   needs nearfield[milvus]
"""
EXAMPLES = """
nearfield index model/ photos/ --out shop.index
nearfield index efficientnet_lite0 photos/ --out shop.index
nearfield index --out shop.index --add more/
nearfield index --out shop.index --remove photos/old 'photos/*/draft_*.jpg'
nearfield index --out shop.index --check
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "make a collection of images searchable; embeds only what changed"
    parser = add_command(commands, "index", index, summary, details=DETAILS, examples=EXAMPLES)
    model = "an exported model or its model.onnx, the folder of a finished run, or a backbone: efficientnet_lite0, ..."
    parser.add_argument("model", nargs="?", help=model)
    parser.add_argument("photos", nargs="*", help="folders, files, patterns, a table (.csv) or the name of a dataset")
    parser.add_argument("--out", type=Path, required=True, metavar="INDEX", help="the index: a folder")
    parser.add_argument("--add", nargs="+", default=[], metavar="PHOTOS", help="add these images")
    parser.add_argument("--remove", nargs="+", default=[], metavar="PATH", help="remove files, folders, patterns")
    parser.add_argument("--check", action="store_true", help="measure recall and latency; verify the files")
    parser.add_argument("--dims", type=whole(1), metavar="N", help="keep the first N dims of the embeddings")
    parser.add_argument("--engine", metavar="ENGINE", help="where vectors are searched (default: faiss)")
    rate = "share of queries of new classes that may be taken for known ones (default: 0.01)"
    parser.add_argument("--false-accept", type=float, metavar="RATE", help=rate)
    size = "images that the index will hold, if it will grow (default: as many as it holds)"
    parser.add_argument("--gallery-size", type=whole(1), metavar="N", help=size)
    parser.add_argument("--unlabelled", action="store_true", help="folders are not classes")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="pretrained weights of the backbone")
    add_json(parser, "what changed and what was measured")


def index(arguments: argparse.Namespace) -> int:
    """Make, change or check an index; see `nearfield.index`."""
    from nearfield.index import Index

    _check_grammar(arguments)
    changes = None if arguments.check else _change(arguments)
    with Index.open(arguments.out) as found:
        problems = found.check() if arguments.check else []
        if arguments.json:
            show.say_json(_facts(found, changes, problems))
        else:
            _print(found, changes, problems)
    return 1 if problems else 0


def _check_grammar(arguments: argparse.Namespace) -> None:
    jobs = {"MODEL PHOTOS": arguments.model, "--add": arguments.add, "--remove": arguments.remove}
    chosen = [name for name, value in {**jobs, "--check": arguments.check}.items() if value]
    if len(chosen) != 1:
        raise InputError(f"give one of MODEL PHOTOS, --add, --remove and --check; got {', '.join(chosen) or 'none'}.")
    if arguments.model and not arguments.photos:
        raise InputError(f"PHOTOS are missing; got only {arguments.model}. See `nearfield index --help`.")
    fixed = ("dims", "engine", "false_accept", "gallery_size", "weights")
    given = next((name for name in fixed if getattr(arguments, name) is not None), None)
    if given and not arguments.model:
        name = given.replace("_", "-")
        raise InputError(f"--{name} is for `nearfield index MODEL PHOTOS`; {chosen[0]} keeps what the index has.")


def _change(arguments: argparse.Namespace) -> Changes:
    from nearfield.index import Options, add_photos, build_index, remove_photos

    if arguments.remove:
        return remove_photos(arguments.out, arguments.remove)
    labelled = not arguments.unlabelled
    with show.bar("Embedding images") as bar:
        if arguments.add:
            return add_photos(arguments.out, arguments.add, labelled=labelled, progress=bar)
        return build_index(
            arguments.model,
            arguments.photos,
            arguments.out,
            dims=arguments.dims,
            labelled=labelled,
            weights=arguments.weights,
            options=Options(arguments.engine, arguments.false_accept, arguments.gallery_size),
            progress=bar,
        )


def _facts(found: Index, changes: Changes | None, problems: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"out": str(found.path), "items": len(found), "classes": len(found.classes)}
    facts |= {"dims": found.dim, "model": found.digest, "measured": found.measured, "problems": problems}
    if changes is not None:
        facts["changes"] = vars(changes)
    if found.calibration is not None:
        facts["calibration"] = {key: value for key, value in found.calibration.facts().items() if key != "known"}
    return {**facts, "note": found.note}


def _print(found: Index, changes: Changes | None, problems: list[str]) -> None:
    if changes is not None:
        for problem in changes.problems:
            show.note(f"nearfield: skipped: {problem}")
        parts = [f"{getattr(changes, name):,} {name}" for name in ("added", "kept", "removed", "embedded")]
        show.say(f"Changes: {', '.join(parts)}")
    classes = show.count(len(found.classes), "class").replace("classs", "classes")
    show.say(f"Index: {found.path}, {show.count(len(found), 'image')}, {classes}, {found.dim} dims")
    measured = found.measured
    recalls = [f"{name} {100 * value:.1f} %" for name, value in measured.items() if name.startswith("recall")]
    if "milliseconds" in measured:
        speed = f"{measured['milliseconds']:.2f} ms a query"
        where = f"{measured['engine']}, {measured['bytes_per_vector']:,} bytes a vector"
        show.say(f"Search: {where}, {speed}, {', '.join(recalls)} of exact search")
    if found.calibration is not None:
        show.say(*_new_or_known(found.calibration))
    if found.note:
        show.note(f"nearfield: {found.note}")
    for problem in problems:
        show.note(f"nearfield: {problem}")


def _new_or_known(rule: Calibration) -> list[str]:
    low, high = rule.interval
    cut = f"a query is new if its best score is below {rule.threshold:.3f} ({low:.3f} to {high:.3f})"
    basis = f"for {rule.gallery_size:,} images; {rule.queries:,} queries of {rule.classes:,} classes"
    lines = [
        f"New or known: {cut}, {basis}",
        f"  new taken for known {_share(rule.fpir)}; known missed or confused {_share(rule.fnir)}",
        f"  AUROC {rule.auroc:.3f}; nearest class right {100 * rule.accuracy:.1f} %; calibration error {rule.ece:.3f}",
        f"  the threshold rises by {rule.growth:.3f} when the collection doubles",
    ]
    if rule.class_thresholds is not None:
        a, b, c = rule.class_thresholds
        lines.append(f"  thresholds of single classes: median {b:.3f}, 90 % of them in {a:.3f} to {c:.3f}")
    return lines


def _share(rate: tuple[float, float, float]) -> str:
    return f"{100 * rate[0]:.1f} % ({100 * rate[1]:.1f} to {100 * rate[2]:.1f})"
