"""Two methods named beforehand: what is said of them at each level, and by the command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suites import METHODS, fake_suite

from nearfield.analysis.statistics import compare
from nearfield.analysis.suite import collect
from nearfield.analysis.two_methods import facts, lines, table, two_methods
from nearfield.bench.database import FILE
from nearfield.bench.read_results import open_suite
from nearfield.bench.results import BenchResults
from nearfield.cli.main import main
from nearfield.errors import InputError


def test_the_better_method_is_found_at_every_level_and_from_either_side() -> None:
    suite = collect(fake_suite(6))
    found, other = two_methods(suite, "good", "poor"), two_methods(suite, "poor", "good")
    for name, each in found.datasets.items():
        assert each.classes is not None
        for level in (each.classes, each.seeds):
            assert level.difference.mean == pytest.approx(METHODS["good"] - METHODS["poor"], abs=0.02)
            assert level.p < 1e-3
        assert each.classes.p >= each.seeds.p * (1 - 1e-9)
        assert other.datasets[name].seeds.difference.mean == pytest.approx(-each.seeds.difference.mean)
    assert found.new is not None
    assert found.new.decided == "better"
    assert other.new is not None
    assert other.new.positive == pytest.approx(1 - found.new.positive)
    for said in (lines(found), lines(other)):
        assert said[0].startswith("Level datasets: ")
        assert said[1].startswith("Level classes: good is better on data0, data1")
        assert said[2].startswith("Level seeds: good is better on data0, data1")
        assert "not significantly" not in " ".join(said)


def test_differences_are_those_of_the_seeds() -> None:
    suite = collect(fake_suite(3))
    each = suite.datasets[1]
    expected = compare(each.seeds["fair"], each.seeds["same"])
    assert two_methods(suite, "fair", "same").datasets["data1"].seeds == expected


def test_equal_methods_are_not_told_apart_more_often_than_chance() -> None:
    suite = collect(fake_suite(20))
    found = two_methods(suite, "fair", "same")
    differing = sum(each.classes is not None and each.classes.p < 0.05 for each in found.datasets.values())
    assert differing <= 4  # of 20; more than 4 has a probability of 0.3 %
    assert found.new is not None
    assert 0.1 < found.new.positive < 0.9


def test_two_datasets_say_nothing_of_a_third() -> None:
    found = two_methods(collect(fake_suite(2)), "good", "poor")
    assert found.new is None
    assert lines(found)[0] == "Level datasets: not known; 2 of at least 3 datasets."


def test_below_the_untrained_baseline_no_method_is_called_better() -> None:
    def poor(results: BenchResults) -> BenchResults:
        return replace(results, baselines={"raw features": {"map@r": 0.9}})

    found = two_methods(collect({name: poor(each) for name, each in fake_suite(3).items()}), "good", "poor")
    assert "is better" not in " ".join(lines(found)[1:])
    assert "good scores higher on data0, data1, data2, but not above the untrained baseline" in lines(found)[1]


def test_without_classes_only_seeds_speak() -> None:
    bare = {name: replace(each, query_classes=None) for name, each in fake_suite(3).items()}
    found = two_methods(collect(bare), "good", "poor")
    assert [line.split(":")[0] for line in lines(found)] == ["Level datasets", "Level seeds"]
    assert table(found).rows[0][3:5] == ["–", "–"]


@pytest.mark.parametrize(("a", "b", "words"), [("god", "poor", "did you mean 'good'"), ("good", "good", "must differ")])
def test_wrong_names_are_refused(a: str, b: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        two_methods(collect(fake_suite(1)), a, b)


def test_the_numbers_are_plain_values() -> None:
    found = facts(two_methods(collect(fake_suite(3)), "good", "poor"))
    assert json.loads(json.dumps(found))["new_dataset"]["datasets"] == 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bench of two methods on features."""
    from engines import Inline

    from nearfield.bench.run import run_bench
    from nearfield.config import BenchConfig, build_config

    out = tmp_path_factory.mktemp("two")
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(24), 5)
    features = rng.normal(size=(24, 6))[labels] + rng.normal(size=(120, 6))
    np.savez(out / "points.npz", features=features.astype(np.float32), labels=labels)
    run: dict[str, Any] = {"steps": 2, "eval_every": 2, "data": {"name": str(out / "points.npz")}}
    run |= {"model": {"backbone": "features", "dim": 4}, "sampler": {"batch_size": 8}}
    values = {"methods": [{"name": "contrastive"}, {"name": "proxy_nca"}], "seeds": [0, 1], "trials": 1, "run": run}
    run_bench(build_config(BenchConfig, values), out / "bench", Inline(out / "scratch"), lambda watched: None)
    return out / "bench"


def test_the_command_compares_methods_of_a_bench(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "compare", str(folder), "contrastive", "proxy_nca", "--metric", "recall@1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["first"], found["second"], found["metric"]) == ("contrastive", "proxy_nca", "recall@1")
    (only,) = found["datasets"].values()
    assert only["scores"][0] - only["scores"][1] == pytest.approx(only["seeds"]["difference"]["mean"])
    assert main(["results", "compare", str(folder), "contrastive", "proxy_nca"]) == 0
    said = capsys.readouterr().out
    assert "Level classes: " in said
    assert "Level datasets: not known" in said


def test_the_command_names_what_is_wrong(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "compare", str(folder), "contrastive", "proxy_nka"]) == 2
    assert "did you mean 'proxy_nca'" in capsys.readouterr().err
    assert main(["results", "compare", str(folder), "contrastive", "proxy_nca", "--metric", "nmj"]) == 2
    assert main(["results", "compare", str(tmp_path), "contrastive", "proxy_nca"]) == 2
    assert "must be the folder of a bench or a suite" in capsys.readouterr().err


def test_benches_on_the_same_data_are_no_suite(folder: Path, tmp_path: Path) -> None:
    for name in ("16", "32"):
        (tmp_path / name).mkdir()
        shutil.copy(folder / FILE, tmp_path / name / FILE)
    with pytest.raises(InputError, match="several benches on the same data"):
        open_suite(tmp_path)
