"""Plain values cross as they are, with what has changed of them; whatever else arrives is refused."""

from __future__ import annotations

import copy
import json
import math
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.reward.code.checking.lines import in_json, of_json
from rlhf.reward.code.checking.values import DEEPEST, NoValue, Shared


def refuse(*_: Any) -> Any:
    raise NoValue("no value")


class Ends:
    """Two ends that speak in turn."""

    def __init__(self) -> None:
        self.sides = Shared(0, refuse, refuse), Shared(1, refuse, refuse)

    def say(self, by: int, value: Any) -> Any:
        """The value as it arrives at the other end."""
        return self.sides[1 - by].received(of_json(in_json(self.sides[by].message(value))))

    def known(self) -> tuple[int, int]:
        return len(self.sides[0]._known), len(self.sides[1]._known)


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
    assert shape(Ends().say(0, value), {}) == shape(value, {})


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
        assert repr(Ends().say(0, value)) == repr(value)
    assert math.isnan(Ends().say(0, math.nan))


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
@pytest.mark.parametrize("by", [0, 1])
def test_what_one_side_changes_the_other_sees_and_it_comes_back_as_itself(
    value: Any, change: Callable[[Any], Any], by: int
) -> None:
    value, ends = copy.deepcopy(value), Ends()
    arrived = ends.say(by, value)
    change(arrived)
    answered = ends.say(1 - by, [arrived, [9]])
    assert shape(answered, {}) == shape([arrived, [9]], {})
    assert shape(value, {}) == shape(arrived, {})
    assert answered[0] is value or type(value) is tuple
    change(value)
    ends.say(by, None)
    assert shape(value, {}) == shape(arrived, {})


def test_what_was_not_changed_is_neither_told_nor_sent_again() -> None:
    ends, value = Ends(), [[1, 2], {"a": {2}}]
    arrived = ends.say(0, value)
    assert ends.sides[1].message(arrived) == {"changes": [], "values": {"met": 0}, "gone": []}
    told = ends.sides[0].message(value)
    assert told == {"changes": [], "values": {"met": 0}, "gone": []}


def test_what_nobody_has_is_forgotten() -> None:
    ends = Ends()
    value = [[1], {"a": [2]}, [object]]
    arrived = ends.say(0, value)
    assert ends.known() == (5, 5)
    del value
    ends.say(1, None)
    ends.say(0, None)
    assert ends.known() == (0, 0)
    arrived.append(3)
    value = ends.say(1, arrived)
    assert value == [[1], {"a": [2]}, [object], 3]
    del arrived
    ends.say(0, None)
    ends.say(1, None)
    assert ends.known()[1] == 0


KINDS: tuple[Callable[[], Any], ...] = (
    *(list, dict, set, bytearray, deque, Counter, OrderedDict),
    *(lambda: deque(maxlen=2), lambda: defaultdict(list)),
)


def change(value: Any, others: list[Any], chance: random.Random) -> None:
    """Change a value: the same way where chance is the same."""
    inner = others[chance.randrange(len(others))] if chance.random() < 0.5 else chance.randrange(5)
    match value:
        case Counter():
            value[chance.randrange(5)] += 1
        case dict():
            value.pop(next(iter(value))) if len(value) > 3 else value.update({chance.randrange(5): inner})
        case set():
            value ^= {chance.randrange(5)}
        case bytearray():
            value.append(chance.randrange(256))
        case _:
            value.popleft() if isinstance(value, deque) and len(value) > 3 else value.append(inner)


@pytest.mark.parametrize("seed", range(20))
def test_both_sides_see_what_one_python_sees(seed: int) -> None:
    chance, ends = random.Random(seed), Ends()
    made: list[Any] = [kind() for kind in KINDS]
    for value in made:
        change(value, made, chance)
    model = copy.deepcopy(made)
    sides = [made, ends.say(0, made)]
    assert shape(sides[1], {}) == shape(model, {})
    for turn in range(60):
        by, state = turn % 2, chance.getstate()
        for of in (sides[by], model):
            chance.setstate(state)
            for _ in range(3):
                change(of[chance.randrange(len(KINDS) - 3)], of[:5], chance)
        if turn % 7 == 6:  # one that the other side alone has from here on
            for of in (sides[by], model):
                of[0] = [*of[0]][-2:]
        sides[1 - by] = ends.say(by, sides[by])
        assert shape(sides[1 - by], {}) == shape(model, {}), turn


