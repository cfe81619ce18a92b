"""Fit a model to a collection: check, hold out classes, compare within a budget, test, export.

    1  check the data; hold out 30 % of the classes for the test
    2  embed all images once with the pretrained network: the untrained baseline
    3  compare methods by validation classes: a head on these features; then the whole network, or, for small images,
       a small network from scratch
    4  test what validation chose on the held-out classes, against the baseline; export it if it is better, else the
       untrained network

Killed at any instant, the same command resumes. Axes: N images, F features.
"""

from __future__ import annotations

import os
import shutil
import time
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file

from nearfield._version import __version__
from nearfield.data import Dataset, Pictures
from nearfield.data.pictures import examine
from nearfield.errors import InputError, require_positive
from nearfield.export.description import Training
from nearfield.export.embed_dataset import as_trained, embed_to_file, open_images
from nearfield.export.join import Backbone, join
from nearfield.export.model import Embedder, load
from nearfield.export.unlabelled import Unlabelled
from nearfield.export.untrained import untrained
from nearfield.export.write import require_free, write_folder
from nearfield.files import flush_to_disk, read_json, write_json, write_text
from nearfield.fit.approaches import METHODS, Approach, head, small_network, whole_network
from nearfield.fit.check import SMALL, Checked, check_data
from nearfield.fit.compare import Final, Say, choose_method, minutes_for, steps_for, train_final, validation_score
from nearfield.fit.measure import METRICS, expectation, scores_of_queries
from nearfield.fit.split import FEWEST, hold_out
from nearfield.fit.text import report_text
from nearfield.fit.work import Work, work_folder, working
from nearfield.metrics.from_files import read_info
from nearfield.models import build_model, embed
from nearfield.models.build import LITE0
from nearfield.models.pretrained import Pretrained
from nearfield.progress import reported

SIZES = (224, 96)  # pixels of images for the pretrained network: of photographs, of small images
EMBEDDING = 0.4  # share of the budget that embedding may take; more images are left out
SHORT, SHORTEST = 0.1, 60.0  # share of the budget, and seconds: if less is left, no further approach is begun
TIMED = 24  # images that are embedded to know how long one takes
FOLDS = {"head": 3, "small": 2}
FACTS, REPORT = "fit.json", "report.md"


class Baseline(NamedTuple):
    """The network before training."""

    model: Embedder | None  # None: a small network with random weights, built when it is needed
    embeddings: npt.NDArray[np.float32]  # (N, F)
    words: str


def fit_model(
    photos: str, out: str | PathLike[str], *, minutes: float = 10.0, onnx: bool = False, say: Say | None = None
) -> dict[str, Any]:
    """Fit a model to the images of `photos` and write it as the folder `out`; the facts that its report tells.

    `photos` is a folder of class folders, a table (.csv) or the name of a dataset; without classes the pretrained
    network is exported. `say` is told what was found on the way.
    """
    require_positive(minutes=minutes)
    target, tell = Path(os.path.abspath(out)), say or (lambda line: None)
    data = open_images(photos)
    if data.are_features:
        raise InputError(f"fit needs images; {data.name} holds features. `nearfield bench` compares methods on them.")
    finished = _finished(target, data.fingerprint)
    if finished is not None:
        shutil.rmtree(work_folder(target), ignore_errors=True)
        return finished
    require_free(target)
    with working(target, data.fingerprint, minutes) as work:
        if work.resumed:
            tell(f"Resuming after {work.spent / 60:.1f} minutes in {work.path}.")
        facts: dict[str, Any] = {"nearfield": __version__, "data": data.name, "fingerprint": data.fingerprint}
        facts |= {"minutes": minutes, "tried": [], "skipped": []}
        model = _fit(work, data, facts, tell)
        facts["seconds"] = round(work.spent, 1)
        _publish(work, target, model, facts, onnx)
    return facts


def _finished(target: Path, fingerprint: str) -> dict[str, Any] | None:
    """What a finished fit of the same data found; InputError if it was of other data."""
    if not (target / FACTS).is_file():
        return None
    facts = read_json(target / FACTS)
    if facts.get("fingerprint") != fingerprint:
        raise InputError(f"{target} holds a model of other data; delete it or choose another --out.")
    return facts


