"""A bench in a few sentences: title, facts, finding, and notices to read before trusting it."""

from __future__ import annotations

from pathlib import Path

from nearfield.analysis.budgets import budget_lines
from nearfield.analysis.leaderboard import Board
from nearfield.analysis.lint.rules import lint_results
from nearfield.analysis.tables import baseline_lines, class_lines, percent, title
from nearfield.bench.results import BenchResults


def headline(results: BenchResults) -> str:
    """Number of methods and the dataset."""
    count = sum(bool(method.seeds) for method in results.methods)
    name = str(results.data.get("name", "unknown data"))
    return f"{count} method{'s' * (count != 1)} on {Path(name).name or name}"


def facts(results: BenchResults) -> list[tuple[str, str]]:
    """Test and training part, protocol, seeds and search, for the head of the report."""
    data, seeds = results.data, sorted({len(m.seeds) for m in results.methods if m.seeds})
    trials = sorted({len(method.trials) for method in results.methods})
    unseen = "" if results.protocol.get("test") == "closed" else " unseen in training"
    protocol = str(results.protocol.get("name", "unknown"))
    folds = int(results.protocol.get("folds", 1))
    found = [
        ("Test", f"{data.get('test_images', 0):,} images of {data.get('test_classes', 0):,} classes{unseen}"),
        ("Training", f"{data.get('train_images', 0):,} images of {data.get('train_classes', 0):,} classes"),
        ("Protocol", f"{protocol}, {folds} folds" if folds > 1 else protocol),
        ("Seeds", " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))),
    ]
    if trials[-1]:
        counts = " to ".join(map(str, dict.fromkeys([trials[0], trials[-1]])))
        steps = results.config.get("trial_steps")
        found.append(("Search", f"{counts} trials per method" + (f", of {steps:,} steps each" if steps else "")))
    return found


def finding(found: Board) -> list[str]:
    """The result: the best, those not significantly different from it, and the best untrained baseline."""
    first = found.standings[0]
    lines = [f"{first.label} has the highest mean {title(found.metric)}, {percent(first.scores[found.metric])} %."]
    lines += class_lines(found)  # the most general level that one dataset allows, first
    others = [label for label in found.like_best if label != found.best]
    if found.verdicts is None and len(found.standings) > 1:
        lines.append("No two methods share two finished seeds, so no difference can be tested.")
    elif others and len(others) + 1 == len(found.compared):
        lines.append("Level seeds: no other method is significantly worse.")
    elif others:
        lines.append(f"Level seeds: not significantly different from it: {', '.join(others)}.")
    elif found.verdicts is not None and found.best not in found.below_baseline:
        lines.append(f"Level seeds: {found.best} is significantly better than every other method.")
    return lines + baseline_lines(found)


def notices(results: BenchResults) -> list[str]:
    """What `nearfield lint` finds in the bench, budgets that were too small, and unfinished tasks."""
    found = [*(sin.text for sin in lint_results(results)), *budget_lines(results)]
    if results.missing:
        count = len(results.missing)
        tasks = "1 task is" if count == 1 else f"{count} tasks are"
        found.append(f"{tasks} not finished and not counted; the list is under Provenance.")
    return found
