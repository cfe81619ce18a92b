"""Results that travel: packed, unpacked elsewhere, reported and resumed as if nothing had happened; hostile files."""

from __future__ import annotations

import json
import sqlite3
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from engines import Inline

from nearfield.bench.database import FILE, Store
from nearfield.bench.publish import METRICS, pack_results, unpack_results
from nearfield.bench.read_results import open_results
from nearfield.bench.suite import read_suite, run_suite
from nearfield.cli.main import main
from nearfield.errors import InputError
from nearfield.report import suite as report

DATA = "points.npz"
SUITE: dict[str, Any] = {
    "methods": [{"name": "contrastive"}, {"name": "proxy_nca"}],
    "seeds": [0, 1],
    "trials": 2,
    "variants": ["longer"],
    "protocol": "reality-check",
    "run": {"steps": 2, "eval_every": 2, "model": {"backbone": "features", "dim": 4}, "sampler": {"batch_size": 8}},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of a suite with one small dataset, which is found by its name."""
    folder = tmp_path_factory.mktemp("suite")
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 5)
    features = rng.normal(size=(24, 6))[labels] + rng.normal(size=(120, 6))
    np.savez(folder / DATA, features=features.astype(np.float32), labels=labels)
    values = {**SUITE, "datasets": [{"name": DATA}]}
    (folder / "suite.toml").write_text(tomli_w.dumps(values), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder / "suite.toml"


def run(config: Path, out: Path, *overrides: str) -> list[str]:
    """Run or resume the suite; the names of the tasks that were done."""
    engine = Inline(out.with_name("scratch"))
    deque(run_suite(read_suite(config, overrides), out, engine, lambda name, watched: None, lambda line: None))
    return engine.done


@pytest.fixture(scope="module")
def finished(config: Path) -> Path:
    """The folder of a suite that was run."""
    assert len(run(config, config.parent / "out")) == 2 * (2 + 2 + 1)
    return config.parent / "out"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write_report", lambda bench, out: out)  # `test_report` writes the page of a bench
    monkeypatch.setattr("nearfield.cli.suite.QUICK", 5)


@pytest.fixture
def packed(finished: Path, tmp_path: Path) -> Path:
    file = tmp_path / "results.zip"
    assert pack_results(finished, file) == [f"{DATA}/{FILE}"]
    return file


def rows(folder: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(folder / FILE)) as db:
        return db.execute(query).fetchall()


def test_the_report_of_unpacked_results_is_the_same(config: Path, finished: Path, packed: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert main(["results", "unpack", str(packed), "--out", str(there)]) == 0
    assert main(["suite", str(config), "--out", str(finished), "--report"]) == 0
    assert main(["suite", str(config), "--out", str(there), "--report"]) == 0
    for name in ("report.md", "report.html"):
        assert (there / name).read_bytes() == (finished / name).read_bytes()


def test_everything_that_analysis_reads_is_there_unrounded(finished: Path, packed: Path, tmp_path: Path) -> None:
    unpack_results(packed, tmp_path / "there")
    here, there = (open_results(folder / DATA) for folder in (finished, tmp_path / "there"))
    assert here.methods == there.methods
    assert here.missing == there.missing == ()
    assert {key: here.__dict__[key] for key in ("config", "protocol", "data", "baselines", "environment")} == {
        key: there.__dict__[key] for key in ("config", "protocol", "data", "baselines", "environment")
    }
    for method in here.methods:
        for metric in METRICS:
            for part in ("separated", "concatenated"):
                expected = here.queries(method.label, metric, part)
                assert np.array_equal(there.queries(method.label, metric, part), expected, equal_nan=True)
    assert there.embeddings("contrastive") is None


def test_resuming_elsewhere_does_only_what_is_new(config: Path, finished: Path, packed: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    unpack_results(packed, there)
    query = "SELECT key, seconds, outcome, made_by FROM tasks WHERE state = 'done'"
    before = set(rows(finished / DATA, query))
    assert set(rows(there / DATA, query)) == before
    assert run(config, there) == []
    assert set(rows(there / DATA, query)) == before
    assert run(config, there, "seeds=[0,1,2]") == ["contrastive seed 2", "proxy_nca seed 2"]
    after = set(rows(there / DATA, query))
    assert before < after
    assert len(after) == len(before) + 2  # one seed more of each method
    assert [len(method.seeds) for method in open_results(there / DATA).methods] == [3, 3]
    assert pack_results(there, tmp_path / "again.zip") == [f"{DATA}/{FILE}"]


def test_equal_results_make_equal_files_and_packed_ones_can_be_packed_again(packed: Path, tmp_path: Path) -> None:
    unpack_results(packed, tmp_path / "there")
    pack_results(tmp_path / "there", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()


def test_a_bench_is_packed_by_itself(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.zip"
    assert main(["results", "pack", str(finished / DATA), "-o", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"written": str(file), "results": [FILE]}
    assert unpack_results(file, tmp_path / "there") == [FILE]
    assert len(open_results(tmp_path / "there").methods) == 2


def test_other_results_are_never_overwritten(packed: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    unpack_results(packed, there)  # an empty folder is as good as a new one
    with pytest.raises(InputError, match="must be a new or empty folder"):
        unpack_results(packed, there)


def test_what_is_not_a_folder_of_results_cannot_be_packed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no results\.sqlite"):
        pack_results(tmp_path, tmp_path / "results.zip")
    assert not (tmp_path / "results.zip").exists()


# ---------------------------------------------------------------------------------------------------------------
# Hostile files


@pytest.mark.parametrize(
    "name", ["../results.sqlite", "/results.sqlite", "a/b/results.sqlite", "run.py", "./results.sqlite"]
)
def test_other_names_are_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "results.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"")
    with pytest.raises(InputError, match="must hold only"):
        unpack_results(file, tmp_path / "there")
    assert [path.name for path in tmp_path.iterdir()] == ["results.zip"]


@pytest.mark.parametrize("content", [b"", b"no zip file", b"PK\x05\x06" + bytes(18)])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "results.zip").write_bytes(content)
    with pytest.raises(InputError):
        unpack_results(tmp_path / "results.zip", tmp_path / "there")
    with pytest.raises(InputError, match="missing"):
        unpack_results(tmp_path / "missing.zip", tmp_path / "there")


def damage(sql: str, *values: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute(sql, values)
            db.commit()

    return change


HOSTILE = {
    "no database": lambda path: path.write_bytes(b"text" * 500),
    "a trigger": damage("CREATE TRIGGER t AFTER INSERT ON tasks BEGIN DELETE FROM benches; END"),
    "a view": damage("CREATE VIEW v AS SELECT * FROM tasks"),
    "a version": damage("UPDATE meta SET value = '9'"),
    "facts": damage("UPDATE benches SET facts = '{}'"),
    "a configuration": damage("UPDATE benches SET facts = ?", json.dumps({"config": {"run": {"stepz": 3}}})),
    "a task": damage("UPDATE tasks SET task = 'import os'"),
    "a folder": damage("UPDATE tasks SET outcome = ?", json.dumps({"folder": "../../elsewhere"})),
    "scores": damage("UPDATE query_scores SET scores = ?", b"no zlib"),
    "a bomb": damage("UPDATE query_scores SET scores = ?", zlib.compress(bytes(41_000_000), 9)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_content_is_checked(kind: str, packed: Path, tmp_path: Path) -> None:
    unpack_results(packed, tmp_path / "there")
    database = tmp_path / "there" / DATA / FILE
    HOSTILE[kind](database)
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(database, f"{DATA}/{FILE}")
    with pytest.raises(InputError, match="does not hold the results of benches"):
        unpack_results(packed, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_packing_reads_a_database_that_is_being_written(finished: Path, tmp_path: Path) -> None:
    store = Store(finished / DATA / FILE)
    with store._writing():
        pack_results(finished, tmp_path / "results.zip")
    unpack_results(tmp_path / "results.zip", tmp_path / "there")
