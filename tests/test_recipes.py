"""Recipes are complete, name only what exists, and have the numbers of the papers."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfield import losses, samplers
from nearfield.cli.main import main
from nearfield.cli.recipes import notes, summary
from nearfield.config import BACKBONES, DataConfig, ModelConfig, OptimizerConfig, RunConfig, build_config, merge
from nearfield.data import Dataset, load
from nearfield.data.augment import AUGMENTATIONS
from nearfield.data.loader import Cropped
from nearfield.data.official import KINDS
from nearfield.errors import InputError
from nearfield.losses.ensembles import DREML
from nearfield.models import build_model
from nearfield.recipes import RECIPES, config_values, facts, recipe
from nearfield.training.build import build_sampler
from nearfield.training.loop import train
from nearfield.training.optimizers import build_optimizer
from nearfield.training.run_folder import RunFolder

SMALL = ("glyphs_conv", "omniglot_conv4", "cub_lite0_features", "cub_lite0_128px")
PAPERS = [name for name in RECIPES if name not in SMALL]


class Row(NamedTuple):
    """A row of the papers' table: what a recipe must contain, stated independently."""

    backbone: str
    dim: int
    batch: int
    optimizer: str
    rates: tuple[float, float, float | None]  # of the backbone, the head, what the loss learns
    decay: float
    steps: int
    schedule: tuple[str, int | None, float | None]  # kind, steps between drops, factor
    frozen_bn: bool
    more: dict[str, Any] = {}  # noqa: RUF012


