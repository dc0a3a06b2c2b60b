"""Code is scored by its tests and by nothing that it does to be scored well; in a real sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rlhf.config import build
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.scoring import CodeScorer, make_code_scorer
from rlhf.reward.code.unit_tests import Asserts, InputOutput, TestsError, read_tests
from rlhf.reward.config import RewardConfig
from rlhf.reward.failure import CAUSED_BY_REPLIES, FailuresValued
from rlhf.reward.reward import make_reward
from rlhf.sandbox.levels import ChosenIsolation, choose
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import Program, ProgramResult, SandboxBroken
from rlhf.types import Scored, Unscored

CONFIG = CodeRewardConfig(timeout_seconds=4, memory_mb=256)
TESTS = [
    "assert add(1, 2) == 3",
    "assert add(-1, 1) == 0",
    "assert add(2, 2) in [4]",
    "assert abs(add(1, 1) - 2) < 1e-9",
]
ADD = "def add(a, b):\n    return a + b"


@pytest.fixture(scope="module")
def chosen() -> ChosenIsolation:
    return choose()


@pytest.fixture
async def scorer(chosen: ChosenIsolation) -> AsyncIterator[CodeScorer]:
    scorer = CodeScorer(CONFIG, Sandbox(queue=Queue(runs=2), chosen=chosen))
    yield scorer
    await scorer.close()


async def share(scorer: CodeScorer, code: str, tests: Any = TESTS) -> float:
    scored = await scorer.score(f"Here it is:\n```python\n{code}\n```\n", {"tests": tests})
    assert isinstance(scored, Scored), scored
    return scored.value


@pytest.mark.engine
async def test_right_code_scores_1_and_half_right_code_the_share_of_its_tests(scorer: CodeScorer) -> None:
    assert await share(scorer, ADD) == 1.0
    assert await share(scorer, "def add(a, b):\n    return max(a, b) + 1") == 0.5
    assert await share(scorer, "def add(a, b):\n    return a - b") == 0.0


@pytest.mark.engine
async def test_all_or_nothing() -> None:
    scorer = make_code_scorer(CONFIG.model_copy(update={"score": "all"}))
    await scorer.start()
    assert await share(scorer, ADD) == 1.0
    assert await share(scorer, "def add(a, b):\n    return max(a, b) + 1") == 0.0
    await scorer.close()


@pytest.mark.engine
async def test_a_process_that_ends_passes_no_test_that_waits_for_exceptions(scorer: CodeScorer) -> None:
    test = "try:\n    f()\n    assert False\nexcept Exception as error:\n    pass"
    assert await share(scorer, "def f(): raise ValueError", [test]) == 1.0
    assert await share(scorer, "import os\ndef f(): os._exit(0)", [test]) == 0.0


SOLUTION = """
import math
from collections import Counter, deque, namedtuple
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from weakref import WeakSet
LIMIT = 10
class Refused(ValueError): pass
STACKS = WeakSet()
class Stack:
    def __init__(self, items=()):
        self.items = list(items)
        STACKS.add(self)
    __hash__ = object.__hash__
    def push(self, item): self.items.append(item); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __getitem__(self, place): return self.items[place]
    def __eq__(self, other): return self.items == other.items
def sort(values): values.sort()
def apply(function, values): return [function(value) for value in values]
def smallest(values, key=None): return min(values, key=key)
def count(text): return Counter(text)
def numbers():
    n = 0
    while True:
        yield (n := n + 1)
def adder(n): return lambda x: x + n
def queue(*items): return deque(items)
def same(value): return value
def zeros(n): return [[0] for _ in range(n)]
notes = []
def remember(x): notes.append(x)
def keywords(**named): return named
Pair = namedtuple('Pair', 'x y')
@dataclass
class Date:
    day: int
def dated(day): return Date(day).day
def leave(): raise SystemExit
def living(): return len(STACKS)
def fail(text='no'): raise Refused(text)
def show(x): print(x)
class Number(IntEnum):
    TWO = 2
