"""Suites: one bench a dataset, everything but the data's network equal; the command and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from suites import fake_suite

from nearfield import data, losses
from nearfield.analysis.calibration_text import calibrate, calibration_page
from nearfield.analysis.suite import collect
from nearfield.bench.plan import Bench, check_labels, trial_counts
from nearfield.bench.protocols import PROTOCOLS
from nearfield.bench.suite import bench_folder, read_suite, suite_of
from nearfield.cli.main import main
from nearfield.config import BenchConfig, MethodConfig, RunConfig
from nearfield.data.builtin import features
from nearfield.errors import InputError
from nearfield.losses.proxy_loss import ProxyLoss
from nearfield.metrics.dataset_scores import query_labels, score_test
from nearfield.report import suite as report
from nearfield.training.build import check_method, start_at_class_means

SUITES = sorted((Path(__file__).parent.parent / "docs" / "suites").glob("*.toml"))
TINY: dict[str, Any] = {
    "methods": [{"name": "contrastive"}, {"name": "proxy_nca"}],
    "seeds": [0, 1],
    "run": {"steps": 2, "eval_every": 2, "model": {"width": 2, "dim": 8}, "sampler": {"batch_size": 8}},
}


# ---------------------------------------------------------------------------------------------------------------
# The file


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_suites_of_the_documentation_can_be_run(path: Path) -> None:
    benches = read_suite(path)
    assert len(benches) >= 2
    for name, bench in benches.items():
        assert bench.run.data.name == name
        check_labels(bench)
        assert len(bench.seeds) == 5
        assert min(trial_counts(bench)) >= 8


def test_the_suite_of_features_has_every_method_on_five_datasets() -> None:
    (path,) = (path for path in SUITES if path.stem == "features")
    benches = read_suite(path)
    assert len(benches) >= 5
    for bench in benches.values():
        assert [method.name for method in bench.methods] == losses.names()
        starts = Bench(bench, PROTOCOLS["classic"], "").starts
        for (_, _, space), trials in zip(starts, trial_counts(bench), strict=True):
            assert trials == (16 if len(space) >= 3 else 8)


def test_datasets_share_everything_but_what_they_set() -> None:
    values = {**TINY, "datasets": [{"name": "glyphs"}, {"name": "digits", "run": {"model": {"dim": 4}}}]}
    glyphs, digits = suite_of(values, ["run.steps=3"]).values()
    assert (glyphs.run.model.dim, digits.run.model.dim) == (8, 4)
    assert (glyphs.run.model.width, digits.run.model.width) == (2, 2)
    assert glyphs.run.steps == digits.run.steps == 3
    assert glyphs.methods == digits.methods
    assert suite_of({"datasets": [{"name": "glyphs"}]})["glyphs"].methods[0].name == losses.names()[0]


@pytest.mark.parametrize(
    ("datasets", "words"),
    [
        ([], "at least one dataset"),
        ([{"run": {}}], "must have a name"),
        ([{"name": "glyphs", "trials": 3}], "everything else is equal for all; got trials"),
        ([{"name": "glyphs"}, {"name": "glyphs"}], "datasets must differ"),
        ([{"name": "glyphs", "run": {"stepz": 3}}], "stepz"),
    ],
)
def test_what_is_not_a_suite_is_refused(datasets: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        suite_of({**TINY, "datasets": datasets})


def test_methods_with_many_parameters_get_many_trials() -> None:
    methods = (MethodConfig(name="multi_similarity"), MethodConfig(name="prototypical"))
    config = BenchConfig(methods=methods, trials=4, many_trials=9)
    bench = Bench(config, PROTOCOLS["classic"], "")
    assert bench.trials == [9, 4]
    assert bench.total == 9 + 4 + 2 * len(config.seeds)
    assert len(bench.course(0, {}).trials) == len(bench.course(1, {}).trials) == 4  # the first do not wait for others
    assert trial_counts(BenchConfig(methods=methods, trials=1)) == [0, 0]
    assert BenchConfig(many_trials=None).digest() == BenchConfig().digest()


# ---------------------------------------------------------------------------------------------------------------
# Data


def test_queries_have_the_classes_of_the_test_images() -> None:
    digits = data.load("digits")
    labels = query_labels(digits)
    rng = np.random.default_rng(0)
    _, queries = score_test(digits, rng.normal(size=(len(digits.test_rows()), 4)), metrics=("recall",))
    assert len(queries["recall@1"]) == len(labels)
    assert (labels == digits.labels[digits.test_rows()]).all()


def test_features_are_datasets_by_name_split_into_halves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARFIELD_DATA", str(tmp_path))
    monkeypatch.setenv("NEARFIELD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match=r"NEARFIELD_DATA.*grocery81_efficientnet_lite0_224\.npz"):
        data.load("grocery81_lite0")
    labels = np.repeat([f"{i:02}" for i in range(9)], 3)
    path = tmp_path / features.FEATURES["grocery81_lite0"].file
    np.savez(path, features=np.random.default_rng(0).normal(size=(27, 5)).astype(np.float16), labels=labels)
    assert "grocery81_lite0" in data.names()
    found = data.load("grocery81_lite0")
    assert (found.train_classes.tolist(), found.test_classes.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7, 8])
    assert "MIT" in found.description


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("cub_lite0", 5864, 5924),
        ("flowers102_lite0", 3493, 4696),
        ("grocery81_lite0", 2979, 2442),
        ("chimpanzees102_lite0", 3269, 3918),
    ],
)
def test_the_real_features_have_their_published_halves(real_data: Path, name: str, train: int, test: int) -> None:
    path = real_data / features.FEATURES[name].file
    if not path.is_file():
        pytest.skip(f"NEARFIELD_DATA has no {path.name}")
    found = features.load(name, path)
    assert (len(found.train_rows()), len(found.test_rows())) == (train, test)


# ---------------------------------------------------------------------------------------------------------------
# Proxies at class means


def test_proxies_start_at_the_mean_direction_of_their_class() -> None:
    torch.manual_seed(0)
    loss = losses.create("proxy_nca", num_classes=3, dim=4)
    assert isinstance(loss, ProxyLoss)
    before = loss.proxies.detach().clone()
    embeddings, labels = torch.randn(12, 4), torch.arange(12) % 3
    start_at_class_means(loss, embeddings, labels)
    for number in range(3):
        unit = torch.stack([row / row.norm() for row in embeddings[labels == number]])
        expected = unit.mean(0) / unit.mean(0).norm() * before[number].norm()
        assert torch.allclose(loss.proxies[number], expected, atol=1e-6)


def test_centers_of_a_class_start_apart() -> None:
    torch.manual_seed(0)
    loss = losses.create("soft_triple", num_classes=3, dim=4, centers=2)
    assert isinstance(loss, ProxyLoss)
    start_at_class_means(loss, torch.randn(12, 4), torch.arange(12) % 3)
    directions = torch.nn.functional.normalize(loss.proxies.detach()).reshape(3, 2, 4)
    cosines = (directions[:, 0] * directions[:, 1]).sum(1)
    assert ((cosines > 0.95) & (cosines < 1 - 1e-6)).all()


@pytest.mark.parametrize("name", [name for name in losses.names() if losses.method(name).has_proxies])
def test_every_method_with_proxies_can_start_at_class_means(name: str) -> None:
    known: dict[str, Any] = {"num_classes": 3, "dim": 8, "features": 8}
    loss = losses.create(name, **{key: known[key] for key in losses.method(name).needs})
    assert isinstance(loss, ProxyLoss)
    before = loss.proxies.detach().clone()
    start_at_class_means(loss, torch.randn(12, 8), torch.arange(12) % 3)
    assert not torch.equal(loss.proxies, before)
    assert torch.allclose(loss.proxies.norm(dim=1), before.norm(dim=1), atol=1e-5)


def test_only_proxies_can_start_anywhere() -> None:
    with pytest.raises(InputError, match="proxy_start must be random for triplet"):
        check_method(RunConfig(method=MethodConfig(name="triplet"), proxy_start="class_means"))
    check_method(RunConfig(method=MethodConfig(name="arcface"), proxy_start="class_means"))
    assert RunConfig(proxy_start="random").digest() == RunConfig().digest()


# ---------------------------------------------------------------------------------------------------------------
# The command and the report


@pytest.mark.programs
def test_a_suite_is_planned_run_resumed_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tomli_w

    monkeypatch.setattr(report, "write_report", lambda bench, out: out)  # `test_report` writes the page of a bench
    monkeypatch.setattr("nearfield.cli.suite.QUICK", 5)
    path, out, own = tmp_path / "suite.toml", tmp_path / "out", str(tmp_path / "own.npz")
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(16), 6)
    np.savez(own, features=rng.normal(size=(16, 12))[labels] + rng.normal(size=(96, 12)), labels=labels)
    digits = {"name": "digits", "run": {"sampler": {"per_class": 2}}}
    features = {"name": own, "run": {"model": {"backbone": "features"}}}
    path.write_text(tomli_w.dumps({**TINY, "datasets": [digits, features]}), encoding="utf-8")
    assert main(["suite", str(path), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [row["data"] for row in plan["datasets"]] == ["digits", own]
    assert all(row["seconds"] >= 0 and row["networks"] == 4 for row in plan["datasets"])
    assert main(["suite", str(path), "--out", str(out), "--report"]) == 1
    assert "no dataset of the suite" in capsys.readouterr().err
    assert main(["suite", str(path), "--out", str(out), "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "Level classes" in said
    assert (bench_folder(out, own) / "results.sqlite").is_file()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "digits/report.html" in page
    assert main(["suite", str(path), "--out", str(out), "--report", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["level"] == "classes"
    assert set(facts["scores"]) == {"digits", own}


def test_the_page_across_datasets_is_one_file_without_scripts(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(report, "write_report", lambda bench, out: out)
    suite = collect(fake_suite(4))
    calibration = calibrate(suite, repetitions=10)
    pages = {each.name: tmp_path / each.name for each in suite.datasets}
    written = report.write_suite(suite, calibration, tmp_path, pages, lambda line: None)
    page = written[0].read_text(encoding="utf-8")
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert page.count("<svg") == 4
    for words in ("Level datasets", "Level classes", "Level seeds", 'href="data0/report.html"'):
        assert words in page
    text = written[1].read_text(encoding="utf-8")
    assert all((tmp_path / name).is_file() for name in ("report-ranks.svg", "report-pareto.svg"))
    assert "## Every pair on a new dataset" in text


def test_the_page_of_the_calibration_has_every_level() -> None:
    found = calibrate(collect(fake_suite(4)), repetitions=20)
    page = calibration_page(found, "figure.svg", "the command")
    for words in ("the command", "3 datasets", "40 classes", "5 seeds", "left-out dataset", "split halves of classes"):
        assert words in page
    assert found == calibrate(collect(fake_suite(4)), repetitions=20)


def test_without_a_suite_there_must_be_something_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite"]) == 2
    assert "name the TOML file of a suite" in capsys.readouterr().err


def test_the_committed_calibration_keeps_what_each_level_promises() -> None:
    """The rows of simulations on the documentation's page: coverage, false positives, verdicts that held."""
    page = (Path(__file__).parent.parent / "docs" / "calibration.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    simulated = [row for row in rows if row[0] in ("seeds", "classes", "datasets")]
    assert {row[0] for row in simulated} == {"seeds", "classes", "datasets"}
    assert any("outliers" in row[1] for row in simulated)
    for row in simulated:
        coverage, false, held = (float(cell.split("%")[0]) for cell in row[2:5])
        assert coverage >= 93
        assert false <= 7
        assert held >= 88 or int(row[4].split()[-1]) < 50  # of so few, where differences hardly travel, nothing follows
