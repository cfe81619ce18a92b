"""The papers' recipes for losses against proxies, and for ensembles of networks or views."""

from __future__ import annotations

from nearfield.config import DataConfig, MethodConfig, ModelConfig, OptimizerConfig, RunConfig, SamplerConfig
from nearfield.recipes.facts import BN_INCEPTION, CONSTANT, RESNET18, RESNET50, dropping, epoch


def proxy_nca_bninception_cub() -> RunConfig:
    """Proxy-NCA, BN-Inception on CUB, as in its best-known port: R@1 52.6.

    Source: Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017; dichotomies/proxy-nca.
    Paper: does not mention the scale, without which training fails.
    Code: 64 dims, 32 images, scale 3 of embeddings and of proxies, label smoothing 0.1, the softmax with the positive;
    Adam with epsilon 1, learning rate 0.045 and 1 for the proxies, multiplied by 0.94 after every epoch, 20 epochs;
    resized crops of 227 from 8 % of the area.
    Here: crops of 224; Kaiming initialisation of the proxies instead of N(0, 1) / 8; batch norm with momentum 0.1
    instead of 0.9.
    """
    return RunConfig(
        method=MethodConfig(
            name="proxy_nca",
            params={"form": "probabilistic", "scale": 3.0, "label_smoothing": 0.1, "smooth_over": "others"},
        ),
        data=DataConfig(name="cub", augment="unbiased_original"),
        model=ModelConfig(backbone="bn_inception", weights=BN_INCEPTION, dim=64),
        sampler=SamplerConfig(name="shuffle", batch_size=32),
        optimizer=OptimizerConfig(
            name="adam",
            lr=0.045,
            loss_lr=1.0,
            weight_decay=0.0,
            eps=1.0,
            loss_eps=1.0,
            **dropping(epoch("cub", 32), 0.94),
        ),
        steps=20 * epoch("cub", 32),
        eval_every=epoch("cub", 32),
    )


def proxy_nca_plus_resnet50_cub() -> RunConfig:
    """ProxyNCA++, ResNet-50 on CUB.

    Source: Teh et al., ProxyNCA++, ECCV 2020; euwern/proxynca_pp.
    Paper: 2048 dims, maximum pooling, layer norm, scale 3, 8 classes x 4, fast proxies.
    Code: layer norm without scale and shift before a linear layer; Adam with epsilon 1, learning rate 4e-3 and 400 for
    the proxies; 5 epochs that train only head and proxies, then 40; the learning rate is reduced on a plateau of a
    validation split, then at the same epochs on the whole training part; gradients clipped to 10 element-wise; resized
    crops of 256 from 8 % of the area.
    Here: constant learning rates, no gradient clipping, crops of 224.
    """
    return RunConfig(
        method=MethodConfig(name="proxy_nca", params={"form": "probabilistic", "scale": 3.0}),
        data=DataConfig(name="cub", augment="unbiased_original"),
        model=ModelConfig(backbone="timm:resnet50", weights=RESNET50, pool="max", norm="layer", dim=2048),
        sampler=SamplerConfig(name="m_per_class", batch_size=32, per_class=4),
        optimizer=OptimizerConfig(
            name="adam",
            lr=4e-3,
            loss_lr=4e2,
            weight_decay=0.0,
            eps=1.0,
            loss_eps=1.0,
            frozen_steps=5 * epoch("cub", 32),
            **CONSTANT,
        ),
        steps=45 * epoch("cub", 32),
        eval_every=epoch("cub", 32),
    )


