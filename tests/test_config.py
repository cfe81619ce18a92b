"""A run is one typed, frozen value; mistakes in it are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from nearfield.config import BenchConfig, RunConfig, build_config, load_config, merge
from nearfield.errors import InputError


def test_toml_round_trip_keeps_the_digest(tmp_path: Path) -> None:
    config = load_config(RunConfig, None, ["method.name=fastap", "method.params.bins=20", "optimizer.lr=1e-3"])
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    again = load_config(RunConfig, path)
    assert again == config
    assert again.digest() == config.digest()
    assert again.method.params == {"bins": 20}


def test_digest_depends_on_every_value() -> None:
    base = RunConfig()
    assert base.digest() == RunConfig().digest()
    others = [["seed=1"], ["steps=401"], ["model.dim=32"], ["method.params.alpha=2.5"], ["data.split_seed=1"]]
    digests = {load_config(RunConfig, None, o).digest() for o in others} | {base.digest()}
    assert len(digests) == len(others) + 1


def test_values_are_frozen() -> None:
    with pytest.raises(ValidationError):
        RunConfig().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sampler.batchsize=8", r"sampler\.batchsize is not a key here; did you mean 'batch_size'\?"),
        ("optimiser.lr=1", r"optimiser is not a key here; did you mean 'optimizer'\?"),
        ("steps=0", r"steps: Input should be greater than or equal to 1; got 0"),
        ("data.val_fraction=1.5", r"data\.val_fraction: .*less than 1; got 1\.5"),
        ("select_by=accuracy", r"select_by: .*'map@r'.*got 'accuracy'"),
        ("seed", r"--set takes a\.b=value; got 'seed'"),
        ("seed.x.y=1", r"seed: .*got \{'x'"),
    ],
)
def test_mistakes_are_named(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(RunConfig, None, [override])


def test_mistakes_in_a_list_of_tables_are_named() -> None:
    with pytest.raises(InputError, match=r"methods\.1\.nam is not a key here; did you mean 'name'\?"):
        build_config(BenchConfig, {"methods": [{"name": "fastap"}, {"nam": "triplet"}]})


def test_overrides_are_read_as_toml_or_text() -> None:
    merged = merge({"a": {"b": 1}}, ["a.b=2.5", "a.c=true", "d=[1, 2]", "e=plain words", 'f="quoted"'])
    assert merged == {"a": {"b": 2.5, "c": True}, "d": [1, 2], "e": "plain words", "f": "quoted"}


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the config"):
        load_config(RunConfig, tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("steps = = 3")
    with pytest.raises(InputError, match="not valid TOML"):
        load_config(RunConfig, broken)


def test_a_bench_is_every_method_with_every_seed() -> None:
    config = build_config(BenchConfig, {"methods": [{"name": "fastap"}, {"name": "triplet"}], "seeds": [0, 3]})
    runs = config.runs()
    assert [(r.method.name, r.seed) for r in runs] == [("fastap", 0), ("triplet", 0), ("fastap", 3), ("triplet", 3)]
    assert len({r.digest() for r in runs}) == 4
    assert {r.model_copy(update={"method": runs[0].method, "seed": 0}).digest() for r in runs} == {runs[0].digest()}
