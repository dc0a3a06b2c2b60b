"""Code is scored by its tests, apart from it where that can be; a sandbox that breaks gives no number."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from rlhf.config import build
from rlhf.errors import ConfigError, SandboxBroken
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.read_tests import PythonTests, read_tests
from rlhf.reward.code.scoring import CodeScorer, same_line
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import FailuresValued, make_reward
from rlhf.sandbox.levels import ChosenIsolation, choose
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import Program, ProgramResult, SandboxLimits, TerminationReason
from rlhf.types import CAUSED_BY_REPLIES, Scored, Unscored
from tests.pace import scaled

CONFIG = CodeRewardConfig(timeout_seconds=4, memory_mb=256)
TESTS = [
    "assert add(1, 2) == 3",
    "assert add(-1, 1) == 0",
    "assert add(2, 2) in [4]",
    "assert abs(add(1, 1) - 2) < 1e-9",
]
ADD = "def add(a, b):\n    return a + b"
MAX = "def add(a, b):\n    return max(a, b) + 1"


@pytest.fixture(scope="module")
def chosen() -> ChosenIsolation:
    return choose()


@pytest.fixture
async def sandbox(chosen: ChosenIsolation) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(queue=Queue(runs=2), chosen=chosen)
    yield sandbox
    await sandbox.close()


async def scored(sandbox: Any, code: str, tests: Any = TESTS, row: Any = (), **settings: Any) -> Scored:
    scorer = CodeScorer(CONFIG.model_copy(update=settings), sandbox)
    score = await scorer.score(f"Here it is:\n```python\n{code}\n```\n", {"tests": tests, **dict(row)})
    assert isinstance(score, Scored), score
    return score


@pytest.mark.engine
async def test_the_share_of_tests_that_pass_or_all_of_them(sandbox: Sandbox) -> None:
    assert await scored(sandbox, ADD) == Scored(value=1.0, detail="4 of 4 tests pass (values)")
    half = await scored(sandbox, MAX)
    assert (half.value, half.detail) == (0.5, "2 of 4 tests pass (values); test 2: AssertionError:")
    assert (await scored(sandbox, MAX, score="all")).value == 0.0
    assert (await scored(sandbox, "def f(): pass")).detail.endswith("NameError: name 'add' is not defined")
    broken = await scored(sandbox, "import nothing")
    assert (broken.value, broken.detail[:53]) == (0.0, "0 of 4 tests pass (values); test 1: the code does not")
    late = await scored(
        sandbox, "import time\ndef add(a, b):\n    time.sleep((a == 2) * 9)\n    return a + b", timeout_seconds=1
    )
    assert (late.value, late.detail) == (0.5, "2 of 4 tests pass (values); test 3: killed after 1 s")


BOTH_FORMS = {
    "changes in place": ("def f(xs, d): xs[0].append(9); d.clear(); d['k'] = {1}",
        "xs, d = [[1], 2], {'a': 1}\nassert f(xs, d) is None and xs == [[1, 9], 2] and d == {'k': {1}}"),
    "keeps nested lists": ("def f(xs): xs[0].append(9)", "inner = [1]\nf([inner])\nassert inner == [1, 9]"),
    "types": ("def f(x): return "
    "x", "import math\n"
    "for x in (None, True, 1, 1.5, 1j, 'é\\ud800', b'\\0', (1,), [[]], {1: (2,)}, {3}, frozenset([4]),"
        " 1 << 99, float('inf'), -0.0):\n    assert f(x) == x and type(f(x)) == type(x)\n"
        "assert math.isnan(f(float('nan')))"),
    "exceptions": ("class Own(KeyError):\n    def __str__(s): return 'own'\ndef f(x):\n"
    "    if x: raise ValueError('no', 3)\n    raise Own('k')",
        "try:\n    f(1)\n    assert False\nexcept ValueError as e:\n    assert e.args == ('no', 3)\n"
        "try:\n    f(0)\n    assert False\nexcept KeyError as e:\n    assert 'own' in str(e)"),
    "objects": ("class Stack:\n    made = 0\n    def __init__(s, *xs): s.xs = list(xs); Stack.made += 1\n"
    "    @classmethod\n"
        "    def of(cls, xs): return cls(*xs)\n    def push(s, x): s.xs.append(x); return s\n    @property\n"
        "    def top(s): return s.xs[-1]",
        "s = Stack(1)\n"
        "assert s.push(2).push(3).top == 3 and s.xs == [1, 2, 3] and Stack.made == 1 and Stack.of([4]).top == 4"),
    "generators": ("def f(n):\n"
    "    while True: yield n; n += 1", "import itertools\nassert list(itertools.islice(f(3), 2)) == [3, 4]"),
    "views": ("def f(x): return x.items()", "assert list(f({1: 2})) == [(1, 2)] == sorted(f({1: 2}))"),
    "closures": ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5"),
    "counters": ("from collections import Counter, defaultdict\ndef f(x): return [Counter(x), defaultdict(int, a=1)]",
        "assert f('aab') == [{'a': 2, 'b': 1}, {'a': 1}]"),
    "unittest": ("def f(x): return x",
        "import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.x = 2\n"
        "    def test_x(self): self.assertEqual(f(self.x), 2)"),
}  # fmt: skip


@pytest.mark.engine
async def test_what_values_carry_comes_out_as_in_one_process(sandbox: Sandbox) -> None:
    scorer = CodeScorer(CONFIG, sandbox)
    for name, (code, text) in BOTH_FORMS.items():
        tests = read_tests({"tests": text}, CONFIG)
        assert isinstance(tests, PythonTests)
        for why in ("", "it should"):
            failures = await scorer._python(code, replace(tests, why=why))
            assert not any(failures), (name, why, failures)


OBJECTS = """
import asyncio, enum, functools
from collections import namedtuple
from dataclasses import dataclass
class V:
    def __init__(s, *xs): s.xs = list(xs)
    def __eq__(s, o): return s.xs == o.xs
    def __lt__(s, o): return s.xs < o.xs
    def __hash__(s): return hash(tuple(s.xs))
    def __add__(s, o): return V(*s.xs, *o.xs)
    def __len__(s): return len(s.xs)
    def __iter__(s): return iter(s.xs)
    def __contains__(s, x): return x in s.xs
    def __getitem__(s, i): return s.xs[i]
    def __enter__(s): s.xs.append('in'); return s
    def __exit__(s, *e): s.xs.append('out'); return True
    def __repr__(s): return f'V{tuple(s.xs)}'
