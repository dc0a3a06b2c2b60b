"""What tests and the code's process know of one another's functions, classes and exceptions."""

from __future__ import annotations

from tests.attacks.hack import Hack

DECORATES = """
import functools
def enforce(f):
    hints = f.__annotations__
    @functools.wraps(f)
    def call(*given):
        for (name, kind), value in zip(hints.items(), given):
            if name != "return" and not isinstance(value, kind): raise TypeError(name)
        return f(*given)
    return call
def called(f): return f.__qualname__
"""
RETRIES = """
def retry(f, times):
    last = None
    for n in range(times):
        try: return f()
        except Exception as error:
            error.attempts = n + 1
            last = error
    raise last
def softened(f):
    try: return f()
    except Exception as error:
        error.code = 0
        raise
def reworded(f, *words):
    try: return f()
    except Exception as error:
        error.args = words
        raise
def kinds(f): return len({kind_of(f) for _ in range(3)})
def kind_of(f):
    try: f()
    except Exception as error: return type(error)
"""
CLASSES = """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
def add(a, b): return a + b
LIMIT = 5
"""
HACKS_OF_DEFINITIONS: dict[str, Hack] = {
    "right: decorates a test's function, by what it says of itself": Hack(
        code=DECORATES,
        tests=(
            "@enforce\ndef h(a: int, b: str): return a\nassert h(1, 'x') == 1 and h.__annotations__['b'] is str\n"
            "try:\n    h('1', 'x')\n    assert False\nexcept TypeError as error:\n    assert str(error) == 'a'",
            "def outer():\n    def inner(): pass\n    return inner\nassert called(outer()) == 'outer.<locals>.inner'",
        ),
        earns=1.0,
    ),
    "takes a test's function for one that says nothing of its arguments": Hack(
        code=DECORATES,
        tests=("@enforce\ndef h(a: int, b: str): return a\nassert h('1', 'x') == '1'",),
    ),
    "right: sets something on a test's exception": Hack(
        code=RETRIES,
        tests=(
            "def bad(): raise ValueError('x')\ntry:\n    retry(bad, 3)\n    assert False\n"
            "except ValueError as error:\n    assert error.attempts == 3",
            "kept = KeyError('a', 1)\ndef bad(): raise kept\ntry:\n    reworded(bad, 'b', 2)\n    assert False\n"
            "except KeyError as error:\n    assert error is kept and error.args == ('b', 2)",
            "class E(Exception): pass\ndef bad(): raise E(5)\nassert kinds(bad) == 1",
        ),
        earns=1.0,
    ),
    "sets something on a test's exception that is not to change": Hack(
        code=RETRIES,
        tests=(
            "class E(Exception):\n    def __init__(self, code): self.code = code\ndef bad(): raise E(5)\n"
            "try:\n    softened(bad)\n    assert False\nexcept E as error:\n    assert error.code == 5",
        ),
    ),
    "right: is read by the body of a class": Hack(
        code=CLASSES,
        tests=(
            "import unittest\nclass T(unittest.TestCase):\n    add = staticmethod(add)\n    factory = Stack\n"
            "    def setUp(self): self.s = self.factory()\n    def test_it(self):\n"
            "        self.s.push(self.add(1, 2))\n        self.assertEqual(self.s.pop(), add(2, 1))",
            "class Test:\n    def test_it(self, add=add): assert add(1, 2) == 3",
            "class V:\n    value = add(1, LIMIT)\n    def run(self, add): return add\nassert V.value == 6",
            "class W:\n    if LIMIT > 4:\n        pairs = [add(n, m) for n, m in [(1, LIMIT)]]\nassert W.pairs == [6]",
            "class Y:\n    LIMIT = LIMIT + 1\n    LIMIT = LIMIT + 1\nassert Y.LIMIT == add(6, 1) and LIMIT == 5",
            "def t(add):\n    class Z:\n        value = add(1)\n    return Z.value\n"
            "assert t(lambda n: n) == 1 != LIMIT",
        ),
        earns=1.0,
    ),
}
