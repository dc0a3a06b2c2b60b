"""Reads untrusted JSON within bounds: the result is plain data that can be encoded again, or a named error."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from rlhf.http.inert import inert_line, whole

DEPTH = 64
"""Largest nesting of objects and arrays. Some encoders end at 255, and code that walks an answer may recurse."""

VALUES = 1_000_000
"""Largest number of objects, arrays and their items: an empty array is two bytes to send and 64 to keep."""


class InvalidJson(ValueError):
    """Received data is not JSON, or is nested too deeply. The message quotes at most the beginning of the data."""


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is beyond all numbers")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_number)


def read_json(text: str | bytes | bytearray, depth: int = DEPTH) -> Any:
    """Parse JSON text. NaN and infinities are errors; lone surrogates become U+FFFD. Raises `InvalidJson`."""
    try:
        decoded = text if isinstance(text, str) else text.decode()
        containers = decoded.count("[") + decoded.count("{")
        if containers + decoded.count(",") > VALUES:
            raise InvalidJson(f"JSON of more than {VALUES} values")
        value = _DECODER.decode(decoded)
    except InvalidJson:
        raise
    except (ValueError, RecursionError) as error:  # invalid UTF-8 and a number of 5000 digits raise ValueError too
        raise InvalidJson(f"not JSON: {inert_line(str(error))[:200]}") from None
    if containers > depth and _deeper(value, depth):
        raise InvalidJson(f"JSON of more than {depth} levels")
    return mended(value) if "\\u" in decoded or whole(decoded) != decoded else value


def _deeper(value: Any, depth: int) -> bool:
    """Whether the nesting exceeds `depth`. Walks level by level: recursion would be as deep as what it measures."""
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def mended(value: Any) -> Any:
    """Plain data with lone surrogates replaced in every string. Recursive, so pass only data of bounded depth
    (`read_json`)."""
    match value:
        case str():
            return whole(value)
        case list() | tuple():
            return [mended(one) for one in value]
        case dict():
            return {whole(name): mended(one) for name, one in value.items()}
    return value
