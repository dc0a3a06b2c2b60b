"""Messages as lines of JSON."""

from __future__ import annotations

import json
import math
from typing import Any

SAFE_INTEGER = 1 << 63
IN_JSON = frozenset((str, bool, float, type(None)))
NUMBERS = frozenset((int, float, bool))
ENCODE = json.JSONEncoder(ensure_ascii=False).encode
DECODE = json.JSONDecoder(
    parse_constant={"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.__getitem__
).decode


def in_json(message: Any) -> bytes:
    """A message as a line without its end. Not in ASCII: two halves of a letter (surrogates) would arrive as one."""
    return ENCODE(message).encode("utf-8", "surrogatepass")


def of_json(line: bytes) -> Any:
    """What a line says; no number is always one object, as `math.nan` is. Raises `ValueError` and `RecursionError`."""
    return DECODE(line.decode("utf-8", "surrogatepass"))


def are_in_json(values: list[Any]) -> bool:
    """Whether JSON has all of these values."""
    kinds = set(map(type, values))
    if int in kinds and kinds <= NUMBERS:
        return bool(min(values) > -SAFE_INTEGER and max(values) < SAFE_INTEGER)
    return kinds <= IN_JSON
