"""Numbers and arrays of numpy as they cross, by value. numpy is never loaded for them: where it is not, a number
becomes one of Python's."""

from __future__ import annotations

import math
import re
import struct
import sys
from typing import Any

PLAIN_TYPE = re.compile(r"[<>|=][biufc]\d{1,2}")
"""The types of numbers that cross, as numpy writes them."""
FORMATS = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
FORMATS |= {"f2": "e", "f4": "f", "f8": "d"}
MOST_DIMENSIONS, LONGEST_SIDE = 32, 1 << 40


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
    """The array, or the number, of these parts. Raises what Python raises over parts that do not fit, and `ValueError`
    for an array where numpy is not loaded."""
    kind, shape, text = parts
    content, numpy = text.encode("latin-1"), sys.modules.get("numpy")
    if not PLAIN_TYPE.fullmatch(kind):
        raise ValueError(kind)
    if numpy is None and shape is None:
        layout = f"{kind[0].replace('|', '=')}{FORMATS[kind[1:]]}"
        if len(content) != struct.calcsize(layout):
            raise ValueError(kind)
        (number,) = struct.unpack(layout, content)
        return number
    if numpy is None:
        raise ValueError("the tests do not import numpy")
    dtype, sides = numpy.dtype(kind), [] if shape is None else shape
    fits = len(sides) <= MOST_DIMENSIONS and all(type(side) is int and 0 <= side <= LONGEST_SIDE for side in sides)
    if not fits or math.prod(sides) * dtype.itemsize != len(content):
        raise ValueError(shape)
    array = numpy.frombuffer(content, dtype).reshape(sides).copy()
    return array[()] if shape is None else array
