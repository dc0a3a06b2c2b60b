"""Plain values as JSON, by value. What arrives has exactly the types below; nothing is looked up, imported or run for
it."""

from __future__ import annotations

import builtins
import operator
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rlhf.reward.code.checking.arrays import (
    content_of,
    empty_array,
    is_array,
    is_part_of,
    number_of,
    parts_of_number,
    set_array,
    shares_memory,
)
from rlhf.reward.code.checking.lines import IN_JSON, SAFE_INTEGER, are_in_json, in_json

MOST_BYTES = 4 << 20
"""Maximum size of a message of the code's process."""
MOST_PARTS = 1_000_000
DEEPEST = 100
IMMUTABLE = frozenset(
    (
        str,
        bytes,
        int,
        float,
        complex,
        tuple,
        frozenset,
        range,
        slice,
        Fraction,
        Decimal,
        date,
        time,
        datetime,
        timedelta,
    )
)
"""Of two equal values of these types nobody can tell, once they have crossed, whether they are one."""
KNOWN: dict[int, Any] = {0: []}
ALONE = sys.getrefcount(KNOWN[0])
"""So many references has a value that nothing but one dictionary has."""
EMPTY: dict[str, Callable[[Any], Any]] = {
    "list": lambda _: [],
    "dict": lambda _: {},
    "set": lambda _: set(),
    "bytearray": lambda _: bytearray(),
    "Counter": lambda _: Counter(),
    "OrderedDict": lambda _: OrderedDict(),
    "deque": lambda longest: deque(maxlen=longest),
    "defaultdict": lambda factory: defaultdict(factory),
    "ndarray": empty_array,
}
"""Makes a value that can change, of what is said first of it."""
CHANGEABLE = frozenset((list, dict, set, bytearray, Counter, OrderedDict, deque, defaultdict))
PARTS: dict[type, Callable[[Any], Any]] = {
    bytes: lambda value: value.decode("latin-1"),
    complex: lambda value: [value.real, value.imag],
    range: lambda value: [hex(end) for end in (value.start, value.stop, value.step)],
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
    "Fraction": lambda parts: Fraction(*(int(part, 16) for part in parts)),
    "Decimal": lambda text: Decimal(str(text)),
    "date": date.fromisoformat,
    "time": lambda parts: time.fromisoformat(parts[0]).replace(fold=parts[1]),
    "datetime": lambda parts: datetime.fromisoformat(parts[0]).replace(fold=parts[1]),
    "timedelta": lambda parts: timedelta(*parts),
    "ellipsis": lambda _: Ellipsis,
    "NotImplementedType": lambda _: NotImplemented,
    "number": number_of,
    "builtin": lambda name: BUILTINS[name],
}
"""How it is built again."""
NAMES_OF_BUILTINS = """abs all any ascii bin chr divmod hex len max min oct ord pow repr round sorted sum
    bool int float complex str bytes list tuple dict set frozenset bytearray range object type"""
BUILTINS: dict[str, Any] = {
    name: found
    for name, found in vars(builtins).items()
    if name in NAMES_OF_BUILTINS.split() or (isinstance(found, type) and issubclass(found, Exception))
} | {"NoneType": type(None)}
"""Python's own functions and classes that both processes have: they make, compare and compute plain values."""
NAMED = {id(found): name for name, found in BUILTINS.items()}


Keep = Callable[[Any, Callable[[Any], Any]], Any]
"""Encodes what is no plain value, its parts by the function that it is given. Raises `NoValue`."""
Find = Callable[[str, Any, Callable[[Any], Any]], Any]
"""Decodes it."""


