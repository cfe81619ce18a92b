"""Numbers and text for embedding in a page: compact, and escaped."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def pack(array: NDArray[Any]) -> dict[str, str]:
    """An array as base64 of its little-endian bytes, with its dtype; the page turns it into a typed array."""
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return {"type": array.dtype.name, "bytes": base64.b64encode(little.tobytes()).decode()}


def unpack(packed: dict[str, str]) -> NDArray[Any]:
    """The array that `pack` was given, flat."""
    return np.frombuffer(base64.b64decode(packed["bytes"]), dtype=np.dtype(packed["type"]).newbyteorder("<"))


def shares(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Values in [0, 1] in steps of 1/60,000; NaN becomes 65,535."""
    scaled = np.where(np.isnan(values), 65_535, np.round(np.clip(values, 0, 1) * 60_000))
    return np.asarray(scaled, dtype=np.uint16)


def script_json(value: Any) -> str:
    """`value` as JSON that is safe in a script element whatever its strings are; NaN and infinity become null."""
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
