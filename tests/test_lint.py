"""Every pitfall of the catalogue is provoked and named; a clean comparison has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benches import fake_results
from test_protocols import made

from nearfield import data
from nearfield.analysis.lint.catalogue import EQUAL, SINS
from nearfield.analysis.lint.rules import lint, lint_choice, lint_results, lint_runs
from nearfield.bench.database import FILE, Store
from nearfield.bench.plan import Bench
from nearfield.bench.protocols import PROTOCOLS
from nearfield.cli.main import main
from nearfield.config import BenchConfig, MethodConfig, RunConfig, build_config
from nearfield.recipes.small import starter_bench
from nearfield.training.run_folder import RunFolder

CLEAN: dict[str, Any] = {
    "protocol": "reality-check",
    "trials": 8,
    "methods": [{"name": "multi_similarity"}, {"name": "fastap"}],
    "seeds": [0, 1, 2, 3, 4],
}
OWN = 'name = "mine"\n'


def bench(**changes: Any) -> BenchConfig:
    return build_config(BenchConfig, {**CLEAN, **changes})


def grid(
    change: Callable[[RunConfig], dict[str, Any]] = lambda run: {}, names: str = "triplet fastap"
) -> list[RunConfig]:
    """Methods x five seeds, all else equal but for what `change` says of a run, in dotted keys."""
    runs = []
    for name in names.split():
        for seed in range(5):
            run = RunConfig(method=MethodConfig(name=name), seed=seed)
            values = run.model_dump()
            for key, value in change(run).items():
                *tables, last = key.split(".")
                at = values
                for table in tables:
                    at = at[table]
                at[last] = value
            runs.append(build_config(RunConfig, values))
    return runs


def of_fastap(**values: Any) -> list[RunConfig]:
    """The grid, but FastAP has other values under these keys, dots written as two underscores."""
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    return grid(lambda run: dotted if run.method.name == "fastap" else {})


def codes(sins: list[Any]) -> list[str]:
    return sorted(sin.code for sin in sins)


def test_what_is_clean_has_no_sin() -> None:
    assert lint(bench()) == []
    assert lint_runs(grid()) == []
    assert lint(bench(), made([c for c in range(80) for _ in range(3)])) == []
    assert lint_runs(grid(), made([c for c in range(120) for _ in range(3)])) == []
    assert lint_runs([]) == []
    for name in PROTOCOLS:
        assert lint(bench(protocol=name)) == []


BENCHES: dict[str, dict[str, Any]] = {
    "few-seeds": {"seeds": [0]},
    "chosen-seeds": {"seeds": [1, 7, 8, 13, 42]},
    "repeated-seeds": {"seeds": [0, 1, 2, 3, 4, 4]},
    "untuned": {"trials": 1},
    "published-optimizers": {"published": True},
    "few-trials": {"trials": 4},
    "several-entries": {"methods": [{"name": "fastap", "params": {"bins": b}} for b in (12, 14)]},
    "uneven-settings": {"methods": [{"name": "fastap", "params": {"bins": 12}}, {"name": "triplet"}]},
    "borrowed-setting": {
        "methods": [{"name": "fastap", "params": {"bins": 17}}, {"name": "triplet", "params": {"margin": 0.3}}]
    },
}


@pytest.mark.parametrize("code", BENCHES)
def test_each_sin_of_a_bench_is_named(code: str) -> None:
    (sin,) = lint(bench(**BENCHES[code]))
    assert sin.code == code
    assert sin.where in BENCHES[code]
    assert sin.found
    assert (sin.bias, sin.remedy) == SINS[code]


def test_sins_of_the_protocol(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(OWN + 'select_by = "recall@1"\n')
    assert codes(lint(bench(protocol=str(own)))) == ["choice-by-recall"]
    own.write_text(OWN + "val_fraction = 0.05\n")
    (sin,) = lint(bench(protocol=str(own)))
    assert (sin.code, sin.found) == ("tiny-validation", "5.0% of the training part is held out")
    small = made([c for c in range(40) for _ in range(3)])  # 20 training classes, five in each fold
    (sin,) = lint(bench(), small)
    assert (sin.code, sin.found) == ("tiny-validation", "5 classes of made are held out")
    (sin,) = lint(bench(protocol="query-gallery"), small)
    assert sin.code == "wrong-protocol"
    assert "use one of: classic, reality-check" in sin.found


def test_sins_of_a_bench_that_was_run() -> None:
    found = fake_results({"fastap": 0.3, "triplet": 0.2}, seeds=2)
    reality = PROTOCOLS["reality-check"].model_dump(mode="json")
    own = replace(found, config=bench(seeds=[0, 1]).model_dump(mode="json"), protocol={**reality, "digest": "0"})
    (sin,) = lint_results(own)
    assert sin.text == "few-seeds: 2 seeds; run at least 5 seeds."
    assert codes(lint_results(replace(own, protocol={**reality, "select_by": "recall@1"}))) == [
        "choice-by-recall",
        "few-seeds",
    ]
    seeds = tuple(replace(s, folds=tuple(replace(f, val_classes=3) for f in s.folds)) for s in own.methods[0].seeds)
    narrow = replace(own, methods=(replace(own.methods[0], seeds=seeds), own.methods[1]))
    assert lint_results(narrow)[-1].found == "3 classes of invented are held out"
    assert lint_results(replace(own, config={"a key of another version": 1})) == []


UNEQUAL: dict[str, dict[str, Any]] = {
    "unequal-data": {"data__name": "digits"},
    "unequal-split": {"data__split_seed": 3},
    "unequal-augmentation": {"data__augment": "resized"},
    "unequal-backbone": {"model__width": 32},
    "unequal-pooling": {"model__pool": "max"},
    "unequal-head": {"model__head": "none"},
    "unequal-dimensions": {"model__dim": 512},
    "unequal-batch-norm": {"model__freeze_bn": True},
    "unequal-batches": {"sampler__batch_size": 256},
    "unequal-optimizer": {"optimizer__lr": 1e-4},
    "unequal-averaging": {"ema": 0.99},
    "unequal-steps": {"steps": 501},
    "unequal-looks": {"eval_every": 20},
    "unequal-choice": {"select_by": "r_precision"},
    "unequal-distance": {"distance": "euclidean"},
}


@pytest.mark.parametrize("code", UNEQUAL)
def test_each_inequality_of_runs_is_named(code: str) -> None:
    ((key, value),) = UNEQUAL[code].items()
    (sin,) = lint_runs(of_fastap(**UNEQUAL[code]))
    assert (sin.code, sin.where) == (code, key.replace("__", "."))
    assert "fastap" in sin.found
    assert "triplet" in sin.found
    if code != "unequal-dimensions":
        assert str(value) in sin.found


def test_signs_count_as_bits() -> None:
    """2048 bits beside 64 floats are of one size, as Zhai and Wu matched them; 64 bits beside 64 floats are not."""
    matched = lint_runs(of_fastap(model__dim=2048, distance="hamming"))
    assert codes(matched) == ["unequal-distance"]
    assert codes(lint_runs(of_fastap(distance="hamming"))) == ["unequal-dimensions", "unequal-distance"]
    assert "64 bits: fastap" in lint_runs(of_fastap(distance="hamming"))[0].found


RUNS: dict[str, list[RunConfig]] = {
    "few-seeds": grid()[:1],
    "repeated-seeds": [*grid(), grid()[0]],
    "unequal-seeds": grid()[1:],
    "chosen-seeds": grid(lambda run: {"seed": 3 * run.seed}),
    "choice-by-recall": grid(lambda run: {"select_by": "recall@1"}),
    "tiny-validation": grid(lambda run: {"data.val_fraction": 0.01}),
    "uneven-settings": of_fastap(method__params={"bins": 12}),
    "borrowed-setting": grid(lambda run: {"method.params": {"margin": 0.0961}}, names="triplet"),
    "uneven-tuning": grid() + [r for r in of_fastap(optimizer__lr=1e-4) if r.method.name == "fastap"],
}


@pytest.mark.parametrize("code", RUNS)
def test_each_sin_of_runs_is_named(code: str) -> None:
    assert code in codes(lint_runs(RUNS[code]))


def test_a_fair_search_is_no_sin() -> None:
    """Two settings of every method, whatever they are."""
    tuned = grid(
        lambda run: {"optimizer.lr": 1e-4, "method.params": {"bins": 12} if run.method.name == "fastap" else {}}
    )
    assert lint_runs(grid() + tuned) == []


def test_folds_and_members_are_no_sin() -> None:
    runs = [fold for run in grid() for fold in PROTOCOLS["reality-check"].runs(run)]
    assert lint_runs(runs) == []
    assert codes(lint_runs(runs[1:])) == ["unequal-seeds"]  # a fold of one method is missing
    assert lint_runs([*grid(), *(run.model_copy(update={"member": 2, "steps": 3}) for run in grid())]) == []


def test_the_step_is_chosen_by_validation() -> None:
    run = RunConfig()
    records: list[dict[str, Any]] = [
        {"step": step, "loss": 1.0, "val_map@r": val, "test_map@r": test}
        for step, val, test in ((100, 0.2, 0.1), (200, 0.4, 0.2), (300, 0.3, 0.3))
    ]
    records.append({"step": 250, "finding": "collapse", "message": ""})
    assert lint_choice(run, {"best_step": 200}, records) == []
    (sin,) = lint_choice(run, {"best_step": 300}, records)
    assert (sin.code, sin.found) == (
        "test-choice",
        "step 300, the best on the test classes; validation chose step 200",
    )
    (sin,) = lint_choice(run, {"best_step": 100}, records)
    assert sin.found == "step 100; validation chose step 200"


def test_every_key_of_a_run_must_be_equal_or_is_free() -> None:
    """A key that a later version adds must be put on one of the two sides."""
    free = {"method", "seed", "member", "data.fold", "data.workers", "chunk", "threads", "shard_proxies"}
    free |= {"oracle", "ks", "metrics", "proxy_start"}  # the last is searched, as parameters of a method are
    tables = RunConfig().model_dump(exclude={"method"})
    nested = {f"{name}.{key}" for name, table in tables.items() if isinstance(table, dict) for key in table}
    keys = nested | {name for name in RunConfig.model_fields if not isinstance(tables.get(name), dict)}
    equal = [key for keys in EQUAL.values() for key in keys]
    assert sorted([*equal, *free]) == sorted(keys)
    assert set(EQUAL) <= set(SINS)


def test_every_sin_is_provoked_here_and_explained_in_the_documentation() -> None:
    elsewhere = {"test-choice", "wrong-protocol"}
    assert set(BENCHES) | set(UNEQUAL) | set(RUNS) | elsewhere == set(SINS)
    text = (Path(__file__).parent.parent / "docs" / "protocols.md").read_text(encoding="utf-8")
    assert [code for code in SINS if f"`{code}`" not in text] == []
    assert [name for name in PROTOCOLS if f"`{name}`" not in text] == []


def written(path: Path, config: BenchConfig | RunConfig) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config.to_toml(), encoding="utf-8")
    return path


def test_the_command_reads_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = written(tmp_path / "clean.toml", bench())
    assert main(["lint", str(clean)]) == 0
    assert "No problem found" in capsys.readouterr().out
    sinful = written(tmp_path / "sinful.toml", bench(seeds=[0], trials=1))
    assert main(["lint", str(clean), str(sinful), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["sin"] for each in found] == ["few-seeds", "untuned"]
    assert {each["in"] for each in found} == {str(sinful)}
    assert set(found[0]) == {"in", "sin", "where", "found", "bias", "remedy"}
    files = [str(written(tmp_path / f"{i}.toml", run)) for i, run in enumerate(of_fastap(steps=900))]
    assert main(["lint", *files]) == 1
    assert "unequal-steps" in capsys.readouterr().out


def test_the_command_lints_without_the_data_if_it_must(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "bench.toml", bench(run={"data": {"name": "nowhere"}}))
    assert main(["lint", str(path)]) == 0
    assert "linting without the data" in capsys.readouterr().err


def test_the_command_reads_folders_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in grid():
        folder = RunFolder(tmp_path / f"{run.method.name}-{run.seed}")
        folder.path.mkdir()
        folder.begin(run, {})
        for step, val, test in ((100, 0.4, 0.1), (200, 0.3, 0.2)):
            folder.log({"step": step, "val_map@r": val, "test_map@r": test})
        folder.finish({}, {}, {"best_step": 100})
    assert main(["lint", str(tmp_path)]) == 0
    capsys.readouterr()
    (tmp_path / "fastap-3" / "result.json").write_text('{"best_step": 200}')
    assert main(["lint", str(tmp_path), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["sin"], found["in"]) == ("test-choice", str(tmp_path / "fastap-3"))
    (tmp_path / "empty").mkdir()
    assert main(["lint", str(tmp_path / "empty")]) == 2
    assert "neither results.sqlite" in capsys.readouterr().err


def test_the_command_reads_the_folder_of_a_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = bench(trials=1)
    store = Store(tmp_path / FILE)
    reality = PROTOCOLS["reality-check"]
    facts: dict[str, Any] = {"config": config.model_dump(mode="json"), "protocol": reality.model_dump(mode="json")}
    facts |= {"data": {}, "environment": {}, "floors": {}, "split": "", "unequal": {}}
    store.open_bench(Bench(config, reality, "data"), facts)
    assert main(["lint", str(tmp_path), "--json"]) == 1
    assert [each["sin"] for each in json.loads(capsys.readouterr().out)] == ["untuned"]


def test_the_default_bench_practises_what_the_linter_preaches() -> None:
    assert list(lint(starter_bench(), data.load("glyphs"))) == []