def _fit(work: Work, data: Dataset | Unlabelled, facts: dict[str, Any], say: Say) -> Embedder:
    """The model to export; fills `facts`."""
    if isinstance(data, Unlabelled):
        return _without_classes(data, facts)
    checked = Checked.of(work.decide("check", lambda: check_data(data).values()))
    facts["check"] = checked.facts
    say(f"{checked.facts['usable_images']:,} of {checked.facts['images']:,} images can be used.")
    if checked.facts["usable_classes"] < FEWEST:
        many = checked.facts["usable_classes"]
        reason = f"a comparison needs {FEWEST} classes with two images each; got {many}"
        facts |= {"exported": "untrained", "reason": reason, "model": LITE0}
        return untrained(LITE0, size=SIZES[checked.side < SMALL])
    base = _pretrained(checked, facts)
    most = None if base is None else _affordable(work, base, data, checked)
    dataset, leaking = hold_out(data, checked, most)
    facts["split"] = {
        "images": len(dataset.images),
        "train_classes": len(dataset.train_classes),
        "test_classes": len(dataset.test_classes),
        "test_images": len(dataset.test_rows()),
        "left_out_as_leaks": leaking,
        "left_out_for_time": len(checked.rows) - leaking - len(dataset.images),
        "test_class_names": [dataset.class_names[label] for label in dataset.test_classes.tolist()],
    }
    finals, baseline = _train(work, base, dataset, checked, facts, say)
    return _choose(work, dataset, finals, baseline, facts)


def _without_classes(data: Unlabelled, facts: dict[str, Any]) -> Embedder:
    assert isinstance(data.images, Pictures)
    with reported("Checking images") as report:
        problems = examine(data.images.files, progress=report)[1]
    facts["check"] = {"images": len(data.images), "unreadable": {"count": len(problems), "first": problems[:20]}}
    reason = "there are no classes to learn from, which takes at least six class folders with images"
    facts |= {"exported": "untrained", "reason": reason, "model": LITE0}
    return untrained(LITE0)


def _pretrained(checked: Checked, facts: dict[str, Any]) -> Embedder | None:
    """The pretrained network, its features as they are; None, with a reason in `facts`, if it is not installed."""
    try:
        model = untrained(LITE0, size=SIZES[checked.side < SMALL])
    except InputError as error:
        facts["skipped"].append(f"The pretrained network: {error}")
        return None
    return Embedder(model.net, model.description, model.pretrained, normalize=False)


def _affordable(work: Work, base: Embedder, data: Dataset, checked: Checked) -> int:
    """How many images can be embedded in their share of the budget."""

    def measure() -> int:
        images, rows = as_trained(data, base).images, checked.rows[:TIMED]
        begun = time.monotonic()
        embed(base, images[rows])
        each = (time.monotonic() - begun) / len(rows)
        return max(int(EMBEDDING * work.budget / each), 100)

    return work.decide("most images", measure)


def _train(
    work: Work, base: Embedder | None, dataset: Dataset, checked: Checked, facts: dict[str, Any], say: Say
) -> tuple[list[Final], Baseline]:
    """Everything that was trained to the end, and the untrained baseline."""
    threads = work.decide("threads", torch.get_num_threads)
    finals: list[Final] = []
    if base is not None:
        features, source = _features(work, base, dataset)
        baseline = Baseline(base, features, f"{LITE0}, pretrained")
        first = head(dataset, features, source, FOLDS["head"], threads)
        finals += _approach(work, first, facts, say, must=True)
    else:
        small = small_network(dataset, checked, FOLDS["small"], threads)
        baseline = Baseline(None, _random(small), "a small network with random weights")
    if checked.side < SMALL or base is None:
        finals += _approach(work, small_network(dataset, checked, FOLDS["small"], threads), facts, say, must=not finals)
    elif finals:
        finals += _whole(work, whole_network(dataset, threads), finals[0].method, facts, say)
    return finals, baseline


def _features(work: Work, base: Embedder, dataset: Dataset) -> tuple[npt.NDArray[np.float32], Path]:
    source = work.path / "features.npz"
    if not (source.exists() and read_info(source).get("data") == dataset.fingerprint):
        with reported("Embedding images") as report:
            embed_to_file(base, as_trained(dataset, base), source, progress=report)
    with np.load(source, allow_pickle=False) as found:
        return found["embeddings"], source


def _random(approach: Approach) -> npt.NDArray[np.float32]:
    net = build_model(approach.run.model, approach.run.seed)
    return np.asarray(embed(net, np.asarray(approach.dataset.images)).numpy())


def _approach(work: Work, approach: Approach, facts: dict[str, Any], say: Say, must: bool) -> list[Final]:
    """Compare methods, then train the best one again for the test; with `must` even if time is short."""
    runs = len(METHODS) * approach.folds + 2  # the final one has twice the steps
    if not must and not _in_time(work, approach, facts):
        return []
    steps = steps_for(work, approach, runs) or (approach.steps[0] if must else 0)
    if not steps:
        facts["skipped"].append(_too_long(work, approach, runs))
        return []
    say(f"Comparing {len(METHODS)} methods, {approach.words}, {steps} steps each, {approach.folds} folds.")
    method, tried = choose_method(work, approach, steps, say)
    facts["tried"] += tried
    return [] if method is None else _finally(work, approach, method, min(2 * steps, approach.steps[1]), facts, say)


def _whole(work: Work, approach: Approach, method: str, facts: dict[str, Any], say: Say) -> list[Final]:
    """Train the whole network with the method that was best on frozen features, if there is time."""
    if not _in_time(work, approach, facts):
        return []
    steps = steps_for(work, approach, 1)
    if not steps:
        facts["skipped"].append(_too_long(work, approach, 1))
        return []
    say(f"Training {approach.words}, {method}, {steps} steps.")
    return _finally(work, approach, method, steps, facts, say)


