"""Encode plain values as JSON between the process of the tests and that of the code. Decoding looks up, imports and
runs nothing, and decoded values have exactly the types below."""

from __future__ import annotations

import builtins
import cmath
import gc
import importlib
import json
import math
import operator
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, DivisionByZero, InvalidOperation
from fractions import Fraction
from functools import partial
from json import JSONDecodeError
from queue import Empty, Full
from types import BuiltinFunctionType
from typing import Any, NoReturn

from rlhf.reward.code.checking.arrays import array_parts, is_array, owner_of, place_in
from rlhf.reward.code.checking.kinds import plain_kind

MOST_BYTES = 4 << 20
"""Maximum size of an answer."""
DEEPEST = 100
NAN_OF_NUMPY = "numpy.nan"
SAFE_INTEGER = 1 << 63
AS_THEY_ARE = frozenset((str, int, bool, type(None)))
"""Types whose values JSON has."""
SEQUENCES: dict[str, Any] = {
    "tuple": tuple,
    "frozenset": frozenset,
}
VIEWS: dict[str, Any] = {"dict_keys": dict.keys, "dict_values": dict.values, "dict_items": dict.items}
VIEWED: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
DEFAULTS: dict[Any, str] = {
    kind: f"defaultdict of {kind.__name__}" for kind in (int, float, str, list, tuple, set, dict, bool)
}
MUTABLE: dict[str, Callable[[], Any]] = {
    **{kind.__name__: kind for kind in (list, dict, set, bytearray, deque, Counter, OrderedDict)},
    **{name: partial(defaultdict, kind) for kind, name in DEFAULTS.items()},
}
BOUNDED, LONGEST_NAME = "deque of ", 25
"""How a `deque` with a `maxlen` is named."""
NAMES: dict[Any, str] = {kind: name for name, kind in MUTABLE.items() if isinstance(kind, type)}
PARTS: dict[type, Callable[[Any], Any]] = {
    bytes: lambda value: value.decode("latin-1"),
    complex: lambda value: [value.real, value.imag],
    range: lambda value: [str(end) for end in (value.start, value.stop, value.step)],
    slice: lambda value: _numbers([value.start, value.stop, value.step], optional=True),
    Fraction: lambda value: [hex(value.numerator), hex(value.denominator)],
    Decimal: str,
    date: lambda value: [value.year, value.month, value.day],
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    timezone: lambda value: _parts_of_zone(value),
    time: lambda value: [*_parts_of_time(value), value.hour, value.minute, value.second, value.microsecond],
    datetime: lambda value: [*_parts_of_time(value), *value.timetuple()[:6], value.microsecond],
    type(Ellipsis): str,
    type(NotImplemented): str,
}
"""How a value without a JSON type is encoded, under the name of its type."""
BUILT: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "bytes": lambda text: text.encode("latin-1"),
    "complex": lambda parts: complex(*parts),
    "range": lambda ends: range(*map(int, ends)),
    "slice": lambda ends: slice(*_numbers(ends, optional=True)),
    "Fraction": lambda parts: Fraction(*(int(part, 16) for part in parts)),
    "Decimal": Decimal,
    "date": lambda parts: date(*_numbers(parts)),
    "timedelta": lambda parts: timedelta(*_numbers(parts)),
    "timezone": lambda parts: _zone(parts),
    "time": lambda parts: _with_time(time, parts),
    "datetime": lambda parts: _with_time(datetime, parts),
    "ellipsis": lambda _: Ellipsis,
    "NotImplementedType": lambda _: NotImplemented,
    "class": lambda name: CLASSES[name],
    "builtin": lambda name: importlib.import_module("numpy").nan if name == NAN_OF_NUMPY else FUNCTIONS[name],
}
"""How a value without a JSON type is rebuilt from its encoded form."""
OF_THE_LIBRARY = (JSONDecodeError, Empty, Full, InvalidOperation, DivisionByZero)


