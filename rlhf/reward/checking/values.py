"""Plain data as JSON, between the process of the tests and that of the code. Nothing else travels, and nothing is run
when it arrives."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
BY_TEXT: dict[str, type] = {"Fraction": Fraction, "Decimal": Decimal}


def pack(value: Any, keep: Callable[[Any], dict[str, Any]]) -> Any:
    """`value` for `json.dumps`; what is no plain data stays where it is, and `keep` says by what it is known."""
    if value is None or isinstance(value, (bool, str, int, float)):
        return value
    if isinstance(value, dict):
        return {"dict": [[pack(key, keep), pack(inner, keep)] for key, inner in value.items()]}
    for name, kind in SEQUENCES.items():
        if isinstance(value, kind):
            return {name: [pack(inner, keep) for inner in value]}
    for name, kind in BY_TEXT.items():
        if isinstance(value, kind):
            return {name: str(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if type(value).__module__ == "numpy":
        return pack(value.tolist(), keep)
    return keep(value)


def unpack(packed: Any, find: Callable[[str, Any], Any]) -> Any:
    """The value again, of the built-in types; `find(kind, known_by)` gives what stayed behind."""
    if not isinstance(packed, dict):
        return packed
    [(kind, content)] = packed.items()
    if kind == "dict":
        return {unpack(key, find): unpack(inner, find) for key, inner in content}
    if kind in SEQUENCES:
        return SEQUENCES[kind](unpack(inner, find) for inner in content)
    if kind in BY_TEXT:
        return BY_TEXT[kind](content)
    if kind == "bytes":
        return content.encode("latin-1")
    if kind == "complex":
        return complex(*content)
    return find(kind, content)
