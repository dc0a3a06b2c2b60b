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
def root(f):
    try: f()
    except Exception as error:
        while error.__cause__ or error.__context__: error = error.__cause__ or error.__context__
        return type(error).__name__
def reported(f):
    try: f()
    except Exception as error: return type(error).__name__
def meanwhile(f):
    try: raise LookupError
    except LookupError:
        try: f()
        except Exception as error: return type(error.__context__).__name__
def stopped(f):
    try: f()
    except KeyboardInterrupt: return True
def kinds(f): return len({kind_of(f) for _ in range(3)})
def kind_of(f):
    try: f()
    except Exception as error: return type(error)
"""
SAYS = """
class Limits(Exception):
    def __init__(self, *given):
        super().__init__(*given)
        self.items, self.asked = [], 0
    @property
    def fixed(self): return 4
    @property
    def half(self): return 2
    @half.setter
    def half(self, value): self.items.append(value)
    def add(self, item): self.items.append(item)
    def __str__(self):
        self.asked += 1
        return f"{len(self.items)} items"
class Under(Limits): pass
class Broken(Exception):
    def __str__(self): raise ZeroDivisionError
class Silent(Exception):
    def __str__(self): return None
def failing(name, *given): raise globals()[name](*given)
def holds(xs): raise ValueError(xs)
def noted(f):
    try: f()
    except Exception as error: error.log.append("seen")
class Rules:
    def assert_positive(self, x):
        assert x > 0, "not positive"
        return x
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
        needs_trust=True,
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
            "def inner(): raise KeyError('k')\ndef outer():\n    try: inner()\n"
            "    except KeyError as error: raise ValueError('v') from error\n"
            "assert root(outer) == 'KeyError' == root(inner) and meanwhile(outer) == 'KeyError'\n"
            "assert meanwhile(inner) == 'LookupError'",
            "def stop(): raise KeyboardInterrupt\nassert stopped(stop) is True",
        ),
        earns=1.0,
        needs_trust=True,
    ),
    "sets something on a test's exception that is not to change, or sees no further": Hack(
        code=RETRIES,
        tests=(
            "def outer():\n    try: raise KeyError('k')\n    except KeyError as error: raise ValueError from error\n"
            "assert reported(outer) == 'KeyError'",
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
            "def t():\n    import math\n    class U:\n        value = math.floor(LIMIT / 2)\n    return U\n"
            "assert t().value == add(1, 1)",
            "class Y:\n    LIMIT = LIMIT + 1\n    LIMIT = LIMIT + 1\nassert Y.LIMIT == add(6, 1) and LIMIT == 5",
            "def t(add):\n    class Z:\n        value = add(1)\n    return Z.value\n"
            "assert t(lambda n: n) == 1 != LIMIT",
        ),
        earns=1.0,
    ),
    "right: says what its exception says now": Hack(
        code=SAYS,
        tests=(
            "try:\n    failing('Under')\n    assert False\nexcept Limits as error:\n    assert error.asked == 0\n"
            "    assert str(error) == '0 items' and error.asked == 1\n    error.add(1)\n"
            "    assert str(error) == '1 items'",
            "try:\n    failing('Broken')\n    assert False\nexcept Broken as error:\n    seen = error\n"
            "try:\n    str(seen)\n    assert False\nexcept ZeroDivisionError:\n    assert Broken",
            "xs = [1]\ntry:\n    holds(xs)\n    assert False\nexcept ValueError as error:\n"
            "    assert error.args[0] is xs and str(error) == '[1]'",
            "class E(Exception):\n    def __init__(self, log): self.log = log\nlog = []\ndef bad(): raise E(log)\n"
            "noted(bad)\nassert log == ['seen']",
            "try:\n    Rules().assert_positive(-1)\n    assert False\nexcept AssertionError as error:\n"
            "    assert str(error) == 'not positive' and Rules().assert_positive(2) == 2",
        ),
        earns=1.0,
        needs_trust=True,
    ),
    "says nothing, or takes what a test sets for its own": Hack(
        code=SAYS,
        tests=(
            "try:\n    failing('Silent')\nexcept Silent as error:\n    assert str(error) == ''",
            "try:\n    failing('Broken')\nexcept Broken as error:\n    print(error)\n    assert Broken",
            "try:\n    failing('Limits')\nexcept Limits as error:\n    error.half = 3\n    assert error.half == 3",
            "try:\n    failing('Limits')\nexcept Limits as error:\n    error.add(1)\n"
            "    assert str(error) == '0 items'",
            "xs = [1]\ntry:\n    holds(xs)\nexcept ValueError as error:\n    xs.append(2)\n"
            "    assert error.args[0] == [1]",
            "x = Rules()\ntry:\n    object.__setattr__(x, 'y', 2)\nexcept AttributeError:\n"
            "    assert x.assert_positive(1)",
        ),
        earns=1 / 6,
    ),
}
