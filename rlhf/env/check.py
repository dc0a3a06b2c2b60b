"""Conformance checks of a live environment server, for `rlhf env check`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from rlhf.env.client.dialect import Stock, dialect_of
from rlhf.env.client.pool import get_object
from rlhf.env.client.remote import Address, AtCapacity, Broken, Patience, RemoteEnvironment
from rlhf.env.wire import Code, Json, Undecodable
from rlhf.errors import EnvironmentFailed, UserError
from rlhf.types import EnvironmentSpec
from rlhf.untrusted_text import InvalidJson

CHECK_SECONDS, POLL_SECONDS = 120.0, 0.1
MOST_SESSIONS, MOST_STEPS = 257, 6
INTERLEAVED = range(1, 5)
"""The seeds of concurrent sessions."""
GRACE_SECONDS = 30.0
"""Time for a server to notice that a client was killed."""
SERVER_ERRORS = (httpx.HTTPError, Undecodable, Broken, InvalidJson, EnvironmentFailed)
WIRE_KEYS = {"observation", "reward", "done", "metadata"}


class CheckFailed(Exception):
    """The server does not conform; the message says how."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test, and a valid action."""

    address: Address
    http: httpx.AsyncClient
    action: Json

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[RemoteEnvironment]:
        """Yield a client with a session, which ends with its connection."""
        dialect = Stock(spec=EnvironmentSpec(name=self.address.url, description=""))
        client = RemoteEnvironment(self.address, dialect, Patience())
        try:
            yield client
        finally:
            await client.close()

    async def reset(self, client: RemoteEnvironment, seed: int = 0) -> Json:
        return observation_data(await client.exchange({"type": "reset", "data": {"seed": seed}}))

    async def step(self, client: RemoteEnvironment) -> Json:
        return observation_data(await client.exchange({"type": "step", "data": self.action}))

    async def trace(self, seed: int) -> list[Json]:
        async with self.session() as client:
            (observations,) = await self.play([client], [seed])
        if observations[0]["done"]:
            raise CheckFailed("an episode ended at its reset")
        return observations

    async def play(self, clients: Sequence[RemoteEnvironment], seeds: Sequence[int]) -> list[list[Json]]:
        """Reset all clients at once, take steps with all at once until they end, and return their observations."""
        episodes = [[comparable(data)] for data in await asyncio.gather(*map(self.reset, clients, seeds))]
        for _ in range(MOST_STEPS):
            going = [(client, seen) for client, seen in zip(clients, episodes, strict=True) if not seen[-1]["done"]]
            answers = await asyncio.gather(*(self.step(client) for client, _ in going))
            for (_, seen), data in zip(going, answers, strict=True):
                seen.append(comparable(data))
        return episodes


def observation_data(answer: Json) -> Json:
    """Return the data of an observation. Raises `CheckFailed` for anything else."""
    data: Json = answer["data"]
    if answer.get("type") != "observation":
        raise CheckFailed(f"{data.get('code')}: {data.get('message')!s:.200}")
    if unknown := set(data) - WIRE_KEYS:
        raise CheckFailed(f"an answer has keys that the wire format does not have: {', '.join(sorted(unknown))}")
    if not isinstance(data.get("observation"), dict) or not isinstance(data.get("done"), bool):
        raise CheckFailed("an answer lacks `observation` or `done`")
    return data


def comparable(data: Json) -> Json:
    """Return an observation without its metadata, which servers fill with times and names."""
    observation = {key: value for key, value in data["observation"].items() if key not in ("metadata", "episode_id")}
    return {"observation": observation, "reward": data.get("reward"), "done": data["done"]}


async def check_metadata(target: Target) -> str:
    """Check that `/health` says healthy, `/metadata` has a name and a description, and `/schema` has schemas."""
    if (health := (await get_object(target.http, "/health")).get("status")) != "healthy":
        raise CheckFailed(f"the status at /health is {health!r:.100}")
    metadata = await get_object(target.http, "/metadata")
    if missing := [key for key in ("name", "description") if not isinstance(metadata.get(key), str)]:
        raise CheckFailed(f"/metadata has no {missing[0]}")
    schemas = await get_object(target.http, "/schema")
    if missing := [name for name in ("action", "observation", "state") if not isinstance(schemas.get(name), dict)]:
        raise CheckFailed(f"/schema has no {missing[0]}")
    dialect_of(metadata, schemas)  # raises if our own clients would refuse the spec
    return f"{metadata['name']}; an action needs {', '.join(schemas['action'].get('required') or ()) or 'nothing'}"


