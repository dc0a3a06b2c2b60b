"""OpenAPI schemas of a reward server's responses. The responses themselves are built in `bodies.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel

from rlhf.reward.bodies import Body, ClassifyBody, GetReward, PoolingBody, ScoreBody, SlimeBody

Item = TypeVar("Item", bound=BaseModel)


class Rewards(BaseModel):
    """The response of OpenRLHF's API. A null is a reply without a score, for clients that declared that they accept
    nulls."""

    rewards: list[float | None]
    scores: list[float | None]
    extra_logs: dict[str, Any]


class Classified(BaseModel):
    index: int
    label: str
    probs: list[float]
    num_classes: Literal[1]


class Pooled(BaseModel):
    index: int
    object: Literal["pooling"]
    data: list[float]


class Marked(BaseModel):
    index: int
    object: Literal["score"]
    score: float


class Listing(BaseModel, Generic[Item]):
    """The response of vLLM's APIs: one entry for each input."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Item]
    usage: dict[str, int | None]


class RewardErrorDetail(BaseModel):
    message: str
    type: str
    code: int


class RewardErrorBody(BaseModel):
    """An error: nothing was scored."""

    error: RewardErrorDetail


ANSWERS: Mapping[type[Body], Any] = {
    GetReward: Rewards,
    SlimeBody: float,
    ClassifyBody: Listing[Classified],
    PoolingBody: Listing[Pooled],
    ScoreBody: Listing[Marked],
}
STATUSES = (400, 401, 413, 422, 503, 504)


def responses_of(kind: type[Body]) -> dict[int | str, dict[str, Any]]:
    """Return the response schemas of this kind of request, by status code."""
    problem = {"model": RewardErrorBody, "description": "An error"}
    return {200: {"model": ANSWERS[kind]}, **dict.fromkeys(STATUSES, problem)}
