"""Generative judges: a model that rates a reply, or chooses the better of two."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from rlhf.errors import HttpFailed
from rlhf.http.client import HttpClient
from rlhf.http.outages import Outages
from rlhf.reward.config import JudgeConfig, ScorerConfig
from rlhf.reward.remote import client_of, named_score
from rlhf.reward.verdict import Chat, judged_text, mark_of, pairwise_chat, parse_choice, pointwise_chat, words_of
from rlhf.reward.wire import Score
from rlhf.types import Scored, Task, Trajectory, Unscored

NAME = "judge"


class JudgeClient:
    """Client of an OpenAI-compatible endpoint; one completion per request."""

    def __init__(self, config: JudgeConfig, client: HttpClient) -> None:
        self.config, self._client = config, client

    async def start(self) -> None:
        """Check that the server is reachable. Raises `HttpFailed`, `RecordingError`."""
        await self._client.meet()

    async def ask(self, chat: Chat) -> str | Unscored:
        """Return the judge's reply as text."""
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": chat,
            "temperature": self.config.temperature,
            "max_tokens": self.config.max_tokens,
        }
        try:
            return words_of(await self._client.post("/chat/completions", body))
        except HttpFailed as failure:
            return Unscored(kind=failure.kind, detail=str(failure))

    async def close(self) -> None:
        await self._client.close()


class PointwiseJudge:
    """A `RewardFunction` that asks for a mark for each reply separately."""

    def __init__(self, client: JudgeClient) -> None:
        self._client = client
        self.start, self.close = client.start, client.close

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        marks = await asyncio.gather(*(self._mark(task, trajectory) for trajectory in trajectories))
        return [named_score(NAME, mark) for mark in marks]

    async def _mark(self, task: Task, episode: Trajectory) -> Score:
        config = self._client.config
        words = await self._client.ask(pointwise_chat(config, task, episode))
        return words if isinstance(words, Unscored) else mark_of(words, config.low, config.high)


class PairwiseJudge:
    """A `RewardFunction` that compares the episodes of a group in pairs of one role, each pair in both orders: a judge
    that always prefers the first position gives both 0.5."""

    def __init__(self, client: JudgeClient) -> None:
        self._client = client
        self.start, self.close = client.start, client.close

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
        there, back = await asyncio.gather(self._choice(task, one, other), self._choice(task, other, one))
        if isinstance(there, Unscored) or isinstance(back, Unscored):
            return there if isinstance(there, Unscored) else back
        return (there + 1.0 - back) / 2

    async def _choice(self, task: Task, first: Trajectory, second: Trajectory) -> Score:
        words = await self._client.ask(pairwise_chat(self._client.config, task, first, second))
        return words if isinstance(words, Unscored) else parse_choice(words)


def mean_comparisons(count: int, verdicts: dict[tuple[int, int], Score]) -> list[Score]:
    """For each of `count` replies the mean of its comparisons; `verdicts[i, j]` is the score of i against j, i < j.

    A reply with a failed comparison has no score: a mean over the others would be against different opponents.
    """
    return [_share(reply, verdicts) for reply in range(count)]


def _share(reply: int, verdicts: dict[tuple[int, int], Score]) -> Score:
    won: list[float] = []
    for pair, verdict in verdicts.items():
        if reply in pair:
            if isinstance(verdict, Unscored):
                return verdict
            won.append(verdict if reply == pair[0] else 1.0 - verdict)
    if not won:
        return Unscored(kind="alone", detail="a pairwise judge compares replies of a group, and there is only one")
    return sum(won) / len(won)


def make_judge(
    scorer: ScorerConfig, config: JudgeConfig, outages: Outages | None = None
) -> PointwiseJudge | PairwiseJudge:
    """Return the judge of these settings. Raises `ConfigError` when its token is not in the environment."""
    client = JudgeClient(config, client_of(scorer, config.url, config.token_env, outages=outages))
    return PairwiseJudge(client) if config.mode == "pairwise" else PointwiseJudge(client)
