"""Random tests of code that keeps, shares and changes values: both processes see, step by step, what one sees."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlhf.reward.code.checking.host import ObjectServer
from rlhf.reward.code.checking.link import Link

CHANGES = """
from collections import *
def put(x, v, k=0):
    if isinstance(x, Counter): x[k] += 1
    elif isinstance(x, dict): x[k] = v
    elif isinstance(x, set): x ^= {k}
    elif isinstance(x, bytearray): x.append(k)
    else:
        x.append(v)
        if len(x) > 6: x.clear()
"""
CODE = (
    CHANGES
    + """
KINDS = [list, dict, set, bytearray, deque, OrderedDict, lambda: defaultdict(list), lambda: deque(maxlen=3), Counter]
store = [[], {}, [], {}, deque(), set()]
class Own(Exception):
    def __init__(self, x): self.x = x
class Other(Own): pass
class Box:
    def __init__(self, x): self.x = x
    def put(self, v): put(self.x, v, 5)
    def get(self): return self.x
def make(kind): return KINDS[kind]()
def keep(i, x): store[i] = x
def get(i): return store[i]
def push(i, j, k): put(store[i], store[j], k)
def push_given(i, v, k): put(store[i], v, k)
def same(x): return x
def both(x, y): return [x, (y, x)]
def copied(i): return store[i].copy()
def items(i): return [*(store[i].values() if isinstance(store[i], dict) else store[i])]
def swap(i, j): store[i], store[j] = store[j], store[i]
def each(i, f):
    for v in items(i)[:4]: f(v)
    return store[i]
def use(f, i, j):
    a = store[i]
    put(a, 1, 1)
    r = f(a, store[j])
    put(a, 2, 2)
    return [r, a]
def steps(i, j):
    for k in range(3):
        put(store[i], store[j], k)
        yield store[i]
def fail(i): raise (Other if i % 2 else Own)(store[i])
def again(f):
    try: f()
    except Exception as e: raise e
def box(i): return Box(store[i])
def within(i, j): return (store[i], {'k': store[j]}, frozenset([1]))
"""
)
OF_THE_CODE = frozenset(
    (
        *("Own", "Other", "make", "keep", "get", "push", "push_given", "same", "both", "copied", "items", "swap"),
        *("each", "use", "steps", "fail", "again", "box", "within"),
    )
)
VARIABLES = 5
STEPS = (
    *("{v} = make({n} % 9)", "{v} = get({i})", "keep({i}, {v})", "put({v}, {w}, {n} % 4)", "push({i}, {j}, {n} % 4)"),
    *(
        "push_given({i}, {v}, {n} % 4)",
        "{v} = same({w})",
        "{v} = both({v}, {w})",
        "{v} = copied({i})",
        "{v} = items({i})",
    ),
    *("swap({i}, {j})", "each({i}, lambda x: put({v}, x, {n} % 4))", "{v} = None", "{v} = []", "{v} = {w}"),
    *("{v} = use(lambda a, b: (put({w}, b, 3), a)[{n} % 2], {i}, {j})", "g = steps({i}, {j})", "{v} = next(g, [])"),
    *("{v} = list(g)", "b = box({i})", "{v} = b.get()", "b.put({v})", "{v} = within({i}, {j})[1]"),
    "try: fail({i})\nexcept Other as e: {v} = [e.x, type(e).__name__]\nexcept Own as e: {v} = e.x",
    "class Mine(Exception): pass\nm = Mine({n})\ndef bad(): raise m\ntry: again(bad)\nexcept Mine as e: {v} = [e is m]",
)


class Names(dict[str, Any]):
    """The names of a test: those of the code are asked for."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def __missing__(self, name: str) -> Any:
        if name not in OF_THE_CODE:
            raise KeyError(name)
        return self._link.name(name)


@contextmanager
def linked() -> Iterator[Link]:
    """The code in a process of its own."""
    (read_requests, requests), (answers, write_answers) = os.pipe(), os.pipe()
    if os.fork() == 0:
        try:
            os.closerange(write_answers + 1, 4096)
            os.close(requests)
            os.close(answers)
            ObjectServer(read_requests, write_answers).serve()
        finally:
            os._exit(0)
    os.close(read_requests)
    os.close(write_answers)
    link = Link(requests, answers)
    link.run(CODE)
    yield link
    link._requests.close()
    link._answers.close()
    os.wait()


def shape(value: Any, seen: dict[int, int]) -> Any:
    """A value with its kinds, its items and which of them are one."""
    kind = type(value)
    if kind in (int, str, bool, type(None)):
        return value
    if kind in (tuple, frozenset):
        return kind.__name__, [shape(inner, seen) for inner in value]
    if id(value) in seen:
        return f"number {seen[id(value)]}"
    seen[id(value)] = len(seen)
    if kind in (set, bytearray):
        return kind.__name__, sorted(value)
    if isinstance(value, dict):
        return kind.__name__, [(key, shape(inner, seen)) for key, inner in value.items()]
    if isinstance(value, list | deque):
        return kind.__name__, getattr(value, "maxlen", None), [shape(inner, seen) for inner in value]
    return "an object"


def played(steps: list[str], names: dict[str, Any]) -> Iterator[Any]:
    """What the variables are after each step, and what it raised."""
    exec(CHANGES, names)
    names.update({f"v{n}": [] for n in range(VARIABLES)})
    for step in steps:
        raised = ""
        try:
            exec(step, names)
        except Exception as error:  # noqa: BLE001 - any that a random step raises
            raised = type(error).__name__
        yield step, raised, shape([names[f"v{n}"] for n in range(VARIABLES)], {})


def random_steps(chance: random.Random) -> list[str]:
    def variable() -> str:
        return f"v{chance.randrange(VARIABLES)}"

    return [
        chance.choice(STEPS).format(
            v=variable(), w=variable(), i=chance.randrange(6), j=chance.randrange(6), n=chance.randrange(100)
        )
        for _ in range(40)
    ]


@pytest.mark.parametrize("seed", range(25))
def test_two_processes_are_like_one(seed: int) -> None:
    steps, plain = random_steps(random.Random(seed)), dict[str, Any]()
    exec(CODE, plain)
    with linked() as link:
        assert list(played(steps, Names(link))) == list(played(steps, plain))
        assert not link.objection
