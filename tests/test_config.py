"""A run is one typed, frozen value; mistakes in it are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nearfield.cli.main import main
from nearfield.config import (
    BenchConfig,
    DataConfig,
    MethodConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    SamplerConfig,
    build_config,
    load_config,
    merge,
)
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
        RunConfig().seed = 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps=0", r"steps must be greater than or equal to 1; got 0\."),
        ("data.val_fraction=1.5", r"data\.val_fraction must be less than 1; got 1\.5\."),
        ("data.fold=3", r"data: fold must be in 0\.\.0, below folds; got 3\."),
        ("data.name=5", r"data\.name must be text, in quotes; got 5\."),
        ("model=conv", r"model must be a table; got 'conv'\."),
        ("model.backbone=con", r"model\.backbone must be one of .* or timm:NAME; got 'con', did you mean 'conv'\?"),
        ("select_by=accuracy", r"select_by must be 'map@r'.*; got 'accuracy'\."),
        ("method.params.alpha=[[1]]", r"method\.params\.alpha must be a finite number, .*; got \[\[1\]\]\."),
        ("seed", r"--set must be KEY=VALUE, for example optimizer\.lr=0\.001; got 'seed'"),
        ("seed.x.y=1", r"seed must be a valid integer; got \{'x'"),
        ("data.split_seed=-1", r"data\.split_seed must be greater than or equal to 0; got -1\."),
    ],
)
def test_mistakes_are_named(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(RunConfig, None, [override])


@pytest.mark.parametrize("key", ["optimizer.lr", "optimizer.clip", "data.val_fraction", "ema", "method.params.alpha"])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e999"])
def test_numbers_must_be_finite(key: str, value: str) -> None:
    with pytest.raises(InputError, match=f"{key} must be a(n?) .*(number|greater).*; got"):
        load_config(RunConfig, None, [f"{key}={value}"])


def test_an_override_is_one_value() -> None:
    with pytest.raises(InputError, match="--set takes one value; got several lines of TOML"):
        load_config(RunConfig, None, ["steps=5\n[model]\ndim=3"])


def test_a_name_that_looks_like_a_date_is_a_name() -> None:
    assert load_config(RunConfig, None, ["data.name=2024-05-01"]).data.name == "2024-05-01"
    with pytest.raises(InputError, match=r"steps must be a valid integer.*got '2024-05-01'"):
        load_config(RunConfig, None, ["steps=2024-05-01"])


def test_a_byte_order_mark_is_not_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_text("steps = 7\n", encoding="utf-8-sig")
    assert load_config(RunConfig, path).steps == 7


DEEP = 5000
HOSTILE = {
    "date": "steps = 2024-05-01",
    "time": "[method.params]\nalpha = 07:32:00",
    "deep array": f"steps = {'[' * DEEP}{']' * DEEP}",
    "deep table": f"{'a.' * DEEP}a = 1",
    "deep parameter": f"[method.params]\n{'a.' * DEEP}a = 1",
    "digits": f"steps = {'9' * DEEP}",
    "hex digits": f"steps = 0x{'f' * DEEP}",
    "hex parameter": f"[method.params]\nalpha = 0x{'f' * DEEP}",
    "not UTF-8": "steps = \udcff",
    "null": "\0",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("kind", [RunConfig, BenchConfig])
def test_a_hostile_file_is_an_input_error(text: str, kind: type[RunConfig] | type[BenchConfig], tmp_path: Path) -> None:
    path = tmp_path / "hostile.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError) as refused:
        load_config(kind, path, ["seed=1"])
    assert len(str(refused.value)) < 20_000


def values(keys: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Tables of anything that TOML can hold."""
    simple = (
        st.integers(-(2**70), 2**70)
        | st.integers(-3, 3)
        | st.floats()
        | st.booleans()
        | st.text(max_size=8)
        | st.sampled_from(["conv", "digits", "cosine", "step", "fastap"])
        | st.dates()
        | st.datetimes()
        | st.times()
    )
    anything = st.recursive(
        simple, lambda x: st.lists(x, max_size=3) | st.dictionaries(keys, x, max_size=3), max_leaves=8
    )
    return st.dictionaries(keys, anything, max_size=4)


