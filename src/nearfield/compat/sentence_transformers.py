"""Losses of this library with the call convention of sentence-transformers: `loss(sentence_features, labels)`.

    model = SentenceTransformer(...)
    loss = SentenceLoss(model, nearfield.losses.create("multi_similarity"))
    args = SentenceTransformerTrainingArguments(..., batch_sampler=m_per_class(4))

sentence-transformers itself is not imported: a model is anything that maps a dict of features to a dict with
"sentence_embedding". Its sampler for labels fills a batch with few classes, often with one, in which no pair is
negative and no loss over pairs has a gradient: `m_per_class` draws batches that always have positives and negatives,
and `SentenceLoss` warns of a batch of one class.
Axes: M rows of a batch, D dims.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearfield.errors import InputError
from nearfield.losses.proxy_loss import within_batch
from nearfield.samplers import MPerClassSampler

Features = Mapping[str, Tensor]


class OneClassWarning(UserWarning):
    """A batch of one class came to a loss that compares the items of a batch."""


class SentenceLoss(nn.Module):
    """Any loss of this library around a model that embeds sentences.

    A dataset of sentences and labels has one column: the loss of its embeddings with these labels. One of (anchor,
    positive) has two, and of (anchor, positive, negative, ...) more: then row i's anchor and positive are a class of
    their own, and so is each negative, whatever the labels.
    """

    def __init__(self, model: Callable[[Any], Mapping[str, Tensor]], loss: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    @property
    def last(self) -> dict[str, int]:
        """What the loss counted in its last call: what the training doctor reads."""
        found: dict[str, int] = getattr(self.loss, "last", {})
        return found

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """The loss of a batch, a 0-dim tensor."""
        columns = [self.model(features)["sentence_embedding"] for features in sentence_features]
        if not columns:
            raise InputError("sentence_features must hold at least one column of sentences; got none.")
        if len(columns) > 1:
            rows, extra = len(columns[0]), len(columns) - 2
            labels = torch.cat([torch.arange(rows).repeat(2), rows + torch.arange(rows * extra)])
        elif labels is None:
            raise InputError("labels must be given with a single column of sentences; got None.")
        elif within_batch(type(self.loss)) and len(labels) > 1 and bool((labels == labels[0]).all()):
            warnings.warn(
                f"all {len(labels)} sentences of a batch have one label: no pair is negative. Set batch_sampler to "
                "nearfield.compat.sentence_transformers.m_per_class(4).",
                OneClassWarning,
                stacklevel=2,
            )
        value: Tensor = self.loss(torch.cat(columns), labels)
        return value

    def get_config_dict(self) -> dict[str, Any]:
        """What sentence-transformers writes into a model card."""
        return {"loss": type(self.loss).__name__}


def m_per_class(per_class: int = 4, rule: str = "distinct") -> Callable[..., LabelBatches]:
    """A batch sampler for `SentenceTransformerTrainingArguments(batch_sampler=...)`: `per_class` sentences a label.

    The rules are those of `nearfield.samplers.MPerClassSampler`. The function that it returns takes what
    sentence-transformers gives: dataset, batch_size, drop_last, valid_label_columns, generator, seed.
    """

    def build(
        dataset: Any,
        batch_size: int,
        drop_last: bool = True,
        valid_label_columns: Sequence[str] | None = None,
        generator: torch.Generator | None = None,
        seed: int = 0,
    ) -> LabelBatches:
        columns = [name for name in valid_label_columns or ("label", "labels") if name in dataset.column_names]
        if not columns:
            raise InputError(
                f"dataset must have a column of labels, such as 'label'; got {', '.join(dataset.column_names)}."
            )
        start = seed if generator is None else generator.initial_seed() % 2**31
        labels = np.unique(np.asarray(dataset[columns[0]]), return_inverse=True)[1]
        return LabelBatches(MPerClassSampler(labels, batch_size, per_class, start, rule=rule))

    return build


class LabelBatches:
    """Batches of one epoch after the other, in the form that a DataLoader takes; `set_epoch` repeats one."""

    def __init__(self, batches: MPerClassSampler) -> None:
        self.batches, self.batch_size, self.drop_last = batches, batches.batch_size, True

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)
