"""Lists and plays the tasks of an environment of verifiers, in the Python that has it; `verifiers.py` starts it there.

It imports nothing of ours. The first line of standard input is the environment's settings and a choice of tasks. It
prints these tasks (`tasks`), or plays what each further line asks for (`play`), until standard input ends.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import sys
from typing import Any

KEY = "RLHF_POLICY_KEY"
"""Variable with the policy's key; verifiers reads keys from variables only."""
LINE_BYTES = 64 * 2**20


def answer_requests() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anything else prints must not end up among the answers
    sys.path.append(os.getcwd())
    if sys.argv[1] == "play":
        asyncio.run(serve(answers))
    else:
        asked = json.loads(sys.stdin.readline())
        answer(answers, task_rows(asked["environment"], asked["select"]))


def answer(answers: Any, value: object) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def opened_environment(settings: dict[str, Any]) -> tuple[Any, Any, str]:
    """Return the library, the environment, and the agent that the policy plays. Raises `ValueError`."""
    vf = importlib.import_module("verifiers.v1")
    config = vf.resolve_env_config(settings)
    seats = [name for name, one in config if isinstance(one, vf.AgentConfig) and one.client is None]
    if len(seats) != 1:
        raise ValueError(f"the policy plays one agent, but {', '.join(seats)} have no client; give the others theirs")
    return vf, vf.load_environment(config), seats[0]


def task_rows(settings: dict[str, Any], select: dict[str, Any]) -> list[dict[str, Any]]:
    vf, env, _ = opened_environment(settings)
    chosen = env.taskset.select(vf.SelectConfig.model_validate(select))
    if not chosen.bounded:
        raise ValueError("the taskset never ends; give select: {limit: N}")
    return [
        {
            "key": one.key,
            "question": one.data.prompt_text or one.data.name or one.key,
            "row": one.data.model_dump(mode="json"),
        }
        for one in chosen
    ]


async def serve(answers: Any) -> None:
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    vf, env, seat = opened_environment(json.loads(await reader.readline())["environment"])
    playing: dict[int, asyncio.Task[dict[str, Any]]] = {}

    def ended(number: int, episode: asyncio.Task[dict[str, Any]]) -> None:
        del playing[number]
        if not episode.cancelled():
            error = episode.exception()
            told = {"error": f"{type(error).__name__}: {error}"} if error else episode.result()
            answer(answers, {"id": number, **told})

    async with env.serving():
        while line := await reader.readline():
            asked = json.loads(line)
            if "row" in asked:
                playing[asked["id"]] = asyncio.create_task(played_episode(vf, env, seat, asked))
                playing[asked["id"]].add_done_callback(functools.partial(ended, asked["id"]))
            elif episode := playing.get(asked["id"]):
                episode.cancel()
        for episode in playing.values():
            episode.cancel()
        await asyncio.gather(*playing.values(), return_exceptions=True)


async def played_episode(vf: Any, env: Any, seat: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Play one episode, and return its reward and the parts of it, or the error."""
    os.environ[KEY] = asked["key"]
    kind = type(env.taskset).task_type()
    task = kind(kind.data_type().model_validate(asked["row"]), env.config.taskset.task)
    client = vf.EvalClientConfig(base_url=asked["url"], api_key_var=KEY)
    (slot,) = env.slots(task)
    episode = await env.run_slot(slot, vf.ModelContext(model="policy", client=client, sampling=vf.SamplingConfig()))
    traces = [one for one in episode.traces if one.agent.name == seat]
    errors = [*episode.errors, *(error for one in episode.traces for error in one.errors)]
    if not episode.ok or len(traces) != 1:
        last = f"{errors[-1].type}: {errors[-1].message}" if errors else f"{seat} played {len(traces)} times, not once"
        return {"error": last}
    (trace,) = traces
    scores = {name: one.score for name, one in trace.rewards.items() if one is not None}
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    return {"reward": trace.reward, "reward_parts": {**metrics, **scores}}


if __name__ == "__main__":
    answer_requests()
