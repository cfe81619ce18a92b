"""One record per method: what it says is true of the loss, and its parameters are checked before anything is built.

Axes: N items, D dims, C classes.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import grad_of, narrow
from pydantic.fields import FieldInfo
from torch import Tensor, nn

from nearfield import losses, samplers
from nearfield.bench.search import apply
from nearfield.cli import show
from nearfield.cli.main import main
from nearfield.config import MethodConfig, ModelConfig, RunConfig
from nearfield.errors import InputError
from nearfield.losses.ensembles import DREML
from nearfield.losses.parameters import LARGE, Rule, rules_of, validated
from nearfield.losses.protocols import Counted, Idles, TakesReferences
from nearfield.losses.proxies import ProxySoftmax
from nearfield.losses.registry import Method, register
from nearfield.losses.triplets import Triplet
from nearfield.models import embed
from nearfield.training import build

C, D, N = 6, 8, 24
X = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N) // 4
SIZES = {"num_classes", "dim", "members", "meta_classes", "centers", "branches", "features", "sample", "hidden"}
SIZES |= {"proxies_per_class"}
ORDERED = {"l_a", "u_a"}  # the first must be below the second
each_method = pytest.mark.parametrize("name", losses.names())


def needed(name: str, **params: Any) -> dict[str, Any]:
    return {**{key: {"num_classes": C, "dim": D}[key] for key in losses.method(name).needs}, **params}


def settings_of(method: Method) -> list[dict[str, Any]]:
    """The defaults, every preset, and other settings that change what is learned."""
    more: dict[str, list[dict[str, Any]]] = {
        "margin": [{"num_classes": C}],
        "dreml": [{"base": base} for base in ("triplet", "soft_triple", "margin")],
        "drml": [{"features": 12}, {"base": "npairs_angular"}, {"branches": 2, "base": "soft_triple"}],
        "soft_triple": [{"centers": 3}],
        "tcm": [{"base": "proxy_anchor", "num_classes": C, "dim": D}, {"base": "sigmoid"}, {"base": "triplet"}],
        "matryoshka": [
            {"base": "soft_triple", "num_classes": C, "dim": D, "dims": (2, D)},
            {"base": "tcm", "base_params": {"base": "sigmoid"}},
        ],
    }
    found: list[dict[str, Any]] = [{}, *map(dict, method.presets.values()), *more.get(method.name, [])]
    sizes = [{"dim": p["members"] * min(C, p["meta_classes"])} if "members" in p else {} for p in found]
    return [needed(method.name, **{**p, **size}) for p, size in zip(found, sizes, strict=True)]


# ---------------------------------------------------------------------------------------------------- the record


@each_method
def test_the_record_counts_what_is_learned(name: str) -> None:
    method = losses.method(name)
    for params in settings_of(method):
        loss = losses.create(name, **params)
        actual = sum(p.numel() for p in loss.parameters() if p.requires_grad)
        assert method.learned_numbers(losses.check_params(name, params)) == actual, params


@each_method
def test_the_record_agrees_with_the_loss(name: str) -> None:
    method, loss = losses.method(name), losses.create(name, **needed(name))
    assert method.holds_head == hasattr(loss, "embedder")
    assert bool(method.members) == isinstance(loss, DREML)
    assert method.networks(losses.check_params(name, needed(name))) == getattr(loss, "members", 1)
    assert isinstance(loss, Counted)
    if method.takes_references(losses.check_params(name, needed(name))):
        assert isinstance(loss, TakesReferences)
        loss(X, LABELS, X.flip(0), LABELS.flip(0))
    assert set(method.table_params) <= set(method.parameters)
    assert not method.disagreement or method.similarities


@each_method
def test_the_plain_setting_is_another_valid_run(name: str) -> None:
    start = RunConfig(method=MethodConfig(name=name))
    plain = losses.method(name).plain
    assert all(build.loss_params(apply(start, {key: value}), C) for key, value in plain.items())
    assert not plain or apply(start, dict(plain)) != start


@each_method
def test_a_method_says_where_it_is_defined(name: str) -> None:
    method = losses.method(name)
    path, line = method.where.rsplit(":", 1)
    lines = Path(path).read_text(encoding="utf-8").splitlines()[int(line) - 1 :]
    assert lines[0].startswith("@register(")
    assert next(text for text in lines if text.startswith("class ")).startswith(f"class {method.build.__name__}(")


def test_methods_prints_file_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "fastap"]) == 0
    assert f"defined in: {losses.method('fastap').where}" in capsys.readouterr().out


def test_methods_prints_what_it_was_compared_with(capsys: pytest.CaptureFixture[str]) -> None:
    """The released code, its commit and the largest difference; or why there is none."""
    assert main(["methods", "drml"]) == 0
    told = capsys.readouterr().out
    assert "compared with: zbr17/DRML, relation_embedder.py" in told
    assert "(2c416a9): biases at 0 and at random, an empty branch: value 3e-16" in told
    assert main(["methods", "potential_field"]) == 0
    assert "compared with: nothing: its authors released none" in capsys.readouterr().out


@each_method
def test_a_comparison_names_a_commit_or_version_and_a_difference(name: str) -> None:
    method = losses.method(name)
    assert bool(method.compared) != bool(method.uncompared)
    assert bool(method.recipe) != bool(method.no_recipe)
    for each in method.compared:
        assert each.code
        assert re.fullmatch(r"[0-9a-f]{7}|\d+(\.\d+)+", each.commit)
        assert re.search(r"(value|gradient) \d(\.\d)?e-\d+", each.difference)


def test_a_class_without_a_file_names_its_module() -> None:
    built = type("Dynamic", (nn.Module,), {})
    assert Method("dynamic", built, "nowhere").where == __name__


def test_a_name_is_registered_once() -> None:
    with pytest.raises(InputError, match="'triplet' is already registered; choose another name"):
        register("triplet", "a second one")(nn.Module)


def test_a_run_is_checked_without_building_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: Any, **__: Any) -> None:
        raise AssertionError("a loss was built")

    monkeypatch.setattr(nn.Module, "__init__", no)
    for name in losses.names():
        build.check_method(RunConfig(method=MethodConfig(name=name)))
        assert build.ensemble_size(RunConfig(method=MethodConfig(name=name))) == (4 if name == "dreml" else 1)
    sampled = MethodConfig(name="cosface", params={"sample": 5000})  # more than stand-ins used to be
    build.check_method(RunConfig(method=sampled))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": {"name": "tripelt"}}, "unknown method 'tripelt'; did you mean 'triplet'"),
        ({"method": {"name": "triplet", "params": {"margin": "x"}}}, "triplet: margin must be a valid number; got 'x'"),
        ({"method": {"name": "dreml", "params": {"members": 3}}}, "dim must be a multiple of members; got 64 and 3"),
        ({"method": {"name": "dreml", "params": {"base": "nac"}}}, "unknown method 'nac'; did you mean 'nca'"),
        ({"method": {"name": "drml", "params": {"base_params": {"alpha": 0.0}}}}, "proxy_anchor: alpha must be at le"),
        ({"method": {"name": "drml", "params": {"branches": 5}}}, "multiples of branches; got 64, 64 and 5"),
        ({"method": {"name": "lifted", "params": {"miner": "hard"}}}, "lifted counts a pair from both.*remove miner"),
        ({"method": {"name": "triplet"}, "member": 0}, "member is for ensembles.*triplet has no member 0"),
        ({"method": {"name": "dreml"}, "member": 4}, "member is for ensembles.*dreml has no member 4"),
        ({"method": {"name": "proxy_nca"}, "memory": 64}, "`memory` requires a pair loss.*proxy_nca is not.*got 64"),
        ({"method": {"name": "lifted"}, "memory": 64}, "`memory` requires.*Remove `memory` from the configuration"),
        ({"method": {"name": "drml"}, "memory": 64}, "`memory` requires a pair loss.*drml is not one; got 64"),
        ({"method": {"name": "drml"}, "model": {"dropout": 0.5}}, "model.dropout must be 0 with drml.*got 0.5"),
    ],
)
def test_a_run_that_does_not_fit_its_method_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build.check_method(RunConfig.model_validate(config))


@each_method
@pytest.mark.parametrize("norm", ["none", "layer", "layer_affine"])
def test_training_and_testing_see_the_same_embedding(name: str, norm: Literal["none", "layer", "layer_affine"]) -> None:
    """What the loss compares is what is scored: same weights, same images, evaluation mode."""
    model_config = ModelConfig(width=4, dim=16, norm=norm)
    member = 0 if losses.method(name).members else None
    config = RunConfig(method=MethodConfig(name=name), model=model_config, member=member)
    model, loss, forward = build.build_learner(config, C)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.norm.parameters():
        nn.init.normal_(parameter, generator=generator)
    images = torch.randint(256, (N, 16, 16), dtype=torch.uint8, generator=generator)
    seen: list[Tensor] = []
    compares = loss.get_submodule("whole") if losses.method(name).holds_head else loss
    compares.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    model.eval()
    loss.eval()
    loss(forward(images), LABELS)
    torch.testing.assert_close(seen, [embed(model, images)], rtol=1e-5, atol=1e-6)


@each_method
def test_a_methods_sampler_is_one_that_exists(name: str) -> None:
    assert losses.method(name).sampler_of({}) in samplers.names()


def test_the_sampler_follows_the_base() -> None:
    drml = losses.method("drml")
    found = {base: drml.sampler_of({"base": base}) for base in ("proxy_anchor", "triplet", "margin", "npairs")}
    assert found == {"proxy_anchor": "shuffle", "triplet": "m_per_class", "margin": "m_per_class", "npairs": "npairs"}
    assert drml.sampler_of({"base": "logits"}) == "shuffle"
    assert losses.method("dreml").sampler_of({"base": "triplet"}) == "shuffle"


def test_a_run_may_have_one_margin_for_all_classes() -> None:
    """The reality check's scalar settings apply to a run, which always knows the number of classes."""
    for preset, betas in (("reality_check_cub", 1), ("reality_check_cub_per_class", C)):
        params = dict(losses.method("margin").presets[preset])
        loss = build.build_loss(RunConfig(method=MethodConfig(name="margin", params=params)), C)
        assert loss.get_parameter("beta").shape == (betas,)


