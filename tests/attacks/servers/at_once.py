"""All servers of the project in one process, for tests that attack them: `python -m tests.attacks.servers.at_once`.

Prints one line of JSON, name to port, when all of them listen; what they log goes to stderr; ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from rlhf.config import build
from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.hosting.threads import ThreadIsolation
from rlhf.env.server import app as env_app
from rlhf.http.binding import Access
from rlhf.http.limits import POLICY, REWARD, SANDBOX, HttpLimits
from rlhf.http.listening import listening
from rlhf.http.serving import uvicorn_config
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.reward.server import RewardServerSettings, reward_app
from rlhf.rollout.endpoint.app import policy_app, policy_uvicorn_config
from rlhf.rollout.endpoint.front import Front
from rlhf.rollout.endpoint.sessions import AgentSessions
from rlhf.rollout.tool_calls import hermes
from rlhf.sandbox.pool import Queue, Sandbox
from rlhf.sandbox.server import make_app
from tests.rollout.endpoint.serving import TOKENIZER, scripted
from tests.rollout.playing import policy

QUICK: dict[str, Any] = {"head_seconds": 1.0, "body_seconds": 1.0, "send_seconds": 1.0}
"""Deadlines for tests: what does not come in a second is late."""


async def environment(stack: AsyncExitStack, token: str | None, quick: dict[str, Any]) -> str:
    isolation = ThreadIsolation(Factory(name="tests.env.environments:Adder", arguments={}), Deadlines())
    await isolation.start()
    stack.push_async_callback(isolation.stop)
    settings = env_app.EnvironmentServerSettings(
        port=0, token=token, access=Access(limits=replace(HttpLimits(), **quick))
    )
    app = env_app.build_app(isolation, settings)
    return await stack.enter_async_context(listening(env_app.environment_uvicorn_config(app, settings)))


async def reward(stack: AsyncExitStack, token: str | None, quick: dict[str, Any]) -> str:
    scoring: Any = make_reward(build(RewardConfig, {"kind": "exact"}))
    await scoring.start()
    stack.push_async_callback(scoring.close)
    access = Access(limits=replace(REWARD, **quick))
    app = reward_app(scoring, RewardServerSettings(name="exact", access=access), token)
    return await stack.enter_async_context(listening(uvicorn_config(app, access)))


async def sandbox(stack: AsyncExitStack, token: str | None, quick: dict[str, Any]) -> str:
    access = Access(limits=replace(SANDBOX, **quick))
    app = make_app(Sandbox(queue=Queue(runs=1)), token, access)
    return await stack.enter_async_context(listening(uvicorn_config(app, access)))


async def endpoint(stack: AsyncExitStack, token: str | None, quick: dict[str, Any]) -> str:
    engine: Any = scripted(*["said"] * 10_000)
    sessions = AgentSessions(read=hermes, capacity=1024)
    front = Front(sessions, lambda number: policy(engine, TOKENIZER), lambda *episode: None, lease_seconds=60.0)
    access = Access(limits=replace(POLICY, **quick))
    app = policy_app(sessions, model="tiny", token=token, front=front, access=access)
    return await stack.enter_async_context(listening(policy_uvicorn_config(app, access)))


SERVERS = {"environment": environment, "reward": reward, "sandbox": sandbox, "policy": endpoint}


async def main(names: list[str], token: str | None, quick: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        urls = {name: await SERVERS[name](stack, token, quick) for name in names}
        print(json.dumps({name: int(url.rpartition(":")[2]) for name, url in urls.items()}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    told: dict[str, Any] = json.loads(sys.argv[1])
    asyncio.run(main(told["servers"], told["token"], told["limits"]))
