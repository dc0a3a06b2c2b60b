"""Ordinary code with a fault in it gets of its tests what it gets in one plain Python: no more, and
no less unless it says that they need trust."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import subprocess
import sys

import pytest

from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.scoring import make_code_scorer
from rlhf.reward.code.unit_tests import Asserts, read_tests
from rlhf.types import Scored
from tests.attacks.ordinary import CODE, TESTS

pytestmark = pytest.mark.engine
CONFIG = CodeRewardConfig(timeout_seconds=20.0, score="share")
COMPARED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
COMPUTED = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
WRAPPED = ("list", "tuple", "iter", "str", "bool", "repr")
PLAIN_SECONDS = 5.0
PLAIN = """
import json, os, sys, types
code, tests, names = json.load(sys.stdin)
solution = sys.modules["solution"] = types.ModuleType("solution")
verdicts, out = [], os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
try:
    exec(compile(code, "solution.py", "exec"), vars(solution))
    theirs = {name: value for name, value in vars(solution).items() if name in names} | {"__name__": "tests"}
except BaseException:
    tests = []
for test in tests:
    try:
        exec(compile(test, "test.py", "exec"), theirs)
        verdicts.append(1)
    except BaseException:
        verdicts.append(0)
os.write(out, json.dumps(verdicts).encode())
"""
"""Runs the tests beside the code, and says which pass."""


class Fault(ast.NodeTransformer):
    """Plants one fault, at the place of that number among those where there can be one."""

    def __init__(self, chance: random.Random, place: int | None = None) -> None:
        self._chance, self._place, self.places = chance, place, 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """The node, or another in its place."""
        super().generic_visit(node)
        if not isinstance(node, ast.Compare | ast.BinOp | ast.If | ast.Return | ast.Yield | ast.Constant | ast.Call):
            return node
        self.places += 1
        return self._changed(node) if self.places - 1 == self._place else node

    def _changed(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.Compare():
                node.ops[0] = self._chance.choice(COMPARED)()
            case ast.BinOp():
                node.op = self._chance.choice(COMPUTED)()
            case ast.If():
                node.test = ast.UnaryOp(ast.Not(), node.test)
            case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value):
                node.value = ast.Call(ast.Name(self._chance.choice(WRAPPED), ast.Load()), [value], [])
            case ast.Constant(value=int() as number):
                return ast.Constant(number + self._chance.choice((-1, 1)))
            case ast.Constant(value=str() as text):
                return ast.Constant(f"{text}x")
            case ast.Call(args=[ast.expr() as first, *_]) if not isinstance(first, ast.Starred):
                return first
        return node


def with_fault(number: int) -> str:
    """The code with the fault of that number."""
    chance = random.Random(number)
    count = Fault(chance)
    count.visit(ast.parse(CODE))
    changed = Fault(chance, chance.randrange(count.places)).visit(ast.parse(CODE))
    return ast.unparse(ast.fix_missing_locations(changed))


def plain_share(code: str) -> float | None:
    """The share of tests that pass in one plain Python; None where they do not end."""
    tests = read_tests({"tests": list(TESTS)}, CONFIG)
    assert isinstance(tests, Asserts)
    names = {node.id for text in tests.texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    given = json.dumps([code, tests.texts, sorted(names)])
    command = [sys.executable, "-I", "-c", PLAIN]
    try:
        told = subprocess.run(command, input=given, capture_output=True, text=True, timeout=PLAIN_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        return None
    return float(sum(json.loads(told.stdout)) / len(tests.texts))


async def differing(numbers: range) -> tuple[dict[int, object], int]:
    """The faults for which the score is another than in one plain Python, unless a test needs trust, and how many had
    failing tests there."""
    scorer = make_code_scorer(CONFIG)
    await scorer.start()
    found: dict[int, object] = {}
    failing = 0
    for number in numbers:
        code = with_fault(number)
        plain = await asyncio.to_thread(plain_share, code)
        score = await scorer.score(f"```python\n{code}\n```", {"tests": list(TESTS)})
        assert isinstance(score, Scored)
        failing += plain != 1.0
        refused = "trusting" in score.detail and plain is not None and score.value < plain
        if plain is not None and not refused and score.value != pytest.approx(plain):
            found[number] = (score.value, plain, score.detail)
    await scorer.close()
    return found, failing


async def test_faults_in_ordinary_code_cost_what_they_cost_in_python() -> None:
    found, failing = await differing(range(8))
    assert found == {}
    assert failing > 3


@pytest.mark.attack
async def test_many_faults_in_ordinary_code_cost_what_they_cost_in_python() -> None:
    found, failing = await differing(range(8, 300))
    assert found == {}
    assert failing > 150