@pytest.mark.parametrize("name", [n for n in losses.names() if issubclass(losses.method(n).build, Idles)])
def test_an_idle_value_is_finite_for_any_labels(name: str) -> None:
    loss = losses.create(name, **needed(name))
    assert isinstance(loss, Idles)
    for labels in (LABELS, torch.arange(2), torch.zeros(5, dtype=torch.int64)):
        assert math.isfinite(loss.idle(labels).value)


# ------------------------------------------------------------------------------------------------- the parameters


HOSTILE: tuple[Any, ...] = (
    None, True, False, "x", "", "nan", "0.5", b"x", [], [1], (1, 2), {}, {"a": 1}, {1: 2}, object(), math.nan, math.inf,
    -math.inf, -1, -0.5, 0, 0.0, 1, 2, 5e-324, 1e-300, 1e300, 2**31, 2**63, 10**30, -(10**30), 10**400, 10**5000, 1.5,
    3 + 1j, Decimal("NaN"), torch.tensor(math.nan), torch.zeros(2), np.float32(0.5), np.int64(3), np.float64("nan"),
)  # fmt: skip


def run(name: str, params: dict[str, Any]) -> None:
    """Build and call the loss: either it is refused in words, or value and gradient are finite."""
    x = X.clone().requires_grad_()
    try:
        loss = losses.create(name, **params)
        value = loss(x, LABELS)
        value.backward()
    except InputError:
        return
    assert bool(value.isfinite()), params
    assert bool(grad_of(x).isfinite().all()), params


