"""Recorded episodes pass the checks of ATIF and OpenEnv, and a planted fault is found by them or by `rlhf audit`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
from rlhf.types import Message, Sampling, Task, TokenKind, Trajectory
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


Fault = Callable[[EpisodeRecord], EpisodeRecord]
PER_TOKEN = ("token_ids", "kinds", "behaviour_logprobs", "versions")


def inserted(record: EpisodeRecord, place: int, values: dict[str, list[Any]], *, segment: int) -> EpisodeRecord:
    """The record with tokens that are inserted into that segment, whose turns come later."""
    columns = {name: np.insert(getattr(record, name), place, values[name]) for name in PER_TOKEN}
    more = len(values["token_ids"])
    lengths = [length + more * (number == segment) for number, length in enumerate(record.segment_lengths)]
    turns = [
        turn | ({"start": turn["start"] + more, "stop": turn["stop"] + more} if turn["segment"] == segment else {})
        for turn in record.turns
    ]
    return replace(record, **columns, segment_lengths=lengths, turns=turns)


def begin(record: EpisodeRecord, segment: int) -> int:
    return sum(record.segment_lengths[:segment])


def another_token(record: EpisodeRecord, place: int) -> EpisodeRecord:
    tokens = record.token_ids.copy()
    tokens[place] = TOKENIZER.encode("x" if tokens[place] == TOKENIZER.encode("z")[0] else "z")[0]
    return replace(record, token_ids=tokens)


def credited_in_two_turns(record: EpisodeRecord) -> EpisodeRecord:
    return replace(record, turns=[record.turns[-1] | {"terminated": False}, *record.turns])


def credited_in_two_contexts(record: EpisodeRecord) -> EpisodeRecord:
    """The reply that the last context repeats as its prompt is trained there once more, and all numbers agree."""
    last = max(turn["segment"] for turn in record.turns)
    first = next(turn for turn in record.turns if turn["message"] is not None)
    again = slice(begin(record, last) + first["start"], begin(record, last) + first["stop"])
    sampled = slice(begin(record, first["segment"]) + first["start"], begin(record, first["segment"]) + first["stop"])
    assert (record.token_ids[again] == record.token_ids[sampled]).all()
    columns = {name: getattr(record, name).copy() for name in PER_TOKEN}
    for column in columns.values():
        column[again] = column[sampled]
    turns = [*record.turns[:-1], first | {"segment": last}, record.turns[-1]]
    more = record.sampled_tokens + again.stop - again.start
    return replace(record, **columns, turns=turns, sampled_tokens=more)


def with_prompt_encoded_otherwise(record: EpisodeRecord, segment: int) -> EpisodeRecord:
    """The first token of that context is written with the tokens of its letters."""
    place, letters = begin(record, segment), [TOKENIZER.encode(one)[0] for one in "<|im_start|>"]
    assert TOKENIZER.decode([record.token_ids[place]]) == TOKENIZER.decode(letters)
    tokens = record.token_ids.copy()
    tokens[place] = letters[-1]
    more = {name: [value] * (len(letters) - 1) for name, value in zip(PER_TOKEN, (0, 0, np.nan, -1), strict=True)}
    more["token_ids"] = letters[:-1]
    return inserted(replace(record, token_ids=tokens), place, more, segment=segment)


def sampled_in_main(record: EpisodeRecord) -> list[int]:
    return np.flatnonzero(record.kinds == TokenKind.ACTION).tolist()


def test_any_changed_token_of_a_main_reply_is_found_by_the_audit(records: list[EpisodeRecord], tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    texts, known = texts_of(RunFolder(tmp_path)), {}
    assert [fault for record in records for fault in faults_of_episode(record, RECIPE, texts, known)] == []
    missed = [
        (record.ordinal, place)
        for record in records
        for place in sampled_in_main(record)
        if not [*faults_of_episode(another_token(record, place), RECIPE, texts, known)]
    ]
    assert missed == [], [TOKENIZER.decode(records[at].token_ids[: place + 1])[-40:] for at, place in missed]


@pytest.mark.parametrize("fault", [credited_in_two_turns, credited_in_two_contexts])
def test_a_reply_that_is_credited_twice_is_refused_by_openenv_and_found_by_the_audit(
    records: list[EpisodeRecord], tmp_path: Path, fault: Fault
) -> None:
    faulty = fault(records[AGENT])
    assert "duplicate node_ids" in checked(tmp_path, faulty)["refused"]
    assert audited(tmp_path, faulty)


@pytest.mark.parametrize(("episode", "segment"), [(AGENT, 0), (AGENT, 3), (ENVIRONMENT, 0), (ONE_REPLY, 0)])
def test_a_prompt_that_was_encoded_anew_is_found_by_the_audit(
    records: list[EpisodeRecord], tmp_path: Path, episode: int, segment: int
) -> None:
    [fault] = audited(tmp_path, with_prompt_encoded_otherwise(records[episode], segment))
    assert "has other tokens than those of their text" in fault


def test_a_context_that_was_encoded_anew_is_a_root_of_its_own_to_openenv(
    records: list[EpisodeRecord], tmp_path: Path
) -> None:
    faulty = with_prompt_encoded_otherwise(records[AGENT], 3)
    assert checked(tmp_path, faulty)["roots"] == 5, "and 4 in the sound episode"
