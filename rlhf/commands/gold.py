"""Score every reference answer against itself: the reward must read it, and must give it 1."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from rlhf.data.rows import answer_of
from rlhf.data.sources import local_files, read_rows
from rlhf.recipe.schema import Recipe
from rlhf.reward.config import RewardConfig, ScorerConfig
from rlhf.reward.live import score_reply
from rlhf.reward.reward import make_scorer
from rlhf.types import Scored, Task, Unscored

COMPARED = ("exact", "math")
"""Kinds for which a reply that states the reference answer is known."""
SHOWN = 3
GOLDS = 10_000
"""Number of rows of a local dataset that `rlhf check` scores."""


@dataclass(slots=True)
class GoldTotals:
    """Counts of reference answers, and those that have no number or another than 1."""

    rows: int = 0
    without: list[str] = field(default_factory=list)
    not_right: list[str] = field(default_factory=list)

    def add(self, answer: str, score: Scored | Unscored) -> None:
        """Count one reference answer."""
        self.rows += 1
        if isinstance(score, Unscored):
            self.without.append(answer)
        elif score.value != 1:
            self.not_right.append(answer)

    def summary(self) -> str:
        """Return the counts in one line, with examples."""
        if not self.without and not self.not_right:
            return f"{self.rows:,} of {self.rows:,} earn 1 against themselves"
        lost = [(self.without, "have no number against themselves, and their rows no reward")]
        lost.append((self.not_right, "do not earn 1 against themselves"))
        return "; ".join(f"{len(some):,} of {self.rows:,} {what}: {_examples(some)}" for some, what in lost if some)


def _examples(answers: Sequence[str]) -> str:
    shown = ", ".join(f"{answer!r:.60}" for answer in answers[:SHOWN])
    return shown + (", …" if len(answers) > SHOWN else "")


def gold_reply(reward: ScorerConfig, answer: str) -> str:
    """Return the reply that states the reference answer."""
    is_math = any(
        scorer.kind == "math" for scorer in (reward.scorers.values() if isinstance(reward, RewardConfig) else [reward])
    )
    return f"\\boxed{{{answer}}}" if is_math and answer.strip() else answer


def describe_golds(recipe: Recipe) -> list[str]:
    """Say how many reference answers of all sets earn 1 against themselves, and which do not."""
    scorers = [scorer for scorer in recipe.reward.scorers.values() if scorer.kind in COMPARED]
    if not scorers or not recipe.plays:
        return []
    local = [one for one in recipe.data.sets.values() if one.path and local_files(one) and one.answer_column]
    placed = [(one, where, row) for one in local for where, row in islice(read_rows(one), GOLDS)]
    answers = [answer_of(one, row, where) or "" for one, where, row in placed]
    return [asyncio.run(score_golds(scorer, answers)).summary() for scorer in scorers if answers]


async def score_golds(scorer: ScorerConfig, answers: Sequence[str]) -> GoldTotals:
    """Score reference answers against themselves."""
    reward, totals = make_scorer(scorer), GoldTotals()
    try:
        await reward.start()
        tasks = [Task(id="gold", messages=(), answer=answer) for answer in answers]
        scores = (score_reply(reward, task, gold_reply(scorer, str(task.answer))) for task in tasks)
        for answer, score in zip(answers, await asyncio.gather(*scores), strict=True):
            totals.add(answer, score)
    finally:
        await reward.close()
    return totals
