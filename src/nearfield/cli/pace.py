"""How fast something long goes, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

MEMORY = 15.0  # seconds over which speed is averaged
RATE = "images_per_second"
Clock = Callable[[], float]  # seconds


class Pace:
    """Steps per second and images per second, averaged over the last moments, and so the time left.

    What was done before the first call, by an interrupted attempt, does not count as speed.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._at: tuple[float, int] | None = None  # time and step of the last call
        self._steps = _Average()
        self._images = _Average()

    def update(self, step: int, latest: Mapping[str, float] | None = None) -> None:
        """Count a finished step; `latest` may hold the images per second. A lower step begins something new."""
        now = self._clock()
        if self._at is not None and now > self._at[0] and step >= self._at[1]:
            elapsed = now - self._at[0]
            self._steps.add((step - self._at[1]) / elapsed, elapsed)
            if latest and RATE in latest:
                self._images.add(latest[RATE], elapsed)
        self._at = (now, step)

    @property
    def images_per_second(self) -> float | None:
        """None until it was reported."""
        return self._images.value

    def seconds_left(self, steps: int) -> float | None:
        """Until step `steps`; None before there is a speed."""
        speed = self._steps.value
        if self._at is None or not speed:
            return None
        return (steps - self._at[1]) / speed


class _Average:
    """The average of a speed over time, in which the past fades."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, speed: float, elapsed: float) -> None:
        fade = 2.0 ** (-elapsed / MEMORY)
        self._sum = fade * self._sum + (1 - fade) * speed
        self._weight = fade * self._weight + (1 - fade)

    @property
    def value(self) -> float | None:
        return self._sum / self._weight if self._weight else None


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def time_text(seconds: float | None) -> str:
    """The time left, as far as it is known."""
    return f"{'-:--:--' if seconds is None else duration(seconds)} left"
