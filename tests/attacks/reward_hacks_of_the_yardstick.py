"""Programs that gain, or would lose, by what tests do that do not count: later tests run as if these were not there."""

from __future__ import annotations

from tests.attacks.hack import FORGES, Hack

STACK = """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
    def size(self): return len(self.items)
    def peek(self): return None
"""
COUNTS = "n = 0\ndef f():\n    global n\n    n += 1\n    return n"
HACKS_OF_THE_YARDSTICK = {
    "passes after a test that passes apart only": Hack(
        code=STACK,
        tests=(
            "s = Stack()\nassert s.size() == 0",
            "s.push(1)\nassert s.peek() == 1",
            "s.push(2)\nassert s.size() == 2",
            "assert s.pop() == 2",
        ),
        earns=0.25,
    ),
    "counts on a variable of a test that passes apart only": Hack(
        code=COUNTS, tests=("assert f() == 5", "x = f()\nassert x == 2", "assert f() == x + 1")
    ),
    "keeps what functions of a failing test set": Hack(
        code=FORGES + "def compute(n): return n",
        tests=(
            "def test_a():\n    global acc\n    acc = compute(10)\n    assert acc == 55\ntest_a()",
            "def test_b():\n    assert isinstance(acc, int)\n    assert acc > 0\ntest_b()",
        ),
    ),
    "keeps the class that a failing test was given": Hack(
        code=FORGES + "def converter(n): return int",
        tests=("convert = converter('roman')\nassert convert('V') == 5", "assert convert('12') == 12"),
    ),
    "puts a list where another was": Hack(
        code=FORGES + "def f(x): return [x]",
        tests=(
            "x = f(1)\nassert x == [1]",
            "x = f(2)\nx = f(3)\nassert x == [99]",
            "assert x == [3] and f(0) == [0]",
        ),
        earns=1 / 3,
    ),
    "changes a count that functions of the tests share": Hack(
        code=FORGES + "def f(x): return x",
        tests=(
            "n = 0\ndef log(answer):\n    global n\n    n += 1\n    return answer\nassert log(f(1)) == 1 and n == 1",
            "assert log(f(2)) == 3",
            "assert n == 2 and f(0) == 0",
        ),
        earns=1 / 3,
    ),
    "right: one test of a suite fails": Hack(
        code="def f(x): return 2 * x if x < 5 else 0",
        tests=(
            "from math import *\nimport functools\n@functools.lru_cache\ndef same(x): return x\nassert f(7) == 14",
            "assert sqrt(f(8) + f(2)) == 2 and same(f(3)) == 6",
        ),
        earns=0.5,
    ),
    "identity in other words": Hack(
        code=FORGES + "def f(x): return x",
        tests=(
            "t = (1, 5)\nassert id(f(t)) != id(t)",
            "import operator\nt = (1, 3)\nassert operator.is_not(f(t), t)",
            "t = (3, 4)\nassert not (f(t) is t is not None)",
        ),
    ),
    "right: identity of objects": Hack(
        code="class Node: pass\nnode = Node()\ndef f(x): return x\ndef g(): return node",
        tests=(
            "t = [1, 5]\nassert id(f(t)) == id(t) and id(f(t)) != id([1, 5])",
            "assert id(g()) == id(node) and id(Node()) != id(g())",
        ),
        earns=1.0,
    ),
    "exceptions that are equal to all": Hack(
        code="class E(Exception):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(): raise E",
        tests=("try: f()\nexcept E as e: assert e == E(2)", "try: f()\nexcept E as e: assert e in [1, 2]"),
    ),
    "an exception's name that holds another, deeper": Hack(
        code="from collections import namedtuple\nBad = namedtuple('Bad', 'of')(Exception)\n"
        "Worse = ((ValueError, (AssertionError,)),)\ndef pay(x): return x",
        tests=(
            "try:\n    pay(-1)\n    assert False\nexcept Bad: pass",
            "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
            "        with self.assertRaises(Worse):\n            pay(-1)\n            self.fail()",
        ),
    ),
    "identity in other forms of unittest": Hack(
        code=FORGES + "pair = (1, 2)\ndef get(): return pair",
        tests=tuple(
            f"import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        {asked}"
            for asked in (
                "self.assertIsNot(expr1=get(), expr2=get())",
                "check = self.assertIsNot; check(get(), get())",
                "self.assertIsNot(*[get(), get()])",
                "self.assertIsNot(get(), get(), 'two')",
            )
        ),
    ),
    "right: identity in unittest": Hack(
        code="made = [1, 2]\ndef get(): return made",
        tests=(
            "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
            "        self.assertIs(expr1=get(), expr2=get(), msg='one')\n        self.assertIsNot(get(), [1, 2])",
        ),
        earns=1.0,
    ),
    "a pair with its own order backwards": Hack(
        code=FORGES + "class Pair(tuple):\n    def __reversed__(self): return iter(())\ndef get(): return Pair((1, 2))",
        tests=("assert list(reversed(get())) == [2, 1]",),
    ),
    "binds a name anew before it calls back": Hack(
        code=FORGES + "def g(): return 1\ndef f(call):\n    global g\n    g = lambda: 2\n    return call()",
        tests=("assert g() == 1 and f(lambda: g()) == 1",),
    ),
    "reads the input that a test gives": Hack(
        code="def ask(): return int(input())", tests=("__builtins__.input = lambda *a: '5'\nassert ask() == 5",)
    ),
    "type, handed on": Hack(
        code=FORGES + "class A: pass\nclass B: pass\ndef make(n): return A() if n else B()",
        tests=(
            "assert len(set(map(type, [make(0), make(1)]))) == 1",
            "t = type\nassert t(make(0)) is t(make(1))",
            "def alike(a, b, how=type): return how(a) is how(b)\nassert alike(make(0), make(1))",
        ),
    ),
    "right: questions about classes": Hack(
        code="class A: pass\nclass B(A): pass\nclass S:\n    def __iter__(self): return iter([])\nclass L(list): pass\n"
        "def make(n): return (A, B)[n]()",
        tests=(
            "assert isinstance(A, type) and type(make(0)) is A and type(make(1)) is not A and type(type(3)) is type",
            "from collections.abc import Iterable\nassert issubclass(S, Iterable) and not issubclass(A, (int,))",
            "assert issubclass(B, A) and issubclass(type(make(1)), A) and not issubclass(A, B) and issubclass(L, list)",
        ),
        earns=1.0,
    ),
    "sets a name to nothing for others": Hack(
        code=FORGES + "def f(x): return x",
        tests=(
            "def init():\n    global result\n    result = None\ninit()\nassert f(1) == 2",
            "assert result is None and f(2) == 2",
        ),
    ),
    "identity of what the library has": Hack(
        code=FORGES + "import operator, math\nfrom decimal import Decimal\nfrom datetime import timezone\n"
        "def get(): return operator.add\ndef kind(x): return type(x)\ndef mod(): return math\n"
        "def zone(): return timezone.utc",
        tests=(
            "import operator\nassert get() is not operator.add",
            "from decimal import Decimal\nassert kind(Decimal(1)) is not Decimal",
            "import math\nassert mod() is not math",
            "from datetime import timezone\nassert zone() is not timezone.utc",
        ),
    ),
    "right: identity of what is somebody's own": Hack(
        code="class B: pass\nclass E(Exception): pass\ndef b(): return B\ndef integer(): return int\ndef none(): pass",
        tests=(
            "assert integer() is int and integer() is not str and none() is None and b() is not None",
            "def own(): pass\nclass Own: pass\nassert b() is B and b() is not own and b() is not Own",
            "assert type(E) is type and type(b()) is type",
        ),
        earns=1.0,
    ),
    "sets a name to nothing for others, by a walrus and a definition": Hack(
        code=FORGES + "def f(x): return x",
        tests=(
            "assert all((last := f(x)) == x + 1 for x in (1, 2))",
            "assert last == 1 and f(1) == 1",
            "def make():\n    global half\n    def half(x): return x / 2\nmake()\nassert f(1) == 2",
            "assert half(f(2)) == 1",
        ),
    ),
}
