"""A suite: the same comparison on several datasets, one bench a dataset.

Its file is that of a bench, with a list of `datasets`. Each has a `name` (or path) and may change keys of `run`, such
as the network that its kind of data needs; methods, trials, seeds, variants and protocol are those of the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfield import losses
from nearfield.bench.ablations import folder_name
from nearfield.config import BenchConfig, build_config, leaves, merge, read_toml
from nearfield.errors import InputError

if TYPE_CHECKING:
    from nearfield.bench.engine import Engine
    from nearfield.bench.results import BenchResults
    from nearfield.bench.run import Say, Watched

Benches = dict[str, BenchConfig]  # by dataset
OF_A_DATASET = ("name", "run")


def read_suite(path: Path, overrides: Sequence[str] = ()) -> Benches:
    """The bench of every dataset; InputError if the file is not a suite. `overrides` are keys of a bench."""
    return suite_of(read_toml(path), overrides)


def suite_of(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Benches:
    """The bench of every dataset from the tables of a suite's file."""
    shared = {key: value for key, value in values.items() if key != "datasets"}
    listed = values.get("datasets")
    if not isinstance(listed, list) or not listed:
        raise InputError(f"a suite must list at least one dataset as [[datasets]]; got {listed!r}.")
    if shared.get("methods", "all") in ("all", ["all"]):
        shared["methods"] = [{"name": name} for name in losses.names()]
    benches: Benches = {}
    for each in listed:
        name = _checked_name(each)
        if folder_name(name) in map(folder_name, benches):
            raise InputError(f"datasets must differ; got {name!r} twice. Remove one.")
        own = [f"run.{key}={_toml(value)}" for key, value in leaves(each.get("run", {})).items()]
        given = merge(shared, [f"run.data.name={_toml(name)}", *own, *overrides])
        benches[name] = build_config(BenchConfig, given)
    return benches


def _checked_name(each: Any) -> str:
    if not isinstance(each, dict) or not isinstance(each.get("name"), str):
        raise InputError(f"every entry of datasets must have a name, the name or path of data; got {each!r}.")
    unknown = [key for key in each if key not in OF_A_DATASET]
    if unknown:
        raise InputError(
            f"datasets: {each['name']} may set {' and '.join(OF_A_DATASET)} only, everything else is equal for all; "
            f"got {', '.join(unknown)}."
        )
    return str(each["name"])


def _toml(value: Any) -> str:
    import tomli_w

    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def bench_folder(folder: Path, name: str) -> Path:
    """Where the bench of a dataset is in the folder of its suite."""
    return folder / folder_name(name)


def run_suite(
    benches: Mapping[str, BenchConfig], folder: Path, engine: Engine, watch: Callable[[str, Watched], None], say: Say
) -> Iterator[dict[str, BenchResults]]:
    """Run the bench of every dataset in a folder of its own, or resume it; after each, what was found so far."""
    from nearfield.bench.run import run_bench

    found: dict[str, BenchResults] = {}
    for name, bench in benches.items():
        found[name] = run_bench(bench, bench_folder(folder, name), engine, partial(watch, name), say, fit=True)
        yield found
