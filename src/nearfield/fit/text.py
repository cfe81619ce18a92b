"""The report of a fit, in Markdown that also reads well in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Facts = Mapping[str, Any]
SHOWN = 5  # names of a list


def report_text(facts: Facts) -> str:
    """What was found, what was tried, what to expect: from the facts of `fit_model`."""
    parts = ["# What to expect of this model", _verdict(facts)]
    if "new_classes" in facts:
        parts += ["## New classes", _expectation(facts)]
    if facts["tried"] or facts["skipped"]:
        parts += ["## What was tried", _tried(facts)]
    parts += ["## The data", _data(facts), "## How to go on", _next(facts)]
    return "\n\n".join(parts) + "\n"


def _verdict(facts: Facts) -> str:
    what = f"{facts['model']}; {facts['dims']} dims; input: {facts['input']}."
    if facts["exported"] == "trained":
        gain = facts["new_classes"]["difference"]
        first = gain["recall@1"]
        same = "" if first["low"] > 0 or first["high"] < 0 else ", which is not distinguishable from no change"
        return (
            f"Exported: a trained model, {what}\n\nOn classes that it had never seen it ranks better than the "
            f"untrained network: MAP@R {_signed(gain['map@r'])} points. R@1: {_signed(first)} points{same}."
        )
    return f"Exported: the untrained network, {what}\n\nThe reason: {facts['reason']}."


def _expectation(facts: Facts) -> str:
    found = facts["new_classes"]
    rows = [("this model, trained", "trained"), (facts["baseline"]["words"], "untrained")]
    lines = ["| | nearest image is of the same class (R@1) | MAP@R |", "|---|---|---|"]
    for words, part in rows:
        if part in found:
            words = "trained" if part == "trained" and facts["exported"] != "trained" else words
            lines.append(f"| {words} | {_range(found[part]['recall@1'])} | {_range(found[part]['map@r'])} |")
    if "difference" in found:
        both = (_signed(found["difference"][name]) for name in ("recall@1", "map@r"))
        lines.append(f"| difference, in points | {' | '.join(both)} |")
    about = (
        f"Measured on {found['images']:,} images of {found['classes']:,} classes that nothing was learned from and "
        "nothing was chosen by: each image is a query among all others. In parentheses 95 % intervals over classes: "
        "what other classes of this kind would give. A larger collection is harder; `nearfield index` measures yours."
    )
    return "\n".join([about, "", *lines])


def _tried(facts: Facts) -> str:
    about = (
        "MAP@R on validation classes, which are neither trained on nor tested. Within an approach all methods have the "
        "same network, batches, optimizer and steps, and their published parameters."
    )
    lines = [about, ""]
    if facts["tried"]:
        lines += ["| approach | method | steps | folds | MAP@R | training |", "|---|---|---|---|---|---|"]
    for row in facts["tried"]:
        score = f"{100 * row['map@r']:.1f} %" if row["map@r"] is not None else "-"
        note = row["note"] or f"{row['seconds']:.0f} s"
        cells = (row["approach"], row["method"], str(row["steps"]), str(row["folds"]), score, _cell(note))
        lines.append(f"| {' | '.join(cells)} |")
    before = facts.get("baseline", {}).get("map@r")
    if before is not None:
        lines += [
            "",
            f"The untrained network has {100 * before:.1f} % on the classes that the final trainings chose by.",
        ]
    lines += ["", *(f"- Not tried: {_cell(reason)}" for reason in facts["skipped"])] if facts["skipped"] else []
    return "\n".join(lines)


def _data(facts: Facts) -> str:
    check, lines = facts["check"], []
    if "classes" not in check:
        return "\n".join([f"- {check['images']:,} images without classes", *_listed(check, "unreadable", "unreadable")])
    low, middle, high = check["images_per_class"]
    lines.append(f"- {check['images']:,} images of {check['classes']:,} classes in {_code(str(facts['data']))}")
    lines.append(
        f"- usable: {check['usable_images']:,} images of {check['usable_classes']:,} classes, {low} to {high} of "
        f"a class (median {middle}), shorter side {check['shorter_side']} pixels (median)"
    )
    lines += _listed(check, "unreadable", "left out, cannot be read")
    lines += _listed(check, "classes_with_one_image", "left out, classes with a single image")
    lines += _listed(check, "classes_without_images", "left out, classes without a usable image")
    lines += _listed(check, "identical_across_classes", "left out, identical images in different classes")
    lines += _listed(check, "copies_within_classes", "left out, copies of an image of the same class")
    lines += _listed(check, "near_duplicates_across_classes", "suspicious, near-duplicates in different classes")
    if check["near_duplicates_within_classes"]:
        lines.append(f"- pairs of near-duplicates inside classes: {check['near_duplicates_within_classes']:,}")
    split = facts.get("split")
    if split:
        lines.append(
            f"- held out for the test: {split['test_classes']:,} classes with {split['test_images']:,} images; "
            f"{split['train_classes']:,} classes to learn from"
        )
        if split["left_out_as_leaks"]:
            lines.append(f"- left out of the test, near-duplicates of training images: {split['left_out_as_leaks']:,}")
        if split["left_out_for_time"]:
            lines.append(f"- left out to keep the time: {split['left_out_for_time']:,} images; give more --minutes")
    return "\n".join(lines)


def _next(facts: Facts) -> str:
    spent = f"This took {facts['seconds'] / 60:.1f} minutes of {facts['minutes']:g}."
    return (
        f"{spent}\n\n    nearfield index MODEL PHOTOS --out shop.index\n\nmakes the collection searchable, and "
        "measures on it when a photograph is of a class that the collection does not have."
    )


def _listed(check: Facts, key: str, words: str) -> list[str]:
    found = check[key]
    if not found["count"]:
        return []
    names: Sequence[str] = found["first"][:SHOWN]
    more = ", ..." if found["count"] > len(names) else ""
    return [f"- {words}: {found['count']:,} ({', '.join(map(_code, names))}{more})"]


def _range(value: Facts) -> str:
    return f"{100 * value['mean']:.1f} % ({100 * value['low']:.1f} to {100 * value['high']:.1f})"


def _signed(value: Facts) -> str:
    return f"{100 * value['mean']:+.1f} ({100 * value['low']:+.1f} to {100 * value['high']:+.1f})"


def _code(text: str) -> str:
    """A name as it is: no name can change the page."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("<", "&lt;").split())
