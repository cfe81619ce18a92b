"""Ablations: only the axis varies, budgets are equal, words say what invented truths are, figures are legible."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benches import Noise, fake_results
from hypothesis import given
from hypothesis import strategies as st
from test_diagrams import assert_legible

from nearfield.analysis.ablations.figure import ablation_figure
from nearfield.analysis.ablations.outcome import Outcome, collect
from nearfield.analysis.ablations.text import outcome_json, outcome_markdown, words
from nearfield.bench.ablations import ABLATIONS, PAIR_LOSSES, ablation, folder_name
from nearfield.bench.plan import Bench, label
from nearfield.bench.protocols import PROTOCOLS, protocol
from nearfield.cli.main import build_parser, main
from nearfield.config import BenchConfig, RunConfig
from nearfield.data.augment import AUGMENTATIONS
from nearfield.data.official import KINDS
from nearfield.errors import InputError
from nearfield.recipes import comparisons, pairs
from nearfield.recipes.tables.multi_similarity import ms

QUIET = Noise(seed=0.0005, fold=0.0, query=0.0, rest=0.0)
VARIED = {  # the only keys of a run, or of its method, that may differ between two values
    "batch-size": {
        "sampler.batch_size",
        "chunk",
        "steps",
        "eval_every",
        "optimizer.warmup_steps",
        "optimizer.frozen_steps",
        "optimizer.decay_every",
    },
    "batch-size-equal-steps": {"sampler.batch_size", "chunk"},
    "embedding-size": {"model.dim"},
    "bins": {"method.params.bins"},
    "similarity-types": {"method.name", "method.params.mine", "method.params.weight", "method.params.miner"},
    "sampling": {"sampler.name", "sampler.repeats", "sampler.unlabelled"},
    "backbone": {"model.backbone", "model.weights"},
    "budget": {"steps", "eval_every", "optimizer.warmup_steps", "optimizer.frozen_steps", "optimizer.decay_every"},
}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def outcome_of(
    name: str, truths: Mapping[str, float], methods: Sequence[str] = (), seeds: int = 4, noise: Noise = QUIET
) -> Outcome:
    """An outcome in which the true R@1 of every method at a value is `truths[value]`, a little less for later ones."""
    study = ablation(name)
    benches = study.benches(study.config("glyphs", methods, seeds), tuple(truths))
    found = {}
    for number, (value, bench) in enumerate(benches.items()):
        score = {label(m.name, m.params): truths[value] - 0.3 - 0.01 * i for i, m in enumerate(bench.methods)}
        results = fake_results(score, seeds, folds=1, trials=0, queries=4, noise=noise, rng=number)
        found[value] = replace(results, data={"name": "glyphs"})
    return collect(study, benches, found)


# ---------------------------------------------------------------------------------------------------------------
# What is run


def test_the_command_line_knows_every_ablation() -> None:
    assert set(ABLATIONS) == set(VARIED)
    for name in ABLATIONS:
        assert build_parser().parse_args(["ablate", name]).name == name


@pytest.mark.parametrize("data", ["glyphs", "omniglot", "cub_lite0", "another", *KINDS])
@pytest.mark.parametrize("name", ABLATIONS)
def test_nothing_but_the_axis_varies(name: str, data: str) -> None:
    study = ABLATIONS[name]
    benches = list(study.benches(study.config(data)).values())
    assert len(benches) == len((data in KINDS and study.official) or study.values)
    varied = set()
    for bench in benches:
        assert bench.run.data.name == data
        assert bench.seeds == (0, 1, 2)
        for index, method in enumerate(bench.methods):
            one, other = (
                flat(b.run.model_copy(update={"method": m}).model_dump())
                for b, m in ((bench, method), (benches[0], benches[0].methods[index]))
            )
            varied |= {key for key in {*one, *other} if one.get(key) != other.get(key)}
    assert varied <= VARIED[name]
    assert varied
    digests = [Bench(bench, PROTOCOLS["classic"], "data").digest for bench in benches]
    assert len(set(digests)) == len(digests)  # no value is another one's bench


@pytest.mark.parametrize("data", KINDS)
@pytest.mark.parametrize("name", ABLATIONS)
def test_official_data_start_from_a_papers_recipe(name: str, data: str) -> None:
    config = ABLATIONS[name].config(data)
    run = config.run
    assert run.model.weights is not None
    assert run.data.augment in AUGMENTATIONS
    assert run.steps >= 1000
    assert run.optimizer.lr <= 1e-4
    assert protocol(config.protocol).test == {
        "inshop": "query-gallery",
        "vehicleid": "vehicleid",
        "imagenet": "closed",
    }.get(data, "self")


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("sampling", "sop", pairs.fastap_resnet18_sop()),
        ("bins", "inshop", pairs.fastap_resnet18_inshop()),
        ("batch-size", "vehicleid", pairs.fastap_resnet18_vehicleid()),
        ("embedding-size", "cub", pairs.ms_bninception_cub()),
        ("similarity-types", "cars196", ms("cars196", 64)),
        ("backbone", "cub", comparisons.unbiased_bninception_cub()),
    ],
)
def test_the_recipe_is_that_of_the_ablations_paper(name: str, data: str, wanted: RunConfig) -> None:
    assert ABLATIONS[name].config(data).run == wanted


def test_random_batches_have_no_repeats_of_pairs() -> None:
    study = ablation("sampling")
    benches = study.benches(study.config("sop"))
    assert benches["category-hard"].run.sampler.repeats == 5
    assert benches["random"].run.sampler.options() == {}


@given(
    size=st.integers(2, 4096),
    base=st.integers(2, 1024),
    steps=st.integers(1, 5000),
    warmup=st.integers(0, 100),
)
def test_all_batch_sizes_see_equally_many_images(size: int, base: int, steps: int, warmup: int) -> None:
    sets = [f"run.sampler.batch_size={base}", f"run.steps={steps}", f"run.optimizer.warmup_steps={warmup}"]
    study = ABLATIONS["batch-size"]
    run = study.benches(study.config("glyphs", overrides=sets), [str(size)])[str(size)].run
    assert run.sampler.batch_size == size
    assert run.steps == 1 or abs(run.steps * size - steps * base) <= size / 2
    assert abs(run.optimizer.warmup_steps * size - warmup * base) <= size / 2
    assert run.chunk == min(size, 32)


def test_arguments_and_overrides_reach_every_value() -> None:
    study = ablation("bins")
    config = study.config("glyphs", ["fastap", "multi_similarity"], 2, ["run.model.width=3", "protocol=reality-check"])
    assert [m.name for m in config.methods] == ["fastap", "multi_similarity"]
    bench = ablation("embedding-size").benches(config, ["7"])["7"]
    assert (bench.run.model.width, bench.run.model.dim, bench.protocol, bench.seeds) == (3, 7, "reality-check", (0, 1))


def test_weights_of_a_backbone_are_given_with_it() -> None:
    study = ablation("backbone")
    run = study.benches(study.config("glyphs"), ["timm:resnet50=/some/file.pth"])["timm:resnet50=/some/file.pth"].run
    assert (run.model.backbone, run.model.weights) == ("timm:resnet50", "/some/file.pth")
    run = study.benches(study.config("glyphs"), ["features=/some/vit.npz"])["features=/some/vit.npz"].run
    assert (run.model.backbone, run.data.name, run.model.weights) == ("features", "/some/vit.npz", None)
    assert folder_name("timm:resnet50=/some/file.pth") == "timm-resnet50-some-file.pth"


@pytest.mark.parametrize(
    ("name", "methods", "values", "message"),
    [
        ("bims", [], [], "did you mean 'bins'"),
        ("similarity-types", ["fastap"], [], "leave --methods out"),
        ("similarity-types", [], ["MS mine"], "did you mean 'MS mining'"),
        ("sampling", [], ["easy"], "random"),
        ("bins", [], ["many"], "whole numbers"),
        ("batch-size", [], ["0"], "whole numbers"),
        ("backbone", [], ["convv"], "did you mean 'conv'"),
    ],
)
def test_input_that_makes_no_sense_is_refused(name: str, methods: list[str], values: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ablation(name).benches(ablation(name).config("glyphs", methods), values)


@pytest.mark.parametrize("option", [["--seeds", "0"], ["--jobs", "0"]])
def test_counts_below_one_are_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", "bins", *option]) == 2
    assert "at least 1; got 0" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------
# What is said


def test_a_rise_a_fall_and_a_peak_are_told_apart() -> None:
    up = words(outcome_of("bins", {"2": 0.40, "5": 0.45, "10": 0.50}))
    down = words(outcome_of("bins", {"2": 0.50, "5": 0.45, "10": 0.40}))
    peak = words(outcome_of("bins", {"2": 0.40, "5": 0.50, "10": 0.45}))
    assert up[0].startswith("fastap: mean R@1 increases with every value of the axis (histogram bins), from 2 to 10")
    assert down[0].startswith("fastap: mean R@1 decreases with every value")
    assert "not monotone from 2 to 10; it is highest at 5, " in peak[0]
    assert "5 has the highest mean: significantly better than 10, 2 (" in peak[1]
    assert peak[2].startswith(("Level seeds, fastap: 10 minus 2: +5.0", "Level seeds, fastap: 10 minus 2: +4.9"))
    assert peak[2].endswith("10 is better than 2.")
    assert down[2].endswith("2 is better than 10.")


def test_what_the_seeds_do_not_show_is_not_said() -> None:
    same = outcome_of("bins", {"2": 0.45, "5": 0.45, "10": 0.45}, seeds=3, noise=Noise(seed=0.02, fold=0.0))
    lines = words(same)
    assert "not significantly different from" in lines[1]
    assert "better than" not in " ".join(lines)


def test_two_values_make_one_sentence() -> None:
    line, level = words(outcome_of("sampling", {"random": 0.40, "category-hard": 0.45}))
    assert level == "Level seeds: for new seeds on the same test images."
    start = "Level seeds, fastap: category-hard minus random: "
    assert line.startswith((f"{start}+5.0", f"{start}+4.9"))
    assert line.endswith(": category-hard is better than random.")
    assert "corrected" not in line


def test_names_have_no_course() -> None:
    lines = words(outcome_of("similarity-types", {value: 0.4 + 0.02 * i for i, value in enumerate(PAIR_LOSSES)}))
    assert len(lines) == 2
    assert lines[0].startswith(
        "Level seeds: MS has the highest mean: significantly better than lifted_star + mining, binomial + mining, MS we"
    )


def test_only_shared_seeds_are_compared_and_what_is_missing_is_said() -> None:
    whole = outcome_of("bins", {"2": 0.40, "5": 0.50})
    curve = whole.curves[0]
    some = {"2": dict(list(curve.scores["2"].items())[1:]), "5": dict(list(curve.scores["5"].items())[:3])}
    part = replace(whole, curves=(replace(curve, scores=some),), missing=("2: fastap: seed 0",))
    assert {value: len(scores) for value, scores in part.curves[0].table().items()} == {"2": 2, "5": 2}
    assert words(part)[-1] == "Not finished: 2: fastap: seed 0."
    alone = replace(whole, curves=(replace(curve, scores={"2": some["2"]}),))
    assert "nothing to compare" in words(alone)[0]
    assert "nothing to compare" in words(replace(whole, curves=(replace(curve, scores={}),)))[0]


def with_classes(outcome: Outcome, noise: float, classes: int = 20) -> Outcome:
    """The same, with scores of single classes around each seed's, every class off by its own noise at every value."""
    rng = np.random.default_rng(0)
    curve = outcome.curves[0]
    own = {value: rng.normal(size=classes) * noise for value in curve.scores}
    found = {v: {seed: each["recall@1"] + own[v] for seed, each in s.items()} for v, s in curve.scores.items()}
    return replace(outcome, curves=(replace(curve, classes=found, shares=np.full(classes, 1 / classes)),))


