"""Random integers that are the same in every version of NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class RandomIntegers:
    """Small integers from raw PCG64 words, seeded by `key`.

    NumPy guarantees that the raw words of a bit generator never change; it gives no such guarantee for distributions.
    """

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def between(self, low: int, high: int) -> int:
        """An integer in low..high, both included."""
        return low + int(self._bits.random_raw()) % (high - low + 1)

    def noise(self, side: int) -> npt.NDArray[np.int32]:
        """(side, side) centred integers of standard deviation 147.8: sums of four bytes."""
        words = self._bits.random_raw(side * side // 2).astype("<u8")
        sums: npt.NDArray[np.int32] = words.view(np.uint8).reshape(side, side, 4).sum(axis=2, dtype=np.int32)
        return sums - 510

    def order(self, count: int) -> list[int]:
        """The numbers below `count` in a random order."""
        shuffled: list[int] = np.argsort(self._bits.random_raw(count), kind="stable").tolist()
        return shuffled
