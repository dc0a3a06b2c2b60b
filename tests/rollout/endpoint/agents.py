"""Agents as people write them, good and bad, for `agent.program`."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from typing import Any

import httpx
import openai

from rlhf.types import Task
from tests.env.environments import Unsayable

RELEASE = threading.Event()
"""Lets agents that hang go, at the end of a test."""


def asking(base_url: str, api_key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key=api_key, timeout=30, max_retries=0)


def twice(task: Task, base_url: str, api_key: str, reward: Any = 0.5) -> Any:
    """Asks what the task asks, and once more."""
    chat = asking(base_url, api_key).chat.completions
    messages: list[Any] = [{"role": message.role, "content": message.content} for message in task.messages]
    first = chat.create(model="policy", messages=messages).choices[0].message
    chat.create(model="policy", messages=[*messages, first, {"role": "user", "content": "sure?"}])
    return reward


def seeds(task: Task, base_url: str, api_key: str) -> float:
    """Sends a seed, the same in every episode; returns 1 when it is told that this is ignored."""
    chat = asking(base_url, api_key).chat.completions.with_raw_response
    answer = chat.create(model="policy", messages=[{"role": "user", "content": "go"}], seed=7)
    return float(answer.headers["x-rlhf-ignored"] == "seed")


async def at_once(task: Task, base_url: str, api_key: str) -> None:
    """Three samples beside one another, without a reward."""
    chat = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=30, max_retries=0).chat.completions
    messages: list[Any] = [{"role": "user", "content": "go"}]
    await asyncio.gather(*(chat.create(model="policy", messages=messages) for _ in range(3)))


class AsObject:
    async def __call__(self, task: Task, base_url: str, api_key: str) -> None:
        await at_once(task, base_url, api_key)


as_object, as_partial = AsObject(), functools.partial(at_once)


def decorated(*given: Any) -> Any:
    """What a decorator that knows nothing of `async` makes of `at_once`."""
    return at_once(*given)


def hangs_decorated(*given: Any) -> Any:
    return hangs_later(*given)


def raises(task: Task, base_url: str, api_key: str) -> float:
    twice(task, base_url, api_key)
    raise KeyError("my own mistake")


async def raises_later(task: Task, base_url: str, api_key: str) -> float:
    raise SystemExit(3)


async def raises_nonsense(task: Task, base_url: str, api_key: str) -> float:
    raise Unsayable


def writes_into_its_row(task: Task, base_url: str, api_key: str) -> float:
    """Earns 1 if no other has written into its row."""
    asking(base_url, api_key).chat.completions.create(model="m", messages=[{"role": "user", "content": "go"}])
    others = len(task.row)
    task.row["mine"] = 1  # type: ignore[index]
    return 1.0 - others


async def cancels_itself(task: Task, base_url: str, api_key: str) -> float:
    """Awaits something of its own that was cancelled."""
    waiting = asyncio.ensure_future(asyncio.sleep(60))
    waiting.cancel()
    await waiting
    return 1.0


def cancelled_inside(task: Task, base_url: str, api_key: str) -> float:
    """Runs an event loop of its own, and what it awaits there is cancelled."""
    return asyncio.run(cancels_itself(task, base_url, api_key))


class Abort(BaseException):
    """Frameworks have such: nothing that catches exceptions holds it up."""


def aborts(task: Task, base_url: str, api_key: str) -> float:
    raise Abort("enough")


async def aborts_later(task: Task, base_url: str, api_key: str) -> float:
    raise Abort("enough")


def silent(task: Task, base_url: str, api_key: str) -> float:
    return 1.0


def hangs(task: Task, base_url: str, api_key: str) -> float:
    twice(task, base_url, api_key)
    RELEASE.wait(20)
    return 1.0


def holds(task: Task, base_url: str, api_key: str) -> float:
    """Hangs until it is let go, and then asks."""
    RELEASE.wait(20)
    return swallows(task, base_url, api_key)


async def hangs_later(task: Task, base_url: str, api_key: str) -> float:
    await asyncio.sleep(60)
    return 1.0


def swallows(task: Task, base_url: str, api_key: str) -> float:
    """Asks once with plain HTTP, and takes any answer for a good one."""
    body = {"messages": [{"role": "user", "content": "go"}]}
    httpx.post(f"{base_url}/chat/completions", json=body, headers={"Authorization": f"Bearer {api_key}"}, timeout=30)
    return 0.25


def goes_on(task: Task, base_url: str, api_key: str, again: bool = False) -> float:
    """Asks three things, and goes on where one fails; with `again` it asks that once more."""
    chat = asking(base_url, api_key).chat.completions
    for text in ("one", "two", "three"):
        for _ in range(1 + again):
            try:
                chat.create(model="policy", messages=[{"role": "user", "content": text}])
                break
            except openai.InternalServerError:
                continue
    return 0.0


def stops(task: Task, base_url: str, api_key: str) -> float:
    """Asks with a stop text; returns 1 where the reply ends before it."""
    chat = asking(base_url, api_key).chat.completions
    answer = chat.create(model="policy", messages=[{"role": "user", "content": "go"}], stop=["s"])
    return float(answer.choices[0].message.content == "ye")


def guesses(task: Task, base_url: str, api_key: str) -> float:
    """Uses the wrong key."""
    return twice(task, base_url, "guess")


def slow_start(task: Task, base_url: str, api_key: str) -> float:
    time.sleep(0.2)
    twice(task, base_url, api_key)
    return 1.0
