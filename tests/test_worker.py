"""Workers and their database: nothing is done twice or lost, whoever is killed, and the results are the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from nearfield.bench import run_task
from nearfield.bench.database import FILE, Store
from nearfield.bench.plan import Outcome, Task, plan
from nearfield.bench.read_results import open_results, read_results
from nearfield.bench.results import BenchResults
from nearfield.bench.run import facts_of, mirror, prepare, worker_environment
from nearfield.bench.worker import Claim, Worker, folder_name
from nearfield.config import BenchConfig, build_config
from nearfield.errors import InputError, RunError
from nearfield.training.run_folder import Busy

TRIALS = 5  # the last one is asked from the search
PROTOCOL = 'name = "two folds"\nfolds = 2\nval_fraction = 0.5\nconcatenate = true\n'


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> BenchConfig:
    """Two methods on small features, two networks each."""
    folder = tmp_path_factory.mktemp("data")
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


def never() -> bool:
    return False


def quiet(text: str) -> None:
    pass


def opened(config: BenchConfig, storage: str | Path) -> tuple[Store, str]:
    bench, dataset = prepare(config)
    store = Store(storage)
    store.open_bench(bench, facts_of(bench, dataset, store))
    return store, bench.digest


def worked(config: BenchConfig, folder: Path, **options: Any) -> tuple[Worker, BenchResults]:
    """A bench done by one worker in this process."""
    store, digest = opened(config, folder / FILE)
    worker = Worker(store, digest, folder, never, quiet, **options)
    worker.work()
    results = read_results(store, digest, folder)
    store.close()
    return worker, results


def numbers(results: BenchResults) -> Any:
    """All that must be the same: everything but times."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items() if key != "train_seconds"}
        return [clean(each) for each in value] if isinstance(value, list | tuple) else value

    queries = {
        (method.label, part): results.queries(method.label, "map@r", part).tolist()  # type: ignore[arg-type]
        for method in results.methods
        for part in ("separated", "concatenated")
    }
    return clean([asdict(method) for method in results.methods]), results.missing, queries


@pytest.fixture(scope="module")
def undisturbed(config: BenchConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BenchResults]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, worked(config, folder)[1]


def first_task(config: BenchConfig) -> Task:
    return plan(prepare(config)[0], {})[0]


# ---------------------------------------------------------------------------------------------------------------
# Results


def test_results_hold_every_trial_seed_fold_and_query(
    config: BenchConfig, undisturbed: tuple[Path, BenchResults]
) -> None:
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
            assert [step for step, _ in seed.folds[0].val] == [step for step, _ in seed.folds[0].oracle] == [3, 6]
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
    assert set(results.baselines) == {"untrained network", "raw features", "PCA"}
    again = open_results(folder)
    assert numbers(again) == numbers(results)
    with pytest.raises(RunError, match="holds no accuracy of single queries"):
        again.queries("proxy_softmax", "accuracy", "separated")


def test_the_same_bench_again_does_nothing_and_a_larger_one_only_what_is_new(
    config: BenchConfig, undisturbed: tuple[Path, BenchResults], tmp_path: Path
) -> None:
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    store, digest = opened(config, tmp_path / "copy" / FILE)
    assert Worker(store, digest, tmp_path / "copy", never, quiet).work() == 0
    store.close()
    larger = config.model_copy(update={"seeds": (0, 1, 2)})
    store, digest = opened(larger, tmp_path / "copy" / FILE)
    assert Worker(store, digest, tmp_path / "copy", never, quiet).work() == 2
    results = read_results(store, digest)
    assert [len(method.seeds) for method in results.methods] == [3, 3]
    assert results.embeddings("proxy_softmax") is None  # nobody said where the runs are
    store.close()


def test_optuna_sees_the_trials_once(
    config: BenchConfig, undisturbed: tuple[Path, BenchResults], tmp_path: Path
) -> None:
    import optuna

    shutil.copy(undisturbed[0] / FILE, tmp_path / FILE)
    store, digest = opened(config, tmp_path / FILE)
    observer = Worker(store, digest, tmp_path, never, quiet)
    observer.look()
    mirror(observer)
    mirror(observer)
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / FILE}")
    study = optuna.load_study(study_name=f"multi_similarity {digest}", storage=storage)
    values = [trial.value for trial in undisturbed[1].methods[0].trials]
    assert [trial.value if trial.state.name == "COMPLETE" else None for trial in study.trials] == values
    storage.engine.dispose()
    store.close()


