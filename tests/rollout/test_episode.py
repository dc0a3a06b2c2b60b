"""Policy and environment take turns: what was sampled stays as it was, and every end has its name."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.chat.renderer import ChatRenderer
from rlhf.chat.templates import arguments_with_tools, prompt_ids
from rlhf.errors import EnvironmentFailed
from rlhf.models.tiny import CHAT_TEMPLATE, byte_tokenizer
from rlhf.rollout.episode import AnswerOnce
from rlhf.types import EpisodeStatus, Failed, Message, Observation, Sampling, Task, TokenKind, Tool, Trajectory
from tests.models.templates import CHATML_TOOLS, FORGETS_THINKING, NO_SYSTEM_LATER, tokenizer_with
from tests.rollout.playing import TASK, ScriptedEngine, ScriptedEnvironment, play_alone, policy, rules, says

CALL = '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
SUBTRACT = Tool(name="subtract", description="", parameters={})
RIGHT = Observation(messages=(), reward=1.0, terminated=True)
LONG = Sampling(max_tokens=256)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return byte_tokenizer()


def ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def engine(tokenizer: PreTrainedTokenizerBase, *replies: str) -> ScriptedEngine:
    return ScriptedEngine(*(ids(tokenizer, reply) for reply in replies), stop=tokenizer.eos_token_id)


async def played(
    tokenizer: PreTrainedTokenizerBase,
    replies: list[str],
    environment: ScriptedEnvironment,
    *,
    sampling: Sampling = Sampling(max_tokens=64),  # noqa: B008 - frozen
    context: int = 2048,
    **changed: object,
) -> Trajectory | Failed:
    its = policy(engine(tokenizer, *replies), tokenizer, sampling=sampling, max_context_tokens=context)
    return await play_alone(TASK, its, environment, seed=9, rules=rules(**changed))


async def test_a_tool_is_called_its_answer_read_and_the_end_rewarded(tokenizer: PreTrainedTokenizerBase) -> None:
    environment = ScriptedEnvironment(says("1+1?"), says("2", role="tool", reward=0.25), RIGHT)
    said = engine(tokenizer, CALL, "2")
    trajectory = await play_alone(TASK, policy(said, tokenizer), environment, seed=9, rules=rules())
    assert isinstance(trajectory, Trajectory)
    [segment] = trajectory.segments
    assert tokenizer.decode(segment.token_ids) == (
        f"<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n{CALL}<|im_end|>"
        "\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n2<|im_end|>"
    )
    assert segment.token_ids[segment.action_mask].tolist() == [
        token for completion in said.said for token in completion.token_ids.tolist()
    ]
    first, second = segment.turns
    assert (first.reward, first.terminated, first.truncated) == (0.25, False, False)
    assert (second.reward, second.terminated, second.truncated) == (1.0, True, False)
    assert tokenizer.decode(segment.token_ids[first.start : first.stop]) == f"{CALL}<|im_end|>"
    assert segment.kinds[first.stop] == TokenKind.ENV, "the newline after a reply is the template's"
    assert segment.versions[second.start : second.stop].tolist() == [1, 1]
    assert (trajectory.status, trajectory.response, trajectory.malformed_calls) == (EpisodeStatus.TERMINATED, "2", 0)
    assert [message.role for message in trajectory.conversation] == ["user", "assistant", "tool", "assistant"]
    assert (first.message, second.message) == (1, 3)
    assert environment.seeds == [9]
    assert environment.heard[0].tool_calls[0].arguments == {"x": 1}


async def test_every_turn_continues_exactly_what_was_before_it(tokenizer: PreTrainedTokenizerBase) -> None:
    environment = ScriptedEnvironment(says("go"), says("more"), says("more"), RIGHT)
    said = engine(tokenizer, "one", "two", "three")
    trajectory = await play_alone(TASK, policy(said, tokenizer), environment, seed=0, rules=rules())
    assert isinstance(trajectory, Trajectory)
    whole = trajectory.segments[0].token_ids.tolist()
    assert [seed for _, _, seed, _ in said.asked] == [100, 101, 102]
    for (asked, _, _, session), turn in zip(said.asked, trajectory.segments[0].turns, strict=True):
        assert asked == whole[: turn.start]
        assert session == "s"


async def test_a_malformed_call_is_answered_and_counted_and_the_environment_never_asked(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    environment = ScriptedEnvironment(says("1+1?"), RIGHT)
    trajectory = await played(tokenizer, ["<tool_call>{oops</tool_call>", "2"], environment)
    assert isinstance(trajectory, Trajectory)
    assert [action.content for action in environment.heard] == ["2"]
    assert trajectory.malformed_calls == 1
    assert trajectory.segments[0].turns[0].reward is None
    answer = trajectory.conversation[2]
    assert (answer.role, answer.content[:20]) == ("tool", "malformed tool call:")
    assert answer.tool_call_id == "call00000", "templates that require the id of a call accept the message"


async def test_ids_of_calls_are_new_in_every_turn_and_in_what_is_told_of_a_malformed_one(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    environment = ScriptedEnvironment(says("1+1?"), says("2", tool_call_id="call00000"), says("3"), RIGHT)
    trajectory = await played(
        tokenizer, [f"{call}{call}", "<tool_call>{oops</tool_call>", call, "2"], environment, sampling=LONG
    )
    assert isinstance(trajectory, Trajectory)
    ids = [call.id for message in trajectory.conversation for call in message.tool_calls]
    assert ids == ["call00000", "call00001", "call00003"]
    assert [message.tool_call_id for message in trajectory.conversation if message.role == "tool"] == ["call00002"]


async def test_a_call_that_is_drafted_while_thinking_is_not_made(tokenizer: PreTrainedTokenizerBase) -> None:
    environment = ScriptedEnvironment(says("1+1?"), RIGHT)
    draft = '<think><tool_call>{"name": "add", "arguments": {}}</tool_call></think>2'
    await played(tokenizer, [draft], environment, sampling=LONG)
    [action] = environment.heard
    assert (action.tool_calls, action.content) == ((), draft)


async def test_a_reply_cut_by_its_budget_ends_the_episode_truncated(tokenizer: PreTrainedTokenizerBase) -> None:
    environment = ScriptedEnvironment(says("go"), says("more", reward=0.5))
    trajectory = await played(tokenizer, ["one", "longer than that"], environment, sampling=Sampling(max_tokens=4))
    assert isinstance(trajectory, Trajectory)
    assert trajectory.status is EpisodeStatus.TRUNCATED
    first, last = trajectory.segments[0].turns
    assert (first.reward, first.truncated) == (0.5, False)
    assert (last.reward, last.truncated, last.stop - last.start) == (None, True, 4)
    assert len(environment.heard) == 1, "half a reply is no action"


async def test_a_conversation_that_fills_the_context_ends_truncated_with_its_reward(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    environment = ScriptedEnvironment(says("go"), says("x" * 200, reward=0.5))
    trajectory = await played(tokenizer, ["one"], environment, context=120)
    assert isinstance(trajectory, Trajectory)
    [turn] = trajectory.segments[0].turns
    assert (trajectory.status, turn.reward, turn.truncated) == (EpisodeStatus.TRUNCATED, 0.5, True)
    assert len(trajectory.segments[0].token_ids) <= 120


async def test_a_reply_gets_no_more_tokens_than_the_context_has_left(tokenizer: PreTrainedTokenizerBase) -> None:
    environment = ScriptedEnvironment(says("go"), says("more"), RIGHT)
    said = engine(tokenizer, "one", "two")
    await play_alone(TASK, policy(said, tokenizer, max_context_tokens=100), environment, seed=0, rules=rules())
    for asked, sampling, _, _ in said.asked:
        assert sampling.max_tokens == min(64, 100 - len(asked))


async def test_the_last_turn_of_the_budget_truncates_and_keeps_its_reward(tokenizer: PreTrainedTokenizerBase) -> None:
    environment = ScriptedEnvironment(says("go"), says("more", reward=1.0), says("still more", reward=2.0))
    trajectory = await played(tokenizer, ["one", "two"], environment, max_turns=2)
    assert isinstance(trajectory, Trajectory)
    [segment] = trajectory.segments
    assert trajectory.status is EpisodeStatus.TRUNCATED
    assert [(turn.reward, turn.truncated) for turn in segment.turns] == [(1.0, False), (2.0, True)]
    assert tokenizer.decode(segment.token_ids[segment.turns[-1].stop :]).startswith("\n<|im_start|>user\nstill more"), (
        "a critic values what the episode was cut off at"
    )


async def test_a_cut_by_the_environment_is_truncated_and_an_end_is_not(tokenizer: PreTrainedTokenizerBase) -> None:
    cut = await played(
        tokenizer, ["one"], ScriptedEnvironment(says("go"), says("time is up", reward=1.0, truncated=True))
    )
    both = await played(
        tokenizer, ["one"], ScriptedEnvironment(says("go"), says("fell", terminated=True, truncated=True))
    )
    assert isinstance(cut, Trajectory)
    assert isinstance(both, Trajectory)
    assert (cut.status, cut.segments[0].turns[-1].truncated) == (EpisodeStatus.TRUNCATED, True)
    assert (both.status, both.segments[0].turns[-1].truncated) == (EpisodeStatus.TERMINATED, False)


async def test_a_question_that_fills_the_context_is_failed(tokenizer: PreTrainedTokenizerBase) -> None:
    outcome = await played(tokenizer, [], ScriptedEnvironment(says("x" * 100)), context=50)
    assert isinstance(outcome, Failed)
    assert outcome.kind == "prompt_too_long"


@pytest.mark.parametrize(("first", "why"), [(RIGHT, "ended the episode"), (Observation(messages=()), "said nothing")])
async def test_a_reset_that_asks_nothing_is_a_failure(
    tokenizer: PreTrainedTokenizerBase, first: Observation, why: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=f"protocol: its reset {why}"):
        await played(tokenizer, [], ScriptedEnvironment(first))


async def test_a_reward_before_any_action_is_a_failure(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(EnvironmentFailed, match=r"protocol: its reset has the reward 0\.25, but no action earned it"):
        await played(tokenizer, ["one"], ScriptedEnvironment(says("go", reward=0.25)))


async def test_a_role_that_the_template_refuses_fails_the_episode() -> None:
    strict, interrupts = tokenizer_with(NO_SYSTEM_LATER), says("be brief", role="system")
    for last_turns in (None, 1):
        outcome = await played(strict, ["a"], ScriptedEnvironment(says("go"), interrupts), last_turns=last_turns)
        assert isinstance(outcome, Failed)
        assert outcome.kind == "template"
        assert "a system message must come first" in outcome.detail


async def test_an_episode_that_has_waited_too_long_for_its_environment_is_cut_off_with_what_was_said(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    class Slow(ScriptedEnvironment):
        async def step(self, action: Message) -> Observation:
            await asyncio.sleep(0.2)
            return says("more")

    trajectory = await played(tokenizer, ["again"] * 20, Slow(says("go")), timeout_seconds=0.5, max_turns=20)
    assert isinstance(trajectory, Trajectory)
    assert (trajectory.status, trajectory.out_of_time) == (EpisodeStatus.TRUNCATED, True)
    [segment] = trajectory.segments
    assert [turn.truncated for turn in segment.turns] == [False, False, True], "two answers came in time"
    assert tokenizer.decode(segment.token_ids).endswith("again<|im_end|>")


async def test_an_environment_whose_reset_takes_the_whole_time_of_its_episode_is_lost(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    class Slow(ScriptedEnvironment):
        async def reset(self, task: Task, *, seed: int) -> Observation:
            await asyncio.sleep(5)
            return says("go")

    with pytest.raises(EnvironmentFailed, match=r"timeout: its reset took more than 0\.1 s"):
        await played(tokenizer, ["again"], Slow(), timeout_seconds=0.1)


async def test_the_thinking_that_a_template_begins_is_the_beginning_of_the_reply() -> None:
    opens = tokenizer_with(CHAT_TEMPLATE.replace("assistant\n", "assistant\n<think>\n"))
    assert opens.chat_template != CHAT_TEMPLATE
    said = engine(opens, "five</think>4")
    task = replace(TASK, messages=(Message(role="user", content="2+2?"),))
    [trajectory] = await AnswerOnce()(task, policy(said, opens), 9)
    assert isinstance(trajectory, Trajectory)
    assert trajectory.response == "<think>\nfive</think>4"
    action = trajectory.segments[0].token_ids[trajectory.segments[0].action_mask]
    assert opens.decode(action) == "five</think>4<|im_end|>"


async def test_with_last_n_every_turn_is_a_segment_with_the_question_and_the_last_turns(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    observations = [says(f"state {n}", reward=float(n)) for n in range(1, 4)]
    environment = ScriptedEnvironment(says("rules"), *observations, RIGHT)
    trajectory = await played(tokenizer, ["a", "b", "c", "d"], environment, last_turns=1)
    assert isinstance(trajectory, Trajectory)
    assert len(trajectory.segments) == 4
    assert tokenizer.decode(trajectory.segments[2].token_ids) == (
        "<|im_start|>user\nrules<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nstate 2<|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>"
    )
    for segment, reply in zip(trajectory.segments, "abcd", strict=True):
        assert tokenizer.decode(segment.token_ids[segment.action_mask]) == f"{reply}<|im_end|>"
        assert len(segment.turns) == 1
    assert [segment.turns[0].reward for segment in trajectory.segments] == [1.0, 2.0, 3.0, 1.0]
    assert [segment.turns[0].message for segment in trajectory.segments] == [1, 3, 5, 7]
    assert [segment.turns[0].terminated for segment in trajectory.segments] == [False, False, False, True]


async def test_with_last_n_an_observation_without_room_truncates_the_turn_before_it(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    environment = ScriptedEnvironment(says("rules"), says("ok"), says("x" * 500, reward=0.5))
    trajectory = await played(tokenizer, ["a", "b"], environment, last_turns=1, context=150)
    assert isinstance(trajectory, Trajectory)
    assert [segment.turns[0].truncated for segment in trajectory.segments] == [False, True]
    assert trajectory.segments[-1].turns[0].reward == 0.5


async def test_a_template_that_rewrites_history_fails_with_full_history_and_plays_with_last_n() -> None:
    rewriting = tokenizer_with(FORGETS_THINKING)
    replies = ["<think>\nhm\n</think>\n\na", "b"]
    refused = await played(rewriting, replies, ScriptedEnvironment(says("go"), says("more"), RIGHT))
    assert isinstance(refused, Failed)
    assert refused.kind == "template"
    shown = await played(rewriting, replies, ScriptedEnvironment(says("go"), says("more"), RIGHT), last_turns=2)
    assert isinstance(shown, Trajectory)
    first, second = (rewriting.decode(segment.token_ids) for segment in shown.segments)
    assert "<think>" in first
    assert "<think>" not in second


async def test_a_task_s_messages_are_left_to_the_environment(tokenizer: PreTrainedTokenizerBase) -> None:
    asked = Task(id="t", messages=(Message(role="user", content="never shown"),))
    said = engine(tokenizer, "x")
    await play_alone(asked, policy(said, tokenizer), ScriptedEnvironment(says("shown"), RIGHT), seed=0, rules=rules())
    assert "never shown" not in tokenizer.decode(said.asked[0][0])


async def test_the_tools_of_a_row_are_shown_to_the_policy() -> None:
    tokenizer = tokenizer_with(CHATML_TOOLS)
    asked = replace(TASK, messages=(Message(role="user", content="1+1?"),))
    for task, tools in ((asked, ()), (replace(asked, tools=(SUBTRACT,)), (SUBTRACT,))):
        its = replace(policy(engine(tokenizer, "2"), tokenizer), renderer=ChatRenderer(tokenizer))
        [outcome] = await AnswerOnce()(task, its, seed=9)
        assert isinstance(outcome, Trajectory)
        prompt = outcome.segments[0].token_ids[~outcome.segments[0].action_mask].tolist()
        assert prompt == prompt_ids(tokenizer, asked.messages, arguments_with_tools({}, tools))
        assert ("subtract" in tokenizer.decode(prompt)) == bool(tools)
