"""The bench: fair, parallel, killed at random and resumed to the same numbers."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfield.bench import Standing, leaderboard, plan, run_bench
from nearfield.config import BenchConfig, build_config
from nearfield.errors import InputError, RunError
from nearfield.store import Store

VALUES: dict[str, Any] = {
    "methods": [{"name": "multi_similarity"}, {"name": "proxy_softmax"}],
    "seeds": [0, 1],
    "run": {
        "data": {"name": "digits", "val_fraction": 0.4},
        "model": {"width": 4, "dim": 8},
        "sampler": {"batch_size": 12},
        "steps": 12,
        "eval_every": 4,
    },
}


def ignore(*_: Any) -> None:
    pass


def numbers(standings: list[Standing]) -> list[Any]:
    return [(s.method, s.seeds, s.mean, s.half_width) for s in standings]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchConfig, Path, list[Standing]]:
    config, folder = build_config(BenchConfig, VALUES), tmp_path_factory.mktemp("bench")
    return config, folder, run_bench(config, folder, 2, ignore)


def test_leaderboard_is_the_mean_and_t_interval_over_seeds(finished: tuple[BenchConfig, Path, list[Standing]]) -> None:
    config, folder, standings = finished
    assert [s.seeds for s in standings] == [2, 2]
    assert [s.mean["map@r"] for s in standings] == sorted((s.mean["map@r"] for s in standings), reverse=True)
    for standing in standings:
        scores = [
            json.loads((job.folder / "result.json").read_text())["test"]["recall@1"]
            for job in plan(config, folder)
            if job.config.method.name == standing.method
        ]
        assert standing.mean["recall@1"] == pytest.approx(np.mean(scores))
        half = 12.706204736 * np.std(scores, ddof=1) / np.sqrt(2)  # t quantile for one degree of freedom
        assert standing.half_width["recall@1"] == pytest.approx(half)


def test_results_file_holds_curves_and_query_scores(finished: tuple[BenchConfig, Path, list[Standing]]) -> None:
    _, folder, _ = finished
    store = Store(folder / "results.sqlite")
    rows = store.runs()
    assert len(rows) == 4
    for row in rows:
        assert [step for step, _ in store.curve(row["run"], "map@r")] == [4, 8, 12]
        scores = store.query_scores(row["run"], "map@r")
        assert scores.mean() == pytest.approx(row["test"]["map@r"], abs=1e-6)
        assert row["environment"]["data"] == store.meta()["data"]["fingerprint"]
    assert {"recall@1", "map@r"} <= store.meta()["pixels"].keys()
    with pytest.raises(RunError, match="holds no per-query accuracy"):
        store.query_scores(rows[0]["run"], "accuracy")


def test_running_again_reuses_everything(finished: tuple[BenchConfig, Path, list[Standing]]) -> None:
    config, folder, standings = finished
    before = {job.folder: (job.folder / "result.json").stat().st_mtime_ns for job in plan(config, folder)}
    assert numbers(run_bench(config, folder, 2, ignore)) == numbers(standings)
    assert {job.folder: (job.folder / "result.json").stat().st_mtime_ns for job in plan(config, folder)} == before


def test_an_unfinished_table_counts_what_is_there(
    finished: tuple[BenchConfig, Path, list[Standing]], tmp_path: Path
) -> None:
    config, folder, _ = finished
    more = config.model_copy(update={"seeds": (0, 1, 2)})
    partial = leaderboard(Store(folder / "results.sqlite"), more)
    assert [s.seeds for s in partial] == [2, 2]


def test_a_misspelt_method_fails_before_anything_runs(tmp_path: Path) -> None:
    config = build_config(BenchConfig, {**VALUES, "methods": [{"name": "multi_similarity"}, {"name": "fastpa"}]})
    with pytest.raises(InputError, match="did you mean 'fastap'"):
        run_bench(config, tmp_path, 1, ignore)
    config = build_config(BenchConfig, {**VALUES, "methods": [{"name": "fastap", "params": {"bin": 3}}]})
    with pytest.raises(InputError, match="did you mean 'bins'"):
        run_bench(config, tmp_path, 1, ignore)
    assert not list(tmp_path.iterdir())


def test_a_failing_run_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    methods = [{"name": "multi_similarity"}, {"name": "margin", "params": {"fallback": "drop", "num_classes": 1000000}}]
    config = build_config(BenchConfig, {**VALUES, "methods": methods, "seeds": [0]})
    broken = plan(config, tmp_path)[1]
    broken.folder.mkdir(parents=True)
    (broken.folder / "config.toml").write_text("steps = 0")
    with pytest.raises(RunError, match="margin seed 0 failed: nearfield: the configuration is not valid"):
        run_bench(config, tmp_path, 1, ignore)
    assert plan(config, tmp_path)[0].done


def command(folder: Path, config: Path) -> list[str]:
    return [sys.executable, "-m", "nearfield", "bench", str(config), "--out", str(folder), "--jobs", "2", "--json"]


@pytest.mark.parametrize("sort", [signal.SIGKILL, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_killed_at_random_and_resumed(
    sort: signal.Signals, finished: tuple[BenchConfig, Path, list[Standing]], tmp_path: Path
) -> None:
    config, _, standings = finished
    path = tmp_path / "bench.toml"
    path.write_text(config.to_toml())
    dice, codes = random.Random(int(sort)), []
    for _ in range(2):
        process = subprocess.Popen(
            command(tmp_path / "out", path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(dice.uniform(3.0, 9.0))
        process.send_signal(sort)
        codes.append(process.wait(60))
    last = subprocess.run(command(tmp_path / "out", path), capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(last.stdout)["leaderboard"]
    assert [(s["method"], s["seeds"], s["mean"], s["half_width"]) for s in found] == numbers(standings)
    assert set(codes) <= ({-9, 0} if sort == signal.SIGKILL else {130, 0})
    assert not list(tmp_path.rglob("*.part"))
    shutil.rmtree(tmp_path / "out")
