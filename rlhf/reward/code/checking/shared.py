"""Values that both processes have and either may change: each has its own copy, and every message tells what has
changed since the one before. Only one of the two runs at a time, so both always see the same."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any

from rlhf.reward.code.checking.arrays import is_array, items_of_array
from rlhf.reward.code.checking.snapshots import SharedValue, Snapshots, items_of, same
from rlhf.reward.code.checking.values import (
    MOST_BYTES,
    Met,
    NoValue,
    content,
    fill,
    holds_own_keys,
    in_json,
    named,
    no_collections,
    pack_value,
    unpack_value,
)

PLAIN_KEYS = (int, str, bool, float, bytes)
Keep = Callable[[Any], Any]
"""Encodes a value that is not plain. Raises `NoValue`."""
Find = Callable[[str, Any], Any]
"""The value that was encoded so."""

OF_THE_TESTS, OF_THE_CODE = 0, 1
"""Which numbers a process gives to what it sends first: even or odd ones."""
KEPT = 2
"""For how many messages to the other a value is kept that nothing else in this process has: it may be sent again."""


class Lost(NoValue):
    """A value that both have holds now what cannot be sent."""


class Shared(Met):
    """The shared values of one of the two processes. What one of them no longer has anywhere else is shared no more, as
    its next message tells; at once where it has an item that `hangs` on it: the other process lets go of that too."""

    def __init__(self, mine: int, hangs: Callable[[Any], bool] = lambda item: False) -> None:
        self._snapshots = Snapshots()
        self._numbers: dict[int, int] = {}
        self._mine = self._next = mine
        self._hangs = hangs
        self.of_the_code = mine == OF_THE_CODE
        self._message = 0
        self._new: list[int] = []
        self._left: list[int] = []
        self._withheld: set[int] = set()

    def number(self, value: Any) -> int | None:
        number = self._numbers.get(id(value))
        if number is not None:
            if number in self._withheld:
                raise NoValue("a value holds what cannot be sent")
            self._snapshots.entries[number].used = self._message
        return number

    def add(self, value: Any) -> int:
        number, self._next = self._next, self._next + 2
        self._enter(number, value)
        return number

    def learn(self, number: Any, value: Any) -> None:
        if type(number) is not int or number % 2 == self._mine or number in self._snapshots.entries:
            raise NoValue("what arrived has no number of its own")
        self._enter(number, value)

    def numbered(self, number: Any) -> Any:
        entry = self._entry(number)
        entry.used = self._message
        return entry.value

    def line(self, about: dict[str, Any], values: list[Any], keep: Keep, most: float = MOST_BYTES) -> bytes:
        """A message that says `about` and has these values, and what has changed since the last message. Raises
        `NoValue`, and is no message then: for a value that cannot be sent, or more than `most` bytes."""
        with no_collections():
            return self._line(about, values, keep, most)

    def take(self, message: dict[str, Any], find: Find) -> list[Any]:
        """The values of a message, after what else it tells is done. Raises `Lost`, when all is done, and `NoValue`."""
        with no_collections():
            return self._take(message, find)

    def _line(self, about: dict[str, Any], values: list[Any], keep: Keep, most: float) -> bytes:
        self._message += 1
        told: list[tuple[SharedValue, tuple[Any, ...]]] = []
        self._new, self._withheld = [], set()
        changed, alone = self._looked_at()
        try:
            changes = [[number, self._change(number, keep, told)] for number in changed]
            if len(in_json({"changed": changes})) >= most:  # it may be that nobody has use for them
                self._forget(self._new)
                told, self._new, self._withheld = [], [], set(changed)
                changes = [[number, None] for number in changed]
            packed = [pack_value(value, keep, self) for value in values]
            alone = [number for number in alone if self._snapshots.entries[number].used < self._message]
            line = in_json(about | {"values": packed, "changed": changes, "left": [*self._left, *alone]})
            if len(line) >= most:
                raise NoValue(f"it has more than {MOST_BYTES} bytes")
        except BaseException:
            self._forget(self._new)
            raise
        for entry, items in told:
            entry.is_told(items)
        self._forget(alone)
        self._left = []
        return line

    def _take(self, message: dict[str, Any], find: Find) -> list[Any]:
        left, changed, packed = (message.get(part) for part in ("left", "changed", "values"))
        if type(left) is not list or type(changed) is not list or type(packed) is not list:
            raise NoValue("what arrived is no message")
        self._new, told, lost = [], [], False
        for number in left:
            self._entry(number)
            self._forget([number])
        for one in changed:
            if type(one) is not list or len(one) != 2:
                raise NoValue("a change is none")
            entry = self._entry(one[0])
            if one[1] is not None:
                entry.used = self._message
                become(entry, one[1], find, self)
                told.append(entry)
            elif entry.is_alone():
                self._forget(one[:1])
                self._left += one[:1]
            else:
                lost = True
        values = [unpack_value(value, find, self) for value in packed]
        for entry in (*told, *(self._snapshots.entries[number] for number in self._new)):
            entry.is_told(items_of(entry.value))
        if lost:
            raise Lost("a value that both have holds what cannot be sent")
        return values

    def packed(self, value: Any, keep: Keep) -> Any:
        """The encoded value; None where it cannot be sent."""
        return self._if_it_can_be_sent(lambda: pack_value(value, keep, self))

    def _if_it_can_be_sent(self, pack: Callable[[], Any]) -> Any:
        known = len(self._new)
        try:
            return pack()
        except NoValue:
            self._forget(self._new[known:])
            del self._new[known:]
            return None

    def _enter(self, number: int, value: Any) -> None:
        self._snapshots.enter(number, value, self._message)
        self._numbers[id(value)] = number
        self._new.append(number)

    def _entry(self, number: Any) -> SharedValue:
        if type(number) is not int or number not in self._snapshots.entries:
            raise NoValue("what arrived was not met")
        return self._snapshots.entries[number]

    def _forget(self, numbers: list[int]) -> None:
        for number in numbers:
            del self._numbers[id(self._snapshots.leave(number))]

    def _looked_at(self) -> tuple[list[int], list[int]]:
        """The numbers of what has changed, and of what nobody has here and that has not been sent for some messages,
        which is shared no more. A value of a kind of the code's is what the tests have of it: they may send it back."""
        changed, unheld = self._snapshots.looked_at()
        alone, oldest = [], self._message - KEPT
        for number in set(unheld).difference(changed):
            entry = self._snapshots.entries[number]
            is_over = entry.used < oldest or any(map(self._hangs, entry.items))
            if is_over and (self._mine == OF_THE_TESTS or _is_plain(entry.value)):
                alone.append(number)
        return changed, sorted(alone)

    def _change(self, number: int, keep: Keep, told: list[tuple[SharedValue, tuple[Any, ...]]]) -> Any:
        """What the value is now; None where it holds what cannot be sent, which the other may have no use for."""
        entry = self._snapshots.entries[number]
        now = items_of(entry.value)  # once: a thread of the code may go on changing it
        packed = self._if_it_can_be_sent(lambda: change_of(entry, now, keep, self))
        if packed is None:
            self._withheld.add(number)
            return None
        entry.used = self._message
        told.append((entry, now))
        return packed


