"""Conformance checks of capacity: killed clients, and more clients than a server accepts."""

from __future__ import annotations

import asyncio
import contextlib
import time

from rlhf.env.check.probe import POLL_SECONDS, Conversation, Failing, NotApplicable, Target
from rlhf.env.wire import Code

KILLED_CLIENTS = 20
LARGEST_CAPACITY = 256
"""Servers with a larger capacity are not filled."""
GRACE_SECONDS = 30.0
"""Time for a server without a declared lease to notice that a client was killed."""


async def cancel(target: Target) -> str:
    """A session is freed when its client is killed during a step."""
    before = await target.active() if target.extras else 0
    async with target.conversation() as talk:
        await talk.reset(0)
        await talk.send(talk.step_frame())
        talk.kill()
    seconds = await freed(target, before)
    return f"a client that left in mid-step was forgotten in {seconds:.1f} s"


async def leak(target: Target) -> str:
    """Sessions are freed when their clients are killed."""
    before = await target.active() if target.extras else 0
    async with contextlib.AsyncExitStack() as stack:
        talks = await open_sessions(stack, target, KILLED_CLIENTS)
        for talk in talks:
            talk.kill()
        seconds = await freed(target, before, len(talks))
    return f"{len(talks)} killed clients were forgotten in {seconds:.1f} s"


async def capacity(target: Target) -> str:
    """A server at capacity refuses the next client with its numbers, and frees the slots of killed clients."""
    if (places := target.extras.get("max_sessions", 0)) > LARGEST_CAPACITY:
        raise NotApplicable(f"{places} places; start it with at most {LARGEST_CAPACITY} to have them filled")
    async with contextlib.AsyncExitStack() as stack:
        talks = await open_sessions(stack, target, LARGEST_CAPACITY + 1)
        if len(talks) > LARGEST_CAPACITY:
            raise NotApplicable(f"more than {LARGEST_CAPACITY} sessions were taken")
        async with target.conversation() as one_too_many:
            said = (await one_too_many.ask({"type": "reset", "data": {}}))["data"]
        if missing := {"active_sessions", "max_sessions"} - set(said):
            raise Failing(f"the refusal lacks {', '.join(sorted(missing))}")
        for talk in talks:
            talk.kill()
    await freed(target, 0)
    return f"{len(talks)} places, the next is refused with {said['code']}, and places come back"


async def open_sessions(stack: contextlib.AsyncExitStack, target: Target, most: int) -> list[Conversation]:
    """Sessions after their reset: `most` of them, or as many as the server accepts."""
    talks: list[Conversation] = []
    while len(talks) < most:
        talk = await stack.enter_async_context(target.conversation())
        said = await talk.ask({"type": "reset", "data": {"seed": 0}})
        if said["data"].get("code") == Code.CAPACITY_REACHED:
            break
        talks.append(talk)
    return talks


async def freed(target: Target, before: int, places: int = 1) -> float:
    """Seconds until killed sessions are freed: the session count shows it, or as many can be opened. Raises
    `Failing`."""
    start = time.monotonic()
    allowed = target.extras.get("lease_seconds", 0.0) + GRACE_SECONDS
    while not await is_free(target, before, places):
        if time.monotonic() > start + allowed:
            raise Failing(f"sessions of killed clients are still held after {allowed:g} s")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - start


async def is_free(target: Target, before: int, places: int) -> bool:
    """Whether killed sessions are gone: by the session count, or by opening `places` sessions."""
    if target.extras:
        return await target.active() <= before
    async with contextlib.AsyncExitStack() as stack:
        return len(await open_sessions(stack, target, places)) == places