FORGED = [
    *([1], {}, {"list": 1, "dict": 2}, {"nothing": 1}, {"__class__": "int"}, {"list": [3]}, {"list": [None, "ab"]}),
    *({"list": [None, {"a": 1}]}, {"dict": [None, [[1]]]}, {"dict": [None, [[{"list": [None, []]}, 1]]]}),
    *({"set": [None, [{"dict": [None, []]}]]}, {"tuple": 5}, {"tuple": [[1]]}, {"met": 0}, {"met": -1}, {"met": True}),
    *({"int": 3}, {"int": "x"}, {"bytes": 5}, {"bytes": "\u1234"}, {"Fraction": ["0x1", "0x0"]}, {"Fraction": 1}),
    *({"range": ["0x0", "0x9", "0x0"]}, {"complex": [1, 2, 3]}, {"Decimal": "x"}, {"date": "x"}, {"datetime": 5}),
    *({"timedelta": [10**20, 0, 0]}, {"builtin": "eval"}, {"builtin": "open"}, {"builtin": ["len"]}),
    *({"deque": [-1, []]}, {"deque": ["a", []]}, {"defaultdict": ["eval", []]}, {"defaultdict": [[], []]}),
    *({"bytearray": [None, [1]]}, {"bytearray": [None, "\u1234"]}, {"Counter": [None, [[{"set": [None, []]}, 1]]]}),
    *({"frozenset": [{"list": [1, None, []]}]}, {"ndarray": [1, ["|O8", [1]], ""]}, {"number": None}, {"object": 1}),
    *({"ndarray": [1, {"tuple": ["|O8", {"tuple": [1]}]}, ""]}, {"ndarray": [1, None, ""]}, {"deque": [1, -1, []]}),
    *({"deque": [1, "a", []]}, {"defaultdict": [1, "eval", []]}, {"defaultdict": [1, {"int": "0x5"}, []]}),
]


@pytest.mark.parametrize("packed", FORGED, ids=json.dumps)
def test_what_is_no_value_is_refused(packed: Any) -> None:
    for whole in (packed, {"tuple": [1, packed]}, {"frozenset": [packed]}):
        with pytest.raises(NoValue):
            Shared(0, refuse, refuse).received({"changes": [], "values": whole, "gone": []})


@pytest.mark.parametrize("number", [0, 2, -2, True, 1.0, "1", None, []])
def test_a_number_is_that_of_the_side_that_gives_it(number: Any) -> None:
    side = Shared(0, refuse, refuse)
    with pytest.raises(NoValue):
        side.received({"changes": [], "values": {"list": [number, None, []]}, "gone": []})
    twice = {"tuple": [{"list": [1, None, [1]]}, {"list": [1, None, [2]]}]}
    with pytest.raises(NoValue):
        side.received({"changes": [], "values": twice, "gone": []})


@pytest.mark.parametrize(
    "message",
    [
        *({"changes": changes} for changes in (5, None, [5], [[0]], [[0, 5]], [[0, [[1]]]], [[0, {}]])),
        *({"changes": [[number, []]]} for number in (1, -2, True, "a", None, [])),
        *({"gone": gone} for gone in (5, None, {}, "0")),
        *({"values": ...}, {"values": [1]}),
    ],
)
def test_a_message_that_is_none_is_refused(message: dict[str, Any]) -> None:
    side, value = Shared(0, refuse, refuse), [1]
    side.message(value)
    told = {"changes": [], "values": None, "gone": []} | message
    with pytest.raises(NoValue):
        side.received({key: part for key, part in told.items() if part is not ...})
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
            Shared(0, refuse, refuse).message(value)
    circle: list[Any] = []
    circle.append(circle)
    arrived = Ends().say(0, circle)
    assert arrived[0] is arrived


def test_a_value_that_does_not_cross_leaves_nothing() -> None:
    ends = Ends()
    assert not ends.sides[0].is_plain([[1], object()])
    with pytest.raises(NoValue):
        ends.sides[0].message([[1], object()])
    assert ends.known() == (0, 0)
    assert ends.say(0, [[2], [3]]) == [[2], [3]]