CONSTANT = ("constant", None, None)
ROWS = {
    "fastap_resnet18_sop": Row(
        "timm:resnet18", 512, 256, "adam", (1e-5, 1e-4, None), 0, 50 * 330, CONSTANT, False,
        {"sampler.name": "fastap_hard", "sampler.repeats": 5, "data.augment": "fastap", "method.params.bins": 10},
    ),
    "fastap_resnet18_inshop": Row(
        "timm:resnet18", 512, 256, "adam", (1e-5, 1e-4, None), 0, 50 * 506, CONSTANT, False,
        {"sampler.name": "fastap_hard", "sampler.repeats": 2, "data.name": "inshop"},
    ),
    "fastap_resnet18_vehicleid": Row(
        "timm:resnet18", 512, 256, "adam", (1e-5, 1e-4, None), 0, 50 * 443, CONSTANT, False,
        {"sampler.name": "fastap_hard", "sampler.unlabelled": "unlabelled", "data.name": "vehicleid"},
    ),
    "fastap_resnet50_sop": Row(
        "timm:resnet50", 512, 96, "adam", (1e-5, 1e-4, None), 0, 50 * 330, CONSTANT, False,
        {"sampler.name": "fastap_hard", "chunk": None},
    ),
    "fastap_resnet50_sop_256": Row(
        "timm:resnet50", 512, 256, "adam", (1e-5, 1e-4, None), 0, 50 * 330, CONSTANT, True, {"chunk": 64}
    ),
    "fastap_googlenet_sop": Row(
        "googlenet", 512, 320, "adam", (1e-5, 1e-4, None), 0, 50 * 330, CONSTANT, False,
        {"sampler.name": "fastap_hard"},
    ),
    "ms_bninception_cub": Row(
        "bn_inception", 512, 80, "adam", (3e-5, 3e-5, None), 5e-4, 3000, ("step", 1200, 0.1), True,
        {"model.pool": "max", "sampler.per_class": 5, "method.params.beta": 40, "method.params.lam": 0.5},
    ),
    "ms_bninception_cub_paper": Row(
        "bn_inception", 512, 80, "adam", (1e-5, 1e-5, None), 0, 3000, CONSTANT, False,
        {"sampler.per_class": 5, "method.params.beta": 50, "method.params.lam": 1},
    ),
    "ms_bninception_sop": Row(
        "bn_inception", 512, 1000, "adam", (1e-5, 1e-5, None), 5e-4, 41 * (59_551 // 1000), CONSTANT, True,
        {"sampler.per_class": 5, "chunk": 100, "data.name": "sop"},
    ),
    "contrastive_bninception_cub": Row(
        "bn_inception", 512, 80, "adam", (1e-5, 1e-5, None), 5e-4, 600 * (5_864 // 80), CONSTANT, True,
        {"sampler.per_class": 5, "model.pool": "max", "data.augment": "multi_similarity"},
    ),
    "margin_resnet50_cub": Row(
        "timm:resnetv2_50", 128, 70, "adam", (1e-6, 1e-4, 1.0), 1e-4, 20 * 200, ("step", 12 * 200, 0.25), False,
        {"sampler.per_class": 5, "optimizer.loss_eps": 1.0, "optimizer.loss_weight_decay": 0},
    ),
    "ranked_list_googlenet_sop": Row(
        "bn_inception", 512, 150, "sgd", (0.01, 0.01, None), 2e-5, 30_000, ("step", 12_000, 0.2), False,
        {"optimizer.momentum": 0.9},
    ),
    "lifted_googlenet_cub": Row(
        "googlenet", 64, 128, "sgd", (1e-4, 1e-3, None), 2e-4, 20_000, CONSTANT, False, {"distance": "euclidean"}
    ),
    "proxy_nca_bninception_cub": Row(
        "bn_inception", 64, 32, "adam", (0.045, 0.045, 1.0), 0, 20 * 183, ("step", 183, 0.94), False,
        {"optimizer.eps": 1.0, "optimizer.loss_eps": 1.0, "method.params.label_smoothing": 0.1,
         "method.params.smooth_over": "others"},
    ),
    "proxy_nca_plus_resnet50_cub": Row(
        "timm:resnet50", 2048, 32, "adam", (4e-3, 4e-3, 4e2), 0, 45 * 183, CONSTANT, False,
        {"sampler.per_class": 4, "model.pool": "max", "model.norm": "layer", "optimizer.frozen_steps": 5 * 183,
         "optimizer.eps": 1.0},
    ),
    "proxy_softmax_resnet50": Row(
        "timm:resnet50", 2048, 75, "sgd", (1e-3, 1e-3, 1e-3), 1e-4, 31 * 78, ("step", 16 * 78, 0.1), False,
        {"sampler.per_class": 25, "model.norm": "layer", "model.head": "none", "method.params.temperature": 0.05,
         "optimizer.frozen_steps": 78},
    ),
    "soft_triple_bninception_cub": Row(
        "bn_inception", 64, 32, "adam", (1e-4, 1e-4, 1e-2), 1e-4, 50 * 183, ("step", 20 * 183, 0.1), True,
        {"optimizer.eps": 0.01, "optimizer.loss_eps": 0.01},
    ),
    "proxy_anchor_bninception_cub": Row(
        "bn_inception", 512, 180, "adamw", (1e-4, 1e-4, 1e-2), 1e-4, 60 * 32, ("step", 10 * 32, 0.5), True,
        {"model.pool": "avg_max", "optimizer.frozen_steps": 32, "sampler.name": "shuffle"},
    ),
    "dreml_resnet18_cub": Row(
        "timm:resnet18", 576, 128, "sgd", (0.01, 0.01, None), 0, 48 * 12 * 45, ("step", 48 * 6 * 45, 0.01), False,
        {"method.params.members": 48, "method.params.meta_classes": 12},
    ),
    "drml_pa_cub": Row(
        "bn_inception", 512, 180, "adamw", (5e-5, 1e-3, 1e-2), 1e-4, 60 * 32, ("step", 10 * 32, 0.5), True,
        {"optimizer.clip": 10, "optimizer.clip_by": "part", "optimizer.frozen_steps": 32,
         "method.params.base_params.alpha": 64,
         "method.params.base_params.delta": 0.2, "method.params.emb_weight": 10, "method.params.rec_weight": 1},
    ),
    "unbiased_bninception_cub": Row(
        "bn_inception", 64, 128, "adam", (1e-4, 1e-4, None), 1e-5, 25 * 200, ("step", 12 * 200, 0.125), False,
        {"optimizer.eps": 1e-7, "data.augment": "unbiased", "model.init": "xavier_small"},
    ),
    "reality_check_bninception_cub": Row(
        "bn_inception", 128, 32, "rmsprop", (1e-6, 1e-6, None), 1e-4, 100_000, CONSTANT, True,
        {"data.folds": 4, "sampler.per_class": 4, "data.augment": "reality_check", "optimizer.momentum": 0.9},
    ),
    "revisiting_resnet50_cub": Row(
        "timm:resnet50", 128, 112, "adam", (1e-5, 1e-5, 5e-4), 4e-4, 150 * 52, CONSTANT, True,
        {"sampler.per_class": 2},
    ),
}  # fmt: skip


def at(values: dict[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        found = found[part]
    return found


def test_every_recipe_of_a_paper_is_checked() -> None:
    assert set(ROWS) == set(PAPERS)


@pytest.mark.parametrize("name", PAPERS)
def test_numbers_are_those_of_the_table(name: str) -> None:
    row, config = ROWS[name], recipe(name)
    model, optimizer = config.model, config.optimizer
    assert (model.backbone, model.dim, config.sampler.batch_size) == (row.backbone, row.dim, row.batch)
    backbone, head, own = row.rates
    assert optimizer.name == row.optimizer
    assert (optimizer.lr, optimizer.lr * optimizer.head) == pytest.approx((backbone, head))
    assert own is None or optimizer.loss_lr == pytest.approx(own)
    assert optimizer.weight_decay == row.decay
    assert config.steps == row.steps
    schedule, every, factor = row.schedule
    assert (optimizer.schedule, optimizer.decay_every) == (schedule, every)
    assert factor is None or optimizer.decay == factor
    assert optimizer.warmup_steps == 0
    assert model.freeze_bn == row.frozen_bn
    values = config.model_dump(mode="json")
    for key, wanted in row.more.items():
        assert at(values, key) == wanted, key


@pytest.mark.parametrize("name", PAPERS)
def test_pretrained_weights_are_asked_for_and_their_absence_is_said(name: str) -> None:
    model = recipe(name).model
    assert model.weights is not None
    if model.backbone == "bn_inception":
        with pytest.raises(InputError, match="cannot read the weights bn_inception"):
            build_model(model, 0)


def class_sizes(rng: np.random.Generator, images: int, classes: int) -> np.ndarray:
    """Sizes of classes, two images or more each, that add up."""
    return 2 + np.bincount(rng.integers(0, classes, images - 2 * classes), minlength=classes)


@pytest.mark.parametrize(
    ("name", "categories", "batches"),
    [
        ("fastap_resnet18_sop", 12, (330, 330)),
        ("fastap_resnet50_sop", 12, (330, 330)),
        ("fastap_resnet18_inshop", 23, (506, 506)),
        ("fastap_resnet18_vehicleid", 251, (443, 443 + 250)),  # a last batch of every model is filled up
    ],
)
def test_epochs_of_fastap_have_the_papers_batches(name: str, categories: int, batches: tuple[int, int]) -> None:
    """With as many images, classes and categories as the official training lists have."""
    config, rng = recipe(name), np.random.default_rng(0)
    images, classes = KINDS[config.data.name].expected.parts["train"]
    sizes = class_sizes(rng, images, classes)
    assert sizes.sum() == images
    of_class = np.arange(classes) % categories
    names = [f"model {number}" for number in range(categories)]
    if config.sampler.unlabelled is not None:  # about half of the images have a model
        names[-1] = config.sampler.unlabelled
        of_class = np.where(np.arange(classes) % 2 == 0, np.arange(classes) // 2 % 250, 250)
    labels = np.repeat(np.arange(classes), sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", samplers.SamplerWarning)
        sampler = build_sampler(config, torch.from_numpy(labels), torch.from_numpy(of_class[labels]), names)
    assert batches[0] <= len(sampler) <= batches[1]
    assert config.steps == 50 * batches[0]
    assert config.eval_every == batches[0]


def test_an_epoch_is_the_whole_batches_of_the_official_training_part() -> None:
    for data, images in facts.TRAIN_IMAGES.items():
        assert images == KINDS[data].expected.parts["train"][0]
    assert facts.epoch("cub", 32) == 183
    assert facts.epoch("sop", 1000) == 59


@pytest.mark.parametrize("name", RECIPES)
def test_round_trip_through_toml_and_overrides(name: str, tmp_path: Path) -> None:
    config = recipe(name)
    path = tmp_path / "run.toml"
    path.write_text(config.to_toml())
    assert build_config(RunConfig, config_values(path)) == config
    assert build_config(RunConfig, config_values(name)) == config
    assert build_config(RunConfig, merge(config_values(name), ["seed=3"])).seed == 3


@pytest.mark.parametrize("name", RECIPES)
def test_everything_named_exists(name: str) -> None:
    config = recipe(name)
    assert config.method.name in losses.names()
    assert config.sampler.name in {"auto", *samplers.names()}
    assert config.data.augment is None or config.data.augment in AUGMENTATIONS
    assert config.data.name in {*KINDS, "glyphs", "omniglot", "cub_lite0"}
    assert config.model.backbone in BACKBONES or config.model.backbone.startswith("timm:")
    assert config.eval_every <= config.steps
    assert config.optimizer.frozen_steps < config.steps
    per_class = config.sampler.per_class if config.sampler.name == "m_per_class" else 1
    assert config.sampler.batch_size % per_class == 0


@pytest.mark.parametrize("name", PAPERS)
def test_notes_say_source_paper_code_and_what_differs(name: str) -> None:
    labels = [line.partition(":")[0] for line in notes(name).splitlines() if line.partition(":")[0] in NOTES]
    assert labels == list(NOTES)


NOTES = ("Source", "Paper", "Code", "Here")


@pytest.fixture(scope="module")
def glyphs() -> Dataset:
    return load("glyphs")


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "dreml_resnet18_cub"])
def test_a_tiny_copy_trains(name: str, glyphs: Dataset, tmp_path: Path) -> None:
    """Method, optimiser, schedule and sampler as they are; a small network on small images, for two steps."""
    config = recipe(name)
    network = {"backbone": "conv", "width": 4, "weights": None, "dim": 16, "init": "default"}  # 16 features too
    per_class = config.sampler.per_class if 24 % config.sampler.per_class == 0 else 4
    tiny = config.model_copy(
        update={
            "data": DataConfig(name="glyphs", folds=config.data.folds),
            "model": config.model.model_copy(update=network),
            "sampler": config.sampler.model_copy(
                update={"batch_size": 24, "per_class": per_class, "unlabelled": config.sampler.unlabelled and "Greek"}
            ),
            "optimizer": config.optimizer.model_copy(update={"frozen_steps": min(1, config.optimizer.frozen_steps)}),
            "chunk": config.chunk and 8,
            "steps": 2,
            "eval_every": 1,
            "threads": 1,
        }
    )
    result = train(tiny, tmp_path, dataset=glyphs, test=False)
    assert 0 < result["val"]["map@r"] < 1
    first, second = (record["loss"] for record in RunFolder(tmp_path).records() if "loss" in record)
    assert np.isfinite([first, second]).all()


def test_the_pretrained_network_takes_its_crops() -> None:
    config = recipe("cub_lite0_128px")
    model = build_model(config.model, 0)
    loss = losses.create(config.method.name, **dict[str, Any](config.method.params))
    optimizer = build_optimizer(model, loss, config.optimizer)
    photos = np.random.default_rng(0).integers(0, 255, (4, 144, 190, 3), dtype=np.uint8)
    images = Cropped(photos, AUGMENTATIONS["px128"], train=True, seed=0)[(0, [0, 1, 2, 3])]
    assert images.shape == (4, 3, 128, 128)
    before = model(images)
    loss(before, torch.tensor([0, 0, 1, 1])).backward()
    optimizer.step()
    assert before.shape == (4, 128)
    assert not torch.equal(before, model(images))


def test_members_of_the_ensemble_learn_their_meta_classes() -> None:
    config = recipe("dreml_resnet18_cub")
    loss = losses.create("dreml", num_classes=100, dim=config.model.dim, **dict[str, Any](config.method.params))
    assert isinstance(loss, DREML)
    assert loss.members == 48
    model = build_model(ModelConfig(width=4, dim=config.model.dim // 48), 0)
    member = loss.member(7)
    optimizer = build_optimizer(model, member, config.optimizer)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (24, 16, 16), dtype=np.uint8))
    values = []
    for _ in range(20):
        optimizer.zero_grad()
        value = member(model(images), torch.arange(24))
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < values[0]


def test_the_feature_recipe_beats_principal_components(real_data: Path, tmp_path: Path) -> None:
    """On held-out classes, in a few seconds; the head starts as PCA, which is its score at learning rate 0."""
    config = recipe("cub_lite0_features")
    dataset = load(str(real_data / "cub200_efficientnet_lite0_224.npz"))
    short = config.model_copy(update={"steps": 100, "eval_every": 100})
    still = short.model_copy(update={"optimizer": OptimizerConfig(name="sgd", lr=1e-12), "steps": 1, "eval_every": 1})
    pca = train(still, tmp_path / "pca", dataset=dataset, test=False)["val"]
    trained = train(short, tmp_path / "trained", dataset=dataset, test=False)["val"]
    assert trained["map@r"] > pca["map@r"] + 0.01


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(1e-3, 0.05))
def test_adam_of_the_margin_recipe_steps_like_its_sgd(seed: int, scale: float) -> None:
    """SGD at 0.1 with momentum 0.9 and Adam with learning rate and epsilon 1 move beta alike for small gradients."""
    chosen = recipe("margin_resnet50_cub").optimizer
    gradients = scale * (torch.randn(200, 5, generator=torch.Generator().manual_seed(seed)) + 0.5)
    a, b = torch.zeros(5, requires_grad=True), torch.zeros(5, requires_grad=True)
    adam = torch.optim.Adam([a], lr=chosen.loss_lr, eps=chosen.loss_eps)
    sgd = torch.optim.SGD([b], lr=0.1, momentum=0.9)
    for gradient in gradients:
        a.grad, b.grad = gradient.clone(), gradient.clone()
        adam.step()
        sgd.step()
    assert torch.allclose(a, b, rtol=0.15, atol=10 * scale)


def test_recipes_need_no_torch() -> None:
    code = "import sys, nearfield.recipes as r; r.recipe('drml_pa_cub'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_wrong_name_says_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="unknown recipe 'fastap_resnet19_sop'; did you mean 'fastap_resnet18_sop'"):
        recipe("fastap_resnet19_sop")
    with pytest.raises(InputError, match="TOML file or a recipe; got 'glyph_conv'; did you mean 'glyphs_conv'"):
        config_values("glyph_conv")
    with pytest.raises(InputError, match="cannot read the config"):
        config_values("none.toml")
    Path("plain").write_text("seed = 4")
    assert config_values(Path("plain")) == {"seed": 4}


def test_the_command_prints_a_file_that_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in RECIPES:
        assert main(["recipes", name]) == 0
        path = tmp_path / f"{name}.toml"
        path.write_text(capsys.readouterr().out)
        assert build_config(RunConfig, config_values(path)) == recipe(name)
        assert path.read_text().startswith(f"# {(inspect.getdoc(RECIPES[name]) or '').splitlines()[0]}")
    assert main(["recipes", "nothing"]) == 2


def test_the_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in RECIPES)
    assert main(["recipes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["recipe"] for row in found] == list(RECIPES)
    assert main(["recipes", "drml_pa_cub", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["method"]["name"] == "drml"


def test_rates_of_the_loss_are_shown_where_it_learns() -> None:
    assert summary(recipe("proxy_anchor_bninception_cub"))["optimiser"] == "adamw 0.0001, loss 0.01"
    assert summary(recipe("fastap_resnet18_sop"))["optimiser"] == "adam 1e-05, head 0.0001"


def test_the_page_of_recipes_is_up_to_date() -> None:
    page = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
    for name in RECIPES:
        row = next(line for line in page.splitlines() if line.startswith(f"| [{name}]"))
        assert row == f"| [{name}](#{name}) | {' | '.join(summary(recipe(name)).values())} |"
        assert all(line in page for line in notes(name).splitlines())