def test_new_classes_speak_first_and_are_harder_to_convince() -> None:
    steady = words(with_classes(outcome_of("bins", {"2": 0.40, "5": 0.45, "10": 0.50}), noise=0.01))
    assert [line.split(",")[0] for line in steady[1:5]] == ["Level classes"] * 2 + ["Level seeds"] * 2
    assert steady[5] == "Level classes: for new test classes of this dataset and new seeds."
    assert "10 has the highest mean: significantly better than 5, 2 (" in steady[1]
    assert "20 classes crossed with 4 seeds, Holm-corrected over 3 pairs" in steady[1]
    varied = words(with_classes(outcome_of("bins", {"2": 0.40, "5": 0.42, "10": 0.44}), noise=0.3))
    assert varied[2].endswith("not significantly different.")  # to new classes it may not carry
    assert varied[4].endswith("10 is better than 2.")


def test_numbers_of_every_pair_are_written_at_every_level() -> None:
    numbers = outcome_json(with_classes(outcome_of("bins", {"2": 0.40, "5": 0.45, "10": 0.50}), noise=0.01))
    found = numbers["curves"][0]["verdicts"]
    assert list(found) == ["classes", "seeds"]
    for listed in found.values():
        assert [(pair["first"], pair["second"]) for pair in listed] == [("10", "5"), ("10", "2"), ("5", "2")]
        assert listed[1]["difference"]["mean"] == pytest.approx(0.10, abs=0.03)
        assert all(pair["significant"] for pair in listed)


