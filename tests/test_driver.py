"""The driver of a bench: what is recorded, resumed, refused and given up. Its engine runs jobs in this process."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import Inline

from nearfield.bench import job as jobs
from nearfield.bench import run, run_task
from nearfield.bench.database import FILE, Store
from nearfield.bench.engine import Answer, Job, Sign, WorkerDied
from nearfield.bench.job import file_digest
from nearfield.bench.plan import Outcome, Task, plan
from nearfield.bench.read_results import open_results
from nearfield.bench.results import BenchResults
from nearfield.bench.run import Watched, prepare, run_bench
from nearfield.config import BenchConfig, build_config
from nearfield.errors import InputError, RunError
from nearfield.training.loop import train
from nearfield.training.run_folder import Busy, RunFolder, environment

TRIALS = 5  # the last one is asked from the search
PROTOCOL = 'name = "two folds"\nfolds = 2\nval_fraction = 0.5\nconcatenate = true\n'


def small_bench(folder: Path) -> BenchConfig:
    """Two methods on small features, two networks each."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(16), 6)
    features = rng.normal(size=(16, 12))[labels] + 0.8 * rng.normal(size=(96, 12))
    np.savez(folder / "x.npz", features=features.astype(np.float32), labels=labels)
    (folder / "protocol.toml").write_text(PROTOCOL)
    values = {
        "protocol": str(folder / "protocol.toml"),
        "trials": TRIALS,
        "variants": ["untuned", "plain"],
        "methods": [{"name": "multi_similarity"}, {"name": "proxy_softmax"}],
        "run": {
            "data": {"name": str(folder / "x.npz")},
            "model": {"backbone": "features", "dim": 8},
            "sampler": {"batch_size": 12},
            "steps": 6,
            "eval_every": 3,
        },
    }
    return build_config(BenchConfig, values)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> BenchConfig:
    return small_bench(tmp_path_factory.mktemp("data"))


@pytest.fixture
def tiny(config: BenchConfig) -> BenchConfig:
    """One seed of each method, nothing else."""
    return config.model_copy(update={"trials": 1, "variants": (), "seeds": (0,)})


def ran(config: BenchConfig, folder: Path, do: Callable[[Job], Answer] | None = None) -> tuple[Inline, BenchResults]:
    engine = Inline(folder.parent / "scratch", do)
    return engine, run_bench(config, folder, engine, lambda watched: None)


