"""No program is scored above what it earns, on any level, as any user."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.hostile_programs import hostile_programs
from rlhf.reward.code.scoring import CodeScorer
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.program import ProgramRunner
from tests.attacks.hack import Hack
from tests.attacks.reward_hacks import hacks
from tests.attacks.sandboxes import SandboxOf
from tests.sandbox.conftest import LEVELS, USERS, readable_python

pytestmark = pytest.mark.engine
CONFIG = CodeRewardConfig(timeout_seconds=4.0, memory_mb=128)
CORPUS = hacks() | {name: Hack(code=hostile.naming(["add", "f"])) for name, hostile in hostile_programs().items()}
SLOW = ("loops for ever", "loops when asked", "answers too many items")
"""They hold a run for seconds."""
QUICK = {name: hack for name, hack in CORPUS.items() if name not in SLOW}


async def above(runner: ProgramRunner, corpus: Mapping[str, Hack]) -> dict[str, object]:
    """The hacks of `corpus` that are scored above what they earn, or that have no number."""
    scorer = CodeScorer(CONFIG, runner)
    await scorer.start()
    rows = [(hack.code, {"tests": list(hack.tests)}) for hack in corpus.values()]
    scores = await asyncio.gather(*(scorer.score(f"```python\n{code}\n```", row) for code, row in rows))
    await scorer.close()
    worth = {name: getattr(score, "value", score) for name, score in zip(corpus, scores, strict=True)}
    return {name: value for name, value in worth.items() if value != corpus[name].earns}


def test_the_corpus_is_large() -> None:
    assert len(hacks()) == 490
    assert len(CORPUS) == 577


async def test_no_program_is_scored_above_what_it_earns() -> None:
    assert await above(Sandbox(queue=Queue(runs=2)), QUICK) == {}


@pytest.mark.attack
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("user", USERS)
async def test_no_program_is_scored_above_what_it_earns_on_any_level_as_any_user(level: str, user: str) -> None:
    assert await above(SandboxOf(level, user, readable_python()), CORPUS) == {}