def two(): return Number.TWO
"""
BY_VALUES = [
    "stack = Stack([1])\nstack.push(2).push(5)\nassert len(stack) == 3 and stack.pop() == 5 and stack.items == [1, 2]",
    "stack = Stack([4, 5])\nassert stack[0] == 4 and stack[-1] == 5 and list(stack) == [4, 5] and 5 in stack",
    "values = [3, 1]\nsort(values)\nassert values == [1, 3]",
    "assert apply(lambda value: value + 1, (1, 2)) == [2, 3]",
    "seen = []\ndef note(x): seen.append(x)\napply(note, [1, 2])\nassert seen == [1, 2]",
    "assert apply(len, ['a', 'bb']) == [1, 2] and apply(str.upper, ['a']) == ['A'] and apply(math.sqrt, [4]) == [2.0]",
    "assert smallest([[1, 2], [3]], key=len) == [3] and smallest(values=['b', 'A'], key=str.lower) == 'A'",
    "import operator\nassert apply(operator.neg, [1]) == [-1] and apply(int, ['7']) == [7]",
    "assert count('aab') == {'a': 2, 'b': 1}",
    "found = numbers()\nassert [next(found) for _ in range(3)] == [1, 2, 3] and next(found) == 4",
    "assert adder(2)(3) == 5 and list(map(adder(1), [1, 2])) == [2, 3]",
    "assert list(queue(1, 2)) == [1, 2] and sorted(queue(2, 1)) == [1, 2]",
    "values = [3, 1]\nsort(values=values)\nassert values == [1, 3]",
    "try:\n    fail()\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'no'",
    "try:\n    same(1)[0]\n    assert False\nexcept TypeError:\n    pass",
    "assert math.isclose(math.pi, 3.14159, rel_tol=1e-3) and LIMIT == 10",
    "import fractions\nassert same(fractions.Fraction(1, 3)) * 3 == 1 and same(10 ** 5000) == 10 ** 5000",
    "for value in (None, True, -1, 2.5, 1j, 'é\\ud800', b'x', [1], (1,), {1}, frozenset({1}), {(1, 2): [3]}):\n"
    "    assert same(value) == value and type(same(value)) is type(value)",
    "assert same(float('nan')) != 0 and same(float('-inf')) == float('-inf')",
    "def check(candidate):\n    assert candidate([1]) == [1]\ncheck(same)",
    "assert count('aab').most_common(1) == [('a', 2)] and count('')['z'] == 0",
    "row = [1]\nsort(values=row)\ngrid = [row, row]\nassert same(grid) is grid and same(grid)[0] is row",
    "rows = zeros(2)\nrows[0][0] = 1\nassert rows == [[1], [0]]",
    "stack = Stack()\nassert stack.push(1) is stack and list(reversed(stack)) == [1] and 2 not in stack",
    "remember(1)\nremember(2)\nassert notes == [1, 2]",
    "assert keywords(operation=1, function=2, self=3) == {'operation': 1, 'function': 2, 'self': 3}",
    "assert Pair(1, 2) == (1, 2) and dated(day=3) == 3 and Pair(1, 2).y == 2 and Pair(1, 2)._replace(x=5) == (5, 2)",
    "nt = Stack([1])\nassert nt.pop() == 1",
    "from solution import adder as made\nimport solution\nassert made(1)(2) == 3 and solution.LIMIT == 10",
    "try:\n    fail()\n    assert False\nexcept ValueError:\n    pass",
    "try:\n    fail()\n    assert False\nexcept Refused as error:\n    assert error.args == ('no',)",
    "assert callable(fail)",
    "assert Stack([1, 2, 3])[0:2] == [1, 2]",
    "try:\n    leave()\n    assert False\nexcept SystemExit:\n    pass",
    "assert isinstance(Stack(), Stack) and not isinstance(Stack(), Date) and str(Date(1)) == 'Date(day=1)'",
    "stack = Stack()\nstack.items = [1]\nassert stack.pop() == 1",
    "assert str(Pair(1, 2)) == 'Pair(x=1, y=2)' and f'{Pair(1, 2)}' == 'Pair(x=1, y=2)'",
    "assert f'{two():03d}' == '002' and two() + 1 == 3 and isinstance(two(), Number) and two().name == 'TWO'",
    "assert apply(lambda x: same(x), [1]) == [1] and apply([].append, [1]) == [None]",
    "items = [1]\nstack = Stack(items)\nitems.append(2)\nassert len(stack) == 1",
    "held = Stack()\nliving_then = living()\nassert same(held) is held",
    "del held\nassert living() == living_then - 1",
    "kept = same([1])\nremember(kept)\nkept.append(2)\nassert notes[-1] == [1, 2] and notes[-1] is kept",
]
"""Tests that need no trust, and pass with `SOLUTION`."""
WITH_OBJECTS = {
    "assert Stack([1]) == Stack([1])": "compares an object of the code (__eq__)",
    "assert Stack([1])": "compares an object of the code (__bool__)",
    "class Two(Stack):\n    pass\nassert Two([1, 2]).pop() == 2": "a test asks for __mro_entries__",
    "stack = Stack([1])\ntry:\n    stack + 1\nexcept TypeError:\n    pass": "computes with an object of the code",
    "assert same(iter([1])) is not None": "hands an object of type list_iterator to the code",
    "class Node:\n    value = 1\nassert same(Node()).value == 1": "hands an object of type Node to the code",
    "import copy\nassert copy.copy(Stack([1])).pop() == 1": "copies, changes, enters or derives from",
    "def evaluated(text): return eval(text)\nassert apply(evaluated, ['1']) == [1]": "they use builtins.eval",
    "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as said: show(1)\n"
    "assert said.getvalue() == '1\\n'": "they use contextlib.redirect_stdout",
    "def doubled(text): return text.format(2)\nassert apply(doubled, ['{}']) == ['2']": "by text.format",
}
"""Tests that only pass in the code's own process, and what is said of them elsewhere."""


