"""Protocols: which classes are for validation, which are tested, and how. Frozen, named and hashed.

A protocol is everything that makes two numbers comparable apart from the network and its budget; `docs/protocols.md`
gives the reasons. Each is a value in `PROTOCOLS`; a TOML file with the same keys is a custom protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from nearfield.config import LATER, Config, Count, Fraction, RunConfig, load_config
from nearfield.data.dataset import Dataset
from nearfield.data.splits import held_out
from nearfield.errors import InputError, nearest

Test = Literal["self", "query-gallery", "vehicleid", "closed"]
TESTS: dict[Test, str] = {
    "self": "every test image searches all others, and its classes are new",
    "query-gallery": "test queries search a gallery of their own",
    "vehicleid": "the test part has named lists",
    "closed": "test images are of the classes of training",
}


class Protocol(Config):
    """What is held out for validation, what validation chooses, and how the test part is scored.

    The training part is cut into `folds`, each held out once; with one fold, `val_fraction` of it is held out, drawn by
    `split_seed`. Whole classes are held out, except in a closed set: there, images of every class. The best `select_by`
    on held-out data chooses the step, and its mean over folds the hyper-parameters: over all of them, or over the first
    `search_folds`, which are then all that a trial trains. A run trains all its steps: there is no early stopping. With
    `oracle`, test scores along the way are recorded for the bias ledger; nothing is chosen by them.
    """

    name: str
    folds: Count = 1
    val_fraction: Fraction = 0.2
    split_seed: int = 0
    select_by: Literal["map@r", "recall@1", "r_precision"] = "map@r"
    concatenate: bool = False  # also score the folds' embeddings side by side
    oracle: bool = True
    test: Test = "self"
    search_folds: Annotated[Count | None, LATER] = None  # folds that a trial trains; None: all
    description: Annotated[str, Field(exclude=True)] = ""  # not part of the digest

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Protocol:
        if self.folds > 1 and self.val_fraction != 1 / self.folds:
            raise ValueError(f"{self.folds} folds hold out 1/{self.folds} each: val_fraction must be {1 / self.folds}")
        if self.folds > 1 and self.test == "closed":
            raise ValueError("a closed set has no classes to hold out: folds must be 1, a single fold")
        if self.concatenate and self.folds == 1:
            raise ValueError("concatenate joins the networks of several folds; got folds = 1")
        if self.search_folds is not None and self.search_folds > self.folds:
            raise ValueError(f"search_folds must be at most folds, {self.folds}; got {self.search_folds}")
        return self

    def runs(self, base: RunConfig) -> list[RunConfig]:
        """`base` under this protocol, once for each fold."""
        data = {"folds": self.folds, "val_fraction": self.val_fraction, "split_seed": self.split_seed}
        chosen = {"select_by": self.select_by, "oracle": self.oracle}
        parts = [base.data.model_copy(update={**data, "fold": fold}) for fold in range(self.folds)]
        return [base.model_copy(update={**chosen, "data": part}) for part in parts]

    @property
    def trial_folds(self) -> int:
        """How many folds a trial of the search trains."""
        return self.search_folds or self.folds

    def check(self, dataset: Dataset) -> None:
        """InputError if the dataset's test part is of another kind, or it has too few classes to hold some out."""
        found = kind_of_test(dataset)
        if found != self.test:
            fitting = ", ".join(name for name, known in PROTOCOLS.items() if known.test == found)
            raise InputError(
                f"protocol {self.name} is for data where {TESTS[self.test]}, but in {dataset.name} {TESTS[found]}; "
                f"use one of: {fitting}."
            )
        for run in self.runs(RunConfig()):
            held_out(dataset, run.data)


def kind_of_test(dataset: Dataset) -> Test:
    """The kind of the dataset's test part."""
    if dataset.test_lists:
        return "vehicleid"
    if dataset.is_query is not None:
        return "query-gallery"
    return "self" if dataset.is_test is None else "closed"


def _named(protocols: Iterable[Protocol]) -> dict[str, Protocol]:
    return {each.name: each for each in protocols}


PROTOCOLS = _named(
    [
        Protocol(
            name="classic",
            description="First half of the classes for training, second half for the test; one fifth of the training "
            "classes chooses the step. The best test step, which papers used to report, is written down beside it.",
        ),
        Protocol(
            name="reality-check",
            folds=4,
            val_fraction=0.25,
            concatenate=True,
            description="Four networks, each fitted to three consecutive quarters of the training classes and chosen "
            "by the fourth (Musgrave et al., 2020); scored one by one, and with their embeddings side by side.",
        ),
        Protocol(
            name="reality-check-light",
            folds=4,
            val_fraction=0.25,
            oracle=False,
            search_folds=1,
            description="The reality check at a third of its cost: settings are chosen by the first of the four folds, "
            "and the test is scored only at the start and with the chosen step, so that the price of choosing by the "
            "test cannot be told.",
        ),
        Protocol(
            name="closed-set",
            val_fraction=0.05,
            oracle=False,
            test="closed",
            description="Training and test share their classes, as in ImageNet; one twentieth of the training images "
            "of every class chooses the step.",
        ),
        Protocol(
            name="query-gallery",
            test="query-gallery",
            description="Test queries search a gallery of their own, as in In-Shop; one fifth of the training classes, "
            "searching itself, chooses the step.",
        ),
        Protocol(
            name="vehicleid",
            oracle=False,
            test="vehicleid",
            description="Test lists of several sizes, each scored twice: against one random image of every vehicle, "
            "the mean of ten draws, and leaving one out; one fifth of the training classes chooses the step.",
        ),
    ]
)


def protocol(name: str) -> Protocol:
    """The protocol called `name`, or the one in the TOML file `name`; InputError names the nearest."""
    if not name.endswith(".toml"):
        if name not in PROTOCOLS:
            raise InputError(f"unknown protocol {name!r}; {nearest(name, PROTOCOLS)} A file must end in .toml.")
        return PROTOCOLS[name]
    own = load_config(Protocol, Path(name))
    known = PROTOCOLS.get(own.name)
    if known is not None and known.digest() != own.digest():
        raise InputError(f"{name} is named {own.name!r}, but differs from that protocol; choose another name.")
    return own
