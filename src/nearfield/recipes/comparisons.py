"""The common settings of comparisons of methods, each with one of their methods."""

from __future__ import annotations

from nearfield.config import DataConfig, MethodConfig, ModelConfig, OptimizerConfig, RunConfig, SamplerConfig
from nearfield.recipes.facts import BN_INCEPTION, CONSTANT, RESNET50, dropping, epoch


def unbiased_bninception_cub() -> RunConfig:
    """The common settings of Unbiased Evaluation, with N-pairs, BN-Inception on CUB: R@1 53.7 (its log: 51.6).

    Source: Fehervari et al., Unbiased Evaluation of Deep Metric Learning Algorithms, 2019; DMLPlayground.
    Paper: 64 dims, batches of 120, fixed crops from 256 x 256.
    Code: 128 images; Adam with learning rate 1e-4, epsilon 1e-7, weight decay 1e-5; 25 epochs of 200 steps, learning
    rate halved after 12, 14, 16 and 18; resized crops from 8 % of the area; a small Xavier head; embeddings without
    normalisation, with a penalty on their norm, ranked by Euclidean distance. With probability 0.1 the two images of a
    pair are one image, cropped twice.
    Here: the Caffe weights instead of MXNet's; pairs are always two images; instead of halving four times, the learning
    rate is divided by 8 after 12 epochs and again after 24.
    """
    return RunConfig(
        method=MethodConfig(name="npairs", params={"l2": 5e-4}),
        data=DataConfig(name="cub", augment="unbiased"),
        model=ModelConfig(backbone="bn_inception", weights=BN_INCEPTION, init="xavier_small", dim=64),
        sampler=SamplerConfig(name="npairs", batch_size=128),
        optimizer=OptimizerConfig(name="adam", lr=1e-4, weight_decay=1e-5, eps=1e-7, **dropping(12 * 200, 0.125)),
        steps=25 * 200,
        eval_every=200,
        distance="euclidean",
    )


def reality_check_bninception_cub() -> RunConfig:
    """The settings of the reality check, with the contrastive loss, BN-Inception on CUB: MAP@R 20.7 of one network.

    Source: Musgrave et al., A Metric Learning Reality Check, ECCV 2020; KevinMusgrave/powerful-benchmarker.
    Paper: 128 dims, 8 classes x 4 (32 x 1 for classifiers), RMSprop 1e-6, frozen batch norm, four folds of the training
    classes, checkpoints chosen by MAP@R of the held-out fold, hyper-parameters by 50 trials; four networks, separate
    and concatenated.
    Code: momentum 0.9, weight decay 1e-4, resized crops of 227 from 16 % of the area; up to 1,000 epochs of 100 steps,
    scored every second epoch, until 9 scores in a row do not improve. Tuned margins -0.2 (0 for a distance) and 0.3841.
    Here: a run is one fold, `--set data.fold=1` the next; the protocol reality-check runs all. There is no early
    stopping: a run trains to the last step, and the best of all steps is chosen.
    """
    return RunConfig(
        method=MethodConfig(name="contrastive", params={"form": "hinge", "pos_margin": 0.0, "neg_margin": 0.3841}),
        data=DataConfig(name="cub", augment="reality_check", folds=4, val_fraction=0.25),
        model=ModelConfig(backbone="bn_inception", weights=BN_INCEPTION, dim=128, freeze_bn=True),
        sampler=SamplerConfig(name="m_per_class", batch_size=32, per_class=4),
        optimizer=OptimizerConfig(name="rmsprop", lr=1e-6, weight_decay=1e-4, momentum=0.9, **CONSTANT),
        steps=1000 * 100,
        eval_every=2 * 100,
    )


def revisiting_resnet50_cub() -> RunConfig:
    """The settings of Revisiting, with the margin loss, ResNet-50 on CUB.

    Source: Roth et al., Revisiting Training Strategies and Generalization Performance in Deep Metric Learning, ICML
    2020; Confusezius/Revisiting_Deep_Metric_Learning_PyTorch.
    Paper: 128 dims, frozen batch norm, 56 classes x 2, Adam 1e-5, weight decay 4e-4, 150 epochs with a constant
    learning rate, resized crops of 224 from 8 % of the area.
    Code: beta starts at 1.2 with learning rate 5e-4, without weight decay; classes and images are drawn with
    replacement; negatives farther than 1.4 are not excluded, contrary to the help text of the option.
    Here: they are excluded; classes and images are drawn without replacement.
    """
    return RunConfig(
        method=MethodConfig(name="margin", params={"alpha": 0.2, "beta": 1.2}),
        data=DataConfig(name="cub", augment="unbiased_original"),
        model=ModelConfig(backbone="timm:resnet50", weights=RESNET50, dim=128, freeze_bn=True),
        sampler=SamplerConfig(name="m_per_class", batch_size=112, per_class=2),
        optimizer=OptimizerConfig(name="adam", lr=1e-5, loss_lr=5e-4, weight_decay=4e-4, **CONSTANT),
        steps=150 * epoch("cub", 112),
        eval_every=epoch("cub", 112),
    )
