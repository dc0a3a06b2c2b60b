"""An agent's main conversation is found among its side calls; it is paid and trained, they are recorded."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.errors import EnvironmentFailed
from rlhf.models.tiny import byte_tokenizer
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.trainer.batching.packing import group_by_prefix
from rlhf.types import EpisodeStatus, Message, Scored, TokenKind, Tool, ToolCall, Trajectory
from tests.rollout.endpoint.asking import Agent, assistant, user
from tests.rollout.playing import ADD, TASK

CALL = '<tool_call>{"name": "add", "arguments": {"y": 2, "x": 1}}</tool_call>'
RESULT = Message(role="tool", content="3", tool_call_id="call00000")
SUMMARY = "So far one and two were added."


def system(text: str) -> Message:
    return Message(role="system", content=text)


WORK, TITLE, MEMORY, HELPER = map(system, ("Work.", "Write a title.", "Note what to remember.", "Help the worker."))
TASK_TEXT = user("1+2?")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return byte_tokenizer()


def threads(trajectory: Trajectory) -> list[tuple[str, int]]:
    """What each segment is, and how many of its tokens are trained."""
    return [(segment.thread, int(segment.action_mask.sum())) for segment in trajectory.segments]


def paid(trajectory: Trajectory) -> list[tuple[float | None, bool]]:
    return [(turn.reward, turn.terminated) for segment in trajectory.segments for turn in segment.turns]


async def worked(agent: Agent) -> None:
    """Two turns of the main conversation."""
    agent.said.append(WORK)
    await agent.say(TASK_TEXT, tools=(ADD,))
    await agent.say(RESULT, tools=(ADD,))


async def test_a_title_that_is_asked_first_and_a_memory_that_is_asked_last_are_side_calls(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    agent = Agent(tokenizer, "Sums", CALL, "3", "user likes sums")
    await agent.ask(TITLE, TASK_TEXT)
    await worked(agent)
    cut = await agent.ask(MEMORY, user("1+2? 3"), max_tokens=4)
    assert cut.completion.finish_reason == "length"
    trajectory = agent.played(1.0)
    assert threads(trajectory) == [("side", 0), ("side", 0), ("main", len(CALL) + 3)]
    assert (trajectory.response, trajectory.status) == ("3", EpisodeStatus.TERMINATED), "the memory's end is no cut"
    assert paid(trajectory) == [(None, False)] * 3 + [(1.0, True)]
    assert [one.content for one in trajectory.conversation] == ["Work.", "1+2?", "", "3", "3"]
    assert trajectory.turns == 2
    title = trajectory.segments[0]
    assert (title.kinds[title.sampled_mask] == TokenKind.UNTRAINED).all()
    assert (title.behaviour_logprobs[title.sampled_mask] < 0).all(), "recorded as it was sampled"


async def test_without_a_second_turn_the_call_with_tools_is_the_main_one(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "Sums", "three", "user likes sums")
    await agent.ask(TITLE, TASK_TEXT)
    await agent.ask(WORK, TASK_TEXT, tools=(ADD,))
    await agent.ask(MEMORY, user("1+2? three"))
    trajectory = agent.played(1.0)
    assert [kind for kind, _ in threads(trajectory)] == ["side", "side", "main"]
    assert trajectory.response == "three"


async def test_a_memory_that_works_longer_than_the_task_looks_back_at_it(tokenizer: PreTrainedTokenizerBase) -> None:
    """As Qwen Code's, with fewer tools than the worker."""
    agent = Agent(tokenizer, "three", CALL, CALL, "saved")
    agent.said.append(WORK)
    await agent.say(TASK_TEXT, tools=(ADD, replace(ADD, name="other")))
    agent.said = [MEMORY, *agent.said[1:]]
    for said in (user("Note."), RESULT, RESULT):
        await agent.say(said, tools=(ADD,))
    trajectory = agent.played(1.0)
    assert [kind for kind, _ in threads(trajectory)] == ["subagent", "main"]
    assert (trajectory.response, trajectory.turns) == ("three", 1)


