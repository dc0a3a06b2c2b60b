"""Plain values as JSON, between the process of the tests and that of the code. Nothing is looked up, imported or run
when they arrive, and what arrives is of the built-in types exactly."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MOST_BYTES = 4 << 20
"""Of a line, each way."""
DEEPEST = 100
SAFE_INTEGER = 1 << 63
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
BUILT: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "bytes": lambda text: text.encode("latin-1"),
    "Decimal": Decimal,
    "complex": lambda parts: complex(*parts),
    "range": lambda ends: range(*map(int, ends)),
    "Fraction": lambda parts: Fraction(*(int(part, 16) for part in parts)),
}
"""How a value that JSON does not have is made of what does arrive."""
UNFIT = (StopIteration, StopAsyncIteration, UnicodeError)
"""The former would end the loops of whoever receives them; the last, and groups, are not made of a text alone."""
PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes, dict, list, tuple, set, frozenset)
EXCEPTIONS: dict[str, type[Exception]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, UNFIT)
    and name != "ExceptionGroup"
}
"""The exceptions that travel."""


class NoValue(Exception):
    """What arrived, or is to be sent, is no plain value, or too large."""


def pack(value: Any, keep: Callable[[Any], Any], depth: int = 0) -> Any:
    """`value` for `json.dumps`; what is no plain value is what `keep` makes of it. Raises `NoValue`."""
    if depth > DEEPEST:
        raise NoValue(f"a value is nested more than {DEEPEST} deep")
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if -SAFE_INTEGER < value < SAFE_INTEGER else {"int": hex(value)}
    if kind is dict:
        return {"dict": [[pack(key, keep, depth + 1), pack(inner, keep, depth + 1)] for key, inner in value.items()]}
    if kind.__name__ in SEQUENCES and kind is SEQUENCES[kind.__name__]:
        return {kind.__name__: [pack(inner, keep, depth + 1) for inner in value]}
    if kind is bytes:
        return {"bytes": value.decode("latin-1")}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is range:
        return {"range": [str(end) for end in (value.start, value.stop, value.step)]}
    if kind is Fraction:
        return {"Fraction": [hex(value.numerator), hex(value.denominator)]}
    return {"Decimal": str(value)} if kind is Decimal else keep(value)


def unpack(packed: Any, find: Callable[[str, Any], Any], depth: int = 0) -> Any:
    """The value again. `find(kind, number)` gives what stayed behind. Raises `NoValue` for whatever is none."""
    kind = type(packed)
    if packed is None or kind in (bool, str, float, int):
        return packed
    if kind is not dict or len(packed) != 1 or depth > DEEPEST:
        raise NoValue("what arrived is no value")
    [(name, content)] = packed.items()
    try:
        if name == "dict":
            return {unpack(key, find, depth + 1): unpack(inner, find, depth + 1) for key, inner in content}
        if name in SEQUENCES:
            return SEQUENCES[name](unpack(inner, find, depth + 1) for inner in content)
        return BUILT[name](content) if name in BUILT else find(name, content)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise NoValue(f"what arrived is no value: {type(error).__name__}") from None


def plain(value: Any) -> Any:
    """`value`, or the plain value that a standard container or number of numpy's is a kind of. For the code's side."""
    for kind in PLAIN:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, bytearray):
        return bytes(value)
    return value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value


def told(error: BaseException) -> dict[str, str]:
    """An exception by name: that of the nearest of its classes which travels."""
    travels = (kind.__name__ for kind in type(error).__mro__ if EXCEPTIONS.get(kind.__name__) is kind)
    name = "RuntimeError" if isinstance(error, UNFIT[:2]) else next(travels, "RuntimeError")
    words = error.args[0] if len(error.args) == 1 and type(error.args[0]) is str else error
    return {"raised": name, "text": str(words)[:500]}


def exception(name: Any, text: Any) -> Exception:
    """The exception of the table by that name; `RuntimeError` for any other."""
    return EXCEPTIONS.get(name if type(name) is str else "", RuntimeError)(text if type(text) is str else "")
