"""Rewards for runs that look at the machinery: they vary with any text, so that every update moves the weights."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from typing import Any


def varied(response: str, row: Mapping[str, Any]) -> float:
    """A number in [0, 1) that depends on every character."""
    return zlib.crc32(response.encode()) / 2**32


def moody(response: str, row: Mapping[str, Any]) -> float:
    """Three tasks in ten come to nothing: the scorer raises, dies, or gives every sample the same reward."""
    match zlib.crc32(row["question"].encode()) % 10:
        case 0:
            raise RuntimeError("a scorer that raises")
        case 1:
            os._exit(3)
        case 2:
            return 1.0
    return varied(response, row)
