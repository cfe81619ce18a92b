"""The plan of a bench: pure, fair, pruned alike for all; what a bench is, before and after it ran."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from nearfield.bench.baselines import baselines, projections, unequal
from nearfield.bench.estimate import Pace, seconds_left, typical_seconds
from nearfield.bench.fit import for_photographs
from nearfield.bench.plan import SLACK, TRIAL_SEED, Bench, Outcome, Task, plan, vary
from nearfield.bench.protocols import PROTOCOLS
from nearfield.bench.run import prepare
from nearfield.bench.suite import read_suite
from nearfield.config import BenchConfig, ModelConfig, OptimizerConfig, RunConfig, build_config, load_config
from nearfield.data import load
from nearfield.errors import InputError
from nearfield.models import build_model
from nearfield.training.optimizers import learning_rate_factor

METHODS = [{"name": "multi_similarity"}, {"name": "proxy_softmax", "params": {"temperature": 0.1}}, {"name": "fastap"}]


def bench_of(**values: Any) -> Bench:
    given_values = {"methods": METHODS, "protocol": "reality-check", "trials": 7, "seeds": [0, 1], **values}
    return Bench(build_config(BenchConfig, given_values), PROTOCOLS[given_values["protocol"]], "data")


def done(task: Task) -> Outcome:
    """A made-up outcome that depends on the task alone; some trials are pruned or fail."""
    dice = random.Random(task.key)
    folds = [{"best_val": {"map@r": dice.random()}} for _ in range(4)]
    if task.kind != "trial" or dice.random() > 0.3:
        return {"state": "complete", "folds": folds}
    return dice.choice([{"state": "pruned", "folds": folds[:2]}, {"state": "failed", "error": "no reason"}])


def play(bench: Bench, dice: random.Random) -> dict[str, Task]:
    """Finish tasks in some order, several at a time, until none is left; all tasks by key."""
    finished: dict[str, Outcome] = {}
    tasks: dict[str, Task] = {}
    while ready := plan(bench, finished):
        assert not {task.key for task in ready} & finished.keys()
        for task in dice.sample(ready, dice.randint(1, len(ready))):
            tasks[task.key], finished[task.key] = task, done(task)
    return tasks


VARIED = bench_of(methods=METHODS[:2], variants=["untuned", "dim64", "plain", "longer"])
EXPECTED = play(VARIED, random.Random(0))


@settings(max_examples=15, deadline=None)
@given(dice=st.randoms(use_true_random=False))
def test_any_order_of_finishing_leads_to_the_same_tasks(dice: random.Random) -> None:
    assert play(VARIED, dice) == EXPECTED


def test_one_after_the_other_gives_the_same_tasks_too() -> None:
    bench = bench_of()
    finished: dict[str, Outcome] = {}
    tasks: dict[str, Task] = {}
    while ready := plan(bench, finished):
        tasks[ready[0].key], finished[ready[0].key] = ready[0], done(ready[0])
    assert tasks == play(bench, random.Random(1))
    assert len(tasks) == bench.total


def test_an_unfinished_table_is_fair() -> None:
    bench = bench_of()
    finished: dict[str, Outcome] = {}
    order: list[Task] = []
    while ready := plan(bench, finished):
        order.append(ready[0])
        finished[ready[0].key] = done(ready[0])
    stages = [*(("trial", number) for number in range(7)), ("seed", 0), ("seed", 1)]
    assert [(task.kind, task.number) for task in order] == [stage for stage in stages for _ in METHODS]
    labels = [task.label for task in order]
    assert all(labels[i : i + 3] == bench.labels for i in range(0, len(labels), 3))


def test_the_first_trial_is_the_published_setting_and_seeds_are_other_ones() -> None:
    bench = bench_of()
    ready = plan(bench, {})
    assert len(ready) == 3 * 4  # the first trials need no results
    for task, (_, start, _) in zip(ready[:3], bench.starts, strict=True):
        assert task.run == start.model_copy(update={"seed": TRIAL_SEED})
    assert all(task.bounds == () and task.run.seed == TRIAL_SEED for task in ready)
    assert len({task.run.optimizer.lr for task in ready}) > 3
    assert all(task.run.sampler.batch_size == bench.config.run.sampler.batch_size for task in ready)
    assert {task.run.sampler.per_class for task in ready} <= {4, 8}  # is searched


def test_seeds_take_the_best_setting_and_wait_for_all_trials() -> None:
    bench = bench_of(methods=METHODS[:1], trials=3)
    first, second, third = plan(bench, {})
    scores = {first.key: 0.2, second.key: 0.5, third.key: 0.4}
    finished = {
        key: {"state": "complete", "folds": [{"best_val": {"map@r": value}}] * 4} for key, value in scores.items()
    }
    assert [task.kind for task in plan(bench, {k: finished[k] for k in (first.key, second.key)})] == ["trial"]
    seeds = plan(bench, finished)
    assert [task.run for task in seeds] == [second.run.model_copy(update={"seed": seed}) for seed in (0, 1)]


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent.parent / "docs").glob("*/*.toml")), ids=lambda path: path.stem
)
def test_the_comparisons_of_the_documentation_can_be_planned(path: Path) -> None:
    found = read_suite(path, []) if path.parent.name == "suites" else {"": load_config(BenchConfig, path)}
    for config in found.values():
        bench = Bench(config, PROTOCOLS[config.protocol], "data")
        assert {task.label for task in plan(bench, {})} == set(bench.labels)


def test_a_search_may_have_fewer_steps_than_the_runs() -> None:
    rates = {"warmup_steps": 20, "schedule": "step", "decay_every": 40}
    given_values = {"methods": METHODS[:1], "trials": 3, "run": {"steps": 400, "eval_every": 100, "optimizer": rates}}
    bench = bench_of(trial_steps=100, **given_values)
    trials = plan(bench, {})
    for trial in trials:
        assert (trial.run.steps, trial.run.eval_every) == (100, 25)
        assert (trial.run.optimizer.warmup_steps, trial.run.optimizer.decay_every) == (5, 10)
    finished = {task.key: {"state": "complete", "folds": [{"best_val": {"map@r": 0.2}}] * 4} for task in trials}
    assert [task.run.model_copy(update={"seed": 0}) for task in plan(bench, finished)] == 2 * [bench.starts[0][1]]
    usual, as_many = bench_of(**given_values), bench_of(trial_steps=400, **given_values)
    assert [task.key for task in plan(as_many, {})] == [task.key for task in plan(usual, {})]
    with pytest.raises(InputError, match=r"trial_steps must be at most run\.steps, 400; got 401"):
        prepare(bench_of(trial_steps=401, **given_values).config)


@pytest.mark.parametrize("schedule", [{}, {"schedule": "step", "decay_every": 40, "frozen_steps": 3}])
def test_longer_is_the_chosen_run_with_twice_the_steps_and_the_same_share_of_everything(
    schedule: dict[str, Any],
) -> None:
    start = RunConfig(optimizer=OptimizerConfig(**schedule))
    usual = start.model_copy(update={"optimizer": start.optimizer.model_copy(update={"lr": 0.5})})
    longer = vary("longer", start, {"optimizer.lr": 0.5})
    assert longer is not None
    assert (longer.steps, longer.eval_every) == (2 * start.steps, 2 * start.eval_every)
    for step in range(0, start.steps, 7):
        expected = learning_rate_factor(step, usual.steps, usual.optimizer)
        found = learning_rate_factor(2 * step, longer.steps, longer.optimizer)
        assert found == pytest.approx(expected, abs=0.03 if step < usual.optimizer.warmup_steps else 1e-12)
    same = longer.model_dump(exclude={"steps", "eval_every", "optimizer"})
    assert same == start.model_dump(exclude={"steps", "eval_every", "optimizer"})


def test_longer_runs_leave_the_keys_of_all_other_tasks_as_they_are() -> None:
    with_variants = bench_of(methods=METHODS[:2], variants=["untuned", "dim64", "plain"])
    assert play(with_variants, random.Random(0)).keys() < EXPECTED.keys()
    added = [task for key, task in EXPECTED.items() if key not in play(with_variants, random.Random(0))]
    assert [task.variant for task in added] == ["longer", "longer"]  # one for each method


def test_without_a_search_seeds_run_at_once_and_variants_share_work() -> None:
    bench = bench_of(trials=1, variants=["untuned", "dim512"], protocol="classic")
    ready = plan(bench, {})
    assert [task.kind for task in ready] == ["seed"] * 6 + ["variant"] * 3  # untuned is what the seeds are
    assert {task.run.model.dim for task in ready if task.variant == "dim512"} == {512}


def test_plain_leaves_out_the_tricks_of_methods_that_have_some() -> None:
    bench = bench_of(methods=[*METHODS, {"name": "contrastive"}])
    runs = {method.name: vary("plain", start, {"optimizer.lr": 0.5}) for method, start, _ in bench.starts}
    assert runs["contrastive"] is None
    assert runs["multi_similarity"] is not None
    assert runs["multi_similarity"].method.params["mine"] is False
    assert runs["multi_similarity"].optimizer.lr == 0.5
    assert runs["proxy_softmax"] is not None
    assert runs["proxy_softmax"].method.params == {"temperature": 1.0}


def test_pruning_asks_for_a_share_of_the_median_of_earlier_trials() -> None:
    bench = bench_of(methods=METHODS[:1], trials=6)
    finished = {}
    for number, task in enumerate(plan(bench, {})):
        folds = [{"best_val": {"map@r": value}} for value in (0.1 * number, 0.2, 0.3, 0.4)]
        finished[task.key] = {"state": "complete" if number else "pruned", "folds": folds}
    (fourth,) = plan(bench, finished)
    medians = [0.2, 0.2, 0.7 / 3]  # of the means over the first 1, 2, 3 folds of trials 1, 2 and 3
    assert fourth.bounds == pytest.approx([(1 - SLACK) * value for value in medians])
    (free,) = plan(bench_of(methods=METHODS[:1], trials=6, prune=False), finished)
    assert free.bounds == ()
    assert free.key != fourth.key


def test_keys_know_what_an_outcome_depends_on_and_nothing_else() -> None:
    base = plan(bench_of(), {})
    more = plan(bench_of(seeds=[0, 1, 2], trials=12, methods=[*METHODS, {"name": "contrastive"}]), {})
    assert {task.key for task in base} <= {task.key for task in more}  # a larger bench goes on from a smaller one
    other = bench_of()
    assert not {t.key for t in plan(Bench(other.config, other.protocol, "other data"), {})} & {t.key for t in base}
    steps = plan(bench_of(run={"steps": 7}), {})
    assert not {task.key for task in steps} & {task.key for task in base}


def test_time_left_is_what_is_missing_at_each_methods_own_pace() -> None:
    bench = bench_of(methods=METHODS[:2], trials=1, seeds=[0, 1, 2, 3])
    slow, fast = bench.labels
    assert seconds_left(bench, [], [], 2) is None
    spent = [(slow, 10.0), (slow, 20.0), (fast, 1.0)]
    assert seconds_left(bench, spent, [], 2) == pytest.approx((2 * 15 + 3 * 1) / 2)
    assert seconds_left(bench, spent, [Pace(slow, 0.5, 99.0)], 1) == pytest.approx(1.5 * 15 + 3 * 1)


def test_time_left_is_known_before_the_first_task_ends() -> None:
    bench = bench_of(methods=METHODS[:2], trials=1, seeds=[0, 1])
    slow, _ = bench.labels
    assert seconds_left(bench, [], [Pace(slow, 0.0, None)], 1) is None
    assert seconds_left(bench, [], [Pace(slow, 0.25, 8.0)], 2) == pytest.approx((1.75 * 8 + 2 * 8) / 2)
    assert typical_seconds(slow, []) == 0.0
    assert typical_seconds(slow, [("other", 3.0)]) == 3.0
    assert typical_seconds(slow, [("other", 3.0), (slow, 1.0)]) == 1.0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"methods": [{"name": "fastpa"}]}, "did you mean 'fastap'"),
        ({"methods": [{"name": "fastap", "params": {"bin": 3}}]}, "did you mean 'bins'"),
        ({"methods": [{"name": "fastap"}, {"name": "fastap"}]}, "methods must differ; got fastap 2 times"),
        ({"protocol": "realitycheck"}, "did you mean 'reality-check'"),
        ({"protocol": "closed-set"}, "protocol closed-set is for data where"),
        ({"run": {"data": {"name": "glyhps"}}}, "did you mean 'glyphs'"),
    ],
)
def test_a_bench_that_cannot_be_run_is_refused(values: dict[str, Any], words: str) -> None:
    given_values = {"run": {"data": {"name": "digits"}, "sampler": {"batch_size": 12}}, **values}
    with pytest.raises(InputError, match=words):
        prepare(build_config(BenchConfig, given_values))


def test_what_makes_methods_unequal_is_said() -> None:
    bench = bench_of(methods=[*METHODS, {"name": "dreml"}, {"name": "contrastive"}])
    found = {method.name: unequal(run, 10) for method, run, _ in bench.starts}
    assert found["contrastive"] == []
    assert found["multi_similarity"] == []
    assert found["fastap"] == ["batches of whole classes, in random order"]
    assert found["proxy_softmax"][1] == "640 learned numbers in the loss"
    assert found["dreml"][1] == "4 networks of 16 dims, each with 1/4 of the steps"


def test_baselines_of_images_and_features(tmp_path: Any) -> None:

    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 6)
    wide = np.concatenate([rng.normal(size=(12, 4))[labels] * 3, rng.normal(size=(72, 60))], axis=1)  # 4 axes tell all
    np.savez(tmp_path / "x.npz", features=wide.astype(np.float32), labels=labels)
    values = {"run": {"data": {"name": str(tmp_path / "x.npz")}, "model": {"backbone": "features", "dim": 4}}}
    found = baselines(build_config(BenchConfig, values), load(str(tmp_path / "x.npz")))
    assert list(found) == ["raw features", "PCA", "whitening", "untrained network"]
    assert found["PCA"]["map@r"] > found["raw features"]["map@r"] > found["untrained network"]["map@r"]
    values = {"run": {"data": {"name": "digits"}, "model": {"width": 4, "dim": 8}}}
    assert list(baselines(build_config(BenchConfig, values), load("digits"))) == ["raw pixels", "untrained network"]


def test_baselines_of_a_pretrained_backbone(tmp_path: Any) -> None:
    """Its features before the head, which is random; the score of a network without a head."""
    model = {"width": 4, "dim": 8, "weights": str(tmp_path / "conv.safetensors")}
    start = build_config(ModelConfig, {"width": 4, "dim": 8})
    weights = build_model(start, 5).backbone.state_dict()
    save_file({key: value.contiguous() for key, value in weights.items()}, tmp_path / "conv.safetensors")
    config = build_config(BenchConfig, {"seeds": [0], "run": {"data": {"name": "digits"}, "model": model}})
    found = baselines(config, load("digits"))
    assert list(found) == ["backbone features", "PCA", "whitening", "untrained network"]
    without = {"model": {**model, "head": "none", "dim": 16}, "data": {"name": "digits"}}
    headless = build_config(BenchConfig, {"seeds": [0], "run": without})
    assert found["backbone features"] == pytest.approx(baselines(headless, load("digits"))["untrained network"])


def test_whitened_features_have_equal_variances() -> None:
    x = torch.randn(500, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([9.0, 5.0, 3.0, 2.0, 1.0, 1e-9])
    x += torch.arange(6)
    found = projections(x, x, 4)
    assert list(found) == ["PCA", "whitening"]
    assert list(projections(x, x, 6)) == ["whitening"]  # all axes: PCA is a rotation
    torch.testing.assert_close(found["whitening"].T.cov(), torch.eye(4), rtol=0, atol=1e-3)
    assert sorted(found["PCA"].var(0).sqrt().round().tolist()) == [2, 3, 5, 9]
    assert bool(projections(x, x, 6)["whitening"].isfinite().all())
    assert bool(projections(0 * x, 0 * x, 3)["whitening"].isfinite().all())


def test_baselines_of_features_most_of_which_are_dead() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.zeros(400, 300)  # as the features that a network of photographs has of drawings
    x[:, torch.randperm(300, generator=rng)[:60]] = torch.randn(400, 60, generator=rng).clamp(min=0)
    found = projections(x, x, 40)
    torch.testing.assert_close(found["whitening"].T.cov(), torch.eye(40), rtol=0, atol=1e-3)


# ---------------------------------------------------------------------------------------------------------------
# A bench fits its data


def test_a_batch_that_the_classes_cannot_fill_is_refused_or_fitted_before_anything_runs() -> None:
    config = build_config(BenchConfig, {"run": {"data": {"name": "digits"}}})
    with pytest.raises(InputError, match=r"multi_similarity on digits: .*32"):
        prepare(config)
    said: list[str] = []
    bench, _ = prepare(config, fit=True, say=said.append)
    assert bench.config.run.sampler.batch_size == 12
    fitted = "run.sampler.batch_size is 12 instead of 128: digits has 3 classes to fit, and a batch holds 4 images of a"
    assert said == [f"{fitted} class."]
    assert prepare(bench.config, fit=True, say=said.append)[0] == bench  # what fits stays as it is
    assert len(said) == 1
    alone = build_config(BenchConfig, {"run": {"data": {"name": "digits"}}, "methods": [{"name": "fastap"}]})
    assert prepare(alone, fit=True)[0].config == alone  # its batches are whole classes
    few = build_config(BenchConfig, {"run": {"data": {"name": "digits"}}, "methods": [{"name": "npairs"}]})
    with pytest.raises(InputError, match="npairs on digits: "):  # two images of each of four classes are too many, too
        prepare(few, fit=True)


def test_photographs_get_a_pretrained_network_unless_a_backbone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in range(8):
        (tmp_path / "photos" / f"class {label}").mkdir(parents=True)
        for number in range(2):
            pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"class {label}" / f"{number}.png")
    name = str(tmp_path / "photos")
    values, said = for_photographs({"seeds": [0], "run": {"data": {"name": name}, "steps": 7, "model": {"dim": 32}}})
    run = build_config(BenchConfig, values).run
    assert (run.model.backbone, run.model.dim, run.model.init) == ("efficientnet_lite0", 32, "pca")
    assert (run.data.name, run.data.augment, run.steps, run.method.name) == (name, "px128", 7, RunConfig().method.name)
    assert said == f"{name} holds photographs: the network is a pretrained efficientnet_lite0 (recipe cub_lite0_128px)."
    for given_values in (
        {"run": {"data": {"name": name}, "model": {"backbone": "conv"}}},
        {"run": {"data": {"name": "digits"}}},
        {"run": {"data": {"name": "there is no such data"}}},
        {},
    ):
        assert for_photographs(given_values) == (given_values, "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    values, said = for_photographs({"run": {"data": {"name": name}}})
    assert values == {"run": {"data": {"name": name}}}
    assert "nearfield[pretrained]" in said


def test_the_category_that_a_sampler_leaves_aside_is_found_by_its_name() -> None:
    sampler = {"name": "fastap_hard", "batch_size": 128, "unlabelled": "circle"}
    known = load("glyphs").category_names
    config = build_config(BenchConfig, {"run": {"sampler": {**sampler, "unlabelled": known[0]}}})
    assert prepare(config)[0].config == config
    with pytest.raises(InputError, match=r"sampler\.unlabelled must be a category of the data"):
        prepare(build_config(BenchConfig, {"run": {"sampler": sampler}}))