def rules_by_key(name: str) -> dict[str, Rule]:
    return rules_of(losses.method(name).build)  # type: ignore[arg-type]  # mypy takes a class for unhashable


def keys_of(name: str) -> list[str]:
    return [key for key in rules_by_key(name) if key != "compile"]  # compiling takes long


@each_method
def test_every_parameter_refuses_hostile_values_or_works(name: str) -> None:
    for key in keys_of(name):
        for value in HOSTILE:
            run(name, needed(name, **{key: value}))
    for value in HOSTILE:
        if not isinstance(value, bool):
            with pytest.raises(InputError, match="compile must be a valid boolean"):
                losses.create(name, **needed(name, compile=value))


def ends(hint: Any) -> list[float]:
    """The ends of a declared range, or the last numbers inside where they are excluded."""
    rules: list[Any] = [rule for note in get_args(hint) if isinstance(note, FieldInfo) for rule in note.metadata]
    found: list[float] = []
    for rule in rules:
        whole = get_args(hint)[0] is int
        end: Any = next((getattr(rule, key) for key in ("ge", "le", "gt", "lt") if hasattr(rule, key)), None)
        if isinstance(rule, Ge | Le):
            found.append(end)
        elif isinstance(rule, Gt):
            found.append(math.nextafter(end, math.inf))
        elif isinstance(rule, Lt):
            found.append(end - 1 if whole else math.nextafter(end, -math.inf))
    return found


