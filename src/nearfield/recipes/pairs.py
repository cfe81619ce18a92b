"""The papers' recipes for losses over pairs: FastAP, Multi-Similarity, contrastive, margin, ranked list, lifted."""

from __future__ import annotations

from typing import Any

from nearfield.config import DataConfig, MethodConfig, ModelConfig, OptimizerConfig, RunConfig, SamplerConfig
from nearfield.recipes.facts import (
    BN_INCEPTION,
    CONSTANT,
    GOOGLENET,
    RESNET18,
    RESNET50,
    TRAIN_IMAGES,
    dropping,
    epoch,
)

FASTAP_BATCHES: dict[str, dict[str, Any]] = {  # of pairs of categories, for each dataset
    "sop": {"repeats": 5},
    "inshop": {"repeats": 2},
    "vehicleid": {"unlabelled": "unlabelled"},
}


def fastap_resnet18_sop() -> RunConfig:
    """FastAP, ResNet-18 on SOP: R@1 73.2.

    Source: Cakir et al., Deep Metric Learning to Rank, CVPR 2019; kunhe/FastAP-metric-learning.
    Paper: 512 dims, 10 bins, batches of 256 from pairs of categories, Adam 1e-5 with ten times that for the head, no
    weight decay, at most 50 epochs; images resized to 256 x 256, fixed crops of 224, flips.
    Code: batch norm is trained in MATLAB, which produced the numbers, and frozen in the PyTorch port. The port's
    gradient is M / 2 times the true one, which does not affect Adam.
    Here: batch norm is trained. An epoch is the 330 batches of the paper, although there are fewer training classes.
    """
    return fastap_run("sop", 256, backbone="timm:resnet18", weights=RESNET18)


def fastap_resnet50_sop() -> RunConfig:
    """FastAP, ResNet-50 on SOP with batches of 96: R@1 75.8.

    Source: as `fastap_resnet18_sop`.
    Paper: as there, with 96 images, the most that fit.
    Code: MATLAB processes 90 at a time, so 96 are chunks of 90 and 6, with an Adam step after each.
    Here: one step per batch.
    """
    return fastap_run("sop", 96, backbone="timm:resnet50", weights=RESNET50)


def fastap_resnet50_sop_256() -> RunConfig:
    """FastAP, ResNet-50 on SOP with batches of 256 in chunks: R@1 76.4.

    Source: as `fastap_resnet18_sop`, section 4.1.
    Paper: the gradient of the whole batch, from chunks that fit.
    Code: first pass with batch norm in test mode, second in training mode, and an Adam step after every chunk.
    Here: one step per batch, exact: batch norm is frozen, so both passes are the same function.
    """
    return fastap_run("sop", 256, 64, backbone="timm:resnet50", weights=RESNET50, freeze_bn=True)


def fastap_googlenet_sop() -> RunConfig:
    """FastAP, GoogLeNet on SOP: R@1 72.7.

    Source: as `fastap_resnet18_sop`, supplement B.3.
    Paper: GoogLeNet without batch norm, batches of 320.
    Code: the Caffe weights, in MATLAB.
    Here: no differences.
    """
    return fastap_run("sop", 320, backbone="googlenet", weights=GOOGLENET)


def fastap_resnet18_inshop() -> RunConfig:
    """FastAP, ResNet-18 on In-Shop: R@1 89.0.

    Source: as `fastap_resnet18_sop`.
    Paper: as there; an epoch is two batches for each pair of the 23 categories.
    Code: as there.
    Here: as there; an epoch is the 506 batches of the paper. A bench needs the protocol query-gallery.
    """
    return fastap_run("inshop", 256, backbone="timm:resnet18", weights=RESNET18)


def fastap_resnet18_vehicleid() -> RunConfig:
    """FastAP, ResNet-18 on VehicleID: R@1 85.3 of the large list, leaving one out.

    Source: as `fastap_resnet18_sop`.
    Paper: half of a batch from one of the 250 labelled models, half from vehicles without a label; in an epoch every
    labelled image appears once.
    Code: the colour of a vehicle overwrites its model by mistake.
    Here: models. About half of the images are labelled: 443 batches between two evaluations. A bench needs the protocol
    vehicleid.
    """
    return fastap_run("vehicleid", 256, backbone="timm:resnet18", weights=RESNET18)


