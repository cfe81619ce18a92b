"""What the papers' recipes have in common: counts of images, files of weights, schedules.

- Papers count epochs, a run counts steps: an epoch is floor(images / batch) steps, with the images of the whole
  official training part. Epochs in which only head and proxies train become `frozen_steps`; the optimiser is not made
  anew after them.
- Papers train on the whole training part and report the best test epoch. Here one fifth of its classes is held out and
  chooses the step; `--set oracle=true` writes the test scores of all steps down beside it.
- Pretrained weights are read from a local file, `model.weights`, named as its publisher does; without it a run stops.
- Crops go to the network as pixels, and each network scales them as its weights want it.
- Batches of K images a class are drawn without repeating an image, where released samplers may repeat or drop some.
"""

from __future__ import annotations

from typing import Any

TRAIN_IMAGES = {"cub": 5_864, "sop": 59_551}  # of the official training parts

BN_INCEPTION = "bn_inception-52deb4733.pth"
GOOGLENET = "bvlc_googlenet-1f25f8c8778a8802.pth"
RESNET18 = "resnet18-f37072fd.pth"  # of torchvision
RESNET50 = "resnet50-0676ba61.pth"

CONSTANT: dict[str, Any] = {"schedule": "constant", "warmup_steps": 0}


def epoch(data: str, batch: int) -> int:
    """The steps of one epoch: whole batches of the training part."""
    return TRAIN_IMAGES[data] // batch


def dropping(every: int, by: float) -> dict[str, Any]:
    """Rates that are multiplied by `by` after every so many steps."""
    return {"schedule": "step", "decay_every": every, "decay": by, "warmup_steps": 0}