async def test_a_subagent_in_parallel_is_trained_only_where_all_is(tokenizer: PreTrainedTokenizerBase) -> None:
    for train, trained in (("main", False), ("all", True)):
        agent = Agent(tokenizer, CALL, CALL, CALL, "3", "title", "the sum is 3", train=train)
        agent.said.append(WORK)
        await agent.say(TASK_TEXT, tools=(ADD,))
        helper = Agent(tokenizer)
        helper.session, helper.said = agent.session, [HELPER]
        await helper.say(user("add"), tools=(ADD,))
        await helper.say(RESULT, tools=(ADD,))
        await helper.say(RESULT, tools=(ADD,))
        await agent.ask(TITLE, TASK_TEXT)
        await agent.say(RESULT, tools=(ADD,))
        trajectory = agent.played(1.0)
        assert [kind for kind, _ in threads(trajectory)] == ["subagent", "side", "main"]
        assert [tokens > 0 for _, tokens in threads(trajectory)] == [trained, trained, True]
        assert trajectory.response == "the sum is 3"


async def test_a_subagent_of_one_turn_is_known_by_its_result(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, CALL, "it is three", "3")
    agent.said.append(WORK)
    await agent.say(TASK_TEXT, tools=(ADD,))
    await agent.ask(HELPER, user("add"), tools=(ADD,))
    await agent.say(Message(role="tool", content="helper: it is three", tool_call_id="call00000"), tools=(ADD,))
    assert [kind for kind, _ in threads(agent.played(1.0))] == ["subagent", "main"]


@pytest.mark.parametrize("asked", [(WORK, True), (HELPER, False)], ids=["as the worker", "as another"])
async def test_a_conversation_goes_on_after_a_summary(
    tokenizer: PreTrainedTokenizerBase, asked: tuple[Message, bool]
) -> None:
    who, tools = asked[0], (ADD,) if asked[1] else ()
    for train, trained in (("main", True), ("main_without_summaries", False)):
        agent = Agent(tokenizer, CALL, CALL, SUMMARY, CALL, "3", train=train)
        await worked(agent)
        await agent.ask(who, *agent.said[1:], user("Summarise."), tools=tools)
        agent.said = [WORK]
        await agent.say(user(f"What was done: {SUMMARY}"), tools=(ADD,))
        await agent.say(RESULT, tools=(ADD,))
        trajectory = agent.played(1.0)
        first = [("main", 2 * len(CALL) + 2)]
        if asked[1]:  # the summary is the last turn of the first segment
            first = [("main", 2 * len(CALL) + 2 + trained * (len(SUMMARY) + 1))]
        else:
            first.append(("summary", trained * (len(SUMMARY) + 1)))
        assert threads(trajectory) == [*first, ("compaction", len(CALL) + 3)]
        assert paid(trajectory)[-1] == (1.0, True)


