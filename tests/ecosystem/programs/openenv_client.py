"""OpenEnv's own client against a server: `openenv_client.py async|sync|capacity URL`. Prints what it saw."""

import asyncio
import json
import sys

from openenv.core.generic_client import GenericEnvClient


async def play_async(url):
    async with GenericEnvClient(base_url=url) as client:
        first = await client.reset(seed=3)
        step = await client.step({"text": "none"})
        refused = await failure(client.step({"no such key": 1}))
        after = await client.step({"text": "none"})
        state = await client.state()
    return [first.observation["text"], step.metadata["info"], refused, after.metadata["info"], state["step_count"]]


def play_sync(url):
    with GenericEnvClient(base_url=url).sync() as client:
        first = client.reset(seed=3)
        steps = [client.step({"text": "none"}) for _ in range(3)]
    return [first.observation["text"], [step.done for step in steps], steps[-1].metadata["truncated"]]


async def meet_capacity(url):
    async with GenericEnvClient(base_url=url) as first:
        await first.reset()
        return await failure(GenericEnvClient(base_url=url).reset())


async def failure(asking):
    try:
        await asking
    except RuntimeError as error:
        return str(error)
    return "no error"


if __name__ == "__main__":
    how, url = sys.argv[1:]
    if how == "sync":
        print(json.dumps(play_sync(url)))
    else:
        print(json.dumps(asyncio.run({"async": play_async, "capacity": meet_capacity}[how](url))))