def _finally(work: Work, approach: Approach, method: str, steps: int, facts: dict[str, Any], say: Say) -> list[Final]:
    found = train_final(work, approach, method, steps, say)
    row = {"approach": f"{approach.words}, final", "method": method, "steps": steps, "folds": 1}
    if isinstance(found, str):
        facts["tried"].append({**row, "map@r": None, "seconds": 0.0, "note": found})
        return []
    seconds = read_json(work.run(found.run) / "result.json")["train_seconds"]
    facts["tried"].append({**row, "map@r": found.val, "seconds": round(seconds, 1), "note": ""})
    return [found]


def _in_time(work: Work, approach: Approach, facts: dict[str, Any]) -> bool:
    """Whether so much time is left that measuring the pace of an approach is worth it; if not, `facts` say so."""
    worth = work.decide(f"{approach.name} in time", lambda: work.left > min(SHORT * work.budget, SHORTEST))
    if not worth:
        facts["skipped"].append(f"{approach.words}: no time was left; give more --minutes")
    return worth


def _too_long(work: Work, approach: Approach, runs: int) -> str:
    return f"{approach.words}: not enough time; --minutes {minutes_for(work, approach, runs)} allows a short one"


def _choose(work: Work, dataset: Dataset, finals: list[Final], baseline: Baseline, facts: dict[str, Any]) -> Embedder:
    """By validation; then the test classes say whether it is better than the untrained network."""
    score = scores_of_queries(dataset, baseline.embeddings)
    best = max(finals, key=lambda final: final.val, default=None)
    facts["baseline"] = {"words": baseline.words, "dims": baseline.embeddings.shape[1]}
    if best is not None:
        before = validation_score(dataset, best.approach.run.data, baseline.embeddings)
        facts["baseline"]["map@r"] = before
        scores = load_file(work.run(best.run) / "test.safetensors")
        facts["new_classes"] = expectation(dataset, {name: scores[f"score.{name}"] for name in METRICS}, score)
        gain = facts["new_classes"]["difference"]["map@r"]
        trained = f"{best.approach.words}, {best.method}"
        if best.val > before and gain["low"] > 0:
            facts |= {"exported": "trained", "reason": "", "model": trained}
            return _trained(work, best, baseline, dataset, facts)
        where = "the validation classes" if best.val <= before else "the held-out classes"
        reason = f"training ({trained}) did not beat the untrained network on {where}"
    else:
        facts["new_classes"] = expectation(dataset, None, score)
        reason = "no training was finished"
    facts |= {"exported": "untrained", "reason": reason, "model": baseline.words}
    return _untrained(work, finals, baseline, dataset)


def _trained(work: Work, best: Final, baseline: Baseline, dataset: Dataset, facts: dict[str, Any]) -> Embedder:
    model = load(work.run(best.run))
    if model.description.model.backbone == "features":
        assert baseline.model is not None
        below = baseline.model
        assert below.input.kind == "pictures"
        model = join(model, Backbone(LITE0, below.input, below.pretrained.sha256))
    names = tuple(dataset.class_names[label] for label in dataset.train_classes.tolist())
    made = {"data": facts["data"], "fingerprint": facts["fingerprint"], "classes": names}
    training = model.description.training.model_copy(update=made)
    model.description = model.description.model_copy(update={"training": training})
    return model


def _untrained(work: Work, finals: list[Final], baseline: Baseline, dataset: Dataset) -> Embedder:
    if baseline.model is not None:
        return Embedder(baseline.model.net, baseline.model.description, baseline.model.pretrained, normalize=True)
    if not finals:
        raise InputError(
            f"nothing could be fitted to {dataset.name}: no training was finished, and there is no pretrained network: "
            'give more --minutes, or pip install "nearfield[pretrained]".'
        )
    approach, model = finals[0].approach, load(work.run(finals[0].run))
    net = build_model(approach.run.model, approach.run.seed)
    origin = Training(run="", config="", method="none", backbone="conv", data="none", nearfield=__version__)
    description = model.description.model_copy(update={"training": origin, "test": {}})
    return Embedder(net, description, Pretrained("random weights", "", ()), normalize=True)


def _publish(work: Work, target: Path, model: Embedder, facts: dict[str, Any], onnx: bool) -> None:
    """Write model, facts and report beside their place, then move all of it there at once."""
    draft = work.path / "model"
    shutil.rmtree(draft, ignore_errors=True)
    write_folder(model, draft, onnx)
    facts["dims"], facts["input"] = model.dim, model.input.words
    write_text(draft / REPORT, report_text(facts))
    write_json(draft / FACTS, facts)
    flush_to_disk(draft)
    os.rename(draft, target)
    flush_to_disk(target.resolve().parent)