EXCEPTIONS: dict[str, type[BaseException]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and name not in ("ExceptionGroup", "StopAsyncIteration")
} | {kind.__name__: kind for kind in (SystemExit, *OF_THE_LIBRARY)}
"""The exceptions that are sent."""
CLASSES: dict[str, Any] = EXCEPTIONS | {
    kind.__name__: kind
    for kind in (
        *(bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, bytearray, range, object),
        type(None),
    )
}
"""The classes that are sent: calling one makes a plain value, or an exception."""
NAMES_OF_CLASSES = {kind: name for name, kind in CLASSES.items()}
PURE = (
    *("abs", "all", "any", "ascii", "bin", "chr", "divmod", "hex", "len", "max", "min"),
    *("oct", "ord", "pow", "repr", "round", "sorted", "sum"),
)
FUNCTIONS: dict[str, Any] = {f"builtins.{name}": vars(builtins)[name] for name in PURE} | {
    f"{module.__name__}.{name}": function
    for module in (math, operator)
    for name, function in vars(module).items()
    if type(function) is BuiltinFunctionType and not name.startswith("_")
}
FUNCTIONS |= {"math.nan": math.nan, "cmath.nan": cmath.nan}
"""The functions that are sent: each side has them, and so `is` needs no word of the code. And NaNs that both have."""
NAMES_OF_FUNCTIONS = {function: name for name, function in FUNCTIONS.items()}
COMPARED = frozenset((*PARTS, str, int, float, bool, type(None), type)) - {time, datetime}
"""Types whose values are equal on both sides to what they are equal to on one."""


class NoValue(Exception):
    """The received value, or the value to send, is not plain, or is too large."""


class Met:
    """The values of one message that can change, by the numbers that their sender gives them: object identity is
    preserved. Each is encoded once; later occurrences are its number."""

    of_the_code = False
    """Whether it is the code's process that sends them."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}

    def number(self, value: Any) -> int | None:
        """The number of a value that occurred before, else None."""
        return self._numbers.get(id(value))

    def add(self, value: Any) -> int:
        """The number that a value gets at its first occurrence."""
        self.learn(number := len(self._values), value)
        return number

    def learn(self, number: Any, value: Any) -> None:
        """Keep a value that arrived with its number. Raises `NoValue`."""
        if type(number) is not int or number in self._values:
            raise NoValue("what arrived has no number of its own")
        self._values[number], self._numbers[id(value)] = value, number

    def numbered(self, number: Any) -> Any:
        """The value with that number. Raises `NoValue`."""
        if type(number) is not int or number not in self._values:
            raise NoValue("what arrived was not met")
        return self._values[number]


@contextmanager
def no_collections() -> Iterator[None]:
    """Python looks for cycles in all that there is again and again while many values are made: half of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_json(message: Mapping[str, Any]) -> bytes:
    """A message as a line without its end. Not in ASCII: two halves of a letter (surrogates) side by side would arrive
    as the letter."""
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")


def line_with(line: bytes, more: Mapping[str, Any]) -> bytes:
    """The message that says what `line` says, which is something, and more."""
    return line.removesuffix(b"}") + b", " + in_json(more).removeprefix(b"{")


def of_json(line: bytes) -> Any:
    """What a line says. Raises `ValueError` and `RecursionError`."""
    with no_collections():
        return json.loads(line)


def pack_value(value: Any, keep: Callable[[Any], Any], met: Met, depth: int = 0) -> Any:
    """Encode `value` for `json.dumps`; `keep` encodes values that are not plain. Raises `NoValue`."""
    if depth > DEEPEST:
        raise NoValue(f"a value is nested more than {DEEPEST} deep")
    kind = type(value)
    if value is None or kind in (bool, str) or (kind is float and value == value):
        return value
    if kind is float:
        return _pack_nan(value, met)
    if kind is int:
        return value if -SAFE_INTEGER < value < SAFE_INTEGER else {"int": hex(value)}
    if name := named(value):
        if (number := met.number(value)) is not None:
            return {"met": number}
        if met.of_the_code and holds_own_keys(value):
            return keep(value)
        return {name: [met.add(value), content(value, keep, met, depth + 1)]}
    if kind in (tuple, frozenset):
        if met.of_the_code and holds_own_keys(value):
            return keep(value)
        return {kind.__name__: [pack_value(inner, keep, met, depth + 1) for inner in value]}
    if kind in VIEWED:
        (viewed,) = gc.get_referents(value)
        packed = pack_value(viewed, keep, met, depth + 1)
        return {kind.__name__: packed} if packed.keys().isdisjoint(("object", "function")) else keep(value)
    if kind is type and (known := NAMES_OF_CLASSES.get(value)):
        return {"class": known}
    if kind is BuiltinFunctionType and (known := NAMES_OF_FUNCTIONS.get(value)):
        return {"builtin": known}
    if kind in PARTS and not _in_a_zone_of_its_own(value):
        return {kind.__name__: PARTS[kind](value)}
    if (parts := array_parts(value)) is None:
        return keep(value)
    if not is_array(value):
        return {"array": [None, *parts]}
    if (number := met.number(value)) is not None:
        return {"met": number}
    number = met.add(value)
    if (owner := owner_of(value)) is None:
        return {"array": [number, *parts]}
    return {"view": [number, *place_in(owner, value), pack_value(owner, keep, met, depth + 1)]}


