"""What two processes share is the same to both, whoever changes it: two ends, played at random beside one Python."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest

from rlhf.reward.code.checking.shared import KEPT, OF_THE_CODE, OF_THE_TESTS, Lost, Shared
from rlhf.reward.code.checking.snapshots import LONG, RARELY, TOGETHER
from rlhf.reward.code.checking.values import NoValue

KINDS: tuple[Callable[[], Any], ...] = (
    *(list, dict, set, bytearray, deque, Counter, OrderedDict),
    *(lambda: deque(maxlen=2), lambda: defaultdict(list)),
)


def refuse(*what: Any) -> Any:
    raise NoValue("no value")


class Ends:
    """Two ends that speak in turn."""

    def __init__(self) -> None:
        self.sides = Shared(OF_THE_TESTS), Shared(OF_THE_CODE)

    def say(self, by: int, *values: Any) -> list[Any]:
        line = self.sides[by].line({}, list(values), refuse)
        return self.sides[1 - by].take(json.loads(line), refuse)

    def sizes(self) -> list[int]:
        return [len(side._snapshots.entries) for side in self.sides]


def shape(value: Any, seen: dict[int, int]) -> Any:
    """A value with its kinds, its items and which of them are one."""
    if type(value) in (int, str):
        return value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = -1 - len(seen)
    if isinstance(value, set | bytearray):
        return type(value), sorted(value)
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return type(value), getattr(value, "maxlen", None), [(key, shape(inner, seen)) for key, inner in pairs]


def change(value: Any, others: list[Any], chance: random.Random) -> None:
    """Change a value: the same way where chance is the same."""
    inner = others[chance.randrange(len(others))] if chance.random() < 0.5 else chance.randrange(5)
    match value:
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
        if not isinstance(value, Counter):
            change(value, made, chance)
    model = copy.deepcopy(made)
    sides = [made, ends.say(0, *made)]
    assert shape(sides[1], {}) == shape(model, {})
    for turn in range(60):
        by = turn % 2
        for _ in range(chance.randrange(4)):
            which, seed_of_change = chance.randrange(len(KINDS)), chance.random()
            if isinstance(model[which], Counter):
                continue
            for values in (sides[by], model):
                change(values[which], values, random.Random(seed_of_change))
        told = ends.say(by, *(sides[by] if chance.random() < 0.3 else sides[by][:1]))
        assert all(one is known for one, known in zip(told, sides[1 - by], strict=False))
        assert shape(sides[1 - by], {}) == shape(model, {}) == shape(sides[by], {})


def test_what_one_side_has_forgotten_is_shared_no_more() -> None:
    ends = Ends()
    for turn in range(4 * (KEPT + 1)):
        ends.say(turn % 2, *([[[turn], turn]] if turn == 0 else []))
    assert ends.sizes() == [0, 0]


def test_a_message_that_cannot_be_sent_is_none() -> None:
    ends, kept = Ends(), [1]
    [theirs] = ends.say(0, kept)
    kept.append(2)
    with pytest.raises(NoValue):
        ends.say(0, [3], object())
    ends.say(0)
    assert theirs == [1, 2]
    assert ends.sizes() == [1, 1]


def test_what_cannot_be_sent_matters_only_to_a_side_that_has_it() -> None:
    ends, kept = Ends(), [1, [2]]
    [theirs] = ends.say(0, kept)
    kept.append(object())
    with pytest.raises(Lost):
        ends.say(0)
    del theirs
    ends.say(1)
    assert ends.say(0, 5) == [5]
    with pytest.raises(NoValue, match="cannot be sent"):
        ends.say(0, [kept])


@pytest.mark.parametrize("size", [3, LONG + 1, 30_000])
def test_what_nobody_uses_for_long_is_told_when_it_changes_however_large_and_be_it_by_an_equal_item(size: int) -> None:
    ends, kept = Ends(), [1] * size
    [theirs] = ends.say(0, kept)
    for _ in range(20):
        ends.say(1)
        ends.say(0)
    kept[-1] = True
    ends.say(0)
    assert theirs[-1] is True
    assert theirs[0] is not True
    theirs[0] = 7
    ends.say(1)
    assert kept[0] == 7


@pytest.mark.parametrize("seed", range(6))
def test_of_many_small_values_each_change_is_told_and_those_that_are_gone_are_shared_no_more(seed: int) -> None:
    chance, ends = random.Random(seed), Ends()
    mine: list[Any] = [KINDS[chance.randrange(len(KINDS))]() for _ in range(3 * TOGETHER)]
    [theirs] = ends.say(0, mine)
    sides = [mine, theirs]
    for turn in range(3 * RARELY):
        by = turn % 2
        for _ in range(chance.randrange(4)):
            change(sides[by][chance.randrange(len(mine))], [*range(9)], chance)
        if chance.random() < 0.5:
            sides[by].pop(chance.randrange(len(mine)))
        if chance.random() < 0.2:
            sides[by].append([turn])
        ends.say(by, *([[turn]] if chance.random() < 0.5 else []))
        assert shape(mine, {}) == shape(theirs, {})
    for turn in range(3 * RARELY):
        ends.say(turn % 2)
    assert ends.sizes() == [1 + len(mine)] * 2
