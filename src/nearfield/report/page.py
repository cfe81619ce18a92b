"""The report of a bench: one self-contained HTML file that opens offline."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from nearfield import losses
from nearfield.analysis.leaderboard import Board
from nearfield.analysis.lint.catalogue import HEADING
from nearfield.bench.results import BenchResults, Part
from nearfield.config import RunConfig, build_config
from nearfield.data.dataset import Integers
from nearfield.errors import InputError, RunError
from nearfield.files import write_text
from nearfield.report import atlas, board, gallery, pair_weights, prefixes, provenance, published, sentences, tuning
from nearfield.report.cache import Cache
from nearfield.report.items import Items, open_items
from nearfield.report.packing import pack, script_json
from nearfield.report.thumbnails import Sheets, cached_sheets
from nearfield.training.build import distance_of

SCRIPTS = (
    "elements", "core", "numbers", "images", "controls", "board", "board_details", "critical", "papers", "copies",
    "charts", "curves", "prefixes", "trials", "ledger", "atlas", "atlas_pointer", "atlas_section", "gallery", "classes",
    "weights", "main",
)  # fmt: skip
CACHE = "report-cache"  # folder in that of the bench
NOTHING_TO_SHOW = (
    "No embeddings of the first seed with a score for every test image were found: the run folders may be elsewhere, "
    "or the queries search a separate gallery."
)
Say = Callable[[str], None]


def write_report(
    bench: Path, out: Path, images: str | None = None, say: Say = lambda line: None, digest: str | None = None
) -> Path:
    """Write the report of the bench in folder `bench` to the file `out`; unfinished tasks are listed.

    `images` names a dataset with the images of the same rows, for a bench on features. `say` is called with each
    stage. Neighbours, maps and thumbnails are cached in the bench's folder, so that the next report takes seconds.
    `digest` names one of several benches in the folder; by default the one opened last is reported.
    """
    results = read_bench(bench, digest)
    try:
        items: Items | str = open_items(results.data, images)
    except InputError:
        raise
    except RunError as error:
        if images:
            raise
        items = str(error)
    write_text(out, render(results, items, Cache(bench / CACHE), say))
    return out


def read_bench(bench: Path, digest: str | None = None) -> BenchResults:
    """The results of a bench's folder; RunError if there is nothing to report yet."""
    from nearfield.bench.read_results import open_results

    results = open_results(bench, digest)
    if not any(method.seeds for method in results.methods):
        raise RunError(
            f"no method of the bench in {bench} has a finished seed; resume it with `nearfield bench --out {bench}`."
        )
    return results


def render(results: BenchResults, items: Items | str, cache: Cache, say: Say = lambda line: None) -> str:
    """The page as HTML; `items` may be the reason why there are none."""
    boards = board.boards(results)
    lead = next(iter(boards.values()))
    data: dict[str, Any] = {
        "metrics": board.metrics(results),
        "methods": board.methods(results, lead),
        "board": board.board(results, boards),
        "papers": published.papers(results, boards),
        "curves": tuning.curves(results),
        "searches": tuning.searches(results),
        "ledger": board.ledger_entries(results),
        "provenance": provenance.provenance(results),
        "select_by": results.protocol.get("select_by", "map@r"),
    }
    shown, sheets = _shown(results, items, lead, cache, say)
    data |= shown
    return _fill(results, boards, data, sheets)


# ---------------------------------------------------------------------------------------------------------------
# Sections that need embeddings and images


