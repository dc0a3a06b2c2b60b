"""An agent's requests become segments: sampled ids stay as they were, whatever the agent does with its history."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.models.tiny import byte_tokenizer
from rlhf.rollout.endpoint.sessions import ChatRefused
from rlhf.types import Completion, EpisodeStatus, FinishReason, Message, Prompt, TokenKind, ToolCall
from tests.models.templates import FORGETS_THINKING, NO_SYSTEM_LATER, tokenizer_with
from tests.rollout.endpoint.asking import Agent, assistant, user
from tests.rollout.playing import ADD, TASK

CALL = '<tool_call>{"name": "add", "arguments": {"y": 2, "x": 1}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return byte_tokenizer()


async def test_a_conversation_that_goes_on_is_one_segment(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "one", "two")
    await agent.say(user("go"))
    await agent.say(user("more"))
    trajectory = agent.played(0.5)
    assert agent.texts(trajectory) == [
        "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\none<|im_end|>"
        "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>"
    ]
    first, last = trajectory.segments[0].turns
    assert (first.reward, last.reward, last.terminated) == (None, 0.5, True)
    assert trajectory.segments[0].kinds[first.stop] == TokenKind.ENV
    assert (trajectory.response, trajectory.engine, trajectory.status) == ("two", "scripted", EpisodeStatus.TERMINATED)
    assert [message.content for message in trajectory.conversation] == ["go", "one", "more", "two"]
    assert [seed for _, _, seed, _ in agent.engine.asked] == [100, 101], "seeds follow from the number of the request"


async def test_tokens_that_no_encoder_would_give_are_continued_as_they_were(tokenizer: PreTrainedTokenizerBase) -> None:
    half = tokenizer.encode("ä", add_special_tokens=False)[:1]
    agent = Agent(tokenizer, half, "two")
    replied = await agent.say(user("go"))
    assert replied.message.content == "\N{REPLACEMENT CHARACTER}"
    await agent.say(user("more"))
    assert agent.played().segments[0].turns[0].stop - agent.played().segments[0].turns[0].start == 2


async def test_a_tool_call_is_known_by_name_and_arguments_however_they_are_sent_back(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    agent = Agent(tokenizer, CALL, "3")
    replied = await agent.ask(user("1+2?"), tools=(ADD,))
    [call] = replied.message.tool_calls
    assert (call.id, call.name, call.arguments, replied.message.content) == ("call00000", "add", {"x": 1, "y": 2}, "")
    renamed = Message(
        role="assistant", content="", tool_calls=(ToolCall(id="mine", name="add", arguments={"x": 1, "y": 2}),)
    )
    answer = Message(role="tool", content="3", tool_call_id="mine")
    await agent.ask(user("1+2?"), renamed, answer, tools=(ADD,))
    [text] = agent.texts(agent.played())
    assert text.endswith(f"{CALL}<|im_end|>\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n3<|im_end|>")


async def test_other_arguments_than_those_that_were_sampled_are_a_rewritten_history(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    agent = Agent(tokenizer, CALL, "3")
    await agent.ask(user("1+2?"), tools=(ADD,))
    forged = Message(role="assistant", content="", tool_calls=(ToolCall(id="", name="add", arguments={"x": 1}),))
    await agent.ask(user("1+2?"), forged, Message(role="tool", content="3"), tools=(ADD,))
    assert len(agent.played().segments) == 2


async def test_a_malformed_call_is_text_to_the_agent_and_counted(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "<tool_call>{oops</tool_call>", "two")
    replied = await agent.say(user("go"), tools=(ADD,))
    assert (replied.message.tool_calls, replied.message.content) == ((), "<tool_call>{oops</tool_call>")
    await agent.say(user("more"), tools=(ADD,))
    trajectory = agent.played()
    assert (trajectory.malformed_calls, len(trajectory.segments)) == (1, 1)


@pytest.mark.parametrize(
    "rewritten",
    [
        [user("go"), assistant("ONE"), user("more")],
        [user("Go"), assistant("one"), user("more")],
        [user("a summary of it all")],
        [Message(role="system", content="now"), user("go"), assistant("one"), user("more")],
    ],
    ids=["reply", "question", "dropped", "system"],
)
async def test_where_the_agent_rewrote_history_a_new_segment_opens(
    tokenizer: PreTrainedTokenizerBase, rewritten: list[Message]
) -> None:
    agent = Agent(tokenizer, "one", "two")
    await agent.ask(user("go"))
    await agent.ask(*rewritten)
    first, second = agent.played().segments
    assert first.kinds.tolist().count(TokenKind.ENV) == second.kinds.tolist().count(TokenKind.ENV) == 0
    assert second.token_ids[second.kinds == TokenKind.PROMPT].tolist() == tokenizer.apply_chat_template(
        [{"role": message.role, "content": message.content} for message in rewritten],
        add_generation_prompt=True,
        return_dict=False,
    )


async def test_other_tools_open_a_new_segment(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "one", "two")
    await agent.say(user("go"))
    await agent.say(user("more"), tools=(ADD,))
    assert len(agent.played().segments) == 2


async def test_asking_again_gives_a_segment_with_the_same_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "one", "two", "three")
    await agent.say(user("go"))
    await agent.say(user("more"))
    await agent.ask(user("go"), assistant("one"), user("more"))
    first, second = agent.played().segments
    [turn] = second.turns
    assert (second.kinds[: turn.start] == TokenKind.PROMPT).all()
    assert second.token_ids[: turn.start].tolist() == agent.engine.asked[1][0]
    assert turn.start == first.turns[1].start


async def test_a_branch_has_the_sampled_ids_before_it_as_its_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    half = tokenizer.encode("ä", add_special_tokens=False)[:1]
    agent = Agent(tokenizer, half, "two", "three", "four")
    await agent.say(user("go"))
    shared = list(agent.said)
    await agent.say(user("left"))
    replied = await agent.ask(*shared, user("right"))
    await agent.ask(*shared, user("right"), replied.message, user("on"))
    first, second = agent.played().segments
    cut = first.turns[0].stop
    assert second.token_ids[:cut].tolist() == first.token_ids[:cut].tolist()
    assert (second.kinds[:cut] == TokenKind.PROMPT).all()
    assert len(second.turns) == 2, "the branch grows as any other"


async def test_samples_at_once_are_a_segment_each_and_each_goes_on(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "same", "same", "same", "a", "b", "c")
    await asyncio.gather(*(agent.ask(user("go")) for _ in range(3)))
    await asyncio.gather(*(agent.ask(user("go"), assistant("same"), user("more")) for _ in range(3)))
    trajectory = agent.played()
    assert [len(segment.turns) for segment in trajectory.segments] == [2, 2, 2]
    assert [segment.versions[segment.turns[0].start] for segment in trajectory.segments] == [0, 1, 2]


async def test_two_that_go_on_with_one_reply_do_not_both_have_it(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "one", "left", "right")
    await agent.ask(user("go"))
    questions = (user("go"), assistant("one"))
    await asyncio.gather(agent.ask(*questions, user("more")), agent.ask(*questions, user("more")))
    assert [len(segment.turns) for segment in agent.played().segments] == [2, 1]


async def test_a_reply_that_was_cut_is_not_continued(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "longer than that", "two")
    replied = await agent.say(user("go"), max_tokens=4)
    assert replied.message.content == "long"
    await agent.say(user("more"))
    assert [len(segment.turns) for segment in agent.played().segments] == [1, 1]


async def test_calls_are_not_read_from_a_reply_that_was_cut(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, f"{CALL} and more")
    length = len(tokenizer.encode(CALL, add_special_tokens=False))
    replied = await agent.ask(user("go"), tools=(ADD,), max_tokens=length)
    assert (replied.message.tool_calls, replied.message.content) == ((), CALL)


async def test_an_episode_whose_last_reply_was_cut_is_truncated_unless_the_agent_says_its_reward(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    for reward, status in ((None, EpisodeStatus.TRUNCATED), (0.0, EpisodeStatus.TERMINATED)):
        agent = Agent(tokenizer, "longer than that")
        await agent.ask(user("go"), max_tokens=4)
        trajectory = agent.played(reward)
        assert (trajectory.status, trajectory.segments[0].turns[0].reward) == (status, reward)


async def test_a_template_that_forgets_thinking_makes_a_segment_of_every_user_turn() -> None:
    agent = Agent(tokenizer_with(FORGETS_THINKING), "<think>hm</think>one", "two", "three")
    await agent.say(user("go"))
    await agent.say(Message(role="tool", content="4"))
    await agent.say(user("more"))
    first, second = agent.played().segments
    assert (len(first.turns), len(second.turns)) == (2, 1)
    assert "hm" not in agent.tokenizer.decode(second.token_ids)


async def test_a_conversation_that_the_template_refuses_is_the_agents_mistake() -> None:
    agent = Agent(tokenizer_with(NO_SYSTEM_LATER))
    with pytest.raises(ChatRefused, match="a system message must come first") as refused:
        await agent.ask(user("go"), Message(role="system", content="be brief"))
    assert (refused.value.status, refused.value.code) == (400, "template")


async def test_a_request_that_ends_with_a_reply_goes_on_after_it(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "one", "two")
    await agent.say(user("go"))
    await agent.say()
    assert len(agent.played().segments) == 1


async def test_the_last_reply_of_all_ends_the_last_segment(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, "plan", "sub", "done")
    await agent.say(user("main"))
    await agent.ask(user("a task for another"))
    await agent.say(user("what it found"))
    sub, main = agent.played(1.0).segments
    assert (len(sub.turns), len(main.turns)) == (1, 2)
    assert (sub.turns[-1].reward, main.turns[-1].reward) == (None, 1.0)


THOUGHT = "<think>\nhm\n</think>\n\n"


@pytest.mark.parametrize(
    ("sampled", "content", "thought"),
    [
        (f"{THOUGHT}4", "4", "hm"),
        (f"{THOUGHT}4", "\n\n4", "\nhm\n"),
        (f"{THOUGHT}4", f"{THOUGHT}4", "hm"),
        (f"{THOUGHT}4", f"{THOUGHT}4", None),
        ("hm\n</think>\n\n4", "4", "hm"),
        (f"{THOUGHT}{CALL}", "", "hm"),
    ],
)
async def test_thinking_that_a_client_sends_back_beside_the_text_continues_the_tokens_as_sampled(
    tokenizer: PreTrainedTokenizerBase, sampled: str, content: str, thought: str | None
) -> None:
    agent = Agent(tokenizer, sampled, "two")
    replied = await agent.ask(user("go"), tools=(ADD,))
    sent = replace(replied.message, content=content, reasoning_content=thought)
    await agent.ask(user("go"), sent, user("more"), tools=(ADD,))
    [segment] = agent.texts(agent.played())
    assert f"{sampled}<|im_end|>\n<|im_start|>user\nmore" in segment


@pytest.mark.parametrize(("content", "thought"), [("4", None), ("4", "other"), ("5", "hm")])
async def test_thinking_that_a_client_drops_or_changes_is_a_rewritten_history(
    tokenizer: PreTrainedTokenizerBase, content: str, thought: str | None
) -> None:
    agent = Agent(tokenizer, f"{THOUGHT}4", "two")
    await agent.ask(user("go"))
    sent = Message(role="assistant", content=content, reasoning_content=thought)
    await agent.ask(user("go"), sent, user("more"))
    assert len(agent.played().segments) == 2


async def test_a_reply_is_cut_at_a_stop_text_and_the_tokens_up_to_there_are_trained(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    agent = Agent(tokenizer, "Act: add\nObs: 3 and so on", "done", "whole")
    first = await agent.ask(user("go"), stop=("never", "\nObs:", "so"))
    said = "Act: add\nObs:"
    assert (first.message.content, first.cut, first.completion.finish_reason) == ("Act: add", True, FinishReason.STOP)
    assert tokenizer.decode(first.completion.token_ids) == said
    assert len(first.completion.behaviour_logprobs) == len(first.completion.versions) == len(said)
    await agent.ask(user("go"), assistant("Act: add"), user("Obs: 4"), stop=("\nObs:",))
    trajectory = agent.session.trajectory(TASK, 0.5)
    assert (trajectory.cut_replies, trajectory.status) == (1, EpisodeStatus.TERMINATED)
    cut, last = trajectory.segments
    assert tokenizer.decode(cut.token_ids[cut.action_mask]) == said
    assert (
        cut.behaviour_logprobs[cut.action_mask].tolist()
        == agent.engine.said[0].behaviour_logprobs[: len(said)].tolist()
    )
    assert tokenizer.decode(last.token_ids).endswith(
        "assistant\nAct: add<|im_end|>\n<|im_start|>user\nObs: 4<|im_end|>\n<|im_start|>assistant\ndone<|im_end|>"
    ), "the policy reads what the agent said, without what was cut"


async def test_a_cut_reply_of_an_unknown_length_keeps_the_experts_of_its_tokens(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    agent = Agent(tokenizer, "one; two")
    routing = np.arange(100, dtype=np.int16).reshape(-1, 1, 1)
    generate = agent.engine.generate

    async def routed(prompt: Prompt, **how: Any) -> Completion:
        sampled = await generate(prompt, **how)
        return replace(sampled, routing=routing[: len(prompt.token_ids) + len(sampled.token_ids) - 1])

    agent.engine.generate = routed  # type: ignore[method-assign]
    replied = await agent.ask(user("go"), stop=(";",))
    assert replied.completion.routing is not None
    assert len(replied.completion.routing) == len(replied.token_ids) + len("one;") - 1


async def test_calls_before_a_stop_text_are_read(tokenizer: PreTrainedTokenizerBase) -> None:
    agent = Agent(tokenizer, f"{CALL}\nObs: 3")
    replied = await agent.ask(user("go"), tools=(ADD,), stop=("Obs:",))
    assert [call.name for call in replied.message.tool_calls] == ["add"]