def proxy_softmax_resnet50() -> RunConfig:
    """Normalised softmax, ResNet-50 on CUB: R@1 65.4, binary 63.7.

    Source: Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019;
    azgo14/classification_metric_learning.
    Paper: 2048 dims, temperature 0.05, 3 classes x 25; the binary variant ranks by the signs, `distance=hamming`.
    Code: layer norm without scale and shift, and with 2048 dims no embedding layer; SGD 0.001 on CUB and 0.01
    elsewhere, momentum 0.9, weight decay 1e-4, of the proxies too; one epoch that trains only new parameters, then 15,
    then 15 with a tenth of the learning rate; images as FastAP's. Images of a class are drawn with replacement.
    Here: the last, incomplete batch of an epoch is dropped.
    """
    return RunConfig(
        method=MethodConfig(name="proxy_softmax", params={"temperature": 0.05}),
        data=DataConfig(name="cub", augment="fastap"),
        model=ModelConfig(backbone="timm:resnet50", weights=RESNET50, norm="layer", head="none", dim=2048),
        sampler=SamplerConfig(name="m_per_class", batch_size=75, per_class=25),
        optimizer=OptimizerConfig(
            name="sgd",
            lr=1e-3,
            loss_lr=1e-3,
            weight_decay=1e-4,
            loss_weight_decay=1e-4,
            momentum=0.9,
            frozen_steps=epoch("cub", 75),
            **dropping(16 * epoch("cub", 75), 0.1),
        ),
        steps=31 * epoch("cub", 75),
        eval_every=2 * epoch("cub", 75),
    )


def soft_triple_bninception_cub() -> RunConfig:
    """SoftTriple, BN-Inception on CUB.

    Source: Qian et al., SoftTriple Loss, ICCV 2019; idstcv/SoftTriple.
    Paper: 64 or 512 dims, 10 centers, lambda 20, gamma 0.1, tau 0.2, delta 0.01.
    Code: 32 images, Adam with epsilon 0.01, learning rate 1e-4 and 1e-2 for the centers, weight decay 1e-4 of both, 50
    epochs, learning rate divided by 10 every 20, frozen batch norm, resized crops of 224 from 8 % of the area; centers
    start uniform within 1/sqrt(C K) of 0.
    Here: nothing else.
    """
    return RunConfig(
        method=MethodConfig(
            name="soft_triple",
            params={"scale": 20.0, "gamma": 0.1, "tau": 0.2, "delta": 0.01, "centers": 10, "start": "uniform"},
        ),
        data=DataConfig(name="cub", augment="unbiased_original"),
        model=ModelConfig(backbone="bn_inception", weights=BN_INCEPTION, dim=64, freeze_bn=True),
        sampler=SamplerConfig(name="shuffle", batch_size=32),
        optimizer=OptimizerConfig(
            name="adam",
            lr=1e-4,
            loss_lr=1e-2,
            weight_decay=1e-4,
            loss_weight_decay=1e-4,
            eps=0.01,
            loss_eps=0.01,
            **dropping(20 * epoch("cub", 32), 0.1),
        ),
        steps=50 * epoch("cub", 32),
        eval_every=epoch("cub", 32),
    )


def proxy_anchor_bninception_cub() -> RunConfig:
    """Proxy-Anchor, BN-Inception on CUB: R@1 69.1.

    Source: Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020; tjddus9597/Proxy-Anchor-CVPR2020.
    Paper: 512 dims, alpha 32, delta 0.1, 180 images, AdamW 1e-4 with a hundred times that for the proxies.
    Code: mean plus maximum pooling, Kaiming head, one epoch that trains only head and proxies, 60 epochs, learning rate
    halved every 10, weight decay 1e-4 of all parameters, gradients clipped to 10 element-wise, resized crops of 224
    from 8 % of the area. Batch norm freezes its statistics only: its scale and shift are trained after the first epoch,
    contrary to the name of the option.
    Here: no gradient clipping.
    """
    return RunConfig(
        method=MethodConfig(name="proxy_anchor", params={"alpha": 32.0, "delta": 0.1}),
        data=DataConfig(name="cub", augment="unbiased_original"),
        model=ModelConfig(
            backbone="bn_inception", weights=BN_INCEPTION, pool="avg_max", init="kaiming", dim=512, freeze_bn=True
        ),
        sampler=SamplerConfig(name="shuffle", batch_size=180),
        optimizer=OptimizerConfig(
            name="adamw",
            lr=1e-4,
            loss_lr=1e-2,
            weight_decay=1e-4,
            loss_weight_decay=1e-4,
            frozen_steps=epoch("cub", 180),
            **dropping(10 * epoch("cub", 180), 0.5),
        ),
        steps=60 * epoch("cub", 180),
        eval_every=epoch("cub", 180),
    )


