"""What `type`, `isinstance` and `match` answer in a test: Python would answer for the proxy."""

from __future__ import annotations

from collections import deque
from typing import Any

from rlhf.reward.code.checking.kinds import BASES
from rlhf.reward.code.checking.stand_ins import STAND_INS, KindOfStandIn
from rlhf.reward.code.checking.values import DEEPEST

PLAIN = (*BASES, bool, type(None))


def type_of(value: Any) -> Any:
    """What `type(value)` returns in a test."""
    if type(value) in (*STAND_INS.values(), *KindOfStandIn.link.kin.values()):
        KindOfStandIn.link.refuse("a test asks for the type of an object of the code")
    return type(value)


def is_instance(value: Any, kinds: Any) -> bool:
    """What `isinstance` returns in a test. Of a kind of a plain type only other plain types are known not to be its."""
    found = isinstance(value, kinds)
    if not found and type(value) in KindOfStandIn.link.kin.values():
        asked = kinds if isinstance(kinds, tuple) else (kinds,)
        if not all(kind in PLAIN for kind in asked):
            KindOfStandIn.link.refuse("a test asks for the class of an object of the code")
    return found


def own_or_type_of(value: Any) -> Any:
    """What the name `type` means in a test: a variable of that name is the test's own."""
    return type_of if value is type else value


def matched(value: Any, depth: int = 0) -> Any:
    """What `match` reads: no object of the code, at whatever depth."""
    if type(value) in STAND_INS.values():
        KindOfStandIn.link.refuse("a test matches an object of the code")
    if isinstance(value, list | tuple | dict | deque) and depth < DEEPEST:
        for inner in value.values() if isinstance(value, dict) else value:
            matched(inner, depth + 1)
    return value
