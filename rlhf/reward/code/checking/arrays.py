"""Numbers and arrays of numpy as they cross, by value. numpy itself is never loaded for them."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

PLAIN_TYPE = re.compile(r"[<>|=][biufc]\d{1,2}")
"""The types of numbers that cross, as numpy writes them."""
MOST_DIMENSIONS = 32


def is_of_numpy(value: Any) -> bool:
    """Whether it is a number or an array of numpy's own types."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value).__module__ != "numpy":
        return False
    return type(value) is numpy.ndarray or isinstance(value, numpy.generic)


def parts_of_array(value: Any) -> list[Any] | None:
    """Type, shape (None for a number) and bytes; None if its items are no plain numbers."""
    if not PLAIN_TYPE.fullmatch(value.dtype.str):
        return None
    is_array = type(value) is sys.modules["numpy"].ndarray
    return [value.dtype.str, list(value.shape) if is_array else None, value.tobytes().decode("latin-1")]


def array_of(parts: Any) -> Any:
    """The array, or the number, of these parts. Raises `ValueError` and its like, also where numpy is not loaded."""
    kind, shape, text = parts
    if not PLAIN_TYPE.fullmatch(kind):
        raise ValueError(kind)
    dtype, content = sys.modules["numpy"].dtype(kind), text.encode("latin-1")
    sides = [] if shape is None else shape
    fits = len(sides) <= MOST_DIMENSIONS and all(type(side) is int and 0 <= side <= len(content) for side in sides)
    if not fits or math.prod(sides) * dtype.itemsize != len(content):
        raise ValueError(shape)
    array = sys.modules["numpy"].frombuffer(content, dtype).reshape(sides).copy()
    return array[()] if shape is None else array