def ms_bninception_cub() -> RunConfig:
    """Multi-Similarity, BN-Inception on CUB, as in its code: R@1 65.7.

    Source: Wang et al., Multi-Similarity Loss with General Pair Weighting, CVPR 2019; MalongTech/research-ms-loss.
    Paper: see `ms_bninception_cub_paper`.
    Code: beta 40 and lambda 0.5; 16 classes x 5; Adam 3e-5, weight decay 5e-4, 3,000 steps, learning rate divided by 10
    after 1,200 and again after 2,400; maximum pooling, frozen batch norm ("2 % on CUB"), resized crops of 227 from 16 %
    of the area; best test step of every 200. A factor of 0.1 for the backbone's learning rate is set but never used.
    Here: classes are drawn freely, not in chunks fixed beforehand; positives with similarity 1 are kept, which the code
    drops.
    """
    return RunConfig(
        method=MethodConfig(name="multi_similarity", params={"alpha": 2.0, "beta": 40.0, "lam": 0.5, "eps": 0.1}),
        data=DataConfig(name="cub", augment="multi_similarity"),
        model=ModelConfig(
            backbone="bn_inception", weights=BN_INCEPTION, pool="max", init="kaiming", dim=512, freeze_bn=True
        ),
        sampler=SamplerConfig(name="m_per_class", batch_size=80, per_class=5),
        optimizer=OptimizerConfig(name="adam", lr=3e-5, weight_decay=5e-4, **dropping(1200, 0.1)),
        steps=3000,
        eval_every=200,
    )


def ms_bninception_cub_paper() -> RunConfig:
    """Multi-Similarity, BN-Inception on CUB, as in the paper.

    Source: Wang et al., Multi-Similarity Loss with General Pair Weighting, CVPR 2019, and its supplement.
    Paper: beta 50 and lambda 1, with which only nearly identical negatives have any weight; 80 images, 5 per class;
    Adam 1e-5; crops of 224.
    Code: see `ms_bninception_cub`; the paper does not mention its maximum pooling, frozen batch norm and larger crops.
    Here: length, schedule and weight decay are not published: 3,000 steps, constant learning rate, no weight decay.
    """
    return RunConfig(
        method=MethodConfig(name="multi_similarity", params={"alpha": 2.0, "beta": 50.0, "lam": 1.0, "eps": 0.1}),
        data=DataConfig(name="cub", augment="fastap"),
        model=ModelConfig(backbone="bn_inception", weights=BN_INCEPTION, init="kaiming", dim=512),
        sampler=SamplerConfig(name="m_per_class", batch_size=80, per_class=5),
        optimizer=OptimizerConfig(name="adam", lr=1e-5, weight_decay=0.0, **CONSTANT),
        steps=3000,
        eval_every=200,
    )


def ms_bninception_sop() -> RunConfig:
    """Multi-Similarity, BN-Inception on SOP with batches of 1,000: R@1 78.4.

    Source: as `ms_bninception_cub`; the supplement's ablation of batch sizes.
    Paper: Adam 1e-5, 5 images per class, 1,000 images: the best of 20 to 1,000.
    Code: for CUB only; its authors wrote in an issue that SOP needs more than 200 images.
    Here: the length is not published: 41 epochs, as in the code for CUB. Chunks of 100 give the same gradient. Batch
    norm is frozen, which chunks require; the authors saw no effect of that on SOP. Classes with fewer than 5 images
    repeat some.
    """
    base = ms_bninception_cub()
    return base.model_copy(
        update={
            "data": DataConfig(name="sop", augment="multi_similarity"),
            "sampler": SamplerConfig(name="m_per_class", batch_size=1000, per_class=5),
            "optimizer": OptimizerConfig(name="adam", lr=1e-5, weight_decay=5e-4, **CONSTANT),
            "chunk": 100,
            "steps": 41 * epoch("sop", 1000),
            "eval_every": epoch("sop", 1000),
        }
    )


def contrastive_bninception_cub() -> RunConfig:
    """Contrastive over all pairs of a batch, BN-Inception on CUB: R@1 68 as reported by its users.

    Source: bnu-wangxun/Deep_Metric, the ablation code of the first author of Multi-Similarity; issue 29.
    Paper: none.
    Code: 16 classes x 5, 512 dims, maximum pooling, Adam 1e-5, weight decay 5e-4, 600 epochs with a constant learning
    rate, resized crops of 227 from 16 % of the area. Batch norm is frozen once, which the first call of train() undoes.
    Here: batch norm stays frozen.
    """
    base = ms_bninception_cub()
    return base.model_copy(
        update={
            "method": MethodConfig(name="contrastive", params={"lam": 0.5}),
            "optimizer": OptimizerConfig(name="adam", lr=1e-5, weight_decay=5e-4, **CONSTANT),
            "steps": 600 * epoch("cub", 80),
            "eval_every": 10 * epoch("cub", 80),
        }
    )