def known_keys() -> list[str]:
    kinds = (RunConfig, BenchConfig, DataConfig, ModelConfig, SamplerConfig, OptimizerConfig, MethodConfig)
    return sorted({key for kind in kinds for key in kind.model_fields})


KEYS = st.sampled_from(known_keys()) | st.text(max_size=4)
VALID = BenchConfig().to_toml()
MUTATED = st.lists(st.tuples(st.integers(0, len(VALID)), st.integers(0, 9), st.text(max_size=4)), max_size=4)


def mutated(changes: list[tuple[int, int, str]]) -> str:
    text = VALID
    for place, length, new in changes:
        text = text[:place] + new + text[place + length :]
    return text


TEXTS = st.text() | MUTATED.map(mutated) | values(KEYS).map(tomli_w.dumps)
OVERRIDES = st.lists(st.text(max_size=12) | st.tuples(KEYS, st.text(max_size=8)).map("=".join), max_size=3)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, overrides=OVERRIDES, kind=st.sampled_from([RunConfig, BenchConfig]))
def test_any_text_builds_or_is_an_input_error(
    tmp_path: Path, text: str, overrides: list[str], kind: type[RunConfig] | type[BenchConfig]
) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        config = load_config(kind, path, overrides)
    except InputError:
        return
    path.write_text(config.to_toml(), encoding="utf-8")
    assert load_config(kind, path).digest() == config.digest()


@pytest.mark.parametrize(
    ("kind", "override", "message"),
    [
        (RunConfig, "sampler.batchsize=8", r"sampler.batchsize is not a key here; did you mean 'batch_size'?"),
        (RunConfig, "optimiser.lr=1", "optimiser.lr is not a key here; did you mean 'optimizer.lr'?"),
        (RunConfig, "lr=1", "lr is not a key here; did you mean 'optimizer.lr'?"),
        (RunConfig, "params.alpha=1", "params.alpha is not a key here; did you mean 'method.params'?"),
        (
            RunConfig,
            "run.steps=20",
            "run.steps is not a key here; did you mean 'steps'? run.steps is a key of a bench.",
        ),
        (BenchConfig, "steps=20", "steps is not a key here; did you mean 'run.steps'? steps is a key of a run."),
        (BenchConfig, "run.stepz=20", "run.stepz is not a key here; did you mean 'steps'?"),
    ],
)
def test_an_unknown_key_names_the_one_that_was_meant(
    kind: type[RunConfig] | type[BenchConfig], override: str, message: str
) -> None:
    with pytest.raises(InputError) as refused:
        load_config(kind, None, [override])
    assert str(refused.value).splitlines()[1] == f"  {message}"


def test_mistakes_in_a_list_of_tables_are_named() -> None:
    with pytest.raises(InputError, match=r"methods\.1\.nam is not a key here; did you mean 'name'\?"):
        build_config(BenchConfig, {"methods": [{"name": "fastap"}, {"nam": "triplet"}]})


def test_overrides_are_read_as_toml_or_text() -> None:
    merged = merge({"a": {"b": 1}}, ["a.b=2.5", "a.c=true", "d=[1, 2]", "e=plain words", 'f="quoted"'])
    assert merged == {"a": {"b": 2.5, "c": True}, "d": [1, 2], "e": "plain words", "f": "quoted"}


def test_a_value_in_place_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.toml"
    path.write_text("sampler = 3\nrun = 4\n")
    with pytest.raises(InputError, match=r"cannot set sampler\.per_class: sampler is a value, not a table; got 3"):
        load_config(RunConfig, path, ["sampler.per_class=2"])
    out = ["--out", str(tmp_path / "out")]
    assert main(["train", str(path), "--batch-size", "8", *out]) == 2
    assert "cannot set sampler.batch_size: sampler is a value, not a table; got 3." in capsys.readouterr().err
    assert main(["bench", str(path), "--data", "my data", "--dry-run", *out]) == 2
    assert "cannot set run.data.name: run is a value, not a table; got 4." in capsys.readouterr().err


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
