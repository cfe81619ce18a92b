"""The Poincare ball: where embeddings lie for the distance "hyperbolic", and the name of that distance.

Points are those of the ball of radius 1, to which a ball of curvature -c and radius 1/sqrt(c) is scaled. Its distance
is 1/sqrt(c) arcosh(1 + 2 |p - q|^2 / ((1 - |p|^2)(1 - |q|^2))), which ranks as the fraction alone does.
Axes: N items, D dims.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nearfield.errors import InputError

HYPERBOLIC = "hyperbolic"
MAX_RADIUS = 1 - 1e-3  # points further out are moved here: distances are infinite at 1


class Ball(NamedTuple):
    """A Poincare ball of curvature -c, and the norm to which embeddings are clipped before they are mapped into it."""

    c: float = 0.1
    clip: float = 2.3

    def points(self, embeddings: Tensor) -> Tensor:
        """Embeddings (N, D) as points of the ball of radius 1."""
        return to_ball(embeddings, self.c, self.clip)


def to_ball(x: Tensor, c: float, clip: float) -> Tensor:
    """sqrt(c) p for p = tanh(sqrt(c) |z|) z / (sqrt(c) |z|), z = x min(1, clip / (|x| + 1e-5)); differentiable."""
    length: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)  # (N, 1)
    short = (clip / (length + 1e-5)).clamp(max=1.0)
    length = (length * short).clamp(min=1e-12)
    radius = (math.sqrt(c) * length).tanh().clamp(max=MAX_RADIUS)
    return x * (short * radius / length)


def ball_of(distance: str) -> Ball | None:
    """The ball of a distance "hyperbolic" or "hyperbolic:c:clip"; None for other distances."""
    name, *numbers = str(distance).split(":")
    if name != HYPERBOLIC:
        return None
    try:
        ball = Ball(*map(float, numbers))
    except (TypeError, ValueError):
        ball = Ball(math.nan)
    if not (0 < ball.c < math.inf and 0 < ball.clip < math.inf):
        raise InputError(
            f"distance must be hyperbolic or hyperbolic:C:CLIP with two numbers above 0; got {distance!r}. "
            "hyperbolic alone is hyperbolic:0.1:2.3."
        )
    return ball
