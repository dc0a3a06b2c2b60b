"""Numbers and arrays of numpy as they cross, by value, where both processes have loaded it: nothing loads it for
them."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

PLAIN_TYPE = re.compile(r"[<>|=][biufc]\d{1,2}")
"""The types of numbers that cross, as numpy writes them."""
MOST_DIMENSIONS, MOST_ITEMS = 32, 4 << 20


def is_array(value: Any) -> bool:
    """Whether it is an array of numpy's own type, of plain numbers."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and bool(PLAIN_TYPE.fullmatch(value.dtype.str))


def may_be_views(array: Any, other: Any) -> bool:
    """Whether what is written to an array may be seen in another."""
    return is_array(other) and bool(sys.modules["numpy"].may_share_memory(array, other))


def empty_array(form: Any) -> Any:
    """An array of zeros of this type and shape. Raises `ValueError` and its like, also where numpy is not loaded."""
    kind, sides = form
    fits = len(sides) <= MOST_DIMENSIONS and all(type(side) is int and side >= 0 for side in sides)
    if "numpy" not in sys.modules or not PLAIN_TYPE.fullmatch(kind) or not fits or math.prod(sides) > MOST_ITEMS:
        raise ValueError("no array of the tests' numpy")
    return sys.modules["numpy"].zeros(sides, kind)


def set_array(array: Any, content: str) -> None:
    """Give an array this content. Raises `ValueError`."""
    new = sys.modules["numpy"].frombuffer(content.encode("latin-1"), array.dtype)
    array[...] = new.reshape(array.shape)


def parts_of_number(value: Any) -> list[str] | None:
    """Type and bytes of a number of numpy's; None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value).__module__ != "numpy" or not isinstance(value, numpy.generic):
        return None
    return [value.dtype.str, value.tobytes().decode("latin-1")] if PLAIN_TYPE.fullmatch(value.dtype.str) else None


def number_of(parts: Any) -> Any:
    """The number of these parts. Raises what Python raises over parts that do not fit, also where numpy is not
    loaded."""
    kind, text = parts
    if "numpy" not in sys.modules or not PLAIN_TYPE.fullmatch(kind):
        raise ValueError(kind)
    return sys.modules["numpy"].frombuffer(text.encode("latin-1"), kind).reshape(())[()]
