"""HTTP server for any reward, with the APIs of OpenRLHF, slime and vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import LOOPBACK, REWARD, Access
from rlhf.http.serving import unknown_path
from rlhf.reward.bodies import BODIES, Body, GetReward, ReplyToScore
from rlhf.reward.reward_interface import LiveReward
from rlhf.reward.score_texts import score_replies
from rlhf.reward.wire import NULLS_HEADER
from rlhf.types import Scored, Unscored


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardServerSettings:
    """`capacity` requests are scored at once, `waiting` more are queued, and further ones are refused. OpenRLHF's
    client gives up after 180 s, so the timeout must be shorter. `stop_texts` are removed from the end of replies, where
    trainers leave the end-of-turn text. `reads_tokens` is for reward models; rules read text."""

    name: str
    capacity: int = 32
    waiting: int = 1024
    timeout_seconds: float = 170.0
    stop_texts: tuple[str, ...] = ()
    reads_tokens: bool = False
    access: Access = field(default_factory=lambda: Access(limits=REWARD))


class ScoringRefused(Exception):
    """An error response: its status, one word, and a sentence."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


class RewardErrorDetail(BaseModel):
    message: str
    type: str
    code: int


class RewardErrorBody(BaseModel):
    """An error: nothing was scored."""

    error: RewardErrorDetail


PROBLEM = {"model": RewardErrorBody, "description": "An error"}
PROBLEMS: dict[int | str, dict[str, Any]] = dict.fromkeys((400, 401, 413, 422, 503, 504), PROBLEM)


class AsciiJson(JSONResponse):
    """JSON with all non-ASCII characters escaped: a client's text that is echoed may contain lone surrogates."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, default=BaseModel.model_dump).encode()


class Counter:
    """The queue in front of the reward."""

    def __init__(self, reward: LiveReward, settings: RewardServerSettings) -> None:
        self._reward, self._settings = reward, settings
        self._places = asyncio.Semaphore(settings.capacity)
        self._here = 0

    async def score(self, questions: Sequence[ReplyToScore]) -> list[float | Unscored]:
        """Return the scores. Raises `ScoringRefused`: 422 for unreadable token ids, 503 when full, 504 when late."""
        if not self._settings.reads_tokens and any(question.token_ids is not None for question in questions):
            raise ScoringRefused(422, "invalid", f"reward {self._settings.name} reads text; send text, not token ids")
        if self._here >= self._settings.capacity + self._settings.waiting:
            raise ScoringRefused(503, "busy", f"{self._here} requests are waiting already; retry later")
        self._here += 1
        try:
            async with asyncio.timeout(self._settings.timeout_seconds), self._places:
                scores = await score_replies(self._reward, [self._cut(question) for question in questions])
        except TimeoutError:
            raise ScoringRefused(504, "timeout", f"no scores within {self._settings.timeout_seconds:g} s") from None
        finally:
            self._here -= 1
        return [score.value if isinstance(score, Scored) else score for score in scores]

    def _cut(self, question: ReplyToScore) -> ReplyToScore:
        response = question.response
        for stop in self._settings.stop_texts:
            response = response.removesuffix(stop)
        return replace(question, response=response)


def reward_app(
    reward: LiveReward, settings: RewardServerSettings, token: str | None = None, *, host: str = LOOPBACK
) -> AccessMiddleware:
    """Return an ASGI application that scores with `reward`; the caller starts and closes it. With a `token`, requests
    must carry it."""
    app = FastAPI(title=f"reward {settings.name}", exception_handlers=_HANDLERS)
    app.router.default = unknown_path
    counter = Counter(reward, settings)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "healthy", "reward": settings.name, "capacity": settings.capacity}

    for path, body in BODIES.items():
        answer = {"model": get_type_hints(body.answer)["return"]}
        app.post(path, responses={200: answer, **PROBLEMS})(_endpoint(counter, body))
    return AccessMiddleware(app, _denied, settings.access, host=host, token=token)


def _endpoint(counter: Counter, kind: type[Body]) -> Callable[..., Awaitable[JSONResponse]]:
    async def endpoint(body: Any, request: Request) -> JSONResponse:
        scores = await counter.score(body.questions())
        if isinstance(body, GetReward) and NULLS_HEADER in request.headers:
            return AsciiJson(body.partial(scores))
        return AsciiJson(body.answer(_all_scored(scores)))

    endpoint.__annotations__["body"] = kind
    endpoint.__annotations__["request"] = Request
    return endpoint


def _all_scored(scores: Sequence[float | Unscored]) -> list[float]:
    """Return the numbers. A missing score fails the whole request: any placeholder would be taken for a number."""
    values: list[float] = []
    for index, score in enumerate(scores):
        if isinstance(score, Unscored):
            # 422: the same request would fail again, so clients should not retry.
            raise ScoringRefused(422, "unscored", f"reply {index}: {score.kind}: {score.detail}")
        values.append(score)
    return values


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ScoringRefused)
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return _error(error.status, error.kind, error.message, headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Return a validation error as a response, without the body, which may be long or contain surrogates."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return _error(422, "invalid", f"{place}: {first['msg']}")


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an unknown path or method, or for a body that is not JSON."""
    assert isinstance(error, HTTPException)
    return _error(error.status_code, "invalid", str(error.detail))


def _error(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(_said(status, kind, message), status_code=status, headers=headers)


def _denied(status: int, why: str) -> dict[str, Any]:
    """Return the response for a request that is refused before it reaches a route."""
    return _said(status, {401: "denied", 503: "busy"}.get(status, "invalid"), why)


def _said(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message.encode(errors="replace").decode(), "type": kind, "code": status}}


_HANDLERS: Any = {ScoringRefused: _refused, RequestValidationError: _invalid, HTTPException: _unknown}
