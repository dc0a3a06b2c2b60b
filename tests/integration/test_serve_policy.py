"""`rlhf serve policy` with a real engine, asked by the stock OpenAI client: what it records is what was sampled.

`tests/rollout/endpoint` has streams, tools, seeds and sessions, over an engine that says what it is told to.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord, as_row
from tests.commanded import STOP_SECONDS, commanded
from tests.end_to_end.running import train
from tests.pace import scaled
from tests.warm.command_line import rlhf

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
WITH_IDS = {"return_token_ids": True}
LONGEST = 900
"""Long enough that a model without any habits comes to its stop token more often than not."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TinyModelConfig(hidden_size=64, intermediate_size=128, max_position_embeddings=4096)
    return Path(save_tiny(config, 0, tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def played(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[EpisodeRecord], list[Any]]:
    """Every episode that was written, and the choices that the clients were given."""
    file = tmp_path_factory.mktemp("served") / "episodes.jsonl"
    written = ("--trajectories", file, "--max-tokens", LONGEST)
    token = ("--token-env", "POLICY_TOKEN")
    with commanded("policy", model, *written, *token, in_background=True, POLICY_TOKEN="secret") as (url, process):
        answers = [*sync_agent(url), *asyncio.run(async_agents(url)), *named_sessions(url), constrained_session(url)]
        process.terminate()
        code = process.wait(STOP_SECONDS)
    assert code == 130, "told to end, it ends as after Ctrl-C, with its books closed"
    return list(read_episodes(file)), answers


def asking(base_url: str) -> dict[str, Any]:
    return {"base_url": base_url, "api_key": "secret", "timeout": 120, "max_retries": 0}


def post(url: str, **body: Any) -> Any:
    headers = {"Authorization": "Bearer secret"}
    return httpx.post(url, json=body, headers=headers, timeout=scaled(30), trust_env=False).json()


def sync_agent(url: str) -> list[Any]:
    """Three turns, as long as replies end by themselves, in a session; its reward is 0.75."""
    opened = post(f"{url}/sessions")
    chat = openai.OpenAI(**asking(opened["base_url"])).chat.completions
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    choices = []
    for _ in range(3):
        answer = chat.create(model="any", messages=messages, logprobs=True, temperature=0.2, extra_body=WITH_IDS)
        choices += answer.choices
        messages += [answer.choices[0].message, {"role": "user", "content": "go on"}]
    post(f"{url}/sessions/{opened['id']}/end", reward=0.75)
    return choices


def named_sessions(url: str) -> list[Any]:
    """Nine of one reply: six of two groups, and of three that no name joins one without a reward."""
    names = [*({"group": group, "task": "t", "role": "solver"} for group in "aab" * 2), {}, {}, {}]
    choices = []
    for number, name in enumerate(names):
        opened = post(f"{url}/sessions", **name)
        chat = openai.OpenAI(**asking(opened["base_url"])).chat.completions
        asked: Any = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "seed": number}
        choices += chat.create(model="any", logprobs=True, extra_body=WITH_IDS, **asked).choices
        if number < 8:
            post(f"{url}/sessions/{opened['id']}/end", reward=number % 3)
    return choices


CALLED: Any = {"type": "function", "function": {"name": "pick", "parameters": {
    "type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False,
}}}  # fmt: skip


def constrained_session(url: str) -> Any:
    """One free reply, which is returned, and two that a model without any habits would never give by itself."""
    opened = post(f"{url}/sessions")
    chat = openai.OpenAI(**asking(opened["base_url"])).chat.completions
    asked: Any = {"model": "any", "messages": [{"role": "user", "content": "hello"}], "logprobs": True}
    free = chat.create(**asked, max_tokens=8, extra_body=WITH_IDS).choices[0]
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": CALLED["function"]["parameters"]}}
    told = chat.create(**asked, response_format=form)
    said = told.choices[0]
    assert json.loads(said.message.content or "")["x"] in (1, 2)
    assert said.finish_reason == "stop"
    assert said.logprobs.content[0].logprob == 0, "the brace is certain: log-probs are those under the grammar"
    called = chat.create(**asked, tools=[CALLED], tool_choice="required").choices[0].message.tool_calls
    assert called[0].function.name == "pick"
    assert json.loads(called[0].function.arguments)["x"] in (1, 2)
    broken = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": 3}}}
    with pytest.raises(openai.BadRequestError, match="cannot hold a reply to this"):
        chat.create(**asked, response_format=broken)
    post(f"{url}/sessions/{opened['id']}/end", reward=1)
    return free


async def async_agents(url: str) -> list[Any]:
    """Four at once that ask the same without a session."""
    chat = openai.AsyncOpenAI(**asking(f"{url}/v1")).chat.completions
    messages: list[Any] = [{"role": "user", "content": "all at once"}]
    asked = (chat.create(model="any", messages=messages, logprobs=True, extra_body=WITH_IDS) for _ in range(4))
    return [answer.choices[0] for answer in await asyncio.gather(*asked)]


def turns_of(episode: EpisodeRecord) -> dict[tuple[int, ...], Any]:
    """The log-probs of each turn, by the tokens that were sampled in it."""
    starts = np.cumsum([0, *episode.segment_lengths])
    ranges = [slice(*(starts[turn["segment"]] + [turn["start"], turn["stop"]])) for turn in episode.turns]
    return {tuple(episode.token_ids[turn].tolist()): episode.behaviour_logprobs[turn] for turn in ranges}


def test_every_reply_that_a_client_had_is_one_turn_of_one_episode(played: Any) -> None:
    episodes, answers = played
    recorded = {ids: logprobs for episode in episodes for ids, logprobs in turns_of(episode).items()}
    assert len(recorded) == sum(len(episode.turns) for episode in episodes) == len(answers) == 17
    assert {episode.outcome for episode in episodes} == {EpisodeOutcome.SERVED}
    assert (3, 0.75) in {(len(one.turns), one.reward) for one in episodes if one.group_name is None}
    named = [(one.ordinal, one.sample, one.group_name, one.task, one.role) for one in episodes if one.group_name]
    first, second = sorted({ordinal for ordinal, *_ in named})
    assert sorted(named) == [(first, n, "a", "t", "solver") for n in range(4)] + [
        (second, n, "b", "t", "solver") for n in range(2)
    ]
    for answer in answers:
        told = np.float32([one.logprob for one in answer.logprobs.content])
        assert (recorded[tuple(answer.model_extra["token_ids"])] == told).all()


def test_the_model_gives_the_recorded_log_probs_in_the_recorded_contexts(played: Any, model: Path) -> None:
    episodes, _ = played
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for episode in episodes:
        starts = np.cumsum([0, *episode.segment_lengths])
        for first, stop in itertools.pairwise(starts):
            ids = torch.tensor(episode.token_ids[first:stop])
            with torch.no_grad():
                scored = policy(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            recorded = episode.behaviour_logprobs[first + 1 : stop]
            assert np.isnan(recorded).all() or np.nanmax(abs(scored.numpy() - recorded)) < 1e-3


def test_two_updates_are_trained_on_what_was_served(played: Any, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(f"{json.dumps(as_row(one))}\n" for one in played[0]))
    recipe = tmp_path / "offline.yaml"
    recipe.write_text(f"""
kind: offline
model: {{path: {model}}}
data: {{episodes: {file}}}
trainer: {{updates: 2, groups_per_update: 3, group_size: 4, optimizer: {{learning_rate: 1e-4}}}}
cluster: {{kind: local}}
""")
    run = train(tmp_path / "run", tmp_path, recipe=recipe)
    told = "3 recorded groups to learn from, 5 sessions without a reward left out; 4 episodes have no other of their"
    assert told in run.process.stdout
    assert told in rlhf("check", recipe).stdout
    counts = run.summary["sample_counts"]
    assert (counts["admitted"], counts["trained"], counts["unscored"], counts["failed"]) == (15, 10, 5, 0)
    first, second = run.metrics
    free = [one for one in played[0] if one.reward is not None]
    assert [one.constrained_replies for one in free if one.constrained_replies] == [2]
    assert first["tokens/trained"] == sum(one.sampled_tokens for one in free), "none that a grammar constrained"
    assert abs(first["policy/approx_kl"]) < 1e-6, "the learner begins as the policy that was served"
    assert second["policy/approx_kl"] != first["policy/approx_kl"]
