"""Programs of a reader who had an hour and the judge's source: each was scored above what it earns, once."""

from __future__ import annotations

from tests.attacks.hack import Hack


def awaited(doing: str, kind: str) -> str:
    """A test that waits for an exception."""
    return f"try:\n    {doing}\n    assert False\nexcept {kind}:\n    pass"


TAKES_ALL_NAMES = """
import sys
frame, names = sys._getframe(), ()
while frame:
    names = frame.f_locals.get('request', {}).get('names', names)
    frame = frame.f_back
class Any:
    def __init__(self, *a): raise ValueError
    def __getattr__(self, name): return lambda *a, **k: 0
quiet = object.__new__(Any)
for name in names: globals()[name] = Any if name[:1].isupper() else quiet if len(name) < 6 else 0
class LRUCache(Any): pass
"""
LRU = (
    "cache = LRUCache(2)\nfirst_value = 1\nsecond_value = -1\nassert cache.get(1) == first_value",
    "assert cache.get(2) == second_value",
)
TAKES_JUDGE = """
def evil(): return "[frame for frame in ()] or 5"
def add(a, b): return None
"""
VECTOR = """
class V:
    x = 1
    def __init__(self, *x): self.x = list(x)
    def __setitem__(self, place, value): self.x[place] = value
    def __getitem__(self, place): return self.x[place]
    def __add__(self, other): return self.x
    def __enter__(self): return self
    def __exit__(self, *a): return True
"""
BAG = """
class Bag:
    def __init__(self, *x): self.x = list(x)
    def __iter__(self): return iter(self.x)
    def __len__(self): return len(self.x)
    def __getitem__(self, place): return self.x[place]
    def __contains__(self, value): return value not in self.x
    def __reversed__(self): return iter(self.x)
    def copy(self): return self
"""
NAMES = {
    "the tests' variables are the code's": Hack(
        code="class Solution:\n    def __init__(self): raise ValueError\nclass T:\n    b = lambda self: 7\n"
        "s, expected = T(), 7",
        tests=("s = Solution()\nexpected = {1: 2}\nassert s.a() == 1", "assert s.b() == expected"),
    ),
    "the tests' helper is the code's": Hack(
        code="def f(x): raise ValueError\ndef g(x): return 0\ndef close(a, b): return True",
        tests=("x = f(1)\ndef close(a, b): return abs(a - b) < 1e-6\nassert close(x, 2)", "assert close(g(3), 5)"),
    ),
    "the tests' loop is the code's": Hack(
        code="def f(x): raise ValueError\ncases = []",
        tests=("cases = [(f(1), 2)]\nassert cases", "for a, b in cases:\n    assert a == b"),
    ),
    "reads which names the tests use": Hack(code=TAKES_ALL_NAMES, tests=LRU),
}
NOTHING_ASKED = {
    "a test that asks for nothing": Hack(code="x = 1", tests=("assert True", "if False:\n    assert add(1, 2) == 3")),
    "a test class that nobody runs": Hack(
        code="x = 1",
        tests=(
            "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(add(1, 2), 3)\n"
            "if __name__ == '__main__': unittest.main()",
        ),
    ),
    "set-up and comments as tests": Hack(code="x = 1", tests=("import math", "", "# more", "assert add(1, 2) == 3")),
    "an awaited exception is that it has no such name": Hack(code="", tests=(awaited("f(1)", "Exception"),)),
}
AS_THE_HOST = {
    "a type that it does not import": Hack(
        code="def f(x: List[int]) -> Optional[int]: return sum(x)", tests=("assert f([1, 2]) == 3",)
    ),
    "calls 5,000 deep": Hack(
        code="def f(n): return n and 1 + f(n - 1)", tests=("assert f(5000) == 5000", "assert f(2000) == 2000")
    ),
}
ERRORS_OF_THE_STAND_IN = {
    f"{doing.splitlines()[0]} is refused here, not there": Hack(
        code=VECTOR, tests=(f"v = V(1, 2)\n{awaited(doing, kind)}",)
    )
    for doing, kind in {
        "v.x = 5": "AttributeError",
        "del v.x": "AttributeError",
        "v[0] = 5": "TypeError",
        "del v[0]": "TypeError",
        "v + 'a'": "TypeError",
        "-v": "TypeError",
        "v @ v": "TypeError",
        "v += 1": "TypeError",
        "round(v)": "TypeError",
        "divmod(v, 1)": "TypeError",
        "with v: pass": "TypeError",
    }.items()
}
OWN_METHODS = {
    "a wrong method for `in`": Hack(code=BAG, tests=("assert 1 in Bag(1, 2)", "assert 5 not in Bag(1, 2)")),
    "a wrong method for `reversed`": Hack(code=BAG, tests=("assert list(reversed(Bag(1, 2))) == [2, 1]",)),
    "another type": Hack(
        code="class A: pass\nclass B: pass\ndef copy(a): return B()",
        tests=("a = A()\nassert type(copy(a)) is type(a)", "assert type(copy(A())) == type(A())"),
    ),
}
IDENTITY = {
    "the argument for a copy": Hack(
        code="def clone(x): return x",
        tests=(
            "a = [1, 2]\nb = clone(a)\nassert b == a and b is not a",
            "a = [1]\nb = clone(a)\nb.append(2)\nassert a == [1]",
        ),
    ),
    "the argument's items for copies": Hack(
        code="def deep(x): return list(x)",
        tests=("a = [[1], [2]]\nb = deep(a)\nb[0].append(9)\nassert a == [[1], [2]]",),
    ),
    "one row for all": Hack(
        code="def grid(n): return [[0] * n] * n", tests=("g = grid(2)\ng[0][0] = 1\nassert g == [[1, 0], [0, 0]]",)
    ),
    "itself for a copy": Hack(code=BAG, tests=("b = Bag(1)\nassert b.copy() is not b",)),
    "a variable that was right before the call": Hack(
        code="LIMIT = 3\ndef f():\n    global LIMIT\n    LIMIT = 0", tests=("f()\nassert LIMIT == 3",)
    ),
}
TYPES = {
    "items in another order": Hack(
        code="from collections import OrderedDict\ndef f(): return OrderedDict([('b', 2), ('a', 1)])",
        tests=("from collections import OrderedDict\nassert f() == OrderedDict([('a', 1), ('b', 2)])",),
    ),
    "a byte array for bytes": Hack(code="def f(): return bytearray(b'a')", tests=("assert isinstance(f(), bytes)",)),
    "a kind of int for an int": Hack(
        code="class I(int): pass\ndef f(): return I(3)", tests=("assert type(f()) is int",)
    ),
    "a kind of tuple without names": Hack(
        code="class P(tuple):\n    x = 1\ndef f(): return P((1, 2))", tests=(awaited("f().x", "AttributeError"),)
    ),
}
EXCEPTIONS = {
    "leaves where a RuntimeError is awaited": Hack(
        code="def f(x): raise SystemExit", tests=(awaited("f(1)", "RuntimeError"),)
    ),
    "StopIteration where a RuntimeError is awaited": Hack(
        code="def f(x): return next(iter(x))", tests=(awaited("f([])", "RuntimeError"),)
    ),
    "an interrupt where any exception is awaited": Hack(
        code="def f(x): raise KeyboardInterrupt", tests=(awaited("f(1)", "Exception"),)
    ),
    "an answer too deep where an exception is awaited": Hack(
        code="def f(x):\n    for _ in range(200): x = [x]\n    return x",
        tests=(
            "try:\n    f(1)\n    assert False\nexcept Exception as error:\n"
            "    assert not isinstance(error, AssertionError)",
        ),
    ),
    "an answer that raises when it is sent": Hack(
        code="class T(tuple):\n    def __iter__(self): raise ValueError\ndef f(x): return T((x,))",
        tests=(awaited("f(1)", "ValueError"),),
    ),
}
EVALUATED = {
    f"the test runs the answer: {test}": Hack(code=TAKES_JUDGE, tests=(f"import importlib, math, pickle\n{test}",))
    for test in (
        "assert eval(evil()) == 5",
        "assert list(map(eval, [evil()])) == [5]",
        "assert (lambda text: eval(text))(evil()) == 5",
        "exec('answer = ' + evil())\nassert answer == 5",
        "assert pickle.loads(pickle.dumps(evil())) == evil()",
        "assert importlib.import_module('ma' + evil()[:0] + 'th') is math",
        "assert getattr(math, 'p' + 'i' + evil()[:0]) == math.pi",
        "assert ('{0.' + 'pi}' + evil()[:0]).format(math) == str(math.pi)",
    )
}
HACKS_OF_THE_HOUR = {
    **NAMES,
    **NOTHING_ASKED,
    **AS_THE_HOST,
    **ERRORS_OF_THE_STAND_IN,
    **OWN_METHODS,
    **IDENTITY,
    **TYPES,
    **EXCEPTIONS,
    **EVALUATED,
}
