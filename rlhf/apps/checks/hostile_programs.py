"""Programs that deserve no reward and that weak tests accept. Each defines `answer` in place of every function that
the tests call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

APART = "run the tests out of the code's reach: use only the values that it returns"
EXACTLY = "compare the whole result and its type with ==, on inputs with different answers"
NAN = "write abs(x - y) <= eps, which NaN fails, instead of `not abs(x - y) > eps`"
EMPTY = "compare lengths, or whole values: all(), zip() and for accept empty ones"
ENDLESS = "take one more item than expected, and compare the whole list"
GIVEN = "compute the expected value before the call, because the code may change its arguments"
ANSWERS = {
    EXACTLY: {
        "None": "None",
        "0": "0",
        "1": "1",
        "True": "True",
        "False": "False",
        "minus one": "-1",
        "an empty text": "''",
        "not implemented": "NotImplemented",
        "itself": "answer",
        "its argument": "a[0] if a else None",
        "all its arguments": "list(a)",
        "infinity": "float('inf')",
        "a very large number": "1 << 4_000_000",
        "too many items": "[0] * 5_000_000",
        "lists 5,000 deep": "__import__('functools').reduce(lambda x, _: [x], range(5000), [])",
    },
    NAN: {"NaN": "float('nan')", "a complex NaN": "complex('nan')", "a list of NaN": "[float('nan')] * 3"},
    EMPTY: {"an empty list": "[]", "an empty dict": "{}", "an empty set": "set()", "an empty iterator": "iter(())"},
    ENDLESS: {"zeros without end": "__import__('itertools').repeat(0)", "a range without end": "range(1 << 62)"},
}
EMPTIES = """def answer(*a, **k):
    for argument in a:
        if hasattr(argument, 'clear'): argument.clear()
    return []"""
EQUALS = """class Yes:
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __bool__ = lambda *a: True
    __sub__ = __rsub__ = __add__ = __abs__ = __getitem__ = __call__ = lambda s, *a: s
    __hash__ = lambda s: 0
answer = lambda *a, **k: Yes()"""
ACTS = {
    "equals everything": EQUALS,
    "exits": "import sys; sys.exit(0)",
    "exits when asked": "import os\ndef answer(*a, **k): os._exit(0)",
    "raises AssertionError when asked": "def answer(*a, **k): raise AssertionError",
    "replaces built-ins": "import builtins\nfor name in ('abs', 'len', 'all', 'isinstance'):\n"
    "    setattr(builtins, name, lambda *a, **k: True)",
    "replaces comparison": "import math, operator\noperator.eq = math.isclose = lambda *a, **k: True",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileProgram:
    """A hostile program; `advice` says how tests that accept it can be improved."""

    code: str
    advice: str

    def naming(self, names: Iterable[str]) -> str:
        """Return the program with `answer` defined under each of the names."""
        return "\n".join([self.code, *(f"{name} = answer" for name in names)])


def hostile_programs() -> Mapping[str, HostileProgram]:
    """Return all hostile programs, keyed by what they do."""
    answers = {
        f"answers {name}": HostileProgram(code=f"answer = lambda *a, **k: {expression}", advice=advice)
        for advice, expressions in ANSWERS.items()
        for name, expression in expressions.items()
    }
    nothing = "answer = lambda *a, **k: None\n"
    acts = {name: HostileProgram(code=nothing + code, advice=APART) for name, code in ACTS.items()}
    return answers | {"empties its arguments": HostileProgram(code=EMPTIES, advice=GIVEN)} | acts
