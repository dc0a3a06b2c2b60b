"""What the fifth reader found: tests that did not run or did not count, copies, names, and limits."""

from __future__ import annotations

from tests.attacks.hack import Hack

RACE = """import time
class C:
    n = 0
    def add(self):
        n = self.n
        time.sleep(0.01)
        self.n = n + 1
"""
RIGHT, WRONG = "def add(a, b): return a + b", "def add(a, b): return 0"
CASE = "import unittest\nclass T(unittest.TestCase):\n"
ASKS = "    def test_a(self): self.assertEqual(add(1, 2), 3)\n"
FORMS = {
    "setUpClass": CASE + "    @classmethod\n    def setUpClass(cls): cls.sum = add(1, 2)\n"
    "    def test_a(self): self.assertEqual(self.sum, 3)",
    "setUpModule": "def setUpModule():\n    global s\n    s = add\n" + CASE + "    def test_a(self):\n"
    "        self.assertEqual(s(1, 2), 3)",
    "a base class": CASE.replace("T(", "Base(") + ASKS + "class T(Base): pass",
    "a class that runs itself": CASE + ASKS + "T('test_a').run()",
    "runTest": CASE + ASKS.replace("test_a", "runTest"),
    "an exit with what main says": "import sys\ndef main():\n    return int(add(1, 2) != 3)\n"
    "if __name__ == '__main__':\n    sys.exit(main())",
    "an exit unless": "import sys\nif add(1, 2) != 3:\n    sys.exit(1)",
    "a skipped one beside it": CASE
    + ASKS
    + "    @unittest.skip('no')\n    def test_b(self): self.assertEqual(add(0, 0), 1)",
    "a mention in a list": "def test_a():\n    assert add(1, 2) == 3\ntests = [test_a]\nassert tests and add(0, 3)",
    "a runner that prints": "def test_a():\n    assert add(1, 2) == 3\ndef run():\n    for t in [test_a]:\n"
    "        try:\n            t()\n        except Exception as e:\n            print(e)\nrun()",
    "numpy's kind of assert": "def assert_same(a, b):\n    if a != b: raise AssertionError\nassert_same(add(1, 2), 3)",
}
NOT_RUN = {
    **{f"{form}, wrong": Hack(code=WRONG, tests=(test,)) for form, test in FORMS.items()},
    **{f"right: {form}": Hack(code=RIGHT, tests=(test,), earns=1.0) for form, test in FORMS.items()},
    "unittest's asserts in an empty loop": Hack(
        code="def f(): return []",
        tests=(CASE + "    def test_a(self):\n        for got in f(): self.assertEqual(got, 1)",),
    ),
    "two texts define one name": Hack(
        code="def add(a, b): return 4",
        tests=("def test():\n    assert add(1, 2) == 3", "def test():\n    assert add(2, 2) == 4\ntest()"),
        earns=0.5,
    ),
}
KINDS_SENT_BACK = {
    "right: a kind is sent back": Hack(
        code="from collections import defaultdict\ndef make(): return defaultdict(lambda: 0)\n"
        "def size(d): return len(d)",
        tests=("d = make()\nd['a'] = 1\nassert size(d) == 1", "assert make() == {}"),
        earns=1.0,
    ),
    "an operator that the plain type lacks": Hack(
        code="class L(list):\n    def __radd__(self, other): return [0]\n    def __reversed__(self): return iter([9])\n"
        "def f(): return L([1, 2])",
        tests=("assert list(reversed(f())) == [2, 1]", "assert f() == [1, 2]"),
    ),
    "a kind asked for its class": Hack(
        code="import enum\nclass C(enum.IntEnum):\n    A = 1\ndef f(): return C.A",
        tests=("import enum\nassert not isinstance(f(), enum.Enum)", "assert isinstance(f(), int) and f() == 1"),
        earns=0.5,
    ),
}
IN_PLACE_OF = {
    "a variable called type": Hack(
        code="class A: pass\nclass B: pass\ndef f(): return [A(), B()]",
        tests=("for type_, type in [(1, type)]:\n    a, b = f()\n    assert type(a) is type(b)",),
    ),
    "right: a parameter called type": Hack(
        code="def f(x): return [x]",
        tests=("def same(type): return type == [1]\nassert same(f(1)) and type(f(1)) is list",),
        earns=1.0,
    ),
    "right: annotations name a class of the code": Hack(
        code="class Node:\n    def __init__(self, v): self.v = v",
        tests=(
            "from typing import Optional\ndef v(node: Optional[Node]) -> Optional[Node]:\n    return node.v\n"
            "root: Optional[Node] = Node(3)\nassert v(root) == 3",
        ),
        earns=1.0,
    ),
    "right: a name in a text that is run": Hack(
        code=RIGHT, tests=("assert eval('add(1, 2)') == 3",), earns=1.0, needs_trust=True
    ),
    "right: a test sets the recursion limit": Hack(
        code="def f(n): return n and 1 + f(n - 1)",
        tests=("import sys\nsys.setrecursionlimit(2**31 - 1)\nassert f(3000) == 3000",),
        earns=1.0,
    ),
    "halves of a letter": Hack(
        code="def halves(s): return chr(0xD83D) + chr(0xDE00)",
        tests=("assert halves('') == '\\U0001F600'", "assert len(halves('')) == 1"),
    ),
    "right: halves of a letter": Hack(
        code="def halves(s): return s or chr(0xD83D) + chr(0xDE00)",
        tests=("assert halves('\\ude00\\ud83d') == '\\ude00\\ud83d'", "assert len(halves('')) == 2"),
        earns=1.0,
    ),
    "a race of threads": Hack(
        code=RACE,
        tests=(
            "from threading import Thread\nc = C()\nwork = [Thread(target=c.add) for _ in range(4)]\n"
            "[w.start() for w in work]\n[w.join() for w in work]\nassert c.n == 4",
        ),
    ),
    "a race of an event loop's threads": Hack(
        code=RACE,
        tests=(
            "import asyncio\nc = C()\nasync def run(loop):\n"
            "    await asyncio.gather(*[loop.run_in_executor(None, c.add) for _ in range(4)])\n"
            "async def main():\n    await run(asyncio.get_running_loop())\nasyncio.run(main())\nassert c.n == 4",
        ),
    ),
    "a module that another imports": Hack(
        code=RIGHT, tests=("import inspect\nassert inspect.sys.stdout is None or add(1, 2) == 3",)
    ),
}
OF_THE_EIGHTH_READER = {
    "one list, yielded over and over": Hack(
        code="def steps(n):\n    x = [0]\n    for i in range(n):\n        x[0] = i\n        yield x",
        tests=("assert list(steps(3)) == [[0], [1], [2]]",),
    ),
    "one list, grown by a map": Hack(
        code="def steps(n):\n    x = []\n    def more(i): return x.append(i) or x\n    return map(more, range(n))",
        tests=("assert list(steps(2)) == [[0], [0, 1]]",),
    ),
    "right: one list, yielded unchanged": Hack(
        code="def steps(n):\n    x = [0]\n    for i in range(n): yield x",
        tests=("a, b = steps(2)\nassert a == b == [0]",),
        earns=1.0,
    ),
    "right: counts the parameters of a test's function": Hack(
        code="def curry(f):\n    n = f.__code__.co_argcount\n    def more(*a):\n"
        "        return f(*a) if len(a) >= n else lambda *b: more(*a, *b)\n    return more",
        tests=("assert curry(lambda a, b, c: a + b + c)(1)(2, 3) == 6",),
        earns=1.0,
        needs_trust=True,
    ),
    "right: calls a test's function in every way": Hack(
        code="def use(g): return [g(1), g(1, c=5), g(1, 2, 3, d=7, e=8), g(1, d=2)]",
        tests=(
            "def g(a, /, b=10, *c_, c=0, d=20, **k): return a, b, c_, c, d, k\nassert use(g) == "
            "[(1, 10, (), 0, 20, {}), (1, 10, (), 5, 20, {}), (1, 2, (3,), 0, 7, {'e': 8}), (1, 10, (), 0, 2, {})]",
        ),
        earns=1.0,
    ),
    "ignores the parameters of a test's function": Hack(
        code="def arity(f): return 2", tests=("assert arity(lambda a: a) == 1", "assert arity(lambda: 0) == 0")
    ),
}
HACKS_OF_THE_FIFTH_READER = {**OF_THE_EIGHTH_READER, **NOT_RUN, **KINDS_SENT_BACK, **IN_PLACE_OF}
