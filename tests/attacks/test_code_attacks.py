"""No program earns more from the code reward than its values are right, on any level, as any user."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rlhf.apps.checks.hostile_programs import hostile_programs
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.read_tests import PythonTests, read_tests
from rlhf.reward.code.scoring import CodeScorer
from rlhf.types import Scored
from tests.attacks.code_attacks import ATTACKS, SCRIPT_ATTACKS, STDIN_ATTACKS, Attack, attacks_on
from tests.attacks.sandboxes import SandboxOf
from tests.sandbox.conftest import USERS, readable_python

CONFIG = CodeRewardConfig(timeout_seconds=4.0, memory_mb=128)
RIGHT = attacks_on("def add(a, b): return a + b", earns=1.0)
HOSTILE = attacks_on(*(one.naming(["add"]) for one in hostile_programs().values()))


async def overpaid(level: str, user: str, attacks: Sequence[Attack]) -> list[str]:
    """The attacks that earn anything but what they may."""
    runner = SandboxOf(level, user, readable_python())
    scorer = CodeScorer(CONFIG, runner)
    await scorer.start()
    scores = await asyncio.gather(
        *(scorer.score(f"```python\n{one.code}\n```", {"tests": _row(one)}) for one in attacks)
    )
    await scorer.close()
    return [
        f"{one.code}\n{score}"
        for one, score in zip(attacks, scores, strict=True)
        if not isinstance(score, Scored) or score.value > one.earns or (one.earns == 1.0) > score.value
    ]


def _row(attack: Attack) -> object:
    return list(attack.tests) if isinstance(attack.tests, tuple) else attack.tests


@pytest.mark.engine
@pytest.mark.parametrize(("level", "user"), [("bubblewrap", USERS[0]), ("landlock", USERS[-1])])
async def test_no_program_earns_more_than_its_values(level: str, user: str) -> None:
    attacks = [one for group in ATTACKS.values() for one in group]
    forms = [read_tests({"tests": _row(one)}, CONFIG) for one in attacks]
    assert all(isinstance(tests, PythonTests) and tests.form == "values" for tests in forms)
    assert await overpaid(level, user, [*RIGHT, *attacks, *STDIN_ATTACKS, *HOSTILE]) == []


@pytest.mark.engine
async def test_beside_the_tests_an_exit_or_a_verdict_without_the_key_is_a_failure() -> None:
    right = attacks_on(
        "class Add:\n    def __init__(s, a, b): s.sum = a + b\n    def __eq__(s, o): return s.sum == o.sum",
        tests=SCRIPT_ATTACKS[0].tests,
        earns=1.0,
    )
    assert await overpaid("bubblewrap", USERS[0], [*right, *SCRIPT_ATTACKS]) == []


def test_the_table_has_at_most_120_programs() -> None:
    assert sum(map(len, ATTACKS.values())) + len(STDIN_ATTACKS) + len(SCRIPT_ATTACKS) <= 120