@pytest.mark.engine
async def test_tests_use_what_the_code_defines_by_values_and_only_the_rest_needs_trust(chosen: ChosenIsolation) -> None:
    tests = [*BY_VALUES, *WITH_OBJECTS]
    worth = {}
    for kind in ("values", "trusting"):
        scorer = CodeScorer(CONFIG.model_copy(update={"tests": kind}), Sandbox(queue=Queue(runs=2), chosen=chosen))
        worth[kind] = [outcome.passed for outcome in await scorer._outcomes(SOLUTION, Asserts(texts=tuple(tests)))]
        await scorer.close()
    assert [test for test, passed in zip(tests, worth["values"], strict=True) if passed] == BY_VALUES
    assert [test for test, passed in zip(tests, worth["trusting"], strict=True) if not passed] == []


@pytest.mark.engine
async def test_a_test_that_needs_an_object_says_so(scorer: CodeScorer) -> None:
    for test, words in WITH_OBJECTS.items():
        (outcome,) = await scorer._outcomes(SOLUTION, Asserts(texts=(test,)))
        assert words in outcome.why, (test, outcome.why)


@pytest.mark.engine
async def test_a_test_that_does_not_pass_is_as_if_it_were_not_there(scorer: CodeScorer) -> None:
    refused = "y = same(3)\nassert Stack() == Stack()\nremember(1)"
    for text in (refused, "y = same(3)\nremember(1)\nassert notes == []", "y = same(3)\nassert same(1) == 2"):
        tests = (
            "x = 2\nassert same(x) == 2",
            text,
            "assert same(x) == 2",
            "assert same(y) == 3",
            "assert same(4) == 4",
        )
        passed = [one.passed for one in await scorer._outcomes(SOLUTION, Asserts(texts=tests))]
        assert passed == [True, False, True, False, True]
    imports = ("from functools import reduce\nassert same(1) == 2", "assert reduce(max, [same(1), same(2)]) == 2")
    assert [one.passed for one in await scorer._outcomes(SOLUTION, Asserts(texts=imports))] == [False, True]
    constants = ("n = 3\nones = [1]\ntwice = lambda x: same(x) * 2\nassert same(n) == ones.pop()",)
    constants += ("assert twice(n) == 6 and ones == [1]", "class T: of = n\nassert same(T.of) == n")
    assert [one.passed for one in await scorer._outcomes(SOLUTION, Asserts(texts=constants))] == [False, True, True]
    rebound = ("k = same(1)\nassert k == 1", "k = same(int)\nassert k('5') == 6", "assert k == 1 or k('12') == 12")
    assert [one.passed for one in await scorer._outcomes(SOLUTION, Asserts(texts=rebound))] == [True, False, False]
    by_its_text = ["assert notes == []", "remember(eval('1'))", "assert notes == []"]  # it runs beside
    first, refused_there, later = await scorer._outcomes(SOLUTION, Asserts(texts=tuple(by_its_text)))
    assert first.passed
    assert not refused_there.passed
    assert later.why.startswith("in one Python with the code: ")