def dreml_resnet18_cub() -> RunConfig:
    """DREML, 48 ResNet-18 networks on CUB.

    Source: Xuan et al., Deep Randomized Ensembles for Metric Learning, ECCV 2018; littleredxh/DREML.
    Paper: 48 members of 12 meta-classes, 576 dims in all.
    Code: balanced groupings, cross-entropy of 12 logits, 128 images, SGD 0.01, momentum 0.9, no weight decay, 12
    epochs, learning rate divided by 100 after 50 % and again after 80 %; the epoch with the best training accuracy;
    rotations up to 10 degrees, fixed crops of 256 from a short side of 281, pixels normalised by the dataset's mean and
    standard deviation.
    Here: fixed crops of 224 from 256 x 256, no rotations, pixels normalised as for ImageNet; the learning rate is
    reduced once, after 50 %.
    """
    share = 12 * epoch("cub", 128)
    return RunConfig(
        method=MethodConfig(name="dreml", params={"members": 48, "meta_classes": 12, "base": "logits"}),
        data=DataConfig(name="cub", augment="fastap"),
        model=ModelConfig(backbone="timm:resnet18", weights=RESNET18, dim=48 * 12),
        sampler=SamplerConfig(name="shuffle", batch_size=128),
        optimizer=OptimizerConfig(
            name="sgd", lr=0.01, weight_decay=0.0, momentum=0.9, **dropping(48 * share // 2, 0.01)
        ),
        steps=48 * share,
        eval_every=48 * epoch("cub", 128),
    )


def drml_pa_cub() -> RunConfig:
    """DRML with Proxy-Anchor, BN-Inception on CUB: R@1 68.7.

    Source: Zheng et al., Deep Relational Metric Learning, ICCV 2021, supplement; zbr17/DRML.
    Paper: four views of 128 dims, 512 in all.
    Code: weight 10 of the embedding and 1 of the reconstruction, alpha 64 and delta 0.2 (32 and 0.1 for the baseline in
    the paper), 180 images, AdamW 5e-5, 1e-3 for the head and 1e-2 for the proxies, weight decay 1e-4, learning rates
    halved every 10 epochs, one epoch that trains only head and proxies, gradients clipped to a norm of 10 per module,
    mean plus maximum pooling, frozen batch norm, resized crops of 224 from 16 % of the area; until the test score has
    not improved for 15 epochs.
    Here: crops of 227; the gradients of backbone, head and all proxies are clipped to a norm of 10 each, where the code
    clips the proxies of the views and those of the embedding apart; 60 epochs, as for Proxy-Anchor.
    """
    return RunConfig(
        method=MethodConfig(
            name="drml",
            params={
                "base": "proxy_anchor",
                "base_params": {"alpha": 64.0, "delta": 0.2},
                "branches": 4,
                "emb_weight": 10.0,
                "rec_weight": 1.0,
            },
        ),
        data=DataConfig(name="cub", augment="multi_similarity"),
        model=ModelConfig(backbone="bn_inception", weights=BN_INCEPTION, pool="avg_max", dim=512, freeze_bn=True),
        sampler=SamplerConfig(name="shuffle", batch_size=180),
        optimizer=OptimizerConfig(
            name="adamw",
            lr=5e-5,
            head=20.0,
            loss_lr=1e-2,
            weight_decay=1e-4,
            loss_weight_decay=1e-4,
            clip=10.0,
            clip_by="part",
            frozen_steps=epoch("cub", 180),
            **dropping(10 * epoch("cub", 180), 0.5),
        ),
        steps=60 * epoch("cub", 180),
        eval_every=epoch("cub", 180),
    )
