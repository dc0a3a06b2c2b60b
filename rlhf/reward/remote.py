"""Rewards from an external server. A reply for which it returns no number is unscored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rlhf.errors import HttpFailed
from rlhf.http.binding import token_from
from rlhf.http.client import HttpClient
from rlhf.http.outages import Outages
from rlhf.reward.config import JudgeConfig, RemoteConfig, ScorerConfig
from rlhf.reward.wire import SHAPES, Score, ScoringRequest, scores
from rlhf.types import Scored, Task, Trajectory, Unscored

NAME = "remote"


class RemoteReward:
    """A `RewardFunction` over HTTP. A group is one request, or one request per reply where the API takes no lists.
    `start` checks that the server is reachable: it raises `HttpFailed` and `RecordingError`."""

    def __init__(self, config: RemoteConfig, client: HttpClient) -> None:
        self._config, self._shape, self._client = config, SHAPES[config.api], client
        self.start, self.close = client.meet, client.close

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        exchanges = self._shape.ask(task, trajectories, self._config)
        answered = await asyncio.gather(*(self._exchange(exchange) for exchange in exchanges))
        return [named_score(NAME, score) for answer in answered for score in answer]

    async def _exchange(self, exchange: ScoringRequest) -> list[Score]:
        try:
            answer = await self._client.post(exchange.path, exchange.body)
        except HttpFailed as failure:
            return [Unscored(kind=failure.kind, detail=str(failure))] * exchange.count
        return scores(self._shape, answer, exchange.count)


def named_score(name: str, score: Score) -> Scored | Unscored:
    """Return a score under the reward's name in `parts`, or `Unscored` unchanged."""
    return score if isinstance(score, Unscored) else Scored(value=score, parts={name: score})


def client_of(
    scorer: ScorerConfig,
    server: RemoteConfig | JudgeConfig,
    outages: Outages | None,
    headers: Mapping[str, str] | None = None,
) -> HttpClient:
    """Return a client of a scorer's server. Raises `ConfigError` when its token is not in the environment."""
    return HttpClient(
        server.url,
        scorer.http,
        timeout_seconds=scorer.timeout_seconds,
        token=token_from(server.token_env if scorer.asks else None),
        recording=scorer.recording,
        headers=headers,
        outages=outages,
    )
