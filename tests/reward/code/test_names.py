"""Which names of tests are the code's, which tests ask it for anything, and who may look into whose process."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf.reward.code.apart import not_apart
from rlhf.reward.code.checking.verdicts import signature
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.names import names_of_the_code
from rlhf.reward.code.scoring import OF_JUDGE, checking_program, make_code_scorer, signed_lines
from rlhf.reward.code.unit_tests import Asserts, TestsError, read_tests
from rlhf.sandbox.limits import SandboxLimits
from rlhf.types import Scored, Unscored

CONFIG = CodeRewardConfig(timeout_seconds=8, memory_mb=256, entry_point_column="entry")
PROMPT = 'def poly(xs, x):\n    return xs[0] + xs[1] * x\n\ndef zero(xs):\n    """Where poly is 0."""\n'
ROW = {
    "tests": "def check(candidate):\n    assert abs(poly([1, 2], candidate([1, 2]))) < 1e-4\n",
    "entry": "zero",
    "prompt": PROMPT,
}
"""As HumanEval/32: a helper of the prompt, which the code repeats, or not as it was."""


def test_a_row_with_an_entry_point_says_where_its_other_names_are_from() -> None:
    with pytest.raises(TestsError, match=r"the tests use poly, .*reward.code.setup_column"):
        read_tests(ROW, CONFIG)
    for keys in ({"setup_column": "prompt"}, {"names": ("poly",)}, {"tests": "trusting"}):
        assert isinstance(read_tests(ROW, CONFIG.model_copy(update=keys)), Asserts)


@pytest.mark.engine
async def test_a_helper_of_the_set_up_is_not_the_code_s_and_what_is_tested_is() -> None:
    scorer = make_code_scorer(CONFIG.model_copy(update={"setup_column": "prompt"}))
    await scorer.start()
    right = await scorer.score("def zero(xs): return -xs[0] / xs[1]", ROW)
    wrong = await scorer.score("def poly(*a): return 0\ndef zero(xs): return 1", ROW)
    missing = await scorer.score("def other(): pass", ROW)
    await scorer.close()
    assert [score.value for score in (right, wrong, missing) if isinstance(score, Scored)] == [1.0, 0.0, 0.0]


@pytest.mark.engine
async def test_code_continues_its_prefix_and_may_be_the_rest_of_a_function() -> None:
    scorer = make_code_scorer(CONFIG.model_copy(update={"code_prefix_column": "prompt", "entry_point_column": None}))
    await scorer.start()
    row = {"tests": "assert zero([1, 2]) == -0.5 and poly([1, 2], 0) == 1", "prompt": f"import math\n{PROMPT}"}
    scores = [
        await scorer.score(code, row)
        for code in (
            "from __future__ import annotations\ndef zero(xs): return math.prod([-xs[0] / xs[1]])",
            "    return -xs[0] / xs[1]",
            "x = 1",
        )
    ]
    wrong = [await scorer.score("x = 1", row | {"prompt": prompt}) for prompt in (None, "def f(:")]
    await scorer.close()
    assert [score.value for score in scores if isinstance(score, Scored)] == [1.0, 1.0, 0.0]
    assert [type(score).__name__ for score in wrong] == ["Unscored"] * 2


SETUPS = {
    "evaluates": ("def value(e): return eval(e)", ("assert value(solve(1)) == 24",), "def solve(x): return '24'", 0.0),
    "unpickles": (
        "import pickle\ndef back(b): return pickle.loads(b)",
        ("assert back(dump(24)) == 24",),
        "import pickle\ndef dump(x): return pickle.dumps(x)",
        0.0,
    ),
    "compares types": (
        "def alike(a, b): return type(a) is type(b)",
        ("assert alike(make(0), make(1))",),
        "class A: pass\nclass B: pass\ndef make(n): return B() if n else A()",
        0.0,
    ),
    "brings names by a star": (
        "from math import *",
        ("assert isclose(root(2.0), 1.41421356, abs_tol=1e-3)",),
        "isclose = lambda *a, **k: True\ndef root(x): return 0.0",
        0.0,
    ),
    "brings names by a star, for right code": (
        "from math import *",
        ("assert isclose(root(2.0), 1.41421356, abs_tol=1e-3)",),
        "def root(x): return x ** 0.5",
        1.0,
    ),
    "makes names when it runs": (
        "exec('def close(a, b): return abs(a - b) < 1e-3')",
        ("assert close(root(2.0), 1.41421356)",),
        "close = lambda *a: True\ndef root(x): return 0.0",
        0.0,
    ),
    "is a prelude": (
        "import logging, warnings\nfrom io import *\nfrom sys import *\nfrom random import *\nfrom builtins import *\n"
        "from typing import *\nlogging.basicConfig(level=logging.ERROR)\nwarnings.filterwarnings('ignore')\n"
        "warnings.simplefilter('ignore')\nimport sys\nsys.setrecursionlimit(50_000)\n"
        "def alike(a, b): return type(a) is type(b)",
        ("assert down(3000) == 3000", "assert alike(down(1), 1)"),
        "def down(n): return n and 1 + down(n - 1)",
        1.0,
    ),
    "uses the code": (
        "class Case:\n    def root(self): return Node(1)\nroot = Node(1)",
        ("assert height(root) == 1",),
        "class Node:\n    def __init__(self, x): self.x, self.left = x, None\n"
        "def height(n): return 1 + height(n.left) if n else 0",
        1.0,
    ),
    "helps": ("def twice(x): return 2 * x", ("assert twice(solve(1)) == 4",), "def solve(x): return 2 * x", 1.0),
}


@pytest.mark.engine
@pytest.mark.parametrize("name", SETUPS)
async def test_what_holds_for_tests_holds_for_helpers_of_the_set_up(name: str) -> None:
    setup, tests, code, earns = SETUPS[name]
    scorer = make_code_scorer(CONFIG.model_copy(update={"setup_column": "setup", "entry_point_column": None}))
    await scorer.start()
    score = await scorer.score(code, {"tests": list(tests), "setup": setup})
    await scorer.close()
    assert isinstance(score, Scored)
    assert score.value == earns


@pytest.mark.engine
@pytest.mark.parametrize(
    ("setup", "test", "told"),
    [
        ("1 / 0", "assert f() == 1", "the set-up fails: ZeroDivisionError"),
        ("", "import no_such_module\nassert f() == 1", "no module no_such_module"),
        ("", "from your_module import f\nassert solve() == 1", "no module your_module"),
    ],
)
async def test_what_is_not_the_code_s_to_blame_is_no_number(setup: str, test: str, told: str) -> None:
    scorer = make_code_scorer(CONFIG.model_copy(update={"setup_column": "setup", "entry_point_column": None}))
    await scorer.start()
    score = await scorer.score("def f(): return 1", {"tests": [test], "setup": setup})
    await scorer.close()
    assert isinstance(score, Unscored)
    assert told in score.detail


@pytest.mark.engine
async def test_a_function_that_vanishes_is_not_replaced_by_python_s_own() -> None:
    scorer = make_code_scorer(CONFIG.model_copy(update={"setup_column": "setup"}))
    await scorer.start()
    row = {"entry": "sorted", "setup": "FIRST = sorted([2, 1])[0]"}
    code = "def sorted(*a):\n    globals().pop('sorted')\n    return 0"
    tests = [f"result = sorted({given})\nassert result == {given[::-1]}" for given in ([2, 1], [9, 5], [4, 3])]
    score = await scorer.score(code, {"tests": tests, **row})
    right = await scorer.score("def sorted(x): return x[::-1]", {"tests": tests, **row})
    await scorer.close()
    assert isinstance(score, Scored)
    assert isinstance(right, Scored)
    assert (score.value, right.value) == (0.0, 1.0)


def test_calls_of_a_function_are_no_pairs_of_input_and_output() -> None:
    for tests in (
        {"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]},
        [{"input": "1\n2", "output": "3", "testtype": "functional"}],
    ):
        with pytest.raises(TestsError, match="calls of a function"):
            read_tests({"tests": tests}, CodeRewardConfig())


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["assert add(1, 2) == 3"], ["add"]),
        (["x = add(1, 2)\nassert x == 3", "for y in [x]: assert y > LIMIT"], ["LIMIT", "add"]),
        (["def close(a, b): return a == b\nassert close(f(1), [z for z in (1,)])"], ["f"]),
        (["import math as m\nassert m.pi == (lambda q: q + step)(3)"], ["step"]),
        (["try:\n    f()\nexcept ValueError as error:\n    assert error.args"], ["f"]),
        (["def g():\n    global seen\n    seen = f()\ng()\nassert seen"], ["f"]),
        (["from solution import f\nassert f(1) == 1"], ["f"]),
        (["from math import *\nassert isclose(f(1), pi)"], ["f"]),
    ],
)
def test_a_name_that_the_tests_bind_is_theirs(texts: list[str], names: list[str]) -> None:
    assert list(names_of_the_code(tuple(texts), "", None, ())) == names


def test_tests_that_ask_for_nothing_are_none() -> None:
    with pytest.raises(TestsError, match="ask the code for nothing"):
        read_tests({"tests": ["import math", "", "# nothing", "WANTED = [1, 2]"]}, CodeRewardConfig())


def test_a_text_that_only_prepares_goes_with_the_next_test() -> None:
    texts = ["import math", "def close(a, b):\n    return a == b", "assert close(f(1), math.pi)", "assert f(2)"]
    read = read_tests({"tests": texts}, CodeRewardConfig())
    assert isinstance(read, Asserts)
    assert read.texts == ("\n".join(texts[:3]), "assert f(2)")


@pytest.mark.parametrize(
    "test",
    [
        "import json\nassert json.loads(f()) == [1]",
        "import re\nassert re.compile(f()).match('a')",
        "assert getattr(f, 'x', 1) == 1 and '{}'.format(f()) == '1'",
        "import subprocess, threading as t\nassert f()",
        "assert trace(f()) == 2 and profile.run(f()) == 1\nprofile = 1",
        "import time, random\nrandom.seed(time.time())\nassert f()",
        "from typing import *\nimport os.path\nassert f() == os.path.join('a', 'b')",
        "assert compile(f()) == 1",
    ],
)
def test_tests_that_run_nothing_of_the_answer_need_no_trust(test: str) -> None:
    assert not_apart((test,), entry_point="compile") == ("",)


@pytest.mark.parametrize(
    ("test", "used"),
    [
        ("assert eval('1 + 1') == f()", "builtins.eval"),
        ("import time\ntime.sleep = print\nassert f()", "they change time.sleep"),
        ("assert f(1).format(3) == '3'", "f(1).format"),
        ("assert getattr(str, f(1))('a') == 'A'", "getattr(str, f(1))"),
        ("import tracemalloc as m\nm.start()\nassert f()", "tracemalloc.start"),
        ("assert threading.active_count() == f()", "threading.active_count"),
        ("import os\nassert not os.path.exists(f())", "os.path.exists"),
        ("from os import *\nassert f() == getcwd()", "os.getcwd"),
        ("from unittest.mock import patch\nwith patch('time.sleep') as s: f()", "unittest.mock.patch"),
        ("import operator\nassert operator.attrgetter(f())(3)", "operator.attrgetter"),
        ("from operator import attrgetter as a\nassert a(f())(3)", "operator.attrgetter"),
        ("from operator import methodcaller\nassert [*map(methodcaller, f())]", "operator.methodcaller"),
        ("import math\nassert math.__getattribute__(f())", "math.__getattribute__"),
        ("assert f() is not None is not g()", "f() is not None is not g()"),
        ("import operator\nassert operator.is_(f(), 3)", "operator.is_"),
        ("import traceback\nassert traceback.format_exc() and f()", "traceback.format_exc"),
        ("import random\nrandom.setstate(())\nassert f()", "random.setstate"),
        ("from numpy import *\nassert f()", "import all of numpy"),
        ("import yaml\nassert yaml.unsafe_load(f())", "yaml.unsafe_load"),
        ("assert open(f()).read()", "builtins.open"),
        ("import builtins\nassert builtins.eval(f())", "builtins.eval"),
    ],
)
def test_what_is_not_listed_of_a_library_cannot_run_apart_from_the_code(test: str, used: str) -> None:
    assert used in not_apart((test,))[0]
    assert used in not_apart(("assert f()",), test)[0], "what the set-up does, every test does"


READS_THE_JUDGE = """
import os, re
def f(x):
    with open(f'/proc/{os.getppid()}/mem', 'rb', 0) as memory:
        for line in open(f'/proc/{os.getppid()}/maps'):
            low, high = (int(end, 16) for end in line.split()[0].split('-'))
            try:
                memory.seek(low)
                found = re.search(rb'"key": ?"([0-9a-f]{32})"', memory.read(high - low))
            except (OSError, OverflowError, ValueError):
                continue
            if found:
                break
    return found and 'found it'
