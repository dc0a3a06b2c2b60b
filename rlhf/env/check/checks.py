"""The conformance checks, one per function: each returns what it observed, or raises `Failing` or `NotApplicable`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import jsonschema

from rlhf.env.check.load_checks import cancel, capacity, leak
from rlhf.env.check.probe import POLL_SECONDS, Conversation, Failing, NotApplicable, Target
from rlhf.env.wire import SESSION_HEADER, Code, Json

Check = Callable[[Target], Awaitable[str]]
LONGEST_EPISODE = 200


async def health(target: Target) -> str:
    """`/health` says healthy, and `/metadata` has a name and a description."""
    if (said := await target.get("/health")) != {"status": "healthy"} and said.get("status") != "healthy":
        raise Failing(f"/health says {said!r:.100}")
    for key in ("name", "description"):
        if not isinstance(target.metadata.get(key), str):
            raise Failing(f"/metadata has no {key}")
    return f"{target.metadata['name']} is healthy"


async def schema(target: Target) -> str:
    """`/schema` holds valid JSON schemas of action, observation and state."""
    said = await target.get("/schema")
    for name in ("action", "observation", "state"):
        if not isinstance(said.get(name), dict):
            raise Failing(f"/schema has no {name}")
        try:
            jsonschema.Draft202012Validator.check_schema(said[name])
        except jsonschema.SchemaError as error:
            raise Failing(f"the schema of {name} is not one: {error.message}") from None
    return f"an action needs {', '.join(said['action'].get('required') or ()) or 'nothing'}"


async def reset(target: Target) -> str:
    """A reset gives an observation of an episode that is not done."""
    async with target.conversation() as talk:
        said = await talk.reset(0)
    if said["done"]:
        raise Failing("an episode is done before it has begun")
    return "an observation"


async def errors(target: Target) -> str:
    """Invalid frames are answered with the right error code, and the connection stays usable."""
    async with target.conversation() as talk:
        await talk.reset(0)
        for frame, wanted in (
            ("{", Code.INVALID_JSON),
            ({"type": "no such type"}, Code.UNKNOWN_TYPE),
            ({"type": "reset", "no such key": 1}, Code.VALIDATION_ERROR),
        ):
            told = (await talk.ask(frame))["data"].get("code")
            if told != wanted:
                raise Failing(f"{frame!r} is answered with {told}, not {wanted}")
        await talk.step()
    return "named, and the socket stays open"


async def seeds(target: Target) -> str:
    """The same seed and actions give the same observations."""
    traces = [await trace(target, seed) for seed in (1, 2, 1)]
    if traces[0] != traces[2]:
        raise Failing("the same seed and actions give different observations")
    return "repeat" if traces[0] != traces[1] else "repeat; two seeds gave the same episode"


async def interleaved(target: Target) -> str:
    """Two concurrent sessions give the same observations as the same two sessions one after the other."""
    alone = [await trace(target, 1), await trace(target, 2)]
    async with target.conversation() as one, target.conversation() as two:
        first = [await one.reset(1)]
        second = [without_metadata(await reset_or_skip(two, 2))]
        for said, talk in ((first, one), (second, two)) * 2:
            if not said[-1]["done"]:
                said.append(without_metadata(await talk.step()))
    if [[without_metadata(one) for one in first], second] != alone:
        raise Failing("two sessions at once differ from the same two alone")
    return "two sessions do not meet"


async def step_before_reset(target: Target) -> str:
    """A step before the reset does not break the session."""
    async with target.conversation() as talk:
        said = await talk.raw_step()
        await talk.reset(0)
    return f"answered with {said['data'].get('code') or 'an observation'}"


async def step_after_done(target: Target) -> str:
    """A step after the end of the episode does not break the session."""
    async with target.conversation() as talk:
        await talk.reset(0)
        steps = 1
        while not (await talk.step())["done"]:
            steps += 1
            if steps > LONGEST_EPISODE:
                raise NotApplicable(f"{LONGEST_EPISODE} equal actions do not end an episode")
        said = await talk.raw_step()
        await talk.reset(0)
    return f"after {steps} steps, answered with {said['data'].get('code') or 'an observation'}"


async def timeout(target: Target) -> str:
    """A request that exceeds its own timeout is answered with 504; its session ends, and the server continues."""
    only_with_extras(target)
    headers = {SESSION_HEADER: secrets.token_hex(8)}
    await target.request("POST", "/reset", 200, json={"seed": 0}, headers=headers)
    body = {"action": target.action, "timeout_s": 1e-6}
    said = await target.request("POST", "/step", 504, json=body, headers=headers)
    await target.request("GET", "/state", 404, headers=headers)
    await target.get("/health")
    return f"{said['detail']['kind']}; the session is gone, the server is not"


async def retry(target: Target) -> str:
    """A repeated request id executes one step and returns the same answer twice."""
    only_with_extras(target)
    async with target.conversation() as talk:
        await talk.reset(0)
        same = {"request_id": secrets.token_hex(8)}
        first, second = await talk.raw_step(same), await talk.raw_step(same)
        state = await talk.ask({"type": "state"})
    if first != second:
        raise Failing("a request id that was asked twice has two answers")
    if (steps := state["data"].get("step_count")) != 1:
        raise Failing(f"a request id that was asked twice made {steps} steps")
    return "stepped once, answered twice"


async def attach(target: Target) -> str:
    """A session's state is kept when its WebSocket is killed and another one attaches."""
    created = await target.rpc("openenv/session/create")
    if "result" not in created:
        raise NotApplicable(f"no sessions to attach to: {created.get('error')!r:.100}")
    session = created["result"]["session_id"]
    async with target.conversation(f"?session_id={session}") as talk:
        await talk.reset(0)
        talk.kill()
    await asyncio.sleep(POLL_SECONDS)
    async with target.conversation(f"?session_id={session}") as talk:
        await talk.step()
    await asyncio.sleep(POLL_SECONDS)
    closed = await target.rpc("openenv/session/close", session_id=session)
    if "error" in closed:
        raise Failing(f"the session cannot be closed: {closed['error'].get('message')}")
    return "state is kept from one socket to the next"


