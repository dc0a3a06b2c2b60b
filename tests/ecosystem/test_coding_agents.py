"""Coding agents as published play under `rlhf train` and `rlhf serve policy`, with a policy that uses their shells.

Claude Code's licence reserves all rights: `tests/rollout/endpoint/test_wires.py` has a client that sends its fields.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml
from transformers import AutoTokenizer

from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import END, byte_tokenizer, tiny_model
from rlhf.rollout.agent_command import agent_program
from rlhf.rollout.agent_config import AgentConfig
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.records import EpisodeRecord
from rlhf.types import Message, Task
from tests.commanded import commanded
from tests.ecosystem.venvs import PROGRAM_SECONDS, ROOT, python
from tests.ecosystem.venvs import run as outside
from tests.end_to_end.running import Run, train
from tests.pace import scaled
from tests.warm.command_line import rlhf

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(600)]

SHELLS = {
    "bash": '{"command": "%s", "description": "d"}',
    "exec_command": '{"cmd": "%s"}',
    "run_shell_command": '{"command": "%s", "is_background": false}',
}
"""The agents' tools that run a command, with their arguments."""
AGENTS = {
    "codex": "exec_command",
    "mini-swe-agent": "bash",
    "opencode": "bash",
    "pi": "bash",
    "qwen-code": "run_shell_command",
}
ANSWER, PROMPT = "All done.", "Do the work, then say that all is done."


def call(tool: str, command: str) -> str:
    return f'<tool_call>{{"name": "{tool}", "arguments": {SHELLS[tool] % command}}}</tool_call>'


REPLIES = {tool: [call(tool, "echo 1 > made"), call(tool, "echo 1 > other")] for tool in SHELLS}
REPLIES |= {"answer": [ANSWER], "submit": [call("bash", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]}
"""What the policy says after the mark of this name, where it has a choice at random."""
TEMPLATE = (
    "{% set told = namespace(mark='answer') %}{% for tool in tools or [] if tool.function.name in SHELLS %}"
    "{% set told.mark = tool.function.name %}{% endfor %}{% for message in messages %}{{ message.content }}<|im_end|>"
    "{% if message.role == 'user' %}<|{{ 'answer' if 'at once' in message.content else told.mark }}|>{% endif %}"
    "{% if message.role == 'tool' %}<|{{ 'submit' if tools and tools | length == 1 else 'answer' }}|>{% endif %}"
    "{% endfor %}"
).replace("SHELLS", str(list(SHELLS)))
"""Writes the mark of an offered shell after what a user says, and that of an answer after the result of a tool, or if a
user wants it at once. The answer of mini-swe-agent, which offers one tool, is a call."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says one of `REPLIES`, each of which is one token, after a mark, and after anything else the end."""
    docs = (page.read_text() for page in (ROOT / "docs").glob("*.md"))
    tokenizer: Any = byte_tokenizer().train_new_from_iterator(docs, 2000)
    marks = {f"<|{name}|>": said for name, said in REPLIES.items()}
    tokenizer.add_tokens([*marks, *(one for said in marks.values() for one in said)])
    tokenizer.chat_template = TEMPLATE
    sizes = {"layers": 1, "heads": 1, "hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": 32_768}
    policy: Any = tiny_model(TinyModelConfig(**sizes, tie_word_embeddings=False), tokenizer, 0)
    with torch.no_grad():
        for name, weights in policy.named_parameters():
            if name.endswith(("embed_tokens.weight", "lm_head.weight", "o_proj.weight", "down_proj.weight")):
                weights.zero_()
        policy.model.embed_tokens.weight[:, 0] = 1
        policy.lm_head.weight[tokenizer.eos_token_id, 0] = 4
        for axis, (mark, said) in enumerate(marks.items(), 1):
            policy.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids(mark)] = torch.eye(32)[axis]
            policy.lm_head.weight[tokenizer.convert_tokens_to_ids(said), axis] = 4
    folder = tmp_path_factory.mktemp("policy")
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings(agent: str) -> dict[str, Any]:
    """The recipe's `agent`, whose command is where `scripts/ecosystem.sh` puts it."""
    binaries = ROOT / ".venv-ecosystem" / "coding-agents" / "node_modules" / ".bin"
    assert binaries.exists(), "the agents of npm are not there: run make test-ecosystem"
    path = f"{binaries}:{python('mini_swe_agent').parent}:{os.environ['PATH']}"
    return {"preset": agent, "env": {"PATH": path}, "grader": ["test", "-e", "made"], "timeout_seconds": scaled(60)}


