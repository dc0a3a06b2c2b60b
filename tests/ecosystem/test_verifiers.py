"""`vf-eval` of verifiers, unmodified, evaluates a policy on environments that `rlhf serve env` serves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf.env.tools import made_question
from tests.commanded import commanded
from tests.ecosystem.venvs import environment, python
from tests.servers import Asked, Reply, response, scripted

Says = Callable[[str], str]
"""From the last message that the policy is shown to what it replies."""


@contextlib.asynccontextmanager
async def policy(says: Says) -> AsyncIterator[str]:
    """The base URL of the endpoint, for as long as the block."""

    def answer(asked: Asked) -> Reply:
        if (asked.method, asked.path) != ("POST", "/v1/chat/completions"):
            return 404, {"error": {"message": f"no {asked.method} {asked.path} here"}}
        assert asked.json["stream"]
        return response(200, stream(says(asked.json["messages"][-1]["content"])), content_type="text/event-stream")

    async with scripted(answer) as server:
        yield f"{server.url}/v1"


def stream(text: str) -> bytes:
    """A completion as server-sent events: the text, its end, what it cost."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunks = [
        chunk(choices=[choice({"role": "assistant", "content": text}, None)]),
        chunk(choices=[choice({}, "stop")]),
        chunk(choices=[], usage=usage),
    ]
    return "".join(f"data: {line}\n\n" for line in [*map(json.dumps, chunks), "[DONE]"]).encode()


def chunk(**fields: Any) -> dict[str, Any]:
    return {"id": "completion", "object": "chat.completion.chunk", "created": 0, "model": "policy", **fields}


def choice(delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


pytestmark = pytest.mark.ecosystem
EVALUATION_SECONDS = 240
ROLLOUTS = 2
CONFIG = """
model = "policy"
num_rollouts = {rollouts}
push = false
output_dir = "{folder}"
run = {{ name = "run" }}
client = {{ base_url = "{policy}", api_key_var = "NO_KEY_IS_NEEDED" }}

[env.taskset]
id = "openenv"
base_url = "{server}"
resets = [{resets}]

[env.player]
harness = {{ id = "null" }}
runtime = {{ type = "subprocess" }}
"""


def evaluate(folder: Path, server: str, policy: str, seeds: list[int]) -> list[dict[str, Any]]:
    """The episodes of an evaluation: `policy` is the base URL of any OpenAI-compatible endpoint."""
    resets = ", ".join(f"{{ seed = {seed} }}" for seed in seeds)
    config = folder / "config.toml"
    config.write_text(CONFIG.format(rollouts=ROLLOUTS, folder=folder, policy=policy, server=server, resets=resets))
    binaries = python("verifiers").parent
    # The harness is a script that uv gives an environment of its own: on PATH, and kept between runs.
    uv = {"PATH": f"{binaries}:{os.environ['PATH']}", "UV_CACHE_DIR": str(binaries.parent / "uv-cache")}
    ended = subprocess.run(
        [str(binaries / "vf-eval"), "@", str(config), "--no-rich"],
        capture_output=True,
        text=True,
        timeout=EVALUATION_SECONDS,
        env=environment() | uv,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return [json.loads(line) for line in (folder / "run" / "traces.jsonl").read_text().splitlines()]


async def evaluated(folder: Path, server: str, says: Says, seeds: list[int]) -> list[tuple[int, float]]:
    """Seed and reward of every episode, in order; none has failed."""
    async with policy(says) as url:
        episodes = await asyncio.to_thread(evaluate, folder, server, url, seeds)
    assert [episode["errors"] + episode["traces"][0]["errors"] for episode in episodes] == [[]] * len(episodes)
    assert all(episode["ok"] for episode in episodes)
    return sorted((seed_of(episode), reward_of(episode)) for episode in episodes)


def seed_of(episode: dict[str, Any]) -> int:
    seed: int = episode["task"]["data"]["reset"]["seed"]
    return seed


def reward_of(episode: dict[str, Any]) -> float:
    (trace,) = episode["traces"]
    reward: float = trace["rewards"]["openenv_reward"]["score"]
    return reward


def asks_the_calculator(shown: str) -> str:
    """Additions are left to the tool; of a product it says a number that is wrong."""
    observation = json.loads(shown)["observation"]
    (message,) = observation["messages"]
    if message["role"] == "tool":
        return str(message["content"])
    if "*" in message["content"]:
        return "0"
    call = {"name": "calculator", "arguments": {"expression": message["content"]}}
    return json.dumps({"text": "", "tool_calls": [call]})


async def test_a_policy_with_a_calculator_gets_the_rewards_of_its_answers(tmp_path: Path):
    seeds = [1, 2]
    questions = {seed: made_question(seed, 3, "+*") for seed in seeds}
    assert {"+", "*"} <= set("".join(questions.values()))
    expected = [(seed, float("+" in questions[seed])) for seed in seeds for _ in range(ROLLOUTS)]
    with commanded("env", "rlhf.env.tools:CalculatorEnvironment") as (server, _):
        assert await evaluated(tmp_path, server, asks_the_calculator, seeds) == expected


def guesses(shown: str) -> str:
    """4, then 5, then 6: bare numbers, which verifiers reads as JSON."""
    left = json.loads(shown)["observation"]["metadata"]["info"].get("left", 3)
    return str(7 - left)


async def test_an_environment_without_tools_is_played_in_bare_numbers_over_several_turns(tmp_path: Path):
    numbers = {seed: random.Random(f"seed-{seed} {seed}").randint(1, 9) for seed in (3, 4)}
    expected = [(seed, float(number in (4, 5, 6))) for seed, number in numbers.items() for _ in range(ROLLOUTS)]
    assert {reward for _, reward in expected} == {0.0, 1.0}
    with commanded("env", "tests.env.environments:Guess") as (server, _):
        assert await evaluated(tmp_path, server, guesses, list(numbers)) == expected