@each_method
def test_losses_are_finite_at_the_ends_of_every_range(name: str) -> None:
    for key, rule in rules_by_key(name).items():
        for hint in (rule.hint, *get_args(rule.hint)):
            for value in ends(hint):
                if key not in SIZES | ORDERED:
                    losses.check_params(name, needed(name, **{key: value}))  # not refused
                if key not in SIZES or value == 1:  # the largest would not fit into memory
                    run(name, needed(name, **{key: value}))


@each_method
def test_every_number_has_a_declared_range(name: str) -> None:
    for key, rule in rules_by_key(name).items():
        hints = (rule.hint, *get_args(rule.hint))
        assert float not in hints or len(ends(rule.hint)) == 2 or any(len(ends(h)) == 2 for h in hints), key


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=5),
    st.floats(),
    st.sampled_from([-LARGE, 0.0, 1 / LARGE, LARGE]),
    st.integers(-40, 40),
    st.integers(min_value=2**31),
    st.integers(max_value=-(2**31)),
    st.complex_numbers(),
    st.lists(st.floats(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.floats() | st.text(max_size=3), max_size=2),
)


@each_method
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_parameters_are_refused_or_work_together(name: str, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(keys_of(name)), min_size=1, max_size=3, unique=True))
    run(name, needed(name, **{key: data.draw(junk, label=key) for key in chosen}))


@each_method
def test_a_class_and_its_name_apply_one_rule(name: str) -> None:
    """Also by place, and for arguments that are missing or unknown."""
    method = losses.method(name)
    for params in ({"nodse": 1}, {next(iter(method.parameters)): "x"}, {"block_rows": "x"}):
        found = []
        for attempt in (losses.create, lambda name, **given: losses.method(name).build(**given)):
            with pytest.raises(InputError) as caught:
                attempt(name, **needed(name, **params))
            found.append(str(caught.value))
        assert found[0] == found[1]
        assert found[0].startswith(name)
    first = next(iter(method.parameters))
    with pytest.raises(InputError, match=f"{name}: {first} must be"):
        method.build("x", *[D] * (len(method.needs) - 1))
    if method.needs:
        with pytest.raises(InputError, match=f"{name} needs {' and '.join(method.needs)}"):
            method.build()


def test_arguments_by_place_are_the_same_loss() -> None:
    by_place, by_name = Triplet(0.3, "hard"), losses.create("triplet", margin=0.3, mining="hard")
    assert torch.equal(by_place(X, LABELS), by_name(X, LABELS))
    assert list(inspect.signature(Triplet).parameters)[:2] == ["margin", "mining"]  # the constructor's own
    build_untyped: Any = Triplet
    with pytest.raises(TypeError, match="too many positional"):
        build_untyped(0.3, "hard", "cosine", "all", 0, 1)
    with pytest.raises(TypeError, match="multiple values"):
        build_untyped(0.3, margin=0.4)