UNFIT = (ArithmeticError, AttributeError, BufferError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""What Python raises over values that are none."""


class NoValue(Exception):
    """What arrived, or is to be sent, is no plain value, or is too large."""


def _head(value: Any) -> Any:
    """What a value that can change is made of, besides what it holds."""
    if type(value) is deque:
        return value.maxlen
    if type(value) is defaultdict:
        return value.default_factory
    return (value.dtype.str, tuple(value.shape)) if type(value) not in CHANGEABLE else None


def _is_in_a_fixed_zone(value: time | datetime) -> bool:
    """Whether it is in no zone, or in one without a name of its own."""
    zone = value.tzinfo
    return zone is None or (type(zone) is timezone and repr(zone) == repr(timezone(zone.utcoffset(None))))


def _items(value: Any) -> list[Any]:
    """What a value that can change holds; nothing for bytes and arrays."""
    if type(value) is bytearray or type(value) not in CHANGEABLE:
        return []
    return [*value, *value.values()] if isinstance(value, dict) else [*value]


class Shared:
    """What two processes know of one another's values. They cross by value; what can change keeps a number, and each
    message tells first what has changed since the last, so that both see what one Python would, for as long as both
    have it. The numbers that one side gives are even, those of the other odd."""

    def __init__(self, first: int, keep: Keep, find: Find) -> None:
        self._next, self._keep, self._find = first, keep, find
        self._known: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._told: dict[int, bytes | list[Any]] = {}
        self._gone: list[int] = []
        self._last: tuple[int, list[int]] = first, []
        self._has_lost = False
        self._left = MOST_PARTS
        self.differs = ""
        """What has crossed and is not the same there."""

    def message(self, values: Any) -> dict[str, Any]:
        """What to send: what has changed, the values, and what is kept here no longer. What has become no value is not
        shared any more. Raises `NoValue`, and is no message then."""
        start, self._left = self._next, MOST_PARTS
        changes = []
        for number in [*self._known]:
            try:
                if (content := self._changed_content(number)) is not None:
                    changes.append([number, content])
            except NoValue:
                self._forget([number])
                self._gone.append(number)
                self.differs = "a value that holds what does not cross"
        try:
            packed = self._pack(values, 0)
        except NoValue:
            self._forget(self._new_since(start))
            raise
        changed = [number for number, _ in changes]
        self._note([number for number in (*changed, *self._new_since(start)) if number in self._known])
        self._last, lost, self._has_lost = (start, changed), self._has_lost, False
        gone, self._gone = [*self._gone, *self._dropped()], []
        return {"changes": changes, "values": packed, "gone": gone} | ({"lost": True} if lost else {})

    def received(self, message: Any) -> Any:
        """The values of a message. Raises `NoValue`, and the other side will hear that its last message was lost."""
        known, self._has_lost = set(self._known), True
        try:
            if "lost" in message:
                self.retract()
            for number, content in message["changes"]:
                self._fill(self._known_as(number), content)
                known.discard(number)
            values = self._unpack(message["values"])
            self._left = MOST_PARTS
            self._note([*(set(self._known) - known)])
            if type(message["gone"]) is not list:
                raise NoValue("what arrived does not say what is gone")
            self._forget(self._gone_of(message))
            self._has_lost = False
            return values
        except UNFIT:
            raise NoValue("what arrived is no value") from None
        finally:
            if self._has_lost:
                self._forget({*(set(self._known) - set(self._told)), *self._gone_of(message)})

    def _gone_of(self, message: Any) -> list[int]:
        """What of this the other side has no longer."""
        gone = message.get("gone")
        return [*{one for one in gone if type(one) is int and one in self._known}] if type(gone) is list else []

    def retract(self) -> None:
        """The last message has not arrived."""
        start, changed = self._last
        self._forget(self._new_since(start))
        self._told.update((number, b"") for number in changed if number in self._known)

    def is_plain(self, value: Any) -> bool:
        """Whether it could be sent."""
        start, self._left = self._next, MOST_PARTS
        try:
            self._pack(value, 0)
        except NoValue:
            return False
        finally:
            self._forget(self._new_since(start))
        return True

    def _new_since(self, start: int) -> list[int]:
        """The numbers that this side has given since its next one was `start`."""
        return [number for number in self._known if number >= start and number % 2 == start % 2]

    def _note(self, numbers: Iterable[int]) -> None:
        """Remember how these are on both sides now."""
        for number in numbers:
            value = self._known[number]
            items = _items(value)
            self._told[number] = items if items and are_in_json(items) else in_json(self._content(value, 0))

    def _changed_content(self, number: int) -> Any:
        """The content of a value, if the other side does not know it yet, else None."""
        told, value = self._told[number], self._known[number]
        if type(told) is list:
            items = _items(value)
            if len(items) == len(told) and all(map(operator.is_, items, told)):
                return None
        start = self._next
        try:
            content = self._content(value, 0)
        except NoValue:
            self._forget(self._new_since(start))
            raise
        return None if in_json(content) == told else content

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self._numbers[id(self._known.pop(number))]
            self._told.pop(number, None)

    def _dropped(self) -> list[int]:
        """Forget what nothing else here has. What only that had goes with it. Plain values of the other side stay as
        long as it has them, and need not be sent anew."""
        dropped: list[int] = []
        while alone := [number for number in self._known if self._is_alone(number)]:
            dropped += alone
            self._forget(alone)
        return dropped

    def _is_alone(self, number: int) -> bool:
        is_own, value = number % 2 == self._next % 2, self._known[number]
        if is_array(value) and is_part_of(value.base):
            return False
        del value
        return (is_own or type(self._told[number]) is bytes) and sys.getrefcount(self._known[number]) <= ALONE

    def _pack(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in IN_JSON or (kind is int and -SAFE_INTEGER < value < SAFE_INTEGER):
            return value
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            raise NoValue("a value is nested too deeply" if depth > DEEPEST else "a value is too large")
        if kind is int:
            return {"int": hex(value)}
        if kind in CHANGEABLE or is_array(value):
            if (number := self._numbers.get(id(value))) is not None:
                return {"met": number}
            others, is_of_the_code = self._known.values(), self._next % 2 == 1
            if kind not in CHANGEABLE and shares_memory(value, others, is_of_the_code=is_of_the_code):
                raise NoValue("an array shares its memory with another")
            self._learn(number := self._next, value)
            self._next += 2
            head = self._pack(_head(value), depth + 1)
            return {kind.__name__: [number, head, self._content(value, depth + 1)]}
        if kind in (tuple, frozenset):
            self._look_at_order(value)
            return {kind.__name__: [self._pack(inner, depth + 1) for inner in value]}
        if kind is slice:
            return {"slice": [self._pack(end, depth + 1) for end in (value.start, value.stop, value.step)]}
        if kind in PARTS and (kind not in (time, datetime) or _is_in_a_fixed_zone(value)):
            return {kind.__name__: PARTS[kind](value)}
        if parts := parts_of_number(value):
            return {"number": parts}
        if id(value) in NAMED:
            return {"builtin": NAMED[id(value)]}
        return self._keep(value, lambda inner: self._pack(inner, depth + 1))

    def _content(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            return [[self._pack(key, depth), self._pack(inner, depth)] for key, inner in value.items()]
        if type(value) is bytearray:
            return value.decode("latin-1")
        if type(value) not in CHANGEABLE:
            return content_of(value)
        if type(value) is list and are_in_json(value):  # as most long ones are
            return value[:]
        self._look_at_order(value)
        return [self._pack(inner, depth) for inner in value]

    def _look_at_order(self, value: Any) -> None:
        if type(value) in (set, frozenset):
            self._compare(value, type(value)([*value]))

    def _compare(self, one: Iterable[Any], other: Iterable[Any]) -> None:
        if any(map(operator.is_not, one, other)):
            self.differs = "a set in another order"

    def _unpack(self, packed: Any) -> Any:
        if type(packed) is not dict:
            if type(packed) is list:
                raise NoValue("what arrived is no value")
            return packed
        ((name, parts),) = packed.items()
        if name == "met":
            return self._known_as(parts)
        if name in EMPTY:
            number, head, content = parts
            made = EMPTY[name](self._unpack(head))
            if type(number) is not int or number % 2 == self._next % 2 or number in self._known:
                raise NoValue("what arrived has no number of its own")
            self._learn(number, made)
            self._fill(made, content)
            return made
        if name in ("tuple", "frozenset"):
            inners = [self._unpack(inner) for inner in parts]
            made = BUILTINS[name](inners)
            self._compare(made, inners)
            return made
        if name == "slice":
            start, stop, step = map(self._unpack, parts)
            return slice(start, stop, step)
        return BUILT[name](parts) if name in BUILT else self._find(name, parts, self._unpack)

    def _fill(self, value: Any, content: Any) -> None:
        """Give a value that can change this content. All of it is there before the first change."""
        if type(value) is bytearray:
            value[:] = content.encode("latin-1")
            return
        if type(value) not in CHANGEABLE:
            set_array(value, content)
            return
        if type(content) is not list:
            raise NoValue("what arrived is no content")
        if isinstance(value, dict):
            items = [(self._unpack(key), self._unpack(inner)) for key, inner in content]
            if [(type(key), key) for key, _ in items] != [(type(key), key) for key in value]:
                value.clear()
            for key, inner in items:
                value[key] = inner
        elif type(value) is list:
            value[:] = [self._unpack(inner) for inner in content]
        else:
            inners = [self._unpack(inner) for inner in content]
            value.clear()
            (value.update if type(value) is set else value.extend)(inners)
            self._compare(value, inners)

    def _learn(self, number: int, value: Any) -> None:
        self._known[number], self._numbers[id(value)] = value, number

    def _known_as(self, number: Any) -> Any:
        if type(number) is not int or number not in self._known:
            raise NoValue("what arrived was not met")
        return self._known[number]
