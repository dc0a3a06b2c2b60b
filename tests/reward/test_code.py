"""Code is scored by its tests and by nothing that it does to be scored well; in a real sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rlhf.reward.code import CodeScorer, code_of, make_code_scorer
from rlhf.reward.code_config import CodeRewardConfig
from rlhf.reward.code_tests import Pair, TestsError, read_tests
from rlhf.sandbox.ladder import Ladder, choose
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import Program, Run, SandboxBroken
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
def ladder() -> Ladder:
    return choose()


@pytest.fixture
async def scorer(ladder: Ladder) -> AsyncIterator[CodeScorer]:
    scorer = CodeScorer(CONFIG, Sandbox(queue=Queue(runs=2), ladder=ladder))
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


CHEATS = {
    "exits with success": "import sys; sys.exit(0)",
    "exits hard": "import os; os._exit(0)",
    "exits within a test": "import os\ndef add(a, b): os._exit(0)",
    "prints the marker": "for i in range(9): print('nonce', i, 'passed'); print(i, 'passed')",
    "replaces builtins": "import builtins\nbuiltins.AssertionError = None\nabs = lambda x: 0\nbuiltins.abs = abs\n"
    "def add(a, b): return 10**9",
    "replaces assert": "__builtins__['AssertionError'] = type('A', (), {})\ndef add(a, b): return None",
    "equals everything": "class Yes:\n    __eq__ = __lt__ = __gt__ = __contains__ = lambda *a: True\n"
    "    __sub__ = __rsub__ = __abs__ = lambda s, *a: s\n    __hash__ = lambda s: 0\n    __float__ = lambda s: 0.0\n"
    "def add(a, b): return Yes()",
    "an integer that equals everything": "class Yes(int):\n"
    "    __eq__ = __lt__ = lambda *a: True\n    __hash__ = int.__hash__\n"
    "    __sub__ = lambda s, o: s\n    __abs__ = lambda s: s\ndef add(a, b): return Yes(77)",
    "a list whose items equal everything": "class Yes:\n    __eq__ = lambda *a: True\ndef add(a, b): return [Yes()]",
    "patches comparison": "import operator\noperator.eq = lambda *a: True\ndef add(a, b): return 'x'",
    "looks for the tests": "import gc, sys, os\n"
    "found = [o for o in gc.get_objects() if isinstance(o, dict) and 'nonce' in o]\n"
    "frames = [f for f in sys._current_frames().values()]\n"
    "def add(a, b):\n    return found[0]['expected']",
    "reads the memory of the tests": "import os\ndef add(a, b):\n"
    "    return open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "writes to the output of the tests": "import os\ndef add(a, b):\n"
    "    return open(f'/proc/{os.getppid()}/fd/1', 'w').write('passed')",
    "kills the tests": "import os\nos.kill(os.getppid(), 9)",
    "interrupts the tests": "import os\nos.kill(os.getppid(), 2)\ndef add(a, b): return None",
    "plants a module": "open('math.py', 'w').write('')\nopen('ast.py', 'w').write('')\ndef add(a, b): return None",
    "answers for the channel": "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'{\"names\": {}}\\n' * 9)\n"
    "    except OSError: pass\ndef add(a, b): return None",
    "answers nonsense": "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'nonsense\\n' * 9)\n"
    "    except OSError: pass\ndef add(a, b): return None",
    "loops for ever": "while True: pass",
    "takes all memory": "x = bytearray(1 << 30)",
    "no Python": "def add(a, b:",
    "raises": "def add(a, b): raise KeyError(a)",
    "nothing": "",
}


@pytest.mark.engine
@pytest.mark.parametrize("cheat", CHEATS)
async def test_no_trick_passes_a_test(scorer: CodeScorer, cheat: str) -> None:
    assert await share(scorer, CHEATS[cheat]) == 0.0


@pytest.mark.engine
async def test_a_process_that_ends_passes_no_test_that_waits_for_exceptions(scorer: CodeScorer) -> None:
    test = "try:\n    f()\n    assert False\nexcept Exception as error:\n    pass"
    assert await share(scorer, "def f(): raise ValueError", [test]) == 1.0
    assert await share(scorer, "import os\ndef f(): os._exit(0)", [test]) == 0.0


@pytest.mark.engine
async def test_tests_may_use_classes_callbacks_exceptions_changed_arguments_and_modules(scorer: CodeScorer) -> None:
    code = """
import math
from collections import Counter
class Stack:
    def __init__(self, items=()): self.items = list(items)
    def push(self, item): self.items.append(item); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __eq__(self, other): return self.items == other.items
def sort(values): values.sort()
def apply(function, values): return [function(value) for value in values]
def count(text): return Counter(text)
def numbers():
    yield from (1, 2)
def fail(): raise ValueError('no')
"""
    tests = [
        "stack = Stack([1])\nstack.push(2)\nassert len(stack) == 2 and stack.pop() == 2 and stack.items == [1]",
        "assert Stack([1]) == Stack([1]) and isinstance(Stack(), Stack)",
        "values = [3, 1]\nsort(values)\nassert values == [1, 3]",
        "assert apply(lambda value: value + 1, (1, 2)) == [2, 3]",
        "assert count('aab') == {'a': 2, 'b': 1}",
        "assert list(numbers()) == [1, 2]",
        "try:\n    fail()\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'no'",
        "assert math.isclose(math.pi, 3.14159, rel_tol=1e-3)",
    ]
    assert await share(scorer, code, tests) == 1.0


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

    async def run(self, program: Program) -> Run:
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
    assert read_tests({"tests": text}, "tests", None) == (
        "import math\nx = f(1)\nassert x == 1",
        "y = f(2)\nassert y == 2\nprint('end')",
    )


def test_pairs_are_read_in_the_forms_of_common_datasets() -> None:
    wanted = [Pair(stdin="1", stdout="2")]
    for value in (
        [{"input": "1", "output": "2"}],
        '{"inputs": ["1"], "outputs": ["2"]}',
        {"inputs": ["1"], "outputs": ["2"]},
    ):
        assert read_tests({"t": value}, "t", None) == wanted
    with pytest.raises(TestsError, match="no tests in column 't'"):
        read_tests({}, "t", None)


def test_the_last_block_of_python_is_the_code_and_the_whole_reply_where_there_is_none() -> None:
    assert code_of("a\n```python\nx = 1\n```\nb\n```py\ny = 2\n```\n```text\nz\n```") == "y = 2\n"
    assert code_of("```python\nx = 1") == "x = 1"
    assert code_of("x = 1") == "x = 1"
