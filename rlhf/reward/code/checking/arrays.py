"""Numbers and arrays of numpy's, as JSON. A view crosses as a view of the array that it is of."""

from __future__ import annotations

import math
from typing import Any

KINDS, KINDS_VIEWED = "biufcU", "biufc"
TYPES = frozenset(
    (
        *("bool", "float16", "float32", "float64", "complex64", "complex128"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
)
MOST_DIMENSIONS = 32
MOST_LETTERS = 1 << 20
"""In an array of texts, whose items have room for as many as the longest."""
MOST_TIMES = 64
"""How much larger the array of a view may be: a view of a larger one crosses as an array of its own."""


def is_array(value: Any) -> bool:
    """Whether it is an array of numpy's. A matrix and a masked array are others, with operations of their own."""
    return _is_of_numpy(value) and type(value).__name__ == "ndarray"


def _is_of_numpy(value: Any) -> bool:
    return bool(type.__getattribute__(type(value), "__module__") == "numpy")  # a class of the code may have its own way


def array_parts(value: Any) -> list[Any] | None:
    """A number or an array of numpy's: its type, its shape (None for a number), whether it may be written to, and its
    items, of complex numbers as pairs. None for another value, and where the items are no numbers, truth values or
    texts."""
    if not _is_of_numpy(value) or getattr(getattr(value, "dtype", None), "kind", "O") not in KINDS:
        return None
    if not is_array(value) and not any(base.__name__ == "generic" for base in type(value).__mro__):
        return None
    name = _name_of(value.dtype)
    if not value.dtype.isnative or not _is_made(name, value.size):
        return None
    return [name, list(value.shape) if is_array(value) else None, bool(value.flags.writeable), items_of_array(value)]


def _name_of(dtype: Any) -> str:
    """The name of a type; of texts with the number of letters that there is room for."""
    return str(dtype.str[1:] if dtype.kind == "U" else dtype.name)


def _is_made(name: Any, items: int) -> bool:
    """Whether so many items of the type of that name are made."""
    if type(name) is not str or name in TYPES:
        return name in TYPES
    letters = name[1:] if name[:1] == "U" else ""
    return letters.isdecimal() and len(letters) < len(str(MOST_LETTERS)) and int(letters) * items <= MOST_LETTERS


def items_of_array(value: Any) -> list[Any]:
    """The items of an array in order, or the number."""
    items = value.ravel().tolist() if is_array(value) else [value.item()]
    return [[item.real, item.imag] for item in items] if value.dtype.kind == "c" else items


def array(parts: Any, numpy: Any) -> Any:
    """The number or array of numpy's that was sent. Raises `TypeError` and `ValueError`."""
    name, shape, writeable, items = parts
    lengths = _whole([] if shape is None else shape)
    fits = type(items) is list and _is_made(name, len(items))
    if not fits or min(lengths, default=0) < 0 or len(lengths) > MOST_DIMENSIONS:
        raise ValueError("what arrived is no array")
    if name.startswith("complex"):
        items = [complex(*item) for item in items]
    if math.prod(lengths) != len(items) or not all(type(item) in (bool, int, float, complex, str) for item in items):
        raise ValueError("what arrived is no array")
    try:
        made = numpy.array(items, dtype=name).reshape(lengths)
    except MemoryError:
        raise ValueError("an array is too large") from None
    if shape is None:
        return made[()]
    made = made if made.base is None else made.copy()
    made.setflags(write=writeable is True)
    return made


def owner_of(value: Any) -> Any:
    """The array that an array is a view of, where it crosses as one; else None."""
    owner = value.base
    fits = (
        is_array(owner)
        and owner.base is None
        and owner.flags.c_contiguous
        and owner.dtype == value.dtype
        and owner.dtype.kind in KINDS_VIEWED
        and owner.size <= MOST_TIMES * max(value.size, 1)
    )
    return owner if fits else None


def place_in(owner: Any, value: Any) -> list[Any]:
    """Where a view is in its array: shape, steps and start in bytes, and whether it may be written to."""
    start = value.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return [list(value.shape), list(value.strides), start, bool(value.flags.writeable)]


def view(parts: Any, numpy: Any) -> Any:
    """The view that was sent, if it is within its array: numpy itself takes one of an empty array for as large as it is
    said to be. Raises `TypeError` and `ValueError`."""
    owner, shape, steps, start, writeable = parts
    [start] = _whole([start])
    if not is_array(owner) or not owner.flags.c_contiguous or owner.dtype.kind not in KINDS_VIEWED:
        raise ValueError("what arrived is no view")
    if not _is_within(owner.nbytes, owner.itemsize, _whole(shape), _whole(steps), start):
        raise ValueError("what arrived is no view")
    made = numpy.ndarray(tuple(shape), owner.dtype, owner, start, tuple(steps))
    if writeable is not True:
        made.setflags(write=False)
    return made


def _is_within(bytes_held: int, item_bytes: int, shape: list[int], steps: list[int], start: int) -> bool:
    """Whether all items of a view lie on items of its array."""
    if len(shape) != len(steps) or len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0:
        return False
    if any(place % item_bytes for place in (start, *steps)):
        return False
    if 0 in shape:
        return 0 <= start <= bytes_held
    reaches = [step * (length - 1) for length, step in zip(shape, steps, strict=True)]
    first = start + sum(reach for reach in reaches if reach < 0)
    last = start + sum(reach for reach in reaches if reach > 0)
    return first >= 0 and last + item_bytes <= bytes_held


def write(parts: Any, numpy: Any) -> None:
    """Write items into an array. Raises `TypeError` and `ValueError`."""
    value, items = parts
    name, writeable = _name_of(value.dtype), value.flags.writeable
    made = array([name, list(value.shape), True, items], numpy)
    value.setflags(write=True)
    value[...] = made
    value.setflags(write=writeable)


OF_ARRAYS = {"array": array, "view": view, "write": write}
"""What is done with parts, by the name under which they are sent."""


def _whole(parts: Any) -> list[int]:
    if type(parts) is not list or not all(type(part) is int for part in parts):
        raise ValueError("a part of an array is no whole number")
    return parts
