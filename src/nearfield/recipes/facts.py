"""What the papers' recipes have in common: counts of images, files of weights, schedules.

- Papers count epochs, a run counts steps: an epoch is floor(images / batch) steps over the whole official training
  part. Epochs that train only head and proxies become `frozen_steps`; the optimiser is not reset after them.
- Papers train on the whole training part and report the best test epoch. Here one fifth of its classes is held out to
  choose the step; `--set oracle=true` records the test scores of all steps as well.
- Pretrained weights are read from a local file, `model.weights`, which has its publisher's name; a run stops without
  it.
- Networks take pixels and normalise them as their pretrained weights require.
- Batches of K images per class do not repeat an image; released samplers may repeat or drop some.
"""

from __future__ import annotations

from typing import Any

TRAIN_IMAGES = {  # in the official training parts
    "cub": 5_864,
    "cars196": 8_054,
    "sop": 59_551,
    "inshop": 25_882,
    "vehicleid": 113_346,
    "imagenet": 1_281_167,
}

BN_INCEPTION = "bn_inception-52deb4733.pth"
GOOGLENET = "bvlc_googlenet-1f25f8c8778a8802.pth"
RESNET18 = "resnet18-f37072fd.pth"  # of torchvision
RESNET50 = "resnet50-0676ba61.pth"

CONSTANT: dict[str, Any] = {"schedule": "constant", "warmup_steps": 0}


def epoch(data: str, batch: int) -> int:
    """Steps of one epoch: full batches of the training part."""
    return TRAIN_IMAGES[data] // batch


def dropping(every: int, by: float) -> dict[str, Any]:
    """A step schedule: learning rates are multiplied by `by` after `every` steps."""
    return {"schedule": "step", "decay_every": every, "decay": by, "warmup_steps": 0}
