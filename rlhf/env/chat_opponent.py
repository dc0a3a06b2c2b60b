"""An opponent behind an OpenAI-compatible endpoint, such as `rlhf serve policy CHECKPOINT`."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rlhf.cluster.loop_thread import BackgroundLoop
from rlhf.config import Config
from rlhf.env.encoding import message_data
from rlhf.env.single_turn import first_messages
from rlhf.errors import DeadlinePassed, HttpFailed, OpponentFailed
from rlhf.http.binding import token_from
from rlhf.http.client import HttpClient
from rlhf.http.config import HttpConfig, Url
from rlhf.types import Message, Task

_MAKING = threading.Lock()


class ChatOpponent(Config):
    """Calls a model for every move, with the messages that a policy in its seat would see: the task, then all turns.
    The game judges its replies like a policy's. Raises `ConfigError` if its token is not in the environment."""

    fallible: ClassVar[bool] = True
    kind: Literal["chat"] = "chat"
    url: Url
    """Address of the endpoint with its version, for example http://127.0.0.1:8000/v1."""
    model: str
    """Name of the model there."""
    temperature: float = Field(1.0, ge=0)
    max_tokens: int = Field(256, ge=1)
    """Maximum length of a reply in tokens."""
    last_n: int | None = Field(None, ge=1)
    """Number of turns that it sees after the first messages, like `environment.last_n`; default: the whole game."""
    seconds: float = Field(20, gt=0)
    """Deadline for one reply, all attempts together. It must be less than the environment's own deadline for a step
    (`environment.turn_timeout_seconds`, 30): otherwise the environment exceeds its deadline instead."""
    token_env: str | None = None
    """Environment variable with the bearer token of the endpoint."""
    concurrency: int = Field(32, ge=1)
    """Maximum number of concurrent requests of this process; other games wait, and the wait counts towards their
    `seconds`."""

    @model_validator(mode="after")
    def _token_exists(self) -> ChatOpponent:
        token_from(self.token_env)
        return self

    def seat(self, task: Task, draws: random.Random) -> Callable[[str], str]:
        return ChatPlayer(self, task, draws)


class ChatPlayer:
    """One seat of one game. Every request has its own seed, drawn from the game's."""

    def __init__(self, settings: ChatOpponent, task: Task, draws: random.Random) -> None:
        self._settings, self._task, self._draws = settings, task, draws
        self._first: tuple[Message, ...] = ()
        self._turns: list[tuple[Message, Message]] = []
        self._reply = ""

    def __call__(self, shown: str) -> str:
        """Return the model's reply. Raises `OpponentFailed`."""
        if not self._first:
            self._first = first_messages(self._task, shown)
        else:
            reply = Message(role="assistant", content=self._reply)
            self._turns.append((reply, Message(role="user", content=shown)))
        last = self._settings.last_n
        recent = self._turns if last is None else self._turns[-last:]
        messages = [*self._first, *itertools.chain.from_iterable(recent)]
        self._reply = endpoint(self._settings).reply(messages, seed=self._draws.getrandbits(31))
        return self._reply


class ChatEndpoint:
    """One endpoint for all games of this process: its connections and its concurrency limit."""

    def __init__(self, settings: ChatOpponent) -> None:
        self._settings, self._loop = settings, BackgroundLoop("calls of opponents")
        self._client = HttpClient(
            settings.url,
            HttpConfig(concurrency=settings.concurrency),
            timeout_seconds=2 * settings.seconds,  # the reply's own deadline is earlier, and names every timeout
            token=token_from(settings.token_env),
        )

    def reply(self, messages: Sequence[Message], seed: int) -> str:
        """Return the model's text. Raises `OpponentFailed`; a move is never invented."""
        settings = self._settings
        name = f"{settings.model} at {settings.url}"
        body = {
            "model": settings.model,
            "messages": [message_data(message) for message in messages],
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
            "seed": seed,
        }
        try:
            answer = self._loop.wait_for("it", self._client.post("/chat/completions", body), settings.seconds)
        except HttpFailed as failure:
            raise OpponentFailed(name, failure.kind, failure.detail) from failure
        except DeadlinePassed as late:
            raise OpponentFailed(name, "timeout", str(late)) from late
        match answer:
            case {"choices": [{"message": {"content": str(text)}}, *_]}:
                return text
        raise OpponentFailed(name, "protocol", f"no choices[0].message.content in {answer!r:.200}")


_endpoint = functools.lru_cache(maxsize=64)(ChatEndpoint)


def endpoint(settings: ChatOpponent) -> ChatEndpoint:
    """Return the endpoint, made at the first move: a process that forks before then loses no thread."""
    with _MAKING:
        return _endpoint(settings)