async def test_a_retry_and_two_requests_at_once_are_all_of_the_main_conversation(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    agent = Agent(tokenizer, "one", "two", "three", "Sums")
    await agent.ask(WORK, TASK_TEXT, tools=(ADD,))
    await agent.ask(WORK, TASK_TEXT, tools=(ADD,))
    await asyncio.gather(agent.ask(TITLE, TASK_TEXT), agent.ask(WORK, user("2+2?"), tools=(ADD,)))
    trajectory = agent.played(1.0)
    assert sorted(kind for kind, _ in threads(trajectory)) == ["main", "main", "main", "side"]
    assert trajectory.segments[-1].turns[-1].reward == 1.0


async def test_a_handoff_and_a_clock_in_the_system_prompt_go_on_with_the_main_conversation(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    agent = Agent(tokenizer, CALL, "3")
    replied = await agent.ask(WORK, TASK_TEXT, tools=(ADD,))
    await agent.ask(HELPER, TASK_TEXT, replied.message, RESULT)
    assert [kind for kind, _ in threads(agent.played(1.0))] == ["main", "main"]
    agent = Agent(tokenizer, "one", "two")
    await agent.ask(system("It is 1."), user("a"))
    await agent.ask(system("It is 2."), user("a"), assistant("one"), user("b"))
    assert [kind for kind, _ in threads(agent.played(1.0))] == ["main", "main"]


async def test_a_function_decides_what_is_trained(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "Sums", CALL, "3", train=f"{__name__}:only_tools")
    await agent.ask(TITLE, TASK_TEXT)
    await worked(agent)
    assert threads(agent.played(1.0)) == [("side", 0), ("main", len(CALL) + 1)]


async def test_a_function_that_fails_loses_the_episode_by_name(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "three", train=f"{__name__}:no_key")
    await agent.ask(WORK, TASK_TEXT)
    with pytest.raises(EnvironmentFailed, match=r"agent\.train: raised: KeyError"):
        agent.played(1.0)


def no_key(kind: str, call: object) -> bool:
    return {"all": True}[kind]


def only_tools(kind: str, call: object) -> bool:
    return kind == "main" and bool(call.message.tool_calls)  # type: ignore[attr-defined]


async def test_an_agent_that_drops_thinking_costs_little_more_than_one_that_keeps_it(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    replies = [f"<think>{'how so? ' * 12}</think>answer {turn}" for turn in range(8)]

    async def computed(*, keeps: bool) -> tuple[int, int]:
        agent = Agent(tokenizer, *replies)
        agent.said.append(WORK)
        for turn in range(8):
            await agent.say(user(f"Question {turn}, and then?"), tools=(ADD,))
            if not keeps:
                agent.said[-1] = assistant(agent.said[-1].content.partition("</think>")[2])
        trajectory = agent.played(1.0)
        assert {kind for kind, _ in threads(trajectory)} == {"main"}
        assert trajectory.action_tokens == sum(len(reply) + 1 for reply in replies)
        own = range(len(trajectory.segments))
        groups = group_by_prefix(trajectory.segments, own, [0] * len(own), 4096, 4096)
        return len(own), sum(group.tokens(trajectory.segments) for group in groups)

    one, kept = await computed(keeps=True)
    several, dropped = await computed(keeps=False)
    assert (one, several) == (1, 8)
    assert dropped <= 1.3 * kept


CALLED = Message(role="assistant", content="", tool_calls=(ToolCall(id="", name="add", arguments={"x": 1, "y": 2}),))
REQUESTS: dict[str, tuple[str, tuple[Message, ...], tuple[Tool, ...]]] = {
    "begin": (CALL, (WORK, TASK_TEXT), (ADD,)),
    "end": ("It is 3.", (WORK, TASK_TEXT, CALLED, RESULT), (ADD,)),
    "other": ("It is 4.", (WORK, user("2+2?")), (ADD,)),
    "title": ("Title 5", (TITLE, TASK_TEXT), ()),
    "memory": ("The user asked 6 times.", (MEMORY, TASK_TEXT), ()),
    "helper": (CALL, (HELPER, user("add")), (ADD,)),
    "helped": ("It is 7.", (HELPER, user("add"), CALLED, RESULT), (ADD,)),
    "summary": ("So far the sum is 8.", (HELPER, TASK_TEXT, CALLED, user("Summarise.")), ()),
    "go on": ("It is 3.", (WORK, user("What was done: So far the sum is 8.")), (ADD,)),
}
"""The reply to each request, its messages and its tools."""
GRADED = {
    "title first": "title, begin, end",
    "memory last": "begin, end, memory",
    "subagent in parallel": "begin, helper + title, helped, end, memory",
    "summary in the middle": "title, begin, summary, go on, memory",
    "retry": "begin, begin, other, end, memory",
    "two at once": "title, begin + other, end, memory",
}


async def test_math_grades_the_main_answer_in_each_case(tokenizer: PreTrainedTokenizerBase) -> None:
    cases = {name: [step.split(" + ") for step in steps.split(", ")] for name, steps in GRADED.items()}
    played: dict[str, Trajectory] = {}
    for name, steps in cases.items():
        agent = Agent(tokenizer, *(REQUESTS[one][0] for step in steps for one in step))
        for step in steps:
            await asyncio.gather(*(agent.ask(*REQUESTS[one][1], tools=REQUESTS[one][2]) for one in step))
        played[name] = agent.played()
    for one in ("other", "title", "memory", "helped", "summary"):
        played[one] = replace(played["retry"], response=REQUESTS[one][0])
    reward = make_reward(RewardConfig(kind="math"))
    try:
        scores = await reward(replace(TASK, answer="3"), list(played.values()))
    finally:
        await reward.close()
    values = [score.value for score in scores if isinstance(score, Scored)]
    assert dict(zip(played, values, strict=True)) == {name: float(name in GRADED) for name in played}