def _is_plain(value: Any) -> bool:
    return bool(named(value)) or is_array(value) or type(value) is float


def change_of(entry: SharedValue, now: tuple[Any, ...], keep: Keep, shared: Shared) -> Any:
    """What has become of a value, whose items are these `now`: of a list the part between what is as it was, of a dict
    that has only grown the pairs that are new, of an array its items, of others all they hold. Raises `NoValue`."""
    value, before = entry.value, entry.items
    if is_array(value):
        if before[:2] != now[:2]:
            raise NoValue("an array has another form than before")
        return items_of_array(value)
    if issubclass(type(value), list):
        start, end = _same_ends(before, now)
        parts = [pack_value(inner, keep, shared) for inner in now[start : len(now) - end]]
        return {"from": start, "to": len(before) - end, "items": parts}
    known = len(before) // 2
    if issubclass(type(value), dict) and len(now) >= len(before) and same(before[:known], now[:known]):
        held = len(now) // 2
        alike = [*map(operator.is_, before[known:], now[held : held + known])]
        new = [*(place for place in range(known) if not alike[place])] if False in alike else []
        new += range(known, held)
        if shared.of_the_code and holds_own_keys(value):
            raise NoValue("a dictionary has now objects that say to what they are equal")
        return {"items": [[pack_value(now[part], keep, shared) for part in (place, held + place)] for place in new]}
    return content(value, keep, shared)


def _same_ends(before: tuple[Any, ...], now: tuple[Any, ...]) -> tuple[int, int]:
    """How many items are as they were at the start, and at the end."""
    alike = [*map(operator.is_, before, now), False]
    start = alike.index(False)
    rest = min(len(before), len(now)) - start
    alike = [*map(operator.is_, before[::-1][:rest], now[::-1][:rest]), False]
    return start, alike.index(False)


def become(entry: SharedValue, packed: Any, find: Find, shared: Shared) -> None:
    """Change a value in place as the other process tells. Raises `NoValue`."""
    value, kind = entry.value, type(entry.value)
    try:
        if is_array(value):
            find("write", [value, packed])
        elif type(packed) is dict:
            _change_a_part(value, packed, find, shared)
        else:
            _change_all(value, kind, packed, find, shared)
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise NoValue(f"what arrived is no content: {type(error).__name__}") from None


def _change_a_part(value: Any, packed: dict[str, Any], find: Find, shared: Shared) -> None:
    start, end, items = (packed.get(part) for part in ("from", "to", "items"))
    if issubclass(type(value), dict):
        fresh: dict[Any, Any] = {}
        fill(fresh, items, find, shared)
        for key, inner in fresh.items():
            value[key] = inner
    elif issubclass(type(value), list) and type(start) is int and type(end) is int and 0 <= start <= end <= len(value):
        part: list[Any] = []
        fill(part, items, find, shared)
        value[start:end] = part
    else:
        raise ValueError("this has no such part")


def _change_all(value: Any, kind: type, packed: Any, find: Find, shared: Shared) -> None:
    fresh: Any = {} if issubclass(kind, dict) else bytearray() if issubclass(kind, bytearray) else []
    fill(fresh, packed, find, shared)
    if issubclass(kind, dict):
        if not _same_keys([*value], [*fresh]):  # else not cleared: somebody may be going through it
            value.clear()
        for key, inner in fresh.items():
            value[key] = inner
    elif issubclass(kind, list | bytearray):
        value[:] = fresh
    elif issubclass(kind, deque) and len(value) == len(fresh):
        for place, inner in enumerate(fresh):
            value[place] = inner
    else:
        value.clear()
        value.update(fresh) if issubclass(kind, set) else value.extend(fresh)


def _same_keys(ours: list[Any], theirs: list[Any]) -> bool:
    """Whether keys are the same in order. Of others than plain ones identity decides."""
    return len(ours) == len(theirs) and all(
        one is other or (type(one) is type(other) and type(one) in PLAIN_KEYS and one == other)
        for one, other in zip(ours, theirs, strict=True)
    )
