"""Generative judges: a model that rates a reply, or chooses the better of two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from rlhf.errors import HttpFailed
from rlhf.http.client import HttpClient
from rlhf.reward.config import JudgeConfig
from rlhf.reward.judge_prompt import Chat, judged_text, mark_of, pairwise_chat, parse_choice, pointwise_chat, words_of
from rlhf.reward.remote import named_score
from rlhf.reward.wire import Score
from rlhf.types import Scored, Task, Trajectory, Unscored

NAME = "judge"


class Judge:
    """A judge behind an OpenAI-compatible endpoint. `start` raises `HttpFailed` and `RecordingError`."""

    def __init__(self, config: JudgeConfig, client: HttpClient) -> None:
        self._config, self._client = config, client
        self.start, self.close = client.meet, client.close

    async def _ask(self, chat: Chat, read: Callable[[str], Score]) -> Score:
        """Return what `read` finds in the judge's reply."""
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": chat,
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
        }
        try:
            words = words_of(await self._client.post("/chat/completions", body))
        except HttpFailed as failure:
            return Unscored(kind=failure.kind, detail=str(failure))
        return words if isinstance(words, Unscored) else read(words)


class PointwiseJudge(Judge):
    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        chats = [pointwise_chat(self._config, task, trajectory) for trajectory in trajectories]
        mark = partial(mark_of, low=self._config.low, high=self._config.high)
        return [named_score(NAME, score) for score in await asyncio.gather(*(self._ask(chat, mark) for chat in chats))]


class PairwiseJudge(Judge):
    """A `RewardFunction` that compares the episodes of a group in pairs of one role, each in both orders."""

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        episodes, every = trajectories, range(len(trajectories))
        pairs = [(i, j) for i, j in combinations(every, 2) if episodes[i].role == episodes[j].role]
        verdicts = await asyncio.gather(*(self._compare(task, episodes[i], episodes[j]) for i, j in pairs))
        scores = mean_comparisons(len(episodes), dict(zip(pairs, verdicts, strict=True)))
        return [named_score(NAME, score) for score in scores]

    async def _compare(self, task: Task, one: Trajectory, other: Trajectory) -> Score:
        """Return the score of `one` against `other`: 1, 0, or 0.5 for a tie and where the two orders contradict."""
        if judged_text(one) == judged_text(other):
            return 0.5
        chats = [pairwise_chat(self._config, task, *order) for order in ((one, other), (other, one))]
        there, back = await asyncio.gather(*(self._ask(chat, parse_choice) for chat in chats))
        if isinstance(there, Unscored) or isinstance(back, Unscored):
            return there if isinstance(there, Unscored) else back
        return (there + 1.0 - back) / 2


def mean_comparisons(count: int, verdicts: dict[tuple[int, int], Score]) -> list[Score]:
    """For each of `count` replies the mean of its comparisons; `verdicts[i, j]` is the score of i against j, i < j. A
    failed comparison leaves a reply unscored: a mean over the others would be against different opponents."""

    def share(reply: int) -> Score:
        won: list[float] = []
        for pair, verdict in verdicts.items():
            if reply in pair:
                if isinstance(verdict, Unscored):
                    return verdict
                won.append(verdict if reply == pair[0] else 1.0 - verdict)
        alone = "a pairwise judge compares the replies of a group, and this group has only one"
        return sum(won) / len(won) if won else Unscored(kind="alone", detail=alone)

    return [share(reply) for reply in range(count)]
