"""The classical sins of a comparison: why each biases it and what to do instead. `lint` finds them.

`SINS` is the whole catalogue; `EQUAL` says which keys of a run must be the same for all that is compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearfield.config import RunConfig

HEADING = "Before you trust these numbers"  # above the sins of a report's own bench
ENOUGH_SEEDS = 5
ENOUGH_CLASSES = 10  # held out to choose by
ENOUGH_HELD_OUT = 0.1  # the same where the data is not at hand

SINS: dict[str, tuple[str, str]] = {  # code: why it biases, what to do
    "test-choice": (
        "a step chosen on the test classes adds the best of its noise to every score, most to methods that waver",
        "report the step that validation chose; the best test step belongs into the ledger",
    ),
    "choice-by-recall": (
        "R@1 looks at one neighbour: it is noisier than MAP@R and saturates first, so it chooses worse",
        'choose with select_by = "map@r"',
    ),
    "tiny-validation": (
        "few classes choose by chance, and a method that fits them by luck wins its tuning",
        "hold out more classes, or use folds so that every training class chooses once",
    ),
    "wrong-protocol": (
        "scored another way than its test part is meant to be, a number is not comparable with any other",
        "use the protocol that the data is made for",
    ),
    "few-seeds": (
        "seeds differ by more than most methods do; one seed has no interval, and that of a few is wide",
        f"run at least {ENOUGH_SEEDS} seeds",
    ),
    "chosen-seeds": (
        "seeds that do not count from 0 may be the best of those that were tried",
        "use seeds 0 to n - 1, and report them all",
    ),
    "repeated-seeds": (
        "the same run counted twice makes an interval narrow without new evidence",
        "use every seed once",
    ),
    "unequal-seeds": (
        "who is run more often has more chances, and runs without a partner cannot be compared pairwise",
        "run every method with the same seeds and folds",
    ),
    "untuned": (
        "published settings were tuned for other data, with more care for the new method than for its rivals",
        "give every method the same number of trials, at least 8",
    ),
    "few-trials": (
        "fewer trials than a method has parameters leave it nearly untuned, while one with a single parameter is done",
        "give more trials than the largest search space has parameters",
    ),
    "uneven-tuning": (
        "a method that was tried in more settings shows the best of more draws",
        "try every method in the same number of settings",
    ),
    "uneven-settings": (
        "methods with settings by hand meet methods with their defaults: tuned against untuned",
        "leave params out and let equal trials find them, or set them for every method",
    ),
    "borrowed-setting": (
        "a published setting was chosen on other data or, mostly, on the test classes of this one",
        "leave it out and let trials find it on validation classes",
    ),
    "several-entries": (
        "a method that enters more than once has more trials than the others, and its best entry is looked at",
        "enter every method once, or read its entries as an ablation",
    ),
    "unequal-data": ("scores on different data do not compare", "use one dataset"),
    "unequal-split": (
        "with other classes held out, methods learn from other classes, and are chosen by other ones",
        "use one protocol for all runs",
    ),
    "unequal-choice": ("methods are chosen by different scores", "use one select_by"),
    "unequal-looks": ("who is looked at more often is chosen from more steps", "use one eval_every"),
    "unequal-distance": ("a ranking by another distance is another task", "use one distance, or name it in the table"),
    "unequal-dimensions": (
        "scores rise with the size of an embedding, whatever the method",
        "give every method the same size; a float is 32 bits where signs are compared",
    ),
    "unequal-backbone": (
        "a better network lifts any method by more than methods differ",
        "use one network and one set of pretrained weights",
    ),
    "unequal-pooling": (
        "maximum and average pooling, and a norm behind them, differ by points on their own",
        "use one pooling and one norm",
    ),
    "unequal-head": ("the head, its start and its dropout are tricks that any method can use", "use one head"),
    "unequal-batch-norm": ("frozen batch norm lifts any method on small data by points", "freeze all or none"),
    "unequal-augmentation": ("random resized crops lift any method", "use one recipe of augmentation"),
    "unequal-batches": (
        "larger batches, other images per class or a memory show a loss more pairs",
        "use one batch size, one sampler and one memory; the published sampler of each method is `auto`",
    ),
    "unequal-steps": ("who trains longer learns more", "use one number of steps"),
    "unequal-averaging": ("averaged weights and another precision change any method", "use one ema and precision"),
    "unequal-optimizer": (
        "rates and decay are hyper-parameters: set by hand for each method they are tuning that nobody counted",
        "use one optimiser, or let equal trials find the rates",
    ),
}

EQUAL: dict[str, tuple[str, ...]] = {  # sin: keys of a run, or tables of keys, that must be the same for all
    "unequal-data": ("data.name",),
    "unequal-split": ("data.val_fraction", "data.split_seed", "data.folds"),
    "unequal-augmentation": ("data.augment",),
    "unequal-backbone": ("model.backbone", "model.width", "model.channels", "model.weights"),
    "unequal-pooling": ("model.pool", "model.norm"),
    "unequal-head": ("model.head", "model.init", "model.dropout"),
    "unequal-dimensions": ("model.dim",),
    "unequal-batch-norm": ("model.freeze_bn", "model.freeze_bn_affine"),
    "unequal-batches": ("sampler.name", "sampler.batch_size", "sampler.per_class", "memory"),
    "unequal-optimizer": tuple(f"optimizer.{key}" for key in RunConfig().optimizer.model_dump()),
    "unequal-averaging": ("ema", "precision"),
    "unequal-steps": ("steps",),
    "unequal-looks": ("eval_every",),
    "unequal-choice": ("select_by",),
    "unequal-distance": ("distance",),
}


@dataclass(frozen=True)
class Sin:
    """One classical sin: its code, the keys where it is, and what is there."""

    code: str
    where: str
    found: str

    @property
    def bias(self) -> str:
        """Why it makes the comparison unfair."""
        return SINS[self.code][0]

    @property
    def remedy(self) -> str:
        """What to do instead."""
        return SINS[self.code][1]

    @property
    def text(self) -> str:
        """What is there and what to do instead, in one line."""
        return f"{self.code} ({self.where}): {self.found}; {self.remedy}."
