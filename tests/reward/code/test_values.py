"""Plain values cross as they are, with what has changed of them; whatever else arrives is refused."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.reward.code.checking.values import DEEPEST, Crossing, NoValue, in_json, of_json


def refuse(*_: Any) -> Any:
    raise NoValue("no value")


class Ends:
    """Two ends of one request."""

    def __init__(self) -> None:
        self.asks, self.answers = Crossing(refuse, refuse), Crossing(refuse, refuse)

    def ask(self, value: Any) -> Any:
        return self.answers.take(of_json(in_json(self.asks.pack(value))))

    def answer(self, value: Any) -> Any:
        told = of_json(in_json([self.answers.changes(), self.answers.pack(value)]))
        self.asks.apply(told[0])
        return self.asks.unpack(told[1])


def shape(value: Any, seen: dict[int, int]) -> Any:
    """A value with the types of all its parts, and which of those that can change are one."""
    kind = type(value)
    if kind in (list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict):
        if id(value) in seen:
            return seen[id(value)]
        seen[id(value)] = len(seen)
    more = [getattr(value, "maxlen", None), getattr(value, "default_factory", None)]
    if isinstance(value, dict):
        return kind, more, [(shape(key, seen), shape(inner, seen)) for key, inner in value.items()]
    if kind in (list, tuple, deque):
        return kind, more, [shape(inner, seen) for inner in value]
    if kind in (set, frozenset):
        return kind, sorted(repr(shape(inner, seen)) for inner in value)
    return kind, repr(value)


SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.integers(-(10**30), 10**30), st.floats(), st.complex_numbers()),
    *(st.text(), st.binary(), st.fractions(), st.decimals(), st.dates(), st.times(), st.timedeltas(), st.datetimes()),
    st.characters(categories=["Cs"]),
    st.sampled_from([..., NotImplemented, int, len, ValueError, 10**4000, -0.0, range(1, 9, 2), slice(None, 3)]),
    st.datetimes(timezones=st.just(timezone(timedelta(hours=2)))),
)
KEYS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.tuples(st.integers(), st.text()))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        *(st.lists(inner), st.tuples(inner, inner), st.dictionaries(KEYS, inner), st.sets(KEYS), st.frozensets(KEYS)),
        *(st.lists(inner).map(deque), st.lists(inner).map(lambda items: deque(items, 3)), st.binary().map(bytearray)),
        *(st.lists(KEYS).map(Counter), st.dictionaries(KEYS, inner).map(OrderedDict)),
        st.dictionaries(KEYS, inner).map(lambda items: defaultdict(list, items)),
        inner.map(lambda one: [one, one]),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_a_value_arrives_as_it_is(value: Any) -> None:
    assert shape(Ends().ask(value), {}) == shape(value, {})


def test_numbers_keep_their_sign_and_letters_their_halves() -> None:
    for value in (
        Decimal("-0E+3"),
        datetime(2020, 1, 2, fold=1),
        -0.0,
        float("inf"),
        "\ud83d\ude00",
        ["\ud83d", "\ude00"],
        1e-320,
        True,
        1.0,
    ):
        assert repr(Ends().ask(value)) == repr(value)
    assert math.isnan(Ends().ask(math.nan))


CHANGES: list[tuple[Any, Callable[[Any], Any]]] = [
    ([3, 1], lambda x: x.sort()),
    ([1, [2]], lambda x: x[1].append(x[0])),
    ([1], lambda x: x.append(x)),
    ([1], lambda x: x.__setitem__(0, True)),
    ([1], lambda x: x.__setitem__(0, 1.0)),
    ({"a": 1}, lambda x: x.update(b=[x])),
    ({1: 2, 3: 4}, lambda x: x.update({1: x.pop(1)})),
    ({1}, lambda x: x.clear()),
    (bytearray(b"ab"), lambda x: x.reverse()),
    (deque([1, 2], 2), lambda x: x.append(3)),
    (Counter("ab"), lambda x: x.update("a")),
    (OrderedDict(a=1, b=2), lambda x: x.move_to_end("a")),
    (defaultdict(list), lambda x: x["k"].append(1)),
    (([1], {2}), lambda x: (x[0].clear(), x[1].add(3))),
]


@pytest.mark.parametrize(("value", "change"), CHANGES)
def test_what_is_changed_there_is_changed_here_and_comes_back_as_itself(
    value: Any, change: Callable[[Any], Any]
) -> None:
    ends = Ends()
    arrived = ends.ask(value)
    change(arrived)
    answered = ends.answer([arrived, [9]])
    assert shape(answered, {}) == shape([arrived, [9]], {})
    assert shape(value, {}) == shape(arrived, {})
    assert answered[0] is value or type(value) is tuple


def test_what_was_not_changed_is_not_told() -> None:
    ends = Ends()
    ends.ask([[1], {"a": {2}}])
    assert ends.answers.changes() == []


FORGED = [
    *([1], {}, {"list": 1, "dict": 2}, {"nothing": 1}, {"__class__": "int"}, {"list": [3]}, {"list": [None, "ab"]}),
    *({"list": [None, {"a": 1}]}, {"dict": [None, [[1]]]}, {"dict": [None, [[{"list": [None, []]}, 1]]]}),
    *({"set": [None, [{"dict": [None, []]}]]}, {"tuple": 5}, {"tuple": [[1]]}, {"met": 0}, {"met": -1}, {"met": True}),
    *({"int": 3}, {"int": "x"}, {"bytes": 5}, {"bytes": "\u1234"}, {"Fraction": ["0x1", "0x0"]}, {"Fraction": 1}),
    *({"range": ["0x0", "0x9", "0x0"]}, {"complex": [1, 2, 3]}, {"Decimal": "x"}, {"date": "x"}, {"datetime": 5}),
    *({"timedelta": [10**20, 0, 0]}, {"builtin": "eval"}, {"builtin": "open"}, {"builtin": ["len"]}),
    *({"deque": [-1, []]}, {"deque": ["a", []]}, {"defaultdict": ["eval", []]}, {"defaultdict": [[], []]}),
    *({"bytearray": [None, [1]]}, {"bytearray": [None, "\u1234"]}, {"Counter": [None, [[{"set": [None, []]}, 1]]]}),
    *({"frozenset": [{"list": [None, []]}]}, {"array": ["|O8", [1], ""]}, {"array": None}, {"object": 1}),
]


@pytest.mark.parametrize("packed", FORGED, ids=json.dumps)
def test_what_is_no_value_is_refused(packed: Any) -> None:
    for whole in (packed, {"tuple": [1, packed]}, {"frozenset": [packed]}):
        with pytest.raises(NoValue):
            Crossing(refuse, refuse).unpack(whole)


@pytest.mark.parametrize(
    "changes",
    [5, None, [5], [[0]], [[0, 5]], [[0, [[1]]]], [[1, []]], [[-1, []]], [[True, []]], [["a", []]], [[0, {}]]],
)
def test_changes_that_are_none_are_refused(changes: Any) -> None:
    value = [1]
    crossing = Crossing(refuse, refuse)
    crossing.pack(value)
    with pytest.raises(NoValue):
        crossing.apply(changes)
    assert value == [1]


def test_values_without_end_are_refused() -> None:
    deep: Any = []
    wide: Any = ()
    for _ in range(DEEPEST + 1):
        deep = [deep]
    for _ in range(40):
        wide = (wide, wide)
    for value in (deep, wide):
        with pytest.raises(NoValue):
            Crossing(refuse, refuse).pack(value)
    circle: list[Any] = []
    circle.append(circle)
    arrived = Ends().ask(circle)
    assert arrived[0] is arrived


def test_a_value_that_does_not_cross_leaves_no_number() -> None:
    ends = Ends()
    assert ends.asks.packed_if_plain([[1], object()]) is None
    assert ends.ask([[2], [3]]) == [[2], [3]]