async def check_errors(target: Target) -> str:
    """Check that invalid frames get the right error code, and that the connection stays usable."""
    frames: dict[Code, Json | str] = {
        Code.INVALID_JSON: "{",
        Code.UNKNOWN_TYPE: {"type": "no such type"},
        Code.VALIDATION_ERROR: {"type": "reset", "no such key": 1},
    }
    async with target.session() as client:
        await target.reset(client)
        for expected, frame in frames.items():
            if (code := (await client.exchange(frame))["data"].get("code")) != expected:
                raise CheckFailed(f"the answer to {frame!r} is {code}, not {expected}")
        await target.step(client)
    return "reported, and the socket stays open"


async def check_seeds(target: Target) -> str:
    first, other, again = [await target.trace(seed) for seed in (1, 2, 1)]
    if first != again:
        raise CheckFailed("the same seed and actions give different observations")
    return "repeat" if first != other else "repeat, but two seeds gave the same episode"


async def check_interleaved(target: Target) -> str:
    """Check that concurrent sessions give the same observations as each of them alone."""
    async with contextlib.AsyncExitStack() as stack:
        clients, _ = await open_sessions(stack, target, len(INTERLEAVED))
        together = await target.play(clients, seeds := INTERLEAVED[: len(clients)])
    if len(clients) < 2:
        return "skipped: the server runs one session at a time"
    if together != [await target.trace(seed) for seed in seeds]:
        raise CheckFailed(
            "concurrent sessions differ from the same ones alone: they share state, for example of random or "
            "numpy.random; draw from a random.Random(seed) of the episode, or serve with --isolation process"
        )
    return f"{len(clients)} concurrent sessions are independent"


async def check_capacity(target: Target) -> str:
    """Check that a full server refuses the next client, and frees the places of killed clients."""
    async with contextlib.AsyncExitStack() as stack:
        clients, refusal = await open_sessions(stack, target, MOST_SESSIONS)
        for client in clients:
            client.abort()
    if refusal is None:
        return f"{len(clients)} clients at once"
    if missing := {"active_sessions", "max_sessions"} - set(refusal):
        raise CheckFailed(f"the refusal lacks {', '.join(sorted(missing))}")
    start = time.monotonic()
    while time.monotonic() < start + GRACE_SECONDS:
        async with contextlib.AsyncExitStack() as stack:
            again, _ = await open_sessions(stack, target, len(clients))
        if len(again) == len(clients):
            seconds = time.monotonic() - start
            return f"{len(clients)} places; those of killed clients are free after {seconds:.1f} s"
        await asyncio.sleep(POLL_SECONDS)
    raise CheckFailed(f"killed clients still occupy places after {GRACE_SECONDS:g} s")


CHECKS: dict[str, Callable[[Target], Awaitable[str]]] = {
    "metadata": check_metadata,
    "errors": check_errors,
    "seed determinism": check_seeds,
    "interleaved sessions": check_interleaved,
    "capacity": check_capacity,
}


async def open_sessions(
    stack: contextlib.AsyncExitStack, target: Target, most: int
) -> tuple[list[RemoteEnvironment], Json | None]:
    """Open and reset `most` sessions, or as many as the server accepts. Returns them, and the refusal of the next."""
    clients: list[RemoteEnvironment] = []
    while len(clients) < most:
        client = await stack.enter_async_context(target.session())
        try:
            await target.reset(client)
        except AtCapacity as full:
            return clients, full.data
        clients.append(client)
    return clients, None


def example_action(schema: Mapping[str, Any]) -> Json:
    """Return a minimal action that satisfies a simple schema."""
    properties = schema.get("properties") or {}
    return {name: smallest_value(properties.get(name) or {}) for name in schema.get("required") or ()}


def smallest_value(schema: Mapping[str, Any]) -> Any:
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    by_type = {"integer": schema.get("minimum", 0), "number": schema.get("minimum", 0.0), "boolean": False}
    return (by_type | {"array": [], "object": {}}).get(schema.get("type", "string"), "1")


async def check_server(address: Address, action: Json | None = None) -> AsyncIterator[CheckResult]:
    """Run all checks and yield their results. `action` is by default made from the schema. Raises `UserError`."""
    async with httpx.AsyncClient(base_url=address.url, headers=address.headers, timeout=30, trust_env=False) as http:
        try:
            schema = (await get_object(http, "/schema")).get("action") or {}
        except SERVER_ERRORS as error:
            raise UserError(f"no environment server at {address.url}: {type(error).__name__}: {error}") from None
        target = Target(address=address, http=http, action=example_action(schema) if action is None else action)
        for name in CHECKS:
            yield await check_result(name, target)


async def check_result(name: str, target: Target) -> CheckResult:
    """Run one check within its deadline; a failure becomes its result."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return CheckResult(name, True, await CHECKS[name](target))
    except (CheckFailed, AtCapacity, *SERVER_ERRORS) as problem:
        return CheckResult(name, False, str(problem))
    except TimeoutError:
        return CheckResult(name, False, f"not finished after {CHECK_SECONDS:g} s")