def numbers(results: BenchResults) -> Any:
    """All that must be the same: everything but times."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items() if key != "train_seconds"}
        return [clean(each) for each in value] if isinstance(value, list | tuple) else value

    queries = {
        (method.label, part): results.queries(method.label, "map@r", part).tolist()
        for method in results.methods
        for part in ("separated", "concatenated")
    }
    return clean([asdict(method) for method in results.methods]), results.missing, queries


@pytest.fixture(scope="module")
def undisturbed(config: BenchConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BenchResults]:
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    return folder, ran(config, folder)[1]


# ---------------------------------------------------------------------------------------------------------------
# Results


def test_a_search_by_the_first_fold_trains_one_network_a_trial(config: BenchConfig, tmp_path: Path) -> None:
    (tmp_path / "light.toml").write_text(PROTOCOL.replace("two folds", "light") + "search_folds = 1\n")
    light = config.model_copy(update={"protocol": str(tmp_path / "light.toml"), "variants": (), "trials": 2})
    _, results = ran(light, tmp_path / "out")
    assert [len(trial.folds) for method in results.methods for trial in method.trials] == [1, 1, 1, 1]
    assert [len(seed.folds) for method in results.methods for seed in method.seeds] == [2] * 4
    assert prepare(light)[0].networks == 2 * 2 * 1 + 2 * 2 * 2


def test_results_hold_every_trial_seed_fold_and_query(undisturbed: tuple[Path, BenchResults]) -> None:
    folder, results = undisturbed
    assert results.missing == ()
    assert [method.label for method in results.methods] == ["multi_similarity", "proxy_softmax"]
    assert results.protocol["name"] == "two folds"
    for method in results.methods:
        assert [trial.number for trial in method.trials] == list(range(TRIALS))
        assert all(fold.test is None and not fold.oracle for trial in method.trials for fold in trial.folds)
        best = max((t for t in method.trials if t.value is not None), key=lambda t: (t.value, -t.number))
        assert method.params == best.params
        for trial in method.trials:
            if trial.value is not None:
                tops = [max(scores["map@r"] for _, scores in fold.val) for fold in trial.folds]
                assert trial.value == pytest.approx(np.mean(tops))
        for seed in method.seeds:
            assert [step for step, _ in seed.folds[0].val] == [step for step, _ in seed.folds[0].oracle] == [0, 3, 6]
            tests = [fold.test for fold in seed.folds if fold.test]
            assert seed.separated["recall@1"] == pytest.approx(np.mean([test["recall@1"] for test in tests]))
        for part in ("separated", "concatenated"):
            found = results.queries(method.label, "map@r", part)
            assert found.shape == (2, 48)
            means = [getattr(seed, part)["map@r"] for seed in method.seeds]
            assert found.mean(axis=1) == pytest.approx(means, abs=1e-6)
        embeddings = results.embeddings(method.label)
        assert embeddings is not None
        assert embeddings.shape == (48, 16)
        assert np.linalg.norm(embeddings.astype(float), axis=1) == pytest.approx(1, abs=1e-2)
        assert set(method.variants) == {"untuned", "plain"}
    kept = {path.name.split("-")[1] for path in (folder / "runs").iterdir()}
    assert kept == {"seed0", "seed1"}  # of trials and variants only the results are kept
    assert list(results.baselines) == ["raw features", "PCA", "whitening", "untrained network"]
    again = open_results(folder)
    assert numbers(again) == numbers(results)
    with pytest.raises(RunError, match="holds no accuracy of single queries"):
        again.queries("proxy_softmax", "accuracy", "separated")


def test_the_same_bench_again_does_nothing_and_a_larger_one_only_what_is_new(
    config: BenchConfig, undisturbed: tuple[Path, BenchResults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    larger = config.model_copy(update={"seeds": (0, 1, 2)})
    engine, results = ran(larger, tmp_path / "copy")
    assert engine.done == ["multi_similarity seed 2", "proxy_softmax seed 2"]
    assert [len(method.seeds) for method in results.methods] == [3, 3]
    monkeypatch.setattr("nearfield.bench.baselines.baselines", None)  # they are not scored again
    engine, results = ran(config, tmp_path / "copy")
    assert engine.done == []
    assert numbers(results) == numbers(undisturbed[1])


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no results of a bench"):
        open_results(tmp_path)
    with pytest.raises(InputError, match="holds no bench 'x'"):
        Store(tmp_path / FILE).facts("x")
    (tmp_path / FILE).write_text("something else")
    with pytest.raises(RunError, match="cannot use the results in"):
        open_results(tmp_path)


def test_nobody_else_may_run_a_bench_in_the_same_folder_meanwhile(tiny: BenchConfig, tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked(), pytest.raises(Busy, match="in use by another process"):
        ran(tiny, tmp_path)


def test_progress_names_phases_and_tells_time_left_before_the_first_task_ends(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Watched] = []
    engine, shares, keys = Inline(tmp_path), [0.2, 0.6], list[str]()

    def work(job: Job) -> Answer:
        keys.append(job["key"])
        return engine.work(job)

    def wait(futures: Any, seconds: float) -> set[Future[Answer]]:
        if not shares:
            return set(futures)
        engine.signs[keys[-1]] = Sign("here", shares.pop(0), time.monotonic())
        return set()

    engine.do = work
    monkeypatch.setattr(engine, "wait", wait)
    run_bench(tiny, tmp_path / "out", engine, seen.append)
    phases = list(dict.fromkeys(each.phase for each in seen))
    assert phases == ["reading the data", "scoring the baselines", "starting the workers", "training"]
    before = [each for each in seen if each.phase == "training" and each.done == 0]
    assert before[0].seconds_left is None
    assert before[1].running == (("multi_similarity seed 0", 0.6),)
    assert before[1].seconds_left is not None
    assert before[1].seconds_left > 0
    assert (seen[-1].done, seen[-1].total) == (2, 2)


# ---------------------------------------------------------------------------------------------------------------
# What fails


def test_a_failing_task_is_tried_twice_named_and_can_be_repaired(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_task.run_task

    def broken(task: Task, *rest: Any) -> Any:
        if task.label == "proxy_softmax":
            raise RuntimeError("out of luck")
        return real(task, *rest)

    monkeypatch.setattr(jobs, "run_task", broken)
    engine, results = ran(tiny, tmp_path / "out")
    assert engine.done == ["multi_similarity seed 0", "proxy_softmax seed 0", "proxy_softmax seed 0"]
    assert results.missing == ("proxy_softmax: seed 0: RuntimeError: out of luck",)
    assert [method.label for method in results.methods] == ["multi_similarity"]
    monkeypatch.setattr(jobs, "run_task", real)
    engine, results = ran(tiny, tmp_path / "out")
    assert engine.done == ["proxy_softmax seed 0"]
    assert results.missing == ()


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (OSError(28, "No space left on device"), ["fold-0", "fold-1"]),
        (RunError("cannot write a checkpoint"), ["fold-0", "fold-1"]),
        (RuntimeError("a damaged checkpoint"), ["fold-0"]),
    ],
)
def test_an_error_never_deletes_finished_folds_nor_an_io_error_checkpoints(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kept: list[str]
) -> None:
    real = train

    def second_fails(config: Any, folder: Path, *rest: Any, **options: Any) -> Any:
        if folder.name == "fold-0":
            return real(config, folder, *rest, **options)
        (folder / "checkpoint-00000003").mkdir(parents=True, exist_ok=True)
        raise error

    monkeypatch.setattr(run_task, "train", second_fails)
    _, results = ran(tiny, tmp_path / "out")
    assert len(results.missing) == 2
    for folder in (tmp_path / "out" / "runs").iterdir():
        assert sorted(each.name for each in folder.iterdir()) == kept
        assert (folder / "fold-0" / "result.json").is_file()


def test_a_configuration_that_cannot_be_read_is_no_reason_to_delete_a_fold(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, dataset = prepare(tiny)
    task = plan(bench, {})[0]

    def attempt() -> Outcome:
        return run_task.run_task(task, bench.protocol, dataset, tmp_path, lambda: False, lambda share: None)[0]

    outcome = attempt()
    real = Path.read_bytes

    def unreadable(path: Path) -> bytes:
        if path.name == "config.toml":
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", unreadable)
    with pytest.raises(OSError, match="Input/output"):
        attempt()
    monkeypatch.undo()
    assert attempt() == outcome


def test_a_task_that_kills_its_workers_is_given_up_at_once_with_the_reason(tiny: BenchConfig, tmp_path: Path) -> None:
    engine = Inline(tmp_path)

    def deadly(job: Job) -> Answer:
        if job["task"]["label"] == "multi_similarity":
            raise WorkerDied("4 workers died while running it")
        return engine.work(job)

    engine.do = deadly
    results = run_bench(tiny, tmp_path / "out", engine, lambda watched: None)
    assert engine.done == ["multi_similarity seed 0", "proxy_softmax seed 0"]
    assert results.missing == ("multi_similarity: seed 0: 4 workers died while running it",)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_python_drops_is_heard_all_the_same(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """As in a hook of the garbage collector."""
    engine, handler = Inline(tmp_path), signal.default_int_handler

    def work(job: Job) -> Answer:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        return engine.work(job)

    engine.do = work
    monkeypatch.setattr(engine, "cancel", lambda futures: None)
    before = signal.signal(number, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_bench(tiny, tmp_path / "out", engine, lambda watched: None)
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert engine.done == ["multi_similarity seed 0"]
    engine.do = engine.work
    assert not run_bench(tiny, tmp_path / "out", engine, lambda watched: None).missing
    assert engine.done[1:] == ["proxy_softmax seed 0"]


def test_a_task_that_hangs_is_given_up_and_its_worker_restarted(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, restarted = Inline(tmp_path), list[str]()
    real = engine.submit

    def submit(job: Job) -> Future[Answer]:
        if job["task"]["label"] != "multi_similarity":
            return real(job)
        engine.signs[job["key"]] = Sign("there", 0.3, time.monotonic() - 5)
        return Future()

    monkeypatch.setattr(run, "HANGS", 1.0)
    monkeypatch.setattr(run, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(engine, "submit", submit)
    monkeypatch.setattr(engine, "restart", restarted.append)
    monkeypatch.setattr(engine, "cancel", lambda futures: None)
    results = run_bench(tiny, tmp_path / "out", engine, lambda watched: None)
    assert restarted == ["there"]
    assert results.missing == ("multi_similarity: seed 0: no progress for 0 minutes at there",)


def test_a_trial_that_diverges_counts_and_the_search_continues(config: BenchConfig, tmp_path: Path) -> None:
    wild = config.run.model_copy(update={"optimizer": config.run.optimizer.model_copy(update={"lr": 1e30})})
    methods = (config.methods[0].model_copy(update={"name": "contrastive"}),)
    update = {"run": wild, "methods": methods, "trials": 2, "variants": (), "seeds": (0,)}
    _, results = ran(config.model_copy(update=update), tmp_path / "out")
    assert results.methods[0].trials[0].state == "pruned"
    assert "contrastive" in " ".join(results.missing)  # its seeds diverge, too, and that is said


def test_a_trial_far_behind_is_pruned_after_its_first_fold(config: BenchConfig, tmp_path: Path) -> None:
    bench, dataset = prepare(config)
    task = plan(bench, {})[0]

    def attempt(bound: float, name: str) -> tuple[Outcome, Any]:
        limited = replace(task, bounds=(bound,))
        return run_task.run_task(limited, bench.protocol, dataset, tmp_path / name, lambda: False, lambda share: None)

    outcome, queries = attempt(2.0, "hopeless")
    assert outcome["state"] == "pruned"
    assert len(outcome["folds"]) == 1
    assert queries == {}
    assert attempt(0.0, "easy")[0]["state"] == "complete"


def test_a_folder_held_by_a_worker_thought_dead_is_left_to_it(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "out" / "runs" / jobs.folder_name(plan(prepare(tiny)[0], {})[0])
    real = run_task.run_task

    def busy(task: Task, rules: Any, dataset: Any, folder: Path, *rest: Any) -> Any:
        if folder == held:
            raise Busy("in use")
        return real(task, rules, dataset, folder, *rest)

    monkeypatch.setattr(jobs, "run_task", busy)
    _, results = ran(tiny, tmp_path / "out")
    assert results.missing == ()
    assert results.embeddings("multi_similarity") is not None


# ---------------------------------------------------------------------------------------------------------------
# What a worker refuses, and what travels


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"code": "another"}, "Install the same there and restart the worker"),
        ({"version": "0.0.1"}, "the driver's 0.0.1"),
        ({"data": "0" * 64}, "differ from the driver's: fingerprint"),
        ({"weights": "0" * 64}, "weights .* differ from the driver's"),
    ],
)
def test_a_worker_with_other_code_data_or_weights_refuses(
    tiny: BenchConfig, tmp_path: Path, change: dict[str, str], why: str
) -> None:
    if "weights" in change:
        (tmp_path / "w.pth").write_bytes(b"weights")
        model = tiny.run.model.model_copy(update={"weights": str(tmp_path / "w.pth")})
        tiny = tiny.model_copy(update={"run": tiny.run.model_copy(update={"model": model})})
    bench = prepare(tiny)[0]
    job = jobs.job_of(plan(bench, {})[0], bench, tmp_path, "mark")
    answer = jobs.work({**job, **change}, lambda: False, lambda share: None, str(tmp_path))
    assert set(answer) == {"refused"}
    assert re.search(why, answer["refused"])


def test_data_that_a_worker_cannot_read_are_a_refusal(tiny: BenchConfig, tmp_path: Path) -> None:
    bench = prepare(tiny)[0]
    job = jobs.job_of(plan(bench, {})[0], bench, tmp_path, "mark")
    job["task"]["run"]["data"]["name"] = str(tmp_path / "nowhere.npz")
    assert "cannot read the data" in jobs.work(job, lambda: False, lambda share: None, str(tmp_path))["refused"]


def test_a_bench_ends_when_every_worker_refused(tiny: BenchConfig, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="other code"):
        ran(tiny, tmp_path / "out", lambda job: {"refused": "other code"})


def test_relative_paths_are_found_from_the_drivers_directory(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(tiny.run.data.name, tmp_path / "mine.npz")
    monkeypatch.chdir(tmp_path)
    data = tiny.run.data.model_copy(update={"name": "mine.npz"})
    bench = prepare(tiny.model_copy(update={"run": tiny.run.model_copy(update={"data": data})}))[0]
    job = jobs.job_of(plan(bench, {})[0], bench, tmp_path, "mark")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "outcome" in jobs.work(job, lambda: False, lambda share: None, str(tmp_path))


def test_without_a_shared_folder_files_come_back_with_the_result(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    engine = Inline(tmp_path / "scratch")
    engine.do = lambda job: engine.work({**job, "folder": str(tmp_path / "not there")})
    results = run_bench(tiny, tmp_path / "out", engine, lambda watched: None, said.append)
    assert numbers(results) == numbers(ran(tiny, tmp_path / "shared")[1])
    assert said[0].startswith("multi_similarity seed 0: 0.0 MB of files received")
    found = results.embeddings("multi_similarity")
    assert found is not None
    assert found.shape == (48, 16)
    assert not list((tmp_path / "scratch").rglob("result.json"))
    left = {path.relative_to(tmp_path / "shared") for path in (tmp_path / "shared" / "runs").rglob("*.safetensors")}
    assert left == {path.relative_to(tmp_path / "out") for path in (tmp_path / "out" / "runs").rglob("*.safetensors")}


# ---------------------------------------------------------------------------------------------------------------
# What results depend on


def test_other_weights_in_the_same_file_are_another_bench(tiny: BenchConfig, tmp_path: Path) -> None:
    def of(content: bytes | None) -> tuple[str, set[str]]:
        run = tiny.run
        if content is not None:
            (tmp_path / "w.pth").write_bytes(content)
            run = run.model_copy(update={"model": run.model.model_copy(update={"weights": str(tmp_path / "w.pth")})})
        bench = prepare(tiny.model_copy(update={"run": run}))[0]
        return bench.digest, {task.key for task in plan(bench, {})}

    first, second, none = of(b"one"), of(b"two"), of(None)
    assert first == of(b"one")
    assert first[0] != second[0]
    assert not first[1] & second[1]
    assert not first[1] & none[1]
    (tmp_path / "w.pth").unlink()
    with pytest.raises(RunError, match="cannot read the weights"):
        file_digest(str(tmp_path / "w.pth"))


def test_every_task_says_which_commit_made_it(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = environment
    monkeypatch.setattr(jobs, "environment", lambda: {**real(), "commit": "aaaa"})
    assert ran(tiny, tmp_path / "out")[1].environment["commit"] == "aaaa"
    monkeypatch.setattr(jobs, "environment", lambda: {**real(), "commit": "bbbb"})
    results = ran(tiny.model_copy(update={"seeds": (0, 1)}), tmp_path / "out")[1]
    assert results.environment["commit"] == "aaaa, bbbb"
    made = [entry["made_by"]["commit"] for entry in Store(tmp_path / "out" / FILE).entries(results.digest)]
    assert sorted(made) == ["aaaa", "aaaa", "bbbb", "bbbb"]


def test_two_benches_in_one_folder_each_report_their_own(
    tiny: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nearfield.report.page import read_bench

    real = run_task.run_task

    def broken(task: Task, *rest: Any) -> Any:
        if task.label == "proxy_softmax":
            raise RuntimeError("out of luck")
        return real(task, *rest)

    monkeypatch.setattr(jobs, "run_task", broken)
    _, one = ran(tiny, tmp_path)
    other = tiny.model_copy(update={"methods": tiny.methods[1:], "seeds": (7,)})
    monkeypatch.setattr(Inline, "slots", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ran(other, tmp_path)  # opened, nothing done: it is the last one
    assert read_bench(tmp_path, one.digest).digest == one.digest
    with pytest.raises(RunError, match="finished seed"):
        read_bench(tmp_path)
    states = {entry["label"]: entry["state"] for entry in Store(tmp_path / FILE).entries(one.digest)}
    assert states == {"multi_similarity": "done", "proxy_softmax": "failed"}


def as_version_2(path: Path) -> None:
    """Make a results file what earlier versions wrote: tasks are a queue with owners, claims and shares."""
    with sqlite3.connect(path) as db:
        columns = (
            "key TEXT PRIMARY KEY, state TEXT NOT NULL, owner TEXT, expires DOUBLE NOT NULL, failures INTEGER NOT NULL"
        )
        columns += (
            ", share DOUBLE NOT NULL, name TEXT NOT NULL, task TEXT NOT NULL, outcome TEXT, error TEXT, seconds DOUBLE"
        )
        db.execute("ALTER TABLE tasks RENAME TO new")
        db.execute(f"CREATE TABLE tasks ({columns})")
        db.execute(
            "INSERT INTO tasks SELECT key, state, NULL, 0.0, 0, 1.0, name, task, outcome, error, seconds FROM new"
        )
        db.execute("DROP TABLE new")
        db.execute("UPDATE tasks SET state = 'running', owner = 'somebody', outcome = NULL WHERE name LIKE '%seed 1'")
        db.execute("UPDATE meta SET value = '2'")
    db.close()


def test_results_of_earlier_versions_open_and_continue(
    config: BenchConfig, undisturbed: tuple[Path, BenchResults], tmp_path: Path
) -> None:
    shutil.copytree(undisturbed[0], tmp_path / "old")
    as_version_2(tmp_path / "old" / FILE)
    assert len(open_results(tmp_path / "old").missing) == 2
    engine, results = ran(config, tmp_path / "old")
    assert engine.done == ["multi_similarity seed 1", "proxy_softmax seed 1"]
    assert numbers(results) == numbers(undisturbed[1])
    with sqlite3.connect(tmp_path / "old" / FILE) as db:
        db.execute("UPDATE meta SET value = '9'")
    db.close()
    with pytest.raises(RunError, match="has schema version 9"):
        open_results(tmp_path / "old")


def test_scores_of_queries_are_kept_to_the_bit(tiny: BenchConfig, tmp_path: Path) -> None:
    store = Store(tmp_path / "a ?" / FILE)
    task = plan(prepare(tiny)[0], {})[0]
    scores = np.array([0.1, np.nan, 1 / 3], np.float32)
    for _ in range(2):  # a result that is recorded again replaces itself
        store.record(task, {"state": "complete", "folds": []}, {("fold 0", "map@r"): scores}, 1.0, {})
    np.testing.assert_array_equal(store.query_scores(task.key, "fold 0", "map@r"), scores)
    assert (tmp_path / "a ?" / FILE).is_file()
    assert Task.from_json(task.to_json()) == task