def test_classes_are_read_from_the_scores_of_queries() -> None:
    study = ablation("sampling")
    benches = study.benches(study.config("glyphs", seeds=3))
    name = label(benches["random"].methods[0].name, benches["random"].methods[0].params)
    rng, found = np.random.default_rng(0), {}
    for value in benches:
        table = rng.random((3, 12))
        results = fake_results({name: 0.2}, 3, folds=1, trials=0, queries=12)
        given = replace(results, queries=lambda *_, table=table: table, query_classes=np.arange(12) // 2)
        found[value] = replace(given, data={"name": "glyphs"})
    curve = collect(study, benches, found).curves[0]
    assert {value: table.shape for value, table in curve.class_table().items()} == dict.fromkeys(benches, (3, 6))
    expected = found["random"].queries(name, "recall@1", "separated")[1, 2:4].mean()
    assert curve.class_table()["random"][1, 1] == pytest.approx(expected)
    other = replace(found["random"], query_classes=np.arange(12) % 5)  # other data
    mixed = collect(study, benches, {**found, "random": other}).curves[0]
    assert mixed.class_table() == {}


def test_values_that_were_not_run_are_missing() -> None:
    study = ablation("bins")
    benches = study.benches(study.config("glyphs", seeds=2))
    name = label(benches["2"].methods[0].name, benches["2"].methods[0].params)
    found = {"2": replace(fake_results({name: 0.2}, 2, folds=1, trials=0), data={"name": "glyphs"})}
    outcome = collect(study, benches, found)
    assert list(outcome.curves[0].scores) == ["2"]
    assert outcome.missing == tuple(f"{value}: not run yet" for value in ("5", "10", "20", "50"))
    ablation_figure(outcome)


def test_the_page_and_the_numbers_hold_everything() -> None:
    outcome = outcome_of("batch-size", {"32": 0.40, "256": 0.50}, ["fastap", "triplet"])
    page, numbers = outcome_markdown(outcome), json.loads(json.dumps(outcome_json(outcome)))
    for text in ("equally many images", "| 256", "triplet", "78.35", "Figure 4a and Table 1", *words(outcome)):
        assert text in page
    assert "The bench at 32:\n\n```toml\n" in page
    assert "batch_size = 32\n" in page
    assert [curve["method"] for curve in numbers["curves"]] == ["fastap", "triplet"]
    value = numbers["curves"][0]["values"]["256"]
    assert value["recall@1"]["mean"] == pytest.approx(0.50, abs=0.002)
    assert len(value["seeds"]) == 4
    assert BenchConfig.model_validate(numbers["benches"]["256"]).run.sampler.batch_size == 256


# ---------------------------------------------------------------------------------------------------------------
# What is drawn


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("name", ABLATIONS)
def test_figures_are_legible_and_complete(name: str, seeds: int) -> None:
    study = ABLATIONS[name]
    outcome = outcome_of(name, {v: 0.4 + 0.1 * (i % 3) for i, v in enumerate(study.values)}, seeds=seeds)
    figure = ablation_figure(outcome)
    assert_legible(figure)
    dots = sum(np.size(one.get_xdata()) for axes in figure.axes for one in axes.lines if one.get_marker() == "o")
    printed = sum(len(numbers) for paper in study.papers for numbers in paper.numbers.values())
    assert dots == sum(len(curve.scores) for curve in outcome.curves) + printed


def test_many_curves_and_wild_intervals_stay_inside() -> None:
    names = ["fastap", "triplet", "npairs", "margin", "angular", "histogram", "binomial", "nca", "snr"]
    wild = Noise(seed=0.1, fold=0.0)  # two seeds: intervals beyond 0 and 100 %
    figure = ablation_figure(outcome_of("bins", {"2": 0.5, "50": 0.6}, names[:1], 2, wild))
    assert_legible(figure)
    low, high = figure.axes[0].get_ylim()
    assert 0 <= low < high <= 100
    assert_legible(ablation_figure(outcome_of("embedding-size", {"16": 0.5, "64": 0.5}, names)))


def test_the_legend_is_in_the_order_of_the_last_points() -> None:
    figure = ablation_figure(outcome_of("embedding-size", {"16": 0.4, "64": 0.5}, ["nca", "triplet"]))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [label.get_text() for label in legend.get_texts()] == ["nca", "triplet"]


# ---------------------------------------------------------------------------------------------------------------
# For real

SMALL = ["run.model.width=2", "run.model.dim=4", "run.steps=3", "run.eval_every=3", "run.sampler.batch_size=8"]


@pytest.mark.programs
def test_an_ablation_is_run_written_and_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [part for key in [*SMALL, "run.sampler.per_class=4"] for part in ("--set", key)]
    command = ["ablate", "bins", "--values", "2", "10", "--data", "digits", "--seeds", "1", "--jobs", "1", *sets]
    assert main([*command, "--out", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "ablation.json").read_text(encoding="utf-8"))
    assert printed == written
    (curve,) = written["curves"]
    assert curve["method"] == "fastap"
    assert {value: len(point["seeds"]) for value, point in curve["values"].items()} == {"2": 1, "10": 1}
    assert curve["values"]["2"]["seeds"] != curve["values"]["10"]["seeds"]
    assert (tmp_path / "ablation.svg").read_text(encoding="utf-8").startswith("<svg")
    assert main([*command, "--out", str(tmp_path)]) == 0  # all is done: times of training are those of the first time
    assert json.loads((tmp_path / "ablation.json").read_text(encoding="utf-8")) == written
    assert "fastap: 10 minus 2" in capsys.readouterr().out


def test_a_dry_run_says_what_would_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [part for key in SMALL for part in ("--set", key)]
    command = ["ablate", "batch-size", "--values", "4", "8", "--data", "digits", "--methods", "fastap", *sets]
    assert main([*command, "--dry-run", "--json", "--out", str(tmp_path / "none")]) == 0
    rows = json.loads(capsys.readouterr().out)["values"]
    assert [(row["value"], row["batch"], row["steps"], row["networks"]) for row in rows] == [
        ("4", 4, 6, 3),
        ("8", 8, 3, 3),
    ]
    assert not (tmp_path / "none").exists()