@pytest.mark.engine
async def test_what_only_passes_after_a_test_that_fails_beside_the_code_does_not_count(scorer: CodeScorer) -> None:
    first = "s = Stack()\nassert len(s) == 0"
    failing = "s.push(1)\nassert s.pop() == 2\n"
    apart_only = "s.push(2).push(3)\nassert s[0] == 2 and notes == [1]"  # beside the code nothing has been remembered
    tests = (first, f"remember(1)\n{failing}", apart_only, "assert s.pop() == 3", "assert same(5) == 5")
    outcomes = await scorer._outcomes(SOLUTION, Asserts(texts=tests))
    assert [one.passed for one in outcomes] == [True, False, False, False, True]
    each_needs_another = (
        first,
        "remember(1)\nassert same(1) == 2",
        *["remember(2)\nassert len(notes) > 1"] * 5,
        tests[-1],
    )
    *others, last = await scorer._outcomes(SOLUTION, Asserts(texts=each_needs_another))
    assert [one.passed for one in others] == [True, *[False] * 6]
    assert "tests before it fail" in last.why


@pytest.mark.engine
async def test_a_set_up_that_the_reply_leaves_no_memory_is_the_reply_s(chosen: ChosenIsolation) -> None:
    config = CONFIG.model_copy(update={"setup_column": "setup", "memory_mb": 64})
    scorer = CodeScorer(config, Sandbox(queue=Queue(runs=1), chosen=chosen))
    row = {"tests": ["assert f(1) == len(T)"], "setup": "T = list(range(900_000))"}
    assert await scorer.score("def f(x): return 900_000", row) == Scored(value=1.0, detail="1 of 1 tests pass")
    large = "def f(x): return 900_000\n#" + "\N{GRINNING FACE}" * 1_500_000
    for code in (large, large * 2):
        scored = await scorer.score(f"```python\n{code}\n```", row)
        assert isinstance(scored, Scored)
        assert scored.value == 0.0
    await scorer.close()


@pytest.mark.engine
async def test_a_name_of_python_that_code_defines_anew_is_python_s_apart_and_the_code_s_beside(
    scorer: CodeScorer,
) -> None:
    tests = ("assert sum([same(1)]) == 1", "assert sum([1, 2]) == 3")
    assert [one.passed for one in await scorer._outcomes(SOLUTION, Asserts(texts=tests[:1]))] == [True]
    wrong, unasked = await scorer._outcomes(f"{SOLUTION}\ndef sum(values): return 0", Asserts(texts=tests))
    assert wrong.why.startswith("in one Python with the code: AssertionError")
    assert unasked.why.endswith("to the tests sum is Python's own, unless reward.code.names lists it")


@pytest.mark.engine
async def test_every_number_says_how_it_came_about_and_whom_it_trusts(chosen: ChosenIsolation) -> None:
    told = []
    for kind in ("values", "trusting"):
        scorer = CodeScorer(CONFIG.model_copy(update={"tests": kind}), Sandbox(queue=Queue(runs=1), chosen=chosen))
        scored = await scorer.score("def add(a, b): return 7", {"tests": TESTS})
        assert isinstance(scored, Scored)
        told.append(scored.detail)
        await scorer.close()
    assert told == [
        "0 of 4 tests pass; from the code: add; test 1: AssertionError",
        "0 of 4 tests pass (trusting); test 1: AssertionError",
    ]