CHECKS: dict[str, Check] = {
    "health": health,
    "schema": schema,
    "reset": reset,
    "errors": errors,
    "seed determinism": seeds,
    "interleaved sessions": interleaved,
    "step before reset": step_before_reset,
    "step after done": step_after_done,
    "timeout": timeout,
    "cancel": cancel,
    "idempotent retry": retry,
    "re-attach": attach,
    "killed clients": leak,
    "capacity": capacity,
}


def only_with_extras(target: Target) -> None:
    """Raises `NotApplicable` for servers without this library's extensions."""
    if not target.extras:
        raise NotApplicable("an extra of ours that this server does not announce")


def without_metadata(said: Json) -> Json:
    """An answer without its metadata, which servers fill with times and names."""
    observation = {key: value for key, value in said["observation"].items() if key not in ("metadata", "episode_id")}
    return {"observation": observation, "reward": said.get("reward"), "done": said["done"]}


async def trace(target: Target, seed: int) -> list[Json]:
    """A reset and up to two steps, until the episode ends."""
    async with target.conversation() as talk:
        said = [without_metadata(await talk.reset(seed))]
        while len(said) < 3 and not said[-1]["done"]:
            said.append(without_metadata(await talk.step()))
    return said


async def reset_or_skip(talk: Conversation, seed: int) -> Json:
    """Reset a second session; not applicable to a server with capacity for one, which cannot mix sessions up."""
    said = await talk.ask({"type": "reset", "data": {"seed": seed}})
    if said["data"].get("code") == Code.CAPACITY_REACHED:
        raise NotApplicable("the server has one place")
    if said["type"] != "observation":
        raise Failing(f"{said['data'].get('code')}: {said['data'].get('message')!s:.200}")
    data: Json = said["data"]
    return data
