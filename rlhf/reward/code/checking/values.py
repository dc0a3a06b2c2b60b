"""Plain values as JSON, by value. What arrives has exactly the types below; nothing is looked up, imported or run for
it."""

from __future__ import annotations

import builtins
import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rlhf.reward.code.checking.arrays import array_of, is_of_numpy, parts_of_array

MOST_BYTES = 4 << 20
"""Maximum size of a message of the code's process."""
MOST_PARTS = 1_000_000
DEEPEST = 100
SAFE_INTEGER = 1 << 63
IN_JSON = frozenset((str, bool, float, type(None)))
EMPTY: dict[str, Callable[[Any], Any]] = {
    "list": lambda _: [],
    "dict": lambda _: {},
    "set": lambda _: set(),
    "bytearray": lambda _: bytearray(),
    "Counter": lambda _: Counter(),
    "OrderedDict": lambda _: OrderedDict(),
    "deque": lambda longest: deque(maxlen=longest),
    "defaultdict": lambda factory: defaultdict(FACTORIES[factory]),
}
"""Makes a value that can change, of what `HEAD` says of it."""
CHANGEABLE = frozenset((list, dict, set, bytearray, Counter, OrderedDict, deque, defaultdict))
FACTORIES: dict[Any, Any] = {None: None} | {
    kind.__name__: kind for kind in (int, float, str, list, tuple, set, dict, bool)
}
HEAD: dict[type, Callable[[Any], Any]] = {
    deque: lambda value: value.maxlen,
    defaultdict: lambda value: next((name for name, kind in FACTORIES.items() if kind is value.default_factory), None),
}
PARTS: dict[type, Callable[[Any], Any]] = {
    bytes: lambda value: value.decode("latin-1"),
    complex: lambda value: [value.real, value.imag],
    range: lambda value: [hex(end) for end in (value.start, value.stop, value.step)],
    slice: lambda value: [value.start, value.stop, value.step],
    Fraction: lambda value: [hex(value.numerator), hex(value.denominator)],
    Decimal: str,
    date: date.isoformat,
    time: lambda value: [value.isoformat(), value.fold],
    datetime: lambda value: [value.isoformat(), value.fold],
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    type(Ellipsis): str,
    type(NotImplemented): str,
}
"""How a value that cannot change is encoded, under the name of its type."""
BUILT: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "bytes": lambda text: text.encode("latin-1"),
    "complex": lambda parts: complex(*parts),
    "range": lambda ends: range(*(int(end, 16) for end in ends)),
    "slice": lambda ends: slice(*(end if type(end) is int else None for end in ends)),
    "Fraction": lambda parts: Fraction(*(int(part, 16) for part in parts)),
    "Decimal": lambda text: Decimal(str(text)),
    "date": date.fromisoformat,
    "time": lambda parts: time.fromisoformat(parts[0]).replace(fold=parts[1]),
    "datetime": lambda parts: datetime.fromisoformat(parts[0]).replace(fold=parts[1]),
    "timedelta": lambda parts: timedelta(*parts),
    "ellipsis": lambda _: Ellipsis,
    "NotImplementedType": lambda _: NotImplemented,
    "array": array_of,
    "builtin": lambda name: BUILTINS[name],
}
"""How it is built again."""
NAMES_OF_BUILTINS = """abs all any ascii bin chr divmod hex len max min oct ord pow repr round sorted sum
    bool int float complex str bytes list tuple dict set frozenset bytearray range object type"""
BUILTINS: dict[str, Any] = {
    name: found
    for name, found in vars(builtins).items()
    if name in NAMES_OF_BUILTINS.split() or (isinstance(found, type) and issubclass(found, Exception))
}
"""Python's own functions and classes that both processes have: they make, compare and compute plain values."""
NAMED = {id(found): name for name, found in BUILTINS.items()}


Keep = Callable[[Any, Callable[[Any], Any]], Any]
"""Encodes what is no plain value, its parts by the function that it is given. Raises `NoValue`."""
Find = Callable[[str, Any, Callable[[Any], Any]], Any]
"""Decodes it."""


class NoValue(Exception):
    """What arrived, or is to be sent, is no plain value, or is too large."""


def in_json(message: Any) -> bytes:
    """A message as a line without its end. Not in ASCII: two halves of a letter (surrogates) would arrive as one."""
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")


def of_json(line: bytes) -> Any:
    """What a line says. Raises `ValueError` and `RecursionError`."""
    return json.loads(line)