SEES = """
import sys
def add(a, b):
    at = sys._getframe()
    while at and 'asked' not in at.f_locals: at = at.f_back
    if at:
        asked = at.f_locals['asked'] | {'code': ''}
        told = [of for of in asked if '61' in str(asked[of]) and '_0' in str(asked[of])]
        raise ValueError(f"{asked['tests']} {told}")
    return a + b if a < 5 else 0
"""
"""Tells the tests that it sees, by failing over them."""


@pytest.mark.engine
async def test_beside_the_code_are_only_tests_that_it_passes_apart(scorer: CodeScorer) -> None:
    tests = ["import math\nassert add(5, 1) == 60_061", "assert add(1, 2) == 3", "assert add(7, 2) == 90_091"]
    scored = await scorer.score(f"```python\n{SEES}\n```", {"tests": tests})
    assert isinstance(scored, Scored)
    assert scored.value == 0
    outcomes = await scorer._outcomes(SEES, Asserts(texts=tuple(tests)))
    assert "['import math', 'assert add(1, 2) == 3', ''] []" in outcomes[1].why
    scorer._keeps_nothing = False  # a sandbox in which a run finds what the last one left
    assert [outcome.passed for outcome in await scorer._outcomes(SEES, Asserts(texts=tuple(tests)))] == [
        False,
        True,
        False,
    ]


FORGES = """
import os, sys
at = sys._getframe()
while at and not {'asked', 'verdicts'} <= set(at.f_locals): at = at.f_back
if at:
    verdicts, key = at.f_locals['verdicts'], at.f_locals['asked']['key']
    FORGERY
    os._exit(0)
def add(a, b): return 3
"""
"""Says what it likes where it runs beside its tests."""
SIGNED = "from rlhf.reward.code.checking.verdicts import signature\n    say = lambda *lines: [verdicts._stream.write("
SIGNED += "f'{signature(key, line)} {line}\\n'.encode()) for line in lines]\n    "


@pytest.mark.engine
@pytest.mark.parametrize(
    ("forgery", "value"),
    [
        ("for index in range(9): verdicts.write(key, index, '')", 0.25),
        (SIGNED + "say('0 failed the set-up fails: of itself')", 0.0),
        (SIGNED + "say('x', '', '0', '0 passed', 'a b c d', '99 passed', '-1 failed', '0 failed ' + chr(27))", 0.25),
        ("verdicts._stream.write(b'\\n' * 3_000_000)", 0.0),
        ("verdicts._stream.write(b'\\xff\\0' * 300)", 0.0),
    ],
)
async def test_what_code_says_beside_its_tests_is_at_most_believed_against_it(
    scorer: CodeScorer, forgery: str, value: float
) -> None:
    assert await share(scorer, FORGES.replace("FORGERY", forgery)) == value


@pytest.mark.engine
async def test_a_set_up_that_fails_beside_the_code_alone_is_no_excuse(chosen: ChosenIsolation) -> None:
    config = CONFIG.model_copy(update={"tests": "trusting"})
    scorer = CodeScorer(config, Sandbox(queue=Queue(runs=1), chosen=chosen))
    forgery = FORGES.replace("FORGERY", SIGNED + "say('0 failed the set-up fails: of itself')")
    assert await share(scorer, forgery) == 0.0
    await scorer.close()


@pytest.mark.engine
async def test_code_that_breaks_the_sandbox_has_the_lowest_and_a_sandbox_that_breaks_has_none(
    chosen: ChosenIsolation,
) -> None:
    runner = Fragile(Sandbox(queue=Queue(runs=1), chosen=chosen))
    broken = make_reward(build(RewardConfig, {"kind": "code"}))
    assert isinstance(broken, FailuresValued)
    scorer = CodeScorer(CONFIG, runner)
    caused = await scorer.score("def add(a, b): return 'break it'", {"tests": TESTS})
    assert isinstance(caused, Unscored)
    assert caused.kind in CAUSED_BY_REPLIES
    runner.breaks_once = True
    assert await share(scorer, ADD) == 1.0
    await scorer.close()


