"""`nearfield bench --published`: every method with its own paper's optimiser, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from engines import Inline

from nearfield import losses
from nearfield.analysis.leaderboard import standings
from nearfield.analysis.lint.rules import lint
from nearfield.bench.baselines import unequal
from nearfield.bench.plan import SHAPE, Bench, start_of
from nearfield.bench.protocols import PROTOCOLS
from nearfield.bench.run import run_bench
from nearfield.cli.bench import bench_config
from nearfield.cli.leaderboard import notes_below
from nearfield.cli.main import build_parser, main
from nearfield.config import (
    BenchConfig,
    DataConfig,
    MethodConfig,
    OptimizerConfig,
    RunConfig,
    SamplerConfig,
    load_config,
)
from nearfield.losses.registry import Real

RUN = RunConfig(
    sampler=SamplerConfig(name="m_per_class", rule="cover"),
    optimizer=OptimizerConfig(name="sgd", lr=0.3, schedule="constant", warmup_steps=7),
)


@pytest.mark.parametrize("name", losses.names())
def test_every_published_optimiser_is_applied(name: str) -> None:
    method = MethodConfig(name=name)
    config = BenchConfig(methods=(method,), run=RUN, published=True)
    run = start_of(config, method)
    assert run.sampler == SamplerConfig(name="auto")
    recipe = losses.method(name).recipe_of({})
    known = RUN.optimizer if recipe is None else recipe
    for key, value in run.optimizer:
        assert value == getattr(RUN.optimizer if key in SHAPE else known, key), key
    assert run.steps == RUN.steps
    assert start_of(config.model_copy(update={"published": False}), method) == RUN.model_copy(update={"method": method})


def test_trials_search_around_the_published_rate() -> None:
    config = BenchConfig(methods=(MethodConfig(name="fastap"), MethodConfig(name="contrastive")), published=True)
    bench = Bench(config, PROTOCOLS["classic"], "data")
    assert {run.method.name: run.optimizer.lr for _, run, _ in bench.starts} == {"fastap": 1e-5, "contrastive": 1e-5}
    ranges = [space["optimizer.lr"] for _, _, space in bench.starts]
    assert all(isinstance(rate, Real) and rate.low < 1e-5 < rate.high for rate in ranges)
    plain = Bench(config.model_copy(update={"published": False}), PROTOCOLS["classic"], "data")
    assert plain.digest != bench.digest


def test_an_old_bench_keeps_its_digest() -> None:
    assert "published" not in BenchConfig().model_dump(exclude_defaults=True)
    assert BenchConfig().digest() == BenchConfig(published=False).digest() != BenchConfig(published=True).digest()


def test_conditions_are_said_to_be_unequal() -> None:
    methods = (MethodConfig(name="fastap"), MethodConfig(name="proxy_anchor"))
    config = BenchConfig(methods=methods, seeds=tuple(range(5)), trials=8, published=True)
    (sin,) = lint(config)
    assert sin.code == "published-optimizers"
    assert "conditions are not equal: fastap by adam 1e-05, proxy_anchor by adamw 0.0001" in sin.text
    run = start_of(config, methods[0])
    assert "its published optimiser, adam with learning rate 1e-05" in unequal(run, 10, published=True)
    assert not any("published" in fact for fact in unequal(run, 10))


def test_the_leaderboard_says_it(tmp_path: Path) -> None:
    methods = (MethodConfig(name="fastap"), MethodConfig(name="contrastive"))
    run = RunConfig(data=DataConfig(name="digits"), steps=2, eval_every=2, sampler=SamplerConfig(batch_size=12))
    config = BenchConfig(methods=methods, seeds=(0,), published=True, run=run)
    results = run_bench(config, tmp_path / "out", Inline(tmp_path / "scratch"), lambda watched: None)
    said = "\n".join(notes_below(standings(results), results))
    assert "† contrastive: its published optimiser, adam with learning rate 1e-05" in said
    assert "published-optimizers: conditions are not equal: fastap by adam 1e-05" in said
    trained = [load_config(RunConfig, path) for path in (tmp_path / "out").rglob("config.toml")]
    assert [run.optimizer.lr for run in trained] == [1e-5, 1e-5]


def test_the_command_line_asks_for_it() -> None:
    assert bench_config(build_parser().parse_args(["bench", "--published"])).published
    assert not bench_config(build_parser().parse_args(["bench"])).published


def test_the_plan_names_the_optimisers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--data", "digits", "--methods", "fastap", "proxy_anchor", "--published", "--dry-run"]
    tiny = ["--trials", "1", "--set", "run.steps=2", "--set", "run.model.width=4", "--set", "run.sampler.batch_size=12"]
    assert main([*words, *tiny]) == 0
    assert "adamw 0.0001" in capsys.readouterr().out
