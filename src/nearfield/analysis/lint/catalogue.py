"""The known pitfalls ("sins") of a comparison: why each biases it and what to do instead. `lint` finds them.

`SINS` is the whole catalogue; `EQUAL` lists the keys of a run that must be the same for all compared runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearfield.config import RunConfig

HEADING = "Before you trust these numbers"  # above the pitfalls of a report's own bench
ENOUGH_SEEDS = 5
ENOUGH_CLASSES = 10  # held out for validation
ENOUGH_HELD_OUT = 0.1  # share held out, where the data is not available

SINS: dict[str, tuple[str, str]] = {  # code: why it biases, what to do
    "test-choice": (
        "choosing the step on the test classes adds the maximum of its noise to every score, most to unstable methods",
        "report the step chosen by validation; the best test step belongs in the bias ledger",
    ),
    "choice-by-recall": (
        "R@1 looks at one neighbour: it is noisier than MAP@R and saturates first, so it selects worse",
        'set select_by = "map@r"',
    ),
    "tiny-validation": (
        "with few validation classes the choice is mostly chance, and a lucky method wins its tuning",
        "hold out more classes, or use folds so that every training class validates once",
    ),
    "wrong-protocol": (
        "a score that does not follow the test protocol of its data is not comparable with any other",
        "use the protocol of the data",
    ),
    "few-seeds": (
        "seeds differ by more than most methods do; one seed gives no interval, a few give a wide one",
        f"run at least {ENOUGH_SEEDS} seeds",
    ),
    "chosen-seeds": (
        "seeds that do not count up from 0 may be the best of those tried",
        "use seeds 0 to n - 1, and report them all",
    ),
    "repeated-seeds": (
        "counting a run twice narrows the interval without new evidence",
        "use every seed once",
    ),
    "unequal-seeds": (
        "a method run more often has more chances, and unpaired runs cannot be compared pairwise",
        "run every method with the same seeds and folds",
    ),
    "untuned": (
        "published settings were tuned on other data, with more care for the new method than for its baselines",
        "give every method the same number of trials, at least 8",
    ),
    "few-trials": (
        "with fewer trials than parameters a method is hardly tuned, while one with a single parameter is",
        "run more trials than the largest search space has parameters",
    ),
    "uneven-tuning": (
        "a method tried in more settings reports the best of more draws",
        "try every method in the same number of settings",
    ),
    "uneven-settings": (
        "hand-set parameters against defaults compare tuned with untuned methods",
        "remove params and let the same number of trials find them, or set them for every method",
    ),
    "borrowed-setting": (
        "a published setting was chosen on other data or, more often, on the test classes of this data",
        "remove it and let trials find it on validation classes",
    ),
    "several-entries": (
        "a method entered more than once has more trials than the others, and its best entry is what readers see",
        "enter every method once, or read its entries as an ablation",
    ),
    "published-optimizers": (
        "every method has its own paper's optimiser, tuned for other networks, data and lengths, and it may decide",
        "read it as a test of published settings; remove `published` to compare the methods",
    ),
    "unequal-data": ("scores on different data are not comparable", "use one dataset"),
    "unequal-split": (
        "with other classes held out, methods train on other classes and are selected by other ones",
        "use one protocol for all runs",
    ),
    "unequal-choice": ("methods are selected by different scores", "use one select_by"),
    "unequal-looks": ("a method evaluated more often is selected from more steps", "use one eval_every"),
    "unequal-distance": ("a ranking by another distance is another task", "use one distance, or name it in the table"),
    "unequal-dimensions": (
        "scores rise with the size of an embedding, whatever the method",
        "use one size for every method; a float counts as 32 bits where binary codes are compared",
    ),
    "unequal-backbone": (
        "a better network lifts any method by more than methods differ",
        "use one network and one set of pretrained weights",
    ),
    "unequal-pooling": (
        "maximum and average pooling, and the norm after them, differ by points on their own",
        "use one pooling and one norm",
    ),
    "unequal-head": ("the head, its initialisation and its dropout are tricks that any method can use", "use one head"),
    "unequal-batch-norm": ("frozen batch norm improves any method on small data by points", "freeze all or none"),
    "unequal-augmentation": ("random resized crops improve any method", "use one augmentation"),
    "unequal-batches": (
        "larger batches, more images per class or a memory give a loss more pairs",
        "use one batch size, one sampler and one memory; the published sampler of each method is `auto`",
    ),
    "unequal-steps": ("more training steps improve any method", "use one number of steps"),
    "unequal-averaging": ("weight averaging and precision change any method", "use one ema and precision"),
    "unequal-optimizer": (
        "learning rates and decay are hyper-parameters: set by hand per method, they are uncounted tuning",
        "use one optimiser, or let the same number of trials find the rates",
    ),
}

EQUAL: dict[str, tuple[str, ...]] = {  # code: keys of a run, or tables of keys, that must be equal
    "unequal-data": ("data.name", "data.size"),
    "unequal-split": ("data.val_fraction", "data.split_seed", "data.folds"),
    "unequal-augmentation": ("data.augment",),
    "unequal-backbone": ("model.backbone", "model.width", "model.channels", "model.weights", "model.frozen_stages"),
    "unequal-pooling": ("model.pool", "model.norm"),
    "unequal-head": ("model.head", "model.init", "model.dropout"),
    "unequal-dimensions": ("model.dim",),
    "unequal-batch-norm": ("model.freeze_bn", "model.freeze_bn_affine"),
    "unequal-batches": (*(f"sampler.{key}" for key in RunConfig().sampler.model_dump()), "memory", "accumulate"),
    "unequal-optimizer": tuple(f"optimizer.{key}" for key in RunConfig().optimizer.model_dump()),
    "unequal-averaging": ("ema", "precision"),
    "unequal-steps": ("steps",),
    "unequal-looks": ("eval_every",),
    "unequal-choice": ("select_by",),
    "unequal-distance": ("distance",),
}


@dataclass(frozen=True)
class Sin:
    """One pitfall in a comparison: its code, the keys concerned, and what was found there."""

    code: str
    where: str
    found: str

    @property
    def bias(self) -> str:
        """Why it biases the comparison."""
        return SINS[self.code][0]

    @property
    def remedy(self) -> str:
        """What to do instead."""
        return SINS[self.code][1]

    @property
    def text(self) -> str:
        """What was found and what to do instead, in one line."""
        return f"{self.code}: {self.found}; {self.remedy}."