def test_messages_name_method_parameter_rule_value_and_remedy() -> None:
    hostile: list[tuple[dict[str, Any], str]] = [
        ({"margin": None}, "triplet: margin must be a valid number; got None. The default is 0.1."),
        ({"margin": math.inf}, "triplet: margin must be a finite number; got inf. The default is 0.1."),
        ({"margin": 1e7}, "triplet: margin must be at most 1000000; got 10000000.0. The default is 0.1."),
        ({"mining": "hrad"}, "got 'hrad'. Did you mean 'hard'?"),
        ({"mining": 3}, "got 3. Valid: all, facenet, hard, pml, semihard, semihard_drop, semihard_random."),
        ({"seed": True}, "triplet: seed must be a valid integer; got True. The default is 0."),
        ({"normalize": 1}, "triplet: normalize must be a valid boolean; got 1. Leave it out for the default."),
        ({"margin": 10**5000}, "triplet: margin must be a valid number; got a value of type int."),
        ({"margin": "x" * 99}, f"got '{'x' * 56}.... The default is 0.1."),
    ]
    for params, message in hostile:
        with pytest.raises(InputError) as caught:
            losses.create("triplet", **params)
        assert message in str(caught.value)
    with pytest.raises(InputError, match=r"dreml: base_params, 1, \[key\] must be a valid string; got \{1: 2\}"):
        losses.create("dreml", num_classes=C, dim=D, base_params={1: 2})
    names: list[Any] = [[], 10**5000, None]
    for wrong in names:
        with pytest.raises(InputError, match="unknown method"):
            losses.create(wrong)
        if wrong is not None:
            with pytest.raises(InputError, match="triplet has no preset"):
                losses.create("triplet", preset=wrong)


def test_numbers_of_numpy_are_numbers() -> None:
    sizes: dict[str, Any] = {"num_classes": np.int64(C), "dim": np.int32(D)}
    loss = narrow(ProxySoftmax, losses.create("proxy_softmax", **sizes, temperature=np.float32(0.5)))
    assert (loss.num_classes, loss.temperature) == (C, 0.5)
    with pytest.raises(InputError, match="num_classes must be a valid integer"):
        losses.create("proxy_softmax", num_classes=np.float64(C), dim=D)
    with pytest.raises(InputError, match="temperature must be a valid number"):
        losses.create("proxy_softmax", num_classes=C, dim=D, temperature=np.bool_(True))


def test_parameters_without_annotations_accept_anything() -> None:
    class Anything(nn.Module):
        def __init__(self, what, how=None) -> None:  # type: ignore[no-untyped-def]
            super().__init__()
            self.what, self.how = what, how

    built = validated("anything")(Anything)([1], how=object)
    assert (built.what, built.how) == ([1], object)


# ----------------------------------------------------------------------------------------------- published claims


@each_method
def test_a_record_has_its_year_and_its_claims(name: str) -> None:
    method = losses.method(name)
    assert 1990 <= method.year <= 2026
    for claim in method.claims:
        assert claim.dataset in {"cub", "cars196", "sop", "inshop", "vehicleid", "inaturalist"}
        assert 20 < claim.r_at_1 < 100
    assert len(set(method.claims)) == len(method.claims)


def test_claims_are_printed_by_year(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(show.results(), "width", 200)
    assert main(["methods", "--table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    order = [line.split("│")[1].split()[0] for line in lines if line.startswith("│") and line.split("│")[1].strip()]
    assert order == [m.name for m in sorted(map(losses.method, losses.names()), key=lambda m: (m.year, m.name))]
    text = "\n".join(lines)
    for expected in ("82.7 R50-512", "sincere (= nt_xent)", "65.7 BN-Inception-512", "quoted in Unbiased Evaluation"):
        assert expected in text


def test_claims_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "roadmap", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["year"] == 2021
    assert {"dataset": "cub", "backbone": "R50-512", "r_at_1": 68.5, "source": ""} in found["claims"]