def test_a_folder_without_results_and_other_data_are_refused(
    config: BenchConfig, undisturbed: tuple[Path, BenchResults], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="holds no results of a bench"):
        open_results(tmp_path)
    with pytest.raises(InputError, match="storage must be a file or a URL"):
        Store("nonsense://there")
    store, digest = opened(config, tmp_path / FILE)
    facts = store.facts(digest)
    facts["data"]["fingerprint"] = "another"
    store.open_bench(prepare(config)[0], facts)
    with pytest.raises(InputError, match="differs here from the data of the bench"):
        Worker(store, digest, tmp_path, never, quiet)
    with pytest.raises(InputError, match="holds no bench 'x'"):
        store.facts("x")
    store.close()


# ---------------------------------------------------------------------------------------------------------------
# The queue


@pytest.fixture
def postgres(server: Path) -> str:
    """An empty database."""
    name = f"bench_{random.getrandbits(32):x}"
    with psycopg.connect(f"host={server} user=nearfield dbname=postgres", autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return f"postgresql+psycopg://nearfield@/{name}?host={server}"


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    """A private PostgreSQL server, as another user where this one is root, which it refuses."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        pytest.skip("no PostgreSQL server here: install Debian's postgresql to run these tests")
    folder = Path(tempfile.mkdtemp(prefix="nearfield-pg-", dir="/tmp"))  # the socket's path must be short
    root = os.geteuid() == 0
    if root:
        shutil.chown(folder, "postgres")

    def call(program: str, *arguments: str) -> None:
        command = [str(found[-1] / program), "-D", str(folder / "data"), *arguments]
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if root else []
        subprocess.run([*as_user, *command], check=True, stdout=subprocess.DEVNULL, timeout=60, cwd=folder)

    call("initdb", "-A", "trust", "-U", "nearfield", "--no-sync")
    call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", f"-k {folder} -c listen_addresses='' -F", "start")
    try:
        yield folder
    finally:
        call("pg_ctl", "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / FILE) if request.param == "sqlite" else request.getfixturevalue("postgres")


def test_a_task_has_one_owner_until_its_claim_expires(config: BenchConfig, storage: str) -> None:
    store, digest = opened(config, storage)
    task = first_task(config)
    outcome: Outcome = {"state": "complete", "folds": []}
    assert store.claim(task, "a", 60)
    assert not store.claim(task, "b", 60)
    assert store.taken() == {task.key: ("multi_similarity trial 0", 0.0)}
    assert store.release(task.key, "a")
    assert store.claim(task, "b", -1)  # has expired already
    assert store.taken() == {}
    assert store.claim(task, "c", 60)
    assert not store.beat(task.key, "b", 60, 0.5)
    assert not store.record(task.key, "b", outcome, {("fold 0", "map@r"): np.ones(2, np.float32)}, 1.0)
    assert store.beat(task.key, "c", 60, 0.5)
    assert store.taken()[task.key][1] == 0.5
    scores = np.array([0.1, np.nan, 1 / 3], np.float32)
    assert store.record(task.key, "c", outcome, {("fold 0", "map@r"): scores}, 1.0)
    assert not store.record(task.key, "c", outcome, {}, 1.0)
    assert not store.claim(task, "d", 60)
    np.testing.assert_array_equal(store.query_scores(task.key, "fold 0", "map@r"), scores)
    known: dict[str, Outcome] = {}
    assert store.update(known)
    assert known == {task.key: outcome}
    assert not store.update(known)
    assert store.benches()[0] == digest
    store.close()


def test_a_claim_is_renewed_by_its_thread_until_it_is_lost(config: BenchConfig, tmp_path: Path) -> None:
    store, _ = opened(config, tmp_path / FILE)
    task = first_task(config)
    assert store.claim(task, "a", 2.0)
    with Claim(store, task.key, "a", 2.0) as claim:
        time.sleep(2.5)
        assert store.taken()  # it would have expired
        assert store.release(task.key, "a")
        assert store.claim(task, "b", 60)
        deadline = time.monotonic() + 20
        while not claim.lost and time.monotonic() < deadline:
            time.sleep(0.1)
        assert claim.lost
    store.close()


def test_what_a_worker_lost_meanwhile_it_discards(
    config: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, digest = opened(config, tmp_path / FILE)
    said: list[str] = []
    worker = Worker(store, digest, tmp_path, never, said.append)

    def slow(task: Task, *_: Any) -> tuple[Outcome, dict[Any, Any]]:
        store.release(task.key, worker.owner)
        assert store.claim(task, "another", 60)
        return {"state": "complete", "folds": []}, {}

    monkeypatch.setattr(run_task, "run_task", slow)
    worker.work(once=True)
    assert said == ["multi_similarity trial 0: lost, discarded"]
    assert list(store.taken()) == [first_task(config).key]
    store.close()


def test_a_failing_task_is_tried_twice_named_and_can_be_repaired(
    config: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config.model_copy(update={"trials": 1, "variants": (), "seeds": (0,)})
    attempts: list[str] = []
    real = run_task.run_task

    def broken(task: Task, *rest: Any) -> Any:
        attempts.append(task.name)
        if task.label == "proxy_softmax":
            raise RuntimeError("out of luck")
        return real(task, *rest)

    monkeypatch.setattr(run_task, "run_task", broken)
    _, results = worked(config, tmp_path)
    assert attempts == ["multi_similarity seed 0", "proxy_softmax seed 0", "proxy_softmax seed 0"]
    assert results.missing == ("proxy_softmax: seed 0: RuntimeError: out of luck",)
    assert [method.label for method in results.methods] == ["multi_similarity"]
    monkeypatch.setattr(run_task, "run_task", real)
    _, results = worked(config, tmp_path)
    assert results.missing == ()


def test_a_trial_that_diverges_counts_and_the_search_goes_on(config: BenchConfig, tmp_path: Path) -> None:
    wild = config.run.model_copy(update={"optimizer": config.run.optimizer.model_copy(update={"lr": 1e30})})
    methods = (config.methods[0].model_copy(update={"name": "contrastive"}),)
    update = {"run": wild, "methods": methods, "trials": 2, "variants": (), "seeds": (0,)}
    _, results = worked(config.model_copy(update=update), tmp_path)
    assert results.methods[0].trials[0].state == "pruned"
    assert "contrastive" in " ".join(results.missing)  # its seeds diverge, too, and that is said


def test_a_trial_far_behind_is_pruned_after_its_first_fold(config: BenchConfig, tmp_path: Path) -> None:
    bench, dataset = prepare(config)
    task = plan(bench, {})[0]
    hopeless, easy = replace(task, bounds=(2.0,)), replace(task, bounds=(0.0,))
    outcome, queries = run_task.run_task(hopeless, bench, dataset, tmp_path / "a", never, lambda share: None)
    assert outcome["state"] == "pruned"
    assert len(outcome["folds"]) == 1
    assert queries == {}
    assert run_task.run_task(easy, bench, dataset, tmp_path / "b", never, lambda share: None)[0]["state"] == "complete"


def test_a_folder_held_by_a_worker_thought_dead_is_left_to_it(
    config: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, digest = opened(config, tmp_path / FILE)
    held = tmp_path / "runs" / folder_name(first_task(config))
    real, said = run_task.run_task, list[str]()

    def busy(task: Task, bench: Any, dataset: Any, folder: Path, *rest: Any) -> Any:
        if folder == held:
            raise Busy("in use")
        return real(task, bench, dataset, folder, *rest)

    monkeypatch.setattr(run_task, "run_task", busy)
    Worker(store, digest, tmp_path, never, said.append).work(once=True)
    assert said[0].startswith("multi_similarity trial 0: complete")
    store.close()


# ---------------------------------------------------------------------------------------------------------------
# Processes


def start(folder: Path, *options: str, storage: str | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "nearfield", "worker", "--out", str(folder), "--patience", "3", *options]
    command += ["--storage", storage] if storage else []
    return subprocess.Popen(command, env=worker_environment(), stdout=subprocess.DEVNULL)


def wait_for_a_claim(store: Store) -> None:
    deadline = time.monotonic() + 90
    while not store.taken():
        assert time.monotonic() < deadline, "no worker took a task"
        time.sleep(0.01)


def test_two_workers_of_which_one_is_killed(
    config: BenchConfig, undisturbed: tuple[Path, BenchResults], tmp_path: Path
) -> None:
    store, digest = opened(config, tmp_path / FILE)
    victim = start(tmp_path)
    wait_for_a_claim(store)
    victim.kill()
    victim.wait()
    left = start(tmp_path)
    Worker(store, digest, tmp_path, never, quiet, patience=3.0).work()
    assert left.wait(60) == 0
    assert numbers(read_results(store, digest, tmp_path)) == numbers(undisturbed[1])
    store.close()


def test_three_workers_on_postgresql_of_which_one_is_killed(
    config: BenchConfig, undisturbed: tuple[Path, BenchResults], postgres: str, tmp_path: Path
) -> None:
    store, digest = opened(config.model_copy(update={"variant_seeds": 2}), postgres)
    folders = [tmp_path / name for name in "abc"]  # as on three machines: they share nothing but the database
    crew = [start(folder, "--bench", digest, storage=postgres) for folder in folders]
    wait_for_a_claim(store)
    crew[1].kill()
    assert [worker.wait(120) for worker in crew] == [0, -9, 0]
    results = read_results(store, digest)
    assert results.missing == ()
    found, expected = numbers(results), numbers(undisturbed[1])
    assert found[2] == expected[2]
    for method, known in zip(found[0], expected[0], strict=True):
        assert [len(seeds) for seeds in method.pop("variants").values()] == [2, 2]
        known.pop("variants")
        assert method == known
    store.close()


def test_a_stopped_worker_gives_its_task_back(config: BenchConfig, tmp_path: Path) -> None:
    longer = config.model_copy(update={"run": config.run.model_copy(update={"steps": 100_000, "eval_every": 50_000})})
    store, _ = opened(longer, tmp_path / FILE)
    worker = start(tmp_path)
    wait_for_a_claim(store)
    time.sleep(0.5)
    worker.terminate()
    assert worker.wait(60) == 130
    assert store.taken() == {}
    assert list(tmp_path.glob("runs/*/fold-0/checkpoint-*"))  # to go on from
    store.close()


def test_the_command_line_runs_a_bench_and_says_what_is_missing(config: BenchConfig, tmp_path: Path) -> None:
    small = config.model_copy(update={"trials": 1, "variants": (), "seeds": (0,)})
    (tmp_path / "bench.toml").write_text(small.to_toml())
    command = [sys.executable, "-m", "nearfield", "bench", str(tmp_path / "bench.toml"), "--out", str(tmp_path / "out")]
    dry = subprocess.run([*command, "--dry-run", "--json"], capture_output=True, text=True, timeout=120, check=True)
    planned = json.loads(dry.stdout)
    assert (planned["trials"], planned["seeds"], planned["folds"], planned["networks"]) == (0, 2, 2, 4)
    assert not (tmp_path / "out").exists()
    run = subprocess.run([*command, "--jobs", "1"], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert "2/2 tasks" in run.stderr
    assert "multi_similarity" in run.stdout
    assert "untrained network" in run.stdout
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.fixture(scope="module")
def longer(config: BenchConfig) -> BenchConfig:
    """The same with tasks that last long enough to be killed in their middle."""
    return config.model_copy(update={"run": config.run.model_copy(update={"steps": 300, "eval_every": 100})})


@pytest.fixture(scope="module")
def calm(longer: BenchConfig, tmp_path_factory: pytest.TempPathFactory) -> BenchResults:
    return worked(longer, tmp_path_factory.mktemp("calm"))[1]


@pytest.mark.slow
def test_a_bench_killed_20_times_at_random_ends_as_if_undisturbed(
    longer: BenchConfig, calm: BenchResults, tmp_path: Path
) -> None:
    (tmp_path / "bench.toml").write_text(longer.to_toml())
    out = tmp_path / "out"
    command = [sys.executable, "-m", "nearfield", "bench", str(tmp_path / "bench.toml"), "--out", str(out)]
    command += ["--jobs", "2", "--patience", "3", "--json"]
    dice, codes = random.Random(0), []
    store = opened(longer, out / FILE)[0]
    for _ in range(20):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not store.taken() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(dice.uniform(0.0, 4.0))
        process.send_signal(dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        codes.append(process.wait(120))
    store.close()
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=600, check=True)
    assert set(codes) <= {-9, -2, -15, 130, 0}  # by the signal itself if it came before anything had begun
    assert numbers(open_results(out)) == numbers(calm)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.slow
def test_workers_killed_20_times_at_random_are_replaced(
    longer: BenchConfig, calm: BenchResults, tmp_path: Path
) -> None:
    store, digest = opened(longer, tmp_path / FILE)
    dice = random.Random(1)
    crew = [start(tmp_path) for _ in range(2)]
    for _ in range(20):
        time.sleep(dice.uniform(1.0, 8.0))
        victim = dice.randrange(2)
        crew[victim].kill()
        crew[victim].wait()
        crew[victim] = start(tmp_path)
    assert [worker.wait(600) for worker in crew] == [0, 0]
    assert numbers(read_results(store, digest, tmp_path)) == numbers(calm)
    store.close()