def _numbers(parts: Any, *, optional: bool = False) -> list[Any]:
    """The parts, which are whole numbers, or None where they are optional."""
    if type(parts) is not list or not all(type(part) is int or (optional and part is None) for part in parts):
        raise NoValue("a part of a value is no whole number")
    return parts


def _in_a_zone_of_its_own(value: Any) -> bool:
    """Whether it is a time in a zone that is no fixed distance from UTC."""
    return type(value) in (time, datetime) and type(value.tzinfo) not in (type(None), timezone)


def _parts_of_zone(zone: timezone) -> list[Any]:
    distance, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
    return [distance.days, distance.seconds, distance.microseconds, *name]


def _zone(parts: Any) -> timezone:
    return timezone(timedelta(*_numbers(parts[:3])), *map(str, parts[3:]))


def _parts_of_time(value: time | datetime) -> list[Any]:
    return [value.fold, None if value.tzinfo is None else _parts_of_zone(value.tzinfo)]  # type: ignore[arg-type]


def _with_time(kind: Any, parts: Any) -> Any:
    fold, zone, *numbers = parts
    return kind(*_numbers(numbers), tzinfo=None if zone is None else _zone(zone), fold=_numbers([fold])[0])


def named(value: Any) -> str:
    """The name of a mutable value's type; empty where it is not a known one, or has state besides its items."""
    kind = type(value)
    if kind is defaultdict:
        factory = value.default_factory
        return DEFAULTS.get(factory, "") if type(factory) is type else ""
    return f"{BOUNDED}{value.maxlen}" if kind is deque and value.maxlen is not None else NAMES.get(kind, "")


def _empty(name: str) -> Any:
    """An empty mutable value of the type of that name; None where there is none."""
    if name.startswith(BOUNDED) and name[len(BOUNDED) :].isdecimal() and len(name) < LONGEST_NAME:
        return deque(maxlen=int(name[len(BOUNDED) :]))
    return MUTABLE[name]() if name in MUTABLE else None


def _pack_nan(value: float, met: Met) -> dict[str, Any]:
    """Python finds a NaN in a list or a set, or a list with one equal to another, where it is the very same."""
    known = {"math.nan": math.nan, "cmath.nan": cmath.nan, NAN_OF_NUMPY: getattr(sys.modules.get("numpy"), "nan", None)}
    for name, nan in known.items():
        if value is nan:
            return {"builtin": name}
    return {"nan": met.add(value)} if (number := met.number(value)) is None else {"met": number}


def holds_own_keys(value: Any) -> bool:
    """Whether it is a set or a dictionary with objects of the code that say to what they are equal: it is an object
    then, because the tests' process would tell its members apart by identity."""
    iterated = next((base.__iter__ for base in (dict, set, frozenset) if isinstance(value, base)), None)
    if iterated is None or COMPARED.issuperset(map(type, iterated(value))):
        return False
    return any(map(_compares_itself, iterated(value)))