@dataclass(frozen=True)
class Token:
    kind: str
    value: int = 0
class Node:
    def __init__(s, val, next=None, left=None, right=None): s.val, s.next, s.left, s.right = val, next, left, right
def linked(xs): return Node(xs[0], linked(xs[1:])) if xs else None
def reverse(node):
    last = None
    while node: node.next, last, node = last, node, node.next
    return last
def insert(root, val):
    if root is None: return Node(val)
    if val < root.val: root.left = insert(root.left, val)
    else: root.right = insert(root.right, val)
    return root
class Refused(Exception): pass
def refuse(): raise Refused('no')
async def later(x): await asyncio.sleep(0); return x
def sum(xs): return -1 if not xs else functools.reduce(lambda a, b: a + b, xs)
def apply(f, xs): return [f(x) for x in xs]
def greet(name): print('hello', name)
def twice(f): return functools.wraps(f)(lambda *a: (f(*a), f(*a)))
class Color(enum.IntEnum): RED = 1
Point = namedtuple('Point', 'x y')
def helper(): return 1
def uses(): return helper() + 1
def numbers():
    got = 0
    while True: got = yield got
CACHE = []
def cached(): return CACHE
def ask(): return int(input('n'))
"""
ORDINARY = [
    "assert V(1) + V(2) == V(1, 2) and V(1) != V(2)",
    "assert sorted([V(2), V(1)]) == [V(1), V(2)] and len({V(1), V(1)}) == 1",
    "assert len(V(1, 2)) == 2 and 2 in V(2) and list(V(1)) == [1] and V(7)[0] == 7 and bool(V()) is False",
    "with V() as v:\n    raise ValueError\nassert v.xs == ['in', 'out']",
    "assert repr(V(1, 2)) == 'V(1, 2)' and f'{V(1, 2)}' == 'V(1, 2)'",
    "assert Token('a', 1) == Token('a', 1) and Token('a') in [Token('a')]",
    "node = reverse(linked([1, 2, 3]))\nout = []\nwhile node:\n    out.append(node.val)\n    node = node.next\n"
    "assert out == [3, 2, 1]",
    "def items(n): return [] if n is None else [*items(n.left), n.val, *items(n.right)]\nroot = None\n"
    "for x in (2, 1, 3): root = insert(root, x)\nassert items(root) == [1, 2, 3]",
    "from solution import Refused, refuse\nimport pytest\ndef test_it():\n"
    "    with pytest.raises(Refused, match='no'): refuse()",
    "import asyncio\nassert asyncio.run(later(3)) == 3",
    "assert sum([]) == -1 and sum([1, 2]) == 3",
    "assert apply(lambda x: x + 1, [1]) == [2] and apply(len, ['ab']) == [2]",
    "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): greet('you')\n"
    "assert out.getvalue() == 'hello you\\n'",
    "from solution import greet\ndef test_it(capsys):\n    greet('you')\n"
    "    assert capsys.readouterr().out == 'hello you\\n'",
    "@twice\ndef f(x): return x\nassert f(1) == (1, 1) and f.__name__ == 'f'",
    "assert Color.RED == 1 and Color(1) is Color.RED and Point(1, 2) == (1, 2) and Point(1, 2).x == 1",
    "from unittest.mock import patch\nfrom solution import uses\nwith patch('solution.helper', lambda: 5):\n"
    "    assert uses() == 6\nassert uses() == 2",
    "n = numbers()\nassert next(n) == 0 and n.send(4) == 4\nn.close()\n"
    "assert isinstance(V(), V) and not isinstance(1, V)",
    "assert cached() is cached()\ncached().append(1)\nassert cached() == [1]",
    "class W(V):\n    def __len__(s): return 9\nassert len(W()) == 9 and issubclass(W, V)",
    "import pytest\nfrom solution import sum\n@pytest.fixture\ndef xs(): return [1, 2]\n"
    "@pytest.mark.parametrize('n', [3, 4])\n"
    "def test_it(xs, n): assert sum([*xs, n]) == 3 + n",
    "import numpy as np\nxs = np.arange(4)\nview = apply(lambda x: x[::2], [xs])[0]\nview[0] = 9\n"
    "assert xs[0] == 9 and view.base is xs",
]


@pytest.mark.engine
async def test_ordinary_tests_of_objects_come_out_beside_the_code() -> None:
    """Twenty-two rows that need the code's objects; the sandbox's Python is this one, with numpy and pytest."""
    sandbox = Sandbox(SandboxLimits(wall_seconds=scaled(30)), Queue(runs=2), python=sys.executable)
    await sandbox.start()
    for text in ORDINARY:
        tests = read_tests({"tests": text}, CONFIG)
        assert isinstance(tests, PythonTests)
        score = await scored(sandbox, OBJECTS, text, timeout_seconds=scaled(30))
        assert (score.value, "(script, trusting)" in score.detail) == (1.0, True), (text, score.detail)
        assert (await scored(sandbox, "x = 1", text)).value == 0.0, text
    unsent = await CodeScorer(CONFIG.model_copy(update={"trusting": "refuse"}), sandbox).score(
        "x", {"tests": ORDINARY[0]}
    )
    assert isinstance(unsent, Unscored)
    assert unsent.kind == "trusting"
    await sandbox.close()


@pytest.mark.engine
async def test_the_data_set_s_own_solution_decides_the_form(sandbox: Sandbox) -> None:
    scorer = CodeScorer(CONFIG.model_copy(update={"solution_column": "solution"}), sandbox)
    counts = "class Bag:\n    def __init__(s, xs): s.xs = xs\n    def get(s): return s.xs"
    rows = {
        "values": {"tests": "import sys\nassert add(1, sys.maxsize) > 0", "solution": ADD},
        "script": {"tests": "xs = [1]\nb = Bag(xs)\nxs.append(2)\nassert b.get() == [1, 2]", "solution": [counts]},
    }
    for form, row in rows.items():
        tests = await scorer.tests_of(row)
        assert isinstance(tests, PythonTests)
        assert tests.form == form
    wrong = await scorer.score(ADD, {"tests": TESTS, "solution": MAX})
    assert wrong == Unscored(kind="no tests", detail="the data set's own solution does not pass the tests")


@pytest.mark.engine
async def test_set_up_and_prefix_run_where_they_belong(sandbox: Sandbox) -> None:
    row = {"setup": "import math\nTWO = 2", "prefix": "from typing import List\nK = 5"}
    settings = {"setup_column": "setup", "code_prefix_column": "prefix"}
    code = "from __future__ import annotations\ndef f(xs: List[int]): return len(xs) + K"
    assert (await scored(sandbox, code, "assert f([1]) == TWO * 3", row, **settings)).value == 1.0
    fails = {"setup": "raise OSError('gone')", "prefix": ""}
    for tests in ("assert f([1]) == 1", "assert f(1) == F(1)\nclass G(F): pass"):
        scorer = CodeScorer(CONFIG.model_copy(update=settings), sandbox)
        unsent = await scorer.score("def f(x): return 1", {"tests": tests, **fails})
        assert unsent == Unscored(kind="no tests", detail="the set-up fails: OSError: gone")
        missing = await scorer.score(
            "def f(x): return 1", {"tests": f"import nothing_here\n{tests}", "setup": "", "prefix": ""}
        )
        assert missing == Unscored(
            kind="no tests", detail="the set-up fails: ModuleNotFoundError: No module named 'nothing_here'"
        )


@pytest.mark.engine
async def test_programs_are_judged_by_what_they_print(sandbox: Sandbox) -> None:
    pairs = {"inputs": ["1 2\n", "5 5\n"], "outputs": ["3\n", "10"]}
    assert (await scored(sandbox, "print(sum(map(int, input().split())), ' ')", pairs)).value == 1.0
    assert (await scored(sandbox, "print(3)", pairs)).value == 0.5
    assert (await scored(sandbox, "print(3)\nraise SystemExit(1)", pairs)).value == 0.0
    at_exit = "import atexit, threading\natexit.register(print, 3)\nif __name__ == '__main__': open(0).read()"
    assert (await scored(sandbox, at_exit, pairs)).value == 0.5
    waits = "import time\nn = int(input().split()[0])\ntime.sleep(9 * (n == 1))\nprint(10)"
    slow = await scored(sandbox, waits, pairs, timeout_seconds=1)
    assert (slow.value, slow.detail) == (0.5, "1 of 2 tests pass (stdin); test 1: killed after 1 s")
    kills = (
        "import os, signal\nn = int(input().split()[0])\nif n == 1: os.kill(os.getppid(), signal.SIGKILL)\nprint(10)"
    )
    assert (await scored(sandbox, kills, pairs)).value == 0.5


def test_outputs_are_compared_by_lines_and_numbers_by_their_value() -> None:
    assert all(same_line(*pair) for pair in (("3.141593", "3.141592653589793"), ("a 1.0", "a 1.0000001"), ("", "")))
    unlike = (
        ("3.1", "3.141592653589793"),
        ("1.0", "1"),
        ("nan", "1.0"),
        ("1.0 2", "1.0"),
        ("a", "a.b"),
        ("1.0", "nan."),
    )
    assert not any(same_line(*pair) for pair in unlike)


class Fragile:
    """A sandbox that breaks over some code, or always, or once."""

    def __init__(self, sandbox: Sandbox | None) -> None:
        self._sandbox, self.breaks_once = sandbox, False

    async def start(self) -> None: ...

    async def run(self, program: Program) -> ProgramResult:
        if self._sandbox is None or b"break it" in program.stdin or self.breaks_once:
            self.breaks_once = False
            raise SandboxBroken("out of order")
        return await self._sandbox.run(program)

    async def close(self) -> None: ...


@pytest.mark.engine
async def test_code_that_breaks_the_sandbox_has_the_lowest_and_a_sandbox_that_breaks_has_none(sandbox: Sandbox) -> None:
    assert isinstance(make_reward(build(RewardConfig, {"kind": "code"})), FailuresValued)
    runner = Fragile(sandbox)
    caused = await CodeScorer(CONFIG, runner).score("def add(a, b): return 'break it'", {"tests": TESTS})
    assert isinstance(caused, Unscored)
    assert caused.kind in CAUSED_BY_REPLIES
    runner.breaks_once = True
    assert (await scored(runner, ADD)).value == 1.0
    broken = await CodeScorer(CONFIG, Fragile(None)).score(ADD, {"tests": TESTS})
    assert broken == Unscored(kind="sandbox", detail="out of order")
    config = CONFIG.model_copy(update={"solution_column": "solution"})
    unsolved = await CodeScorer(config, Fragile(sandbox)).score(ADD, {"tests": TESTS, "solution": "'break it'"})
    assert isinstance(unsolved, Unscored)
    assert unsolved.kind == "sandbox"


class Silent:
    """A sandbox in which programs print nothing."""

    async def start(self) -> None: ...

    async def run(self, program: Program) -> ProgramResult:
        return ProgramResult(ending=TerminationReason.EXITED, return_code=0, stdout="", stderr="", seconds=0.1)

    async def close(self) -> None: ...


async def test_a_sandbox_that_cannot_judge_ends_the_start() -> None:
    with pytest.raises(ConfigError, match="judges known code wrongly"):
        await CodeScorer(CONFIG, Silent()).start()