def margin_resnet50_cub() -> RunConfig:
    """Margin loss with distance-weighted sampling, ResNet-50 on CUB.

    Source: Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017; the example embedding_learning of MXNet.
    Paper: 128 dims, learned boundaries per class, alpha 0.2, beta 1.2.
    Code: a pre-activation ResNet-50, 70 images per device, 5 per class, Adam 1e-4 with a hundredth of that for
    convolutions, weight decay 1e-4, 20 epochs of 200 steps, learning rate halved after 12, 14, 16 and 18; beta by SGD
    with learning rate 0.1 and momentum 0.9. Images are cropped to the bounding box first, then as FastAP's.
    Here: the whole image. Beta is trained by Adam with learning rate 1 and epsilon 1, whose steps equal those of SGD
    for small gradients. Instead of halving four times, the learning rate is divided by 4 after 12 epochs. An anchor
    without a negative nearer than 1.4 is not used, where the code draws from the whole batch.
    """
    return RunConfig(
        method=MethodConfig(name="margin", params={"alpha": 0.2, "beta": 1.2}),
        data=DataConfig(name="cub", augment="fastap"),
        model=ModelConfig(backbone="timm:resnetv2_50", weights="resnetv2_50.safetensors", dim=128),
        sampler=SamplerConfig(name="m_per_class", batch_size=70, per_class=5),
        optimizer=OptimizerConfig(
            name="adam", lr=1e-6, head=100.0, loss_lr=1.0, loss_eps=1.0, weight_decay=1e-4, **dropping(12 * 200, 0.25)
        ),
        steps=20 * 200,
        eval_every=200,
    )


def ranked_list_googlenet_sop() -> RunConfig:
    """Ranked list, GoogLeNet-v2 (BN-Inception) on SOP: R@1 74.8.

    Source: Wang et al., Ranked List Loss for Deep Metric Learning, CVPR 2019, and the settings its authors list for
    their later, simplified form; their code is withdrawn.
    Paper: boundaries 0.8 and 1.2, temperature 10, negatives weighted by a factor that is not differentiated.
    Code: 150 images, SGD 0.01, momentum 0.9, weight decay 2e-5, 30,000 steps, learning rate divided by 5 after 12,000
    and again after 24,000. Queries are weighted by the sum of their weights.
    Here: queries have equal weight. Images per class (3), dims (512) and crops (fixed, 224) are not published with it.
    """
    return RunConfig(
        method=MethodConfig(name="ranked_list", params={"alpha": 1.2, "margin": 0.4, "temperature": 10.0}),
        data=DataConfig(name="sop", augment="fastap"),
        model=ModelConfig(backbone="bn_inception", weights=BN_INCEPTION, dim=512),
        sampler=SamplerConfig(name="m_per_class", batch_size=150, per_class=3),
        optimizer=OptimizerConfig(name="sgd", lr=0.01, weight_decay=2e-5, momentum=0.9, **dropping(12_000, 0.2)),
        steps=30_000,
        eval_every=1000,
    )


def lifted_googlenet_cub() -> RunConfig:
    """Lifted structure, GoogLeNet on CUB.

    Source: Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016;
    rksltnl/Deep-Metric-Learning-CVPR16.
    Paper: 64 to 512 dims, margin 1, embeddings that are not normalised, 128 images in pairs.
    Code: SGD 1e-4, ten times that for the head and twenty times for its bias, weight decay 2e-4, 20,000 steps, dropout
    0.4 on the features. Positive pairs include self pairs; about as many negatives are drawn.
    Here: all negatives, no self pairs, no dropout (the model has it only after the head), the same learning rate for
    the head's bias, a constant learning rate, fixed crops of 224 instead of 227.
    """
    return RunConfig(
        method=MethodConfig(name="lifted", params={"margin": 1.0}),
        data=DataConfig(name="cub", augment="fastap"),
        model=ModelConfig(backbone="googlenet", weights=GOOGLENET, dim=64),
        sampler=SamplerConfig(name="npairs", batch_size=128),
        optimizer=OptimizerConfig(name="sgd", lr=1e-4, head=10.0, weight_decay=2e-4, momentum=0.9, **CONSTANT),
        steps=20_000,
        eval_every=500,
        distance="euclidean",
    )


def fastap_run(data: str, batch: int, chunk: int | None = None, **network: Any) -> RunConfig:
    """FastAP on one of its datasets: batches of pairs of categories, 50 epochs."""
    steps = fastap_epoch(data, batch)
    return RunConfig(
        method=MethodConfig(name="fastap", params={"bins": 10}),
        data=DataConfig(name=data, augment="fastap"),
        model=ModelConfig(**{"dim": 512, **network}),
        sampler=SamplerConfig(name="fastap_hard", batch_size=batch, **FASTAP_BATCHES[data]),
        optimizer=OptimizerConfig(name="adam", lr=1e-5, head=10.0, weight_decay=0.0, **CONSTANT),
        chunk=chunk,
        steps=50 * steps,
        eval_every=steps,
    )


def fastap_epoch(data: str, batch: int) -> int:
    """Batches of an epoch: 5 and 2 for each pair of the 12 and 23 categories; on VehicleID half the images twice."""
    pairs = {"sop": 5 * 12 * 11 // 2, "inshop": 2 * 23 * 22 // 2}
    return pairs[data] if data in pairs else -(-TRAIN_IMAGES[data] // batch)
