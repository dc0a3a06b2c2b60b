"""Every program is scored what it earns, on any level, as any user; below it where only its tests are to blame."""

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
IN_ONE_PROCESS = CodeRewardConfig(timeout_seconds=4.0, memory_mb=128, tests="trusting")
CORPUS = hacks() | {name: Hack(code=hostile.naming(["add", "f"])) for name, hostile in hostile_programs().items()}
SLOW = ("loops for ever", "loops when asked", "answers too many items")
"""They hold a run for seconds."""
QUICK = {name: hack for name, hack in CORPUS.items() if name not in SLOW}
PARTS = 5
TRUSTING = {name: hack for name, hack in QUICK.items() if hack.needs_trust}


async def scores(config: CodeRewardConfig, runner: ProgramRunner, corpus: Mapping[str, Hack]) -> dict[str, object]:
    """What each hack of `corpus` is scored; what has no number stands for itself."""
    scorer = CodeScorer(config, runner)
    await scorer.start()
    rows = [(hack.code, {"tests": list(hack.tests)}) for hack in corpus.values()]
    scored = await asyncio.gather(*(scorer.score(f"```python\n{code}\n```", row) for code, row in rows))
    await scorer.close()
    return {name: getattr(score, "value", score) for name, score in zip(corpus, scored, strict=True)}


async def differing(runner: ProgramRunner, corpus: Mapping[str, Hack]) -> dict[str, object]:
    """The hacks of `corpus` that are not scored what they earn, or, where they need trust, not below it."""
    found = await scores(CONFIG, runner, corpus)
    return {name: value for name, value in found.items() if not is_deserved(value, corpus[name])}


def is_deserved(value: object, hack: Hack) -> bool:
    return isinstance(value, float) and (value < hack.earns if hack.needs_trust else value == hack.earns)


def test_the_corpus_is_large() -> None:
    assert len(hacks()) == 768
    assert len(CORPUS) == 855


@pytest.mark.parametrize("part", range(PARTS))
async def test_programs_are_scored_what_they_earn(part: int) -> None:
    corpus = {name: QUICK[name] for name in list(QUICK)[part::PARTS]}
    assert await differing(Sandbox(queue=Queue(runs=2)), corpus) == {}


async def test_what_needs_trust_earns_it_in_one_process_with_its_tests() -> None:
    found = await scores(IN_ONE_PROCESS, Sandbox(queue=Queue(runs=2)), TRUSTING)
    assert found == {name: hack.earns for name, hack in TRUSTING.items()}


@pytest.mark.attack
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("user", USERS)
async def test_programs_are_scored_what_they_earn_on_any_level_as_any_user(level: str, user: str) -> None:
    assert await differing(SandboxOf(level, user, readable_python()), CORPUS) == {}
