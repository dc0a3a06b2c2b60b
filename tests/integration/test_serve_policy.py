"""`rlhf serve policy` with a real engine, asked by the stock OpenAI client: sync, async and streaming, with tools."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord, read_episodes
from rlhf.types import TokenKind
from tests.commanded import STOP_SECONDS, Process, commanded
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
TOOL: Any = {"type": "function", "function": {"name": "echo", "description": "Says it.", "parameters": {}}}
LONGEST = 900
"""Long enough that a model without any habits comes to its stop token more often than not."""


@dataclass(frozen=True)
class Server:
    """Where it listens."""

    url: str

    def post(self, path: str, **body: Any) -> Any:
        headers = {"Authorization": "Bearer secret"}
        return httpx.post(f"{self.url}{path}", json=body, headers=headers, timeout=scaled(30), trust_env=False).json()


@contextmanager
def serving(model: Path, file: Path) -> Iterator[tuple[Server, Process]]:
    """The command in a process of its own; what it wrote to `file` is there once it has ended."""
    written = ("--trajectories", file, "--max-tokens", LONGEST, "--tool-format", "tests.integration.own_tools:always")
    with commanded("policy", model, *written, "--token-env", "POLICY_TOKEN", POLICY_TOKEN="secret") as (url, process):
        yield Server(url), process


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TinyModelConfig(hidden_size=64, intermediate_size=128, max_position_embeddings=4096)
    return Path(save_tiny(config, 0, tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def played(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[EpisodeRecord], list[Had]]:
    """Every episode that was written, and the answers that the clients had."""
    file = tmp_path_factory.mktemp("served") / "episodes.jsonl"
    with serving(model, file) as (server, process):
        answers = [*sync_agent(server), *asyncio.run(async_agents(server)), *streaming_agent(server)]
        a_request_with_a_seed_is_answered_the_same_again(server)
        process.terminate()
        code = process.wait(STOP_SECONDS)
    assert code == 130, "told to end, it ends as after Ctrl-C, with its books closed"
    return [episode for episode in read_episodes(file) if episode.prompt[-1]["content"] != SEEDED], answers


@dataclass(frozen=True, kw_only=True)
class Had:
    """What a client was answered: the sampled ids, and the choice with its message and log-probs."""

    ids: list[int]
    choice: Any


def had(answer: Any) -> Had:
    return Had(ids=answer.choices[0].model_extra["token_ids"], choice=answer.choices[0])


SEEDED = "your move"


def a_request_with_a_seed_is_answered_the_same_again(server: Server) -> None:
    chat = openai.OpenAI(**asking(f"{server.url}/v1")).chat.completions
    messages: list[Any] = [{"role": "user", "content": SEEDED}]
    extra = {"return_token_ids": True}
    answers = [
        had(chat.create(model="any", messages=messages, max_tokens=30, seed=seed, extra_body=extra)).ids
        for seed in (7, 8, 7)
    ]
    assert answers[0] == answers[2] != answers[1]


def asking(base_url: str) -> dict[str, Any]:
    return {"base_url": base_url, "api_key": "secret", "timeout": 120, "max_retries": 0}


def sync_agent(server: Server) -> list[Had]:
    """Three turns, as long as replies end by themselves, in a session; its reward is 0.75."""
    opened = server.post("/sessions")
    chat = openai.OpenAI(**asking(opened["base_url"])).chat.completions
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    answers = []
    for _ in range(3):
        extra = {"return_token_ids": True}
        answer = chat.create(model="any", messages=messages, logprobs=True, temperature=0.2, extra_body=extra)
        answers.append(had(answer))
        messages += [answer.choices[0].message, {"role": "user", "content": "go on"}]
    server.post(f"/sessions/{opened['id']}/end", reward=0.75)
    return answers


async def async_agents(server: Server) -> list[Had]:
    """Four at once that ask the same without a session."""
    chat = openai.AsyncOpenAI(**asking(f"{server.url}/v1")).chat.completions
    messages: list[Any] = [{"role": "user", "content": "all at once"}]
    extra = {"return_token_ids": True}
    asked = (chat.create(model="any", messages=messages, logprobs=True, extra_body=extra) for _ in range(4))
    return [had(answer) for answer in await asyncio.gather(*asked)]


def streaming_agent(server: Server) -> list[Had]:
    """A loop with a tool that says again what it is told, streamed, in a session without a reward."""
    opened = server.post("/sessions")
    client = openai.OpenAI(**asking(opened["base_url"]))
    messages: list[Any] = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "begin"}]
    answers = []
    for _ in range(2):
        with client.chat.completions.stream(
            model="any", messages=messages, tools=[TOOL], logprobs=True, extra_body={"return_token_ids": True}
        ) as stream:
            chunks = [event.chunk for event in stream if event.type == "chunk"]
            answer = stream.get_final_completion()
        # The client's own sum of a stream leaves out what OpenAI does not send.
        ids = [token for chunk in chunks for token in chunk.choices[0].model_extra.get("token_ids", [])]
        answers.append(Had(ids=ids, choice=answer.choices[0]))
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or []:
            said = json.loads(call.function.arguments)["text"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said[:20]})
    server.post(f"/sessions/{opened['id']}/end")
    return answers


def turns_of(episode: EpisodeRecord) -> dict[tuple[int, ...], Any]:
    """The log-probs of each turn, by the tokens that were sampled in it."""
    starts = np.cumsum([0, *episode.segment_lengths])
    ranges = [slice(*(starts[turn["segment"]] + [turn["start"], turn["stop"]])) for turn in episode.turns]
    return {tuple(episode.token_ids[turn]): np.float32(episode.engine_logprobs[turn]) for turn in ranges}


def test_every_reply_that_a_client_had_is_one_turn_of_one_episode(played: Any) -> None:
    episodes, answers = played
    recorded = {ids: logprobs for episode in episodes for ids, logprobs in turns_of(episode).items()}
    assert len(recorded) == sum(len(episode.turns) for episode in episodes) == len(answers) == 9
    for answer in answers:
        told = np.float32([one.logprob for one in answer.choice.logprobs.content])
        assert (recorded[tuple(answer.ids)] == told).all()


def test_a_session_is_an_episode_and_what_has_none_an_episode_each(played: Any) -> None:
    episodes, _ = played
    assert {episode.outcome for episode in episodes} == {EpisodeOutcome.SERVED}
    assert sorted((len(episode.turns), episode.reward) for episode in episodes if episode.reward) == [(3, 0.75)]
    assert sorted(len(episode.turns) for episode in episodes) == [1, 1, 1, 1, 2, 3]
    assert len({next(iter(turns_of(episode))) for episode in episodes}) == 6, "each drew with a seed of its own"


def test_replies_that_ended_were_continued_and_never_encoded_again(played: Any) -> None:
    episodes, answers = played
    kinds = [np.array(episode.kinds) for episode in episodes]
    assert any((kind == TokenKind.ENV).any() for kind in kinds), "some reply ended by itself, and was gone on with"
    assert any(answer.choice.message.tool_calls for answer in answers), "some reply was a tool call"


def test_the_model_gives_the_recorded_log_probs_in_the_recorded_contexts(played: Any, model: Path) -> None:
    episodes, _ = played
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for episode in episodes:
        starts = np.cumsum([0, *episode.segment_lengths])
        for first, stop in itertools.pairwise(starts):
            ids = torch.tensor(episode.token_ids[first:stop])
            with torch.no_grad():
                scored = policy(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            recorded = episode.engine_logprobs[first + 1 : stop]
            gaps = [abs(a - b) for a, b in zip(scored.tolist(), recorded, strict=True) if b is not None]
            assert max(gaps) < 1e-3
