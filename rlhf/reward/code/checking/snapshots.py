"""What each shared value held at the last message, so that the next can tell what has changed since. Small values are
looked at many at once."""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from rlhf.reward.code.checking.arrays import is_array, owner_of

LONG = 500
"""From so many items on, the places of two tuples' items are compared as memory: twelve times as fast as one by one."""
TOGETHER = 256
"""So many values of fewer items are looked at together."""
RARELY = 16
"""Where there is nothing new, every so many looks of one asks which of many values nothing else has."""
COMPARE_MEMORY = ctypes.CDLL(None).memcmp
COMPARE_MEMORY.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class SharedValue:
    """A shared value, its items at the last message, the message that had it last, and with which others it is looked
    at."""

    __slots__ = ("group", "items", "used", "value")

    def __init__(self, value: Any, used: int) -> None:
        self.value, self.items, self.used = value, items_of(value), used
        self.group: SmallValues | None = None

    def is_unchanged(self) -> bool:
        """Whether the value has the very items that it had."""
        if type(self.value) is not list and is_array(self.value):
            return bool(self.items == items_of(self.value))
        return same(self.items, items_of(self.value))

    def is_told(self, items: tuple[Any, ...]) -> None:
        """The other process knows now that the value holds these."""
        self.items = items
        if self.group:
            self.group.look_anew()

    def is_alone(self) -> bool:
        """Whether nothing else has the value."""
        return next(references([self])) <= ALONE + bool(self.group and self.group.values)


VALUE: Callable[[SharedValue], Any] = operator.attrgetter("value")
VALUES_OF: Callable[[Any], Iterable[Any]] = operator.methodcaller("values")


def references(entries: Iterable[SharedValue]) -> Iterator[int]:
    """How many references there are to each value."""
    return map(sys.getrefcount, map(VALUE, entries))


def items_of(value: Any) -> tuple[Any, ...]:
    """The items of a value that can change; of an array its form and its bytes, which a view has of its array; of a
    NaN, which is shared for its identity alone, none."""
    if type(value) is list:
        return tuple(value)
    if type(value) is float:
        return ()
    if is_array(value):
        return value.shape, value.dtype.str, value.tobytes() if owner_of(value) is None else b""
    return (*value, *value.values()) if issubclass(type(value), dict) else tuple(value)


def same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Whether two tuples have the very same items."""
    if len(before) != len(now):
        return False
    if len(now) < LONG:
        return all(map(operator.is_, before, now))
    places = (id(items) + tuple.__basicsize__ for items in (before, now))
    return bool(COMPARE_MEMORY(*places, len(now) * tuple.__itemsize__) == 0)


ALONE = next(references([SharedValue([], 0)]))
"""That many has a value that nothing else has."""


class SmallValues:
    """Small values that are looked at together: either dictionaries, or others, but no arrays."""

    def __init__(self, *, of_pairs: bool) -> None:
        self.entries: dict[int, SharedValue] = {}
        self.values: list[Any] = []
        """The entries' values, and what they held, if nothing of it is other than when they were looked at last."""
        self._of_pairs = of_pairs
        self._lengths: list[int] = []
        self._items: tuple[Any, ...] = ()

    def look_anew(self) -> None:
        """There are others than before, or they hold by now what the other process was told."""
        self.values, self._items = [], ()

    def changed(self) -> list[int]:
        """The numbers of those that have changed."""
        if not self.values:
            self.values = [entry.value for entry in self.entries.values()]
            self._lengths = [len(entry.items) // (1 + self._of_pairs) for entry in self.entries.values()]
            self._items = tuple(chain.from_iterable(entry.items for entry in self.entries.values()))
        parts: Iterable[Any] = self.values
        if self._of_pairs:
            parts = chain.from_iterable(zip(parts, map(VALUES_OF, parts), strict=True))
        if [*map(len, self.values)] == self._lengths and same(self._items, tuple(chain.from_iterable(parts))):
            return []
        return [number for number, entry in self.entries.items() if not entry.is_unchanged()]

    def alone(self) -> list[int]:
        """The numbers of those that nothing else has."""
        if self.values and min(map(sys.getrefcount, self.values)) > ALONE + 1:
            return []
        return [number for number, entry in self.entries.items() if entry.is_alone()]


class Snapshots:
    """Shared values by their numbers."""

    def __init__(self) -> None:
        self.entries: dict[int, SharedValue] = {}
        self._new: dict[int, SharedValue] = {}
        self._singly: dict[int, SharedValue] = {}
        self._groups: list[SmallValues] = []
        self._open: dict[bool, SmallValues] = {}
        self._looks = 0

    def enter(self, number: int, value: Any, used: int) -> None:
        """Have another one, which may still be filled."""
        self.entries[number] = self._new[number] = SharedValue(value, used)

    def leave(self, number: int) -> Any:
        """Have one no longer; its value."""
        entry = self.entries.pop(number)
        for having in (self._new, self._singly):
            having.pop(number, None)
        if entry.group:
            del entry.group.entries[number]
            entry.group.look_anew()
        return entry.value

    def looked_at(self) -> tuple[list[int], list[int]]:
        """The numbers of those that have changed, and of those that nothing else has."""
        self._looks += 1
        asks = bool(self._new) or len(self.entries) <= TOGETHER or self._looks % RARELY == 0
        self._place()
        return self._changed(), self._alone() if asks else []

    def _changed(self) -> list[int]:
        singly = [number for number, entry in self._singly.items() if not entry.is_unchanged()]
        return singly + [number for group in self._groups for number in group.changed()]

    def _alone(self) -> list[int]:
        singly = [number for number, entry in self._singly.items() if entry.is_alone()]
        return singly + [number for group in self._groups for number in group.alone()]

    def _place(self) -> None:
        for number, entry in self._new.items():
            kind: Any = type(entry.value)
            if (kind is not list and (kind is float or is_array(entry.value))) or len(entry.items) >= LONG:
                self._singly[number] = entry
                continue
            of_pairs = kind is not list and issubclass(kind, dict)
            group = self._open.get(of_pairs)
            if group is None or not group.entries or len(group.entries) >= TOGETHER:
                group = self._open[of_pairs] = SmallValues(of_pairs=of_pairs)
                self._groups.append(group)
            entry.group = group
            group.entries[number] = entry
            group.look_anew()
        self._new = {}
        self._groups = [group for group in self._groups if group.entries]