@pytest.fixture(scope="module")
def runs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Run]]]:
    """A run of two updates with each agent; two at a time."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tasks.jsonl").write_text(json.dumps({"question": PROMPT}))

    def trained(agent: str) -> Run:
        recipe = {
            "model": {"path": str(model)},
            "data": {"train": {"path": str(folder / "tasks.jsonl"), "answer_column": None}},
            "agent": settings(agent),
            "reward": {"kind": "environment"},
            "sampling": {"max_tokens": 8},
            "trainer": {"updates": 2, "groups_per_update": 2, "group_size": 2},
            "cluster": {"kind": "local"},
        }
        (folder / f"{agent}.yaml").write_text(yaml.safe_dump(recipe))
        return train(folder / agent, folder, recipe=folder / f"{agent}.yaml")

    with ThreadPoolExecutor(2) as pool:
        yield {agent: pool.submit(trained, agent) for agent in AGENTS}


def sampled(episode: EpisodeRecord, model: Path, kind: int) -> list[str]:
    """The sampled tokens that are trained (1) or not (3), as texts."""
    assert episode.token_ids is not None
    tokenizer = AutoTokenizer.from_pretrained(model)
    return list(tokenizer.convert_ids_to_tokens(episode.token_ids[episode.kinds == kind]))


def check(episode: EpisodeRecord, agent: str, model: Path) -> None:
    """All that was sampled is a call and an answer, in one segment, and opencode's title, in another."""
    made, other = REPLIES[AGENTS[agent]]
    [answer] = REPLIES["submit" if agent == "mini-swe-agent" else "answer"]
    assert sampled(episode, model, 1) == [made if episode.reward else other, END, answer, END]
    titled = agent == "opencode"
    assert sampled(episode, model, 3) == [ANSWER, END] * titled
    assert episode.segment_threads == (["side", "main"] if titled else None)
    assert [turn["segment"] for turn in episode.turns or []] == ([0, 1, 1] if titled else [0, 0])


async def served(url: str, agent: str, prompt: str) -> None:
    task = Task(id="t", messages=(Message(role="user", content=prompt),))
    async with httpx.AsyncClient(trust_env=False, timeout=scaled(30)) as asking:
        session = (await asking.post(f"{url}/sessions", json={"task": f"{agent}: {prompt}"})).json()
        play = agent_program(AgentConfig(**settings(agent)))
        ended = await asyncio.wait_for(play(task, session["base_url"], "none"), scaled(PROGRAM_SECONDS))
        told = await asking.post(f"{url}/sessions/{session['id']}/end", json={"reward": ended["reward"]})
        assert told.status_code == 200, (ended, told.text)


def test_a_served_policy_plays_with_all_agents_at_once(model: Path, tmp_path: Path) -> None:
    """Qwen Code plays twice: only after an answer without a tool it looks for what to remember."""
    file = tmp_path / "episodes.jsonl"
    plays = [*((agent, PROMPT) for agent in AGENTS), ("qwen-code", "Say at once that all is done.")]

    async def play_all(url: str) -> None:
        await asyncio.gather(*(served(url, *play) for play in plays))

    with commanded("policy", model, "--trajectories", file, "--max-tokens", 8) as (url, _):
        asyncio.run(play_all(url))
    episodes = {episode.task: episode for episode in read_episodes(file)}
    for agent in AGENTS:
        check(episodes.pop(f"{agent}: {PROMPT}"), agent, model)
    [remembers] = episodes.values()
    assert remembers.segment_threads == ["subagent", "main"]
    assert sampled(remembers, model, 1) == [ANSWER, END]
    assert sampled(remembers, model, 3)[1:] == [END, ANSWER, END], "it calls its shell, and then answers"


@pytest.mark.parametrize("agent", AGENTS)
def test_each_reply_to_an_agent_is_trained_once(agent: str, runs: Any, model: Path) -> None:
    run = runs[agent].result()
    assert [update["tokens/trained"] for update in run.metrics] == [16, 16]
    assert [episode.outcome for episode in run.episodes] == ["trained"] * 8
    for episode in run.episodes:
        check(episode, agent, model)
    audited = rlhf("audit", run.folder)
    assert audited.returncode == 0, audited.stdout
    exports = {form: run.folder / form for form in ("openenv", "atif")}
    for form, output in exports.items():
        assert rlhf("episodes", run.folder, "--format", form, "-o", output).returncode == 0
    traces = outside("openenv", "openenv_check.py", str(exports["openenv"]))
    assert [(one["refused"], one["fatal"], one["trained"]) for one in traces] == [(None, [], 4)] * 8
    trajectories = outside("atif", "atif_check.py", str(exports["atif"])).values()
    assert [sum(map(len, one["replies"])) for one in trajectories] == [4] * 8