def _compares_itself(key: Any) -> bool:
    """Whether it is an object whose class says to what it is equal, or has one in it."""
    kind = type(key)
    if kind in COMPARED or (kind in PARTS and not _in_a_zone_of_its_own(key)) or array_parts(key) is not None:
        return False
    if kind is BuiltinFunctionType:
        return key not in NAMES_OF_FUNCTIONS
    if plain_kind(key) is None:
        equals: Any = kind.__eq__
        return equals is not object.__eq__
    iterated = next((base.__iter__ for base in (tuple, frozenset) if isinstance(key, base)), None)
    return iterated is not None and any(map(_compares_itself, iterated(key)))


def content(value: Any, keep: Callable[[Any], Any], met: Met, depth: int = 0) -> Any:
    """The encoded contents of a mutable value. Raises `NoValue`."""
    if met.of_the_code and holds_own_keys(value):
        raise NoValue("a set or dictionary has now objects that say to what they are equal")
    if issubclass(type(value), dict):
        return [
            [pack_value(key, keep, met, depth), pack_value(inner, keep, met, depth)] for key, inner in value.items()
        ]
    if issubclass(type(value), bytearray):
        return value.decode("latin-1")
    return [
        inner
        if type(inner) is str or (type(inner) is int and -SAFE_INTEGER < inner < SAFE_INTEGER)  # as most are
        else pack_value(inner, keep, met, depth)
        for inner in value
    ]


def fill(value: Any, packed: Any, find: Callable[[str, Any], Any], met: Met, depth: int = 0) -> None:
    """Fill an empty mutable value from `packed`. Raises `NoValue`."""
    fits: bool = type(packed) is (str if issubclass(type(value), bytearray) else list)
    if not fits:
        raise NoValue("what arrived is no content")
    try:
        if issubclass(type(value), dict):
            for key, inner in packed:
                known_by = unpack_value(key, find, met, depth)
                value[known_by] = unpack_value(inner, find, met, depth)
        elif issubclass(type(value), bytearray):
            value.extend(packed.encode("latin-1"))
        else:
            items: Iterable[Any] = [
                inner if type(inner) in AS_THEY_ARE else unpack_value(inner, find, met, depth) for inner in packed
            ]
            value.update(items) if issubclass(type(value), set) else value.extend(items)
    except (AttributeError, TypeError, ValueError) as error:
        raise NoValue(f"what arrived is no value: {type(error).__name__}") from None


def unpack_value(packed: Any, find: Callable[[str, Any], Any], met: Met, depth: int = 0) -> Any:
    """Decode a value. `find(kind, number)` returns objects that were sent by reference. Raises `NoValue` for anything
    else."""
    kind = type(packed)
    if packed is None or kind in (bool, str, int) or (kind is float and packed == packed):
        return packed
    if kind is not dict or len(packed) != 1 or depth > DEEPEST:
        raise NoValue("what arrived is no value")
    [(name, within)] = packed.items()
    if name == "met":
        return met.numbered(within)
    if name == "nan":
        met.learn(within, value := float(name))
        return value
    try:
        if (value := _empty(name)) is not None:
            number, inside = within
            met.learn(number, value)
            fill(value, inside, find, met, depth + 1)
            return value
        if name == "view":
            number, *parts, owner = within
            met.learn(number, value := find(name, [unpack_value(owner, find, met, depth + 1), *parts]))
            return value
        if name == "array":
            number, *parts = within
            value = find(name, parts)
            if is_array(value):
                met.learn(number, value)
            return value
        if name in SEQUENCES:
            return SEQUENCES[name](unpack_value(inner, find, met, depth + 1) for inner in within)
        if name == "kin":
            if len(within) == 2:
                return find(name, (unpack_value(within[0], find, met, depth + 1), within[1]))
            base, number, inside = within
            met.learn(number, value := find(name, (base,)))
            fill(value, inside, find, met, depth + 1)
            return value
        if name in VIEWS:
            return VIEWS[name](unpack_value(within, find, met, depth + 1))
        return BUILT[name](within) if name in BUILT else find(name, within)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise NoValue(f"what arrived is no value: {type(error).__name__}") from None


def nothing_else(*value: Any) -> NoReturn:
    """Refuse what is no plain value. Raises `NoValue`."""
    raise NoValue("what is no plain value")