def _shown(
    results: BenchResults, items: Items | str, lead: Board, cache: Cache, say: Say
) -> tuple[dict[str, Any], Sheets | None]:
    """Atlas, gallery and pair weights with their thumbnails; or why they are missing."""
    if isinstance(items, str):
        return {"why": items}, None
    found = _embeddings(results, len(items))
    scores = _query_scores(results, found)
    if not scores:
        return {"why": NOTHING_TO_SHOW}, None
    order = [number for one in lead.standings if (number := _number(results, one.label)) in scores]
    answered = []
    for number in order:
        say(f"Neighbours: {results.methods[number].label}")
        answered.append(gallery.answers(number, found[number], scores[number], _distance(results, number), cache))
    curves = []
    for number in order:
        say(f"Prefixes: {results.methods[number].label}")
        networks = _networks(results, number)
        curves.append(prefixes.prefix_scores(number, found[number], networks, items.labels, cache))
    queries = gallery.choose_queries(answered, items.labels)
    points = atlas.sample(items.labels)
    maps = []
    if len(points) >= atlas.FEWEST:
        say(f"Maps of {len(points):,} points for {len(order)} methods")
        by_angle = _distance(results, order[0]) == "cosine"
        maps = atlas.maps([found[number] for number in order], points, by_angle, cache)
    batch = pair_weights.choose_batch(items.labels)
    say("Pair weights")
    weights = pair_weights.pair_weight_section(results, found[order[0]][batch], items.labels[batch], cache)
    thumbs = _thumbs(items, gallery.images_shown(answered, queries), points)
    say(f"Thumbnails of {len(thumbs):,} images")
    sheets = None
    if items.images is not None and len(thumbs):
        sheets = cached_sheets(items.images, items.rows[thumbs], items.fingerprint, cache)
    first = results.methods[order[0]].seeds[0]
    return {
        "why": None,
        "items": _item_facts(items, thumbs if sheets else np.zeros(0, dtype=np.int64)),
        "sheets": sheets.facts() if sheets else None,
        "prefixes": curves,
        "atlas": atlas.atlas(order, maps, points) if maps else None,
        "gallery": gallery.gallery(answered, queries, items.labels, first.seed, _part(results, order[0])),
        "weights": {
            "batch": pack(items.labels[batch].astype(np.uint16)),
            "of": order[0],
            "losses": weights,
        } if weights else None,
    }, sheets  # fmt: skip


def _embeddings(results: BenchResults, count: int) -> dict[int, NDArray[np.float16]]:
    """By method, for those with a row for every test image."""
    found = {}
    for number, method in enumerate(results.methods):
        rows = results.embeddings(method.label) if method.seeds else None
        if rows is not None and len(rows) == count and count > 1:
            found[number] = rows
    return found


def _number(results: BenchResults, label: str) -> int:
    return next(i for i, method in enumerate(results.methods) if method.label == label)


def _distance(results: BenchResults, number: int) -> str:
    """What the embeddings of a method are ranked by."""
    method, run = results.methods[number], results.config.get("run", {})
    chosen = {key.removeprefix("method.params."): v for key, v in method.params.items() if key.startswith("method.p")}
    given = {"name": method.name, "params": chosen}
    distance = str(run.get("distance", "cosine"))
    known = method.name in losses.names()
    return distance_of(build_config(RunConfig, {"distance": distance, "method": given})) if known else distance


def _part(results: BenchResults, number: int) -> Part:
    return "concatenated" if results.methods[number].seeds[0].concatenated else "separated"


def _networks(results: BenchResults, number: int) -> int:
    """How many networks' embeddings stand side by side."""
    return len(results.methods[number].seeds[0].folds) if _part(results, number) == "concatenated" else 1


def _query_scores(results: BenchResults, found: dict[int, NDArray[np.float16]]) -> dict[int, NDArray[Any]]:
    """Scores of the first seed by method, where every test image is a query."""
    scores = {n: results.queries(results.methods[n].label, "map@r", _part(results, n))[0] for n in found}
    return {number: each for number, each in scores.items() if len(each) == len(found[number])}


def _thumbs(items: Items, needed: Integers, points: Integers) -> Integers:
    """Items that get a thumbnail: all that the gallery shows, then points of the map as far as there is room."""
    if items.images is None:
        return np.zeros(0, dtype=np.int64)
    more = np.setdiff1d(points, needed)[: max(0, gallery.IMAGES - len(needed))]
    return np.concatenate([needed, more])


def _item_facts(items: Items, chosen: Integers) -> dict[str, Any]:
    thumbs = np.full(len(items), -1, dtype=np.int32)
    thumbs[chosen] = np.arange(len(chosen))
    return {
        "labels": pack(items.labels.astype(np.uint16 if len(items.class_names) <= 65_535 else np.uint32)),
        "classes": items.class_names,
        "class_category": items.class_category.tolist(),
        "categories": items.category_names,
        "thumbs": pack(thumbs),
        "files": items.files,
    }


# ---------------------------------------------------------------------------------------------------------------
# The page


def _fill(results: BenchResults, boards: dict[Part, Board], data: dict[str, Any], sheets: Sheets | None) -> str:
    templates = Environment(
        loader=PackageLoader("nearfield.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = files("nearfield.report") / "assets"
    script = "\n".join((folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    fingerprint = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return templates.get_template("report.html.j2").render(
        title=sentences.headline(results),
        facts=sentences.facts(results),
        lines=[line for found in list(boards.values())[:1] for line in sentences.finding(found)],
        heading=HEADING,
        notices=[*board.unequal(results), *sentences.notices(results)],
        why=data["why"],
        style=Markup((folder / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=fingerprint,
        data=Markup(script_json(data)),
        sheets=sheets.base64() if sheets else [],
    )
