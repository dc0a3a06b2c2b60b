"""Agents drive episodes over a real socket: what they are given is captured, and what breaks them is no reward."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from rlhf.chat.renderer import ChatRenderer
from rlhf.controller.environments import started_endpoint
from rlhf.engines.router import Router
from rlhf.errors import EngineBroken, GenerateFailed
from rlhf.protocols import RolloutEngine
from rlhf.reward.reward import EnvironmentReward
from rlhf.rollout.agent_config import AgentConfig
from rlhf.rollout.group import GroupRollout, lost_to_environment
from rlhf.rollout.seeds import request_seed
from rlhf.tracing import SpanIds, within
from rlhf.types import (
    Completion,
    EpisodeStatus,
    Failed,
    Group,
    Message,
    Sample,
    Sampling,
    Scored,
    Task,
    Ticket,
    Trajectory,
    Unscored,
)
from tests.env.environments import Unsayable
from tests.fakes import exporting_to
from tests.rollout.endpoint.asking import check
from tests.rollout.endpoint.serving import TOKENIZER, scripted
from tests.rollout.endpoint.test_interrupted import Broken, Fails
from tests.rollout.playing import ScriptedEngine, policy

RELEASE = threading.Event()
"""Lets agents that hang go, at the end of a test."""


def asking(base_url: str, api_key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key=api_key, timeout=30, max_retries=0)


def twice(task: Task, base_url: str, api_key: str, reward: Any = 0.5) -> Any:
    """Asks what the task asks, and once more."""
    chat = asking(base_url, api_key).chat.completions
    messages: list[Any] = [{"role": message.role, "content": message.content} for message in task.messages]
    first = chat.create(model="policy", messages=messages).choices[0].message
    chat.create(model="policy", messages=[*messages, first, {"role": "user", "content": "sure?"}])
    return reward


def seeds(task: Task, base_url: str, api_key: str) -> float:
    """Sends a seed, the same in every episode; returns 1 when it is told that this is ignored."""
    chat = asking(base_url, api_key).chat.completions.with_raw_response
    answer = chat.create(model="policy", messages=[{"role": "user", "content": "go"}], seed=7)
    return float(answer.headers["x-rlhf-ignored"] == "seed")


async def at_once(task: Task, base_url: str, api_key: str) -> None:
    """Three samples beside one another, without a reward."""
    chat = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=30, max_retries=0).chat.completions
    messages: list[Any] = [{"role": "user", "content": "go"}]
    await asyncio.gather(*(chat.create(model="policy", messages=messages) for _ in range(3)))


class AsObject:
    async def __call__(self, task: Task, base_url: str, api_key: str) -> None:
        await at_once(task, base_url, api_key)


as_object, as_partial = AsObject(), functools.partial(at_once)


def decorated(*given: Any) -> Any:
    """What a decorator that knows nothing of `async` makes of `at_once`."""
    return at_once(*given)


def hangs_decorated(*given: Any) -> Any:
    return hangs_later(*given)


def raises(task: Task, base_url: str, api_key: str) -> float:
    twice(task, base_url, api_key)
    raise KeyError("my own mistake")


async def raises_later(task: Task, base_url: str, api_key: str) -> float:
    raise SystemExit(3)


async def raises_nonsense(task: Task, base_url: str, api_key: str) -> float:
    raise Unsayable


def writes_into_its_row(task: Task, base_url: str, api_key: str) -> float:
    """Earns 1 if no other has written into its row."""
    asking(base_url, api_key).chat.completions.create(model="m", messages=[{"role": "user", "content": "go"}])
    others = len(task.row)
    task.row["mine"] = 1  # type: ignore[index]
    return 1.0 - others


async def cancels_itself(task: Task, base_url: str, api_key: str) -> float:
    """Awaits something of its own that was cancelled."""
    waiting = asyncio.ensure_future(asyncio.sleep(60))
    waiting.cancel()
    await waiting
    return 1.0


def cancelled_inside(task: Task, base_url: str, api_key: str) -> float:
    """Runs an event loop of its own, and what it awaits there is cancelled."""
    return asyncio.run(cancels_itself(task, base_url, api_key))


class Abort(BaseException):
    """Frameworks have such: nothing that catches exceptions holds it up."""


def aborts(task: Task, base_url: str, api_key: str) -> float:
    raise Abort("enough")


async def aborts_later(task: Task, base_url: str, api_key: str) -> float:
    raise Abort("enough")


def silent(task: Task, base_url: str, api_key: str) -> float:
    return 1.0


def hangs(task: Task, base_url: str, api_key: str) -> float:
    twice(task, base_url, api_key)
    RELEASE.wait(20)
    return 1.0


def holds(task: Task, base_url: str, api_key: str) -> float:
    """Hangs until it is let go, and then asks."""
    RELEASE.wait(20)
    return swallows(task, base_url, api_key)


async def hangs_later(task: Task, base_url: str, api_key: str) -> float:
    await asyncio.sleep(60)
    return 1.0


def swallows(task: Task, base_url: str, api_key: str) -> float:
    """Asks once with plain HTTP, and takes any answer for a good one."""
    body = {"messages": [{"role": "user", "content": "go"}]}
    httpx.post(f"{base_url}/chat/completions", json=body, headers={"Authorization": f"Bearer {api_key}"}, timeout=30)
    return 0.25


def goes_on(task: Task, base_url: str, api_key: str, again: bool = False) -> float:
    """Asks three things, and goes on where one fails; with `again` it asks that once more."""
    chat = asking(base_url, api_key).chat.completions
    for text in ("one", "two", "three"):
        for _ in range(1 + again):
            try:
                chat.create(model="policy", messages=[{"role": "user", "content": text}])
                break
            except openai.InternalServerError:
                continue
    return 0.0


def asks_two(task: Task, base_url: str, api_key: str) -> dict[str, Any]:
    """Asks two models, and goes on where the second fails."""
    client = asking(base_url, api_key)
    assert [model.id for model in client.models.list()] == ["planner", "worker"]
    with suppress(openai.InternalServerError):
        for model in ("planner", "worker"):
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": "go"}])
    return {"rewards": {"planner": 0.25, "worker": 0.5}}


def stops(task: Task, base_url: str, api_key: str) -> float:
    """Asks with a stop text; returns 1 where the reply ends before it."""
    chat = asking(base_url, api_key).chat.completions
    answer = chat.create(model="policy", messages=[{"role": "user", "content": "go"}], stop=["s"])
    return float(answer.choices[0].message.content == "ye")


def guesses(task: Task, base_url: str, api_key: str) -> float:
    """Uses the wrong key."""
    return twice(task, base_url, "guess")


def slow_start(task: Task, base_url: str, api_key: str) -> float:
    time.sleep(0.2)
    twice(task, base_url, api_key)
    return 1.0


TASK = Task(id="t", messages=(Message(role="user", content="go"),))
TICKET = Ticket(ordinal=5, version=2)


async def group_of(program: str, engine: RolloutEngine, *, size: int = 2, **changes: Any) -> Group | Failed:
    """A group that is played by an agent of this file."""
    return await played(AgentConfig(program=f"{__name__}:{program}", **changes), engine, size=size)


async def played(
    config: AgentConfig, engine: RolloutEngine, *, size: int, task: Task = TASK, log: Path | None = None
) -> Group | Failed:
    async with asyncio.timeout(30), started_endpoint(config, structured=False, log=log) as play:
        rollout = GroupRollout(
            engine=engine,
            renderer=ChatRenderer(TOKENIZER),
            reward=EnvironmentReward(),
            sampling=Sampling(max_tokens=16),
            group_size=size,
            max_context_tokens=512,
            run_seed=1,
            play=play,
        )
        outcome = await rollout(task, TICKET)
        assert len(play.sessions) == 0, "every session ends with its episode"
    assert isinstance(outcome, (Group, Failed))
    return outcome


async def lost(program: str, engine: ScriptedEngine, **changes: Any) -> Sample:
    """What became of the only episode of a group that failed."""
    group = await group_of(program, engine, size=1, **changes)
    assert isinstance(group, Failed)
    [sample] = group.samples
    return sample


async def test_a_group_of_agents_plays_at_once_each_in_a_session_of_its_own() -> None:
    engine = scripted(*["yes"] * 8)
    group = await group_of("twice", engine, size=4)
    assert isinstance(group, Group)
    episodes = [trajectory for _, trajectory, _ in group.trainable]
    assert [score for _, _, score in group.trainable] == [
        Scored(value=0.5, parts={"environment": 0.5}, turn_weight=1.0, only_turns=True)
    ] * 4
    assert [len(episode.segments[0].turns) for episode in episodes] == [2] * 4
    assert [message.content for message in episodes[0].conversation] == ["go", "yes", "sure?", "yes"]
    assert {session for _, _, _, session in engine.asked} == {f"train-5-{sample}" for sample in range(4)}
    seeds = {(session, seed) for _, _, seed, session in engine.asked}
    assert seeds == {
        (f"train-5-{sample}", request_seed(run_seed=1, purpose="train", ordinal=5, sample=sample, turn=turn))
        for sample in range(4)
        for turn in range(2)
    }


class Behind:
    """An engine behind a router."""

    name, places, version = "engine-0", 4, 0

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    async def generate(self, *arguments: Any, partial: Any, **named: Any) -> Completion:
        return replace(await self._engine.generate(*arguments, **named), engine=self.name)


async def test_a_reply_that_an_agent_asks_for_over_http_belongs_to_its_episode() -> None:
    ended: list[Any] = []
    with within(exporting_to(ended, SpanIds(1, 2))):
        await group_of("twice", Router([Behind(scripted("yes", "yes"))]), size=1)
    assert [span.name for span, *_ in ended] == ["generate", "reply", "generate", "reply", "episode", "score"]
    work, reply, _, _, (episode, episode_ids, of_episode, _), score = ended
    assert (work[2:], reply[0].attributes["prompt_tokens"] > 0) == ((reply[1], "engine-0"), True)
    assert {parent for span, _, parent, _ in ended if span.name == "reply"} == {episode_ids}
    assert (of_episode, score[2]) == ((1, 2), (1, 2))
    assert episode.attributes == {"task": "t", "session": "train-5-0"}


async def test_the_seeds_that_an_agent_sends_change_nothing_in_a_run() -> None:
    engine = scripted("yes", "yes")
    group = await group_of("seeds", engine)
    assert isinstance(group, Group)
    assert [score.value for _, _, score in group.trainable] == [1.0, 1.0], "and they are told"
    draws = {request_seed(run_seed=1, purpose="train", ordinal=5, sample=sample, turn=0) for sample in range(2)}
    assert {seed for _, _, seed, _ in engine.asked} == draws


async def test_the_agents_arguments_are_those_of_the_recipe_and_no_reward_leaves_it_to_the_recipe() -> None:
    group = await group_of("twice", scripted(*["yes"] * 4), arguments={"reward": 2})
    assert isinstance(group, Group)
    assert [score.value for _, _, score in group.trainable] == [2.0] * 2
    unscored = await group_of("twice", scripted(*["yes"] * 4), arguments={"reward": None})
    assert isinstance(unscored, Failed)
    assert all(isinstance(sample.score, Unscored) for sample in unscored.samples)
    assert all(isinstance(sample.trajectory, Trajectory) for sample in unscored.samples)


async def test_an_agent_that_writes_into_its_row_does_so_for_no_other() -> None:
    group = await group_of("writes_into_its_row", scripted("yes", "yes"))
    assert isinstance(group, Group)
    assert [score.value for _, _, score in group.trainable] == [1.0, 1.0]


@pytest.mark.parametrize("program", ["at_once", "as_object", "as_partial", "decorated"])
async def test_an_async_agent_that_samples_at_once_has_a_segment_for_each(program: str) -> None:
    engine = scripted("a", "b", "c")
    sample = await lost(program, engine)
    assert isinstance(sample.trajectory, Trajectory)
    assert len(sample.trajectory.segments) == 3
    check(sample.trajectory, engine)


@pytest.mark.parametrize(
    ("program", "kind", "detail"),
    [
        ("raises", "agent_raised", "task t: KeyError: 'my own mistake' (at tests/rollout/test_agent.py:"),
        ("raises_later", "agent_raised", "task t: SystemExit: 3"),
        ("raises_nonsense", "agent_raised", "task t: Unsayable: its text cannot be made (ZeroDivisionError)"),
        ("cancels_itself", "agent_raised", "task t: CancelledError"),
        ("cancelled_inside", "agent_raised", "task t: CancelledError"),
        ("aborts", "agent_raised", "task t: Abort: enough"),
        ("aborts_later", "agent_raised", "task t: Abort: enough"),
        ("guesses", "agent_raised", "AuthenticationError"),
        ("silent", "agent_silent", "without receiving a reply"),
        pytest.param("hangs_later", "agent_timeout", "did not end within 1 s", marks=pytest.mark.waits),
        pytest.param("hangs_decorated", "agent_timeout", "did not end within 1 s", marks=pytest.mark.waits),
    ],
)
async def test_an_agent_that_breaks_is_failed_by_its_kind_and_never_a_reward(
    program: str, kind: str, detail: str
) -> None:
    seconds = 1.0 if "hangs" in program else 20.0
    try:
        sample = await lost(program, scripted("yes", "yes"), timeout_seconds=seconds)
    finally:
        RELEASE.set()
        RELEASE.clear()
    assert isinstance(sample.trajectory, Failed)
    assert sample.trajectory.kind == kind
    assert detail in sample.trajectory.detail
    assert isinstance(sample.score, Unscored)
    assert lost_to_environment(sample), "an evaluation asks again"


@pytest.mark.waits
async def test_an_agent_that_does_not_end_in_time_is_cut_off_with_all_that_was_said() -> None:
    try:
        group = await group_of("hangs", scripted("yes", "yes"), size=1, timeout_seconds=2.0)
    finally:
        RELEASE.set()
        RELEASE.clear()
    assert isinstance(group, Group)
    [(_, trajectory, score)] = group.trainable
    assert (trajectory.status, trajectory.out_of_time) == (EpisodeStatus.TRUNCATED, True)
    assert [message.content for message in trajectory.conversation] == ["go", "yes", "sure?", "yes"]
    assert score.value == 0.0, "it was given no reward"


async def test_a_reply_that_is_under_way_when_the_time_of_an_agent_ends_is_cut_off_just_before() -> None:
    engine = scripted("yes", "yes")
    await group_of("twice", engine, size=1, timeout_seconds=100.0)
    given = [sampling.max_seconds for _, sampling, _, _ in engine.asked]
    assert all(seconds is not None and 60 < seconds <= 95 for seconds in given)


async def test_what_an_agent_says_beside_the_reward_is_recorded_as_its_parts() -> None:
    told = {"reward": 0.5, "reward_parts": {"right": 1, "why": "by luck"}, "tries": 2}
    group = await group_of("twice", scripted("yes", "yes"), size=1, arguments={"reward": told})
    assert isinstance(group, Group)
    [(_, trajectory, score)] = group.trainable
    assert (score.value, score.parts) == (0.5, {"right": 1.0, "environment": 0.5})
    assert trajectory.env_info == (told,)


@pytest.mark.parametrize("reward", ["much", float("nan"), [1.0], {"reward": "much"}, pytest.param(10**400, id="huge")])
async def test_what_is_no_reward_is_a_failure(reward: Any) -> None:
    sample = await lost("twice", scripted("yes", "yes"), arguments={"reward": reward})
    assert isinstance(sample.trajectory, Failed)
    assert sample.trajectory.kind == "agent_protocol"


async def test_an_engine_that_fails_is_the_engines_failure_and_not_the_agents() -> None:
    sample = await lost("twice", Broken(GenerateFailed("engine-0", "s", "no")))
    assert isinstance(sample.trajectory, Failed)
    assert sample.trajectory.kind == "engine"


@pytest.mark.parametrize("failing", [(1,), (2,), (3,), (1, 2, 3)])
async def test_an_agent_that_goes_on_without_a_reply_is_lost_whatever_it_returns(failing: tuple[int, ...]) -> None:
    sample = await lost("goes_on", Fails(*failing))
    assert isinstance(sample.trajectory, Failed)
    assert sample.trajectory.kind == "engine"
    assert f"request {failing[0]} broke" in sample.trajectory.detail


async def test_each_role_of_an_agent_has_its_reward_and_all_are_lost_with_a_request_of_one() -> None:
    group = await group_of("asks_two", Fails(), size=1, models=("planner", "worker"))
    assert isinstance(group, Group)
    assert [(one.role, score.value) for _, one, score in group.trainable] == [("planner", 0.25), ("worker", 0.5)]
    failed = await group_of("asks_two", Fails(2), size=1, models=("planner", "worker"))
    assert isinstance(failed, Failed)
    assert {one.trajectory.kind for one in failed.samples} == {"engine"}


async def test_an_agent_that_asks_again_what_failed_and_is_answered_has_lost_nothing() -> None:
    group = await group_of("goes_on", Fails(2), size=1, arguments={"again": True})
    assert isinstance(group, Group)
    assert [score.value for _, _, score in group.trainable] == [0.0]


async def test_a_recipe_says_whether_its_agent_may_cut_replies() -> None:
    group = await group_of("stops", scripted("yes"), size=1)
    assert isinstance(group, Group)
    [(_, trajectory, score)] = group.trainable
    assert (trajectory.cut_replies, score.value) == (1, 1.0)
    refused = await lost("stops", scripted("yes"), client_stop="refuse")
    assert isinstance(refused.trajectory, Failed)
    assert "agent.client_stop: cut" in refused.trajectory.detail


async def test_an_engine_that_is_broken_ends_the_run_also_when_the_agent_says_nothing_of_it() -> None:
    with pytest.raises(EngineBroken, match="state unknown"):
        await group_of("swallows", Broken(EngineBroken("engine-0", "state unknown")))


@pytest.mark.waits
async def test_agents_beyond_the_limit_wait_for_a_place() -> None:
    group = await group_of("slow_start", scripted(*["yes"] * 8), size=4, max_agents=1)
    assert isinstance(group, Group)
    assert len(group.trainable) == 4


@pytest.mark.waits
async def test_threads_that_hang_are_no_more_than_agents_may_be_and_count_until_they_come_back() -> None:
    config = AgentConfig(program=f"{__name__}:holds", max_agents=2, timeout_seconds=0.3)
    engine = policy(scripted(*["yes"] * 8), TOKENIZER)
    kinds = []
    try:
        async with asyncio.timeout(20), started_endpoint(config, structured=False) as play:
            for _ in range(3):
                [outcome] = await play(TASK, engine, 0)
                kinds.append(outcome.kind)
            RELEASE.set()
            while isinstance(outcome, Failed):
                await asyncio.sleep(0.05)
                [outcome] = await play(TASK, engine, 0)
    finally:
        RELEASE.clear()
    assert kinds == ["agent_timeout", "agent_timeout", "agent_refused"]


async def test_a_group_that_is_given_up_ends_its_sessions() -> None:
    config = AgentConfig(program=f"{__name__}:hangs_later")
    async with started_endpoint(config, structured=False) as play:
        playing = asyncio.create_task(play(TASK, policy(scripted(), TOKENIZER), 0))
        async with asyncio.timeout(10):
            while not len(play.sessions):
                await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert len(play.sessions) == 0
