"""Recorded episodes pass the checks of ATIF and OpenEnv, and a planted fault is found by them or by `rlhf audit`."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlhf.apps.audit.episodes import faults_of_episode, texts_of
from rlhf.apps.cli.main import app
from rlhf.models.tiny import byte_tokenizer
from rlhf.recipe.loading import load_recipe
from rlhf.rollout.episode import AnswerOnce
from rlhf.runs.episode_parts import write_part
from rlhf.runs.episode_records import ended_served, records_of
from rlhf.runs.folder import RunFolder
from rlhf.runs.records import EpisodeRecord
from rlhf.types import Message, Sampling, Task, Trajectory
from tests.ecosystem.venvs import ROOT, run
from tests.rollout.endpoint.asking import Agent, assistant, user
from tests.rollout.endpoint.serving import scripted
from tests.rollout.endpoint.test_threads import CALL, HELPER, MEMORY, TASK_TEXT, TITLE, WORK
from tests.rollout.playing import ADD, TASK, ScriptedEnvironment, play_alone, policy, rules, says

pytestmark = pytest.mark.ecosystem
TOKENIZER = byte_tokenizer()
RECIPE = load_recipe(ROOT / "recipes" / "tool_calculator.yaml").recipe
AGENT, ENVIRONMENT, ONE_REPLY = range(3)


def result(text: str, call: Message) -> Message:
    return Message(role="tool", content=text, tool_call_id=call.tool_calls[0].id)


async def of_an_agent() -> Trajectory:
    """An agent that asks for a title first, for memories last, and for a subagent's work between. It calls a tool,
    drops its thinking, which rewrites its history, and asks once more for the last reply."""
    agent = Agent(TOKENIZER, "Sums", CALL, CALL, "3", "<think>1 and 2</think>It is 3.", "yes", "indeed", "likes sums")
    await agent.ask(TITLE, TASK_TEXT)
    agent.said.append(WORK)
    called = await agent.say(TASK_TEXT, tools=(ADD,))
    helper = Agent(TOKENIZER)
    helper.session, helper.said = agent.session, [HELPER]
    asked = await helper.say(user("add"), tools=(ADD,))
    await helper.say(result("3", asked.message), tools=(ADD,))
    await agent.say(result("three", called.message), tools=(ADD,))
    agent.said[-1] = assistant("It is 3.")
    await agent.say(user("sure?"), tools=(ADD,))
    await agent.ask(*agent.said[:-1], tools=(ADD,))
    await agent.ask(MEMORY, user("1+2? 3"), max_tokens=4)
    return agent.played(1.0)


async def of_an_environment() -> Trajectory:
    environment = ScriptedEnvironment(
        says("1+1?"), says("2", role="tool", tool_call_id="call00000", reward=0.25), says("so?"),
        says("right", reward=1.0, terminated=True),
    )  # fmt: skip
    its = policy(scripted(CALL, "2 \u2014 or two", "2"), TOKENIZER, sampling=Sampling(max_tokens=256))
    played = await play_alone(TASK, its, environment, seed=9, rules=rules())
    assert isinstance(played, Trajectory)
    return played


async def of_one_reply() -> Trajectory:
    task = Task(id="sum", messages=(user("1+2?"),), answer="3")
    [played] = await AnswerOnce()(task, policy(scripted("3"), TOKENIZER), 0)
    assert isinstance(played, Trajectory)
    return played


@pytest.fixture(scope="module")
def records() -> list[EpisodeRecord]:
    """The episodes of an agent, of an environment with a tool, and of one reply."""
    played = [asyncio.run(play()) for play in (of_an_agent, of_an_environment, of_one_reply)]
    return [record for place, one in enumerate(played) for record in records_of(ended_served(place, one, 1.0, 0))]


def exported(folder: Path, records: list[EpisodeRecord], form: str) -> Path:
    """The file or folder that `rlhf episodes` writes for these episodes of a run."""
    TOKENIZER.save_pretrained(folder / "tokenizer")
    (folder / "episodes").mkdir()
    write_part(folder / "episodes", 1, records)
    output = folder / form
    ended = CliRunner().invoke(app, ["episodes", str(folder), "--format", form, "-o", str(output)])
    assert ended.exit_code == 0, ended.output
    return output


def checked(folder: Path, record: EpisodeRecord) -> dict[str, Any]:
    """What OpenEnv's checks say of one episode."""
    [found] = run("openenv", "openenv_check.py", str(exported(folder, [record], "openenv")))
    return found


def audited(folder: Path, record: EpisodeRecord) -> list[str]:
    """What the audit says of one episode."""
    TOKENIZER.save_pretrained(folder / "tokenizer")
    return [*faults_of_episode(record, RECIPE, texts_of(RunFolder(folder)), {})]


def test_sound_episodes_pass_openenvs_checks_and_the_audit(records: list[EpisodeRecord], tmp_path: Path) -> None:
    found = run("openenv", "openenv_check.py", str(exported(tmp_path, records, "openenv")))
    assert [one["refused"] for one in found] == [None] * 3
    assert [one["fatal"] for one in found] == [[]] * 3
    assert [(one["turns"], one["roots"]) for one in found] == [(8, 4), (3, 1), (1, 1)]
    assert [one["trained"] for one in found] == [record.sampled_tokens for record in records]
    assert [audited(tmp_path, record) for record in records] == [[]] * 3


def test_sound_episodes_are_trajectories_of_atif(records: list[EpisodeRecord], tmp_path: Path) -> None:
    found = run("atif", "atif_check.py", str(exported(tmp_path, records, "atif")))
    agent, environment, once = (found[f"{place}.0"] for place in range(3))
    for record, one in zip(records, (agent, environment, once), strict=True):
        parts = [one, *one["subagents"]]
        tokens = Counter(token for part in parts for reply in part["replies"] for token in reply)
        assert tokens == Counter(record.token_ids[record.kinds % 2 == 1].tolist()), "every sampled token is there once"
        assert all(part["completion_tokens"] == sum(map(len, part["replies"])) for part in parts)
    assert (len(agent["replies"]), agent["copied"]) == (4, 1)
    assert agent["results"] == [["call00000", "add", "three"]]
    assert [len(one["replies"]) for one in agent["subagents"]] == [1, 2, 1]
    assert [one["messages"][-1] for one in agent["subagents"]] == ["Sums<|im_end|>", "3<|im_end|>", "like"]
    assert environment["sources"] == ["user", "agent", "agent", "user", "agent", "user"]
    assert environment["results"] == [["call00000", "add", "2"]]
    assert [TOKENIZER.decode(one) for one in environment["replies"]] == [
        f"{text}<|im_end|>" for text in (CALL, "2 \u2014 or two", "2")
    ]
    assert once["messages"] == ["1+2?", "3"]
