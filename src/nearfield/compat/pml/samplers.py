"""`MPerClassSampler` under the conventions of pytorch-metric-learning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from nearfield.compat.pml.errors import Version, check_version, refuse
from nearfield.errors import InputError
from nearfield.samplers import MPerClassSampler as Batches


class _Passes(Batches):
    """M-per-class batches, as many as asked for."""

    batches: int

    def __len__(self) -> int:
        return self.batches


class MPerClassSampler(Sampler[Any]):
    """`m` items of each class, class by class; draws follow torch's global random state.

    Version 2: one index after the other, for `DataLoader(sampler=..., batch_size=...)`; `length_before_new_iter` of
    them, less what does not fill a batch. Without `batch_size` every class comes once in a pass. Version 3: whole
    batches, for `DataLoader(batch_sampler=...)`; `num_batches` of them, by default as many as show every item.
    """

    def __init__(
        self,
        labels: Sequence[int] | Tensor,
        m: int,
        batch_size: int | None = None,
        length_before_new_iter: int = 100000,
        *,
        num_batches: int | None = None,
        version: Version = 2,
    ) -> None:
        check_version(version)
        known = np.asarray(labels)
        passes = int(m) * len(np.unique(known))
        if version == 3 and batch_size is None:
            raise InputError("batch_size must be given in version 3, which yields whole batches; got None.")
        size = passes if batch_size is None else int(batch_size)
        if batch_size is not None and (size > passes or (length_before_new_iter < size and version == 2)):
            raise InputError(
                f"batch_size must be at most m x classes = {passes} and length_before_new_iter = "
                f"{length_before_new_iter}; got {size}."
            )
        self.version, self.list_size = version, size
        rule = "cover" if version == 3 and num_batches is None else "distinct"
        self.drawn = (_Passes if rule == "distinct" else Batches)(known, size, int(m), 0, rule=rule)
        if isinstance(self.drawn, _Passes):
            self.drawn.batches = max(1, length_before_new_iter // size) if version == 2 else int(num_batches or 1)
        self.list_size = len(self.drawn) * size
        if version == 2 and batch_size is None and length_before_new_iter <= passes:
            self.list_size = length_before_new_iter  # a part of one pass

    def __len__(self) -> int:
        return self.list_size if self.version == 2 else len(self.drawn)

    def __iter__(self) -> Iterator[Any]:
        self.drawn.seed = int(torch.randint(2**31, ()))
        self.drawn.set_epoch(0)
        if self.version == 3:
            return iter(list(self.drawn))
        return iter([index for batch in self.drawn for index in batch][: self.list_size])


def __getattr__(name: str) -> Any:
    why = "its batches are those of `FastAPHardSampler` or of your own list of indices."
    return refuse(
        name, __name__, dict.fromkeys(("FixedSetOfTriplets", "HierarchicalSampler", "TuplesToWeightsSampler"), why)
    )