class Crossing:
    """The values of one request and of its answer, by value. What can change has a number, in the order in which it
    occurs, on both sides: the side that answers tells how it has changed what it was given, and what comes back is the
    very same again."""

    def __init__(self, keep: Keep, find: Find) -> None:
        self._keep, self._find = keep, find
        self._met: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._given: list[bytes] = []
        self._left = MOST_PARTS

    def pack(self, value: Any) -> Any:
        """What to send. Raises `NoValue`."""
        self._left = MOST_PARTS
        return self._pack(value, 0)

    def packed_if_plain(self, value: Any) -> Any:
        """The same, or None."""
        met = len(self._met)
        try:
            return self.pack(value)
        except NoValue:
            for left in self._met[met:]:
                del self._numbers[id(left)]
            del self._met[met:]
            return None

    def unpack(self, packed: Any) -> Any:
        """The value that arrived. Raises `NoValue`."""
        try:
            return self._unpack(packed)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError, MemoryError):
            raise NoValue("what arrived is no value") from None

    def take(self, packed: Any) -> Any:
        """The values that arrived with a request, of which `changes` will tell."""
        value = self.unpack(packed)
        self._given = [in_json(self._content(item, 0)) for item in self._met]
        return value

    def changes(self) -> list[Any]:
        """The numbers and contents of what was given, and has changed since. Raises `NoValue`."""
        self._left = MOST_PARTS
        contents = [self._content(item, 0) for item in self._met[: len(self._given)]]
        return [
            [number, content]
            for number, (content, given) in enumerate(zip(contents, self._given, strict=True))
            if in_json(content) != given
        ]

    def apply(self, changes: Any) -> None:
        """Change what was sent as the other side did. Raises `NoValue`."""
        try:
            for number, content in changes:
                self._fill(self._number(number), content)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError, BufferError):
            raise NoValue("what arrived changes nothing") from None

    def _pack(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in IN_JSON or (kind is int and -SAFE_INTEGER < value < SAFE_INTEGER):
            return value
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            raise NoValue("a value is nested too deeply" if depth > DEEPEST else "a value is too large")
        if kind is int:
            return {"int": hex(value)}
        if kind in CHANGEABLE:
            if (number := self._numbers.get(id(value))) is not None:
                return {"met": number}
            self._learn(value)
            head = HEAD[kind](value) if kind in HEAD else None
            return {kind.__name__: [head, self._content(value, depth + 1)]}
        if kind in (tuple, frozenset):
            return {kind.__name__: [self._pack(inner, depth + 1) for inner in value]}
        if kind in PARTS and (kind not in (time, datetime) or type(value.tzinfo) in (type(None), timezone)):
            return {kind.__name__: PARTS[kind](value)}
        if is_of_numpy(value) and (parts := parts_of_array(value)):
            return {"array": parts}
        if id(value) in NAMED:
            return {"builtin": NAMED[id(value)]}
        return self._keep(value, lambda inner: self._pack(inner, depth + 1))

    def _content(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            return [[self._pack(key, depth), self._pack(inner, depth)] for key, inner in value.items()]
        if type(value) is bytearray:
            return value.decode("latin-1")
        return [self._pack(inner, depth) for inner in value]

    def _unpack(self, packed: Any) -> Any:
        if type(packed) is not dict:
            if type(packed) is list:
                raise NoValue("what arrived is no value")
            return packed
        ((name, parts),) = packed.items()
        if name == "met":
            return self._number(parts)
        if name in EMPTY:
            self._learn(made := EMPTY[name](parts[0]))
            self._fill(made, parts[1])
            return made
        if name in ("tuple", "frozenset"):
            return BUILTINS[name](self._unpack(inner) for inner in parts)
        return BUILT[name](parts) if name in BUILT else self._find(name, parts, self._unpack)

    def _fill(self, value: Any, content: Any) -> None:
        """Give a value that can change this content. All of it is there before the first change."""
        if type(value) is bytearray:
            value[:] = content.encode("latin-1")
            return
        if type(content) is not list:
            raise NoValue("what arrived is no content")
        if isinstance(value, dict):
            items = [(self._unpack(key), self._unpack(inner)) for key, inner in content]
            value.clear()
            for key, inner in items:
                value[key] = inner
        else:
            inners = [self._unpack(inner) for inner in content]
            value.clear()
            (value.update if type(value) is set else value.extend)(inners)

    def _learn(self, value: Any) -> None:
        self._numbers[id(value)] = len(self._met)
        self._met.append(value)

    def _number(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self._met):
            raise NoValue("what arrived was not met")
        return self._met[number]
