"""Encode episodes and their row as a line of JSON, and decode it: values, never code. Standard library only."""

from __future__ import annotations

import base64
import datetime
import decimal
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

TAG = "\0"
"""The single key of an object that encodes a value without a JSON type."""
NUMBERS = "biufc"
"""Kinds of numpy arrays that hold only numbers."""


def request_lines(batches: Iterable[Sequence[Mapping[str, Any]]], row: Mapping[str, Any]) -> list[bytes]:
    """Encode each batch of episodes, and their row with it. Raises `TypeError`, which names the column, for a value
    that is not plain data."""
    encoded = {}
    for column, value in row.items():
        try:
            encoded[column] = _encoded(value)
        except TypeError as error:
            raise TypeError(f"column {column!r}: {error}") from None
    columns = json.dumps(encoded)
    return [f"[{json.dumps(_encoded(batch))}, {columns}]\n".encode() for batch in batches]


def read_line(line: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    episodes, row = json.loads(line)
    return _decoded(episodes), {column: _decoded(value) for column, value in row.items()}


def _encoded(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_encoded(one) for one in value]
    if isinstance(value, Mapping):
        if TAG not in value and all(isinstance(key, str) for key in value):
            return {key: _encoded(one) for key, one in value.items()}
        return _tagged("dict", [[_encoded(key), _encoded(one)] for key, one in value.items()])
    if isinstance(value, bytes | bytearray):
        return _tagged("bytes", base64.b64encode(value).decode())
    if isinstance(value, tuple | set | frozenset):
        return _tagged(type(value).__name__, [_encoded(one) for one in value])
    if isinstance(value, datetime.timedelta):
        return _tagged("timedelta", [value.days, value.seconds, value.microseconds])
    if isinstance(value, decimal.Decimal):
        return _tagged("decimal", str(value))
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return _tagged(type(value).__name__, value.isoformat())
    if type(value).__module__ == "numpy" and value.dtype.kind in NUMBERS:
        return _tagged("array", [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()])
    if isinstance(value, float):  # from a JSON file, which keeps the text
        return float(value)
    kind = type(value).__name__
    raise TypeError(f"a scorer's row may hold text, numbers, dates, bytes, lists and objects, not {kind}")


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {TAG: [kind, value]}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if TAG in value:
        kind, inner = value[TAG]
        return KINDS[kind](inner)
    return {key: _decoded(one) for key, one in value.items()}


def _array(inner: Any) -> Any:
    numpy = importlib.import_module("numpy")
    kind, shape, content = inner
    return numpy.frombuffer(base64.b64decode(content), numpy.dtype(kind)).reshape(shape).copy()[()]


KINDS: Mapping[str, Callable[[Any], Any]] = {
    "dict": lambda pairs: {_decoded(key): _decoded(one) for key, one in pairs},
    "bytes": base64.b64decode,
    "tuple": lambda values: tuple(map(_decoded, values)),
    "set": lambda values: set(map(_decoded, values)),
    "frozenset": lambda values: frozenset(map(_decoded, values)),
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "decimal": decimal.Decimal,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "array": _array,
}
