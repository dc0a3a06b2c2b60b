"""Try a reward: it must read every reference answer and give it 1 against itself; a function must give a number."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rlhf.config import load_piece
from rlhf.data.rows import answer_of
from rlhf.data.sources import load_tasks, local_files, read_rows
from rlhf.errors import ConfigError
from rlhf.recipe.schema import Recipe
from rlhf.reward.config import RewardConfig, ScorerConfig
from rlhf.reward.conventions import DOES_NOT_APPLY, convention_of
from rlhf.reward.reward import make_scorer
from rlhf.reward.reward_interface import score_reply
from rlhf.types import Scored, Task, Unscored

COMPARED = ("exact", "math")
"""Kinds for which we can write a reply that states the reference answer."""
SHOWN = 3
GOLDS = 10_000
"""Number of rows of a local dataset that `rlhf check` scores."""


@dataclass(slots=True)
class GoldTotals:
    """Counts of reference answers, and those whose score is missing or not 1."""

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
        lost = [(self.without, "cannot be scored against themselves, so their rows have no reward")]
        lost.append((self.not_right, "do not earn 1 against themselves"))
        return "; ".join(
            f"{len(some):,} of {self.rows:,} {what}: {', '.join(f'{one!r:.60}' for one in some[:SHOWN])}"
            + (", …" if len(some) > SHOWN else "")
            for some, what in lost
            if some
        )


def gold_reply(reward: ScorerConfig, answer: str) -> str:
    """Return the reply that states the reference answer."""
    is_math = any(
        scorer.kind == "math" for scorer in (reward.scorers.values() if isinstance(reward, RewardConfig) else [reward])
    )
    return f"\\boxed{{{answer}}}" if is_math and answer.strip() else answer


def describe_golds(recipe: Recipe) -> list[str]:
    """Return how many reference answers of all sets earn 1 against themselves, and which do not."""
    scorers = [scorer for scorer in recipe.reward.scorers.values() if scorer.kind in COMPARED]
    if not scorers or not recipe.plays:
        return []
    local = [one for one in recipe.data.sets.values() if one.path and local_files(one) and one.answer_column]
    placed = [(one, where, row) for one in local for where, row in islice(read_rows(one), GOLDS)]
    answers = [answer_of(one, row, where) or "" for one, where, row in placed]
    lines = []
    for scorer in scorers if answers else ():
        replies = [(Task(id="gold", messages=(), answer=one), gold_reply(scorer, one)) for one in answers]
        totals = GoldTotals()
        for answer, score in zip(answers, asyncio.run(scores_of(scorer, replies)), strict=True):
            totals.add(answer, score)
        lines.append(totals.summary())
    return lines


def try_functions(recipe: Recipe) -> list[str]:
    """Call reward functions with two replies to the first row of each local set: its answer, and an empty one, for
    which they may raise if they score the first, or if an environment or agent would have played first. Return whose
    convention they have, where it is not ours. Raises `ConfigError`."""
    functions = [scorer for scorer in recipe.reward.scorers.values() if recipe.plays and scorer.kind == "function"]
    local = [one for one in recipe.data.sets.values() if functions and one.path and not one.holds_pairs]
    firsts = [load_tasks(one.model_copy(update={"limit": 1}))[0] for one in local if local_files(one)]
    replies = [(task, reply) for task in firsts for reply in dict.fromkeys((task.answer or "", ""))]
    for scorer in functions:
        scores = asyncio.run(scores_of(scorer.model_copy(update={"workers": 1}), replies, Path(os.devnull)))
        failed = [(one, score) for one, score in zip(replies, scores, strict=True) if isinstance(score, Unscored)]
        for (task, reply), score in failed:
            played = recipe.environment or recipe.agent or recipe.reward.parts or (task.answer and not reply)
            excused = score.kind == DOES_NOT_APPLY or (score.kind == "raised" and played)
            if not (scorer.on_scorer_failure or excused):
                said = (
                    f"{scorer.function} returns no number for "
                    f"{f'the reply {reply!r:.60}' if reply else 'an empty reply'}"
                )
                raise ConfigError(f"{task.where}: {said}: {score.detail}; if meant, set reward.on_scorer_failure")
    called = [
        (one, convention_of(load_piece(one.function or "", "reward.function"), one.arguments)) for one in functions
    ]
    return [f"{one.function} is called as {found.name} does" for one, found in called if found.name != "ours"]


async def scores_of(
    scorer: ScorerConfig, replies: Sequence[tuple[Task, str]], log: Path | None = None
) -> list[Scored | Unscored]:
    """Score replies to tasks by one scorer; its output goes to `log`."""
    reward = make_scorer(scorer, log)
    try:
        await reward.start()
        return await asyncio.gather(*(score_reply(reward, task, reply) for task, reply in replies))
    finally:
        await reward.close()