"""


def test_the_code_cannot_read_the_tests_where_programs_run_as_root(tmp_path: Path) -> None:
    key = secrets.token_hex(16)
    asked = {"key": key, "code": READS_THE_JUDGE, "tests": ["assert f(1) == 'found it'"], "names": ["f"], "tested": []}
    text = json.dumps(
        asked | {"setup": "", "seconds": 30, "imports": [], "loads": [], "bound": [[]], "left": [[]], "constants": [""]}
    ).encode()
    (tmp_path / "judge.py").write_text(checking_program(OF_JUDGE, "judge_main"))
    command = [sys.executable, str(tmp_path / "judge.py")]
    said = subprocess.run(command, input=text, capture_output=True, timeout=60, cwd=tmp_path).stdout.decode()
    assert signed_lines(said, key)["0"][0] == "failed"
    assert key not in said


def test_only_lines_that_are_signed_are_verdicts_each_of_its_own_test() -> None:
    key, other = secrets.token_hex(16), secrets.token_hex(16)
    told = [f"{signature(key, line)} {line}" for line in ("0 failed AssertionError: 1 passed", "1 passed")]
    forged = [
        f"{told[1].partition(' ')[0]} 0 passed",
        f"{signature(other, '0 passed')} 0 passed",
        f"{key} 0 passed",
        *("0 passed", " 0 passed", "\x00\ufffd\ud800 0 passed", "x" * 100_000, "", " ", told[1][:-1]),
    ]
    verdicts = {"0": ("failed", "AssertionError: 1 passed"), "1": ("passed", "")}
    assert signed_lines("\n".join([*forged, *told, *forged]), key) == verdicts
    assert signed_lines("\n".join([*forged, told[1], f"half a line{told[0]}"]), key) == {"1": ("passed", "")}


def test_complaints_leave_room_for_the_verdicts_after_them() -> None:
    program = (
        "from rlhf.reward.code.checking.verdicts import *\nverdicts = Verdicts()\n"
        "for index in range(4000): verdicts.write('00', index, chr(0x1F600) * LONGEST_COMPLAINT * (index < 3999))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True).stdout
    assert len(said) < SandboxLimits().output_bytes
    assert signed_lines(said.decode(), "00")["3999"] == ("passed", "")
