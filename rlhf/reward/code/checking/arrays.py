"""Numbers and arrays of numpy as they cross, by value, where both processes have loaded it: nothing loads it for
them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from typing import Any

PLAIN_TYPE = re.compile(r"[<>|=][biufc]\d{1,2}")
"""The types of numbers that cross, as numpy writes them."""
REFERENCES_OF_A_VIEW = 2
"""So many has the base of a view that nothing else has: the view, and whoever counts."""
MOST_DIMENSIONS, MOST_ITEMS = 32, 4 << 20


def is_array(value: Any) -> bool:
    """Whether it is an array of numpy's own type, of plain numbers."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and bool(PLAIN_TYPE.fullmatch(value.dtype.str))


def shares_memory(array: Any, others: Iterable[Any], *, is_of_the_code: bool) -> bool:
    """Whether what is written to an array may be seen in another: in `others`, or, of the code's, in one that the code
    has for itself. What a test has for itself sees what the code writes, since it is written to the test's array."""
    return (is_of_the_code and is_part_of(array.base)) or any(
        is_array(other) and sys.modules["numpy"].may_share_memory(array, other) for other in others
    )


def is_part_of(base: Any) -> bool:
    """Whether something else has what a view is of."""
    if type(base) is memoryview:
        return sys.getrefcount(base.obj) > REFERENCES_OF_A_VIEW
    return base is not None and sys.getrefcount(base) > REFERENCES_OF_A_VIEW + 1


def empty_array(form: Any) -> Any:
    """An array of zeros of this type and shape. Raises `ValueError` and its like, also where numpy is not loaded."""
    kind, sides = form
    fits = len(sides) <= MOST_DIMENSIONS and all(type(side) is int and side >= 0 for side in sides)
    if "numpy" not in sys.modules or not PLAIN_TYPE.fullmatch(kind) or not fits or math.prod(sides) > MOST_ITEMS:
        raise ValueError("no array of the tests' numpy")
    return sys.modules["numpy"].zeros(sides, kind)


def content_of(array: Any) -> list[Any]:
    """Type, shape and bytes of an array; the first two can be changed in place."""
    return [array.dtype.str, [*array.shape], array.tobytes().decode("latin-1")]


def set_array(array: Any, content: Any) -> None:
    """Give an array this content. Raises `AttributeError` and `ValueError`."""
    kind, sides, text = content
    if not PLAIN_TYPE.fullmatch(kind) or not all(type(side) is int and side >= 0 for side in sides):
        raise ValueError("no array of plain numbers")
    if (array.dtype.str, [*array.shape]) != (kind, sides):
        array.dtype = kind
        array.shape = tuple(sides)
    array[...] = sys.modules["numpy"].frombuffer(text.encode("latin-1"), array.dtype).reshape(array.shape)


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