class Fragile:
    """A sandbox that breaks over some code, or once."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox, self.breaks_once = sandbox, False

    async def start(self) -> None: ...

    async def run(self, program: Program) -> ProgramResult:
        if b"break it" in program.stdin or self.breaks_once:
            self.breaks_once = False
            raise SandboxBroken("File name too long")
        return await self._sandbox.run(program)

    async def close(self) -> None:
        await self._sandbox.close()


@pytest.mark.engine
async def test_programs_are_judged_by_what_they_print(scorer: CodeScorer) -> None:
    pairs = {"inputs": ["1 2\n", "5 5\n"], "outputs": ["3\n", "10"]}
    assert await share(scorer, "print(sum(map(int, input().split())), ' ')", pairs) == 1.0
    assert await share(scorer, "print(3)", pairs) == 0.5
    assert await share(scorer, "print(3)\nraise SystemExit(1)", pairs) == 0.0


@pytest.mark.engine
async def test_a_function_that_checks_a_candidate_is_called_with_the_entry_point() -> None:
    config = CONFIG.model_copy(update={"tests_column": "test", "entry_point_column": "entry_point"})
    scorer = make_code_scorer(config)
    await scorer.start()
    row = {"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"}
    assert await scorer.score(ADD, row) == Scored(value=1.0)
    assert await scorer.score("def add(a, b): return 4", row) == Scored(value=0.0)
    await scorer.close()


class Broken:
    """A sandbox that runs nothing."""

    async def start(self) -> None: ...

    async def run(self, program: Program) -> ProgramResult:
        raise SandboxBroken("out of order")

    async def close(self) -> None: ...


async def test_a_sandbox_that_broke_gives_no_number() -> None:
    assert await CodeScorer(CONFIG, Broken()).score(ADD, {"tests": TESTS}) == Unscored(
        kind="sandbox", detail="out of order"
    )


@pytest.mark.parametrize(
    "tests", [None, [], "", "assert (", ["assert ("], 3, {"inputs": ["1"], "outputs": []}, [{"input": "1"}]]
)
async def test_a_row_without_usable_tests_gives_no_number(tests: Any) -> None:
    scored = await CodeScorer(CONFIG, Broken()).score(ADD, {"tests": tests})
    assert isinstance(scored, Unscored)
    assert scored.kind == "no tests"


def test_text_is_split_into_one_test_an_assert_and_its_set_up_stays_with_it() -> None:
    text = "import math\nx = f(1)\nassert x == 1\ny = f(2)\nassert y == 2\nprint('end')"
    assert read_tests({"tests": text}, CONFIG) == Asserts(
        texts=("import math\nx = f(1)\nassert x == 1", "y = f(2)\nassert y == 2\nprint('end')")
    )


def test_pairs_are_read_in_the_forms_of_common_datasets() -> None:
    wanted = [InputOutput(stdin="1", stdout="2")]
    for value in (
        [{"input": "1", "output": "2"}],
        '{"inputs": ["1"], "outputs": ["2"]}',
        {"inputs": ["1"], "outputs": ["2"]},
    ):
        assert read_tests({"t": value}, CONFIG.model_copy(update={"tests_column": "t"})) == wanted
    with pytest.raises(TestsError, match="no tests in column 't'"):
        read_tests({}, CONFIG.model_copy(update={"tests_column": "t"}))


async def test_an_output_that_the_sandbox_does_not_keep_whole_is_no_test() -> None:
    tests = {"inputs": ["", ""], "outputs": ["x" * (1 << 20), "é" * (1 << 20)]}
    scored = await CodeScorer(CONFIG, Broken()).score("print(1)", {"tests": tests})
    assert isinstance(scored, Unscored)
    assert scored.detail == "an output has more than the 1048576 bytes that the sandbox keeps"
