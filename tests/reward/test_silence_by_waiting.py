"""Replies that hang are 0 and keep others waiting, and take nobody's number: neither their own nor that of others."""

from __future__ import annotations

import asyncio

import pytest

from rlhf.errors import RlhfError, SandboxBusy
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.scoring import CodeScorer
from rlhf.sandbox.client import RetryingRunner
from rlhf.sandbox.program import Program, ProgramResult, TerminationReason
from rlhf.types import Scored

PAIRS = {"tests": [{"input": str(number), "output": "1"} for number in range(12)]}


class Place:
    """A sandbox that runs one program at a time and lets none wait: one that hangs uses all of its time."""

    def __init__(self) -> None:
        self.running = self.most = self.ran = self.refused = 0
        self.seconds: list[float] = []

    async def start(self) -> None: ...

    async def run(self, program: Program) -> ProgramResult:
        if self.running:
            self.refused += 1
            raise SandboxBusy("1 programs run already")
        self.running += 1
        self.most, self.ran = max(self.most, self.running), self.ran + 1
        await asyncio.sleep(0)
        self.running -= 1
        hangs = "hang" in program.code
        self.seconds.append(program.wall_seconds if hangs else min(0.25, program.wall_seconds))
        if hangs:
            return ProgramResult(
                ending=TerminationReason.TIME, return_code=None, seconds=self.seconds[-1], detail="killed"
            )
        return ProgramResult(ending=TerminationReason.EXITED, return_code=0, stdout="1\n", seconds=self.seconds[-1])

    async def close(self) -> None: ...


def scorer(place: Place, at_once: int = 64, **settings: float) -> CodeScorer:
    return CodeScorer(CodeRewardConfig(**settings), RetryingRunner(place, at_once, 5.0))  # type: ignore[arg-type]


async def test_the_pairs_of_a_reply_hold_one_place_and_end_together() -> None:
    place = Place()
    asked = scorer(place, timeout_seconds=10, pairs_timeout_seconds=25)
    scored = await asked.score("hang", PAIRS)
    assert isinstance(scored, Scored)
    assert (scored.value, place.seconds, place.refused) == (0.0, [10, 10, 5], 0)
    assert await asked.score("print(1)", PAIRS) == Scored(value=1.0, detail="12 of 12 tests pass (stdin)")


async def test_pairs_that_are_left_when_the_time_of_all_is_over_fail() -> None:
    scored = await scorer(Place(), pairs_timeout_seconds=2).score("print(1)", PAIRS)
    why = "8 of 12 tests pass (stdin); test 9: the time for all pairs ran out before this one"
    assert scored == Scored(value=8 / 12, detail=why)


async def test_replies_that_hang_take_no_number_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf.sandbox.client.AGAIN_SECONDS", 0.001)
    place = Place()
    asked = scorer(place, at_once=3)
    scores = await asyncio.gather(*(asked.score(code, PAIRS) for code in ("hang", "print(1)", "hang", "print(1)")))
    assert [score.value for score in scores if isinstance(score, Scored)] == [0.0, 1.0, 0.0, 1.0]
    assert place.refused > 0


async def test_no_more_is_asked_for_at_once_than_was_said() -> None:
    place = Place()
    asked = scorer(place, at_once=1)
    scores = await asyncio.gather(*(asked.score("print(1)", PAIRS) for _ in range(5)))
    assert len([score for score in scores if isinstance(score, Scored)]) == 5
    assert place.refused == 0


class Full(Place):
    async def run(self, program: Program) -> ProgramResult:
        self.refused += 1
        raise SandboxBusy("full")


async def test_a_sandbox_that_serves_nobody_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf.sandbox.client.AGAIN_SECONDS", 0.001)
    full = Full()
    with pytest.raises(RlhfError, match="full"):
        await asyncio.wait_for(RetryingRunner(full, 1, 0.05).run(Program(code="1")), 5)
    assert full.refused > 1
