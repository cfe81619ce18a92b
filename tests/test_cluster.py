"""Benches on real clusters: whoever is killed or stopped, results equal those of an undisturbed run, to the bit."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from engines import Inline
from test_driver import numbers, ran, small_bench

from nearfield.bench.database import FILE, Store
from nearfield.bench.engine import Engine, worker_environment
from nearfield.bench.read_results import open_results
from nearfield.bench.results import BenchResults
from nearfield.bench.run import Watched, run_bench
from nearfield.config import BenchConfig
from nearfield.errors import InputError

pytestmark = pytest.mark.programs

Process = subprocess.Popen[str]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> BenchConfig:
    """One seed of each method, nothing else."""
    config = small_bench(tmp_path_factory.mktemp("data"))
    return config.model_copy(update={"trials": 1, "variants": (), "seeds": (0,)})


@pytest.fixture(scope="module")
def longer(small: BenchConfig) -> BenchConfig:
    """Tasks that last long enough to be killed in their middle, with checkpoints on the way."""
    run = small.run.model_copy(update={"steps": 250, "eval_every": 25})
    return small.model_copy(update={"seeds": (0, 1), "run": run})


@pytest.fixture(scope="module")
def calm(longer: BenchConfig, tmp_path_factory: pytest.TempPathFactory) -> BenchResults:
    return ran(longer, tmp_path_factory.mktemp("calm") / "out")[1]


@pytest.fixture(scope="module")
def longest(small: BenchConfig) -> BenchConfig:
    """Enough checkpoints that a hundred kills all find it at work."""
    run = small.run.model_copy(update={"steps": 2500, "eval_every": 20})
    return small.model_copy(update={"seeds": tuple(range(6)), "run": run})


@pytest.fixture(scope="module")
def calmest(longest: BenchConfig, tmp_path_factory: pytest.TempPathFactory) -> BenchResults:
    return ran(longest, tmp_path_factory.mktemp("calmest") / "out")[1]


def until(happened: Callable[[], Any], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def bench_command(config: BenchConfig, out: Path, *options: str) -> list[str]:
    out.parent.mkdir(parents=True, exist_ok=True)
    (out.parent / "bench.toml").write_text(config.to_toml())
    return [sys.executable, "-m", "nearfield", "bench", str(out.parent / "bench.toml"), "--out", str(out), *options]


def start(command: list[str]) -> Process:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def checkpoints(out: Path) -> list[Path]:
    return list(out.glob("runs/*/fold-*/checkpoint-*"))


def done(out: Path) -> int:
    return len(Store(out / FILE).finished()) if (out / FILE).is_file() else 0


def end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


# ---------------------------------------------------------------------------------------------------------------
# Workers on this machine


def test_the_command_line_runs_a_bench_and_says_what_it_does(small: BenchConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = bench_command(small, out)
    dry = subprocess.run([*command, "--dry-run", "--json"], capture_output=True, text=True, timeout=120, check=True)
    planned = json.loads(dry.stdout)
    assert (planned["trials"], planned["seeds"], planned["folds"], planned["networks"]) == (0, 2, 2, 4)
    assert not out.exists()
    run = subprocess.run([*command, "--jobs", "1"], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stderr.splitlines() if "/2" not in line]  # without those that count, now and then
    assert lines == ["reading the data", "scoring the baselines", "starting the workers", "writing the report"]
    assert "multi_similarity" in run.stdout
    assert "untrained network" in run.stdout
    written = (out / "report.html").stat().st_mtime_ns
    again = subprocess.run([*command, "--jobs", "1"], capture_output=True, text=True, timeout=240, check=True)
    assert again.stderr.splitlines() == ["reading the data"]  # no workers, no report: nothing has changed
    assert (out / "report.html").stat().st_mtime_ns == written


def test_workers_have_one_thread_and_die_with_a_killed_driver(longer: BenchConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    driver = start(bench_command(longer, out, "--jobs", "2"))
    until(lambda: checkpoints(out))
    family = psutil.Process(driver.pid).children(recursive=True)
    workers = [each for each in family if "spawn_main" in " ".join(each.cmdline())]
    assert len(workers) == 2
    wanted = worker_environment()
    assert all({name: each.environ()[name] for name in wanted} == wanted for each in workers)
    driver.kill()
    driver.communicate()
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert len(gone) == len(family)


def test_ctrl_c_stops_in_seconds_with_the_table_so_far(longer: BenchConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = longer.model_copy(update={"seeds": (0,)})
    ran(first, out)
    more = ("contrastive", "triplet", "binomial", "nca")  # it is not at its end before the signal comes
    methods = (*first.methods, *(first.methods[0].model_copy(update={"name": name}) for name in more))
    driver = start(bench_command(first.model_copy(update={"methods": methods}), out, "--jobs", "1"))
    until(lambda: list(out.glob("runs/contrastive*/fold-0/metrics.jsonl")))
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: the workers hear it, too
    begun = time.monotonic()
    printed, noted = driver.communicate(timeout=60)
    assert time.monotonic() - begun < 30
    assert driver.returncode == 130
    assert "stopping" in noted
    assert re.search("[2-5] of 6 tasks are done", noted)
    assert "multi_similarity" in printed


def test_a_stopped_task_saves_a_checkpoint_first(longer: BenchConfig, tmp_path: Path) -> None:
    forever = longer.run.model_copy(update={"steps": 100_000, "eval_every": 50_000})
    out = tmp_path / "out"
    driver = start(bench_command(longer.model_copy(update={"run": forever}), out, "--jobs", "1"))
    until(lambda: list(out.glob("runs/*/fold-0/metrics.jsonl")))
    driver.terminate()
    assert driver.wait(60) == 130
    end(driver)
    assert checkpoints(out)  # to resume from: no evaluation came before the signal


def test_a_killed_worker_costs_one_task(longer: BenchConfig, calm: BenchResults, tmp_path: Path) -> None:
    victims: list[int] = []

    def kill_one(watched: Watched) -> None:
        if not victims and checkpoints(tmp_path / "out"):
            children = psutil.Process().children(recursive=True)
            worker = next(each for each in children if "spawn_main" in " ".join(each.cmdline()))
            victims.append(worker.pid)
            worker.kill()

    with Engine(2) as engine:
        results = run_bench(longer, tmp_path / "out", engine, kill_one)
        assert victims
        assert numbers(results) == numbers(calm)
        future = engine.submit({"key": "x"})  # which is no job: the worker says so
        with pytest.raises(KeyError):
            engine.answer(future, "x")
    assert not [each for each in psutil.Process().children(recursive=True) if "spawn_main" in " ".join(each.cmdline())]


def test_a_task_that_always_kills_its_worker_is_named_and_the_bench_goes_on(
    small: BenchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(  # in every process that is started: this loss is fatal in a worker
        "import os, sys\n"
        "if 'spawn_main' in ' '.join(sys.orig_argv):\n"
        "    import nearfield.bench.job as job\n"
        "    real = job.run_task\n"
        "    job.run_task = lambda task, *rest: os.abort() if task.label == 'multi_similarity' else real(task, *rest)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with Engine(1) as engine:
        results = run_bench(small, tmp_path / "out", engine, lambda watched: None)
    (missing,) = results.missing
    assert missing.startswith("multi_similarity: seed 0: 4 workers died while running it")
    assert [method.label for method in results.methods] == ["proxy_softmax"]


# ---------------------------------------------------------------------------------------------------------------
# A cluster started by hand


class Cluster:
    """A scheduler and workers, as `dask scheduler` and `dask worker` start them."""

    def __init__(self, folder: Path) -> None:
        self.file, self.folder = folder / "scheduler.json", folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        until(self.file.is_file)

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        """A worker without a nanny: whoever kills it kills all of it."""
        return self._start("worker", "--no-nanny", "--no-dashboard", *(options or ("--nthreads", "1")))

    def _start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(self.file), *options]
        with (self.folder / f"{kind}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env={**os.environ})
        self.processes.append(process)
        return process


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        for process in cluster.processes:
            process.send_signal(signal.SIGCONT)
            end(process)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in(tmp_path / "cluster") as found:
        yield found


def test_workers_killed_stopped_and_added_change_nothing(
    longer: BenchConfig, calm: BenchResults, cluster: Cluster, tmp_path: Path
) -> None:
    victim, sleeper, _ = (cluster.worker() for _ in range(3))
    out = tmp_path / "out"
    driver = start(bench_command(longer, out, "--cluster", str(cluster.file)))
    until(lambda: len(checkpoints(out)) >= 3)  # everybody is at work
    victim.kill()
    sleeper.send_signal(signal.SIGSTOP)
    cluster.worker()
    until(lambda: done(out) >= 1)
    time.sleep(3.0)
    sleeper.send_signal(signal.SIGCONT)
    noted = driver.communicate(timeout=240)[1]
    assert driver.returncode == 0, noted
    assert f"connecting to {cluster.file}" in noted
    assert numbers(open_results(out)) == numbers(calm)


def kill_and_resume(
    command: list[str], out: Path, times: int, dice: random.Random, spread: float = 2.0
) -> BenchResults:
    """Kill the driver at random, within `spread` seconds of some progress, again and again; the results in the end.

    It must be at work at each of the `times`.
    """

    def progress() -> set[Any]:
        return {*checkpoints(out), done(out)}

    for _ in range(times):
        before, driver = progress(), start(command)
        until(partial(lambda one, known: one.poll() is not None or progress() != known, driver, before))
        assert driver.poll() is None, "the bench was done before the last kill: make it longer"
        time.sleep(dice.uniform(0.0, spread))
        driver.send_signal(dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        assert driver.wait(120) in (-9, -2, -15, 130, 0)  # by the signal itself if nothing had begun
        end(driver)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=3600, check=True)
    assert not list(out.rglob("*.part"))
    return open_results(out)


def test_a_driver_killed_twice_ends_as_if_undisturbed(
    longer: BenchConfig, calm: BenchResults, cluster: Cluster, tmp_path: Path
) -> None:
    for _ in range(2):
        cluster.worker()
    command = bench_command(longer, tmp_path / "out", "--cluster", str(cluster.file), "--json")
    assert numbers(kill_and_resume(command, tmp_path / "out", 2, random.Random(1))) == numbers(calm)


def test_workers_that_cannot_do_it_are_named_and_the_others_do_it(
    small: BenchConfig, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.worker("--nthreads", "2")
    out = tmp_path / "out"
    refused = subprocess.run(
        bench_command(small, out, "--cluster", str(cluster.file)), capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == 1
    assert "no worker of the cluster can run this bench" in refused.stderr
    assert "it has 2 threads; start it with --nthreads 1" in refused.stderr
    cluster.worker()
    accepted = subprocess.run(
        bench_command(small, out, "--cluster", str(cluster.file)), capture_output=True, text=True, timeout=120
    )
    assert accepted.returncode == 0, accepted.stderr


def test_a_cluster_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    for address in ("tcp://127.0.0.1:1", str(tmp_path / "scheduler.json")):
        with (
            pytest.raises(InputError, match="--cluster must name a running Dask scheduler"),
            Engine(1, address) as engine,
        ):
            engine.start(tmp_path / "log")


def test_a_lost_cluster_ends_the_bench_which_can_be_resumed(
    longer: BenchConfig, calm: BenchResults, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with cluster_in(tmp_path / "cluster") as cluster:
        cluster.worker()
        driver = start(bench_command(longer, out, "--cluster", str(cluster.file)))
        until(lambda: checkpoints(out))
        cluster.scheduler.kill()
        noted = driver.communicate(timeout=120)[1]
        assert driver.returncode == 1
        assert "lost the cluster" in noted
    engine = Inline(tmp_path)
    assert numbers(run_bench(longer, out, engine, lambda watched: None)) == numbers(calm)


# ---------------------------------------------------------------------------------------------------------------
# Many times


@pytest.mark.slow
def test_a_driver_killed_20_times_ends_as_if_undisturbed(
    longest: BenchConfig, calmest: BenchResults, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.worker()  # one: it works on while the driver is away
    command = bench_command(longest, tmp_path / "out", "--cluster", str(cluster.file), "--json")
    assert numbers(kill_and_resume(command, tmp_path / "out", 20, random.Random(0), 0.5)) == numbers(calmest)


@pytest.mark.slow
def test_a_bench_with_its_own_workers_killed_100_times_ends_as_if_undisturbed(
    longest: BenchConfig, calmest: BenchResults, tmp_path: Path
) -> None:
    command = bench_command(longest, tmp_path / "out", "--jobs", "2", "--json")
    assert numbers(kill_and_resume(command, tmp_path / "out", 100, random.Random(2), 0.5)) == numbers(calmest)


@pytest.mark.slow
def test_a_worker_stopped_for_a_minute_changes_nothing(
    longer: BenchConfig, calm: BenchResults, cluster: Cluster, tmp_path: Path
) -> None:
    sleeper, _ = (cluster.worker() for _ in range(2))
    out = tmp_path / "out"
    driver = start(bench_command(longer, out, "--cluster", str(cluster.file)))
    until(lambda: len(checkpoints(out)) >= 2)
    sleeper.send_signal(signal.SIGSTOP)
    time.sleep(60)
    sleeper.send_signal(signal.SIGCONT)
    noted = driver.communicate(timeout=600)[1]
    assert driver.returncode == 0, noted
    assert numbers(open_results(out)) == numbers(calm)
