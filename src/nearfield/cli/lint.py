"""`nearfield lint`: find what makes a comparison unfair."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import nearfield as nf
from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json
from nearfield.errors import InputError

if TYPE_CHECKING:
    from nearfield.analysis.lint.catalogue import Sin
    from nearfield.config import BenchConfig, RunConfig
    from nearfield.data import Dataset

Found: TypeAlias = "tuple[str, Sin]"  # where it was read, what it is
DETAILS = """
Reads the configurations of a bench, or of runs that are compared with each other, and names what biases the
comparison: too few seeds, untuned methods, unequal budgets, choosing by test scores. Exit code 1 if it finds any.
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "find what makes a comparison unfair, why it matters, and what to do"
    examples = "nearfield lint bench.toml\nnearfield lint runs/mine runs/theirs"
    parser = add_command(commands, "lint", lint, summary, details=DETAILS, examples=examples)
    help = "TOML files, and folders of benches or runs; runs are compared with each other"
    parser.add_argument("paths", nargs="+", type=Path, metavar="CONFIG_OR_FOLDER", help=help)
    add_json(parser)


def lint(arguments: argparse.Namespace) -> int:
    """Name the sins of benches, and of the runs given together; 1 if there are any."""
    from nearfield.analysis.lint.rules import lint as lint_bench
    from nearfield.analysis.lint.rules import lint_runs

    found, runs = [], []
    for path in arguments.paths:
        bench, more = _read(path)
        runs += more
        if bench is not None:
            found += [(str(path), sin) for sin in lint_bench(bench, _dataset(bench.run.data.name))]
        found += list(_choices(path))
    if runs:
        names = {run.data.name for run in runs}
        dataset = _dataset(*names) if len(names) == 1 else None
        found += [(show.count(len(runs), "run"), sin) for sin in lint_runs(runs, dataset)]
    _say(found, arguments.json)
    return 1 if found else 0


def _read(path: Path) -> tuple[BenchConfig | None, list[RunConfig]]:
    """The bench of a TOML file or of a bench's folder, or the runs of a file or a folder."""
    from nearfield.bench.database import FILE
    from nearfield.bench.read_results import open_results
    from nearfield.config import BenchConfig, RunConfig, build_config, load_config, read_toml

    if path.is_dir():
        if (path / FILE).is_file():
            return build_config(BenchConfig, open_results(path).config), []
        runs = [load_config(RunConfig, each) for each in sorted(path.rglob("config.toml"))]
        if not runs:
            raise InputError(f"{path} holds neither {FILE} of a bench nor config.toml of a run; check the path.")
        return None, runs
    values = read_toml(path)
    if values and values.keys() <= RunConfig.model_fields.keys():
        return None, [build_config(RunConfig, values)]
    return build_config(BenchConfig, values), []


def _choices(path: Path) -> Iterator[Found]:
    """Finished runs below a folder whose step was not chosen by validation."""
    from nearfield.analysis.lint.rules import lint_choice
    from nearfield.config import RunConfig, load_config
    from nearfield.training.run_folder import RunFolder

    for result in sorted(path.rglob("result.json")) if path.is_dir() else ():
        run = RunFolder(result.parent)
        config = load_config(RunConfig, run.path / "config.toml")
        yield from ((str(run.path), sin) for sin in lint_choice(config, run.result or {}, run.records()))


def _dataset(name: str) -> Dataset | None:
    """The dataset, or None, said so, if it is not here: a configuration can be read anywhere."""
    try:
        return nf.data.load(name)
    except InputError as error:
        show.note(f"nearfield: linting without the data: {error}")
        return None


def _say(found: list[Found], as_json: bool) -> None:
    if as_json:
        rows = [
            {"in": where, "sin": s.code, "where": s.where, "found": s.found, "bias": s.bias, "remedy": s.remedy}
            for where, s in found
        ]
        show.say_json(rows)
    elif not found:
        show.say("No problem found.")
    else:
        head = ("problem", "where", "found", "why it biases", "remedy")
        cells = [(s.code, f"{s.where}\n{place}", s.found, s.bias, s.remedy) for place, s in found]
        show.say(show.table(head, cells, lines=True))
